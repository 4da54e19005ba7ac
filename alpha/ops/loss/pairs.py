"""Losses of pairs, margins, counts and variances, composed of other ops; see alpha.ops.loss for the others.

`reduction` is "mean", "sum" or "none" everywhere. Arguments of 16 bits are converted to float32, and the loss is
float32.
"""

from __future__ import annotations

from math import log as log_of
from math import pi
from typing import Annotated

from alpha.core.errors import DataError, ShapeError, message
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import Finite, NonNegative, Order, Positive, Reduction, Whole
from alpha.core.table import public
from alpha.core.tensor import Tensor
from alpha.ops.activation import relu, softplus
from alpha.ops.distance import pairwise_distance
from alpha.ops.elementwise import broadcast_shape, clip, eq, exp, gt, log, minimum, ne, sqrt, where
from alpha.ops.loss import check_labels, label_mask, reduced
from alpha.ops.reduce import widened
from alpha.ops.shape import reshape, take

Power = Annotated[int, Whole(1, high=2)]
EPSILON = 1e-12     # beside the squares of lengths


def _alike(where_: str, **tensors: Tensor) -> list[Tensor]:
    """Returns the tensors as losses are computed with them.  Raises ShapeError unless they broadcast."""
    broadcast_shape(where_, **{name: t.shape for name, t in tensors.items()})
    first = next(iter(tensors.values()))
    return [widened(t if t.is_floating_point else t.astype(first.dtype)) for t in tensors.values()]


# ---- distances -------------------------------------------------------------------------------------------------------


@public(functional=True)
@checked
def triplet_margin_loss(anchor: Tensor, positive: Tensor, negative: Tensor, margin: Positive = 1.0, p: Order = 2.0,
                        eps: NonNegative = 1e-6, swap: bool = False, *, reduction: Reduction = "mean") -> Tensor:
    """max(d(anchor, positive) - d(anchor, negative) + margin, 0), d as of pairwise_distance.

    Args:
        anchor, positive, negative: shapes (..., D) that broadcast; float.
        margin: by how much the negative has to be further away.
        p, eps: see pairwise_distance.
        swap: whether d(positive, negative) counts where it is smaller than d(anchor, negative).
        reduction: "mean", "sum" or "none", which leaves shape (...).
    Raises:
        ShapeError: the shapes do not broadcast.
    """
    a, near, far = _alike("triplet_margin_loss", anchor=anchor, positive=positive, negative=negative)
    apart = pairwise_distance(a, far, p, eps)
    if swap:
        apart = minimum(apart, pairwise_distance(near, far, p, eps))
    return reduced(relu(pairwise_distance(a, near, p, eps) - apart + margin), reduction)


@public(functional=True)
@checked
def cosine_embedding_loss(x1: Tensor, x2: Tensor, target: Tensor, margin: Finite = 0.0, *,
                          reduction: Reduction = "mean") -> Tensor:
    """1 - cos(x1, x2) where the target is 1, max(cos(x1, x2) - margin, 0) where it is -1.

    Args:
        x1, x2: shape (N, D) or (D,); float.
        target: 1 and -1.  Shape (N,) or (); any dtype.
        reduction: "mean", "sum" or "none".
    Raises:
        ShapeError: the shapes do not fit.
    """
    if x1.shape != x2.shape or x1.ndim not in (1, 2) or target.shape != x1.shape[:-1]:
        raise ShapeError(message("cosine_embedding_loss", f"x1 has shape {x1.shape}, x2 {x2.shape}, target "
                                 f"{target.shape}", "pass two of shape (N, D), and a target of shape (N,)"))
    a, b = widened(x1), widened(x2)
    cosine = (a * b).sum(-1) / sqrt(((a * a).sum(-1) + EPSILON) * ((b * b).sum(-1) + EPSILON))
    loss = where(eq(target, 1), 1.0 - cosine, where(eq(target, -1), relu(cosine - margin), cosine * 0.0))
    return reduced(loss, reduction)


# ---- margins ---------------------------------------------------------------------------------------------------------


@public(functional=True)
@checked
def margin_ranking_loss(x1: Tensor, x2: Tensor, target: Tensor, margin: Finite = 0.0, *,
                        reduction: Reduction = "mean") -> Tensor:
    """max(margin - target * (x1 - x2), 0): whether x1 is above x2 (target 1), or below (-1).

    Args:
        x1, x2, target: shapes that broadcast; float, target any dtype.
        reduction: "mean", "sum" or "none".
    Raises:
        ShapeError: the shapes do not broadcast.
    """
    a, b, sign = _alike("margin_ranking_loss", x1=x1, x2=x2, target=target)
    return reduced(relu(margin - sign * (a - b)), reduction)


@public(functional=True)
@checked
def hinge_embedding_loss(x: Tensor, target: Tensor, margin: Finite = 1.0, *, reduction: Reduction = "mean") -> Tensor:
    """x where the target is 1, max(margin - x, 0) where it is -1.

    Args:
        x: distances; float.
        target: 1 and -1; a shape that broadcasts; any dtype.
        reduction: "mean", "sum" or "none".
    Raises:
        ShapeError: the shapes do not broadcast.
    """
    x, sign = _alike("hinge_embedding_loss", x=x, target=target)
    return reduced(where(ne(sign, 1.0), relu(margin - x), 0.0) + where(ne(sign, -1.0), x, 0.0), reduction)


