"""Activations as layers; the equations stand at the ops of the same names (alpha.ops)."""

from __future__ import annotations

from functools import partial

from alpha import ops
from alpha.inputs.arguments import checked
from alpha.inputs.kinds import Axis, Finite
from alpha.nn.function import Lambda
from alpha.nn.module import Module
from alpha.tensor import Tensor


class ReLU(Module):
    """y = max(x, 0).  Shape: any."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.relu(x)


class LeakyReLU(Module):
    """y = x where x > 0, else negative_slope * x.  Shape: any."""

    @checked
    def __init__(self, negative_slope: Finite = 0.01) -> None:
        self.negative_slope = negative_slope

    def forward(self, x: Tensor) -> Tensor:
        return ops.leaky_relu(x, self.negative_slope)

    def extra_repr(self) -> str:
        return f"negative_slope={self.negative_slope}"


class ELU(Module):
    """y = x where x > 0, else alpha * (e^x - 1).  Shape: any."""

    @checked
    def __init__(self, alpha: Finite = 1.0) -> None:
        self.alpha = alpha

    def forward(self, x: Tensor) -> Tensor:
        return ops.elu(x, self.alpha)

    def extra_repr(self) -> str:
        return f"alpha={self.alpha}"


class GELU(Module):
    """y = x * Phi(x), Phi the standard normal distribution function.  Shape: any."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.gelu(x)


class SiLU(Module):
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


class ReLU6(Module):
    """y = min(max(x, 0), 6).  Shape: any."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.relu6(x)


class Hardswish(Module):
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


def fuse_relu(layer: Module, owner: type[Module], following: Module) -> partial[Tensor] | None:
    """Returns `layer` with activation="relu" where `following` is a ReLU and `layer` has the forward of `owner`."""
    is_relu = type(following) is ReLU or (type(following) is Lambda and following.function is ops.relu)
    if is_relu and type(layer).forward is owner.forward and "forward" not in vars(layer):
        return partial(layer, activation="relu")
    return None
