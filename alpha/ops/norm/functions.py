"""Norms that are functions of other ops: by the root of the mean square, and by neighbouring channels."""

from __future__ import annotations

from math import prod

import numpy as np

from alpha.core.errors import ShapeError, message
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import Channels, Count, Finite, NonNegative
from alpha.core.table import public
from alpha.core.tensor import Tensor
from alpha.ops.elementwise.curves import rsqrt
from alpha.ops.pool import avg_pool2d
from alpha.ops.reduce import scale_beyond, widened
from alpha.ops.shape import pad, reshape


@public(layer="RMSNorm", keeps_channels=True)
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


@public(functional=True, layer="LocalResponseNorm", keeps_channels=True)
@checked
def local_response_norm(x: Tensor, size: Channels, alpha: Finite = 1e-4, beta: Finite = 0.75, k: Finite = 1.0
                        ) -> Tensor:
    """y = x / (k + alpha / size * sum of x^2 over `size` neighbouring channels)^beta.

    Args:
        x: shape (..., C), channels last; float.
        size: channels of a window, of which (size - 1) / 2 lie behind, and size / 2 in front, fewer at the ends.
    Source: Krizhevsky et al., "ImageNet classification with deep convolutional neural networks", 2012.
    """
    if x.ndim < 2:
        raise ShapeError(message("local_response_norm", f"x has {x.ndim} axes, at least 2 are needed",
                                 "pass x of shape (..., C)", x=x.shape))
    wide = widened(x)
    rows = reshape(wide * wide, (1, prod(x.shape[:-1]), x.shape[-1], 1))
    padded = pad(rows, ((0, 0), (0, 0), (size // 2, (size - 1) // 2), (0, 0)))
    means = reshape(avg_pool2d(padded, (1, size), 1), x.shape) if x.numel() else wide
    return (wide / (means * alpha + k) ** beta).astype(x.dtype)
