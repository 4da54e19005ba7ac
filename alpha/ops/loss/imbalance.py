"""Losses for classes of unequal sizes, composed of other ops: focal and dice."""

from __future__ import annotations

from typing import Annotated, Any

from alpha.core.errors import DTypeError, ShapeError, message
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import Choice, Either, NonNegative, Nothing, Positive, Reduction, Share
from alpha.core.table import public
from alpha.core.tensor import Tensor
from alpha.ops.activation import sigmoid, softmax, softplus
from alpha.ops.checks import check_target
from alpha.ops.index import one_hot
from alpha.ops.loss import reduced
from alpha.ops.reduce import widened

ToShares = Annotated[Any, Either([Nothing(), Choice("sigmoid", "softmax")], 'pass "sigmoid", "softmax" or None')]


@public(functional=True)
@checked
def focal_loss(x: Tensor, target: Tensor, alpha: Share | None = 0.25, gamma: NonNegative = 2.0, *,
               reduction: Reduction = "mean") -> Tensor:
    """a * (1 - p_t)^gamma * binary cross entropy of sigmoid(x), p_t = p where the target is 1, else 1 - p.

    a is alpha where the target is 1, else 1 - alpha. Classes that exclude each other have their one-hot targets.
    Args:
        x: logits, any shape; float.
        target: in [0, 1], shape of x; float.
        alpha: weight of the targets of 1; None: a is 1.
        gamma: how much less an element counts that is right already; at least 0.
        reduction: "mean", "sum" or "none".
    Raises:
        ShapeError: the shapes differ.  DTypeError: the target has integers.
    Source: Lin et al., arXiv 1708.02002.
    """
    check_target("focal_loss", x, target)
    x, target = widened(x), widened(target)
    p = sigmoid(x)
    loss = (1.0 - target) * softplus(x) + target * softplus(-x)
    if gamma:
        loss = loss * (p * (1.0 - target) + (1.0 - p) * target) ** gamma
    if alpha is not None:
        loss = loss * (target * alpha + (1.0 - target) * (1.0 - alpha))
    return reduced(loss, reduction)


@public(functional=True)
@checked
def dice_loss(x: Tensor, target: Tensor, activation: ToShares = "sigmoid", eps: Positive = 1.0, *,
              reduction: Reduction = "mean") -> Tensor:
    """1 - (2 * sum(p * target) + eps) / (sum(p) + sum(target) + eps) of each sample and class, over the pixels.

    Args:
        x: shape (N, ..., C), channels last; float.
        target: shape of x, in [0, 1]; or labels (N, ...), int32 or int64.
        activation: what makes shares p of x: "sigmoid", "softmax" over the channels, or None: x has them.
        eps: what keeps a class without pixels from dividing by 0.
        reduction: "mean", "sum" or "none", which leaves shape (N, C).
    Raises:
        ShapeError: the shapes do not fit.  DTypeError: the target has other integers.  DataError: a label is no class.
    Source: Milletari, Navab and Ahmadi, arXiv 1606.04797; sums of p itself, not of its squares.
    """
    if x.ndim < 2 or target.shape not in (x.shape, x.shape[:-1]):
        raise ShapeError(message("dice_loss", f"x has shape {x.shape}, target {target.shape}", "pass x of shape "
                                 "(N, ..., C), and a target of that shape, or labels (N, ...)"))
    if target.shape == x.shape:
        check_target("dice_loss", x, target)
        wanted = target
    elif target.dtype in ("int32", "int64"):
        wanted = one_hot(target, x.shape[-1]).astype(x.dtype)
    else:
        raise DTypeError(message("dice_loss", f"labels have dtype {target.dtype}, int32 or int64 is needed",
                                 'convert them: target.astype("int64"); shares have the shape of x'))
    p, wanted = widened(x), widened(wanted)
    p = sigmoid(p) if activation == "sigmoid" else softmax(p) if activation == "softmax" else p
    pixels = tuple(range(1, x.ndim - 1))
    both, size = p * wanted, p + wanted
    if pixels:
        both, size = both.sum(pixels), size.sum(pixels)
    return reduced(1.0 - (both * 2.0 + eps) / (size + eps), reduction)
