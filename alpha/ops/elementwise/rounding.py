"""Rounding, exact quotients and remainders, element by element.

round shadows Python's, which this module calls by way of builtins alone.
"""

from __future__ import annotations

import builtins

from alpha.core.device import FLOAT_DTYPES, HALF_DTYPES
from alpha.core.inputs.arguments import checked
from alpha.core.table import public
from alpha.core.tensor import Tensor
from alpha.ops.create import zeros_like
from alpha.ops.elementwise import binary, div, eq, lt, mul, ne, neg, sub, unary
from alpha.ops.elementwise import where as select
from alpha.ops.logic import isfinite, logical_and, logical_or

floor = public(top=True, method=True, onnx="Floor")(
    unary("floor", "y = the largest integer that is not above x; the gradient is 0.", lambda g, s: zeros_like(g),
          dtypes="number", equation=""))
floor_divide = public(top=True, method=True)(
    binary("floor_divide", "y = floor(a / b), exactly: that of the true quotient; no gradient.  Integers: 0 "
           "where b is 0.", None, None, module=__name__))
remainder = public(top=True, method=True)(
    binary("remainder", "y = a - floor(a / b) * b, exactly, with the sign of b, as Python's %.  Integers: a "
           "where b is 0.  The gradient of b is -g * floor(a / b).", lambda g, s: g,
           lambda g, s: g * -floor_divide(s.a, s.b), saves="a b", module=__name__))


def _whole(x: Tensor) -> bool:
    return x.dtype not in FLOAT_DTYPES


@public(top=True, method=True, onnx="Ceil")
@checked
def ceil(x: Tensor) -> Tensor:
    """y = the smallest integer that is not below x; the gradient is 0."""
    return x if _whole(x) else neg(floor(neg(x)))


@public(top=True, method=True)
@checked
def trunc(x: Tensor) -> Tensor:
    """y = the integer part of x; the gradient is 0."""
    return x if _whole(x) else select(lt(x, 0), neg(floor(neg(x))), floor(x))


@public(top=True, method=True)
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
