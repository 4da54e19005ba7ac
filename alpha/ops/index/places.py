"""Elements put together by index: index_add and scatter_reduce, meshgrid, and embedding, which reads rows."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np

from alpha.core.device import FLOAT_DTYPES
from alpha.core.errors import ArgumentError, DTypeError, ShapeError, message, shown
from alpha.core.inputs.arguments import bound, checked
from alpha.core.inputs.kinds import Axis, Choice, FiniteNumber
from alpha.core.table import public
from alpha.core.tensor import Tensor, tensor
from alpha.ops.create import ones_like
from alpha.ops.elementwise import eq, gt, where
from alpha.ops.index import _added, _integers, _scattered, gather, scatter_add
from alpha.ops.reduce import normal_axis
from alpha.ops.shape import reshape, take

Joined = Annotated[str, Choice("sum", "mean", "amax", "amin")]
Indexing = Annotated[str, Choice("ij", "xy")]


@public(top=True, method=True)
@checked
def index_add(x: Tensor, axis: Axis, index: Any, src: Tensor, *, alpha: FiniteNumber = 1) -> Tensor:
    """y = x with alpha times the slices of src along an axis added where `index` says; in a fixed order.

    Args:
        x: any shape; float.
        axis: int.
        index: which slice of x each slice of src is added to; a list, an array or a tensor of one axis, int32 or int64.
            Negative numbers count from the end, and a number may come more than once.
        src: shape of x, but along the axis as long as index; dtype of x.
        alpha: factor of src.
    Raises:
        ShapeError: the shapes do not fit, or a number is out of range (on a GPU see scatter_add).
        DTypeError: index does not hold integers, or src has another dtype than x, or none of floats.
    """
    axis = normal_axis(axis, x.ndim, "index_add")
    if x.dtype not in FLOAT_DTYPES or src.dtype != x.dtype:
        raise DTypeError(message("index_add", f"x has dtype {x.dtype}, src {src.dtype}, one float dtype is needed",
                                 "convert them: src.to(x.dtype)"))
    picked = _integers("index_add", index, x, x.shape[axis])
    if picked.ndim != 1 or src.shape != (*x.shape[:axis], picked.shape[0], *x.shape[axis + 1:]):
        raise ShapeError(message("index_add", f"index has shape {picked.shape}, src {src.shape}, x {x.shape}",
                                 f"pass an index of one axis, and for each number a slice of src along axis {axis}"))
    line = reshape(picked, tuple([n if k == axis else 1 for k, n in enumerate(src.shape)]))
    return scatter_add(x, axis, line.expand(src.shape), src if alpha == 1 else src * alpha)


def _extremes(x: Tensor, axis: int, index: Tensor, src: Tensor, largest: bool, include_self: bool) -> np.ndarray:
    """Returns for each element of x the largest or smallest of what goes there; found on the host."""
    values, places = (np.moveaxis(t.detach().numpy(), axis, 0) for t in (src, index))
    found = np.moveaxis(x.detach().numpy().astype(np.float64), axis, 0).copy()
    cut = found[(slice(None), *[slice(0, n) for n in places.shape[1:]])]
    others = np.indices(places.shape)[1:]
    if not include_self:
        cut[(places, *others)] = -np.inf if largest else np.inf
    (np.maximum if largest else np.minimum).at(cut, (places, *others), values)
    return np.moveaxis(found, 0, axis)


@public(top=True, method=True)
@checked
def scatter_reduce(x: Tensor, axis: Axis, index: Tensor, src: Tensor, reduce: Joined, *, include_self: bool = True
                   ) -> Tensor:
    """y = x with y[i, index[i, j, k], k] put together of all src[i, j, k] that go there, here along axis 1 of 3.

    Args:
        x, axis, index, src: see scatter_add.
        reduce: "sum", "mean", "amax" or "amin". Among equals the gradient of "amax" and "amin" is shared.
        include_self: whether the element of x counts too, at places that something goes to.
    Raises:
        ShapeError, DTypeError: see scatter_add.
    The host looks for maxima and minima, so a GPU is waited for.
    """
    axis, src = _scattered("scatter_reduce", x, axis, index, src)
    hits = _added(axis, index, ones_like(src.detach()), x.shape)
    start = x if include_self else where(gt(hits, 0.0), 0.0, x)
    if reduce in ("sum", "mean"):
        y = start + _added(axis, index, src, x.shape)
        if reduce == "sum":
            return y
        counts = hits + 1.0 if include_self else where(gt(hits, 0.0), hits, 1.0)
        return y / counts
    if 0 in index.shape:
        return x * 1.0
    best = tensor(_extremes(x, axis, index, src, reduce == "amax", include_self), x.dtype, x.device)
    there = best if best.shape[:axis] + best.shape[axis + 1:] == index.shape[:axis] + index.shape[axis + 1:] else \
        best[tuple([slice(None) if k == axis else slice(0, n) for k, n in enumerate(index.shape)])]
    wins = eq(src.detach(), gather(there, axis, index)).astype(x.dtype)
    stays = eq(x.detach(), best).astype(x.dtype)
    if not include_self:
        stays = where(gt(hits, 0.0), 0.0, stays)
    share = (x * stays + _added(axis, index, src * wins, x.shape)) / (
        stays + _added(axis, index, wins, x.shape)).clip(1.0, None)
    return best + (share - share.detach())


@public(top=True)
@bound
def meshgrid(*xs: Any, indexing: str = "ij") -> tuple[Tensor, ...]:
    """Returns a tensor for each of several lines, repeated along the axes of the others.

    Args:
        xs: tensors of at most one axis, or a list of them; any dtype.
        indexing: "ij": axis k is that of line k; "xy": the first two axes are swapped.
    Returns:
        views of shape (len(xs[0]), len(xs[1]), ...).
    Raises:
        ShapeError: a tensor has more than one axis, or there is none.  ArgumentError, ConfigError: see the arguments.
    """
    indexing = Choice("ij", "xy").take("meshgrid", "indexing", indexing)
    lines = list(xs[0]) if len(xs) == 1 and isinstance(xs[0], (list, tuple)) else list(xs)
    for line in lines:
        if not isinstance(line, Tensor):
            raise ArgumentError(message("meshgrid", f"a line is {shown(line)}, a Tensor is needed",
                                        "wrap it: alpha.tensor(values)"))
    if not lines or max([line.ndim for line in lines]) > 1:
        raise ShapeError(message("meshgrid", f"the lines have shapes {[line.shape for line in lines]}",
                                 "pass tensors of one axis, alpha.arange(n) say"))
    sizes = [line.numel() for line in lines]
    order = [1, 0, *range(2, len(lines))] if indexing == "xy" and len(lines) > 1 else [*range(len(lines))]
    shape = tuple([sizes[k] for k in order])
    return tuple([reshape(line, tuple([n if order[k] == j else 1 for k, n in enumerate(shape)])).expand(shape)
                  for j, line in enumerate(lines)])


@public()
@checked
def embedding(index: Tensor, weight: Tensor, padding_idx: int | None = None) -> Tensor:
    """y[...] = weight[index[...]]: rows of a table.

    Args:
        index: int32 or int64, any shape; from 0 on.
        weight: shape (rows, dim).
        padding_idx: the row whose gradient is 0; None: there is none.
    Raises:
        ShapeError: an index is out of range (on a GPU its row is NaN), weight has not two axes, or
            padding_idx is out of range.
        ArgumentError: index is no integer.
    """
    if index.is_floating_point or index.dtype in ("bool", "uint8"):
        raise ArgumentError(message("embedding", f"index has dtype {index.dtype}, int32 or int64 is needed",
                                    "pass embedding(index, weight)", index=index.shape, weight=weight.shape))
    if weight.ndim != 2:
        raise ShapeError(message("embedding", f"weight has {weight.ndim} axes, 2 are needed (rows, dim)",
                                 "reshape weight; ops.take(weight, index) takes any", weight=weight.shape))
    if padding_idx is not None and not -weight.shape[0] <= padding_idx < weight.shape[0]:
        raise ShapeError(message("embedding", f"padding_idx is {padding_idx}, weight has {weight.shape[0]} rows",
                                 "choose a row of weight", weight=weight.shape))
    y = take(weight, index)
    if padding_idx is None or not weight.requires_grad:
        return y
    row = padding_idx if padding_idx >= 0 else padding_idx + weight.shape[0]
    return where(reshape(index == row, (*index.shape, 1)), y.detach(), y)
