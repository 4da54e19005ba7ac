"""Losses as layers; the equations stand at the ops (alpha.ops.loss).

`reduction` is "mean", "sum" or "none" everywhere.
"""

from __future__ import annotations

from alpha import ops
from alpha.inputs.arguments import checked
from alpha.inputs.kinds import NonNegative, Reduction, Share
from alpha.nn.module import Module
from alpha.tensor import Tensor


class _Loss(Module):
    """What all losses share: the reduction."""

    @checked
    def __init__(self, reduction: Reduction = "mean") -> None:
        self.reduction = reduction

    def extra_repr(self) -> str:
        return f"reduction={self.reduction!r}"


class CrossEntropyLoss(_Loss):
    """Cross entropy of softmax(logits) and a target.

    Args:
        label_smoothing: share of the target that is spread evenly over all classes, in [0, 1].
    Shape: logits (N, C); target (N,) int32 or int64 labels, or (N, C) probabilities -> (), or (N,) with "none".
    """

    @checked
    def __init__(self, label_smoothing: Share = 0.0, reduction: Reduction = "mean") -> None:
        super().__init__(reduction)
        self.label_smoothing = label_smoothing

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        return ops.cross_entropy(logits, target, label_smoothing=self.label_smoothing, reduction=self.reduction)


class NLLLoss(_Loss):
    """Negative log-likelihood.  Shape: log_probs (N, C), target (N,) labels -> (), or (N,) with "none"."""

    def forward(self, log_probs: Tensor, target: Tensor) -> Tensor:
        return ops.nll_loss(log_probs, target, reduction=self.reduction)


class MSELoss(_Loss):
    """(x - target)^2.  Shape: x and target alike -> (), or theirs with "none"."""

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return ops.mse_loss(x, target, reduction=self.reduction)


class L1Loss(_Loss):
    """|x - target|.  Shape: x and target alike -> (), or theirs with "none"."""

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return ops.l1_loss(x, target, reduction=self.reduction)


class SmoothL1Loss(_Loss):
    """d^2 / (2 beta) where d = |x - target| < beta, else d - beta / 2.

    Args:
        beta: where the square becomes linear.
    Shape: x and target alike -> (), or theirs with "none".
    """

    @checked
    def __init__(self, beta: NonNegative = 1.0, reduction: Reduction = "mean") -> None:
        super().__init__(reduction)
        self.beta = beta

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return ops.smooth_l1_loss(x, target, beta=self.beta, reduction=self.reduction)


class BCELoss(_Loss):
    """Binary cross entropy of probabilities.  Shape: p and target alike -> (), or theirs with "none"."""

    def forward(self, p: Tensor, target: Tensor) -> Tensor:
        return ops.bce_loss(p, target, reduction=self.reduction)


class BCEWithLogitsLoss(_Loss):
    """Binary cross entropy of sigmoid(logits), without overflow.

    Args:
        pos_weight: weight of the positive class, broadcast over the last axis; or None.
    Shape: logits and target alike -> (), or theirs with "none".
    """

    pos_weight: Tensor | None

    @checked
    def __init__(self, pos_weight: Tensor | None = None, reduction: Reduction = "mean") -> None:
        super().__init__(reduction)
        self.register_buffer("pos_weight", pos_weight)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        return ops.bce_with_logits_loss(logits, target, self.pos_weight, reduction=self.reduction)
