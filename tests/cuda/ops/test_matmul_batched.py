"""Products of many small matrices on tensor cores: every kernel bitwise on integers, odd sizes, and what is chosen."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import alpha
from alpha.core.precision import Precision
from alpha.cuda.conv import costs
from alpha.cuda.conv.first_layer.mma.stem_mma import needs_of
from alpha.cuda.ops.matmul import batched
from alpha.cuda.runtime.context import lacks
from alpha.gradcheck import assert_equal_at
from tests.cuda.agree import ints

pytestmark = pytest.mark.cuda

MODES = {mode.name: mode for mode in batched.MODES}


def served(precision: str) -> Precision:
    """Returns the mode of a precision; skips the test where the device's tensor cores do not have it."""
    if lacking := lacks(needs_of(MODES[precision])):
        pytest.skip(lacking)
    return MODES[precision]


@pytest.mark.parametrize("precision", list(MODES))
@pytest.mark.parametrize("layout", batched.LAYOUTS, ids=str)
def test_every_tile_is_bitwise_right_on_integers(device, precision, layout):
    from alpha.cuda.runtime.memory import download, empty
    mode = served(precision)
    for tile, out in itertools.product(batched.TILES[4 if mode.dtype == "float32" else 2], {mode.dtype, "float32"}):
        for m, n, k in ((72, 136, 40), (8, 24, 96), (65, 33, 37), (3, 1, 5)):
            a, b = ints(2, m, k, seed=m), ints(3, 2, k, n, seed=n)[1]
            left, right = (np.ascontiguousarray(x.swapaxes(1, 2)) if t else x for x, t in zip((a, b), layout))
            operands = [alpha.tensor(x, device="cuda").astype(mode.dtype).array for x in (left, right)]
            y, tiles = empty((2, m, n), out), (-(-m // tile.rows), -(-n // tile.columns))
            kernel = batched.KERNELS[(mode, tile, *layout)]
            kernel(2 * tiles[0] * tiles[1], *operands, y, None, 1, 1, m, n, k, *tiles, m % 8 == 0, out == "float32")
            found = alpha.Tensor(y, y.shape, out, "cuda").astype("float32").numpy() if out != "float32" else download(
                y, "float32")
            exact = alpha.tensor(a @ b, device="cuda").astype(out).astype("float32").numpy()
            assert_equal_at(found, exact, name=f"{tile} {out} {m} x {n} x {k}")


@pytest.mark.classes
@pytest.mark.parametrize("precision", list(MODES))
def test_heads_are_multiplied_on_tensor_cores_without_casts(device, precision):
    """65 tokens of 3 heads: scores and their products with values, forward and backward, in few launches."""
    dtype = served(precision).dtype
    q, k = (alpha.tensor(ints(4, 3, 65, 64, seed=s), device="cuda").astype(dtype) for s in range(2))
    with alpha.precision(precision), alpha.profiler() as p:
        scores = alpha.ops.matmul(q, k, transpose_b=True, dtype="float32")
    launched = [launch.kernel for call in p.calls for launch in call.launches]
    assert len(launched) == 1
    if dtype != "float32" or 3 * costs.device().fma < costs.device().mma:  # else FMA units are as fast
        assert launched[0].startswith("matmul_batched_n")
    wide = [t.astype("float32").numpy() for t in (q, k)]
    assert_equal_at(scores, wide[0] @ wide[1].swapaxes(-1, -2))


def test_float32_keeps_its_promise_and_infinities(device):
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((3, 40, 48), np.float32) for _ in range(2))
    a[0, 0, 0] = np.inf
    with np.errstate(invalid="ignore"):
        exact = a.astype(np.float64) @ b.astype(np.float64).swapaxes(1, 2)
    for precision, promise in (("fp32", 2e-6), ("tf32", 2e-3)):
        served(precision)
        choice = batched.choose(40, 40, 48, 3, False, True, precision, "float32")
        operands = [alpha.tensor(x, device="cuda") for x in (a, b)]
        y = alpha.zeros((3, 40, 40), device="cuda")
        choice.kernel(choice.blocks, *[t.array for t in operands], y.array, None, 1, 1, 40, 40, 48, *choice.sizes)
        y = y.numpy()
        assert (y[0, 0] == exact[0, 0]).all()
        assert np.linalg.norm(y[1:] - exact[1:]) <= promise * np.linalg.norm(exact[1:])


def test_broadcast_batches_and_all_layouts_agree_with_the_cpu(device):
    for (transpose_a, transpose_b), dtype in itertools.product(((False, False), (False, True), (True, False)),
                                                               ("bfloat16", "float16")):
        a, b = ints(2, 1, 9, 24), ints(3, 24, 16, seed=1)
        given = [np.ascontiguousarray(x.swapaxes(-1, -2)) if t else x for x, t in zip(
            (a, b), (transpose_a, transpose_b))]
        y = alpha.ops.matmul(*[alpha.tensor(x, device="cuda").astype(dtype) for x in given], transpose_a, transpose_b,
                             dtype="float32")
        assert_equal_at(y, a @ b)
