"""Dropout."""

from __future__ import annotations

from alpha import ops
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import Share
from alpha.core.tensor import Tensor
from alpha.nn.functional import dropout2d
from alpha.nn.module import Module


class Dropout(Module):
    """In training, y = x / (1 - p) with probability 1 - p and 0 else, per element; in inference y = x.

    Args:
        p: probability of a zero, in [0, 1].
    Shape: any.
    Raises:
        ConfigError: p is not in [0, 1].
    """

    @checked
    def __init__(self, p: Share = 0.5, inplace: bool = False) -> None:
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return ops.dropout(x, self.p, training=self.training)

    def extra_repr(self) -> str:
        return f"p={self.p}"


class Dropout2d(Dropout):
    """In training, whole channels of a sample are 0 with probability p, the others y = x / (1 - p).

    Args: as Dropout.
    Shape: x (N, ..., C), channels last -> y of the same shape.
    """

    def forward(self, x: Tensor) -> Tensor:
        return dropout2d(x, self.p, self.training)


class Dropout1d(Dropout2d):
    """Dropout2d by its other name: x (N, L, C)."""


class Dropout3d(Dropout2d):
    """Dropout2d by its other name: x (N, D, H, W, C)."""
