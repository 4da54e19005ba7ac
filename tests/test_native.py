"""The compiled CPU kernels against NumPy in float64: convolutions bit for bit on small integers, the rest by tolerance.

Outputs are filled with NaN first, so that an element that is not written fails.
"""

from __future__ import annotations

import numpy as np
import pytest

from alpha import random
from alpha.build import compilers
from alpha.core.config import config
from alpha.cpu import native, update
from alpha.ops.conv_desc import ConvDesc
from tests.conv_oracle import conv_dgrad_padded, conv_fprop_padded, conv_wgrad_padded

pytestmark = [pytest.mark.skipif(not compilers(), reason="there is no C++ compiler here"),
              pytest.mark.same_without_kernels("it tests the compiled kernels, which it turns on")]


@pytest.fixture(autouse=True)
def kernels():
    with config(cpu_kernels=True):
        assert native.library() is not None
        yield


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def nan(*shape, dtype=np.float32):
    return np.full(shape, np.nan, dtype)


def integers(rng, *shape):
    return rng.integers(-3, 4, shape).astype(np.float32)


def floats(rng, *shape):
    return rng.standard_normal(shape, dtype=np.float32)


def close(got, expected, tolerance=2e-6):
    scale = max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance * scale)


# ---- convolution

# n, (ih, iw), ic, oc, (fh, fw), stride, padding, dilation, groups
CASES = [
    (2, (7, 9), 5, 7, (3, 3), (1, 1), (1, 1), (1, 1), 1),
    (3, (8, 8), 64, 64, (3, 3), (1, 1), (1, 1), (1, 1), 1),
    (2, (5, 6), 520, 96, (3, 3), (1, 1), (1, 1), (1, 1), 1),          # more channels than one panel holds
    (2, (4, 4), 300, 520, (5, 5), (1, 1), (2, 2), (1, 1), 1),
    (2, (2, 2), 512, 512, (3, 3), (1, 1), (1, 1), (1, 1), 1),
    (2, (12, 12), 3, 64, (3, 3), (1, 1), (1, 1), (1, 1), 1),          # stems
    (2, (14, 14), 6, 16, (5, 5), (1, 1), (0, 0), (1, 1), 1),
    (3, (1, 1), 3, 4, (3, 3), (1, 1), (1, 1), (1, 1), 1),             # kernel > map
    (1, (5, 6), 1, 1, (2, 2), (3, 3), (0, 0), (1, 1), 1),             # stride > kernel: inputs without a tap
    (2, (3, 3), 4, 5, (1, 1), (1, 1), (1, 1), (1, 1), 1),             # outputs without a tap
    (2, (9, 8), 17, 33, (3, 2), (2, 3), (2, 1), (2, 3), 1),           # asymmetric pairs
    (2, (9, 9), 40, 40, (3, 3), (2, 2), (1, 1), (1, 1), 40),          # depthwise
    (2, (9, 9), 200, 200, (3, 5), (1, 2), (1, 2), (2, 1), 200),
    (2, (8, 8), 24, 48, (3, 3), (1, 1), (1, 1), (2, 2), 24),          # depth multiplier 2
    (2, (8, 8), 64, 96, (3, 3), (1, 1), (1, 1), (1, 1), 4),
    (1, (1, 1), 300, 10, (1, 1), (1, 1), (0, 0), (1, 1), 1),          # linear layers
    (7, (1, 1), 33, 70, (1, 1), (1, 1), (0, 0), (1, 1), 1),
    (33, (1, 1), 512, 10, (1, 1), (1, 1), (0, 0), (1, 1), 1),
    (130, (1, 1), 67, 129, (1, 1), (1, 1), (0, 0), (1, 1), 1),
    (2, (32, 32), 200, 216, (1, 1), (1, 1), (0, 0), (1, 1), 1),       # one tap: stretches of rows, several panels
    (2, (30, 34), 9, 500, (1, 1), (1, 1), (0, 0), (1, 1), 1),
    (2, (30, 34), 500, 20, (1, 1), (1, 1), (0, 0), (1, 1), 1),
    (2, (9, 12), 6200, 20, (1, 1), (1, 1), (0, 0), (1, 1), 1),
    (3, (47, 33), 120, 200, (1, 1), (2, 2), (0, 0), (1, 1), 1),
    (5, (32, 32), 70, 50, (1, 1), (1, 1), (0, 0), (1, 1), 1),
    (2, (9, 40), 3, 6, (5, 5), (1, 1), (0, 0), (1, 1), 1),            # few channels: vectors of pixels side by side
    (3, (11, 37), 1, 12, (3, 3), (1, 1), (1, 1), (1, 1), 1),
    (2, (20, 53), 4, 5, (2, 3), (2, 1), (1, 2), (3, 2), 1),
    (2, (9, 45), 6, 2, (3, 3), (1, 1), (2, 1), (1, 1), 1),
]


