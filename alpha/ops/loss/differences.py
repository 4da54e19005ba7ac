"""Losses of the differences of numbers and their targets: squares, absolute values, and both."""

from __future__ import annotations

from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import NonNegative, Positive, Reduction
from alpha.core.table import public
from alpha.core.tensor import Tensor
from alpha.ops.loss import checked_pair, reduced


@public(functional=True)
@checked
def mse_loss(x: Tensor, target: Tensor, *, reduction: Reduction = "mean") -> Tensor:
    """(x - target)^2.  x and target: one shape; float.  Raises ShapeError, ConfigError."""
    x, target = checked_pair("mse_loss", x, target)
    d = x - target
    return reduced(d * d, reduction)


@public(functional=True)
@checked
def l1_loss(x: Tensor, target: Tensor, *, reduction: Reduction = "mean") -> Tensor:
    """|x - target|; the gradient at NaN is 0.  x and target: one shape; float.  Raises ShapeError, ConfigError."""
    x, target = checked_pair("l1_loss", x, target)
    return reduced((x - target).abs(), reduction)


@public(functional=True)
@checked
def smooth_l1_loss(x: Tensor, target: Tensor, *, beta: NonNegative = 1.0, reduction: Reduction = "mean") -> Tensor:
    """d^2 / (2 beta) where d = |x - target| < beta, else d - beta / 2; the gradient at NaN is NaN, but 0 for beta 0.

    Args:
        x, target: one shape; float.
        beta: where the square becomes linear, at least 0, finite; 0 makes it l1_loss.
        reduction: "mean", "sum" or "none".
    Raises:
        ShapeError: the shapes differ.
        ConfigError: beta or reduction is out of range.
    """
    x, target = checked_pair("smooth_l1_loss", x, target)
    d = x - target
    if beta == 0:
        return reduced(d.abs(), reduction)
    near = d.clip(-beta, beta)
    return reduced((near / beta) * (d - near * 0.5), reduction)


@public(functional=True)
@checked
def huber_loss(x: Tensor, target: Tensor, *, delta: Positive = 1.0, reduction: Reduction = "mean") -> Tensor:
    """d^2 / 2 where d = |x - target| < delta, else delta * (d - delta / 2): delta * smooth_l1_loss of beta = delta.

    Args:
        x, target: one shape; float.
        delta: where the square becomes linear, above 0.
        reduction: "mean", "sum" or "none".
    Raises:
        ShapeError: the shapes differ.  ConfigError: delta or reduction is out of range.
    """
    x, target = checked_pair("huber_loss", x, target)
    return smooth_l1_loss(x, target, beta=delta, reduction=reduction) * delta
