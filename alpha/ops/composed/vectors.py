"""Norms of vectors and how far they are apart, composed of other ops."""

from __future__ import annotations

import numpy as np

from alpha.core.errors import ShapeError, message
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import Axis, Count, NonNegative, Order, PositiveOrInf
from alpha.core.tensor import Tensor
from alpha.ops.elementwise import abs as absolute
from alpha.ops.elementwise import broadcast_shape, clip, gt, sqrt, where
from alpha.ops.logic import rsqrt
from alpha.ops.reduce import normal_axis, scale_beyond, vector_norm, widened
from alpha.ops.shape import unsqueeze


@checked
def rms_norm(x: Tensor, gamma: Tensor | None = None, *, normalized_ndim: Count = 1, eps: NonNegative | None = None
             ) -> Tensor:
    """y = x / sqrt(mean of x^2 + eps) * gamma, the mean over the last axes of each sample.

    Args:
        x: shape (..., *normalized); float.
        gamma: scale.  Shape normalized; dtype of x, or float32 where x has 16 bits; None stands for 1.
        normalized_ndim: how many axes `normalized` has, at least 1.
        eps: added to the mean; None: the distance of 1 to the next float32 (of float64: float64).
    Returns:
        y of the shape of x; computed in float32 where x has 16 bits, and rounded once.
    Raises:
        ShapeError: x has fewer axes or none of its values, or gamma has another shape.
    Source: arXiv 1910.07467.
    """
    if not normalized_ndim <= x.ndim or 0 in x.shape[-normalized_ndim:]:
        raise ShapeError(message("rms_norm", f"cannot normalise {normalized_ndim} axes of shape {x.shape}",
                                 "choose normalized_ndim from 1 to the number of axes of x, none of them empty"))
    if gamma is not None and gamma.shape != x.shape[-normalized_ndim:]:
        raise ShapeError(message("rms_norm", f"gamma has shape {gamma.shape}, {x.shape[-normalized_ndim:]} is needed",
                                 f"pass gamma of shape {x.shape[-normalized_ndim:]}", x=x.shape))
    wide = widened(x)
    if eps is None:
        eps = float(np.finfo(wide.dtype).eps)
    axes = tuple(range(-normalized_ndim, 0))
    squares = (wide * wide).mean(axes, True)
    if (scale := scale_beyond(wide, squares, axes)) is None:
        y = wide * rsqrt(squares + eps)
    else:
        wide = wide * scale
        y = wide * rsqrt((wide * wide).mean(axes, True) + scale * scale * eps)
    return (y if gamma is None else y * gamma.astype(y.dtype)).astype(x.dtype)


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
