"""Joining arrays on the GPU: copies of boxes, or of what may consist of planes (kernels/concat_planes.cu)."""

from __future__ import annotations

from functools import lru_cache
from functools import partial as partial_of
from math import prod
from typing import NamedTuple

from alpha.cuda.bounded import reserve_for
from alpha.cuda.deferred import GUARDED, Memory, later, stored
from alpha.cuda.kernel import Kernel
from alpha.cuda.memory import ITEMSIZE, Array, Shape, empty
from alpha.cuda.operand import lost_ranges
from alpha.cuda.reduce import BLOCKS, THREADS, WALK, Walk, walk
from alpha.cuda.shape import Box, part
from alpha.ops.shape import concat

LANES = 4  # elements that a thread takes at once
_STORED = "ptr x, ptr header_of_x, ptr y"
_PLANES = Kernel("concat_planes.cu", "concat_planes", f"{_STORED}, ptr header, i64 columns, i64 first, i32 blocks, "
                 f"ptr lost_ranges, {WALK}", threads=THREADS)
_ELEMENTS = Kernel("concat_planes.cu", "concat_stored", f"{_STORED}, i64 columns, i64 first, ptr flag, {WALK}",
                   threads=THREADS)


class _Rows(NamedTuple):
    """The rows of a part: where they begin in those of the whole, and how many blocks go through them, at most."""

    first: int
    walks: dict[int, Walk]


@lru_cache(maxsize=1024)
def _joint(shapes: tuple[Shape, ...], axis: int) -> tuple[Shape, tuple[int, ...]]:
    """Returns the shape of the whole, and where each part begins along the axis."""
    first, axis = shapes[0], axis % len(shapes[0])
    sizes = [s[axis] for s in shapes]
    return (*first[:axis], sum(sizes), *first[axis + 1:]), tuple([sum(sizes[:k]) for k in range(len(sizes))])


@lru_cache(maxsize=1024)
def _boxes(shapes: tuple[Shape, ...], axis: int, itemsize: int) -> tuple[Box, ...]:
    whole, begins = _joint(shapes, axis)
    return tuple([part("concat", whole, tuple([(begin if k == axis % len(s) else 0, n, 1) for k, n in enumerate(s)]),
                       itemsize, write=True) for s, begin in zip(shapes, begins)])


@lru_cache(maxsize=1024)
def _rows(shapes: tuple[Shape, ...], axis: int) -> tuple[int, tuple[_Rows, ...]]:
    """Returns the elements of a row of the whole, and the rows of each part: what is behind the axes before `axis`."""
    whole, begins = _joint(shapes, axis)
    axis %= len(whole)
    rows, inner = prod(whole[:axis]), prod(whole[axis + 1:])
    return whole[axis] * inner, tuple([
        _Rows(begin * inner, {blocks: walk(rows, s[axis] * inner // LANES, blocks) for blocks in (BLOCKS, GUARDED)})
        for s, begin in zip(shapes, begins)])


@concat.impl("cuda")
def concat_cuda(xs: list[Array], *, axis: int) -> Array:
    shapes = tuple([x.shape for x in xs])
    shape, _ = _joint(shapes, axis)
    memory = reserve_for(shape, xs)
    if memory:
        return later(memory, xs, partial_of(_write, tuple(xs), axis))
    y = empty(shape, xs[0].dtype)
    for x, box in zip(xs, _boxes(shapes, axis, ITEMSIZE[y.dtype])):
        box.copy(x, y)
    return y


def _write(xs: tuple[Array, ...], axis: int, memory: Memory, planes: bool) -> None:
    """Writes the whole as planes, or its elements; as elements too where planes turn out not to hold it."""
    y, header, flag = memory
    columns, parts = _rows(tuple([x.shape for x in xs]), axis)
    held = [stored(x, write=planes) for x in xs]
    if planes:
        blocks = sum([rows.walks[BLOCKS].grid for rows in parts])
        for x, rows in zip(held, parts):
            w = rows.walks[BLOCKS]
            _PLANES(w.grid, *x, y, header, columns, rows.first, blocks, lost_ranges(), w.block)
    for x, rows in zip(held, parts):
        w = rows.walks[GUARDED if planes else BLOCKS]
        _ELEMENTS(w.grid, *x, y, columns, rows.first, flag if planes else None, w.block)
