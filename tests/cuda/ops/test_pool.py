"""Pooling in CUDA against the CPU's: windows trimmed and overlapping, packets and single channels, NaN, any index."""

from __future__ import annotations

import numpy as np
import pytest

import alpha
from alpha import ops
from alpha.cuda.ops import pool
from alpha.gradcheck import assert_equal_at
from alpha.ops.pool import adaptive_max_pool2d, max_pool2d, max_pool2d_backward, pool_gather, pool_scatter
from tests.cuda.agree import Case, agree, floats, ints

pytestmark = pytest.mark.cuda

ALL = ("float32", "bfloat16", "float16")
# x shape NHWC, kernel_size, stride, padding; C with packets of both sizes, of 4 only, and of none.
WINDOWS = [((2, 8, 8, 8), (2, 2), (2, 2), (0, 0)), ((2, 7, 9, 3), (3, 3), (2, 2), (1, 1)),
           ((1, 6, 5, 16), (3, 3), (1, 1), (1, 1)), ((2, 5, 5, 4), (2, 3), (1, 2), (1, 0)),
           ((3, 9, 8, 2), (2, 2), (3, 5), (0, 1)), ((2, 1, 1, 64), (1, 1), (1, 1), (0, 0)),
           ((2, 2, 3, 12), (4, 5), (2, 1), (2, 2)), ((1, 11, 13, 24), (5, 4), (1, 2), (2, 1)),
           ((1, 1, 1, 1), (2, 2), (1, 1), (1, 1))]
ADAPTIVE = [((2, 8, 8, 8), (1, 1)), ((2, 3, 5, 328), (1, 1)), ((3, 9, 4, 7), (1, 1)), ((1, 1, 1, 16), (1, 1)),
            ((2, 4, 6, 12), (2, 2)), ((1, 7, 5, 5), (3, 2)), ((1, 4, 6, 16), (4, 6)), ((2, 2, 3, 8), (5, 4))]


