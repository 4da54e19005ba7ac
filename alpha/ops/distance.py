"""How far vectors are apart."""

from __future__ import annotations

from alpha.core.errors import ShapeError, message
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import Axis, NonNegative, Order, PositiveOrInf
from alpha.core.table import public
from alpha.core.tensor import Tensor
from alpha.ops.elementwise import abs as absolute
from alpha.ops.elementwise import broadcast_shape, clip, gt, sqrt, where
from alpha.ops.reduce import normal_axis, vector_norm, widened
from alpha.ops.shape import unsqueeze


@public(functional=True)
@checked
def cosine_similarity(x1: Tensor, x2: Tensor, axis: Axis = 1, eps: NonNegative = 1e-8) -> Tensor:
    """y = sum of x1 * x2 over an axis, by the product of their lengths, each at least eps.

    Args:
        x1, x2: shapes that broadcast; float.
        axis: of the vectors, of what they broadcast to; 1 as in PyTorch, of maps (N, H, W, C) pass -1.
    Raises:
        ShapeError: the shapes do not broadcast, or the axis does not exist.
    """
    shape = broadcast_shape("cosine_similarity", x1=x1.shape, x2=x2.shape)
    k = normal_axis(axis, len(shape), "cosine_similarity")
    a, b = (widened(x).expand(shape) for x in (x1, x2))
    a, b = (t / clip(vector_norm(t, 2, k, True), eps, None) for t in (a, b))
    return (a * b).sum(k).astype(x1.dtype)


@public(functional=True)
@checked
def pairwise_distance(x1: Tensor, x2: Tensor, p: Order = 2.0, eps: NonNegative = 1e-6, keepdims: bool = False
                      ) -> Tensor:
    """y = the p-norm of x1 - x2 + eps over the last axis.

    Args:
        x1, x2: shapes (..., D) that broadcast; float.
        p: as of vector_norm.
    Raises:
        ShapeError: the shapes do not broadcast, or have no axis.
    """
    d = widened(x1) - widened(x2) + eps
    return vector_norm(d, p, -1, keepdims).astype(x1.dtype)


@public(top=True)
@checked
def cdist(x1: Tensor, x2: Tensor, p: PositiveOrInf = 2.0) -> Tensor:
    """y[..., i, j] = (sum over k of |x1[..., i, k] - x2[..., j, k]|^p)^(1/p): how far each row is from each row.

    Args:
        x1: shape (..., P, D); float.
        x2: shape (..., R, D), whose leading axes broadcast with those of x1.
        p: above 0; infinity: the largest difference.
    Returns:
        y of shape (..., P, R). Where two rows are equal the gradient is 0.
    Raises:
        ShapeError: the shapes do not fit.
    The P * R * D differences exist at once.
    """
    if x1.ndim < 2 or x2.ndim < 2 or x1.shape[-1] != x2.shape[-1]:
        raise ShapeError(message("cdist", f"x1 has shape {x1.shape}, x2 {x2.shape}", "pass rows (..., P, D) and "
                                 "(..., R, D) of one length D"))
    broadcast_shape("cdist", x1=(*x1.shape[:-2], 1, 1), x2=(*x2.shape[:-2], 1, 1))
    d = absolute(unsqueeze(widened(x1), -2) - unsqueeze(widened(x2), -3))
    if p == float("inf"):
        return d.max(-1).astype(x1.dtype)
    if p == 1:
        return d.sum(-1).astype(x1.dtype)
    powers = d * d if p == 2 else where(gt(d, 0.0), where(gt(d, 0.0), d, 1.0) ** p, 0.0)
    total = powers.sum(-1)
    apart = gt(total, 0.0)
    safe = where(apart, total, 1.0)
    return where(apart, sqrt(safe) if p == 2 else safe ** (1.0 / p), 0.0).astype(x1.dtype)
