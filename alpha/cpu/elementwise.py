"""Arithmetic in NumPy.  Overflow, 0 / 0 and the like give inf and NaN without a warning, as on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from alpha.backend import get_backend
from alpha.cpu import native
from alpha.cpu.erf import erf
from alpha.cpu.memory import empty
from alpha.op import Op
from alpha.ops import elementwise as ops
from alpha.ops import logic

Array = np.ndarray
Number = ops.Number

LARGE = 1 << 16  # elements from which a compiled kernel, on all cores, beats NumPy on one


def compiled(*arrays: Array) -> bool:
    """Tells whether the compiled kernels can and should work on these arrays, the largest of which is the first."""
    return arrays[0].size >= LARGE and native.usable(*arrays)


def _bind_unary(op: Op, ufunc: Callable[..., Any]) -> None:
    @op.impl("cpu")
    def run(x: Array) -> Array:
        with np.errstate(all="ignore"):
            return ufunc(x, out=empty(x.shape, x.dtype))


def _bind_binary(op: Op, ufunc: Callable[..., Any]) -> None:
    @op.impl("cpu")
    def run(a: Array | Number, b: Array | Number) -> Array:
        a, b, shape, dtype = _operands(a, b)
        with np.errstate(all="ignore"):
            return ufunc(a, b, out=empty(shape, dtype))


def _bind_quiet(op: Op, ufunc: Callable[..., Any], result: str | None = None) -> None:
    """As _bind_binary, for what never warns."""
    @op.impl("cpu")
    def run(a: Array | Number, b: Array | Number) -> Array:
        a, b, shape, dtype = _operands(a, b)
        with np.errstate(over="ignore"):  # of a Python number that the dtype cannot hold: it counts as infinite
            return ufunc(a, b, out=empty(shape, result or dtype))


def _operands(a: Array | Number, b: Array | Number) -> tuple[Array | Number, Array | Number, tuple[int, ...], Any]:
    """Returns both operands, and the shape and dtype of the result."""
    if not isinstance(b, np.ndarray):
        return a, _plain(b), a.shape, a.dtype
    if not isinstance(a, np.ndarray):
        return _plain(a), b, b.shape, b.dtype
    return a, b, a.shape if a.shape == b.shape else np.broadcast(a, b).shape, a.dtype


def _plain(value: Number) -> Number:
    """Returns a Python number, which takes the other operand's dtype; a NumPy scalar would impose its own."""
    return value.item() if isinstance(value, np.generic) else value


def _pow(a: Array | Number, b: Array | Number, out: Array) -> Array:
    """NumPy's power, with the two exponents that need no logarithm apart."""
    if not isinstance(b, np.ndarray) and b in (1, 2):
        return np.square(a, out=out) if b == 2 else np.positive(a, out=out)
    return np.power(a, b, out=out)


def _sign(x: Array, out: Array) -> Array:
    """As np.sign, but 0 at NaN."""
    return np.subtract(x > 0, x < 0, out=out, dtype=out.dtype)


def _floor(x: Array, out: Array) -> Array:
    """As np.floor, which makes floats of integers."""
    return np.floor(x, out=out) if x.dtype.kind == "f" else np.positive(x, out=out)


def _add(a: Array | Number, b: Array | Number, out: Array) -> Array:
    if out.size >= LARGE and getattr(a, "shape", None) == getattr(b, "shape", None) and native.usable(a, b):
        native.add(a, b, out)
        return out
    return np.add(a, b, out=out)


for _op, _ufunc in ((ops.neg, np.negative), (ops.exp, np.exp), (ops.log, np.log), (ops.sqrt, np.sqrt),
                    (ops.abs, np.absolute), (ops.sign, _sign), (ops.erf, erf), (logic.floor, _floor),
                    (logic.sin, np.sin), (logic.cos, np.cos)):
    _bind_unary(_op, _ufunc)

for _op, _ufunc in ((ops.add, _add), (ops.sub, np.subtract), (ops.mul, np.multiply), (ops.div, np.true_divide),
                    (ops.pow, _pow), (logic.floor_divide, np.floor_divide)):
    _bind_binary(_op, _ufunc)

for _op, _ufunc in ((ops.maximum, np.maximum), (ops.minimum, np.minimum)):
    _bind_quiet(_op, _ufunc)

for _op, _ufunc in ((ops.eq, np.equal), (ops.ne, np.not_equal), (ops.lt, np.less), (ops.le, np.less_equal),
                    (ops.gt, np.greater), (ops.ge, np.greater_equal)):
    _bind_quiet(_op, _ufunc, "bool")


@ops.clip.impl("cpu")
def clip_cpu(x: Array, *, low: Number | None, high: Number | None) -> Array:
    return np.clip(x, low, high, out=empty(x.shape, x.dtype))


@ops.clip_grad.impl("cpu")
def clip_grad_cpu(g: Array, x: Array, *, low: Number | None, high: Number | None) -> Array:
    inside = np.ones(x.shape, bool)
    if low is not None:
        inside &= x >= low
    if high is not None:
        inside &= x <= high
    return masked(g, ~inside)


@ops.cast.impl("cpu")
def cast_cpu(x: Array, *, dtype: str) -> Array:
    out = empty(x.shape, dtype)
    with np.errstate(all="ignore"):
        np.copyto(out, x, casting="unsafe")
    return out


@ops.transfer.impl("cpu")
def transfer_cpu(x: Array, *, device: str, source: str) -> Any:
    return get_backend(device).from_numpy(x, device)


@ops.where.impl("cpu")
def where_cpu(cond: Array, x: Array | Number, y: Array | Number) -> Array:
    dtype = x.dtype if isinstance(x, np.ndarray) else y.dtype
    out = empty(np.broadcast_shapes(cond.shape, np.shape(x), np.shape(y)), dtype)
    np.copyto(out, _plain(y), casting="unsafe")     # 0 and 1 stand for bools
    np.copyto(out, _plain(x), casting="unsafe", where=cond)
    return out


def masked(g: Array, zero: Array) -> Array:
    """Returns g with exact zeros in the given places, also where g is infinite or NaN."""
    out, bits = empty(g.shape, g.dtype), f"i{g.itemsize}"
    np.bitwise_and(g.view(bits), np.subtract(zero, 1, dtype=bits), out=out.view(bits))  # all ones where it is kept
    return out
