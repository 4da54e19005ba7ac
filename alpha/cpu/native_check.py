"""The self-test of the compiled kernels: each family once, on one odd shape, against a few lines of NumPy.

It runs when the library is loaded (a few milliseconds) and guards against a compiler or a processor that makes wrong
code; the tests proper are elsewhere.
"""

from __future__ import annotations

import numpy as np

from alpha.core.errors import CompileError, message
from alpha.cpu import native, pointwise, shape, update
from alpha.cpu.half import quiet
from alpha.ops.algorithms.family import Way
from alpha.ops.attention.desc import describe
from alpha.ops.conv_desc import ConvDesc
from alpha.ops.update import rules

SEED, STREAM, OFFSET = 7, 1, 3
# The first words of that stream from OFFSET on, by Philox4x32-10.
PHILOX_WORDS = (967634028, 3811124719, 3650029248, 3298120932, 1490301548, 1243979962)


@quiet
def check() -> None:
    """Raises CompileError, with the name of the family, if a kernel does not agree with NumPy."""
    rng = np.random.default_rng(0)
    for family in (_conv, _transformed, _linear, _norm, _sample_norm, _reduce, _rows, _pool, _loss, _copy, _pointwise,
                   _optim, _random, _attention):
        try:
            family(rng)
        except AssertionError as error:
            raise CompileError(message("native", f"the compiled kernels fail their self-test in {family.__name__[1:]}",
                                       "try another compiler through CXX, or set ALPHA_CPU_KERNELS=0")) from error


def _require(got: np.ndarray | float, expected: np.ndarray | float, tolerance: float = 1e-5) -> None:
    if not np.allclose(got, expected, rtol=tolerance, atol=tolerance):
        raise AssertionError


def _nan(*shape: int) -> np.ndarray:
    return np.full(shape, np.nan, np.float32)


def _floats(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape, dtype=np.float32)


