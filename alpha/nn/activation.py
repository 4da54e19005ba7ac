"""Activations as layers; the equations stand at the ops of the same names (alpha.ops)."""

from __future__ import annotations

from functools import partial

from alpha import ops
from alpha.errors import ShapeError, message
from alpha.graph import grad_enabled
from alpha.inputs.arguments import checked
from alpha.inputs.kinds import Approximation, Axis, Count, Finite
from alpha.nn.function import Lambda
from alpha.nn.module import Module, Parameter
from alpha.ops.reduce import normal_axis
from alpha.tensor import Tensor


class _Inplace(Module):
    """What takes PyTorch's `inplace`: no memory is shared with x, which stays as it is, so that gradients are right."""

    @checked
    def __init__(self, inplace: bool = False) -> None:
        """Takes `inplace` and has no use for it."""


class ReLU(_Inplace):
    """y = max(x, 0).  Shape: any."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.relu(x)


class LeakyReLU(Module):
    """y = x where x > 0, else negative_slope * x.  Shape: any."""

    @checked
    def __init__(self, negative_slope: Finite = 0.01, inplace: bool = False) -> None:
        self.negative_slope = negative_slope

    def forward(self, x: Tensor) -> Tensor:
        return ops.leaky_relu(x, self.negative_slope)

    def extra_repr(self) -> str:
        return f"negative_slope={self.negative_slope}"


class ELU(Module):
    """y = x where x > 0, else alpha * (e^x - 1).  Shape: any."""

    @checked
    def __init__(self, alpha: Finite = 1.0, inplace: bool = False) -> None:
        self.alpha = alpha

    def forward(self, x: Tensor) -> Tensor:
        return ops.elu(x, self.alpha)

    def extra_repr(self) -> str:
        return f"alpha={self.alpha}"


class GELU(Module):
    """y = x * Phi(x), Phi the standard normal distribution function; exact, or approximate="tanh".  Shape: any."""

    @checked
    def __init__(self, approximate: Approximation = "none") -> None:
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        return ops.gelu(x) if self.approximate == "none" else ops.gelu_tanh(x)

    def extra_repr(self) -> str:
        return "" if self.approximate == "none" else f"approximate={self.approximate!r}"


class SiLU(_Inplace):
    """y = x * sigmoid(x).  Shape: any."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.silu(x)


class Sigmoid(Module):
    """y = 1 / (1 + e^-x).  Shape: any."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.sigmoid(x)


class Tanh(Module):
    """y = tanh(x).  Shape: any."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.tanh(x)


class Softplus(Module):
    """y = log(1 + e^x).  Shape: any."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.softplus(x)


class ReLU6(_Inplace):
    """y = min(max(x, 0), 6).  Shape: any."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.relu6(x)


class Hardswish(_Inplace):
    """y = x * min(max(x + 3, 0), 6) / 6.  Shape: any."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.hardswish(x)


class Softmax(Module):
    """y = e^x / sum(e^x) along an axis.  Shape: any."""

    @checked
    def __init__(self, axis: Axis = -1) -> None:
        self.axis = axis

    def forward(self, x: Tensor) -> Tensor:
        return ops.softmax(x, self.axis)

    def extra_repr(self) -> str:
        return f"axis={self.axis}"


class LogSoftmax(Softmax):
    """y = x - log(sum(e^x)) along an axis.  Shape: any."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.log_softmax(x, self.axis)


class PReLU(Module):
    """y = x where x > 0, else weight * x: a slope that is trained, one for all channels or one for each.

    Args:
        num_parameters: 1, or the channels of x, its last axis.
        init: what the slopes start as.
    Shape: any.  Parameters: weight (num_parameters,).
    Source: He et al., arXiv 1502.01852.
    """

    @checked
    def __init__(self, num_parameters: Count = 1, init: Finite = 0.25) -> None:
        self.weight = Parameter(ops.full((num_parameters,), init))

    def forward(self, x: Tensor) -> Tensor:
        return ops.where(ops.gt(x, 0), x, x * self.weight.astype(x.dtype))

    def extra_repr(self) -> str:
        return f"num_parameters={self.weight.numel()}"


class Hardtanh(Module):
    """y = x limited to [min_val, max_val]; the gradient is 0 at the limits too, as PyTorch's.  Shape: any."""

    @checked
    def __init__(self, min_val: Finite = -1.0, max_val: Finite = 1.0, inplace: bool = False) -> None:
        self.min_val, self.max_val = min_val, max_val

    def forward(self, x: Tensor) -> Tensor:
        if not grad_enabled():
            return ops.clip(x, self.min_val, self.max_val)      # the same numbers; its gradient is g at the limits
        inside = ops.where(ops.ge(x, self.max_val), self.max_val, x)
        return ops.where(ops.le(x, self.min_val), self.min_val, inside)

    def extra_repr(self) -> str:
        return f"min_val={self.min_val}, max_val={self.max_val}"


class Hardsigmoid(_Inplace):
    """y = min(max(x + 3, 0), 6) / 6.  Shape: any."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.relu6(ops.add(x, 3.0)) / 6.0


class Mish(_Inplace):
    """y = x * tanh(log(1 + e^x)).  Shape: any."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.mul(x, ops.tanh(ops.softplus(x)))


class LogSigmoid(Module):
    """y = log(sigmoid(x)), without overflow.  Shape: any."""

    def forward(self, x: Tensor) -> Tensor:
        return -ops.softplus(ops.neg(x))


class GLU(Module):
    """y = a * sigmoid(b), a and b the two halves of x along an axis.  Shape: of x, with that axis half as long."""

    @checked
    def __init__(self, axis: Axis = -1) -> None:
        self.axis = axis

    @checked
    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[normal_axis(self.axis, x.ndim, "GLU")]
        if n % 2:
            raise ShapeError(message("GLU", f"axis {self.axis} has {n} elements, an even number is needed",
                                     "pass two halves", x=x.shape))
        a, b = ops.split(x, [n // 2, n // 2], self.axis)
        return a * ops.sigmoid(b)


def fuse_relu(layer: Module, owner: type[Module], following: Module) -> partial[Tensor] | None:
    """Returns `layer` with activation="relu" where `following` is a ReLU and `layer` has the forward of `owner`."""
    is_relu = type(following) is ReLU or (type(following) is Lambda and following.function is ops.relu)
    if is_relu and type(layer).forward is owner.forward and "forward" not in vars(layer):
        return partial(layer, activation="relu")
    return None
