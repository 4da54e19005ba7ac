"""Activations that are functions of other ops.  What is given with 16 bits is computed in float32, and rounded once.

What they and their gradients give where pieces meet, and at NaN, is PyTorch's choice.
"""

from __future__ import annotations

from alpha.core.errors import ConfigError, ShapeError, message
from alpha.core.graph import grad_enabled
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import Axis, Finite, NonNegative, Positive
from alpha.core.table import public
from alpha.core.tensor import Tensor
from alpha.ops.activation import elu, relu6, sigmoid, softmax, softplus, tanh
from alpha.ops.create import rand
from alpha.ops.elementwise import abs, clip, gt, le, log, where
from alpha.ops.index import to_axis
from alpha.ops.loss import label_mask
from alpha.ops.reduce import accumulation_dtype, argmax, normal_axis, widened
from alpha.ops.shape import reshape
from alpha.ops.shape.axes import part

SELU_SCALE, SELU_ALPHA = 1.0507009873554805, 1.6732632423543772     # which keep means at 0 and variances at 1


# ---- piecewise linear ------------------------------------------------------------------------------------------------


def check_limits(where: str, min_val: float, max_val: float) -> None:
    """Raises ConfigError unless min_val is at most max_val."""
    if min_val > max_val:
        raise ConfigError(message(where, f"min_val is {min_val}, above max_val, which is {max_val}",
                                  "pass the lower limit as min_val"))


@public(layer="Hardtanh", keeps_channels=True)
@checked
def hardtanh(x: Tensor, min_val: Finite = -1.0, max_val: Finite = 1.0) -> Tensor:
    """y = x limited to [min_val, max_val]; the gradient is 0 at the limits too, where that of clip is g."""
    check_limits("hardtanh", min_val, max_val)
    if not grad_enabled():
        return clip(x, min_val, max_val)
    return where(le(x, min_val), min_val, where(x >= max_val, max_val, x))


@public(functional=True, inplace=True, layer="Hardsigmoid", keeps_channels=True)
@checked
def hardsigmoid(x: Tensor) -> Tensor:
    """y = min(max(x + 3, 0), 6) / 6."""
    return (relu6(widened(x) + 3.0) / 6.0).astype(x.dtype)


@public(functional=True, layer="Hardshrink", keeps_channels=True)
@checked
def hardshrink(x: Tensor, lambd: NonNegative = 0.5) -> Tensor:
    """y = 0 where |x| <= lambd, else x."""
    return where(le(abs(x.detach()), lambd), 0.0, x)


@public(functional=True, layer="Softshrink", keeps_channels=True)
@checked
def softshrink(x: Tensor, lambd: NonNegative = 0.5) -> Tensor:
    """y = 0 where |x| <= lambd, else x moved by lambd towards 0."""
    return x - clip(x, -lambd, lambd)


@public(layer="Threshold", keeps_channels=True)
@checked
def threshold(x: Tensor, threshold: Finite, value: Finite) -> Tensor:
    """y = x where x is above a threshold, else a value."""
    return where(le(x, threshold), value, x)


@public(functional=True, layer="PReLU", keeps_channels=True)
@checked
def prelu(x: Tensor, weight: Tensor) -> Tensor:
    """y = x where x > 0, else weight * x.

    Args:
        x: shape (..., C), channels last; float.
        weight: the slopes.  Shape (1,) or (C,); dtype of x, or float32 where x has 16 bits.
    Raises:
        ShapeError: weight has another shape.
    Source: He et al., arXiv 1502.01852.
    """
    if weight.ndim > 1 or weight.numel() not in (1, x.shape[-1] if x.ndim else 1):
        raise ShapeError(message("prelu", f"weight has shape {weight.shape}, x has {x.shape}",
                                 f"pass a weight of shape (1,){f' or {x.shape[-1:]}' if x.ndim else ''}"))
    slopes = weight.astype(x.dtype)
    return where(gt(x, 0), x, x * (slopes if x.ndim else reshape(slopes, ())))


# ---- smooth ----------------------------------------------------------------------------------------------------------


