"""Reductions on the GPU: every order of axes, tails, chunks, NaN and ties, and the same bits in every run."""

from __future__ import annotations

import struct

import numpy as np
import pytest

import alpha
from alpha import ops
from alpha.cuda.ops import reduce as cuda_reduce
from alpha.cuda.runtime.kernel import FLOAT_DTYPES
from alpha.gradcheck import assert_equal_at
from tests.cuda.agree import Case, agree, floats, ints

pytestmark = pytest.mark.cuda

NAMES = ("sum", "max", "min")
AXES = [None, 0, 1, 2, -1, (0, 1), (1, 2), (0, 2), (0, 1, 2), ()]
# Sizes around a group of threads, a packet, a warp's row and a chunk of a row, and unaligned rows.
ROWS = [(1, 1), (3, 7), (5, 8), (2, 33), (3, 1024), (3, 1025), (2, 2051), (1, 9000), (2, 4100)]
# Columns: tiles and tails of columns, several chunks of rows, few rows.
COLUMNS = [(2, 3), (300, 1, 4), (5, 64), (7, 65), (3, 131), (1100, 3), (900, 8), (2, 300), (70, 260)]
LATE = np.array([[1, np.inf], [2, -np.inf], [3e38, -3e38], [0, np.nan]], np.float32)    # what is not finite comes last
SPECIAL = np.array([[np.nan, 1, 2], [np.inf, -np.inf, 0], [-np.inf, -np.inf, -np.inf], [3, np.nan, np.nan]], np.float32)


def several(*shape: int) -> list[Case]:
    return [Case(name, ints(*shape), axis=axis, keepdims=keep, exact=True)
            for name in NAMES for axis in AXES for keep in (False, True)]


