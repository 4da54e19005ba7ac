"""Matrix products on CUDA: both orientations, batches and tails, every tile; bitwise on integers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import alpha
from alpha.cuda.ops import matmul
from alpha.cuda.runtime.context import ASYNC, context, lacks
from alpha.errors import DTypeError
from alpha.gradcheck import assert_equal_at
from tests.cuda.agree import Case, agree, floats, ints

pytestmark = pytest.mark.cuda

CASES = [
    Case("matmul", ints(5, 7), ints(7, 3), exact=True),
    Case("matmul", ints(36, 20), ints(20, 44, seed=1), exact=True),
    Case("matmul", ints(130, 20), ints(20, 140, seed=1), exact=True, label="several tiles"),
    Case("matmul", ints(1, 1), ints(1, 1), exact=True),
    Case("matmul", ints(7), ints(7), exact=True),
    Case("matmul", ints(7), ints(7, 5), exact=True),
    Case("matmul", ints(4, 8), ints(8), exact=True),
    Case("matmul", ints(3, 4, 8), ints(8, 12), exact=True, label="one b for all"),
    Case("matmul", ints(4, 8), ints(3, 8, 12), exact=True, label="one a for all"),
    Case("matmul", ints(3, 4, 8), ints(3, 8, 12), exact=True),
    Case("matmul", ints(2, 1, 4, 8), ints(3, 8, 12), exact=True, label="broadcast"),
    Case("matmul", ints(2, 1, 8, 4), ints(1, 3, 12, 8), exact=True, transpose_a=True, transpose_b=True),
    Case("matmul", ints(3, 8, 4), ints(8, 12), exact=True, transpose_a=True),
    Case("matmul", ints(8), ints(2, 3, 8, 12), exact=True),
    Case("matmul", ints(3, 0), ints(0, 4), exact=True, label="no terms"),
    Case("matmul", ints(0, 4), ints(4, 3), exact=True, label="no rows"),
    Case("matmul", ints(0, 4, 4), ints(4, 3), exact=True, label="no matrices"),
    Case("matmul", floats(33, 70), floats(70, 21), rtol=1e-5),
    Case("matmul", ints(6, 1000), ints(1000, 12, seed=1), exact=True, label="slices"),
    Case("linear", ints(5, 1030), ints(7, 1030, seed=1), ints(7, seed=2), exact=True, activation="relu",
         label="slices"),
    Case("linear", ints(6, 20), ints(12, 20, seed=1), ints(12, seed=2), exact=True, activation="relu"),
    Case("linear", ints(2, 3, 7), ints(5, 7, seed=1), ints(5, seed=2), exact=True),
    Case("linear", ints(9), ints(5, 9, seed=1), None, exact=True, activation="relu"),
    Case("linear", ints(140, 36), ints(70, 36, seed=1), ints(70, seed=2), exact=True, activation="relu"),
    Case("linear", np.full((2, 4), np.nan, np.float32), ints(3, 4), None, exact=True, activation="relu",
         label="NaN stays"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_agrees_with_the_cpu(case):
    agree(case)


@pytest.mark.parametrize("transpose_a, transpose_b", [(False, False), (False, True), (True, False)])
def test_every_tile_is_bitwise_right_on_integers(device, transpose_a, transpose_b):
    from alpha.cuda.conv.split import workspace
    from alpha.cuda.ops import matmul as module
    from alpha.cuda.runtime.memory import download, empty, upload
    for tile, split in itertools.product(module.TILES, (1, 2, 3)):
        sizes = itertools.product((1, 20, 160), (4, 132), (8, 68)) if tile.vector == 4 else (
            (1, 1, 1), (33, 5, 7), (65, 70, 19))
        for m, n, k in sizes:
            if tile.vector == 4 and transpose_a and m % 4:
                continue
            a, b = ints(2, m, k, seed=m), ints(2, k, n, seed=n)
            bias, y = ints(n), empty((2, m, n), "float32")
            left = np.ascontiguousarray(a.swapaxes(1, 2)) if transpose_a else a
            right = np.ascontiguousarray(b.swapaxes(1, 2)) if transpose_b else b
            grid = -(-m // tile.rows), -(-n // tile.columns)
            tiles = 2 * grid[0] * grid[1]
            meeting = workspace(tiles * split if split > 1 else 0, tile.rows * tile.columns)
            kernel = module.KERNELS[tile, transpose_a, transpose_b, split > 1]
            operands = upload(left), upload(right), upload(bias)
            kernel((tiles, split), *operands, y, *meeting, None, 1, 1, m, n, k, *grid, False)
            assert_equal_at(download(y, "float32"), a @ b + bias, name=f"{tile} split {split} {m} x {n} x {k}")


def test_long_sums_of_few_tiles_are_split(device):
    from alpha.cuda.conv.split import workspace
    from alpha.cuda.ops.matmul import _choose
    for m, n, k in ((128, 10, 4096), (16, 64, 4096)):
        _, (tiles, split), (slots, _), *_ = _choose(m, n, k, 1, False, True)
        assert split > 1 and slots == tiles * split
    for m, n, k in ((128, 512, 10), (4096, 4096, 4096)):
        _, (_, split), meeting, *_ = _choose(m, n, k, 1, False, True)
        assert split == 1 and workspace(*meeting) == (None, None)


def test_few_columns_are_not_padded_for_tensor_cores(device, monkeypatch):
    """LeNet-5 on an H200: two paddings, the product and a copy took 12.5 us, two casts and FMA units 9."""
    for name, value in dict(arch="sm_90a", name="NVIDIA H200", sm_count=132, max_shared=232_448).items():
        monkeypatch.setattr(context, name, value)
    matmul._choose.cache_clear()
    chosen = [matmul._convolution.__wrapped__(m, n, 512, True, False, "bf16", "float32") is None
              for m, n in ((10, 84), (84, 120), (120, 400))]
    matmul._choose.cache_clear()
    assert chosen == [True, True, False]


def test_integers_are_refused_with_the_way_out(device):
    x = alpha.tensor(np.ones((2, 2), np.int32), device="cuda")
    with pytest.raises(DTypeError, match=r'matmul: .* multiplies floats, an operand is int32\nhelp: .*astype'):
        alpha.ops.matmul(x, x)


@pytest.mark.classes
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16"])
@pytest.mark.parametrize("transposed", [(False, True), (False, False), (True, False)], ids=str)
def test_large_products_are_convolutions_of_one_pixel(device, precision, transposed):
    """On tensor cores: rows of a are images; bitwise on integers, and with the exact kernel where an element is inf."""
    from alpha.cuda.ops import matmul
    a, b = ints(136, 264), ints(264, 72, seed=1)
    expected = a @ b
    given = [x.T.copy() if t else x for x, t in zip((a, b), transposed)]
    dtype = {"bf16": "bfloat16", "fp16": "float16"}.get(precision, "float32")
    x, y = (alpha.tensor(each, device="cuda").astype(dtype) for each in given)
    if dtype != "float32" and not (dtype == "bfloat16" and lacks(ASYNC)):  # which may be as well off without
        assert matmul._convolution(136, 72, 264, *transposed, precision, "float32" if transposed[0] else dtype)
    with alpha.precision(precision):
        found = alpha.ops.matmul(x, y, *transposed, dtype="float32" if dtype != "float32" and transposed[0] else None)
        assert np.abs(found.astype("float32").numpy() - expected).max() <= (2 if dtype == "bfloat16" else 0)
        if dtype == "float32":
            given[0].flat[0] = np.inf
            found = alpha.ops.matmul(alpha.tensor(given[0], device="cuda"), y, *transposed).numpy()
            with np.errstate(invalid="ignore"):
                exact = (given[0].T if transposed[0] else given[0]) @ b
            assert np.array_equal(found, exact, equal_nan=True)
