"""Dropout."""

from __future__ import annotations

from alpha import ops
from alpha.inputs.arguments import checked
from alpha.inputs.kinds import Share
from alpha.nn.module import Module
from alpha.tensor import Tensor


class Dropout(Module):
    """In training, y = x / (1 - p) with probability 1 - p and 0 else, per element; in inference y = x.

    Args:
        p: probability of a zero, in [0, 1].
    Shape: any.
    Raises:
        ConfigError: p is not in [0, 1].
    """

    @checked
    def __init__(self, p: Share = 0.5) -> None:
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return ops.dropout(x, self.p, training=self.training)

    def extra_repr(self) -> str:
        return f"p={self.p}"