def _conv(rng: np.random.Generator) -> None:
    """A strided, padded, dilated convolution; plain, grouped and depthwise; by the adjoint identities."""
    for channels, groups in ((3, 1), (34, 1), (34, 2), (21, 21)):
        outputs = 21 if groups == channels else 38
        x, w = _floats(rng, 2, 7, 6, channels), _floats(rng, outputs, 3, 2, channels // groups)
        desc = ConvDesc.fprop(x.shape, w.shape, stride=(2, 1), padding=(1, 2), dilation=(1, 2), groups=groups)
        y, dx, dw, g = _nan(*desc.y_shape), _nan(*x.shape), _nan(*w.shape), _floats(rng, *desc.y_shape)
        native.conv_fprop(desc, x, w, y)
        native.conv_dgrad(desc, g, w, dx)
        native.conv_wgrad(desc, x, g, dw)
        _require(y, _direct(desc, x, w), 1e-4)
        product = np.vdot(y, g)
        _require(np.vdot(dx, x) / product, 1.0, 1e-3)
        _require(np.vdot(dw, w) / product, 1.0, 1e-3)


def _transformed(rng: np.random.Generator) -> None:
    """Winograd's tiles and FFT's, by the direct convolution and the adjoint identities."""
    from alpha.cpu.algorithms import fft, winograd  # import native, of which this is the check

    for module, way in ((winograd, Way("winograd", 4)), (fft, Way("fft", 8))):
        x, w = _floats(rng, 2, 5, 6, 19), _floats(rng, 21, 3, 3, 19)
        desc = ConvDesc.fprop(x.shape, w.shape, stride=(1, 1), padding=(1, 2), dilation=(1, 1), groups=1)
        y, dx, dw, g = _nan(*desc.y_shape), _nan(*x.shape), _nan(*w.shape), _floats(rng, *desc.y_shape)
        module.fprop(way, desc, x, w, y)
        module.dgrad(way, desc, g, w, dx)
        module.wgrad(way, desc, x, g, dw)
        _require(y, _direct(desc, x, w), 1e-3)
        product = np.vdot(y, g)
        _require(np.vdot(dx, x) / product, 1.0, 1e-3)
        _require(np.vdot(dw, w) / product, 1.0, 1e-3)


def _direct(desc: ConvDesc, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Returns y, one output pixel at a time."""
    y = np.zeros(desc.y_shape, np.float32)
    grouped = y.reshape(*y.shape[:3], desc.groups, -1)
    filters = w.reshape(desc.groups, -1, *w.shape[1:])
    for oh in range(desc.h.o):
        for ow in range(desc.w.o):
            for fh in range(*desc.h.fprop_taps(oh)):
                for fw in range(*desc.w.fprop_taps(ow)):
                    pixel = x[:, desc.h.input_of(oh, fh), desc.w.input_of(ow, fw)].reshape(desc.n, desc.groups, -1)
                    grouped[:, oh, ow] += np.einsum("ngi,goi->ngo", pixel, filters[:, :, fh, fw])
    return y


def _linear(rng: np.random.Generator) -> None:
    x, w, b = _floats(rng, 19, 37), _floats(rng, 43, 37), _floats(rng, 43)
    y, few = _nan(19, 43), _nan(3, 43)
    native.linear_fwd(x, w, y, b)
    native.linear_fwd(x[:3], w, few, b, relu=True)
    _require(y, x @ w.T + b, 1e-4)
    _require(few, np.maximum(x[:3] @ w.T + b, 0), 1e-4)


def _norm(rng: np.random.Generator) -> None:
    x, g, gamma, beta = _floats(rng, 70, 19), _floats(rng, 70, 19), _floats(rng, 19), _floats(rng, 19)
    y, mean, istd, dx, dgamma, dbeta = _nan(70, 19), _nan(19), _nan(19), _nan(70, 19), _nan(19), _nan(19)
    native.batch_norm_fwd(x, gamma, beta, y, mean, istd, eps=1e-5, relu=True)
    native.batch_norm_bwd(g, x, gamma, beta, mean, istd, dx, dgamma, dbeta, relu=True)
    xhat = (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5)
    v = g * (xhat * gamma + beta > 0)
    _require(y, np.maximum(xhat * gamma + beta, 0), 1e-4)
    _require(dbeta, v.sum(0), 1e-4)
    _require(dx, gamma * istd * (v - v.mean(0) - xhat * (v * xhat).mean(0)), 1e-4)


def _reduce(rng: np.random.Generator) -> None:
    x, sums, wide = _floats(rng, 3, 90, 5), _nan(3, 5), np.full((3, 5), np.nan)
    native.sum_middle(x, sums, 3, 90, 5)
    native.sum_middle(x, wide, 3, 90, 5)
    _require(sums, x.sum(1, dtype=np.float64))
    _require(wide, x.sum(1, dtype=np.float64))
    _require(update.sum_of_squares([x, sums]), np.vdot(x, x) + np.vdot(sums, sums))


def _rows(rng: np.random.Generator) -> None:
    x, y, dx, most = _floats(rng, 5, 37), _nan(5, 37), _nan(5, 37), _nan(5)
    native.softmax_fwd(x, y, False)
    native.softmax_bwd(x, y, dx, False)
    native.extreme(x, most, 5, 37, 1, True)
    p = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    _require(y, p)
    _require(dx, p * (x - (x * p).sum(1, keepdims=True)))
    _require(most, x.max(1))
    native.sum_rows(x, most, 5, 37)
    _require(most, x.sum(1, dtype=np.float64))


def _sample_norm(rng: np.random.Generator) -> None:
    """Layer norm, and group norm of as many pixels and groups as make it the same."""
    x, g, gamma = _floats(rng, 5, 37), _floats(rng, 5, 37), _floats(rng, 37)
    xhat = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    v = g * gamma
    dx = (v - v.mean(1, keepdims=True) - xhat * (v * xhat).mean(1, keepdims=True)) / np.sqrt(
        x.var(1, keepdims=True) + 1e-5)
    for forward, backward in ((native.layer_norm_fwd, native.layer_norm_bwd),
                              (lambda *a: native.group_norm_fwd(*a[:-1], 37, a[-1]), native.group_norm_bwd)):
        y, got, dgamma, dbeta, statistics = _nan(5, 37), _nan(5, 37), _nan(37), _nan(37), [_nan(5) for _ in range(3)]
        forward(x, gamma, gamma, y, *statistics, 1e-5)
        backward(g, x, gamma, *statistics, got, dgamma, dbeta)
        _require(y, xhat * gamma + gamma, 1e-4)
        _require(got, dx, 1e-4)
        _require(dgamma, (g * xhat).sum(0), 1e-4)
        _require(dbeta, g.sum(0), 1e-4)


def _attention(rng: np.random.Generator) -> None:
    """Causal heads with dropout, and their gradients."""
    from alpha.cpu.attention import of_attention, of_gradients  # imports native, of which this is the check
    from alpha.cpu.attention.reference import forward, gradients

    q, k, v, g = (_floats(rng, 1, 2, 70, 19) for _ in range(4))
    desc, how = describe(q.shape, k.shape, v.shape, 0, True), dict(causal=True, scale=0.3, p=0.25, seed=SEED, offset=3)
    y, lse = forward(desc, q, k, v, None, **how)
    for got, expected in zip((*of_attention(desc, q, k, v, None, **how),
                              *of_gradients(desc, g, q, k, v, None, y, lse, **how)),
                             (y, lse, *gradients(desc, g, q, k, v, None, y, lse, **how))):
        _require(got, expected, 1e-4)


def _pool(rng: np.random.Generator) -> None:
    x, y, dx, mean = _floats(rng, 2, 6, 4, 11), _nan(2, 3, 2, 11), _nan(2, 6, 4, 11), _nan(2, 3, 2, 11)
    index, window = np.empty(y.shape, np.int32), ((2, 2), (2, 2), (0, 0))
    native.max_pool_fwd(x, y, index, *window)
    native.max_pool_bwd(y, index, dx, *window)
    native.avg_pool_fwd(x, mean, *window, count_include_pad=False)
    blocks = x.reshape(2, 3, 2, 2, 2, 11)
    _require(y, blocks.max((2, 4)))
    _require(mean, blocks.mean((2, 4)))
    _require(dx, np.where(blocks == blocks.max((2, 4), keepdims=True), blocks, 0).reshape(x.shape))


def _loss(rng: np.random.Generator) -> None:
    x, labels = _floats(rng, 5, 13), rng.integers(0, 13, 5)
    loss, stats, dx = _nan(5), _nan(3, 5), _nan(5, 13)
    native.cross_entropy_fwd(x, labels, loss, stats)
    native.cross_entropy_bwd(np.ones(1, np.float32), x, labels, stats, dx)
    p = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    _require(loss, -np.log(p[np.arange(5), labels]))
    _require(dx, p - np.eye(13)[labels])


def _copy(rng: np.random.Generator) -> None:
    x, y = _floats(rng, 3, 37, 18), _nan(3, 18, 37)
    shape.copy_box(y, x.transpose(0, 2, 1))
    _require(y, x.transpose(0, 2, 1))
    shape.copy_box(y[:, ::-2], x[:, :9].transpose(0, 1, 2)[..., :1] + np.zeros((3, 9, 37), np.float32))
    _require(y[:, ::-2], x[:, :9, :1] + np.zeros((3, 9, 37), np.float32))


def _pointwise(rng: np.random.Generator) -> None:
    """Every equation by NumPy, on operands that broadcast."""
    a, b, c = _floats(rng, 5, 37), _floats(rng, 5, 1), _floats(rng, 37)
    for op in pointwise.own():
        if op.equation:
            operands = [x > 0 if name in op.equation.code.conditions else x
                        for name, x in zip(op.equation.args, (a, b, c))]
            attrs = {name: 0.5 + k for k, name in enumerate(op.equation.attrs)}
            got = pointwise.compiled(op, operands, attrs)
            expected = op.equation.compute({**dict(zip(op.equation.args, operands)), **attrs})
            _require(np.nan_to_num(got), np.nan_to_num(expected))


def _optim(rng: np.random.Generator) -> None:
    """Every rule, by NumPy; lists of an odd size, positive, as states that are averages of squares."""
    for rule in rules.RULES:
        for variant in rule.variants():
            lists = [[np.abs(_floats(rng, 37)) + 0.1] for _ in variant.lists]
            settings = {name: 0.25 + 0.03 * k for k, name in enumerate(rule.settings)} | {"step": 9}
            numbers = variant.numbers(settings)
            expected = [[a.copy() for a in arrays] for arrays in lists]
            update.computed(variant, expected, numbers, 0.5)
            update.compiled(variant, lists, numbers, 0.5)
            for got, right in zip(lists, expected):
                _require(got[0], right[0])


def _random(rng: np.random.Generator) -> None:
    bits = np.zeros(len(PHILOX_WORDS), np.uint32)
    native.random_bits(SEED, STREAM, OFFSET, bits)
    if tuple(bits.tolist()) != PHILOX_WORDS:
        raise AssertionError
