"""Arithmetic that is composed: logic of bool tensors, rounding, quotients, and functions of other ops.

The names are NumPy's and PyTorch's, so this module shadows some builtins (all, any, round): it calls none of them.
"""

from __future__ import annotations

import builtins
from math import inf
from math import log as log_of
from typing import Any

from alpha.core.device import FLOAT_DTYPES, HALF_DTYPES
from alpha.core.errors import DTypeError, message, shown
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import Axes, Axis, NonNegative, Number
from alpha.core.tensor import Tensor
from alpha.ops.create import zeros_like
from alpha.ops.elementwise import (
    abs,
    binary,
    cast,
    div,
    eq,
    exp,
    log,
    lt,
    mul,
    ne,
    neg,
    sqrt,
    sub,
    unary,
)
from alpha.ops.elementwise import where as select
from alpha.ops.reduce import argmax, max
from alpha.ops.reduce import sum as add_up

floor = unary("floor", "y = the largest integer that is not above x; the gradient is 0.", lambda g, s: zeros_like(g),
              dtypes="number", equation="")
floor_divide = binary("floor_divide", "y = floor(a / b), exactly: that of the true quotient; no gradient.  Integers: 0 "
                      "where b is 0.", None, None, module=__name__)
remainder = binary("remainder", "y = a - floor(a / b) * b, exactly, with the sign of b, as Python's %.  Integers: a "
                   "where b is 0.  The gradient of b is -g * floor(a / b).", lambda g, s: g,
                   lambda g, s: g * -floor_divide(s.a, s.b), saves="a b", module=__name__)
sin = unary("sin", "y = sin(x), x in radians.", lambda g, s: g * cos(s.x), saves="x", equation="")
cos = unary("cos", "y = cos(x), x in radians.", lambda g, s: g * -sin(s.x), saves="x", equation="")


# ---- bool tensors ----------------------------------------------------------------------------------------------------


def _logical(where: str, value: Any) -> Any:
    """Returns an operand of logic; raises DTypeError unless it is a bool tensor or a bool."""
    if (isinstance(value, Tensor) and value.dtype == "bool") or isinstance(value, bool):
        return value
    found = f"a tensor of dtype {value.dtype}" if isinstance(value, Tensor) else shown(value)
    raise DTypeError(message(where, f"an operand is {found}, bool tensors are needed",
                             "compare first: (x > 0) & (y > 0); bits of integers have no ops"))


@checked
def logical_and(a: Tensor, b: Any, *, where: str = "logical_and") -> Tensor:
    """y = a & b, of bool tensors that broadcast, or a bool tensor and a bool.  Raises DTypeError for others."""
    if not isinstance(b, Tensor):
        return mask_by(where, a, b, True)
    return select(_logical(where, a), _logical(where, b), False)


@checked
def logical_or(a: Tensor, b: Any, *, where: str = "logical_or") -> Tensor:
    """y = a | b, of bool tensors that broadcast, or a bool tensor and a bool.  Raises DTypeError for others."""
    if not isinstance(b, Tensor):
        return mask_by(where, a, b, False)
    return select(_logical(where, a), True, _logical(where, b))


def mask_by(where: str, a: Tensor, b: Any, neutral: bool) -> Tensor:
    """Returns a where b is neutral, else b everywhere."""
    same = eq(_logical(where, a), True)
    return same if _logical(where, b) is neutral else ne(same, same) if neutral else eq(same, same)


@checked
def logical_xor(a: Tensor, b: Any, *, where: str = "logical_xor") -> Tensor:
    """y = a ^ b, of bool tensors that broadcast, or a bool tensor and a bool.  Raises DTypeError for others."""
    return ne(_logical(where, a), _logical(where, b))


@checked
def logical_not(x: Tensor, *, where: str = "logical_not") -> Tensor:
    """y = not x, of a bool tensor.  Raises DTypeError for another."""
    return eq(_logical(where, x), False)


