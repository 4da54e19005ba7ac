"""Arithmetic in NumPy.  Overflow, 0 / 0 and the like give inf and NaN without a warning, as on a GPU."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from contextvars import Context
from functools import partial
from math import inf
from typing import Any

import numpy as np
from numpy import ndarray

from alpha.core.device import get_backend
from alpha.cpu import native
from alpha.cpu.erf import erf
from alpha.cpu.memory import empty
from alpha.cpu.pointwise import bind, computed_into
from alpha.ops import elementwise as ops
from alpha.ops.elementwise import curves, rounding

Array = np.ndarray
Number = ops.Number

FEW = 1 << 13    # elements below which one call of NumPy takes less time than one of a kernel
FLOAT32 = np.dtype(np.float32)
LIGHT = 2 * FEW  # the same, where NumPy too has vectors for it

_IN_CONTEXTS = int(np.__version__.partition(".")[0]) >= 2  # NumPy keeps in a context variable what it warns of
_here = threading.local()


def quietly(f: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """Returns f(*args, **named), run without NumPy's warnings: f is a ufunc, or a few, and changes none of its
    arguments but `out`.  np.errstate, which is the other way, takes longer than a small ufunc."""
    try:
        return _here.run(f, *args, **named)
    except (AttributeError, RuntimeError):  # the first call of a thread, or one in the middle of another
        pass
    if _IN_CONTEXTS and not hasattr(_here, "run"):
        context = Context()
        context.run(np.seterr, all="ignore")
        _here.run = context.run
    with np.errstate(all="ignore"):
        return f(*args, **named)


def _short(ufunc: Callable[..., Any], otherwise: Callable[..., Array]) -> Callable[..., Array]:
    """Returns an implementation that lets NumPy make the result of short float32 arrays of one shape, or of one and a
    Python float, at once: what is asked on the other way takes longer than the arithmetic.  Bits are the same."""
    def run(a: Array | Number, b: Array | Number) -> Array:
        of = a if a.__class__ is ndarray else b
        if of.__class__ is ndarray and of.dtype is FLOAT32 and of.ndim and of.size < LIGHT and (
                b.__class__ is float or a.__class__ is float or (
                    a.__class__ is b.__class__ and a.dtype is b.dtype and a.shape == b.shape)):
            try:
                return _here.run(ufunc, a, b)  # type: ignore[no-any-return]
            except (AttributeError, RuntimeError):  # see quietly
                pass
        return otherwise(a, b)
    return run


def bias_act(y: Array, b: Array | None, activation: str | None) -> Array:
    """Adds a bias to the channels of y, and takes relu of it, in place.  Returns y."""
    if b is not None:
        quietly(np.add, y, b, out=y)
    if activation == "relu":
        quietly(np.maximum, y, 0, out=y)
    return y


def _unary(ufunc: Callable[..., Any]) -> Callable[..., Array]:
    def run(x: Array) -> Array:
        return quietly(ufunc, x, out=empty(x.shape, x.dtype))
    return run


def _binary(ufunc: Callable[..., Any]) -> Callable[..., Array]:
    def run(a: Array | Number, b: Array | Number) -> Array:
        a, b, shape, dtype = _operands(a, b)
        return quietly(ufunc, a, b, out=empty(shape, dtype))
    return run


def _quiet(ufunc: Callable[..., Any], result: str | None = None) -> Callable[..., Array]:
    """As _binary; the result may have a dtype of its own."""
    def run(a: Array | Number, b: Array | Number) -> Array:
        a, b, shape, dtype = _operands(a, b)  # a Python number that the dtype cannot hold counts as infinite
        return quietly(ufunc, a, b, out=empty(shape, result or dtype))
    return run


def _operands(a: Array | Number, b: Array | Number) -> tuple[Array | Number, Array | Number, tuple[int, ...], Any]:
    """Returns both operands, and the shape and dtype of the result."""
    if b.__class__ is not np.ndarray:
        return a, _plain(b), a.shape, a.dtype
    if a.__class__ is not np.ndarray:
        return _plain(a), b, b.shape, b.dtype
    shape = a.shape
    return a, b, shape if shape == b.shape else np.broadcast(a, b).shape, a.dtype


def _plain(value: Number) -> Number:
    """Returns a Python number, which takes the other operand's dtype; a NumPy scalar would impose its own."""
    return value.item() if isinstance(value, np.generic) else value


def _sign(x: Array, out: Array) -> Array:
    """As np.sign, but 0 at NaN."""
    return np.subtract(x > 0, x < 0, out=out, dtype=out.dtype)


def _floor(x: Array, out: Array) -> Array:
    """As np.floor, which makes floats of integers."""
    return np.floor(x, out=out) if x.dtype.kind == "f" else np.positive(x, out=out)


