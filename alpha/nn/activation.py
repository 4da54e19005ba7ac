"""Activations as layers; the equations stand at the ops of the same names (alpha.ops)."""

from __future__ import annotations

from alpha import ops
from alpha.core.errors import ShapeError, message
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import Approximation, Axis, Count, Finite, NonNegative, Positive
from alpha.core.tensor import Tensor
from alpha.nn.module import Module, Parameter
from alpha.ops.activation.functions import check_limits


class _Inplace(Module):
    """A layer that takes PyTorch's `inplace`: y and x share no memory, and x stays, so that gradients are right."""

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


class Softmin(Softmax):
    """y = softmax(-x) along an axis.  Shape: any."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.softmin(x, self.axis)


class Softmax2d(Module):
    """y = softmax over the channels of each pixel.  Shape: (N, H, W, C) or (H, W, C), channels last."""

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(x, Tensor) and x.ndim not in (3, 4):
            raise ShapeError(message("Softmax2d", f"x has {x.ndim} axes, 3 or 4 are needed (N H W C)", "use nn.Softmax",
                                     x=x.shape))
        return ops.softmax(x, -1)


class PReLU(Module):
    """y = x where x > 0, else weight * x: a slope that is trained, one for all channels or one for each.

    Args:
        num_parameters: 1, or the channels of x, its last axis.
        init: first value of the slopes.
    Shape: any.  Parameters: weight (num_parameters,).
    Source: He et al., arXiv 1502.01852.
    """

    @checked
    def __init__(self, num_parameters: Count = 1, init: Finite = 0.25) -> None:
        self.weight = Parameter(ops.full((num_parameters,), init))

    def forward(self, x: Tensor) -> Tensor:
        return ops.prelu(x, self.weight)

    def extra_repr(self) -> str:
        return f"num_parameters={self.weight.numel()}"


class Hardtanh(Module):
    """y = x limited to [min_val, max_val]; the gradient is 0 at the limits too, as PyTorch's.  Shape: any."""

    @checked
    def __init__(self, min_val: Finite = -1.0, max_val: Finite = 1.0, inplace: bool = False) -> None:
        check_limits("Hardtanh", min_val, max_val)
        self.min_val, self.max_val = min_val, max_val

    def forward(self, x: Tensor) -> Tensor:
        return ops.hardtanh(x, self.min_val, self.max_val)

    def extra_repr(self) -> str:
        return f"min_val={self.min_val}, max_val={self.max_val}"


class Hardsigmoid(_Inplace):
    """y = min(max(x + 3, 0), 6) / 6.  Shape: any."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.hardsigmoid(x)


class Mish(_Inplace):
    """y = x * tanh(log(1 + e^x)).  Shape: any."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.mish(x)


class SELU(_Inplace):
    """y = 1.0507 * elu(x, 1.6733).  Shape: any."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.selu(x)


class CELU(ELU):
    """y = x where x > 0, else alpha * (e^(x / alpha) - 1), alpha above 0.  Shape: any."""

    @checked
    def __init__(self, alpha: Positive = 1.0, inplace: bool = False) -> None:
        super().__init__(alpha)

    def forward(self, x: Tensor) -> Tensor:
        return ops.celu(x, self.alpha)


class LogSigmoid(Module):
    """y = log(sigmoid(x)), without overflow.  Shape: any."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.logsigmoid(x)


class Softsign(Module):
    """y = x / (1 + |x|).  Shape: any."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.softsign(x)


class Tanhshrink(Module):
    """y = x - tanh(x).  Shape: any."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.tanhshrink(x)


class Softshrink(Module):
    """y = 0 where |x| <= lambd, else x moved by lambd towards 0.  Shape: any."""

    @checked
    def __init__(self, lambd: NonNegative = 0.5) -> None:
        self.lambd = lambd

    def forward(self, x: Tensor) -> Tensor:
        return ops.softshrink(x, self.lambd)

    def extra_repr(self) -> str:
        return f"lambd={self.lambd}"


class Hardshrink(Softshrink):
    """y = 0 where |x| <= lambd, else x.  Shape: any."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.hardshrink(x, self.lambd)


class Threshold(Module):
    """y = x where x > threshold, else value.  Shape: any."""

    @checked
    def __init__(self, threshold: Finite, value: Finite, inplace: bool = False) -> None:
        self.threshold, self.value = threshold, value

    def forward(self, x: Tensor) -> Tensor:
        return ops.threshold(x, self.threshold, self.value)

    def extra_repr(self) -> str:
        return f"threshold={self.threshold}, value={self.value}"


class GLU(Module):
    """y = a * sigmoid(b), a and b the two halves of x along an axis.  Shape: of x, with that axis half as long."""

    @checked
    def __init__(self, axis: Axis = -1) -> None:
        self.axis = axis

    def forward(self, x: Tensor) -> Tensor:
        return ops.glu(x, self.axis)
