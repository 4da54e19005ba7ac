"""Order and counts, composed of other ops: medians, quantiles; and what the host counts."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np

from alpha.core.device import FLOAT_DTYPES
from alpha.core.errors import ConfigError, DTypeError, ShapeError, message, shown
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.ints import is_real
from alpha.core.inputs.kinds import Axis, Choice, Size
from alpha.core.table import public
from alpha.core.tensor import Tensor, tensor
from alpha.ops.elementwise import where
from alpha.ops.elementwise.curves import lerp
from alpha.ops.index import Sorted, argsort, gather, index_select, sort, to_axis
from alpha.ops.logic import any, isnan
from alpha.ops.reduce import argmax, normal_axis
from alpha.ops.shape import reshape, squeeze
from alpha.ops.shape.axes import part, rows_of

Interpolation = Annotated[str, Choice("linear", "lower", "higher", "nearest", "midpoint")]


@public(top=True, method=True)
@checked
def median(x: Tensor, axis: Axis | None = None, keepdims: bool = False) -> Any:
    """The middle of x, the lower one of two; NaN where there is one.  With an axis: (values, indices) along it.

    Args:
        x: any shape with elements; float or integer.
        axis: int, or None: of all elements, and without indices.
        keepdims: whether reduced axes stay, with length 1.
    Raises:
        ShapeError: the axis does not exist or is empty.
    """
    if axis is None:
        middle = median(reshape(x, (x.numel(),)), 0).values
        return reshape(middle, (1,) * x.ndim) if keepdims else middle
    if x.ndim == 0:
        return Sorted(x, argsort(x))
    axis = normal_axis(axis, x.ndim, "median")
    if not x.shape[axis]:
        raise ShapeError(message("median", f"axis {axis} of shape {x.shape} holds no element",
                                 "pass a tensor with elements"))
    index = part(argsort(x, axis), axis, (x.shape[axis] - 1) // 2, 1)
    if x.dtype in FLOAT_DTYPES:
        nan = isnan(x.detach())
        index = where(any(nan, axis, True), argmax(nan.astype("int32"), axis, True), index)
    values = gather(x, axis, index)
    return Sorted(values, index) if keepdims else Sorted(squeeze(values, axis), squeeze(index, axis))


@public(top=True, method=True)
@checked
def quantile(x: Tensor, q: Any, axis: Axis | None = None, keepdims: bool = False,
             interpolation: Interpolation = "linear") -> Tensor:
    """y = what a share q of the elements along an axis does not exceed; NaN where there is one.

    Args:
        x: any shape with elements; float.
        q: number in [0, 1], or a list or tensor of these, whose axis is then the first of y; the host looks at them.
            A tensor gets a gradient for "linear"; for the others y does not change with q.
        axis: int, or None: of all elements.
        interpolation: between the two nearest elements: "linear", "lower", "higher", "nearest" or "midpoint".
    Raises:
        ConfigError: q is outside [0, 1].  ShapeError: the axis does not exist or is empty.
        DTypeError: x has no floats.
    """
    shares = np.asarray(q.numpy() if isinstance(q, Tensor) else q if is_real(q) or isinstance(q, (list, tuple))
                        else None)
    if shares.dtype.kind not in "fiu" or shares.ndim > 1 or not ((shares >= 0) & (shares <= 1)).all():
        raise ConfigError(message("quantile", f"q is {shown(q)}, numbers in [0, 1] are needed", "pass q=0.5, say"))
    if x.dtype not in FLOAT_DTYPES:
        raise DTypeError(message("quantile", f"x has dtype {x.dtype}, floats are needed",
                                 'convert it: x.astype("float32")'))
    rows, left, kept = rows_of(x, None if axis is None else normal_axis(axis, x.ndim, "quantile"), "quantile")
    n, last = rows.shape[-1], rows.ndim - 1
    if not n:
        raise ShapeError(message("quantile", f"shape {x.shape} holds no element along axis {axis}",
                                 "pass a tensor with elements"))
    ordered = sort(rows, -1).values
    places = shares.reshape(-1).astype(np.float64) * (n - 1)
    low, high = np.floor(places).astype(int), np.ceil(places).astype(int)
    if interpolation == "nearest":
        low = high = np.rint(places).astype(int)
    below, above = (index_select(ordered, last, k) for k in (low, high))
    weights = {"linear": places - low, "midpoint": np.full(places.shape, 0.5)}.get(interpolation)
    if weights is None:
        y = above if interpolation == "higher" else below
    else:
        share = tensor(weights.astype(np.float64), x.dtype, x.device)
        if interpolation == "linear" and isinstance(q, Tensor) and q.requires_grad:
            moving = reshape(q, (-1,)).to(x.device, x.dtype) * (n - 1)
            share = share + (moving - moving.detach())
        y = lerp(below, above, share)
    y = where(any(isnan(rows.detach()), -1, True), float("nan"), y)
    shape = kept if keepdims else left
    return reshape(to_axis(y, last, 0), (*shares.shape, *shape))


# ---- what the host counts --------------------------------------------------------------------------------------------


@public(top=True, method=True)
@checked
def unique(x: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False,
           axis: Axis | None = None) -> Any:
    """The elements of x, each once, in order; no gradient.  The host looks at them, so a GPU is waited for.

    Args:
        sorted: taken and not needed: they always are.
        return_inverse: whether to return which of them each element of x is, too; int64.
        return_counts: whether to return how often each comes, too; int64.
        axis: of slices along it that are equal; None: of elements.
    Returns:
        y, or a tuple (y, inverse, counts) of what is asked for.
    """
    axis = axis if axis is None else normal_axis(axis, x.ndim, "unique")
    values, inverse, counts = np.unique(x.detach().numpy(), return_inverse=True, return_counts=True, axis=axis,
                                        equal_nan=False)
    made = [tensor(values, x.dtype, x.device)]
    if return_inverse:
        made.append(tensor(inverse.reshape(x.shape if axis is None else -1), "int64", x.device))
    if return_counts:
        made.append(tensor(counts, "int64", x.device))
    return made[0] if len(made) == 1 else tuple(made)


@public(top=True, method=True)
@checked
def bincount(x: Tensor, weights: Tensor | None = None, minlength: Size = 0) -> Tensor:
    """y[k] = how often k comes in x, or the sum of its weights; no gradient.  The host counts, a GPU is waited for.

    Args:
        x: integers from 0 on.  Shape (N,).
        weights: shape of x, float; None: each counts 1, and y is int64.
        minlength: least length of y.
    Raises:
        ShapeError: x has not one axis, has a negative number, or weights have another shape.
        DTypeError: x has no integers, or weights no floats.
    """
    if x.dtype not in ("uint8", "int32", "int64") or (weights is not None and weights.dtype not in FLOAT_DTYPES):
        raise DTypeError(message("bincount", f"x has dtype {x.dtype}" + ("" if weights is None else
                                 f", weights {weights.dtype}") + ": integers, and floats, are needed",
                                 'convert them: x.astype("int64"), weights.float()'))
    host = x.numpy()
    if host.ndim != 1 or (host < 0).any() or (weights is not None and weights.shape != x.shape):
        raise ShapeError(message("bincount", f"x has shape {x.shape}" + (f" and a number of {host.min()}" if host.size
                                 else "") + ("" if weights is None else f", weights {weights.shape}"),
                                 "pass one axis of numbers from 0 on, and weights of its shape"))
    if weights is None:
        return tensor(np.bincount(host, minlength=minlength), "int64", x.device)
    return tensor(np.bincount(host, weights.detach().numpy().astype(np.float64), minlength), weights.dtype, x.device)
