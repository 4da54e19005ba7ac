"""Distances of vectors, and losses of pairs, margins and distributions; the equations stand at the ops.

`reduction` is "mean", "sum" or "none" everywhere.
"""

from __future__ import annotations

from alpha import ops
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import Axis, Finite, NonNegative, Order, Positive, Reduction
from alpha.core.tensor import Tensor
from alpha.nn.loss import _Loss
from alpha.nn.module import Module
from alpha.ops.loss.pairs import Power


class CosineSimilarity(Module):
    """Cosine of the angles between vectors along an axis; 1 as in PyTorch, of maps (N, H, W, C) pass -1.

    Shape: x1 and x2 that broadcast -> theirs without the axis.
    """

    @checked
    def __init__(self, axis: Axis = 1, eps: NonNegative = 1e-8) -> None:
        self.axis, self.eps = axis, eps

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        return ops.cosine_similarity(x1, x2, self.axis, self.eps)


class PairwiseDistance(Module):
    """The p-norm of x1 - x2 + eps over the last axis.  Shape: (..., D) -> (...), or (..., 1) with keepdims."""

    @checked
    def __init__(self, p: Order = 2.0, eps: NonNegative = 1e-6, keepdims: bool = False) -> None:
        self.p, self.eps, self.keepdims = p, eps, keepdims

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        return ops.pairwise_distance(x1, x2, self.p, self.eps, self.keepdims)


class TripletMarginLoss(_Loss):
    """max(d(anchor, positive) - d(anchor, negative) + margin, 0).  Shape: three (..., D) -> (), or (...)."""

    @checked
    def __init__(self, margin: Positive = 1.0, p: Order = 2.0, eps: NonNegative = 1e-6, swap: bool = False,
                 *, reduction: Reduction = "mean") -> None:
        super().__init__(reduction=reduction)
        self.margin, self.p, self.eps, self.swap = margin, p, eps, swap

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        return ops.triplet_margin_loss(anchor, positive, negative, self.margin, self.p, self.eps, self.swap,
                                       reduction=self.reduction)


class _Margin(_Loss):
    """Base of losses with a margin."""

    margin: float

    @checked
    def __init__(self, margin: Finite = 0.0, *, reduction: Reduction = "mean") -> None:
        super().__init__(reduction=reduction)
        self.margin = margin

    def extra_repr(self) -> str:
        return f"margin={self.margin}, {super().extra_repr()}"


class CosineEmbeddingLoss(_Margin):
    """1 - cos(x1, x2) where the target is 1, max(cos(x1, x2) - margin, 0) where it is -1.

    Shape: x1 and x2 (N, D), target (N,) -> (), or (N,) with "none".
    """

    def forward(self, x1: Tensor, x2: Tensor, target: Tensor) -> Tensor:
        return ops.cosine_embedding_loss(x1, x2, target, self.margin, reduction=self.reduction)


class MarginRankingLoss(_Margin):
    """max(margin - target * (x1 - x2), 0), target 1 or -1.  Shape: all three that broadcast -> (), or that."""

    def forward(self, x1: Tensor, x2: Tensor, target: Tensor) -> Tensor:
        return ops.margin_ranking_loss(x1, x2, target, self.margin, reduction=self.reduction)


class HingeEmbeddingLoss(_Margin):
    """x where the target is 1, max(margin - x, 0) where it is -1.  Shape: x and target alike -> (), or theirs."""

    @checked
    def __init__(self, margin: Finite = 1.0, *, reduction: Reduction = "mean") -> None:
        super().__init__(margin, reduction=reduction)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return ops.hinge_embedding_loss(x, target, self.margin, reduction=self.reduction)


class SoftMarginLoss(_Loss):
    """ln(1 + e^(-target * x)), target 1 or -1.  Shape: x and target alike -> (), or theirs with "none"."""

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return ops.soft_margin_loss(x, target, reduction=self.reduction)


class MultiMarginLoss(_Margin):
    """By how much scores of other classes exceed the right one's less a margin, to the power of p (1 or 2).

    Shape: x (N, C), target (N,) labels -> (), or (N,) with "none".
    """

    weight: Tensor | None

    @checked
    def __init__(self, p: Power = 1, margin: Finite = 1.0, weight: Tensor | None = None,
                 *, reduction: Reduction = "mean") -> None:
        super().__init__(margin, reduction=reduction)
        self.p = p
        self.register_buffer("weight", weight)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return ops.multi_margin_loss(x, target, self.p, self.margin, self.weight, reduction=self.reduction)


class PoissonNLLLoss(_Loss):
    """e^x - target * x: see alpha.ops.poisson_nll_loss.  Shape: x and target alike -> (), or theirs with "none"."""

    @checked
    def __init__(self, log_input: bool = True, full: bool = False, *, eps: Positive = 1e-8,
                 reduction: Reduction = "mean") -> None:
        super().__init__(reduction=reduction)
        self.log_input, self.full, self.eps = log_input, full, eps

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return ops.poisson_nll_loss(x, target, self.log_input, self.full, eps=self.eps, reduction=self.reduction)


class GaussianNLLLoss(_Loss):
    """(ln(v) + (x - target)^2 / v) / 2, v = max(var, eps): see alpha.ops.gaussian_nll_loss.

    Shape: x and target alike, var alike or with a last axis of 1 -> (), or x's with "none".
    """

    @checked
    def __init__(self, *, full: bool = False, eps: Positive = 1e-6, reduction: Reduction = "mean") -> None:
        super().__init__(reduction=reduction)
        self.full, self.eps = full, eps

    def forward(self, x: Tensor, target: Tensor, var: Tensor | float) -> Tensor:
        return ops.gaussian_nll_loss(x, target, var, self.full, self.eps, reduction=self.reduction)
