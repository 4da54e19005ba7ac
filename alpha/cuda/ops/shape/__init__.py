"""Movement of elements on the GPU (shape.cu).  How an array is cut into boxes follows from shapes alone."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import NamedTuple

from alpha.cuda import lazy
from alpha.cuda.ops.pointwise import NUMBERS, as_int64, filled, pattern_of
from alpha.cuda.ops.pointwise.layout import RANK, division, layout_type, packed
from alpha.cuda.runtime.kernel import FLOAT_DTYPES, Kernel, per_dtype
from alpha.cuda.runtime.memory import ITEMSIZE, Array, Shape, empty, offset
from alpha.cuda.runtime.walk import THREADS
from alpha.ops import shape as ops
from alpha.ops.index import argsort_rows
from alpha.ops.layout import merged, strides_of

Axes = ops.Axes

UNITS = 4      # moved by a thread in one pass
NARROW = 16    # a matrix narrower than this is transposed as a box: tiles would be mostly empty
COLUMNS = 128  # of take_grad that a warp adds in one pass

_FRAME = struct.Struct(f"@{2 * RANK}q")  # what a Frame of shape.cu has behind its Layout
_COPY_BOX, _TRANSPOSE, _PAD, _TAKE = (
    {size: Kernel("shape.cu", f"{name}_{size}", args) for size in (1, 2, 4, 8, 16)}
    for name, args in (("copy_box", f"ptr from, ptr to, i64 n, {layout_type(2)} layout"),
                       ("transpose", "ptr x, ptr y, i64 batches, i64 rows, i64 columns"),
                       ("pad", f"ptr from, ptr to, u64 pattern, i64 n, {layout_type(1, _FRAME.size)} frame"),
                       ("take", "ptr x, ptr index, ptr y, i64 n, i64 units, u64 magic, i32 shift, i64 rows, i32 nan")))
_TAKE_GRAD = per_dtype("shape.cu", "take_grad", "ptr g, ptr index, ptr dx, i64 count, i64 rows, i64 columns")
_ARGSORT = per_dtype("shape.cu", "argsort", "ptr x, ptr y, i64 n, i64 columns, i32 descending",
                     dtypes=NUMBERS)
_cached = lru_cache(maxsize=1024)


class Move(NamedTuple):
    """A launch that copies elements: of copy_box, of transpose, or of pad."""

    kernel: Kernel
    blocks: int
    args: tuple      # behind both arrays
    start: int = 0   # bytes of the array that is read before its first element, and of the one that is written
    target: int = 0

    def copy(self, x: Array, y: Array) -> None:
        self.kernel(self.blocks, offset(x, self.start), offset(y, self.target), *self.args)

    def copied(self, x: Array, shape: Shape) -> Array:
        self.copy(x, y := empty(shape, x.dtype))
        return y


def together(itemsize: int, numbers: Sequence[int]) -> int:
    """Returns how many elements may be moved as a unit, if all of these numbers of elements are multiples of it."""
    return max([k for k in (1, 2, 4, 8, 16) if k * itemsize <= 16 and not any(n % k for n in numbers)])


def _box(where: str, sizes: Shape, source: Shape, destination: Shape, itemsize: int,
         start: int = 0, target: int = 0) -> Move:
    """Plans the copy of a box of elements.

    Args:
        sizes: of the box.
        source, destination: strides of its axes, in elements, in the array that is read and in the one that is written.
        start, target: index of its first element in them.
    """
    if 0 in sizes:
        return Move(_COPY_BOX[itemsize], 0, (0, b""))
    box, strides = merged(sizes, (source, destination))
    units = 1  # elements together
    if strides[0][0] == strides[1][0] == 1:
        outer = (box[0], start, target, *strides[0][1:], *strides[1][1:])
        units = together(itemsize, outer)
    box = (box[0] // units, *box[1:])
    strides = [(s[0], *[step // units for step in s[1:]]) for s in strides]
    n, unit = prod(box), units * itemsize
    layout = packed(where, *merged(box[::-1], [s[::-1] for s in strides]))
    return Move(_COPY_BOX[unit], -(-n // (THREADS * UNITS)), (n, layout), start * itemsize, target * itemsize)


@ops.reshape.impl("cuda")
def reshape_cuda(x: Array, *, shape: Shape) -> Array:
    if -1 in shape:
        left = x.size // -prod(shape)
        shape = tuple([left if n == -1 else n for n in shape])
    return x.reshaped(shape)


# ---- axes ------------------------------------------------------------------------------------------------------------
def _moved(x: Array, shape: Shape, move: Move | None) -> Array:
    return x.reshaped(shape) if move is None else move.copied(x, shape)


@_cached
def _permutation(shape: Shape, axes: Shape, itemsize: int) -> tuple[Shape, Move | None]:
    """Returns the shape of the result and the launch that makes it; None where no element changes its place."""
    axes = tuple([k % len(shape) for k in axes])
    sizes = tuple([shape[k] for k in axes])
    if 0 in sizes:
        return sizes, None
    strides = strides_of(shape)
    source, destination = tuple([strides[k] for k in axes]), strides_of(sizes)
    box, (steps, _) = merged(sizes, (source, destination))
    if len(box) == 1:
        return sizes, None
    rows, columns = box[:2]
    matrices = steps[:2] == (columns, 1) and steps[2:] in ((), (rows * columns,))
    if matrices and min(rows, columns) >= NARROW:
        batches, side = prod(box[2:]), 64 if itemsize < 4 else 32
        tiles = batches * -(-rows // side) * -(-columns // side)
        return sizes, Move(_TRANSPOSE[itemsize], tiles, (batches, rows, columns))
    return sizes, _box("permute", sizes, source, destination, itemsize)


@ops.permute.impl("cuda")
def permute_cuda(x: Array, *, axes: Shape) -> Array:
    return _moved(x, *_permutation(x.shape, axes, ITEMSIZE[x.dtype]))


@_cached
def _flip(shape: Shape, axis: Axes, itemsize: int) -> Move:
    flipped = ops.normal_axes(axis, len(shape), "flip")
    strides = strides_of(shape)
    back = tuple([-step if k in flipped else step for k, step in enumerate(strides)])
    return _box("flip", shape, back, strides, itemsize, sum([(shape[k] - 1) * strides[k] for k in flipped]))


@ops.flip.impl("cuda")
def flip_cuda(x: Array, *, axis: Axes) -> Array:
    return _flip(x.shape, axis, ITEMSIZE[x.dtype]).copied(x, x.shape)


@_cached
def _expansion(old: Shape, shape: Shape, itemsize: int) -> tuple[Shape, Move | None]:
    new = len(shape) - len(old)
    sizes = tuple([old[k - new] if n == -1 else n for k, n in enumerate(shape)])
    if prod(sizes) == prod(old):
        return sizes, None
    source = (0,) * new + tuple([0 if n == 1 else step for n, step in zip(old, strides_of(old))])
    return sizes, _box("expand", sizes, source, strides_of(sizes), itemsize)


@ops.expand.impl("cuda")
def expand_cuda(x: Array, *, shape: Shape) -> Array:
    return _moved(x, *_expansion(x.shape, shape, ITEMSIZE[x.dtype]))


# ---- parts -----------------------------------------------------------------------------------------------------------
@_cached
def part(where: str, whole: Shape, ranges: tuple[ops.Range, ...], itemsize: int, write: bool) -> Move:
    """Plans the copy between a part of an array, (first index, number of indices, step) along each axis, and an array
    of its own: the part is written, or read.
    """
    sizes, strides = tuple([count for _, count, _ in ranges]), strides_of(whole)
    steps = tuple([stride * step for stride, (_, _, step) in zip(strides, ranges)])
    first = sum([stride * start for stride, (start, _, _) in zip(strides, ranges)])
    if write:
        return _box(where, sizes, strides_of(sizes), steps, itemsize, target=first)
    return _box(where, sizes, steps, strides_of(sizes), itemsize, start=first)


@_cached
def _is_whole(whole: Shape, ranges: tuple[ops.Range, ...]) -> bool:
    return all(start == 0 and count == n and (step == 1 or n == 1) for n, (start, count, step) in zip(whole, ranges))


@ops.slice_axes.impl("cuda")
def slice_axes_cuda(x: Array, *, ranges: tuple[ops.Range, ...], shape: Shape, in_place: bool = False) -> Array:
    if _is_whole(x.shape, ranges):
        return x.reshaped(shape)
    move, found = part("slice_axes", x.shape, ranges, ITEMSIZE[x.dtype], False), None
    if in_place and x.dtype in FLOAT_DTYPES and _is_whole(x.shape[:-1], ranges[:-1]) and ranges[-1][2] == 1:
        found = lazy.columns(x, *ranges[-1][:2], move.copy)
    return move.copied(x, shape) if found is None else found


def first_columns(x: Array, count: int) -> Array:
    """Returns the first columns of an array that nobody else has: read where they are, or copied for who cannot."""
    shape = (*x.shape[:-1], count)
    return slice_axes_cuda(x, ranges=tuple([(0, n, 1) for n in shape]), shape=shape, in_place=True)


@ops.slice_axes_grad.impl("cuda")
def slice_axes_grad_cuda(g: Array, *, ranges: tuple[ops.Range, ...], shape: Shape) -> Array:
    if _is_whole(shape, ranges):
        return g.reshaped(shape)
    if all(count and (step == 1 or count == 1) for _, count, step in ranges):
        counts = tuple([count for _, count, _ in ranges])
        widths = tuple([(start, n - start - count) for n, (start, count, _) in zip(shape, ranges)])
        return pad_cuda(g.reshaped(counts), widths=widths, value=0)
    dx = filled(shape, 0, g.dtype)
    part("slice_axes_grad", shape, ranges, ITEMSIZE[g.dtype], True).copy(g, dx)
    return dx


@_cached
def _padding(shape: Shape, widths: tuple[tuple[int, int], ...], pattern: int, itemsize: int) -> tuple[Shape, Move]:
    """Returns the shape of an array with another one inside, `pattern` around that, and the launch that writes it."""
    axes: list[tuple[int, int, int, int]] = []  # the innermost first: length in the result, [low, high) of x, stride
    for n, (before, after), stride in reversed(list(zip(shape, widths, strides_of(shape)))):
        length, inner = before + n + after, axes[-1] if axes else None
        if inner and inner[1] == 0 and inner[2] == inner[0]:  # it is x alone: both axes are one
            axes[-1] = (length * inner[0], before * inner[0], (before + n) * inner[0], inner[3])
        elif length > 1 or not n:
            axes.append((length, before, before + n, stride))
    first, *outer = axes or [(1, 0, 1, 1)]
    steps = (*first[:3], *[stride for *_, stride in outer])
    units = together(itemsize, steps)
    first = (first[0] // units, first[1] // units, first[2] // units, 1)
    axes = [first, *[(*ends, stride // units) for *ends, stride in outer]]  # in units
    sizes, low, high, strides = ([axis[k] for axis in axes] for k in range(4))
    layout, room = packed("pad", tuple(sizes), [tuple(strides)]), (0,) * (RANK - len(axes))
    n, unit = prod(sizes), units * itemsize
    origin = sum([start * stride for start, stride in zip(low, strides)]) * unit    # from where unit 0 would be read
    return tuple([before + n + after for n, (before, after) in zip(shape, widths)]), Move(
        _PAD[unit], -(-n // (THREADS * UNITS)), (pattern, n, layout + _FRAME.pack(*low, *room, *high, *room)), -origin)


@ops.pad.impl("cuda")
def pad_cuda(x: Array, *, widths: tuple[tuple[int, int], ...], value: float) -> Array:
    shape, move = _padding(x.shape, widths, pattern_of(value, x.dtype), ITEMSIZE[x.dtype])
    return move.copied(x, shape)


# ---- order -----------------------------------------------------------------------------------------------------------
@argsort_rows.impl("cuda")
def argsort_rows_cuda(x: Array, *, descending: bool) -> Array:
    y = empty(x.shape, "int64")
    if y.size:
        _ARGSORT[x.dtype](-(-y.size // THREADS), x, y, y.size, x.shape[1], int(descending))
    return y


# ---- rows by their numbers -------------------------------------------------------------------------------------------
@ops.take.impl("cuda")
def take_cuda(x: Array, index: Array) -> Array:
    index = as_int64(index)
    y = empty(index.shape + x.shape[1:], x.dtype)
    if y.size:  # x has rows, ops.take has looked
        nbytes, floats = y.nbytes // index.size, int(x.dtype in FLOAT_DTYPES)    # of a row
        unit = min(16, nbytes & -nbytes)
        n, units = y.nbytes // unit, nbytes // unit
        _TAKE[unit](-(-n // (THREADS * UNITS)), x, index, y, n, units, *division(units), x.shape[0], floats)
    return y


@ops.take_grad.impl("cuda")
def take_grad_cuda(g: Array, index: Array, *, rows: int) -> Array:
    index = as_int64(index)
    dx = empty((rows, *g.shape[index.ndim:]), g.dtype)
    columns = prod(dx.shape[1:])
    warps = rows * -(-columns // COLUMNS)
    _TAKE_GRAD[g.dtype](-(-warps * 32 // THREADS), g, index, dx, index.size, rows, columns)
    return dx
