"""Activations and softmax.

Values at NaN, at infinities and where pieces meet are PyTorch's: docs/explanation/numerics.md has the table.
The gradient of a piecewise linear one is an op that is its own derivative in g. That of a smooth one is a fused op,
unless the gradient itself is to be differentiated: then it is composed of ops, by the same formula.
"""

from __future__ import annotations

from collections.abc import Callable
from math import pi
from math import sqrt as sqrt_of
from typing import Any

from alpha.core.errors import ShapeError, message
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import Axis, Finite
from alpha.core.op import Op, grad_enabled, op
from alpha.core.table import public
from alpha.core.tensor import Tensor
from alpha.ops.checks import check_alike
from alpha.ops.elementwise import erf, exp, minimum, where
from alpha.ops.reduce import normal_axis, widened


def _alike(where: str, g: Tensor, y: Tensor) -> tuple[int, ...]:
    """Returns the shape of a gradient, which is that of the tensor it is combined with."""
    if g.shape != y.shape:
        check_alike(where, g=g, y=y)
    return g.shape


def _fused(name: str, saved: str, formula: str, shape: Callable[..., Any] | None = None,
           equation: str | None = None) -> Op:
    """Makes the op of a gradient that backward runs when nobody differentiates it again."""
    shape = shape or (lambda g, x: _alike(name, g, x))
    return op(type(name, (), dict(__doc__=f"Gradient of {name.removesuffix('_grad')}: {formula}.", equation=equation,
                                  __module__=__name__, args=f"g {saved}", shape=shape)))


# ---- piecewise linear ------------------------------------------------------------------------------------------------


@public(top=True, method=True, functional=True, inplace=True, layer="ReLU", keeps_channels=True, onnx="Relu")
@op
class relu:
    """y = max(x, 0); the gradient at 0 is 0, at NaN it is g."""

    args, saves = "x", "y"
    equation = "0 if x < 0 else x"

    def shape(x):
        return x.shape

    def vjp_x(g, s):
        return relu_grad(g, s.y)


@public()
@op
class relu_grad:
    """Gradient of relu, also of one that is fused into another op: 0 where y <= 0, else g, at NaN too."""

    args, saves = "g y", "y"
    equation = "0 if y <= 0 else g"

    def shape(g, y):
        return _alike("relu_grad", g, y)

    def vjp_g(g, s):
        return relu_grad(g, s.y)

    def vjp_y(g, s):
        return None


@public(functional=True, inplace=True, layer="ReLU6", keeps_channels=True)
@op
class relu6:
    """y = min(max(x, 0), 6); the gradient at 0 and at 6 is 0, at NaN it is g."""

    args, saves = "x", "y"
    equation = "0 if x < 0 else 6 if x > 6 else x"

    def shape(x):
        return x.shape

    def vjp_x(g, s):
        return relu6_grad(g, s.y)


@op
class relu6_grad:
    """Gradient of relu6: 0 where y <= 0 or y >= 6, else g, at NaN too."""

    args, saves = "g y", "y"
    equation = "0 if y <= 0 or y >= 6 else g"

    def shape(g, y):
        return _alike("relu6_grad", g, y)

    def vjp_g(g, s):
        return relu6_grad(g, s.y)

    def vjp_y(g, s):
        return None


@public(method=True, layer="LeakyReLU", keeps_channels=True)
@op
class leaky_relu:
    """y = x where x > 0, else slope * x; the gradient at 0 and at NaN is slope * g."""

    args, saves = "x", "x"
    equation = "x if x > 0 else slope * x"

    def shape(x, *, slope: Finite = 0.01):
        return x.shape

    def vjp_x(g, s, *, slope):
        return leaky_relu_grad(g, s.x, slope)


@op
class leaky_relu_grad:
    """Gradient of leaky_relu: g where x > 0, else slope * g."""

    args, saves = "g x", "x"
    equation = "g if x > 0 else slope * g"

    def shape(g, x, *, slope: Finite):
        return _alike("leaky_relu_grad", g, x)

    def vjp_g(g, s, *, slope):
        return leaky_relu_grad(g, s.x, slope)

    def vjp_x(g, s, *, slope):
        return None


