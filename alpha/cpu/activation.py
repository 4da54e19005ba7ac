"""Activations in NumPy.  Numbers of 16 bits are computed in 32 and rounded once."""

from __future__ import annotations

from collections.abc import Callable
from math import pi, sqrt

import numpy as np

from alpha.core.op import Op
from alpha.cpu import native, pointwise
from alpha.cpu.elementwise import masked
from alpha.cpu.erf import erf
from alpha.cpu.memory import empty_like
from alpha.cpu.reduce import sums
from alpha.cpu.shape import contiguous
from alpha.ops import activation as ops

Array = np.ndarray


def _bind(op: Op) -> Callable[[Callable[..., Array]], Callable[..., Array]]:
    """Binds an implementation that sees float32 or float64 and may overflow without a warning."""
    def bind(f: Callable[..., Array]) -> Callable[..., Array]:
        def run(*arrays: Array, **attrs: float) -> Array:
            half = arrays[0].dtype == np.float16
            with np.errstate(all="ignore"):
                y = f(*[a.astype(np.float32) for a in arrays] if half else arrays, **attrs)
                return y.astype(np.float16) if half else y
        pointwise.bind(op, run) if op.equation else op.impl("cpu")(run)
        return f
    return bind


def _plain(op: Op) -> Callable[[Callable[..., Array]], Callable[..., Array]]:
    """Binds an implementation that needs no care."""
    def bind(f: Callable[..., Array]) -> Callable[..., Array]:
        pointwise.bind(op, f)
        return f
    return bind


# ---- piecewise linear ------------------------------------------------------------------------------------------------


@_plain(ops.relu)
def relu(x: Array) -> Array:
    return masked(x, x < 0)  # np.maximum makes -0 a 0, or not, as the processor has it


@_plain(ops.relu_grad)
def relu_grad(g: Array, y: Array) -> Array:
    return masked(g, y <= 0)


@_plain(ops.relu6)
def relu6(x: Array) -> Array:
    return np.minimum(masked(x, x < 0), 6, out=empty_like(x))


@_plain(ops.relu6_grad)
def relu6_grad(g: Array, y: Array) -> Array:
    return masked(g, (y <= 0) | (y >= 6))


@_plain(ops.leaky_relu)
def leaky_relu(x: Array, *, slope: float) -> Array:
    return leaky_relu_grad(x, x, slope=slope)


@_plain(ops.leaky_relu_grad)
def leaky_relu_grad(g: Array, x: Array, *, slope: float) -> Array:
    out = np.multiply(g, slope, out=empty_like(g))
    np.copyto(out, g, where=x > 0)
    return out


# ---- smooth ----------------------------------------------------------------------------------------------------------


@_bind(ops.sigmoid)
def sigmoid(x: Array) -> Array:
    y = np.exp(np.negative(x, out=empty_like(x)), out=empty_like(x))
    y += 1
    return np.reciprocal(y, out=y)  # e^-x = inf gives the 0 that it should


@_bind(ops.sigmoid_grad)
def sigmoid_grad(g: Array, y: Array) -> Array:
    d = np.subtract(1, y, out=empty_like(y))
    d *= y
    d *= g
    return d


@_bind(ops.tanh)
def tanh(x: Array) -> Array:
    return np.tanh(x, out=empty_like(x))


@_bind(ops.tanh_grad)
def tanh_grad(g: Array, y: Array) -> Array:
    d = np.multiply(y, y, out=empty_like(y))
    np.subtract(1, d, out=d)
    d *= g
    return d


@_bind(ops.silu)
def silu(x: Array) -> Array:
    y = sigmoid(x)
    y *= x
    return y


@_bind(ops.silu_grad)
def silu_grad(g: Array, x: Array) -> Array:
    p = sigmoid(x)
    d = np.subtract(1, p, out=empty_like(x))
    d *= x
    d += 1
    d *= p
    d *= g
    return d


def _normal_distribution(x: Array) -> Array:
    y = np.asarray(np.multiply(x, sqrt(0.5), dtype=np.float64))  # the sum below cancels where x < 0
    erf(y, out=y)
    y += 1
    y *= 0.5
    return y.astype(x.dtype, copy=False)


@_bind(ops.gelu)
def gelu(x: Array) -> Array:
    y = _normal_distribution(x)
    y *= x
    return y


