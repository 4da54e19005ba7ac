"""Functions of one or two numbers, element by element: pointwise ops by their equations, and functions of other ops.

The arc tangent is a polynomial of the angle's tangent up to tan(pi / 8); steeper ones are turned by pi / 4 or pi / 2.
Its coefficients are a minimax fit whose relative error is 2e-8. float64 is computed by NumPy's functions.
"""

from __future__ import annotations

from math import inf, pi
from math import log as log_of
from math import sqrt as sqrt_of
from typing import Any

from alpha.core.device import FLOAT_DTYPES
from alpha.core.errors import ConfigError, message
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.dtypes import RANGES
from alpha.core.inputs.kinds import FiniteNumber, Limit, Number
from alpha.core.table import public
from alpha.core.tensor import Tensor
from alpha.ops.create import ones_like
from alpha.ops.elementwise import (
    abs,
    binary,
    clip,
    div,
    eq,
    exp,
    log,
    lt,
    mul,
    pow,
    sqrt,
    unary,
    where,
)
from alpha.ops.elementwise.rounding import remainder
from alpha.ops.logic import isnan
from alpha.ops.reduce import widened

# ---- ops by their equations ------------------------------------------------------------------------------------------


def _atan_of(t: str) -> str:
    """Returns the statements that make `angle`, the arc tangent of a name whose number is at least 0."""
    return (f"far = {t} > 2.41421356; near = {t} <= 0.41421356; "
            f"w = {t} if near else -1 / {t} if far else ({t} - 1) / ({t} + 1); "
            f"start = 0 if near else {pi / 2} if far else {pi / 4}; z = w * w; "
            "p = ((0.08060306 * z - 0.13879849) * z + 0.19977926) * z - 0.33332955; "
            "angle = start + (p * z * w + w)")


def _polynomial(coefficients: tuple[float, ...], x: str) -> str:
    """Returns the polynomial of a name, from the lowest coefficient on."""
    text = str(coefficients[-1])
    for c in coefficients[-2::-1]:
        text = f"({text} * {x} + {c})"
    return text


# erfc(x) e^(x^2) by 1 / (1 + 0.3 sqrt(2) x), for x from 0 to where e^(x^2) is infinite
_TAIL = tuple([2 * c for c in (
    7.067976640e-07, 1.196703166e-01, 1.197357103e-01, 1.093010679e-01, 8.175350726e-02, 8.815164119e-02,
    -6.664516777e-02, 1.782460362e-01, -2.190825492e-01, 1.088880673e-01, -2.001934685e-02)])

sin = public(top=True, method=True, onnx="Sin")(
    unary("sin", "y = sin(x), x in radians.", lambda g, s: g * cos(s.x), saves="x", equation=""))
cos = public(top=True, method=True, onnx="Cos")(
    unary("cos", "y = cos(x), x in radians.", lambda g, s: g * -sin(s.x), saves="x", equation=""))
expm1 = public(top=True, method=True)(
    unary("expm1", "y = e^x - 1, with all digits near 0.", lambda g, s: g * (s.y + 1.0), saves="y"))
log1p = public(top=True, method=True)(
    unary("log1p", "y = ln(1 + x), with all digits near 0; -inf at -1, NaN below.", lambda g, s: g / (s.x + 1.0),
          saves="x"))
sinh = public(top=True, method=True, onnx="Sinh")(
    unary("sinh", "y = (e^x - e^-x) / 2.", lambda g, s: g * cosh(s.x), saves="x", equation="e = expm1(abs(x)); "
          "h = exp(abs(x) * 0.5); y = h * 0.5 * h if abs(x) > 20 else (e + e / (e + 1)) * 0.5; "
          "x if x == 0 else y if x > 0 else -y"))
cosh = public(top=True, method=True, onnx="Cosh")(
    unary("cosh", "y = (e^x + e^-x) / 2.", lambda g, s: g * sinh(s.x), saves="x",
          equation="h = exp(abs(x) * 0.5); h * 0.5 * h + 0.5 / h / h"))
atan = public(top=True, method=True, onnx="Atan")(
    unary("atan", "y = the angle in [-pi / 2, pi / 2] whose tangent is x.", lambda g, s: g / (s.x * s.x + 1.0),
          saves="x", equation=f"t = abs(x); {_atan_of('t')}; x if x == 0 else -angle if x < 0 else angle"))
asin = public(top=True, method=True, onnx="Asin")(
    unary("asin", "y = the angle in [-pi / 2, pi / 2] whose sine is x; NaN outside of [-1, 1].",
          lambda g, s: g / sqrt((1.0 - s.x) * (s.x + 1.0)), saves="x", equation="t = abs(x) / sqrt((1 - abs(x)) * "
          f"(1 + abs(x))); {_atan_of('t')}; x if x == 0 else -angle if x < 0 else angle"))
acos = public(top=True, method=True, onnx="Acos")(
    unary("acos", "y = the angle in [0, pi] whose cosine is x; NaN outside of [-1, 1].",
          lambda g, s: -g / sqrt((1.0 - s.x) * (s.x + 1.0)), saves="x",
          equation=f"t = sqrt((1 - x) / (1 + x)); {_atan_of('t')}; angle + angle"))
erfc = public(top=True, method=True)(
    unary("erfc", "y = 1 - erf(x), with digits where that is small: float32 errs by 1e-5 of it at most.",
          lambda g, s: g * (exp(-(s.x * s.x)) * (-2 / sqrt_of(pi))), saves="x",
          equation=f"t = 1 / (0.3 * {sqrt_of(2)} * abs(x) + 1); p = {_polynomial(_TAIL, 't')} * exp(-(x * x)); "
          "p if x > 0 else 2 - p"))