@public(functional=True, inplace=True, layer="Mish", keeps_channels=True)
@checked
def mish(x: Tensor) -> Tensor:
    """y = x * tanh(ln(1 + e^x)).  Source: arXiv 1908.08681."""
    wide = widened(x)
    return (wide * tanh(softplus(wide))).astype(x.dtype)


@public(functional=True, layer="LogSigmoid", keeps_channels=True)
@checked
def logsigmoid(x: Tensor) -> Tensor:
    """y = ln(sigmoid(x)), without overflow."""
    return -softplus(-x)


@public(functional=True, inplace=True, layer="SELU", keeps_channels=True)
@checked
def selu(x: Tensor) -> Tensor:
    """y = 1.0507 * elu(x, 1.6733): layers of it keep means near 0 and variances near 1.  Source: arXiv 1706.02515."""
    return (elu(widened(x), SELU_ALPHA) * SELU_SCALE).astype(x.dtype)


@public(layer="CELU", keeps_channels=True)
@checked
def celu(x: Tensor, alpha: Positive = 1.0) -> Tensor:
    """y = x where x > 0, else alpha * (e^(x / alpha) - 1): an elu whose slope is 1 at 0.  Source: arXiv 1704.07483."""
    wide = widened(x)
    return where(gt(x, 0), x, (elu(wide / alpha) * alpha).astype(x.dtype)) if alpha != 1 else elu(x)


@public(functional=True, layer="Softsign", keeps_channels=True)
@checked
def softsign(x: Tensor) -> Tensor:
    """y = x / (1 + |x|)."""
    wide = widened(x)
    return (wide / (abs(wide) + 1.0)).astype(x.dtype)


@public(functional=True, layer="Tanhshrink", keeps_channels=True)
@checked
def tanhshrink(x: Tensor) -> Tensor:
    """y = x - tanh(x)."""
    wide = widened(x)
    return (wide - tanh(wide)).astype(x.dtype)


# ---- over an axis ----------------------------------------------------------------------------------------------------


@public(functional=True)
@checked
def glu(x: Tensor, axis: Axis = -1) -> Tensor:
    """y = a * sigmoid(b), a and b the two halves of x along an axis.

    Raises ShapeError: the axis does not exist, or its length is odd.
    """
    k = normal_axis(axis, x.ndim, "glu")
    n = x.shape[k]
    if n % 2:
        raise ShapeError(message("glu", f"axis {axis} has {n} elements, an even number is needed", "pass two halves",
                                 x=x.shape))
    return part(x, k, 0, n // 2) * sigmoid(part(x, k, n // 2, n // 2))


@public(functional=True, layer="Softmin", keeps_channels=True)
@checked
def softmin(x: Tensor, axis: Axis = -1) -> Tensor:
    """y = softmax(-x)."""
    return softmax(-x, axis)


@public(functional=True)
@checked
def gumbel_softmax(logits: Tensor, tau: Positive = 1.0, hard: bool = False, *, axis: Axis = -1) -> Tensor:
    """A draw of classes that has a gradient: softmax((logits + noise) / tau), the noise of Gumbel's distribution.

    Args:
        logits: any shape with at least one axis; float.
        tau: how soft; near 0 the largest has it all.
        hard: whether y is 1 at the largest and 0 elsewhere, with the gradient of the soft one.
        axis: of the classes.
    Source: arXiv 1611.01144.  The noise comes from the stream that `manual_seed` starts.
    """
    k = normal_axis(axis, logits.ndim, "gumbel_softmax")
    dtype = accumulation_dtype(logits.dtype)
    u = rand(logits.shape, dtype, logits.device) * (1 - 2.0 ** -24) + 2.0 ** -25     # neither 0 nor 1
    y = softmax((logits.astype(dtype) - log(-log(u))) / tau, k)
    if hard:
        n = logits.shape[k]
        best = argmax(y.detach(), k)
        one = label_mask(reshape(best, (best.numel(),)), classes=n).astype(dtype)
        y = to_axis(reshape(one, (*best.shape, n)), best.ndim, k) - y.detach() + y
    return y.astype(logits.dtype)