@_bind(ops.gelu_grad)
def gelu_grad(g: Array, x: Array) -> Array:
    d = np.square(x, out=empty_like(x))
    d *= -0.5
    np.exp(d, out=d)
    d *= 1 / sqrt(2 * pi)
    d *= x
    d += _normal_distribution(x)
    d *= g
    return d


@_bind(ops.elu)
def elu(x: Array, *, alpha: float) -> Array:
    y = np.expm1(x, out=empty_like(x))
    y *= alpha
    np.copyto(y, x, where=x > 0)
    return y


@_bind(ops.elu_grad)
def elu_grad(g: Array, x: Array, *, alpha: float) -> Array:
    d = np.minimum(x, 0, out=empty_like(x))
    np.exp(d, out=d)
    d *= alpha
    d *= g
    np.copyto(d, g, where=~(x <= 0))
    return d


@_bind(ops.softplus)
def softplus(x: Array) -> Array:
    y = np.negative(np.abs(x), out=empty_like(x))  # np.logaddexp takes nine times as long
    np.exp(y, out=y)
    np.log1p(y, out=y)
    y += np.maximum(x, 0)
    return y


@_bind(ops.softplus_grad)
def softplus_grad(g: Array, x: Array) -> Array:
    d = sigmoid(x)
    d *= g
    return d


@_bind(ops.hardswish)
def hardswish(x: Array) -> Array:
    y = np.add(x, 3, out=empty_like(x))
    np.clip(y, 0, 6, out=y)
    y *= x
    y /= 6
    return y


@_bind(ops.hardswish_grad)
def hardswish_grad(g: Array, x: Array) -> Array:
    d = np.multiply(x, 1 / 3, out=empty_like(x))
    d += 0.5
    np.copyto(d, 1, where=~(x < 3))
    d *= g
    np.copyto(d, 0, where=x <= -3)
    return d


# ---- over an axis ----------------------------------------------------------------------------------------------------


def _shifted(x: Array, axis: int) -> Array:
    """Returns x minus its largest element along the axis, which exp cannot make overflow."""
    return np.subtract(x, x.max(axis=axis, keepdims=True), out=empty_like(x))


def _sum(x: Array, axis: int) -> Array:
    return sums(x, (axis % x.ndim,), keepdims=True)


def _last(x: Array, axis: int) -> Array:
    """Returns x with an axis moved to the end, contiguous."""
    return contiguous(np.moveaxis(x, axis, -1))


def _with_kernel(log_of: bool) -> Callable[[Callable[..., Array]], Callable[..., Array]]:
    """Makes softmax, or its gradient, a compiled kernel for float32; the decorated function computes all else."""
    def decorate(f: Callable[..., Array]) -> Callable[..., Array]:
        def run(*arrays: Array, axis: int) -> Array:
            if not arrays[0].size or not native.usable(*arrays):
                return f(*arrays, axis=axis)
            first = axis % arrays[0].ndim == arrays[0].ndim - 1
            moved = arrays if first else [_last(a, axis) for a in arrays]
            y = empty_like(moved[0])
            (native.softmax_bwd if len(moved) > 1 else native.softmax_fwd)(*moved, y, log_of)
            return y if first else contiguous(np.moveaxis(y, -1, axis))
        return run
    return decorate


@_bind(ops.softmax)
@_with_kernel(log_of=False)
def softmax(x: Array, *, axis: int) -> Array:
    y = _shifted(x, axis)
    np.exp(y, out=y)
    y /= _sum(y, axis)
    return y


@_bind(ops.softmax_grad)
@_with_kernel(log_of=False)
def softmax_grad(g: Array, y: Array, *, axis: int) -> Array:
    d = np.multiply(g, y, out=empty_like(g))
    np.subtract(g, _sum(d, axis), out=d)
    d *= y
    return d


@_bind(ops.log_softmax)
@_with_kernel(log_of=True)
def log_softmax(x: Array, *, axis: int) -> Array:
    y = _shifted(x, axis)
    y -= np.log(_sum(np.exp(y, out=empty_like(y)), axis))
    return y


@_bind(ops.log_softmax_grad)
@_with_kernel(log_of=True)
def log_softmax_grad(g: Array, y: Array, *, axis: int) -> Array:
    d = np.exp(y, out=empty_like(y))
    d *= _sum(g, axis)
    return np.subtract(g, d, out=d)