CASES = [
    *several(3, 4, 5), *several(2, 1, 8),
    *[Case(name, ints(*shape), axis=-1, exact=True) for name in (*NAMES, "argmax") for shape in ROWS],
    *[Case(name, ints(*shape), axis=0, exact=True) for name in (*NAMES, "argmax") for shape in COLUMNS],
    *[Case(name, ints(9, 6, 12), axis=1, exact=True, dtypes=FLOAT_DTYPES) for name in (*NAMES, "argmax")],
    *[Case(name, ints(3, 40), axis=1, exact=True, dtypes=FLOAT_DTYPES) for name in (*NAMES, "argmax")],
    *[Case(name, ints(3, 40, dtype=dtype, low=0), axis=axis) for name in (*NAMES, "argmax")
      for dtype in ("int32", "int64", "uint8") for axis in (0, 1, None)],
    *[Case(name, SPECIAL, axis=axis) for name in (*NAMES, "argmax") for axis in (0, 1, None)],
    *[Case("argmax", ints(4, 5, 6, low=0, high=2), axis=axis, keepdims=keep) for axis in (None, 0, 1, 2)
      for keep in (False, True)],
    Case("argmax", np.zeros((2, 5000), np.float32), axis=1, label="all equal, several chunks"),
    Case("max", np.array([-2 ** 62 - 1, -2 ** 62], np.int64)), Case("min", np.array([2 ** 31 - 1], np.int32)),
    Case("sum", np.full((5, 3), 2 ** 40 + 1, np.int64), axis=0),
    Case("sum", np.full((3, 70000), 255, np.uint8), axis=1),
    Case("sum", np.arange(40).reshape(5, 8) % 3 == 0, axis=0), Case("sum", np.ones((3, 2), bool)),
    Case("sum", ints(), exact=True), Case("max", ints(), exact=True),
    *[Case("sum", np.zeros(shape, np.float32), axis=axis) for shape in ((0, 3), (3, 0)) for axis in (None, 0, 1)],
    Case("mean", np.zeros((3, 0), np.float32), axis=1), Case("mean", np.zeros((0, 3), np.float32), axis=1),
    *[Case("mean", ints(4, 8, 6), axis=axis, dtypes=FLOAT_DTYPES) for axis in (None, 0, 1, (0, 1), (0, 2), 2)],
    *[Case("mean", floats(3, 2048), axis=1, rtol=1e-6)],
    *[Case("var", floats(4, 6, 8), axis=axis, correction=1, dtypes=FLOAT_DTYPES)
      for axis in (None, 0, 1, (0, 1), (0, 2), 2)],
    Case("var", 1000 + floats(5, 3000), axis=1, rtol=1e-4), Case("var", 1000 + floats(1500, 3), axis=0, rtol=1e-4),
    Case("var", np.full((4, 7), 3e30, np.float32), axis=1), Case("var", SPECIAL, axis=1),
    Case("var", LATE, axis=1), Case("var", LATE, axis=0), Case("var", LATE.T, axis=1),
    *[Case("sum_to", ints(2, 3, 4, 8), shape=shape, exact=True, dtypes=FLOAT_DTYPES)
      for shape in ((8,), (4, 8), (3, 1, 8), (2, 1, 1, 8), (1, 3, 1, 1), (), (1, 1, 1, 1), (2, 3, 4, 8))],
    Case("sum_to", ints(1500, 12), shape=(12,), exact=True),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_agrees_with_the_cpu(case):
    agree(case)


@pytest.mark.long
@pytest.mark.parametrize("shape, axes, aligned, wide", [
    ((3, 8), (1,), 1, False), ((3, 7), (1,), 0, False), ((1, 7), (1,), 1, False), ((3, 2, 8), (1,), None, True),
    ((3, 2, 7), (1,), None, False)])
def test_sixteen_bytes_are_read_at_once_only_where_rows_are_aligned(shape, axes, aligned, wide):
    """A device refuses a misaligned read; a CPU does not."""
    plan = cuda_reduce._plan(shape, axes, 4, True)
    assert (plan.of == "wide_columns") == wide
    assert plan.args[-1] == aligned if plan.of == "rows" else aligned is None


@pytest.mark.parametrize("outer, count", [(1, 10 ** 9), (1, 4099), (7, 10 ** 6 + 3), (10 ** 5, 10 ** 5), (3, 1025)])
def test_chunks_of_a_row_cover_it_and_keep_the_alignment(outer, count):
    for lanes in (2, 4, 8, 16):
        _, chunk = cuda_reduce._row_threads(outer, count, lanes)
        assert chunk % lanes == 0 and chunk <= cuda_reduce.LONGEST * cuda_reduce.THREADS * lanes


@pytest.mark.parametrize("rows, columns", [(1, 1), (524288, 16), (3, 10 ** 6), (10 ** 7, 1), (2048, 512), (77, 65)])
def test_a_walk_covers_the_matrix(rows, columns):
    grid, chunks, chunk, block = cuda_reduce.walk(rows, columns)
    _, _, width, step, tiles, _, _ = struct.unpack("@qqiiiiq", block)
    assert chunks * chunk >= rows > (chunks - 1) * chunk and tiles * width >= columns > (tiles - 1) * width
    assert grid == tiles * chunks and 1 <= width * step <= cuda_reduce.THREADS


@pytest.mark.parametrize("bytes_of_row", [96, 192, 256, 1536, 8192])
def test_few_chunks_meet_in_a_tile(bytes_of_row):
    """The last block of a tile adds up what all of them have left: more than 64 KiB would take it too long."""
    for rows in (512, 4096, 65536, 1 << 20):
        w = cuda_reduce.walk(rows, bytes_of_row // 16, *cuda_reduce.SUMMERS, cuda_reduce.LINE)
        _, _, width, step, _, _, _ = struct.unpack("@qqiiiiq", w.block)
        assert w.chunks * width * 8 * 4 <= 64 << 10 and width * step > cuda_reduce.THREADS * 0.9


@pytest.mark.parametrize("shape, axis", [((5000, 24), 0), ((5000, 3), 0), ((3, 70_000), 1), ((2, 3000, 8), 1)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_bits_are_the_same_whichever_block_is_last(shape, axis, dtype, launches, monkeypatch):
    x = alpha.tensor(floats(*shape), device="cuda").astype(dtype)
    x.numpy()  # the cast waits no longer
    for run in (lambda: x.sum(axis, dtype="float32"), lambda: ops.var(x, axis=axis), lambda: x.max(axis)):
        results = []
        for seed in "012":  # the emulated driver begins with the last block where it is odd
            monkeypatch.setenv("ALPHA_EMULATED_SEED", seed)
            launches.clear()
            y = run()
            assert len(launches) == 1
            results.append(y.numpy())
        assert np.array_equal(results[0], results[1]) and np.array_equal(results[0], results[2])


def test_long_sums_lose_few_digits():
    """A chain of 300,000 additions of 0.1 is wrong in the fourth digit."""
    x = np.full(300_000, 0.1, np.float32)
    t = alpha.tensor(x, device="cuda")
    exact = x.astype(np.float64).sum()
    assert_equal_at(t.sum(), exact, rtol=3e-7)
    assert_equal_at(t.reshape(-1, 3).sum(0), np.full(3, exact / 3), rtol=3e-7)


def test_gradients_of_reductions_agree():
    for device in ("cpu", "cuda"):
        x = alpha.tensor(floats(4, 6), device=device, requires_grad=True)
        (x.sum(0).max() + x.mean(1).min() + ops.var(x, axis=0).sum()).backward()
        if device == "cpu":
            expected = x.grad.numpy()
    assert_equal_at(x.grad.numpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.classes
@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
def test_a_nan_is_found(dtype):
    def found(a):
        x = alpha.tensor(a, device="cuda").astype(dtype)
        return cuda_reduce.has_nan(x.array)
    x = floats(3, 700)
    x[1, 5] = np.inf
    assert not found(x)
    x[2, 699] = np.nan
    assert found(x)
    assert not found(np.zeros((0, 3), np.float32))
