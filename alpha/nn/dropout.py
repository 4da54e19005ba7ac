"""Dropout."""

from __future__ import annotations

from alpha import ops
from alpha.errors import ConfigError, message
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

    def __init__(self, p: float = 0.5) -> None:
        if not 0.0 <= p <= 1.0:
            raise ConfigError(message("Dropout", f"p={p} is not in [0, 1]", "pass the share of elements to drop"))
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return ops.dropout(x, self.p, training=self.training)

    def extra_repr(self) -> str:
        return f"p={self.p}"