def pooled(shape, kernel_size, stride, padding):
    hw = ((i + 2 * p - k) // s + 1 for i, k, s, p in zip(shape[1:3], kernel_size, stride, padding))
    return shape[0], *hw, shape[3]


def max_index(shape, window):
    return max_pool2d.full(alpha.tensor(ints(*shape)), **window)[1].numpy()


def any_index(shape, hw, dtype):
    """Indices in no order, with many that are equal."""
    return ints(*shape, seed=5, low=0, high=hw[0] * hw[1], dtype=dtype)


CASES = []
for x_shape, *sizes in WINDOWS:
    window = dict(zip(("kernel_size", "stride", "padding"), sizes))
    g_shape, hw = pooled(x_shape, *sizes), x_shape[1:3]
    CASES += [
        Case("max_pool2d", ints(*x_shape), **window, exact=True, dtypes=ALL),
        Case("max_pool2d", floats(*x_shape), **window, exact=True),
        Case("max_pool2d_backward", ints(*g_shape), max_index(x_shape, window), hw=hw, **window, exact=True,
             dtypes=ALL)]
    for count_include_pad in (False, True):
        more = dict(window, count_include_pad=count_include_pad)
        CASES += [Case("avg_pool2d", floats(*x_shape), **more, dtypes=ALL, exact=False),
                  Case("avg_pool2d", 4 * ints(*x_shape), **more, rtol=1e-7, atol=0),
                  Case("avg_pool2d_backward", floats(*g_shape), hw=hw, **more, dtypes=ALL)]
for x_shape, output_size in ADAPTIVE:
    g_shape, hw = (x_shape[0], *output_size, x_shape[3]), x_shape[1:3]
    CASES += [
        Case("adaptive_max_pool2d", ints(*x_shape), output_size=output_size, exact=True, dtypes=ALL),
        Case("adaptive_avg_pool2d", floats(*x_shape), output_size=output_size, dtypes=ALL),
        Case("adaptive_avg_pool2d", 12 * ints(*x_shape), output_size=output_size, atol=4e-6),
        Case("adaptive_avg_pool2d_backward", floats(*g_shape), hw=hw, dtypes=ALL)]
for channels, dtype in ((8, "int32"), (12, "int64"), (3, "int32"), (33, "int64")):
    hw, x_shape = (9, 41), (3, 4, 5, channels)     # positions beyond those of one block
    CASES += [
        Case("pool_gather", ints(3, *hw, channels), any_index(x_shape, hw, dtype), exact=True, dtypes=ALL),
        Case("pool_scatter", ints(*x_shape), any_index(x_shape, hw, dtype), hw=hw, exact=True, dtypes=ALL)]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_agrees_with_the_cpu(case: Case) -> None:
    agree(case)


STRIPS = [((2, 11, 5, 16), 1, 1), ((1, 9, 1, 8), 1, 1), ((1, 1, 6, 8), 1, 1), ((2, 8, 7, 24), 1, 0),
          ((2, 11, 8, 16), 2, 1), ((1, 17, 4, 8), 2, 0), ((1, 3, 3, 8), 2, 0), ((1, 2, 9, 16), 2, 1)]


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("values", ["ints", "rare"])
@pytest.mark.parametrize(("shape", "stride", "padding"), STRIPS, ids=str)
def test_strips_of_three_by_three_windows(shape, stride, padding, values, dtype, launches) -> None:
    """Maxima, which pixels they are, and gradients that read these as bytes: ties, zeros of both signs, Inf, NaN."""
    x = ints(*shape, low=-2, high=3)
    x[x == 0] = np.random.default_rng(0).choice([0.0, -0.0], (x == 0).sum())
    if values == "rare":
        places = np.random.default_rng(1).random(shape)
        for k, value in enumerate((-np.inf, np.inf, np.nan, -65280.0)):
            x[(places > k / 5) & (places < k / 5 + 0.1)] = value
    window = dict(kernel_size=3, stride=stride, padding=padding)
    y, index = max_pool2d.full(alpha.tensor(x), **window)
    got, place = max_pool2d.full(alpha.tensor(x, device="cuda").astype(dtype), **window)
    assert_equal_at(got.astype("float32"), y.numpy())
    signs = np.signbit(y.numpy()) & ~np.isnan(y.numpy())
    assert np.array_equal(np.signbit(got.astype("float32").numpy()) & ~np.isnan(y.numpy()), signs)
    g = ints(*y.shape, seed=3)
    cuda_g = alpha.tensor(g, device="cuda").astype(dtype)
    launches.clear()
    dx = max_pool2d_backward(cuda_g, place, hw=shape[1:3], **window)
    assert launches == [f"max_pool_backward{'_rows' * (stride == 1)}_{dtype}"]
    assert_equal_at(dx.astype("float32"),
                    max_pool2d_backward(alpha.tensor(g), index, hw=shape[1:3], **window).numpy())
    assert_equal_at(place, index.numpy())


@pytest.mark.parametrize(("shape", "sizes"), [(s[0], s[1:]) for s in WINDOWS]
                         + [((1, 20, 20, 4), ((17, 16), (1, 1), (0, 0)))], ids=str)
def test_gradients_read_how_forward_names_maxima(shape, sizes) -> None:
    """In bytes, until somebody looks at the index; another window or map reads the index itself."""
    window = dict(zip(("kernel_size", "stride", "padding"), sizes))
    x = ints(*shape)
    y, index = max_pool2d.full(alpha.tensor(x), **window)
    g = ints(*y.shape, seed=3)
    wanted = max_pool2d_backward(alpha.tensor(g), index, hw=shape[1:3], **window).numpy()
    place = max_pool2d.full(alpha.tensor(x, device="cuda"), **window)[1]
    for _ in range(2):
        assert_equal_at(max_pool2d_backward(alpha.tensor(g, device="cuda"), place, hw=shape[1:3], **window), wanted)
        assert_equal_at(place, index.numpy())
    place.copy_(alpha.zeros(place.shape, dtype="int32"))
    changed = max_pool2d_backward(alpha.tensor(g, device="cuda"), place, hw=shape[1:3], **window).numpy()
    assert not changed[:, 1:].any() and not changed[:, :, 1:].any()


@pytest.mark.parametrize("shape", [(2, 23, 22, 256), (1, 70, 70, 6), (1, 130, 131, 8)])
def test_the_mean_of_a_map_by_one_block_or_by_many(shape: tuple[int, ...]) -> None:
    """Maps of as many pixels as a block takes, in several rounds of its threads, and of more."""
    agree(Case("adaptive_avg_pool2d", floats(*shape), output_size=1))


@pytest.mark.classes
@pytest.mark.parametrize("channels", [3, 8])
def test_nan_and_infinities(channels: int) -> None:
    """A NaN is the maximum; which one of two gives the index is as on the CPU."""
    x = np.full((1, 6, 6, channels), -np.inf, np.float32)
    x[0, 0, 1] = x[0, 2, 2] = x[0, 3, 3] = x[0, 5, 0] = x[0, 4, 1] = np.nan
    x[0, 2, 3] = x[0, 3, 0] = np.inf
    agree(Case("max_pool2d", x, kernel_size=2, exact=True, dtypes=ALL))
    agree(Case("max_pool2d", x, kernel_size=3, stride=1, padding=1, exact=True))
    agree(Case("adaptive_max_pool2d", x, output_size=2, exact=True))
    agree(Case("avg_pool2d", np.where(np.isinf(x), 1, x), kernel_size=2, exact=True))
    for f in (lambda t: max_pool2d.full(t, 2), lambda t: adaptive_max_pool2d.full(t, 3)):
        assert_equal_at(f(alpha.tensor(x, device="cuda"))[1], f(alpha.tensor(x))[1].numpy())


@pytest.mark.parametrize("limits", [{"ENOUGH_THREADS": 50}, {"MAX_THREADS": 2 * 4 * 3 * 2 + 5}])
@pytest.mark.parametrize("op", ["max_pool2d", "avg_pool2d", "max_pool2d_backward", "avg_pool2d_backward",
                                "pool_gather"])
def test_a_thread_takes_several_images(op: str, limits: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where there are many threads, or more than a launch can count: images 0, 2, 4 and 1, 3 meet."""
    for name, value in limits.items():
        monkeypatch.setattr(pool, name, value)
    for cache in (pool._plan, pool._windowed, pool._adaptive):
        cache.cache_clear()
    window = dict(kernel_size=(3, 3), stride=(2, 2), padding=(1, 1))
    x, g, hw = ints(5, 7, 5, 8), ints(5, 4, 3, 8, seed=3), (7, 5)
    args, attrs = {"max_pool2d": ([x], window), "avg_pool2d": ([x], dict(window, count_include_pad=False)),
                   "max_pool2d_backward": ([g, max_index(x.shape, window)], dict(window, hw=hw)),
                   "avg_pool2d_backward": ([g], dict(window, hw=hw)),
                   "pool_gather": ([x, max_index(x.shape, window)], {})}[op]
    agree(Case(op, *args, **attrs, exact=not op.startswith("avg"), atol=1e-6))
    plan = pool._plan(5, 8, pool._Window(7, 4), pool._Window(5, 3), 0, "outputs", 4)
    assert plan.threads < 5 * 4 * 3 * 2 and plan.blocks == 1
    for cache in (pool._plan, pool._windowed, pool._adaptive):
        cache.cache_clear()


def test_sizes_divide() -> None:
    """The multiplier and the shift give the quotient at the ends of the range and around every multiple."""
    for n in [*range(1, 70), 255, 256, 1000, 46341, 2 ** 20 - 1, 2 ** 30, 2 ** 31 - 1]:
        size, multiplier, shift = pool._size(n)
        near = {k * n + d for k in (0, 1, 2, 77, (2 ** 31 - 1) // n) for d in (-1, 0, 1)} | {2 ** 31 - 1}
        assert size == n and 0 < multiplier < 2 ** 32
        for k in near:
            if 0 <= k < 2 ** 31:
                assert ((k * multiplier >> 32) + k) >> shift == k // n, (k, n)


@pytest.mark.parametrize("channels", [3, 8])
@pytest.mark.parametrize("dtype, bad", [("int32", -1), ("int32", 6), ("int64", 2 ** 40), ("int64", -2 ** 63)])
def test_an_index_outside_of_the_map_makes_its_map_nan(dtype: str, bad: int, channels: int) -> None:
    """And memory outside of the map is neither read nor written: the emulator sees it."""
    index = np.random.default_rng(0).integers(0, 6, (2, 2, 2, channels)).astype(dtype)
    x = ints(2, 2, 2, channels, low=1)
    here = pool_scatter(alpha.tensor(x), alpha.tensor(index), hw=(2, 3)).numpy()
    index[1, 0, 1, 2] = bad
    there = pool_scatter(alpha.tensor(x, device="cuda"), alpha.tensor(index, device="cuda"), hw=(2, 3)).numpy()
    assert np.isnan(there[1, :, :, 2]).all() and np.isnan(there).sum() == 6
    assert (there == here)[~np.isnan(there)].all()
    read = pool_gather(alpha.tensor(here, device="cuda"), alpha.tensor(index, device="cuda")).numpy()
    assert np.argwhere(np.isnan(read)).tolist() == [[1, 0, 1, 2]]


def test_conv2d_relu_pool_equals_its_two_ops():
    x, w, b = (alpha.tensor(np.random.default_rng(k).integers(-3, 4, s).astype(np.float32), device="cuda")
               for k, s in enumerate(((2, 9, 8, 4), (5, 3, 3, 4), (5,))))
    y = ops.max_pool2d(ops.conv2d_bias_act(x, w, b, 1, 1, activation="relu"), 3, 2, 1)
    assert np.array_equal(ops.conv2d_relu_pool(x, w, b, 1, 1, 3, 2, 1).numpy(), y.numpy())
