"""Normalisation on the GPU: widths of a row, chunks and tails, accuracy of the variance, and the same bits twice."""

from __future__ import annotations

import numpy as np
import pytest

import alpha
from alpha import ops
from alpha.cuda.conv import planner
from alpha.cuda.lazy import rows_of
from alpha.cuda.ops import norm as cuda_norm
from alpha.cuda.ops import reduce as cuda_reduce
from alpha.cuda.ops.norm import sample_norm
from alpha.cuda.runtime.kernel import FLOAT_DTYPES
from alpha.gradcheck import assert_equal_at
from alpha.ops.conv import conv2d_dgrad, conv2d_dgrad_add
from alpha.ops.conv_desc import ConvDesc
from alpha.ops.norm import (
    batch_norm_act,
    batch_norm_add_act,
    batch_norm_grad,
    group_norm,
    layer_norm,
    sample_norm_grad,
)
from alpha.ops.reduce import bias_grad
from alpha.ops.shape import slice_axes
from tests.cuda.agree import TOLERANCE, Case, agree, floats, ints
from tests.op_checks import check_sample_norm_of_nearly_equal_elements

pytestmark = pytest.mark.cuda

# One channel, rows that do and do not fill 16 bytes, tiles of columns with a tail, several chunks of rows with a tail,
# fewer rows than a thread has in flight.
SHAPES = [(2, 1), (2, 4), (600, 1), (3, 5, 3), (9, 4, 4, 8), (4, 3, 3, 24), (700, 16), (2100, 3), (5, 260), (3, 1030),
          (2, 3, 1, 65), (19, 2048), (127, 64)]
EXACT = np.array([[7, -1], [-1, 7], [7, 7], [-1, -1]] * 3, np.float32).repeat(2, 1)  # mean 3, variance 16


def channels(shape: tuple[int, ...], seed: int, low: float = -2.0, high: float = 2.0) -> np.ndarray:
    return floats(shape[-1], seed=seed, low=low, high=high)


def forward(shape: tuple[int, ...], residual: bool, affine: bool = True, running: bool = True, **attrs) -> Case:
    gamma, beta = (channels(shape, 1), channels(shape, 2)) if affine else (None, None)
    mean, var = (channels(shape, 3), channels(shape, 4, 0.5, 2.0)) if running else (None, None)
    add = [floats(*shape, seed=5)] * residual
    return Case("batch_norm_add_act" if residual else "batch_norm_act", floats(*shape), gamma, beta, mean, var, *add,
                rtol=1e-4, atol=2e-5, **attrs)


def backward(shape: tuple[int, ...], affine: bool = True, **attrs) -> Case:
    """The mask must not depend on rounding: away from the kink of relu by steps of 1/4."""
    x, g = ints(*shape) + 0.125, floats(*shape, seed=6)
    gamma, beta = (ints(shape[-1], seed=1, low=1), ints(shape[-1], seed=2)) if affine else (None, None)
    mean, istd = ints(shape[-1], seed=3), np.exp2(ints(shape[-1], seed=4, low=-2, high=1)).astype(np.float32)
    atol = 2e-6 * np.sqrt(np.prod(shape[:-1])) * 20
    return Case("batch_norm_grad", g, x, gamma, beta, mean, istd, rtol=2e-5, atol=atol, **attrs)


def sample_grad(split: tuple[int, ...], axes: tuple[int, ...], params_ndim: int, affine: bool = True,
                rests: bool = False, **attrs) -> Case:
    x, g = floats(*split), floats(*split, seed=1)
    mean = x.mean(axes, keepdims=True)
    istd = 1 / x.std(axes, keepdims=True)
    gamma = floats(*split[-params_ndim:], seed=2) if affine else None
    rest = [floats(*mean.shape, seed=3)] * rests
    return Case("sample_norm_grad", g, x, gamma, mean, istd, *rest, axes=axes, params_ndim=params_ndim, rtol=1e-4,
                atol=1e-4, **attrs)