def _remainder(a: Array | Number, b: Array | Number, out: Array) -> Array:
    """As np.remainder, but a where the integer b is 0."""
    np.remainder(a, b, out=out)
    if out.dtype.kind != "f":
        np.copyto(out, a, where=np.equal(b, 0), casting="same_kind")
    return out


def _erfc(x: Array, out: Array) -> Array:
    out[...] = np.vectorize(math.erfc, otypes=[np.float64])(x)
    return out


for _op, _ufunc, _few in ((ops.neg, np.negative, LIGHT), (ops.exp, np.exp, 0), (ops.log, np.log, 0),
                          (ops.sqrt, np.sqrt, LIGHT), (ops.abs, np.absolute, LIGHT), (ops.sign, _sign, 0),
                          (ops.erf, erf, 0)):
    bind(_op, _unary(_ufunc), _few)

for _op, _ufunc in ((ops.add, np.add), (ops.sub, np.subtract), (ops.mul, np.multiply), (ops.div, np.true_divide)):
    bind(_op, _binary(_ufunc), LIGHT, around=partial(_short, _ufunc))

for _op, _ufunc in ((curves.atan, np.arctan), (curves.asin, np.arcsin), (curves.acos, np.arccos),
                    (curves.erfc, _erfc)):
    bind(_op, _unary(_ufunc))
bind(curves.atan2, _binary(np.arctan2))
bind(curves.hypot, _binary(np.hypot))


@ops.add_onto.impl("cpu")
def add_onto_cpu(g: Array, onto: Array) -> Array:
    if g.size >= LIGHT and native.usable(g, onto):
        computed_into(onto, ops.add, onto, g)
        return onto
    return quietly(np.add, onto, g, out=onto)  # type: ignore[no-any-return]


for _op, _ufunc in ((rounding.floor, _floor), (curves.sin, np.sin), (curves.cos, np.cos)):
    _op.impl("cpu")(_unary(_ufunc))
rounding.floor_divide.impl("cpu")(_binary(np.floor_divide))
rounding.remainder.impl("cpu")(_binary(_remainder))

for _op, _ufunc in ((ops.maximum, np.maximum), (ops.minimum, np.minimum)):
    bind(_op, _quiet(_ufunc))

for _op, _ufunc in ((ops.eq, np.equal), (ops.ne, np.not_equal), (ops.lt, np.less), (ops.le, np.less_equal),
                    (ops.gt, np.greater), (ops.ge, np.greater_equal)):
    bind(_op, _quiet(_ufunc, "bool"), LIGHT)

_numpy_pow = _binary(np.power)


@ops.pow.impl("cpu")
def pow_cpu(a: Array | Number, b: Array | Number) -> Array:
    """Two exponents need no logarithm."""
    if not isinstance(b, np.ndarray) and b in (1, 2):
        return ops.mul.impls["cpu"](a, a if b == 2 else 1)
    return _numpy_pow(a, b)


def _clip(x: Array, *, low: Number | None, high: Number | None) -> Array:
    return np.clip(x, low, high, out=empty(x.shape, x.dtype))


def _clip_grad(g: Array, x: Array, *, low: Number | None, high: Number | None) -> Array:
    inside = np.ones(x.shape, bool)
    if low is not None:
        inside &= x >= low
    if high is not None:
        inside &= x <= high
    return masked(g, ~inside)


def _limits(low: Number | None, high: Number | None) -> dict[str, Number]:
    return dict(low=-inf if low is None else low, high=inf if high is None else high)


bind(ops.clip, _clip, numbers=_limits)
bind(ops.clip_grad, _clip_grad, numbers=_limits)


@ops.cast.impl("cpu")
def cast_cpu(x: Array, *, dtype: str) -> Array:
    out = empty(x.shape, dtype)
    with np.errstate(all="ignore"):
        np.copyto(out, x, casting="unsafe")
    return out


@ops.transfer.impl("cpu")
def transfer_cpu(x: Array, *, device: str, source: str) -> Any:
    return get_backend(device).from_numpy(x, device)


def _where(cond: Array, x: Array | Number, y: Array | Number) -> Array:
    dtype = x.dtype if isinstance(x, np.ndarray) else y.dtype
    out = empty(np.broadcast_shapes(cond.shape, np.shape(x), np.shape(y)), dtype)
    np.copyto(out, _plain(y), casting="unsafe")     # 0 and 1 stand for bools
    np.copyto(out, _plain(x), casting="unsafe", where=cond)
    return out


bind(ops.where, _where, FEW)


def masked(g: Array, zero: Array) -> Array:
    """Returns g with exact zeros in the given places, also where g is infinite or NaN."""
    out, bits = empty(g.shape, g.dtype), f"i{g.itemsize}"
    np.bitwise_and(g.view(bits), np.subtract(zero, 1, dtype=bits), out=out.view(bits))  # all ones where it is kept
    return out