atan2 = public(top=True, method=True)(
    binary("atan2", "y = the angle in [-pi, pi] of the point whose ordinate is a and whose abscissa is b.",
           lambda g, s: g * (s.b / (s.a * s.a + s.b * s.b)), lambda g, s: g * (-s.a / (s.a * s.a + s.b * s.b)),
           saves="a b", dtypes="float", module=__name__,
           equation="m = abs(a); n = abs(b); flat = m == 0 and b == b; "
           f"t = 0 if flat else 1 if m == n else m / n; {_atan_of('t')}; "
           f"turned = {pi} - angle if b < 0 or 1 / b < 0 else angle; -turned if a < 0 or 1 / a < 0 else turned"))
hypot = public(top=True, method=True)(
    binary("hypot", "y = sqrt(a^2 + b^2), without overflow.", lambda g, s: g * (s.a / s.y),
           lambda g, s: g * (s.b / s.y), saves="a b y", dtypes="float", module=__name__,
           equation="m = maximum(abs(a), abs(b)); "
           "q = 1 if abs(a) == abs(b) else minimum(abs(a), abs(b)) / m; m * sqrt(q * q + 1)"))


# ---- functions of other ops ------------------------------------------------------------------------------------------


@public(top=True, method=True)
@checked
def square(x: Tensor) -> Tensor:
    """y = x^2."""
    return mul(x, x)


@public(top=True, method=True)
@checked
def rsqrt(x: Tensor) -> Tensor:
    """y = 1 / sqrt(x); infinite at 0, NaN below."""
    return div(1.0, sqrt(x))


@public(top=True, method=True)
@checked
def reciprocal(x: Tensor) -> Tensor:
    """y = 1 / x."""
    return div(1.0, x)


@public(top=True, method=True)
@checked
def log2(x: Tensor) -> Tensor:
    """y = the logarithm of x to base 2.  See log."""
    return log(x) * (1 / log_of(2))


@public(top=True, method=True)
@checked
def log10(x: Tensor) -> Tensor:
    """y = the logarithm of x to base 10.  See log."""
    return log(x) * (1 / log_of(10))


@public(top=True, method=True)
@checked
def tan(x: Tensor) -> Tensor:
    """y = sin(x) / cos(x), x in radians."""
    wide = widened(x)
    return (sin(wide) / cos(wide)).astype(x.dtype)


@public(top=True, method=True)
@checked
def exp2(x: Tensor) -> Tensor:
    """y = 2^x."""
    return pow(2.0, x)


@public(top=True, method=True)
@checked
def logit(x: Tensor, eps: FiniteNumber | None = None) -> Tensor:
    """y = ln(x / (1 - x)), the inverse of sigmoid.

    Args:
        x: probabilities; float.
        eps: x is limited to [eps, 1 - eps] before; None: it is not, and y is infinite at 0 and 1, NaN outside.
    """
    wide = widened(x)
    if eps is not None:
        if not 0 <= eps <= 0.5:
            raise ConfigError(message("logit", f"eps is {eps}, a number in [0, 0.5] is needed", "pass eps=1e-6, say"))
        wide = clip(wide, eps, 1 - eps)
    return log(wide / (1.0 - wide)).astype(x.dtype)


@public(top=True, method=True)
@checked
def fmod(a: Tensor, b: Tensor | Number) -> Tensor:
    """y = a - trunc(a / b) * b, exactly, with the sign of a, as C's; remainder has the sign of b.

    The gradient of a is g, that of b is -g * trunc(a / b).  Floats: NaN where b is 0.  Integers: a there.
    """
    size = abs(b) if isinstance(b, Tensor) else b if b >= 0 else -b
    if a.dtype == "uint8":
        return remainder(a, size)
    sign = where(lt(a, 0), -1, ones_like(a))
    return sign * remainder(sign * a, size)


@public(top=True, method=True)
@checked
def lerp(a: Tensor, b: Tensor, weight: Tensor | FiniteNumber) -> Tensor:
    """y = a + weight * (b - a): a where weight is 0, exactly b where it is 1.  Floats that broadcast."""
    apart = b - a
    if not isinstance(weight, Tensor):
        return a + apart * weight if -0.5 < weight < 0.5 else b - apart * (1 - weight)
    return where(abs(weight.detach()) < 0.5, a + apart * weight, b - apart * (1.0 - weight))


@public(top=True, method=True)
@checked
def addcmul(x: Tensor, tensor1: Tensor, tensor2: Tensor, value: FiniteNumber = 1) -> Tensor:
    """y = x + value * tensor1 * tensor2; they broadcast."""
    return x + times(tensor1, value) * tensor2


@public(top=True, method=True)
@checked
def addcdiv(x: Tensor, tensor1: Tensor, tensor2: Tensor, value: FiniteNumber = 1) -> Tensor:
    """y = x + value * tensor1 / tensor2; floats that broadcast."""
    return x + times(tensor1, value) / tensor2


def times(x: Tensor, value: Any) -> Tensor:
    """Returns x * value; x itself where value is 1."""
    return x if value == 1 else x * value


@public(top=True, method=True)
@checked
def nan_to_num(x: Tensor, nan: FiniteNumber = 0.0, posinf: Limit | None = None, neginf: Limit | None = None) -> Tensor:
    """y = x with numbers in the place of NaN, inf and -inf; None: the largest and the smallest that the dtype has.

    The gradient is g where x is finite, else 0.
    """
    if x.dtype not in FLOAT_DTYPES:
        return x
    low, high = RANGES[x.dtype]
    y = where(isnan(x), float(nan), x)
    y = where(eq(x, inf), high if posinf is None else float(posinf), y)
    return where(eq(x, -inf), low if neginf is None else float(neginf), y)
