"""Reductions on the GPU (reduce.cu): of rows, of columns, or of what lies between, in one launch.

Which elements meet when depends on the shape alone, so results repeat bit for bit, on every device.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import NamedTuple

import numpy as np

from alpha.core.op import Op
from alpha.cuda.lazy import statistics
from alpha.cuda.ops.pointwise import NUMBERS, STORED, as_float32
from alpha.cuda.runtime.kernel import FLOAT_DTYPES, Kernel, per_dtype
from alpha.cuda.runtime.memory import Array, counters, download, empty
from alpha.cuda.runtime.walk import BLOCKS, LANES, LINE, LONGEST, SUMMERS, THREADS, WALK, walk
from alpha.ops import reduce as ops
from alpha.ops.conv_desc import ceil_div
from alpha.ops.shape import permute

Axes = ops.Axes
Shape = ops.Shape

SMALL_ROW = 8      # pieces per thread up to which a warp takes a row

_cached = lru_cache(maxsize=1024)
_ROWS, _COLUMNS = "i64 outer, i64 count, i64 chunk, i32 chunks, i32 width, i32 aligned", f"i64 inner, {WALK}"


class Fold(NamedTuple):
    """The kernels of one reduction, by what they fold and by dtype; and the bytes of a state by dtype."""

    kernels: dict[str, dict[str, Kernel]]
    state: dict[str, int]


def _fold(name: str, state: dict[str, int], *more: str) -> Fold:
    return Fold({of: per_dtype("reduce.cu", f"{name}_{of}", "ptr x, ptr partial, ptr arrived, ptr y, i32 wide, "
                               f"f32 divisor, {_ROWS if of == 'rows' else _COLUMNS}", dtypes=state)
                 for of in ("rows", "columns", *more)}, state)


_SUM = _fold("sum", {dtype: 4 if dtype in FLOAT_DTYPES else 8 for dtype in NUMBERS}, "wide_columns")
_MAX, _MIN = (_fold(name, {dtype: 8 if dtype == "int64" else 4 for dtype in NUMBERS}) for name in ("max", "min"))
_ARGMAX = _fold("argmax", dict.fromkeys(NUMBERS, 16))
_VAR = _fold("var", dict.fromkeys(FLOAT_DTYPES, 12))


class _Plan(NamedTuple):
    order: Shape | None      # axes to permute first
    of: str                  # rows, columns, or wide_columns, which are read 16 bytes at a time
    chunks: int
    grid: int
    args: tuple              # of the kernel, behind its results; the last one, for columns, says how it walks


def _view(shape: Shape, axes: Shape) -> tuple[int, int, int] | None:
    """Returns (outer, count, inner) if the reduced axes are neighbours, but for axes of length 1, else None."""
    if 0 in shape:
        return prod([n for k, n in enumerate(shape) if k not in axes]), 0, 1
    kinds = [(n, k in axes) for k, n in enumerate(shape) if n > 1]
    first = next((k for k, (_, reduced) in enumerate(kinds) if reduced), len(kinds))
    behind = next((k for k in range(first, len(kinds)) if not kinds[k][1]), len(kinds))
    if any(reduced for _, reduced in kinds[behind:]):
        return None
    outer, count, inner = (prod([n for n, _ in part]) for part in (kinds[:first], kinds[first:behind], kinds[behind:]))
    return (outer, count, inner) if count > 1 else (outer * inner, 1, 1)


@_cached
def _plan(shape: Shape, axes: Shape, lanes: int, may_be_wide: bool) -> _Plan:
    view, order = _view(shape, axes), None
    if view is None:
        kept = [k for k in range(len(shape)) if k not in axes]
        order = (*kept, *axes)
        view = prod([shape[k] for k in kept]), prod([shape[k] for k in axes]), 1
    outer, count, inner = view
    if inner > 1:
        wide = may_be_wide and inner % lanes == 0
        pieces = inner // lanes if wide else inner
        w = walk(count, outer * pieces, *SUMMERS, LINE if wide else LINE * lanes)
        return _Plan(order, "wide_columns" if wide else "columns", w.chunks, w.grid, (pieces, w.block))
    width, chunk = _row_threads(outer, count, lanes)
    chunks = max(1, ceil_div(count, chunk))
    aligned = outer == 1 or count % lanes == 0
    return _Plan(order, "rows", chunks, ceil_div(outer * chunks, THREADS // width),
                 (outer, count, chunk, chunks, width, int(aligned)))


def row_width(pieces: int) -> int:
    """Returns how many threads take a row: a power of two up to a warp, or a block."""
    return THREADS if pieces > 32 * SMALL_ROW else min(32, 1 << max(0, pieces - 1).bit_length())


def _row_threads(outer: int, count: int, lanes: int) -> tuple[int, int]:
    """Returns how many threads take a chunk of a row, and how many elements a chunk has, a multiple of `lanes`."""
    pieces = ceil_div(count, lanes)
    width = row_width(pieces)
    if width < THREADS:
        return width, max(1, pieces) * lanes
    per_round = THREADS * lanes
    rounds = ceil_div(count, ceil_div(BLOCKS, outer) * per_round)
    return THREADS, per_round * min(LONGEST, max(4, rounds))


def reduce(fold: Fold, x: Array, axes: Shape, shape: Shape, dtype: str, divisor: float = 1.0) -> Array:
    """Returns x reduced over `axes`, ascending, in an array of the given shape and dtype."""
    y = empty(shape, dtype)
    if not y.size:
        return y
    stored = STORED.get(x.dtype, x.dtype)
    plan = _plan(x.shape, axes, LANES[stored], fold is _SUM)
    if plan.order:
        x = permute.impls["cuda"](x, axes=plan.order)
    partial = arrived = None
    if plan.chunks > 1:
        partial = empty((y.size * plan.chunks * fold.state[stored],), "uint8")
        arrived = counters(plan.grid // plan.chunks)  # each of what several chunks meet in
    results = partial, arrived, y, dtype == "float32", divisor  # sums of 16-bit elements may stay as they were made
    fold.kernels[plan.of][stored](plan.grid, x, *results, *plan.args)
    return y


@ops.sum.impl("cuda")
def sum_cuda(x: Array, *, axis: Axes, keepdims: bool, dtype: str | None) -> Array:
    result = dtype or (x.dtype if x.dtype in FLOAT_DTYPES else "int64")
    shape = ops.reduced_shape(x.shape, axis, keepdims, "sum")
    return reduce(_SUM, x, ops.normal_axes(axis, x.ndim, "sum"), shape, result)


@ops.bias_grad.impl("cuda")
def bias_grad_cuda(g: Array, *, dtype: str | None) -> Array:
    known = statistics.take(g, statistics.SUMS) if (dtype or g.dtype) == "float32" else None
    return known or sum_cuda(g, axis=tuple(range(g.ndim - 1)), keepdims=False, dtype=dtype)


@ops.mean.impl("cuda")
def mean_cuda(x: Array, *, axis: Axes, keepdims: bool) -> Array:
    shape, count = ops.reduced_shape(x.shape, axis, keepdims, "mean"), ops.reduced_count(x.shape, axis, "mean")
    return reduce(_SUM, x, ops.normal_axes(axis, x.ndim, "mean"), shape, x.dtype, count)


@ops.sum_to.impl("cuda")
def sum_to_cuda(x: Array, *, shape: Shape) -> Array:
    return reduce(_SUM, x, ops.repeated_axes(x.shape, shape), shape, x.dtype)


@ops.var.impl("cuda")
def var_cuda(x: Array, *, axis: Axes, keepdims: bool, correction: int) -> Array:
    shape, count = ops.reduced_shape(x.shape, axis, keepdims, "var"), ops.reduced_count(x.shape, axis, "var")
    return reduce(_VAR, x, ops.normal_axes(axis, x.ndim, "var"), shape, x.dtype, count - correction)


def _extremum(op: Op, fold: Fold, dtype: str = "") -> None:
    @op.impl("cuda")
    def run(x: Array, *, axis: Axes, keepdims: bool) -> Array:
        shape = ops.reduced_shape(x.shape, axis, keepdims, op.name)
        return reduce(fold, x, ops.normal_axes(axis, x.ndim, op.name), shape, dtype or x.dtype)


_extremum(ops.max, _MAX)
_extremum(ops.min, _MIN)
_extremum(ops.argmax, _ARGMAX, "int64")


def has_nan(x: Array) -> bool:
    """Tells whether floating x holds a NaN, which is the largest of all.  Waits for the device."""
    return bool(np.isnan(download(as_float32(reduce(_MAX, x, tuple(range(x.ndim)), (), x.dtype)), "float32")))
