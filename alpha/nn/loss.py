"""Losses as layers; the equations stand at the ops (alpha.ops.loss).

`reduction` is "mean", "sum" or "none" everywhere. PyTorch has two old arguments in front of it, so it is given by name.
"""

from __future__ import annotations

from typing import Any

from alpha import ops
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import NonNegative, Positive, Reduction, Share, Size, Spread
from alpha.core.tensor import Tensor
from alpha.nn.module import Module
from alpha.ops.loss.imbalance import ToShares


class _Loss(Module):
    """Base of losses: the reduction, which is given by name."""

    @checked
    def __init__(self, *, reduction: Reduction = "mean") -> None:
        self.reduction = reduction

    def extra_repr(self) -> str:
        return f"reduction={self.reduction!r}"


class CrossEntropyLoss(_Loss):
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


class NLLLoss(_Loss):
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


class HuberLoss(_Loss):
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
    def __init__(self, *, beta: NonNegative = 1.0, reduction: Reduction = "mean") -> None:
        super().__init__(reduction=reduction)
        self.beta = beta

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return ops.smooth_l1_loss(x, target, beta=self.beta, reduction=self.reduction)


class BCELoss(_Loss):
    """Binary cross entropy of probabilities.

    Args:
        weight: of each element's loss, broadcast to the shape of p; or None.
    Shape: p and target alike -> (), or theirs with "none".
    """

    weight: Tensor | None

    @checked
    def __init__(self, weight: Tensor | None = None, *, reduction: Reduction = "mean") -> None:
        super().__init__(reduction=reduction)
        self.register_buffer("weight", weight)

    def forward(self, p: Tensor, target: Tensor) -> Tensor:
        return ops.bce_loss(p, target, self.weight, reduction=self.reduction)


class BCEWithLogitsLoss(_Loss):
    """Binary cross entropy of sigmoid(logits), without overflow.

    Args:
        weight: of each element's loss, broadcast to the shape of the logits; or None.
        pos_weight: weight of the positive class, broadcast over the last axis; or None.
    Shape: logits and target alike -> (), or theirs with "none".
    """

    weight: Tensor | None
    pos_weight: Tensor | None

    @checked
    def __init__(self, weight: Tensor | None = None, *, pos_weight: Tensor | None = None,
                 reduction: Reduction = "mean") -> None:
        super().__init__(reduction=reduction)
        self.register_buffer("weight", weight)
        self.register_buffer("pos_weight", pos_weight)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        return ops.bce_with_logits_loss(logits, target, self.weight, pos_weight=self.pos_weight,
                                        reduction=self.reduction)


class FocalLoss(_Loss):
    """Binary cross entropy of sigmoid(logits) in which elements that are right already count less.

    Args:
        alpha: weight of the targets of 1, the others' is 1 - alpha; None: both are 1.
        gamma: how much less: at least 0.
    Shape: logits and target alike -> (), or theirs with "none".  See alpha.ops.focal_loss.
    """

    @checked
    def __init__(self, alpha: Share | None = 0.25, gamma: NonNegative = 2.0, *, reduction: Reduction = "mean") -> None:
        super().__init__(reduction=reduction)
        self.alpha, self.gamma = alpha, gamma

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        return ops.focal_loss(logits, target, self.alpha, self.gamma, reduction=self.reduction)


class DiceLoss(_Loss):
    """1 - 2 * sum(shares * target) / sum(shares + target), over the pixels.

    Args:
        activation: "sigmoid", "softmax" or None: the function that makes shares of x.
        eps: added to both sums, above 0.
    Shape: x (N, ..., C), target alike, or labels (N, ...) -> (), or (N, C) with "none".  See alpha.ops.dice_loss.
    """

    @checked
    def __init__(self, activation: ToShares = "sigmoid", eps: Positive = 1.0, *, reduction: Reduction = "mean"
                 ) -> None:
        super().__init__(reduction=reduction)
        self.activation, self.eps = activation, eps

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return ops.dice_loss(x, target, self.activation, self.eps, reduction=self.reduction)


class CTCLoss(_Loss):
    """-log of the probability that a sequence reads as its labels, repeats joined and blanks left out.

    Args:
        blank: the class that stands for no label.
        zero_infinity: whether a sequence that is too short for its labels counts as 0.
    Shape: log_probs (T, N, C), targets (N, S), input_lengths (N,), target_lengths (N,) -> (), or (N,) with "none".  See
        alpha.ops.ctc_loss.
    """

    @checked
    def __init__(self, blank: Size = 0, reduction: Reduction = "mean", zero_infinity: bool = False) -> None:
        super().__init__(reduction=reduction)
        self.blank, self.zero_infinity = blank, zero_infinity

    def forward(self, log_probs: Tensor, targets: Any, input_lengths: Any, target_lengths: Any) -> Tensor:
        return ops.ctc_loss(log_probs, targets, input_lengths, target_lengths, self.blank, self.reduction,
                            self.zero_infinity)
