"""Joining arrays on the GPU: parts that lie side by side in rows of the whole, in one launch (shape.cu); or parts that
may consist of planes (lazy/planes.cu).

Where all parts have bounds the whole waits for its reader (lazy/deferred.py). Is it written as planes, parts of
batch norm that wait themselves are written where they belong in it, by their own pass: nothing is copied.
"""

from __future__ import annotations

import struct
from functools import lru_cache, partial
from math import prod
from typing import NamedTuple

from alpha.cuda import lazy
from alpha.cuda.lazy import Memory, Rows
from alpha.cuda.ops.pointwise.layout import division
from alpha.cuda.ops.shape import UNITS, together
from alpha.cuda.runtime import memory as device_memory
from alpha.cuda.runtime.kernel import Kernel
from alpha.cuda.runtime.memory import ITEMSIZE, Array, Shape, empty
from alpha.cuda.runtime.walk import BLOCKS, THREADS, WALK, walk
from alpha.ops.shape import concat

LANES = 4  # elements that a thread takes at once
PARTS = 8  # that a launch joins; shape.cu knows it too
_TABLE = struct.Struct(f"@{PARTS}Q{PARTS + 1}qQq")
_JOIN = {size: Kernel("shape.cu", f"join_{size}", f"block[{_TABLE.size}] parts, ptr y, i64 n, i64 columns, i64 pitch")
         for size in (1, 2, 4, 8, 16)}
_STORED = "ptr x, ptr header_of_x, ptr y"
_PLANES = Kernel("planes.cu", "concat_planes", f"{_STORED}, ptr header, i64 columns, i64 first, i32 blocks, "
                 f"ptr lost_ranges, {WALK}")
_ELEMENTS = Kernel("planes.cu", "concat_stored", f"{_STORED}, i64 columns, i64 first, ptr flag, {WALK}")


@lru_cache(maxsize=1024)
def _joint(shapes: tuple[Shape, ...], axis: int) -> tuple[Shape, tuple[int, ...]]:
    """Returns the shape of the whole, and where each part begins along the axis."""
    first, axis = shapes[0], axis % len(shapes[0])
    sizes = [s[axis] for s in shapes]
    return (*first[:axis], sum(sizes), *first[axis + 1:]), tuple([sum(sizes[:k]) for k in range(len(sizes))])


class _Joining(NamedTuple):
    """A launch that joins parts begin .. end - 1."""

    begin: int
    end: int
    kernel: Kernel
    blocks: int
    rest: tuple[int, ...]   # what follows the addresses in the table
    sizes: tuple[int, int, int]


@lru_cache(maxsize=1024)
def _joinings(shapes: tuple[Shape, ...], axis: int, itemsize: int) -> tuple[_Joining, ...]:
    """Returns the launches that join parts, none of which is empty."""
    whole, begins = _joint(shapes, axis)
    axis %= len(whole)
    rows, inner = prod(whole[:axis]), prod(whole[axis + 1:])
    unit = together(itemsize, [s[axis] * inner for s in shapes])
    edges, found = [begin * inner // unit for begin in (*begins, whole[axis])], []
    for begin in range(0, len(shapes), PARTS):
        end = min(begin + PARTS, len(shapes))
        first = edges[begin:end + 1]
        columns = first[-1] - first[0]
        n, room = rows * columns, (first[-1],) * (begin + PARTS - end)
        found.append(_Joining(begin, end, _JOIN[unit * itemsize], -(-n // (THREADS * UNITS)),
                              (*(0,) * len(room), *first, *room, *division(columns)), (n, columns, edges[-1])))
    return tuple(found)


@lru_cache(maxsize=1024)
def _rows(shapes: tuple[Shape, ...], axis: int, blocks: int) -> tuple[Rows, ...]:
    """Returns the part that each array is of the whole, whose rows are what is behind the axes before `axis`.

    Args:
        blocks: that go through a part, more or less.
    """
    whole, begins = _joint(shapes, axis)
    axis %= len(whole)
    count, inner = prod(whole[:axis]), prod(whole[axis + 1:])
    widths = [s[axis] * inner for s in shapes]
    walks = [walk(count, width // LANES, blocks) for width in widths]
    total = sum([w.grid for w in walks])
    return tuple([Rows(whole[axis] * inner, begin * inner, width, w, total)
                  for begin, width, w in zip(begins, widths, walks)])


@concat.impl("cuda")
def concat_cuda(xs: list[Array], *, axis: int) -> Array:
    shapes = tuple([x.shape for x in xs])
    shape, _ = _joint(shapes, axis)
    memory = lazy.reserve_for(shape, xs)
    if memory:
        return lazy.defer(memory, xs, partial(_write, tuple(xs), axis))
    y, full = empty(shape, xs[0].dtype), [x for x in xs if x.size]
    for each in _joinings(tuple([x.shape for x in full]), axis, ITEMSIZE[y.dtype]) if full else ():
        parts = full[each.begin:each.end]
        table = _TABLE.pack(*[x.ptr for x in parts], *each.rest)
        if device_memory.recorder:  # which does not see what is in a table
            device_memory.recorder.hold(parts)
        each.kernel(each.blocks, table, y, *each.sizes)
    return y


def _write(xs: tuple[Array, ...], axis: int, memory: Memory, planes: bool) -> None:
    """Writes the whole as planes, or its elements; as elements too where planes turn out not to hold it."""
    shapes = tuple([x.shape for x in xs])
    if planes:
        for x, rows in zip(xs, _rows(shapes, axis, BLOCKS)):
            if lazy.join(x, memory, rows) is None:  # which had no pass of its own that waited
                _PLANES(rows.walk.grid, *lazy.split_view(x, write=True), memory.elements, memory.scale, rows.columns,
                        rows.first, rows.blocks, lazy.flag_counter(), rows.walk.block)
    for x, rows in zip(xs, _rows(shapes, axis, lazy.GUARDED if planes else BLOCKS)):
        joined = lazy.join(x, memory, None) if planes else None
        held = (joined, None) if joined else lazy.split_view(x)
        _ELEMENTS(rows.walk.grid, *held, memory.elements, rows.columns, rows.first,
                  memory.flag if planes else None, rows.walk.block)
