"""Movement of elements in NumPy: views where the elements are contiguous, else one copy."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from math import prod

import numpy as np

from alpha.core.errors import ShapeError, message
from alpha.cpu import native
from alpha.cpu.elementwise import FEW
from alpha.cpu.memory import empty, empty_like
from alpha.ops import index as index_ops
from alpha.ops import shape as ops
from alpha.ops.layout import merged

Array = np.ndarray
Axes = ops.Axes
Shape = tuple[int, ...]

MANY_ROWS = 64  # of a concatenation, which one pass over them makes


@lru_cache(maxsize=1024)
def _box(shape: Shape, itemsize: int, *strides: Shape) -> Array:
    """Returns what kernels/copy.cpp reads of views of a shape."""
    sizes, merged_strides = merged(shape, strides)
    return np.array([len(sizes), prod(sizes), *sizes, *[step // itemsize for s in merged_strides for step in s]],
                    np.int64)


def copy_box(y: Array, x: Array) -> None:
    """As copied, by the compiled kernel, which has to be loaded; there is an element at least."""
    table = _box(y.shape, y.itemsize, y.strides, x.strides)
    native.loaded().copy_box(native.table_ptr(table), native.ptr(y), native.ptr(x), y.itemsize)


def copied(y: Array, x: Array) -> None:
    """y[...] = x for views of one shape and dtype, of any strides, that do not overlap."""
    if y.size >= (FEW if native.recorder() is None else 1) and native.library() is not None:
        copy_box(y, x)
    else:
        y[...] = x


def contiguous(view: Array) -> Array:
    """Returns the view itself, or a copy where it leaves elements out or reorders them."""
    if view.flags.c_contiguous:
        return view
    out = empty(view.shape, view.dtype)
    copied(out, view)
    return out


@lru_cache(maxsize=1024)
def _slices(ranges: tuple[ops.Range, ...]) -> tuple[slice, ...]:
    """A stop before index 0, which a negative step needs, is written None."""
    stops = [first + count * step for first, count, step in ranges]
    return tuple([slice(first, stop if stop >= 0 else None, step) if count else slice(0)
                  for (first, count, step), stop in zip(ranges, stops)])


@ops.reshape.impl("cpu")
def reshape_cpu(x: Array, *, shape: Shape) -> Array:
    return x.reshape(shape)


@ops.permute.impl("cpu")
def permute_cpu(x: Array, *, axes: Shape) -> Array:
    return contiguous(x.transpose(axes))


@ops.flip.impl("cpu")
def flip_cpu(x: Array, *, axis: Axes) -> Array:
    out = empty(x.shape, x.dtype)
    copied(out, np.asarray(np.flip(x, ops.normal_axes(axis, x.ndim, "flip"))))
    return out


@ops.expand.impl("cpu")
def expand_cpu(x: Array, *, shape: Shape) -> Array:
    new = len(shape) - x.ndim
    sizes = [x.shape[k - new] if n == -1 else n for k, n in enumerate(shape)]
    return x.reshape(sizes) if prod(sizes) == x.size else contiguous(np.broadcast_to(x, sizes))


@ops.concat.impl("cpu")
def concat_cpu(xs: list[Array], *, axis: int) -> Array:
    shape = list(xs[0].shape)
    shape[axis] = sum([x.shape[axis] for x in xs])
    out, first = empty(tuple(shape), xs[0].dtype), 0
    if out.size < FEW:
        return np.concatenate(xs, axis, out=out)
    rows = prod(shape[:axis % out.ndim])
    if rows >= MANY_ROWS and out.itemsize == 4 and native.library() and all(x.flags.c_contiguous for x in xs):
        widths = np.array([x.size // rows for x in xs])
        native.loaded().concat_rows((ctypes.c_void_p * len(xs))(*map(native.ptr, xs)), native.table_ptr(widths),
                                    len(xs), native.ptr(out), rows)
        return out
    before = (slice(None),) * (axis % out.ndim)
    for x in xs:
        copied(out[(*before, slice(first, first + x.shape[axis]))], x)
        first += x.shape[axis]
    return out


@ops.pad.impl("cpu")
def pad_cpu(x: Array, *, widths: tuple[tuple[int, int], ...], value: float) -> Array:
    out = empty(tuple([before + n + after for n, (before, after) in zip(x.shape, widths)]), x.dtype)
    _fill_border(out, widths, value)
    copied(out[(*[slice(before, before + n) for n, (before, _) in zip(x.shape, widths)], ...)], x)
    return out


def _fill_border(out: Array, widths: tuple[tuple[int, int], ...], value: float) -> None:
    """Sets what `widths` leave, before and after each axis."""
    inside: tuple[slice, ...] = ()
    for n, (before, after) in zip(out.shape, widths):
        if before:
            out[(*inside, slice(0, before))] = value
        if after:
            out[(*inside, slice(n - after, n))] = value
        inside = (*inside, slice(before, n - after))


@ops.slice_axes.impl("cpu")
def slice_axes_cpu(x: Array, *, ranges: tuple[ops.Range, ...], shape: Shape, in_place: bool = False) -> Array:
    return contiguous(x[(*_slices(ranges), ...)]).reshape(shape)  # the ellipsis keeps 0-d arrays arrays


@ops.slice_axes_grad.impl("cpu")
def slice_axes_grad_cpu(g: Array, *, ranges: tuple[ops.Range, ...], shape: Shape) -> Array:
    out = empty(shape, g.dtype)
    out.fill(0)
    copied(out[(*_slices(ranges), ...)], g.reshape([count for _, count, _ in ranges]))
    return out


@ops.slice_axes_grad_add.impl("cpu")
def slice_axes_grad_add_cpu(g: Array, onto: Array, *, ranges: tuple[ops.Range, ...], in_place: bool) -> Array:
    out = onto
    if not in_place:
        out = empty_like(onto)
        out[...] = onto
    part = out[(*_slices(ranges), ...)]
    part += g.reshape(part.shape)
    return out


def _check_range(where: str, index: Array, rows: int) -> None:
    if index.size and not 0 <= index.min() <= index.max() < rows:
        raise ShapeError(message(where, f"index ranges from {index.min()} to {index.max()}, there are {rows} rows",
                                 "use indices from 0 on; x[index] takes negative ones, too"))


@ops.take.impl("cpu")
def take_cpu(x: Array, index: Array) -> Array:
    _check_range("take", index, len(x))
    return np.take(x, index, axis=0, out=empty(index.shape + x.shape[1:], x.dtype), mode="clip")


@ops.take_grad.impl("cpu")
def take_grad_cpu(g: Array, index: Array, *, rows: int) -> Array:
    _check_range("take_grad", index, rows)
    out = empty((rows, *g.shape[index.ndim:]), g.dtype)
    order = np.argsort(index, axis=None, kind="stable")
    taken = index.reshape(-1)[order]
    if g.size and native.usable(g):
        _mixed(g, np.searchsorted(taken, np.arange(rows + 1)), order, None, out, 1, index.size, 0)
        return out
    out.fill(0)
    if g.size:
        first = np.flatnonzero(np.append(True, taken[1:] != taken[:-1]))  # of each row
        g = g.reshape(index.size, *out.shape[1:])[order]
        with np.errstate(all="ignore"):
            out[taken[first]] = np.add.reduceat(g, first, axis=0, dtype=np.float64)
    return out


def _mixed(x: Array, starts: Array | None, index: Array, weights: Array | None, y: Array, outer: int, rows: int,
           terms: int) -> None:
    """Calls the kernel of kernels/mix.cpp, of one outer index if there are starts."""
    count = y.shape[0 if starts is not None else 1]
    native.loaded().mix_rows(native.ptr(x), native.ptr(starts), native.ptr(index), native.ptr(weights), native.ptr(y),
                             outer, rows, count, terms, y.size // (outer * count))


@index_ops.mix_rows.impl("cpu")
def mix_rows_cpu(x: Array, index: Array, weights: Array, back_index: Array, back_weights: Array) -> Array:
    _check_range("mix_rows", np.maximum(index, 0), x.shape[1])
    y = empty((len(x), len(index), x.shape[2]), x.dtype)
    if y.size and native.usable(x, weights):
        _mixed(x, None, index, weights, y, len(x), x.shape[1], index.shape[1])
        return y
    y.fill(0)
    with np.errstate(all="ignore"):
        for rows, weight in zip(index.T, weights.T):
            read = (rows >= 0).nonzero()[0]
            y[:, read] += x[:, rows[read]] * weight[read, None]
    return y


@index_ops.argsort_rows.impl("cpu")
def argsort_rows_cpu(x: Array, *, descending: bool) -> Array:
    out = empty(x.shape, "int64")
    if descending:  # of the rows reversed, so that equals keep their order
        np.subtract(x.shape[1] - 1, np.argsort(x[:, ::-1], axis=1, kind="stable")[:, ::-1], out=out)
    else:
        out[...] = np.argsort(x, axis=1, kind="stable")
    return out