# ---- smooth ----------------------------------------------------------------------------------------------------------

def _elu_grad_shape(g: Tensor, x: Tensor, *, alpha: Finite) -> tuple[int, ...]:
    return _alike("elu_grad", g, x)


sigmoid_grad = _fused("sigmoid_grad", "y", "g * y * (1 - y)", equation="(1 - y) * y * g")
tanh_grad = _fused("tanh_grad", "y", "g * (1 - y^2)", equation="(1 - y * y) * g")
silu_grad = _fused("silu_grad", "x", "g * p * (1 + x * (1 - p)), p = sigmoid(x)",
                   equation="p = logistic(x); p * (1 + x * (1 - p)) * g")
gelu_grad = _fused("gelu_grad", "x", "g * (P(x) + x * p(x)), P and p the normal distribution and its density",
                   equation="(normal_cdf(x) + x * normal_pdf(x)) * g")
elu_grad = _fused("elu_grad", "x", "g * alpha * e^x where x <= 0, else g", _elu_grad_shape,
                  "alpha * exp(x) * g if x <= 0 else g")
hardswish_grad = _fused("hardswish_grad", "x", "0 up to -3, g * (x / 3 + 1 / 2) below 3, else g",
                        equation="0 if x <= -3 else (x * (1 / 3) + 0.5) * g if x < 3 else g")
softplus_grad = _fused("softplus_grad", "x", "g * sigmoid(x)", equation="logistic(x) * g")


@public(top=True, method=True, functional=True, layer="Sigmoid", keeps_channels=True, onnx="Sigmoid")
@op
class sigmoid:
    """y = 1 / (1 + e^-x)."""

    args, saves = "x", "y"
    equation = "logistic(x)"

    def shape(x):
        return x.shape

    def vjp_x(g, s):
        return g * (s.y * (1.0 - s.y)) if grad_enabled() else sigmoid_grad(g, s.y)


@public(top=True, method=True, functional=True, layer="Tanh", keeps_channels=True, onnx="Tanh")
@op
class tanh:
    """y = (e^x - e^-x) / (e^x + e^-x)."""

    args, saves = "x", "y"
    equation = "tanh(x)"

    def shape(x):
        return x.shape

    def vjp_x(g, s):
        return g * (1.0 - s.y * s.y) if grad_enabled() else tanh_grad(g, s.y)


@public(functional=True, inplace=True, layer="SiLU", keeps_channels=True)
@op
class silu:
    """y = x * sigmoid(x), also called swish.  At -inf, y and the gradient are NaN; at inf, the gradient."""

    args, saves = "x", "x"
    equation = "x * logistic(x)"

    def shape(x):
        return x.shape

    def vjp_x(g, s):
        if not grad_enabled():
            return silu_grad(g, s.x)
        p = sigmoid(s.x)
        return g * (p * (1.0 + s.x * (1.0 - p)))


@public(layer="GELU", keeps_channels=True)
@op
class gelu:
    """y = x * P(x), P the standard normal distribution function: (1 + erf(x / sqrt(2))) / 2.  Exact, not by tanh.

    At -inf, y and the gradient are NaN; at inf, the gradient.

    Source: arXiv 1606.08415.
    """

    args, saves = "x", "x"
    equation = "x * normal_cdf(x)"

    def shape(x):
        return x.shape

    def vjp_x(g, s):
        if not grad_enabled():
            return gelu_grad(g, s.x)
        distribution = (erf(s.x * sqrt_of(0.5)) + 1.0) * 0.5
        density = exp(s.x * s.x * -0.5) * (1 / sqrt_of(2 * pi))
        return g * (distribution + s.x * density)