def drawn_cases(count):
    rng = np.random.default_rng(1)
    while count:
        f, s, d, hw = (tuple(int(v) for v in rng.integers(1, top, 2)) for top in (6, 5, 4, 14))
        p = tuple(int(rng.integers(0, k + 1)) for k in f)
        if any(i + 2 * q < e * (k - 1) + 1 for i, q, e, k in zip(hw, p, d, f)):
            continue
        groups, widest = int(rng.choice([1, 1, 1, 2, 3, 8])), int(rng.choice([4, 20, 70]))
        ic, oc = (groups * int(rng.integers(1, widest + 1)) for _ in range(2))
        if rng.random() < 0.15:
            ic = oc = groups = int(rng.integers(2, 140))
        yield int(rng.integers(1, 6)), hw, ic, oc, f, s, p, d, groups
        count -= 1


def check_conv(case):
    n, hw, ic, oc, f, *geometry = case
    rng = np.random.default_rng(0)
    x, w, b = integers(rng, n, *hw, ic), integers(rng, oc, *f, ic // geometry[3]), integers(rng, oc)
    desc = ConvDesc.fprop(x.shape, w.shape, **dict(zip(("stride", "padding", "dilation", "groups"), geometry)))
    y, cut, dx, dw = nan(*desc.y_shape), nan(*desc.y_shape), nan(*x.shape), nan(*w.shape)
    g = integers(rng, *desc.y_shape)
    native.conv_fprop(desc, x, w, y)
    native.conv_fprop(desc, x, w, cut, bias=b, relu=True)
    native.conv_dgrad(desc, g, w, dx)
    native.conv_wgrad(desc, x, g, dw)
    expected = conv_fprop_padded(x, w, *geometry)
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(cut, np.maximum(expected + b, 0))
    np.testing.assert_array_equal(dx, conv_dgrad_padded(g, w, hw, *geometry))
    np.testing.assert_array_equal(dw, conv_wgrad_padded(x, g, f, *geometry))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_convolution_is_exact_on_integers(case):
    check_conv(case)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_convolution_of_drawn_shapes(threads):
    with config(num_threads=threads):
        native.library()
        for case in drawn_cases(60):
            check_conv(case)


@pytest.mark.parametrize("ic, oc, groups", [(3, 20, 1), (40, 20, 1), (40, 40, 40)])
def test_convolution_errors_stay_below_those_of_a_sequential_chain(rng, ic, oc, groups):
    x, w = floats(rng, 8, 13, 11, ic), floats(rng, oc, 3, 3, ic // groups)
    geometry = (1, 1), (1, 1), (1, 1), groups
    desc = ConvDesc.fprop(x.shape, w.shape, **dict(zip(("stride", "padding", "dilation", "groups"), geometry)))
    y, dx, dw, g = nan(*desc.y_shape), nan(*x.shape), nan(*w.shape), floats(rng, *desc.y_shape)
    native.conv_fprop(desc, x, w, y)
    native.conv_dgrad(desc, g, w, dx)
    native.conv_wgrad(desc, x, g, dw)
    close(y, conv_fprop_padded(x, w, *geometry))
    close(dx, conv_dgrad_padded(g, w, (13, 11), *geometry))
    close(dw, conv_wgrad_padded(x, g, (3, 3), *geometry))


@pytest.mark.parametrize("ic, width", [(1, 7), (2, 7), (3, 7), (5, 7), (16, 7), (2, 37)])
@pytest.mark.parametrize("f, padding", [(1, 0), (2, 0), (3, 1), (5, 2)])
def test_few_channels_out_meet_no_value_beside_their_taps(rng, ic, width, f, padding):
    """Two terms share a vector there: what lies beside the last one, in x or in the weights, must not count."""
    for oc in (*range(1, 10), 65, 70):
        desc = ConvDesc.fprop((2, 6, width, ic), (oc, f, f, ic), stride=(1, 1), padding=(padding, padding),
                              dilation=(1, 1), groups=1)
        x, w, bias = integers(rng, *desc.x_shape), integers(rng, *desc.w_shape), integers(rng, oc)
        for bad in (np.nan, np.inf):
            got = {}
            for where in (None, "x", "w"):
                a, b = x.copy(), w.copy()
                if where == "x":
                    a[:, :, 3] = bad
                elif where == "w":
                    b[oc // 2, f // 2, f // 2] = bad
                got[where] = nan(*desc.y_shape)
                native.conv_fprop(desc, a, b, got[where], bias=bias)
            met = np.array([any(desc.w.input_of(o, tap) == 3 for tap in range(f)) for o in range(desc.w.o)])
            assert np.isfinite(got[None]).all()
            np.testing.assert_array_equal(got["x"][:, :, ~met], got[None][:, :, ~met])
            others = np.arange(oc) != oc // 2
            np.testing.assert_array_equal(got["w"][..., others], got[None][..., others])
            assert not np.isfinite(got["x"][:, :, met]).any()


def test_same_bits_every_time(rng):
    x, w = floats(rng, 5, 9, 9, 24), floats(rng, 40, 3, 3, 24)
    desc = ConvDesc.fprop(x.shape, w.shape, stride=(1, 1), padding=(1, 1), dilation=(1, 1), groups=1)
    g, results = floats(rng, *desc.y_shape), []
    for _ in range(5):
        dw, sums = nan(*w.shape), nan(40)
        native.conv_wgrad(desc, x, g, dw)
        native.sum_middle(g, sums, 1, g.size // 40, 40)
        results.append(dw.tobytes() + sums.tobytes())
    assert len(set(results)) == 1


@pytest.mark.parametrize("n, inputs, outputs", [(1, 70, 33), (3, 5, 10), (19, 512, 10), (64, 37, 43), (300, 192, 101),
                                                (5000, 30, 61)])
def test_linear(rng, n, inputs, outputs):
    x, w, b = integers(rng, n, inputs), integers(rng, outputs, inputs), integers(rng, outputs)
    g = integers(rng, n, outputs)
    y, cut, dx, dw = nan(n, outputs), nan(n, outputs), nan(n, inputs), nan(outputs, inputs)
    native.linear_fwd(x, w, y)
    native.linear_fwd(x, w, cut, b, relu=True)
    native.conv_dgrad(native.linear_desc(n, inputs, outputs), g, w, dx)
    native.conv_wgrad(native.linear_desc(n, inputs, outputs), x, g, dw)
    np.testing.assert_array_equal(y, x @ w.T)
    np.testing.assert_array_equal(cut, np.maximum(x @ w.T + b, 0))
    np.testing.assert_array_equal(dx, g @ w)
    np.testing.assert_array_equal(dw, g.T @ x)


# ---- batch norm

def batch_norm_reference(x, residual, gamma, beta, g, passed, relu, eps):
    """`passed` is where the kernel's own y > 0: near zero, float32 and float64 may disagree on the sign."""
    x, g = x.astype(np.float64), g.astype(np.float64)
    istd = 1 / np.sqrt(x.var(0) + eps)
    xhat = (x - x.mean(0)) * istd
    y = xhat * gamma + beta + residual
    v = g * passed if relu else g
    dx = gamma * istd * (v - v.mean(0) - xhat * (v * xhat).mean(0))
    return (np.maximum(y, 0) if relu else y), dx, (v * xhat).sum(0), v.sum(0)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("with_residual", [False, True])
@pytest.mark.parametrize("shape", [(8, 5, 7, 37), (64, 16), (3, 1), (600, 70)])
def test_batch_norm(rng, shape, with_residual, relu):
    c = shape[-1]
    x, g = floats(rng, *shape) * 3 + 5, floats(rng, *shape)
    gamma, beta = floats(rng, c), floats(rng, c)
    residual = floats(rng, *shape) if with_residual else None
    running_mean, running_var = floats(rng, c), np.abs(floats(rng, c))
    old_mean, old_var = running_mean.copy(), running_var.copy()
    y, mean, istd, dx, dgamma, dbeta = nan(*shape), nan(c), nan(c), nan(*shape), nan(c), nan(c)
    native.batch_norm_fwd(x, gamma, beta, y, mean, istd, eps=1e-3, momentum=0.25, running_mean=running_mean,
                          running_var=running_var, residual=residual, relu=relu)
    v = g
    if with_residual and relu:
        v = np.where(y > 0, g, np.float32(0))
    native.batch_norm_bwd(v, x, gamma, beta, mean, istd, dx, dgamma, dbeta, relu=relu and not with_residual)
    rows = x.reshape(-1, c)
    added = 0.0 if residual is None else residual.reshape(-1, c)
    expected = batch_norm_reference(rows, added, gamma, beta, g.reshape(-1, c), y.reshape(-1, c) > 0, relu, 1e-3)
    got = (y.reshape(-1, c), dx.reshape(-1, c), dgamma, dbeta)
    for value, reference in zip(got, expected):
        close(value, reference, 2e-5)
    close(running_mean, 0.75 * old_mean + 0.25 * rows.mean(0, dtype=np.float64))
    close(running_var, 0.75 * old_var + 0.25 * rows.var(0, ddof=1, dtype=np.float64), 1e-5)


def test_batch_norm_of_a_large_mean_does_not_cancel(rng):
    x = floats(rng, 500, 5) + 1000
    y, mean, istd = nan(500, 5), nan(5), nan(5)
    native.batch_norm_fwd(x, None, None, y, mean, istd, eps=0.0)
    close(istd, 1 / x.astype(np.float64).std(0), 1e-5)


def test_batch_norm_apply(rng):
    x, residual, y = floats(rng, 40, 19), floats(rng, 40, 19), nan(40, 19)
    gamma, beta, mean, istd = floats(rng, 19), floats(rng, 19), floats(rng, 19), np.abs(floats(rng, 19))
    native.batch_norm_apply(x, gamma, beta, mean, istd, y, residual=residual, relu=True)
    close(y, np.maximum((x - mean) * istd * gamma + beta + residual, 0), 1e-5)


@pytest.mark.parametrize("outer, count, inner", [
    (1, 1, 1), (1, 5, 3), (1, 64, 10), (1, 1000, 37), (1, 300, 100), (3, 700, 1), (1, 70_001, 1), (2, 20_003, 7),
    (5, 900, 130), (1, 17, 70), (3, 64, 4099), (2, 65, 70), (1, 2, 40_000), (20_000, 3, 1), (2000, 5, 9), (1, 0, 4),
    (0, 3, 4)])
def test_sum_middle(rng, outer, count, inner):
    x, out, wide = integers(rng, outer, count, inner), nan(outer, inner), nan(outer, inner, dtype=np.float64)
    native.sum_middle(x, out, outer, count, inner)
    native.sum_middle(x, wide, outer, count, inner)
    np.testing.assert_array_equal(out, x.sum(1))
    np.testing.assert_array_equal(wide, out)


# ---- pooling

# (ih, iw), channels, kernel, stride, padding
WINDOWS = [((6, 4), 8, (2, 2), (2, 2), (0, 0)), ((7, 9), 6, (3, 2), (2, 1), (1, 1)),
           ((5, 5), 21, (3, 3), (1, 1), (1, 1)), ((8, 7), 1, (2, 3), (3, 4), (0, 1)),
           ((4, 4), 35, (4, 4), (4, 4), (0, 0)), ((7, 11), 19, (2, 3), (2, 3), (0, 0))]


def windows(hw, kernel, stride, padding):
    """Yields (oh, ow, rows, columns): the trimmed window of every output."""
    (ih, iw), (kh, kw), (sh, sw), (ph, pw) = hw, kernel, stride, padding
    for oh in range((ih + 2 * ph - kh) // sh + 1):
        for ow in range((iw + 2 * pw - kw) // sw + 1):
            rows = [i for i in range(oh * sh - ph, oh * sh - ph + kh) if 0 <= i < ih]
            yield oh, ow, rows, [i for i in range(ow * sw - pw, ow * sw - pw + kw) if 0 <= i < iw]


def pooled_shape(hw, c, kernel, stride, padding):
    return (3, *((i + 2 * p - k) // s + 1 for i, k, s, p in zip(hw, kernel, stride, padding)), c)


@pytest.mark.parametrize("hw, c, kernel, stride, padding", WINDOWS)
def test_max_pool(rng, hw, c, kernel, stride, padding):
    x = integers(rng, 3, *hw, c)                                # integers: many equal maxima
    x[0, 1, 1, 0] = np.nan
    x[1] = -np.inf
    shape = pooled_shape(hw, c, kernel, stride, padding)
    y, index, g = nan(*shape), np.full(shape, -1, np.int32), integers(rng, *shape)
    dx, dx_scattered = nan(*x.shape), nan(*x.shape)
    native.max_pool_fwd(x, y, index, kernel, stride, padding)
    native.max_pool_bwd(g, index, dx, kernel, stride, padding)
    native.pool_scatter(g, index, dx_scattered)
    expected = np.zeros_like(x)
    for oh, ow, rows, columns in windows(hw, kernel, stride, padding):
        for n, k in np.ndindex(3, c):
            window = x[n, rows][:, columns, k]
            first = np.nanargmax(window) if not np.isnan(window).any() else np.isnan(window).argmax()
            ih, iw = rows[first // len(columns)], columns[first % len(columns)]
            np.testing.assert_equal(y[n, oh, ow, k], x[n, ih, iw, k])
            assert index[n, oh, ow, k] == ih * hw[1] + iw
            expected[n, ih, iw, k] += g[n, oh, ow, k]
    np.testing.assert_array_equal(dx, expected)
    np.testing.assert_array_equal(dx_scattered, expected)


@pytest.mark.parametrize("count_padding", [False, True])
@pytest.mark.parametrize("hw, c, kernel, stride, padding", WINDOWS)
def test_avg_pool(rng, hw, c, kernel, stride, padding, count_padding):
    x = floats(rng, 3, *hw, c)
    shape = pooled_shape(hw, c, kernel, stride, padding)
    y, dx, g = nan(*shape), nan(*x.shape), floats(rng, *shape)
    native.avg_pool_fwd(x, y, kernel, stride, padding, count_padding)
    native.avg_pool_bwd(g, dx, kernel, stride, padding, count_padding)
    expected_y, expected_dx = np.zeros(shape), np.zeros(x.shape)
    for oh, ow, rows, columns in windows(hw, kernel, stride, padding):
        divisor = kernel[0] * kernel[1] if count_padding else len(rows) * len(columns)
        place = np.ix_(range(3), rows, columns)
        expected_y[:, oh, ow] = x[place].sum((1, 2)) / divisor
        expected_dx[place] += g[:, oh:oh + 1, ow:ow + 1] / divisor
    close(y, expected_y)
    close(dx, expected_dx)


# ---- loss

@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("rows, classes", [(1, 2), (128, 10), (33, 1000)])
def test_cross_entropy(rng, rows, classes, smoothing):
    x, labels, g = floats(rng, rows, classes) * 20, rng.integers(0, classes, rows), floats(rng, rows)
    loss, stats, dx, dx_mean = nan(rows), nan(3, rows), nan(rows, classes), nan(rows, classes)
    assert native.cross_entropy_fwd(x, labels, loss, stats, smoothing) == -1
    native.cross_entropy_bwd(g, x, labels, stats, dx, smoothing)
    native.cross_entropy_bwd(g[:1], x, labels, stats, dx_mean, smoothing, scale=0.5)
    wide = x.astype(np.float64)
    log_p = wide - wide.max(1, keepdims=True)
    log_p -= np.log(np.exp(log_p).sum(1, keepdims=True))
    target = (1 - smoothing) * np.eye(classes)[labels] + smoothing / classes
    close(loss, -(target * log_p).sum(1))
    assert (stats[0] == x.max(1)).all()
    close(stats[0] + stats[1], (wide - log_p)[:, 0])
    close(stats[2], 1 - np.exp(log_p)[range(rows), labels])
    close(dx, g[:, None] * (np.exp(log_p) - target), 1e-5)
    close(dx_mean, 0.5 * g[0] * (np.exp(log_p) - target), 1e-5)


def test_cross_entropy_of_extreme_logits():
    x = np.array([[1e4, -1e4, 0], [np.nan, 0, 0], [-np.inf, 0, 0]], np.float32)
    loss, stats = nan(3), nan(3, 3)
    assert native.cross_entropy_fwd(x, np.zeros(3, np.int64), loss, stats) == -1
    assert loss[0] == 0 and stats[:, 0].tolist() == [1e4, 0, 0] and np.isnan(loss[1]) and loss[2] == np.inf
    close(stats[1, 2], np.log(2))


@pytest.mark.parametrize("label", [-1, 3])
def test_cross_entropy_reports_the_first_bad_label(label):
    labels = np.array([0, label, label])
    x, dx = np.zeros((3, 3), np.float32), nan(3, 3)
    assert native.cross_entropy_fwd(x, labels, nan(3), nan(3, 3)) == 1
    assert native.cross_entropy_bwd(nan(1), x, labels, nan(3, 3), dx) == 1
    assert np.isnan(dx).all(), "nothing is written"


@pytest.mark.parametrize("n", [1, 37, 100_003])
def test_sum_of_squares(rng, n):
    a, b = integers(rng, n), integers(rng, n)
    assert update.sum_of_squares([a, b, a[:0]]) == float(np.vdot(a, a) + np.vdot(b, b))


# ---- random numbers

@pytest.mark.parametrize("offset, n", [(0, 1), (3, 1000), (2 ** 34 + 1, 70), (5, 20_001)])
def test_random_bits_and_dropout_follow_the_stream(offset, n):
    seed, stream, x = 2 ** 63 + 12345, 2 ** 31 + 7, np.arange(1, n + 1, dtype=np.float32)
    bits, y = np.zeros(n, np.uint32), nan(n)
    native.random_bits(seed, stream, offset, bits)
    native.dropout(x, y, 0.3, seed, stream, offset)
    np.testing.assert_array_equal(bits, random.random_bits(seed, stream, offset, n))
    kept = random.uniform(seed, stream, offset, n) >= 0.3
    np.testing.assert_array_equal(y, np.where(kept, x * np.float32(1 / 0.7), 0))


def test_philox_known_answer():
    """The all-ones vector of Random123's kat_vectors has a counter no stream reaches; the all-zeros one is reached."""
    bits = np.zeros(4, np.uint32)
    native.random_bits(0, 0, 0, bits)
    assert bits.tolist() == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
