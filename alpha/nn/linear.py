"""Linear, Flatten, Unflatten and Identity."""

from __future__ import annotations

import math
from typing import cast

from alpha import ops
from alpha.core.errors import ConfigError, message
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import Axis, Count, Map, NewShape
from alpha.core.precision import to_storage_dtype
from alpha.core.tensor import Tensor
from alpha.fuse.follow import later
from alpha.nn import init
from alpha.nn.module import Module, Parameter


class Linear(Module):
    """y = x @ weight.T + bias.

    Args:
        in_features, out_features: sizes of the last axis of x and y.
        bias: whether there is one.
        flattened: (H, W, C) where x is a flattened NHWC map of that shape. It changes nothing here: PyTorch flattens
            maps as (C, H, W), so alpha.checkpoint must know in order to bring the columns of the weight into order.
    Shape: x (..., in_features) -> y (..., out_features).
    Parameters: weight (out_features, in_features); bias (out_features,). Both start as U[-b, b),
        b = 1 / sqrt(in_features), as in PyTorch.
    Raises:
        ConfigError: a size is below 1, or `flattened` does not have in_features elements.
    """

    @checked
    def __init__(self, in_features: Count, out_features: Count, bias: bool = True, *,
                 flattened: Map | None = None) -> None:
        if flattened is not None and math.prod(flattened) != in_features:
            raise ConfigError(message("Linear", f"in_features={in_features}, but flattened={flattened} has "
                                      f"{math.prod(flattened)} elements", "make in_features height * width * channels"))
        self.in_features, self.out_features, self.flattened = in_features, out_features, flattened
        self.weight = init.kaiming_uniform_(Parameter(ops.zeros((out_features, in_features))), a=math.sqrt(5.0))
        bound = 1.0 / math.sqrt(in_features)
        self.bias = init.uniform_(Parameter(ops.zeros((out_features,))), -bound, bound) if bias else None

    def forward(self, x: Tensor, activation: str | None = None) -> Tensor:
        """Returns activation(x @ weight.T + bias); activation is None or "relu"."""
        return later(ops.linear, to_storage_dtype(x), self.weight, self.bias, activation=activation)

    def macs(self, x_shape: tuple[int, ...]) -> tuple[int, int]:
        count = math.prod(x_shape[:-1]) * self.in_features * self.out_features  # there is no padding to skip
        return count, count

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}" + (", bias=False" if self.bias is None else "")


class Flatten(Module):
    """Makes one axis of all axes from `start` on.  Shape: (N, H, W, C) -> (N, H * W * C) with start=1."""

    @checked
    def __init__(self, start: Axis = 1) -> None:
        self.start = start

    def forward(self, x: Tensor) -> Tensor:
        return ops.flatten(x, self.start)

    def extra_repr(self) -> str:
        return f"start={self.start}"


class Unflatten(Module):
    """Makes several axes of one; one size may be -1.

    Shape: (N, H * W * C) -> (N, H, W, C) with Unflatten(1, (H, W, C)).
    """

    @checked
    def __init__(self, axis: Axis, unflattened_size: NewShape) -> None:
        self.axis, self.unflattened_size = axis, cast("tuple[int, ...]", unflattened_size)

    def forward(self, x: Tensor) -> Tensor:
        return ops.unflatten(x, self.axis, self.unflattened_size)

    def extra_repr(self) -> str:
        return f"axis={self.axis}, unflattened_size={self.unflattened_size}"


class Identity(Module):
    """y = x."""

    def forward(self, x: Tensor) -> Tensor:
        return x
