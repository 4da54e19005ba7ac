"""Pooling on the GPU (pool.cu): a thread per packet of channels, and the gradients as gathers.

Where the operand has a bound, and convolutions read planes of float32, the result of a forward pass waits for its
reader (lazy/deferred.py), but for the mean of a whole map, and so does the gradient of maxima where windows do not
overlap; pool_planes.cu reads and writes planes then.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache, partial
from math import prod
from typing import Any, NamedTuple

from alpha.cuda import lazy
from alpha.cuda.lazy import Memory
from alpha.cuda.ops.pointwise import as_int64
from alpha.cuda.ops.reduce import mean_cuda
from alpha.cuda.runtime.kernel import Kernel, per_dtype
from alpha.cuda.runtime.memory import Array, empty
from alpha.cuda.runtime.walk import CHAIN, LANES, THREADS, per_piece
from alpha.ops import pool as ops
from alpha.ops.conv_desc import Pair, Shape, ceil_div

MAX_THREADS = 1 << 30    # of a launch; a kernel counts them in 31 bits
ENOUGH_THREADS = 1 << 20  # more of them take several images each, up to MAX_IMAGES
STRIP = 4, 32            # rows of a strip, of which there are as many as give
STRIP_THREADS = 1 << 18  # so many threads
MAX_IMAGES = 8           # but for what writes planes, and for what ends at once as a rule
TILE = 2                 # input pixels along an axis that a thread of a gradient takes
SCATTER_POSITIONS = 128  # of a map, per block: POSITIONS of each of its warps
_GEOMETRY = struct.Struct("@" + ("2i" + 4 * "iIi") * 2 + "iIi 2i f 2i")  # Pool in pool.cuh
_POOL = f"block[{_GEOMETRY.size}] pool, i32 threads"

Kernels = dict[tuple[str, bool], Kernel]


def _kernels(entry: str, arrays: str) -> Kernels:
    return per_piece("pool.cu", entry, f"{_POOL}, {arrays}")


class _Bounded(NamedTuple):
    """The kernels of a pass: from and to elements; what reads planes too, and writes planes or elements."""

    elements: Kernels
    planes: Kernel
    stored: Kernel


def _bounded(entry: str, more: str = "") -> _Bounded:
    """Returns them; `more`: what they write, or read, besides."""
    args = f"{_POOL}, {more}ptr x, ptr header_of_x, ptr y, "
    planes, elements = (Kernel("pool_planes.cu", f"{entry}_{form}", args + last)
                        for form, last in (("planes", "ptr header, ptr lost_ranges"), ("stored", "ptr flag")))
    return _Bounded(_kernels(entry, f"{more}ptr x, ptr y"), planes, elements)


# By how maxima are named: with ih * IW + iw, or in a byte; and, as to bytes, by strips of 3 x 3 windows.
_WIDE, _NAMED, _ROWS = (_bounded(f"max_pool{form}", "ptr index, ") for form in ("_wide", "", "_rows"))
_AVG, _BACKWARD = _bounded("avg_pool"), _bounded("max_pool_backward", "ptr index, ")
_WIDE_BACKWARD, _ROWS_BACKWARD = (_kernels(f"max_pool_backward{form}", "ptr index, ptr g, ptr dx")
                                  for form in ("_wide", "_rows"))
_INDEX = Kernel("pool.cu", "max_pool_index", f"{_POOL}, ptr place, ptr index")
_AVG_BACKWARD = _kernels("avg_pool_backward", "ptr g, ptr dx")
_GATHER = _kernels("gather", "ptr x, ptr index, ptr y")
_SCATTER = per_dtype("pool.cu", "scatter", "ptr x, ptr index, ptr y, i64 columns, i32 channels, i32 outputs, "
                     "i32 positions")


class _Plan(NamedTuple):
    """How a pool is launched, and the shape of its result forward."""

    y_shape: Shape
    packets: bool
    geometry: bytes
    blocks: int
    threads: int


class _Window(NamedTuple):
    """A pool along one axis; kernel 0 stands for adaptive windows."""

    inputs: int
    outputs: int
    kernel: int = 0
    stride: int = 1
    padding: int = 0

    @property
    def overlap(self) -> int:
        """How many windows an input pixel is in, at most."""
        return ceil_div(self.kernel, self.stride) if self.kernel else ceil_div(self.outputs, self.inputs) + 1


@lru_cache(maxsize=1024)
def _plan(n: int, channels: int, h: _Window, w: _Window, divisor: int, over: str, lanes: int, blocks: int = 0) -> _Plan:
    """Returns the plan of a kernel.

    Args:
        over: what threads take: "outputs", "inputs" in tiles, or strips: "output strips", "input strips".
        blocks: that are enough, however many images a thread takes then; 0: up to MAX_IMAGES.
    """
    packets = channels % lanes == 0 and not (over == "inputs" and h.overlap * w.overlap > CHAIN)
    per_pixel = channels // lanes if packets else channels
    tiles = [axis.outputs if over.startswith("output") else axis.inputs for axis in (h, w)]
    if over == "inputs":
        tiles = [ceil_div(tile, TILE) for tile in tiles]
    if over.endswith("strips"):
        most, least = (ceil_div(tiles[0], rows) for rows in STRIP)
        tiles[0] = max(least, min(most, ceil_div(STRIP_THREADS, n * tiles[1] * per_pixel)))
    per_image = tiles[0] * tiles[1] * per_pixel
    images = max(1, n * per_image // (blocks * THREADS or ENOUGH_THREADS))
    images = min(images, n if blocks else MAX_IMAGES)
    apart = min(ceil_div(n, images), max(1, MAX_THREADS // per_image))
    axes = [value for axis, tile in zip((h, w), tiles)
            for value in (axis.kernel, axis.padding, *_size(axis.inputs), *_size(axis.outputs), *_size(axis.stride),
                          *_size(tile))]
    geometry = _GEOMETRY.pack(*axes, *_size(per_pixel), channels, divisor, 1 / divisor if divisor else 0.0, n, apart)
    return _Plan((n, h.outputs, w.outputs, channels), packets, geometry, ceil_div(apart * per_image, THREADS),
                 apart * per_image)


def _size(n: int) -> tuple[int, int, int]:
    """Returns n, multiplier and shift: k // n == (k * multiplier // 2**32 + k) >> shift for 0 <= k < 2**31.

    Source: T. Granlund, P. L. Montgomery, "Division by Invariant Integers using Multiplication", PLDI 1994, figure 4.1.
    """
    shift = (n - 1).bit_length()
    return n, ((1 << 32) * ((1 << shift) - n)) // n + 1, shift


def _launch(kernels: Kernels, dtype: str, plan: _Plan, *arrays: Array) -> Array:
    """Returns the last array, which the kernel writes."""
    kernels[dtype, plan.packets](plan.blocks, plan.geometry, plan.threads, *arrays)
    return arrays[-1]


@lru_cache(maxsize=1024)
def _windowed(where: str, x_shape: Shape, over: str, lanes: int, blocks: int = 0, *, kernel_size: Pair,
              stride: Pair, padding: Pair, count_include_pad: bool = True) -> _Plan:
    """Returns the plan of a pool with windows of one size."""
    h, w = (_Window(a.i, a.o, a.f, a.s, a.p) for a in ops.pool_axes(where, x_shape, kernel_size, stride, padding))
    divisor = h.kernel * w.kernel if count_include_pad or padding == (0, 0) else 0
    return _plan(x_shape[0], x_shape[3], h, w, divisor, over, lanes, blocks)


@lru_cache(maxsize=1024)
def _adaptive(average: bool, x_shape: Shape, output_size: Pair, over: str, lanes: int, blocks: int = 0) -> _Plan:
    """Returns the plan of an adaptive pool.  An average is a plain one where all windows have one size."""
    axes = tuple(zip(x_shape[1:3], output_size))
    if not average or any(i % o for i, o in axes):
        h, w, divisor = *(_Window(i, o) for i, o in axes), 0
    else:
        h, w = (_Window(i, o, i // o, i // o) for i, o in axes)
        divisor = h.kernel * w.kernel
    return _plan(x_shape[0], x_shape[3], h, w, divisor, over, lanes, blocks)


# ---- forward ---------------------------------------------------------------------------------------------------------
PlanOf = Callable[[int], _Plan]  # of the blocks that are enough; see _plan


def _pool(kernels: _Bounded, x: Array, plan_of: PlanOf, more: tuple[Array, ...] = ()) -> Array:
    """Returns what windows make of x, which may wait to be written.  more: what is written with it."""
    plan = plan_of(0)
    memory = lazy.reserve_for(plan.y_shape, [x])
    if memory:
        return lazy.defer(memory, (x,), partial(_write, kernels, plan_of, x, more))
    return _launch(kernels.elements, x.dtype, plan, *more, x, empty(plan.y_shape, x.dtype))


def _max_pool(kernels: _Bounded, x: Array, plan_of: PlanOf, dtype: str) -> tuple[Array, Array]:
    """Returns the largest elements of windows, and which they are."""
    index = empty(plan_of(0).y_shape, dtype)
    y = _pool(kernels, x, plan_of, (index,))
    return y, lazy.companion_output(y, index)


def _write(kernels: _Bounded, plan_of: PlanOf, x: Array, more: tuple[Array, ...], memory: Memory, planes: bool) -> None:
    """Writes y as planes, or its elements; as elements too where planes turn out not to hold it."""
    y, header, flag = memory
    held = lazy.split_view(x, write=planes)
    if planes:
        plan = plan_of(lazy.PLANE_WRITERS)
        kernels.planes(plan.blocks, plan.geometry, plan.threads, *more, *held, y, header, lazy.flag_counter())
    elif held[1] is None:
        _launch(kernels.elements, x.dtype, plan_of(0), *more, x, y)
        return
    plan = plan_of(lazy.GUARDED if planes else 0)
    kernels.stored(plan.blocks, plan.geometry, plan.threads, *more, *held, y, flag if planes else None)


@ops.max_pool2d.impl("cuda")
def max_pool2d_cuda(x: Array, **window: Pair) -> tuple[Array, Array]:
    """The index is kept as bytes, a quarter of it, where a window has no more pixels than they have values."""
    wide, rows = prod(window["kernel_size"]) > 256, _has_strips(x, **window) and window["stride"] in ((1, 1), (2, 2))
    over = "output strips" if rows else "outputs"
    plan_of = partial(_windowed, "max_pool2d", x.shape, over, LANES[x.dtype], **window)
    y, place = _max_pool(_WIDE if wide else _ROWS if rows else _NAMED, x, plan_of, "int32" if wide else "uint8")
    if wide:
        return y, place
    return y, lazy.Packed(place, place.shape, "int32", (x.shape[1:3], window),
                          partial(_write_index, x.shape, window))


def _has_strips(x: Array, kernel_size: Pair, **others: Pair) -> bool:
    """Tells whether windows over the channels of x have the kernels for strips of 3 x 3."""
    return kernel_size == (3, 3) and x.shape[3] % LANES[x.dtype] == 0


def _write_index(x_shape: Shape, window: dict[str, Pair], place: Array, index: Array) -> None:
    plan = _windowed("max_pool2d", x_shape, "outputs", 1, **window)
    _INDEX(plan.blocks, plan.geometry, plan.threads, place, index)


@ops.adaptive_max_pool2d.impl("cuda")
def adaptive_max_pool2d_cuda(x: Array, *, output_size: Pair) -> tuple[Array, Array]:
    return _max_pool(_WIDE, x, partial(_adaptive, False, x.shape, output_size, "outputs", LANES[x.dtype]), "int32")


@ops.avg_pool2d.impl("cuda")
def avg_pool2d_cuda(x: Array, **window: Any) -> Array:
    return _pool(_AVG, x, partial(_windowed, "avg_pool2d", x.shape, "outputs", LANES[x.dtype], **window))


@ops.adaptive_avg_pool2d.impl("cuda")
def adaptive_avg_pool2d_cuda(x: Array, *, output_size: Pair) -> Array:
    if output_size == (1, 1):  # a reduction, which divides a large map among many blocks
        return mean_cuda(x, axis=(1, 2), keepdims=True)
    return _pool(_AVG, x, partial(_adaptive, True, x.shape, output_size, "outputs", LANES[x.dtype]))


# ---- gradients -------------------------------------------------------------------------------------------------------
@ops.max_pool2d_backward.impl("cuda")
def max_pool2d_backward_cuda(g: Array, index: Array, *, hw: Pair, **window: Pair) -> Array:
    shape = g.shape[0], *hw, g.shape[3]
    place = lazy.packed_form(index, (hw, window))
    rows = place and _has_strips(g, **window) and window["stride"] == (1, 1)
    plan_of = partial(_windowed, "max_pool2d_backward", shape, "input strips" if rows else "inputs", LANES[g.dtype],
                      **window)
    apart = place and all(k <= s for k, s in zip(window["kernel_size"], window["stride"]))
    if memory := lazy.reserve_for(shape, [g]) if apart else None:
        write = partial(_write, _BACKWARD, plan_of, g, (place,))
        return lazy.defer(memory, (g, place), write, hurries=True)
    kernels = _ROWS_BACKWARD if rows else _BACKWARD.elements if place else _WIDE_BACKWARD
    return _launch(kernels, g.dtype, plan_of(0), place or index, g, empty(shape, g.dtype))


@ops.avg_pool2d_backward.impl("cuda")
def avg_pool2d_backward_cuda(g: Array, *, hw: Pair, **window: Any) -> Array:
    shape = g.shape[0], *hw, g.shape[3]
    plan = _windowed("avg_pool2d_backward", shape, "inputs", LANES[g.dtype], **window)
    return _launch(_AVG_BACKWARD, g.dtype, plan, g, empty(shape, g.dtype))


@ops.adaptive_avg_pool2d_backward.impl("cuda")
def adaptive_avg_pool2d_backward_cuda(g: Array, *, hw: Pair) -> Array:
    shape = g.shape[0], *hw, g.shape[3]
    plan = _adaptive(True, shape, g.shape[1:3], "inputs", LANES[g.dtype])
    return _launch(_AVG_BACKWARD, g.dtype, plan, g, empty(shape, g.dtype))


@ops.pool_gather.impl("cuda")
def pool_gather_cuda(x: Array, index: Array) -> Array:
    plan = _adaptive(False, x.shape, index.shape[1:3], "outputs", LANES[x.dtype])
    return _launch(_GATHER, x.dtype, plan, x, as_int64(index), empty(index.shape, x.dtype))


@ops.pool_scatter.impl("cuda")
def pool_scatter_cuda(x: Array, index: Array, *, hw: Pair) -> Array:
    n, oh, ow, c = x.shape
    y, positions = empty((n, *hw, c), x.dtype), hw[0] * hw[1]
    grid = (-(-n * c // 32), -(-positions // SCATTER_POSITIONS))
    _SCATTER[x.dtype](grid, x, as_int64(index), y, n * c, c, oh * ow, positions)
    return y
