"""Along an axis: gather, scatter, sort, topk, cumsum, cumprod, one_hot."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import numpy as np

from alpha.core.device import FLOAT_DTYPES, get_backend
from alpha.core.errors import DTypeError, ShapeError, message
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import Axis, Number, Size
from alpha.core.op import Spec, op
from alpha.core.table import public
from alpha.core.tensor import Tensor, tensor
from alpha.ops.checks import on_host
from alpha.ops.create import ones_like, zeros
from alpha.ops.elementwise import add, cast, lt, mul, where
from alpha.ops.loss import label_mask
from alpha.ops.pool import pool_gather, pool_scatter
from alpha.ops.reduce import Shape, accumulation_dtype, normal_axis
from alpha.ops.shape import pad, permute, reshape, slice_axes, take


class Sorted(NamedTuple):
    """Elements in order, and where each came from."""

    values: Tensor
    indices: Tensor


# ---- along an axis ---------------------------------------------------------------------------------------------------


def to_axis(x: Tensor, axis: int, to: int) -> Tensor:
    """Moves an axis."""
    order = [k for k in range(x.ndim) if k != axis]
    order.insert(to, axis)
    return x if order == list(range(x.ndim)) else permute(x, order)


@public(top=True, method="moveaxis movedim")
@checked
def moveaxis(x: Tensor, source: Axis, destination: Axis) -> Tensor:
    """Puts one axis in another place; the others keep their order.  See permute."""
    return to_axis(x, normal_axis(source, x.ndim, "moveaxis"), normal_axis(destination, x.ndim, "moveaxis"))


def _integers(where: str, index: Any, like: Tensor, n: int) -> Tensor:
    """Returns indices as int64 on the device of a tensor, those of lists and arrays checked and counted from 0."""
    if isinstance(index, Tensor) and index.dtype in ("int32", "int64") and index.device == like.device and _waits(like):
        return where_negative(index.astype("int64"), n)  # looked at on the device
    try:
        host = on_host(index)
    except ValueError:  # lists of several lengths
        host = np.asarray(None)
    if host.dtype.kind not in "iu":
        raise DTypeError(message(where, f"index has dtype {host.dtype}, int32 or int64 is needed",
                                 'convert it: index.astype("int64")'))
    bad = (host < -n) | (host >= n)
    if bad.any():
        raise ShapeError(message(where, f"index {host[bad][0]} is out of range for an axis of length {n}",
                                 f"use indices from {-n} to {n - 1}" if n else "pass a tensor with elements",
                                 x=like.shape))
    return tensor(np.where(host < 0, host + n, host), "int64", like.device)


def _waits(t: Tensor) -> bool:
    """Tells whether elements cannot be looked at now: on a GPU, and in a function that is recorded."""
    return t.device != "cpu" or get_backend(t.device).recorder() is not None


def where_negative(index: Tensor, n: int) -> Tensor:
    return where(lt(index, 0), index + n, index)


@public(top=True, method=True)
@checked
def index_select(x: Tensor, axis: Axis, index: Any) -> Tensor:
    """y = the slices of x along an axis whose numbers `index` has; a number may come more than once.

    Args:
        x: any shape, any dtype.
        axis: int.
        index: list, array or int32 or int64 tensor of one axis; negative numbers count from the end.
    Raises:
        ShapeError: a number is out of range (on a GPU see take), or the axis does not exist.
        DTypeError: index does not hold integers.
    """
    axis = normal_axis(axis, x.ndim, "index_select")
    picked = _integers("index_select", index, x, x.shape[axis])
    return take(x, picked) if axis == 0 else to_axis(take(to_axis(x, axis, 0), picked), 0, axis)


def _aligned(where: str, x: Tensor, axis: int, index: Tensor) -> tuple[Tensor, tuple[int, int, int, int]]:
    """Returns x cut to the index along the other axes, and (outer, rows, picked, inner)."""
    if index.ndim != x.ndim or any(m > n for k, (m, n) in enumerate(zip(index.shape, x.shape)) if k != axis):
        raise ShapeError(message(where, f"index has shape {index.shape}, x has {x.shape}",
                                 f"give index as many axes as x, none but axis {axis} longer"))
    cut = x
    if any(m != n for k, (m, n) in enumerate(zip(index.shape, x.shape)) if k != axis):
        cut = slice_axes(x, [(0, n if k == axis else index.shape[k], 1) for k, n in enumerate(x.shape)])
    shape = index.shape
    return cut, (prod(shape[:axis]), x.shape[axis], shape[axis], prod(shape[axis + 1:]))


def _picked(x: Tensor, index: Tensor, outer: int, rows: int, count: int, inner: int) -> Tensor:
    if not _waits(index):  # before the lines of x are one, where each number would mean an element of some line
        host = index.numpy()
        if host.size and (host.min() < 0 or host.max() >= rows):
            bad = host[(host < 0) | (host >= rows)][0]
            raise ShapeError(message("gather", f"index {bad} is out of range for an axis of length {rows}",
                                     f"use indices from 0 to {rows - 1}" if rows else "pass a tensor with elements"))
    if x.dtype in FLOAT_DTYPES:
        return pool_gather(reshape(x, (outer, rows, 1, inner)), reshape(index, (outer, count, 1, inner)))
    if _waits(index):
        index = where(lt(index, 0), 0, where(lt(index, rows), index, rows - 1))
    places = tensor(np.arange(outer).reshape(-1, 1, 1) * (rows * inner) + np.arange(inner), "int64", x.device)
    return take(reshape(x, (-1,)), reshape(index, (outer, count, inner)) * inner + places)


@public(top=True, method=True)
@checked
def gather(x: Tensor, axis: Axis, index: Tensor) -> Tensor:
    """y[i, j, k] = x[i, index[i, j, k], k], here along axis 1 of 3.

    Args:
        x: any shape and dtype.
        axis: int.
        index: int32 or int64, as many axes as x, none but `axis` longer; from 0 on.
    Returns:
        y of the shape of index.
    Raises:
        ShapeError: the shapes do not fit, or an index is out of range (on a GPU a float result is NaN there, and of
            other dtypes the nearest element is taken).
        DTypeError: index does not hold integers.
    """
    axis = normal_axis(axis, x.ndim, "gather")
    if index.dtype not in ("int32", "int64"):
        raise DTypeError(message("gather", f"index has dtype {index.dtype}, int32 or int64 is needed",
                                 'convert it: index.astype("int64")'))
    cut, sizes = _aligned("gather", x, axis, index)
    if 0 in index.shape:    # nothing of x, which the graph knows
        return reshape(slice_axes(reshape(x, (x.numel(),)), [(0, 0, 1)]), index.shape)
    return reshape(_picked(cut, index, *sizes), index.shape)


@public(method=True)
@checked
def take_along_axis(x: Tensor, index: Tensor, axis: Axis) -> Tensor:
    """NumPy's form of gather: -1 is the last, and x and index are repeated to each other's lengths along other axes.

    Raises ShapeError: these lengths differ, and neither is 1; otherwise as gather.
    """
    axis = normal_axis(axis, x.ndim, "take_along_axis")
    if index.ndim != x.ndim or any(m != n and 1 not in (m, n)
                                   for k, (m, n) in enumerate(zip(index.shape, x.shape)) if k != axis):
        raise ShapeError(message("take_along_axis", f"index has shape {index.shape}, x has {x.shape}",
                                 f"give index the shape of x, or lengths of 1; axis {axis} may have any"))
    both = [n if m == 1 else m for m, n in zip(index.shape, x.shape)]
    here = [tuple(t.shape[axis] if k == axis else n for k, n in enumerate(both)) for t in (x, index)]
    found = index if index.dtype not in ("int32", "int64") else where(lt(index, 0), index + x.shape[axis], index)
    return gather(x.expand(here[0]), axis, found.expand(here[1]))


def _added(axis: int, index: Tensor, src: Tensor, shape: Shape) -> Tensor:
    """Returns zeros of a shape with each element of src added where index points."""
    outer, count, inner = prod(index.shape[:axis]), index.shape[axis], prod(index.shape[axis + 1:])
    small = (*index.shape[:axis], shape[axis], *index.shape[axis + 1:])
    if 0 in index.shape:
        return zeros(shape, src.dtype, src.device)
    y = pool_scatter(reshape(src, (outer, count, 1, inner)), reshape(index, (outer, count, 1, inner)),
                     hw=(shape[axis], 1))
    y = reshape(y, small)
    return y if small == shape else pad(y, [(0, n - m) for m, n in zip(small, shape)])


def _scattered(where: str, x: Tensor, axis: Any, index: Tensor, src: Tensor) -> tuple[int, Tensor]:
    axis = normal_axis(axis, x.ndim, where)
    if index.dtype not in ("int32", "int64"):
        raise DTypeError(message(where, f"index has dtype {index.dtype}, int32 or int64 is needed",
                                 'convert it: index.astype("int64")'))
    _aligned(where, x, axis, index)
    if src.ndim != x.ndim or any(m < n for m, n in zip(src.shape, index.shape)):
        raise ShapeError(message(where, f"src has shape {src.shape}, index {index.shape}",
                                 "pass a src of the shape of index"))
    if src.dtype != x.dtype:
        raise DTypeError(message(where, f"src has dtype {src.dtype}, x has {x.dtype}", "convert src: src.to(x.dtype)"))
    return axis, src if src.shape == index.shape else slice_axes(src, [(0, n, 1) for n in index.shape])


@public(top=True, method=True)
@checked
def scatter_add(x: Tensor, axis: Axis, index: Tensor, src: Tensor) -> Tensor:
    """y = x with src[i, j, k] added to y[i, index[i, j, k], k], here along axis 1 of 3; in a fixed order.

    Args:
        x: any shape; float.
        axis: int.
        index: int32 or int64, as many axes as x, none longer but `axis`.
        src: at least of the shape of index; dtype of x.
    Raises:
        ShapeError: the shapes do not fit, or an index is out of range (on a GPU the result is NaN there).
        DTypeError: index holds no integers, or x is not of floats.
    """
    axis, src = _scattered("scatter_add", x, axis, index, src)
    return x + _added(axis, index, src, x.shape)


@public(top=True, method=True)
@checked
def scatter(x: Tensor, axis: Axis, index: Tensor, src: Tensor | Number) -> Tensor:
    """y = x with y[i, index[i, j, k], k] = src[i, j, k], or a number, here along axis 1 of 3.

    Args:
        x: any shape; float.
        axis, index: see scatter_add.
        src: see scatter_add; a number may be written to a place twice, elements of a tensor may not.
    Raises:
        ShapeError, DTypeError: see scatter_add; or two elements of src go to one place.
    """
    number = None if isinstance(src, Tensor) else src
    values = src if isinstance(src, Tensor) else zeros(index.shape, x.dtype, x.device)
    axis, values = _scattered("scatter", x, axis, index, values)
    hits = _added(axis, index, ones_like(values), x.shape)
    if number is not None:
        return where(hits > 0, number, where(hits < 1, x, hits))  # NaN where an index is out of range
    most = 0.0 if 0 in index.shape else float(hits.max().item())
    if most != most:
        raise ShapeError(message("scatter", f"an index is out of range for axis {axis} of length {x.shape[axis]}",
                                 f"use indices from 0 to {x.shape[axis] - 1}", index=index.shape))
    if most > 1:
        raise ShapeError(message("scatter", "two elements of src go to one place", "make the indices of a line "
                                 "different, or add them up: scatter_add", index=index.shape))
    return where(hits > 0, _added(axis, index, values, x.shape), x)


@public(top=True, functional=True)
@checked
def one_hot(labels: Tensor, classes: int = -1) -> Tensor:
    """y[..., c] = 1 where c is the label, else 0.

    Args:
        labels: int32 or int64, any shape; from 0 on.
        classes: how many there are; -1: one more than the largest label.
    Returns:
        y of shape (*labels.shape, classes), int64.
    Raises:
        DTypeError: labels are no integers.  DataError: a label is outside [0, classes).
    """
    if labels.dtype not in ("int32", "int64"):
        raise DTypeError(message("one_hot", f"labels are {labels.dtype}, int32 or int64 is needed",
                                 'convert them: labels.astype("int64")', labels=labels.shape))
    count = int(labels.max().item()) + 1 if classes < 0 and labels.numel() else classes
    if count < 1:
        raise ShapeError(message("one_hot", f"there are {count} classes", "pass classes=10, say", labels=labels.shape))
    return cast(reshape(label_mask(reshape(labels, (-1,)), classes=count, where="one_hot"), (*labels.shape, count)),
                "int64")


# ---- neighbours ------------------------------------------------------------------------------------------------------


@op
class mix_rows:
    """y[o, i, c] = sum over t of weights[i, t] * x[o, index[i, t], c]: what a CPU resizes maps with.

    Args:
        x: shape (outer, rows, inner); float.
        index: shape (count, terms), int64, up to rows - 1; a negative one is no term.
        weights: of the shape of index.
        back_index, back_weights: those of the gradient of x, which is a sum of the same kind: shape (rows, terms).
    Returns:
        y of shape (outer, count, inner).
    Raises:
        ShapeError: x has not three axes, or the tables do not fit it.
    """

    args, saves = "x index weights back_index back_weights", "index weights back_index back_weights"
    mixed = "index back_index"

    def shape(x, index, weights, back_index, back_weights):
        if x.ndim != 3 or index.shape != weights.shape or back_index.shape != back_weights.shape or not (
                index.ndim == back_index.ndim == 2 and back_index.shape[0] == x.shape[1]):
            raise ShapeError(message("mix_rows", f"x has shape {x.shape}, the tables {index.shape}, {weights.shape}, "
                                     f"{back_index.shape} and {back_weights.shape}", "pass (outer, rows, inner), twice "
                                     "(count, terms) and twice (rows, terms)"))
        return (x.shape[0], index.shape[0], x.shape[2])

    def vjp_x(g, s):
        return mix_rows(g, s.back_index, s.back_weights, s.index, s.weights)


# ---- order -----------------------------------------------------------------------------------------------------------


@op
class argsort_rows:
    """y[r] = the indices that put row r in order: equals keep theirs, NaN counts as the largest.

    Args:
        x: shape (rows, n); float or integer.
        descending: whether the largest comes first.
    Returns:
        y of shape (rows, n), int64, no gradient.
    """

    args, dtypes, label = "x", "number", "argsort"

    def shape(x, *, descending: bool = False):
        if x.ndim != 2:
            raise ShapeError(message("argsort", f"x has {x.ndim} axes, 2 are needed", "call ops.argsort(x, axis)"))
        return Spec(x.shape, "int64")


@public(top=True, method=True)
@checked
def argsort(x: Tensor, axis: Axis = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """y = the indices that put x in order along an axis; int64, no gradient.

    Args:
        x: any shape; float or integer.  NaN counts as the largest.
        axis: int.
        descending: whether the largest comes first.
        stable: taken and not needed: equals always keep their order.
    Raises:
        ShapeError: the axis does not exist.
    """
    if x.ndim == 0:
        return zeros((), "int64", x.device)
    axis = normal_axis(axis, x.ndim, "argsort")
    last = to_axis(x.detach(), axis, x.ndim - 1)
    n = last.shape[-1]
    order = argsort_rows(reshape(last, (x.numel() // n if n else 0, n)), descending=descending)
    return to_axis(reshape(order, last.shape), x.ndim - 1, axis)


@public(top=True, method=True)
@checked
def sort(x: Tensor, axis: Axis = -1, descending: bool = False, stable: bool = True) -> Sorted:
    """Returns (values, indices): x in order along an axis, and argsort.  See argsort; differentiable."""
    order = argsort(x, axis, descending)
    return Sorted(gather(x, axis, order) if x.ndim else x, order)


@public(top=True, method=True)
@checked
def topk(x: Tensor, k: Size, axis: Axis = -1, largest: bool = True, sorted: bool = True) -> Sorted:
    """Returns (values, indices) of the k largest (or smallest) along an axis, in order; of equals the first.

    Args:
        x: any shape; float or integer.  NaN counts as the largest.
        k: at most the length of the axis.
        axis: int.
        largest: False: the smallest.
        sorted: taken and not needed: they always are.
    Raises:
        ShapeError: the axis does not exist, or is shorter than k.
    """
    at = normal_axis(axis, x.ndim, "topk")
    if k > x.shape[at]:
        raise ShapeError(message("topk", f"k={k} exceeds the length of axis {axis}, {x.shape[at]}",
                                 "choose a smaller k", x=x.shape))
    order = slice_axes(argsort(x, at, largest), [(0, k if j == at else n, 1) for j, n in enumerate(x.shape)])
    return Sorted(gather(x, at, order), order)


@public(top=True, method=True)
@checked
def cumsum(x: Tensor, axis: Axis) -> Tensor:
    """y[k] = x[0] + ... + x[k] along an axis; int64 for integers and bool.

    In log2(length) passes of additions, so that sums of many terms keep their digits; 16 bits are added in float32.
    Raises ShapeError if the axis does not exist.
    """
    return _scanned("cumsum", x, axis, add, 0)


@public(top=True, method=True)
@checked
def cumprod(x: Tensor, axis: Axis) -> Tensor:
    """y[k] = x[0] * ... * x[k] along an axis; int64 for integers and bool.  As cumsum; the gradient is right at zeros.
    """
    return _scanned("cumprod", x, axis, mul, 1)


def _scanned(where_: str, x: Tensor, axis: int, combine: Callable[[Tensor, Tensor], Tensor], neutral: int) -> Tensor:
    if x.ndim == 0:
        return x
    axis, dtype = normal_axis(axis, x.ndim, where_), x.dtype
    n, step = x.shape[axis], 1
    y = x.astype(accumulation_dtype(dtype) if dtype in FLOAT_DTYPES else "int64")
    result = dtype if dtype in FLOAT_DTYPES else "int64"
    while step < n:
        kept = slice_axes(y, [(0, m - step if k == axis else m, 1) for k, m in enumerate(x.shape)])
        y = combine(y, pad(kept, [(step if k == axis else 0, 0) for k in range(x.ndim)], neutral))
        step *= 2
    return y.astype(result)