@checked
def any(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """y = whether any x is not 0, over the axes; bool.  See sum."""
    return ne(add_up(ne(x, 0), axis, keepdims), 0)


@checked
def all(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """y = whether no x is 0, over the axes; bool.  See sum."""
    return eq(add_up(eq(x, 0), axis, keepdims), 0)


@checked
def isnan(x: Tensor) -> Tensor:
    """y = whether x is NaN; bool."""
    return ne(x, x)


@checked
def isinf(x: Tensor) -> Tensor:
    """y = whether x is infinite; bool."""
    return eq(abs(x), inf) if x.dtype in FLOAT_DTYPES else ne(x, x)


@checked
def isfinite(x: Tensor) -> Tensor:
    """y = whether x is neither NaN nor infinite; bool."""
    return lt(abs(x), inf) if x.dtype in FLOAT_DTYPES else eq(x, x)


@checked
def masked_fill(x: Tensor, mask: Tensor, value: Number) -> Tensor:
    """y = value where mask holds, else x; mask is a bool tensor that broadcasts.  See where."""
    return select(mask, value, x)


@checked
def isclose(a: Tensor, b: Tensor, rtol: NonNegative = 1e-5, atol: NonNegative = 1e-8, equal_nan: bool = False
            ) -> Tensor:
    """y = whether |a - b| <= atol + rtol * |b|, or both are the same infinity; bool.  They broadcast.

    Args:
        rtol, atol: at least 0.
        equal_nan: whether two NaNs are close.
    """
    a, b = a.detach(), b.detach()
    if a.dtype not in FLOAT_DTYPES:
        a, b = a.astype("float32"), b.astype("float32")
    near = logical_or(logical_and(abs(a - b) <= abs(b) * rtol + atol, isfinite(b)), eq(a, b))
    return logical_or(near, logical_and(isnan(a), isnan(b))) if equal_nan else near


@checked
def allclose(a: Tensor, b: Tensor, rtol: NonNegative = 1e-5, atol: NonNegative = 1e-8, equal_nan: bool = False) -> bool:
    """Returns whether |a - b| <= atol + rtol * |b| everywhere; NaN equals NaN only where equal_nan says so."""
    return bool(all(isclose(a, b, rtol, atol, equal_nan)))


@checked
def equal(a: Tensor, b: Tensor) -> bool:
    """Returns whether a and b have one shape and the same elements."""
    return a.shape == b.shape and bool(all(eq(a, b)))


# ---- rounding and quotients ------------------------------------------------------------------------------------------


def _whole(x: Tensor) -> bool:
    return x.dtype not in FLOAT_DTYPES


@checked
def ceil(x: Tensor) -> Tensor:
    """y = the smallest integer that is not below x; the gradient is 0."""
    return x if _whole(x) else neg(floor(neg(x)))


@checked
def trunc(x: Tensor) -> Tensor:
    """y = the integer part of x; the gradient is 0."""
    return x if _whole(x) else select(lt(x, 0), neg(floor(neg(x))), floor(x))


@checked
def round(x: Tensor, decimals: int = 0) -> Tensor:
    """y = the nearest integer, or multiple of 10^-decimals; halves go to even ones.  The gradient is 0.

    Where 10^decimals times x is more than the dtype has, x has no such digits, and stays as it is.
    """
    if _whole(x):
        return x
    if decimals and x.dtype in HALF_DTYPES:
        return round(x.astype("float32"), decimals).astype(x.dtype)
    if decimals:
        power = 10.0 ** (builtins.min(builtins.abs(decimals), 300 if x.dtype == "float64" else 38))
        scaled = mul(x, power) if decimals > 0 else div(x, power)
        back = div(round(scaled), power) if decimals > 0 else mul(round(scaled), power)
        return select(isfinite(scaled), back, x.detach())
    low = floor(x)
    odd, part = ne(floor(low * 0.5) * 2, low), sub(x, low).detach()
    return select(logical_or(part > 0.5, logical_and(eq(part, 0.5), odd)), low + 1, low)


# ---- functions of other ops ------------------------------------------------------------------------------------------


@checked
def clone(x: Tensor) -> Tensor:
    """y = x, in memory of its own; differentiable."""
    return cast(x, x.dtype)


@checked
def square(x: Tensor) -> Tensor:
    """y = x^2."""
    return mul(x, x)


@checked
def rsqrt(x: Tensor) -> Tensor:
    """y = 1 / sqrt(x); infinite at 0, NaN below."""
    return div(1.0, sqrt(x))


@checked
def reciprocal(x: Tensor) -> Tensor:
    """y = 1 / x."""
    return div(1.0, x)


@checked
def log2(x: Tensor) -> Tensor:
    """y = the logarithm of x to base 2.  See log."""
    return log(x) * (1 / log_of(2))


@checked
def log10(x: Tensor) -> Tensor:
    """y = the logarithm of x to base 10.  See log."""
    return log(x) * (1 / log_of(10))


@checked
def logsumexp(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """y = ln(sum(e^x)) over the axes, without overflow."""
    top = max(x.detach(), axis, True)
    top = select(isfinite(top), top, 0.0)
    y = log(add_up(exp(x - top), axis, True)) + top
    return y if keepdims else add_up(y, axis)


@checked
def argmin(x: Tensor, axis: Axis | None = None, keepdims: bool = False) -> Tensor:
    """y = index of the smallest x along an axis, the first one of equals; int64, no gradient.  See argmax."""
    if x.dtype in ("uint8", "bool"):
        x = x.astype("int32")
    return argmax(neg(x) if x.dtype in FLOAT_DTYPES else sub(-1, x), axis, keepdims)  # no -1 - x leaves the dtype