@public(functional=True)
@checked
def soft_margin_loss(x: Tensor, target: Tensor, *, reduction: Reduction = "mean") -> Tensor:
    """ln(1 + e^(-target * x)), without overflow: the logistic loss of targets 1 and -1.

    Args:
        x: float.
        target: 1 and -1; a shape that broadcasts; any dtype.
        reduction: "mean", "sum" or "none".
    Raises:
        ShapeError: the shapes do not broadcast.
    """
    x, sign = _alike("soft_margin_loss", x=x, target=target)
    return reduced(softplus(-sign * x), reduction)


@public(functional=True)
@checked
def multi_margin_loss(x: Tensor, target: Tensor, p: Power = 1, margin: Finite = 1.0, weight: Tensor | None = None, *,
                      reduction: Reduction = "mean") -> Tensor:
    """1/C * sum over the other classes c of max(margin - x[n, target[n]] + x[n, c], 0)^p * weight[target[n]].

    Args:
        x: scores.  Shape (N, C), or (C,); float.
        target: labels, int32 or int64.  Shape (N,), or ().
        p: 1 or 2.
        weight: of each class.  Shape (C,); None stands for 1.
        reduction: "mean" over N, "sum" or "none".
    Raises:
        ShapeError: the shapes do not fit.  DTypeError: target has no integers.
        DataError: a label is outside [0, C).
    """
    if x.ndim == 1 and target.ndim == 0:
        loss = multi_margin_loss(reshape(x, (1, -1)), reshape(target, (1,)), p, margin, weight, reduction=reduction)
        return loss if reduction != "none" else reshape(loss, ())
    check_labels("multi_margin_loss", x, target)
    classes = x.shape[1]
    if weight is not None and weight.shape != (classes,):
        raise ShapeError(message("multi_margin_loss", f"weight has shape {weight.shape}, there are {classes} classes",
                                 f"pass a weight of shape {(classes,)}", x=x.shape))
    x, mine = widened(x), label_mask(target, classes=classes, where="multi_margin_loss")
    z = relu(margin + x - where(mine, x, 0.0).sum(1, True))
    loss = where(mine, 0.0, z * z if p == 2 else z).sum(1) / classes
    return reduced(loss if weight is None else loss * take(widened(weight), target), reduction)


# ---- distributions ---------------------------------------------------------------------------------------------------


@public(functional=True)
@checked
def poisson_nll_loss(x: Tensor, target: Tensor, log_input: bool = True, full: bool = False, *, eps: Positive = 1e-8,
                     reduction: Reduction = "mean") -> Tensor:
    """Negative log-likelihood of counts of a Poisson distribution: e^x - target * x.

    Args:
        x: logarithms of the expected counts, or with log_input=False these, of which x - target * ln(x + eps) is the
            loss; float.
        target: counts; a shape that broadcasts; any dtype.
        full: whether to add Stirling's approximation of ln(target!), where the target is above 1.
        reduction: "mean", "sum" or "none".
    Raises:
        ShapeError: the shapes do not broadcast.
    """
    x, target = _alike("poisson_nll_loss", x=x, target=target)
    loss = exp(x) - target * x if log_input else x - target * log(x + eps)
    if full:
        many = gt(target, 1.0)
        some = where(many, target, 1.0)
        loss = loss + where(many, some * log(some) - some + log(some * (2 * pi)) * 0.5, 0.0)
    return reduced(loss, reduction)


@public(functional=True)
@checked
def gaussian_nll_loss(x: Tensor, target: Tensor, var: Tensor | NonNegative, full: bool = False, eps: Positive = 1e-6,
                      *, reduction: Reduction = "mean") -> Tensor:
    """Negative log-likelihood of a normal distribution: (ln(v) + (x - target)^2 / v) / 2, v = max(var, eps).

    Args:
        x: means; float.
        target: shape of x, or one that broadcasts; float.
        var: variances: shape of x, or its last axis of length 1, or without it; or a number. Its gradient is that of v.
        full: whether to add ln(2 pi) / 2.
        reduction: "mean", "sum" or "none".
    Raises:
        ShapeError: the shapes do not fit.  DataError: a variance is below 0; on a GPU it counts as eps.
    """
    x, target = _alike("gaussian_nll_loss", x=x, target=target)
    if isinstance(var, Tensor):
        if var.shape == x.shape[:-1] != x.shape:
            var = reshape(var, (*var.shape, 1))
        if var.shape not in (x.shape, (*x.shape[:-1], 1)):
            raise ShapeError(message("gaussian_nll_loss", f"var has shape {var.shape}, x has {x.shape}",
                                     "pass a variance for each element, or for each row"))
        if var.device == "cpu" and (var.detach().numpy() < 0).any():
            raise DataError(message("gaussian_nll_loss", f"a variance is {var.detach().min().item()}",
                                    "pass variances of at least 0, softplus(v) say"))
        wide = widened(var)
        v = wide + (clip(wide, eps, None) - wide).detach()
        loss = (log(v) + (x - target) ** 2 / v) * 0.5
    else:
        v = max(var, eps)
        loss = ((x - target) ** 2 / v + log_of(v)) * 0.5
    return reduced(loss + 0.5 * log_of(2 * pi) if full else loss, reduction)