@public(keeps_channels=True)
@checked
def gelu_tanh(x: Tensor) -> Tensor:
    """y = x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))): gelu by tanh, 5e-4 from the exact one at most."""
    wide = widened(x)
    y = wide * 0.5 * (tanh((wide + wide * wide * wide * 0.044715) * sqrt_of(2 / pi)) + 1.0)
    return y.astype(x.dtype)


@public(layer="ELU", keeps_channels=True)
@op
class elu:
    """y = x where x > 0, else alpha * (e^x - 1); the gradient at NaN is g.  Source: arXiv 1511.07289."""

    args, saves = "x", "x"
    equation = "x if x > 0 else alpha * expm1(x)"

    def shape(x, *, alpha: Finite = 1.0):
        return x.shape

    def vjp_x(g, s, *, alpha):
        if not grad_enabled():
            return elu_grad(g, s.x, alpha)
        return g * where(s.x <= 0.0, exp(minimum(s.x, 0.0)) * alpha, 1.0)


@public(functional=True, layer="Softplus", keeps_channels=True, onnx="Softplus")
@op
class softplus:
    """y = ln(1 + e^x), without overflow."""

    args, saves = "x", "x"
    equation = "maximum(x, 0) + log1p(exp(-abs(x)))"

    def shape(x):
        return x.shape

    def vjp_x(g, s):
        return g * sigmoid(s.x) if grad_enabled() else softplus_grad(g, s.x)


@public(functional=True, inplace=True, layer="Hardswish", keeps_channels=True, onnx="HardSwish")
@op
class hardswish:
    """y = x * min(max(x + 3, 0), 6) / 6; as in PyTorch, the gradient at -3 is 0, at 3 and NaN g.

    y at -inf is NaN.

    Source: arXiv 1905.02244.
    """

    args, saves = "x", "x"
    equation = "minimum(maximum(x + 3, 0), 6) * x / 6"

    def shape(x):
        return x.shape

    def vjp_x(g, s):
        if not grad_enabled():
            return hardswish_grad(g, s.x)
        return g * where(s.x <= -3.0, 0.0, where(s.x < 3.0, s.x * (1 / 3) + 0.5, 1.0))


# ---- over an axis ----------------------------------------------------------------------------------------------------

def _axis_shape(g: Tensor, y: Tensor, *, axis: Axis) -> tuple[int, ...]:
    normal_axis(axis, g.ndim, "softmax_grad")
    return _alike("softmax_grad", g, y)


softmax_grad = _fused("softmax_grad", "y", "y * (g - sum(g * y)) along the axis", _axis_shape)
log_softmax_grad = _fused("log_softmax_grad", "y", "g - e^y * sum(g) along the axis", _axis_shape)


def _softmax_shape(x: Tensor, axis: int, where: str) -> tuple[int, ...]:
    if x.shape[normal_axis(axis, x.ndim, where)] == 0:
        raise ShapeError(message(where, f"axis {axis} of shape {x.shape} is empty", "pass at least one class"))
    return x.shape


@public(top=True, method=True, functional=True, layer="Softmax Softmax2d", keeps_channels=True)
@op
class softmax:
    """y = e^x / sum(e^x) along an axis, without overflow.

    Args:
        x: at least one axis; float.
        axis: int.
    Raises:
        ShapeError: the axis does not exist or is empty.
    """

    args, saves, cheap = "x", "y", True

    def shape(x, *, axis: Axis = -1):
        return _softmax_shape(x, axis, "softmax")

    def vjp_x(g, s, *, axis):
        return s.y * (g - (g * s.y).sum(axis, True)) if grad_enabled() else softmax_grad(g, s.y, axis)


@public(method=True, functional=True, layer="LogSoftmax", keeps_channels=True)
@op
class log_softmax:
    """y = x - ln(sum(e^x)) along an axis, without overflow.  See softmax."""

    args, saves, cheap = "x", "y", True

    def shape(x, *, axis: Axis = -1):
        return _softmax_shape(x, axis, "log_softmax")

    def vjp_x(g, s, *, axis):
        return g - exp(s.y) * g.sum(axis, True) if grad_enabled() else log_softmax_grad(g, s.y, axis)
