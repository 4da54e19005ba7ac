"""Losses as layers; the equations stand at the ops (alpha.ops.loss).

`reduction` is "mean", "sum" or "none" everywhere. PyTorch has two old arguments in front of it, so it is given by name.
"""

from __future__ import annotations

from alpha import ops
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import NonNegative, Positive, Reduction, Share, Spread
from alpha.core.tensor import Tensor
from alpha.nn.module import Module


class Loss(Module):
    """What all losses share: the reduction, which is given by name."""

    @checked
    def __init__(self, *, reduction: Reduction = "mean") -> None:
        self.reduction = reduction

    def extra_repr(self) -> str:
        return f"reduction={self.reduction!r}"


class CrossEntropyLoss(Loss):
    """Cross entropy of softmax(logits) and a target.

    Args:
        weight: of each class, shape (C,); or None.
        ignore_index: label whose positions count for nothing; None: there is none.
        reduction: "mean", "sum" or "none".
        label_smoothing: share of the target that is spread evenly over all classes, in [0, 1].
    Shape: logits (N, C) or (N, ..., C), channels last; target (N, ...) int32 or int64 labels, or probabilities of the
        shape of logits -> (), or (N, ...) with "none".
    """

    weight: Tensor | None

    @checked
    def __init__(self, weight: Tensor | None = None, *, ignore_index: int | None = -100, reduction: Reduction = "mean",
                 label_smoothing: Share = 0.0) -> None:
        super().__init__(reduction=reduction)
        self.label_smoothing, self.ignore_index = label_smoothing, ignore_index
        self.register_buffer("weight", weight)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        return ops.cross_entropy(logits, target, self.weight, ignore_index=self.ignore_index,
                                 label_smoothing=self.label_smoothing, reduction=self.reduction)


class NLLLoss(Loss):
    """Negative log-likelihood.

    Args:
        weight, ignore_index: as in CrossEntropyLoss.
    Shape: log_probs (N, C) or (N, ..., C), target (N, ...) labels -> (), or (N, ...) with "none".
    """

    weight: Tensor | None

    @checked
    def __init__(self, weight: Tensor | None = None, *, ignore_index: int | None = -100, reduction: Reduction = "mean"
                 ) -> None:
        super().__init__(reduction=reduction)
        self.ignore_index = ignore_index
        self.register_buffer("weight", weight)

    def forward(self, log_probs: Tensor, target: Tensor) -> Tensor:
        return ops.nll_loss(log_probs, target, self.weight, ignore_index=self.ignore_index, reduction=self.reduction)


class HuberLoss(Loss):
    """d^2 / 2 where d = |x - target| < delta, else delta * (d - delta / 2).

    Args:
        delta: where the square becomes linear, above 0.
    Shape: x and target alike -> (), or theirs with "none".
    """

    @checked
    def __init__(self, reduction: Reduction = "mean", delta: Positive = 1.0) -> None:
        super().__init__(reduction=reduction)
        self.delta = delta

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return ops.huber_loss(x, target, delta=self.delta, reduction=self.reduction)


class KLDivLoss(Module):
    """target * (log(target) - log_probs).

    Args:
        reduction: "batchmean", "mean", "sum" or "none": see alpha.ops.kl_div.
        log_target: whether the target has logarithms.
    Shape: log_probs and target alike -> (), or theirs with "none".
    """

    @checked
    def __init__(self, *, reduction: Spread = "mean", log_target: bool = False) -> None:
        self.reduction, self.log_target = reduction, log_target

    def forward(self, log_probs: Tensor, target: Tensor) -> Tensor:
        return ops.kl_div(log_probs, target, log_target=self.log_target, reduction=self.reduction)

    def extra_repr(self) -> str:
        return f"reduction={self.reduction!r}"


class MSELoss(Loss):
    """(x - target)^2.  Shape: x and target alike -> (), or theirs with "none"."""

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return ops.mse_loss(x, target, reduction=self.reduction)


class L1Loss(Loss):
    """|x - target|.  Shape: x and target alike -> (), or theirs with "none"."""

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return ops.l1_loss(x, target, reduction=self.reduction)


class SmoothL1Loss(Loss):
    """d^2 / (2 beta) where d = |x - target| < beta, else d - beta / 2.

    Args:
        beta: where the square becomes linear.
    Shape: x and target alike -> (), or theirs with "none".
    """

    @checked
    def __init__(self, *, beta: NonNegative = 1.0, reduction: Reduction = "mean") -> None:
        super().__init__(reduction=reduction)
        self.beta = beta

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return ops.smooth_l1_loss(x, target, beta=self.beta, reduction=self.reduction)


class BCELoss(Loss):
    """Binary cross entropy of probabilities.  Shape: p and target alike -> (), or theirs with "none"."""

    def forward(self, p: Tensor, target: Tensor) -> Tensor:
        return ops.bce_loss(p, target, reduction=self.reduction)


class BCEWithLogitsLoss(Loss):
    """Binary cross entropy of sigmoid(logits), without overflow.

    Args:
        pos_weight: weight of the positive class, broadcast over the last axis; or None.
    Shape: logits and target alike -> (), or theirs with "none".
    """

    pos_weight: Tensor | None

    @checked
    def __init__(self, *, pos_weight: Tensor | None = None, reduction: Reduction = "mean") -> None:
        super().__init__(reduction=reduction)
        self.register_buffer("pos_weight", pos_weight)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        return ops.bce_with_logits_loss(logits, target, pos_weight=self.pos_weight, reduction=self.reduction)