CASES = [
    *[forward(shape, residual, training=training, activation=activation) for shape in SHAPES
      for residual, activation in ((False, None), (False, "relu"), (True, "relu")) for training in (True, False)],
    *[forward((6, 3, 2, width), residual, activation="relu", momentum=0.3, dtypes=FLOAT_DTYPES)
      for width in (8, 12, 7) for residual in (False, True)],
    forward((40, 8), True, training=False, dtypes=FLOAT_DTYPES),
    *[forward((5, 12), residual, affine=False, running=running) for residual in (False, True)
      for running in (False, True)],
    forward((0, 4), False, training=False),
    *[Case("batch_norm_act", EXACT, ints(4, seed=1), ints(4, seed=2), eps=0.0, activation=activation, exact=True)
      for activation in (None, "relu")],
    Case("batch_norm_add_act", EXACT, None, None, None, None, ints(12, 4), eps=0.0, activation="relu", exact=True),
    *[backward(shape, activation=activation) for shape in SHAPES for activation in (None, "relu")],
    backward((7, 12), affine=False, activation="relu"),
    *[Case("batch_norm_grad", ints(8, width), ints(8, width, seed=1), ints(width, seed=2), ints(width, seed=3),
           ints(width, seed=4), np.ones(width, np.float32), activation=activation, exact=True)
      for width in (4, 3) for activation in (None, "relu")],
    *[Case("batch_norm_grad", ints(16, 8), ints(16, 8, seed=1), ints(8, seed=2), ints(8, seed=3), ints(8, seed=4),
           np.ones(8, np.float32), activation=activation, dtypes=FLOAT_DTYPES) for activation in (None, "relu")],
    *[Case("layer_norm", floats(rows, width), floats(width, seed=1), floats(width, seed=2), rtol=2e-5, atol=1e-5)
      for rows, width in ((1, 1), (3, 5), (9, 8), (300, 4), (2, 1024), (3, 1025), (2, 1028), (1, 4100), (2, 2051),
                          (2, 8196), (65, 36), (0, 4))],
    *[Case("layer_norm", floats(3, 4, 6, 8), *affine, normalized_ndim=ndim, rtol=2e-5, atol=1e-5)
      for ndim in (1, 2, 3, 4) for affine in ((None, None), (floats(*(3, 4, 6, 8)[-ndim:], seed=1), None))],
    *[Case("layer_norm", floats(5, width), floats(width, seed=1), floats(width, seed=2), dtypes=FLOAT_DTYPES, rtol=2e-5,
           atol=1e-5) for width in (16, 9, 2051)],
    Case("layer_norm", np.array([[7, -1, 7, -1], [-2, 2, 2, -2]], np.float32), eps=0.0, exact=True),
    *[Case("group_norm", floats(*shape), floats(shape[-1], seed=1), floats(shape[-1], seed=2), groups=groups, rtol=2e-5,
           atol=1e-5)
      for shape, groups in (((2, 3, 3, 8), 2), ((3, 2, 2, 6), 3), ((2, 4), 2), ((2, 9, 9, 16), 1), ((1, 20, 20, 12), 4),
                            ((2, 33, 33, 3), 1), ((300, 1, 1, 4), 4), ((2, 17, 20, 24), 8), ((3, 70, 16), 16),
                            ((2, 3, 1040), 2), ((2, 5, 260), 65), ((0, 2, 4), 2))],
    Case("group_norm", floats(2, 3, 3, 16), floats(16, seed=1), floats(16, seed=2), groups=2, dtypes=FLOAT_DTYPES,
         rtol=2e-5, atol=1e-5),
    Case("group_norm", floats(2, 3, 6), None, None, groups=3, rtol=2e-5, atol=1e-5),
    # Samples of several blocks; groups of one channel, of a piece and more, and of what is no power of two.
    *[Case("group_norm", floats(*shape), floats(shape[-1], seed=1), floats(shape[-1], seed=2), groups=groups, rtol=2e-5,
           atol=1e-5, dtypes=FLOAT_DTYPES)
      for shape, groups in (((2, 32, 32, 64), 32), ((2, 60, 60, 4), 2), ((1, 47, 47, 3), 3), ((3, 13, 1024), 1),
                            ((1, 17, 512), 128), ((1, 140, 64), 4), ((1, 300, 64), 64), ((2, 100, 96), 32),
                            ((2, 50, 48), 8), ((1, 9, 1200), 1200), ((5, 340, 24), 8), ((3, 270, 260), 130))],
    # Rows of a few threads, of several warps, of 2, 4 and 8 pieces per thread, and too long for registers.
    *[sample_grad(shape, (1,), 1) for shape in ((1, 3), (4, 5), (9, 8), (300, 4), (1100, 3), (5, 70), (7, 160),
                                                (3, 301), (2, 601), (3, 1025), (2, 1028), (2, 2052), (2, 8196))],
    *[sample_grad((3, 4, 6, 8), axes, len(axes)) for axes in ((3,), (2, 3), (1, 2, 3))],
    *[sample_grad(split, (1, 3), 2)
      for split in ((2, 9, 2, 4), (3, 4, 3, 2), (2, 81, 1, 16), (1, 400, 4, 3), (2, 3, 300, 4), (2, 300, 8, 3),
                    (3, 70, 16, 1), (2, 3, 1, 1040), (5, 340, 8, 3), (4, 1600, 1, 3), (3, 270, 130, 2))],
    *[sample_grad((3, 4, 2, 8), (1, 3), 2, affine) for affine in (True, False)],
    *[sample_grad((6, width), (1,), 1, rests=True) for width in (16, 9, 1024, 2056, 8196)],
    *[sample_grad((2, 70, 2, k), (1, 3), 2, rests=True) for k in (8, 3)],
    *[sample_grad((6, width), (1,), 1, dtypes=FLOAT_DTYPES) for width in (16, 9, 520, 2056, 8200)],
    *[sample_grad((2, 70, 2, k), (1, 3), 2, dtypes=FLOAT_DTYPES) for k in (8, 4, 3)],
    Case("sample_norm_grad", floats(0, 4), floats(0, 4), floats(4), floats(0, 1), floats(0, 1), axes=(1,),
         params_ndim=1),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_agrees_with_the_cpu(case):
    agree(case)


@pytest.fixture
def one_block(monkeypatch):
    """Every tile of columns in one block, or few, so that small matrices make threads walk far, as large ones do."""
    caches = cuda_reduce.walk, cuda_norm._matrix, sample_norm._rows, sample_norm._sums
    for module, name, value in ((cuda_reduce, "BLOCKS", 1), (cuda_norm, "SUMMERS", (1, 64)),
                                (sample_norm, "SUMMERS", (1, 64)), (sample_norm, "ROW_BLOCKS", 1)):
        monkeypatch.setattr(module, name, value)
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


@pytest.mark.parametrize("case", [
    *[forward((700, width), residual, activation="relu", dtypes=FLOAT_DTYPES) for width in (24, 65)
      for residual in (False, True)],
    *[backward((700, width), activation=activation) for width in (24, 65) for activation in (None, "relu")],
    *[sample_grad(shape, (1,), 1, dtypes=FLOAT_DTYPES) for shape in ((700, 24), (70, 1000), (30, 2048), (700, 3))],
    sample_grad((10, 70, 3, 8), (1, 3), 2),
    Case("group_norm", floats(10, 300, 24), floats(24, seed=1), floats(24, seed=2), groups=3, dtypes=FLOAT_DTYPES,
         rtol=2e-5, atol=1e-5),
], ids=str)
def test_agrees_with_the_cpu_when_threads_walk_far(one_block, case):
    agree(case)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("channels", [16, 9])
def test_parameters_may_be_float32(dtype, channels):
    """16-bit x with float32 parameters, beside the CPU with float32 throughout: parameters are not rounded."""
    x, g = (alpha.tensor(ints(40, channels, seed=seed) / 4) for seed in (0, 1))
    gamma, beta, mean = (alpha.tensor(floats(channels, seed=seed)) for seed in (2, 3, 4))
    var, groups = alpha.tensor(floats(channels, seed=5, low=0.5)), (1 if channels == 9 else 4)
    split = (10, 4, groups, channels // groups)

    def results(x, g, gamma, beta, mean, var):
        y, mu, istd = batch_norm_act.full(x, gamma, beta, mean, var, activation="relu")
        y2 = batch_norm_add_act.full(x, gamma, beta, mean, var, g, training=False)[0]
        found = [y, mu, istd, mean, var, y2, *batch_norm_grad.full(g, x, gamma, beta, mu, istd, activation="relu")]
        y, *statistics = layer_norm.full(x, gamma, beta)
        found += [y, *sample_norm_grad.full(g, x, gamma, *statistics, axes=(1,), params_ndim=1)]
        y, *statistics = group_norm.full(x.reshape((10, 4, channels)), gamma, beta, groups=groups)
        split_gamma = gamma.reshape(split[2:])
        return [*found, y, *sample_norm_grad.full(g.reshape(split), x.reshape(split), split_gamma, *statistics,
                                                  axes=(1, 3), params_ndim=2)]

    parameters = gamma, beta, mean, var
    ours = results(*(t.to("cuda").astype(dtype) for t in (x, g)), *[p.to("cuda") for p in parameters])
    oracle = results(x, g, *parameters)
    for k, (a, b) in enumerate(zip(ours, oracle)):
        exact = a.dtype == "float32"
        assert_equal_at(a, b.numpy(), rtol=2e-5 if exact else TOLERANCE[dtype], atol=5e-5 if exact else 1e-2,
                        name=f"result {k}")


@pytest.mark.parametrize("shape", [(3000, 3), (1100, 8)])
def test_a_large_mean_costs_no_digits_of_the_variance(shape):
    x = (1000 + np.random.default_rng(0).standard_normal(shape)).astype(np.float32)
    x[0] = 0  # an outlier in front, too
    _, mean, istd = batch_norm_act.full(alpha.tensor(x, device="cuda"))
    assert_equal_at(mean, x.astype(np.float64).mean(0), rtol=1e-6)
    assert_equal_at(istd, 1 / np.sqrt(x.astype(np.float64).var(0) + 1e-5), rtol=1e-5)
    x = x.T.copy()
    _, mean, istd, _ = layer_norm.full(alpha.tensor(x, device="cuda"))
    assert_equal_at(istd, 1 / np.sqrt(x.astype(np.float64).var(1, keepdims=True) + 1e-5), rtol=1e-5)
    x = x.reshape(-1)[:8800].reshape(1, 550, 16)  # of several blocks
    _, mean, istd, _ = group_norm.full(alpha.tensor(x, device="cuda"), groups=4)
    groups = x.astype(np.float64).reshape(550, 4, 4)
    assert_equal_at(mean, groups.mean((0, 2)).reshape(mean.shape), rtol=1e-6)
    assert_equal_at(istd, 1 / np.sqrt(groups.var((0, 2)) + 1e-5).reshape(istd.shape), rtol=1e-5)


# Rows in registers, and longer ones; samples of one block, and larger ones.
@pytest.mark.classes
@pytest.mark.parametrize("shape, groups", [
    ((40, 5), 0), ((3, 1024), 0), ((2, 8196), 0), ((2, 2051), 0), ((40, 5), 1), ((3, 70, 24), 4), ((2, 1000, 32), 4),
    ((2, 300, 260), 65), ((1, 9000, 3), 1)])
def test_sample_norms_of_nearly_equal_elements_keep_their_digits(shape, groups):
    check_sample_norm_of_nearly_equal_elements(shape, groups, "cuda")


def test_nan_passes_relu_and_minus_infinity_does_not():
    x = alpha.tensor(np.array([[np.nan, -np.inf, np.inf, -1.0]], np.float32), device="cuda")
    zero, one = (alpha.tensor(np.full(4, v, np.float32), device="cuda") for v in (0, 1))
    y = batch_norm_act(x, None, None, zero, one, training=False, eps=0.0, activation="relu")
    assert_equal_at(y, [[np.nan, 0, np.inf, 0]])


def test_forward_and_backward_have_one_mask():
    """Where relu let nothing pass, no gradient comes back, for values on both sides of the kink by one rounding."""
    rng = np.random.default_rng(0)
    x = alpha.tensor(rng.standard_normal((64, 8)), "float32", device="cuda")
    gamma = alpha.tensor(rng.standard_normal(8), "float32", device="cuda")
    y, mean, istd = batch_norm_act.full(x, gamma, None)
    beta = alpha.tensor(-y.numpy()[3], device="cuda")  # row 3 lands on the kink
    y, mean, istd = batch_norm_act.full(x, gamma, beta, activation="relu")
    ones = alpha.tensor(np.ones(x.shape, np.float32), device="cuda")
    _, _, dbeta = batch_norm_grad.full(ones, x, gamma, beta, mean, istd, activation="relu")
    assert_equal_at(dbeta, (y.numpy() > 0).sum(0))


@pytest.mark.long
def test_two_runs_give_the_same_bits():
    x, g = (alpha.tensor(floats(1500, 12, seed=seed), device="cuda") for seed in (0, 1))

    def results():
        y, mean, istd = batch_norm_act.full(x)
        found = [y, mean, istd, *batch_norm_grad.full(g, x, None, None, mean, istd, activation="relu")]
        y, *statistics = layer_norm.full(x)
        found += [y, *statistics, *sample_norm_grad.full(g, x, None, *statistics, axes=(1,), params_ndim=1)]
        y, *statistics = group_norm.full(x.reshape((3, 500, 12)), groups=3)
        split = (3, 500, 3, 4)
        return [*found, y, *statistics, *sample_norm_grad.full(g.reshape(split), x.reshape(split), None, *statistics,
                                                               axes=(1, 3), params_ndim=2)]

    for a, b in zip(results(), results()):
        assert_equal_at(a, b.numpy())


def conv_and_norm(dtype: str, relu: bool, wide: bool = True):
    """Returns bias and result of a convolution in front of a batch norm, and the gradient of that."""
    x, w, gamma, beta = (alpha.tensor(floats(*s, seed=k), device="cuda") for k, s in enumerate(
        ((4, 6, 6, 16), (16, 1, 1, 16), (16,), (16,))))
    b = alpha.tensor(floats(16), device="cuda").astype("float32" if wide else dtype).detach()
    b.requires_grad = True
    y = ops.conv2d_bias_act(x.astype(dtype), w if wide else w.astype(dtype), b)
    z = ops.batch_norm(y, gamma if wide else gamma.astype(dtype), beta if wide else beta.astype(dtype),
                       activation="relu" if relu else None)
    return b, y, z, alpha.tensor(floats(*z.shape, seed=5), device="cuda").astype(dtype)


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
@pytest.mark.parametrize("relu", [False, True])
def test_a_bias_before_a_norm_takes_no_pass_of_its_own(relu, dtype, launches) -> None:
    """Batch norm's backward knows the sums of what it writes: 0 but for rounding."""
    b, _, z, g = conv_and_norm(dtype, relu)
    launches.clear()
    z.backward(g)
    assert not [entry for entry in launches if "columns" in entry or "rows" in entry]
    assert b.grad.dtype == "float32" and np.abs(b.grad.numpy()).max() < 1e-4
    b, _, z, g = conv_and_norm(dtype, relu)
    z.backward(g * float("inf"))
    assert np.isnan(b.grad.numpy()).any(), "an overflow is seen in the gradient of the bias, too"


def test_known_sums_are_of_elements_as_they_are(launches) -> None:
    """They are taken once; not after a change, by others or by a gradient that is added in place; not in 16 bits."""
    _, y, _, g = conv_and_norm("bfloat16", False)
    y = y.detach()
    one = alpha.tensor(np.ones(16, np.float32), device="cuda")
    make = lambda: batch_norm_grad(g, y, None, None, one * 0, one, activation=None)[0]  # noqa: E731
    launches.clear()
    sums = [bias_grad(dx, dtype="float32").numpy() for dx in [make()] * 2]
    assert len([entry for entry in launches if "columns" in entry]) == 1 and np.abs(sums[0]).max() < 1e-3
    assert_equal_at(alpha.tensor(sums[1]), make().sum((0, 1, 2), dtype="float32").numpy())
    assert bias_grad(make()).dtype == "bfloat16"
    dx = make()
    dx.copy_(g)
    assert_equal_at(bias_grad(dx, dtype="float32"), g.sum((0, 1, 2), dtype="float32").numpy())
    w = alpha.tensor(ints(16, 1, 1, 16), device="cuda").astype("bfloat16")
    dx = conv2d_dgrad_add(g, w, make(), hw=(6, 6), in_place=True)
    assert_equal_at(bias_grad(dx, dtype="float32"), dx.sum((0, 1, 2), dtype="float32").numpy())


@pytest.mark.parametrize(("channels", "reads"), [((16, 8, 24), True), ((8, 4, 12), True), ((4, 3, 8), False)])
@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
@pytest.mark.parametrize("relu", [False, True])
def test_gradients_that_are_parts_of_a_joined_one_are_read_in_place(relu, dtype, channels, reads, launches) -> None:
    """With the result of those that are copied; where parts do not begin with whole pieces they are copied still."""
    xs = [alpha.tensor(floats(3, 5, 5, c, seed=c), device="cuda").astype(dtype).detach() for c in channels]
    g = alpha.tensor(floats(3, 5, 5, sum(channels), seed=5), device="cuda").astype(dtype)
    for x in xs:
        x.requires_grad = True
    activation = "relu" if relu else None
    whole = ops.concat([ops.batch_norm(x, activation=activation) for x in xs], axis=-1)
    launches.clear()
    whole.backward(g)
    copied = [entry for entry in launches if entry.startswith("copy_box")]
    assert len(copied) == (0 if reads else 2), copied
    for x, part in zip(xs, ops.split(g, list(channels), -1)):
        got, x.grad = x.grad, None
        ops.batch_norm(x, activation=activation).backward(part)
        away = np.abs(got.astype("float32").numpy() - x.grad.astype("float32").numpy()).max()
        assert away <= (1e-6 if dtype == "float32" else 0), "but for planes of float32, which one of them may be"


@pytest.mark.parametrize("channels", [12, 6, 3])
def test_a_norm_reads_a_gradient_beside_the_padding_that_tensor_cores_wrote(channels, launches, monkeypatch) -> None:
    """Of a 1x1 convolution whose input channels are no multiple of 8. For others dx is copied."""
    desc = ConvDesc.fprop((2, 4, 4, channels), (16, 1, 1, channels), stride=(1, 1), padding=(0, 0), dilation=(1, 1),
                          groups=1)
    padded = next(c for c in planner.candidates("dgrad", "bf16") if c.name.endswith("padded") and not c.rejection(desc))
    monkeypatch.setattr(planner, "rank", lambda *a, **k: [planner.Option(padded, None, 1.0)])
    monkeypatch.setattr(planner, "_plans", {})
    x, g, gamma = (alpha.tensor(floats(*s, seed=k), device="cuda").astype("bfloat16") for k, s in enumerate(
        ((2, 4, 4, channels), (2, 4, 4, 16), (channels,))))
    w = alpha.tensor(floats(16, 1, 1, channels, seed=4), device="cuda")
    mean = alpha.tensor(floats(channels, seed=5), device="cuda")
    found = []
    for copies in (False, True):
        dx = conv2d_dgrad(g, w, hw=(4, 4))
        if copies:
            dx = dx * 1.0
        launches.clear()
        found.append([t.astype("float32").numpy() for t in batch_norm_grad.full(dx, x, gamma, None, mean, mean + 3.0,
                                                                               activation="relu")])
        assert copies or not [entry for entry in launches if entry.startswith("copy_box")]
    for a, b in zip(*found):
        assert_equal_at(a, b)


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
def test_parts_of_a_gradient_that_waits_are_read_in_place(dtype, launches) -> None:
    """As a norm behind the concatenation leaves it: it is written, once, and not copied."""
    xs = [alpha.tensor(floats(3, 5, 5, c, seed=c), device="cuda").astype(dtype).detach() for c in (16, 8)]
    for x in xs:
        x.requires_grad = True
    whole = ops.batch_norm(ops.concat([ops.batch_norm(x) for x in xs], axis=-1))
    launches.clear()
    whole.backward(alpha.tensor(floats(3, 5, 5, 24, seed=5), device="cuda").astype(dtype))
    assert all(np.isfinite(x.grad.astype("float32").numpy()).all() for x in xs)
    assert not [entry for entry in launches if entry.startswith("copy_box")]


def test_a_part_of_a_gradient_outlives_what_it_is_a_part_of() -> None:
    """Whoever changes the whole has the part written before; any other reader has it copied."""
    x = alpha.tensor(floats(2, 3, 3, 32), device="cuda")
    wanted = x.numpy()[..., 8:24].copy()
    make = lambda: slice_axes(x, [(0, 2, 1), (0, 3, 1), (0, 3, 1), (8, 16, 1)], in_place=True)  # noqa: E731
    part, other = make(), make()
    assert rows_of(part.array)[1] == 32 and np.array_equal((part + 1).numpy(), wanted + 1)
    assert rows_of(part.array)[1] == 16 and np.array_equal(other.reshape(-1).numpy(), wanted.reshape(-1))
    part = make()
    x.copy_(x * 0)
    assert rows_of(part.array)[1] == 16 and np.array_equal(part.numpy(), wanted) and not make().numpy().any()
