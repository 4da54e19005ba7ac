"""Along axes: products, differences, parts, repetitions, diagonals, logsumexp and argmin."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod as product
from typing import Annotated, Any

import numpy as np

from alpha.core.device import FLOAT_DTYPES
from alpha.core.errors import ArgumentError, ShapeError, message, shown
from alpha.core.inplace.kin import join, own
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.ints import as_int
from alpha.core.inputs.kinds import Axes, Axis, Ints, ShapeLike, Size
from alpha.core.table import public
from alpha.core.tensor import Tensor, tensor
from alpha.core.views import View
from alpha.ops.checks import on_host
from alpha.ops.elementwise import clone, exp, log, mul, ne, neg, sub, where
from alpha.ops.index import index_select, take_along_axis, to_axis
from alpha.ops.logic import isfinite
from alpha.ops.reduce import Shape, accumulation_dtype, argmax, normal_axes, normal_axis
from alpha.ops.reduce import max as largest
from alpha.ops.reduce import sum as add_up
from alpha.ops.shape import concat, expand, pad, reshape, slice_axes, squeeze, unsqueeze

Shifts = Annotated[Any, Ints("an int or a tuple of ints", "pass {name}=1, or {name}=(1, -2)")]


def part(x: Tensor, axis: int, first: int, count: int, step: int = 1) -> Tensor:
    """Returns `count` slices along an axis, from `first` on."""
    return slice_axes(x, [(first, count, step) if k == axis else (0, n, 1) for k, n in enumerate(x.shape)])


def rows_of(x: Tensor, axis: Any, where_: str) -> tuple[Tensor, Shape, Shape]:
    """Returns x with the named axes as one, the last; the shape of the others; and that with the axes of length 1."""
    axes = normal_axes(axis, x.ndim, where_)
    others = [k for k in range(x.ndim) if k not in axes]
    left = tuple([x.shape[k] for k in others])
    rows = x.permute([*others, *axes]).reshape(*left, product([x.shape[k] for k in axes]))
    return rows, left, tuple([1 if k in axes else n for k, n in enumerate(x.shape)])


# ---- products and differences ----------------------------------------------------------------------------------------


@public(top=True, method=True)
@checked
def prod(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """y = product of x over the axes; int64 for integers and bool.  The gradient is right at zeros.

    In log2(count) passes; 16 bits are multiplied in float32.  See sum.
    """
    rows, left, kept = rows_of(x, axis, "prod")
    y = rows.astype(accumulation_dtype(x.dtype) if x.dtype in FLOAT_DTYPES else "int64")
    last = y.ndim - 1
    width = 1 << max(0, y.shape[-1] - 1).bit_length()
    if width > y.shape[-1]:
        y = pad(y, [(0, width - y.shape[-1] if k == last else 0) for k in range(y.ndim)], 1)
    while width > 1:
        width //= 2
        y = mul(part(y, last, 0, width), part(y, last, width, width))
    y = reshape(y, kept if keepdims else left)
    return y.astype(x.dtype) if x.dtype in FLOAT_DTYPES else y


@public(top=True, method=True)
@checked
def diff(x: Tensor, n: Size = 1, axis: Axis = -1, prepend: Tensor | None = None, append: Tensor | None = None
         ) -> Tensor:
    """y[k] = x[k + 1] - x[k] along an axis, n times over.

    Args:
        n: how often; 0 gives x alone, without prepend and append, as in PyTorch.
        prepend, append: what stands before and behind x; or None.
    Raises:
        ShapeError: the axis does not exist.  DTypeError: x is of bools.
    """
    axis = normal_axis(axis, x.ndim, "diff")
    if not n:
        return clone(x)
    if prepend is not None or append is not None:
        x = concat([t for t in (prepend, x, append) if t is not None], axis)
    for _ in range(n):
        left = max(0, x.shape[axis] - 1)
        x = sub(part(x, axis, min(1, x.shape[axis]), left), part(x, axis, 0, left))
    return x


@public(top=True, method=True)
@checked
def count_nonzero(x: Tensor, axis: Axes = None) -> Tensor:
    """y = how many x are not 0, over the axes; int64.  See sum."""
    return add_up(ne(x, 0), axis)


# ---- parts and repetitions -------------------------------------------------------------------------------------------


@public(top=True, method=True)
@checked
def narrow(x: Tensor, axis: Axis, start: int, length: Size) -> Tensor:
    """y = x[start:start + length] along an axis; a negative start counts from the end.  Raises ShapeError."""
    axis = normal_axis(axis, x.ndim, "narrow")
    n = x.shape[axis]
    first = start + n if start < 0 else start
    if not 0 <= first <= first + length <= n:
        raise ShapeError(message("narrow", f"start {start} and length {length} leave axis {axis} of length {n}",
                                 f"stay within {n} elements", x=x.shape))
    return part(x, axis, first, length)


@public(top=True, method=True)
@checked
def select(x: Tensor, axis: Axis, index: int) -> Tensor:
    """y = x[index] along an axis, which goes.  Raises ShapeError if there is no such index."""
    axis = normal_axis(axis, x.ndim, "select")
    n = x.shape[axis]
    if not -n <= index < n:
        raise ShapeError(message("select", f"index {index} is out of range for axis {axis} of length {n}",
                                 f"use an index from {-n} to {n - 1}" if n else "pass a tensor with elements",
                                 x=x.shape))
    return squeeze(part(x, axis, index % n, 1), axis)


@public(top=True, method=True)
@checked
def tensor_split(x: Tensor, indices_or_sections: Any, axis: Axis = 0) -> tuple[Tensor, ...]:
    """Cuts x along an axis: into a number of parts, the first ones longer by 1 where it does not divide; or at indices.

    Raises ShapeError: the axis does not exist, or there are no parts.
    """
    axis = normal_axis(axis, x.ndim, "tensor_split")
    n, count = x.shape[axis], as_int(indices_or_sections)
    if count is not None and count < 1:
        raise ShapeError(message("tensor_split", f"{count} parts are asked for", "pass at least 1"))
    if count is not None:
        ends = [k * (n // count) + min(k, n % count) for k in range(1, count + 1)]
    else:
        host = on_host(indices_or_sections)
        if host.ndim != 1 or host.dtype.kind not in "iu":
            raise ArgumentError(message("tensor_split", f"indices_or_sections is {shown(indices_or_sections)}, an int "
                                        "or a list of ints is needed", "pass 3, or [1, 4], say"))
        ends = [max(0, min(n, int(k) + n if k < 0 else int(k))) for k in host] + [n]
    starts = [0, *ends[:-1]]
    return tuple([part(x, axis, first, max(0, last - first)) for first, last in zip(starts, ends)])


@public(top=True, method=True)
@checked
def roll(x: Tensor, shifts: Shifts, axis: Axes = None) -> Tensor:
    """y[k + shift] = x[k] along an axis, around its end; without an axis, of all elements in their order.

    Args:
        shifts: int, or one for each axis.
    Raises:
        ShapeError: there are not as many shifts as axes, or an axis does not exist.
    """
    if axis is None:
        return reshape(roll(reshape(x, (x.numel(),)), shifts, 0), x.shape)
    axes = axis if isinstance(axis, tuple) else (axis,)
    if len(shifts) != len(axes):
        raise ShapeError(message("roll", f"there are {len(shifts)} shifts and {len(axes)} axes", "pass one for each"))
    given = x
    for shift, k in zip(shifts, axes):
        k = normal_axis(k, x.ndim, "roll")
        n = x.shape[k]
        if n and shift % n:
            cut = n - shift % n
            x = concat([part(x, k, cut, n - cut), part(x, k, 0, cut)], k)
    return clone(x) if x is given else x


@public(top=True, method=True)
@checked
def repeat_interleave(x: Tensor, repeats: Any, axis: Axis | None = None) -> Tensor:
    """y = each slice of x along an axis `repeats` times, next to itself; without an axis, each element.

    Args:
        repeats: int of at least 0; or a list, array or tensor of one for each slice, which the host looks at.
    Raises:
        ShapeError: repeats do not fit the axis, or are negative.
    """
    if axis is None:
        return repeat_interleave(reshape(x, (x.numel(),)), repeats, 0)
    axis = normal_axis(axis, x.ndim, "repeat_interleave")
    n, times = x.shape[axis], as_int(repeats)
    counts = on_host(repeats) if times is None else np.asarray(times)
    if counts.dtype.kind not in "iu" or counts.size not in (1, n) or counts.ndim > 1 or (counts < 0).any():
        raise ShapeError(message("repeat_interleave", f"repeats is {shown(repeats)}, x has {n} slices along axis "
                                 f"{axis}", "pass an int of at least 0, or one for each slice", x=x.shape))
    if counts.size == 1:        # whose gradient is a sum
        times, head, tail = int(counts.reshape(())), x.shape[:axis + 1], x.shape[axis + 1:]
        wide = expand(reshape(x, (*head, 1, *tail)), (*head, times, *tail))
        y = reshape(wide, (*x.shape[:axis], n * times, *tail))
        return clone(y) if times == 1 else own(y)
    return index_select(x, axis, np.repeat(np.arange(n), counts))


@public(top=True, method=True)
@checked
def broadcast_to(x: Tensor, shape: ShapeLike) -> Tensor:
    """y = x repeated to a shape that it broadcasts to.  See expand."""
    return expand(x, shape)


@public(top=True, method=True)
@checked
def take_along_dim(x: Tensor, index: Tensor, axis: Axis | None = None) -> Tensor:
    """take_along_axis by its other name; without an axis, of all elements in their order, at the indices in theirs."""
    if axis is None:
        return take_along_axis(reshape(x, (x.numel(),)), reshape(index, (index.numel(),)), 0)
    return take_along_axis(x, index, axis)


def _joined(where_: str, xs: Sequence[Tensor], axis: int, axes: int) -> Tensor:
    """Returns a concatenation of tensors that are given at least `axes` axes."""
    if not xs:
        raise ShapeError(message(where_, "there is no tensor", "pass a list of at least one"))
    made = [reshape(x, (1,) * (min(axes, 2) - x.ndim) + x.shape) if x.ndim < min(axes, 2) else x for x in xs]
    return concat([unsqueeze(x, 2) if axes == 3 and x.ndim == 2 else x for x in made], axis)


@public(top=True)
@checked
def vstack(xs: Sequence[Tensor]) -> Tensor:
    """y = tensors below one another: along the first axis; those of one axis are rows.  See concat."""
    return _joined("vstack", xs, 0, 2)


@public(top=True)
@checked
def hstack(xs: Sequence[Tensor]) -> Tensor:
    """y = tensors beside one another: along the second axis; those of one axis along it.  See concat."""
    flat = max([x.ndim for x in xs], default=0) < 2
    return _joined("hstack", xs, 0 if flat else 1, 1)


@public(top=True)
@checked
def dstack(xs: Sequence[Tensor]) -> Tensor:
    """y = tensors behind one another: along the third axis.  See concat."""
    return _joined("dstack", xs, 2, 3)


# ---- diagonals -------------------------------------------------------------------------------------------------------


@public(top=True, method=True)
@checked
def diagonal(x: Tensor, offset: int = 0, dim1: Axis = 0, dim2: Axis = 1) -> Tensor:
    """y[..., k] = x[k, k + offset] of the axes dim1 and dim2, which become the last one of y.

    Raises ShapeError: an axis does not exist, or the two are one.
    """
    normal_axes((dim1, dim2), x.ndim, "diagonal")
    rows, columns = (normal_axis(k, x.ndim, "diagonal") for k in (dim1, dim2))
    last = to_axis(to_axis(x, rows, x.ndim - 1), columns - (columns > rows), x.ndim - 1)
    height, width = last.shape[-2:]
    first = -offset * width if offset < 0 else offset
    count = max(0, min(height + min(offset, 0), width - max(offset, 0)))
    flat = reshape(last, (*last.shape[:-2], height * width))
    y = View.of(part(flat, flat.ndim - 1, first if count else 0, count, width + 1))
    join(x, y, "diagonal", {"offset": offset, "axis1": dim1, "axis2": dim2})
    return y


@public(top=True, method=True)
@checked
def trace(x: Tensor) -> Tensor:
    """y = sum of x[k, k] of a matrix.  Raises ShapeError for other numbers of axes."""
    if x.ndim != 2:
        raise ShapeError(message("trace", f"x has {x.ndim} axes, 2 are needed", "pass a matrix; of several: "
                                 "x.diagonal(0, -2, -1).sum(-1)", x=x.shape))
    return add_up(diagonal(x))


@public(top=True, method=True)
@checked
def diag(x: Tensor, diagonal: int = 0) -> Tensor:
    """y = the matrix with the vector x on a diagonal and 0 elsewhere; of a matrix, its diagonal.

    Raises ShapeError for other numbers of axes.
    """
    if x.ndim == 2:
        return clone(_diagonal_of(x, diagonal))
    if x.ndim != 1:
        raise ShapeError(message("diag", f"x has {x.ndim} axes, 1 or 2 are needed", "pass a vector or a matrix",
                                 x=x.shape))
    side = x.shape[0] + np.abs(diagonal)
    line = pad(x, [(max(diagonal, 0), max(-diagonal, 0))])     # by the columns of their places
    mask = tensor(np.eye(side, k=diagonal, dtype=bool), device=x.device)
    return where(mask, expand(line, (side, side)), 0)


_diagonal_of = diagonal


@public(top=True, method=True)
@checked
def logsumexp(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """y = ln(sum(e^x)) over the axes, without overflow."""
    top = largest(x.detach(), axis, True)
    top = where(isfinite(top), top, 0.0)
    y = log(add_up(exp(x - top), axis, True)) + top
    return y if keepdims else add_up(y, axis)


@public(top=True, method=True)
@checked
def argmin(x: Tensor, axis: Axis | None = None, keepdims: bool = False) -> Tensor:
    """y = index of the smallest x along an axis, the first one of equals; int64, no gradient.  See argmax."""
    if x.dtype in ("uint8", "bool"):
        x = x.astype("int32")
    return argmax(neg(x) if x.dtype in FLOAT_DTYPES else sub(-1, x), axis, keepdims)  # no -1 - x leaves the dtype
