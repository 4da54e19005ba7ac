"""Batch, layer and group normalisation on the GPU (kernels/batch_norm.cu, layer_norm.cu, group_norm.cu).

A forward or backward of batch norm is three launches: sums per channel and chunk of rows, a block per channel that
merges the chunks, and the pass that writes. Sums are float32 within a chunk, double across chunks, in fixed order.
That pass waits for the first reader where convolutions read planes of float32 (alpha/cuda/deferred.py), and where the
second launch can tell a bound of what is written: of y in training, and of dx.
Layer norm reads a row once, if registers hold it. Group norm reads a sample once, if the registers of a block or of a
cluster of blocks hold it (kernels/group_norm_held.cu); else it makes both passes in one launch, a few samples apart.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from functools import partial as partial_of
from math import inf, prod
from typing import Any, NamedTuple

import numpy as np

from alpha.cuda.context import context
from alpha.cuda.deferred import Memory, can_wait, hurry, later, reserve
from alpha.cuda.kernel import Kernel, per_dtype
from alpha.cuda.memory import ITEMSIZE, Array, Deferred, empty, upload
from alpha.cuda.operand import lost_ranges, planes_are_read
from alpha.cuda.reduce import BLOCKS, THREADS, WALK, Walk, ceil_div, per_piece, walk
from alpha.ops import norm as ops

Arrays = tuple[Array, ...]
Shape = tuple[int, ...]


_AFFINE = "ptr gamma, ptr beta, i32 wide"  # wide: they are float32
_CHANNELS = f"{_AFFINE}, ptr mean, ptr istd"
_STATISTICS = per_piece("batch_norm.cu", "statistics", f"ptr x, ptr partial, ptr header, {WALK}")
_FINALIZE_STATISTICS = per_dtype("batch_norm.cu", "finalize_statistics", "ptr partial, ptr running_mean, "
                                 f"ptr running_var, ptr mean, ptr istd, {WALK}, f32 momentum, f32 eps, ptr gamma, "
                                 "ptr beta, ptr residual, ptr header")
_RUNNING_STATISTICS = per_dtype("batch_norm.cu", "running_statistics",
                                "ptr running_mean, ptr running_var, ptr mean, ptr istd, i32 channels, f32 eps")
_WRITTEN = f"ptr y, f32 floor, ptr flag, {WALK}"
_APPLY = per_piece("batch_norm.cu", "apply", f"ptr x, {_CHANNELS}, {_WRITTEN}")
_APPLY_ADD = per_piece("batch_norm.cu", "apply_add", f"ptr x, ptr residual, {_CHANNELS}, {_WRITTEN}")
_SUMS = {relu: per_piece("batch_norm.cu", "sums" + "_relu" * relu, f"ptr g, ptr x, {_CHANNELS}, ptr partial, {WALK}")
         for relu in (False, True)}
_FINALIZE_SUMS = per_dtype("batch_norm.cu", "finalize_sums", "ptr partial, ptr gamma, ptr istd, ptr dgamma, ptr dbeta, "
                           "ptr coefficients, i64 rows, i32 chunks, ptr header")
_GRADIENT = {relu: per_piece("batch_norm.cu", "gradient" + "_relu" * relu,
                             f"ptr g, ptr x, {_CHANNELS}, ptr coefficients, ptr dx, ptr flag, {WALK}")
             for relu in (False, True)}


def _planes(entry: str, args: str) -> Kernel:
    return Kernel("batch_norm_planes.cu", entry, f"{args}, {WALK}")


_WIDE_CHANNELS = "ptr gamma, ptr beta, ptr mean, ptr istd"
_PLANES_WRITTEN = f"{_WIDE_CHANNELS}, ptr y, ptr header, f32 floor, ptr lost_ranges"
_STORED = "ptr x, ptr residual, ptr header_of_residual"
_APPLY_PLANES = _planes("apply_planes", f"ptr x, {_PLANES_WRITTEN}")
_APPLY_ADD_PLANES = _planes("apply_add_planes", f"ptr x, ptr residual, {_PLANES_WRITTEN}")
_APPLY_ADD_STORED_PLANES = _planes("apply_add_stored_planes", f"{_STORED}, {_PLANES_WRITTEN}")
_APPLY_ADD_STORED = _planes("apply_add_stored", f"{_STORED}, {_WIDE_CHANNELS}, ptr y, f32 floor, ptr flag")
_SUMS_BOUND = {relu: _planes("sums_bound" + "_relu" * relu, f"ptr g, ptr x, {_WIDE_CHANNELS}, ptr partial, ptr header")
               for relu in (False, True)}
_GRADIENT_PLANES = {relu: _planes("gradient_planes" + "_relu" * relu, f"ptr g, ptr x, {_WIDE_CHANNELS}, "
                                  "ptr coefficients, ptr dx, ptr header, ptr lost_ranges") for relu in (False, True)}

_LAYER = f"ptr x, {_AFFINE}, ptr y, ptr mean, ptr istd, f32 eps"
_LAYER_NORM = per_piece("layer_norm.cu", "normalize", f"{_LAYER}, i64 rows, i64 n, i32 width")
_LAYER_NORM_LONG = per_piece("layer_norm.cu", "normalize_long", f"{_LAYER}, i64 n")
_SAMPLE_GRADIENT = "ptr g, ptr x, ptr gamma, i32 wide, ptr mean, ptr istd, ptr dx"
_LAYER_GRADIENT = {pieces: per_piece("layer_norm.cu", f"gradient_{pieces}",
                                     f"{_SAMPLE_GRADIENT}, ptr partial, i64 rows, i64 n, i32 width")
                   for pieces in (1, 2, 4)}
_LAYER_GRADIENT_LONG = per_piece("layer_norm.cu", "gradient_long", f"{_SAMPLE_GRADIENT}, i64 n")
_PARAMETER_SUMS = per_piece("layer_norm.cu", "parameter_sums",
                            f"ptr g, ptr x, ptr mean, ptr istd, ptr partial, {WALK}")
_PARAMETER_TOTALS = Kernel("layer_norm.cu", "parameter_totals",
                           "ptr partial, ptr dgamma, ptr dbeta, i64 chunks, i64 n", threads=THREADS)

SUMS = 24 << 10  # bytes of shared memory for the sums of a sample's channels in group_norm_held.cu
_TURNS = f"ptr partial, ptr tickets, u32 tasks, u32 lag, {WALK}, i32 k"
_GROUP_NORM = per_piece("group_norm.cu", "normalize", f"{_LAYER}, {_TURNS}")
_GROUP_NORM_HELD = {blocks: per_piece("group_norm_held.cu", entry, f"{_LAYER}, {WALK}, i32 k", shared=SUMS)
                    for blocks, entry in ((1, "block"), (8, "cluster"))}
_GROUP_GRADIENT = per_piece("group_norm.cu", "gradient", f"{_SAMPLE_GRADIENT}, ptr totals, ptr coefficients, {_TURNS}")


# ---- batch norm ------------------------------------------------------------------------------------------------------


WRITERS = 8 * BLOCKS  # blocks of a pass that writes and sums nothing: short ones, so that none is late at the end
PLANE_WRITERS = 2 * BLOCKS  # of one that writes planes, whose blocks report to one header at their ends
GUARDED = BLOCKS // 2       # of one behind a flag, whose blocks end at once as a rule


@lru_cache(maxsize=1024)
def _matrix(shape: Shape, dtype: str, blocks: int = BLOCKS) -> tuple[int, tuple[str, bool], Walk]:
    """Returns the number of rows, which kernels read them, and how."""
    rows, channels = prod(shape[:-1]), shape[-1]
    lanes = _lanes(channels, dtype)
    return rows, (dtype, lanes > 1), walk(rows, channels // lanes, blocks)


def _lanes(channels: int, dtype: str) -> int:
    """Returns how many elements of a row are read at once."""
    lanes = 16 // ITEMSIZE[dtype]
    return lanes if channels % lanes == 0 else 1


def _wide(*parameters: Array | None) -> bool:
    """Tells whether parameters, of one dtype, are float32; those of 16-bit tensors may be."""
    return any(p is not None and p.dtype == "float32" for p in parameters)


@ops.batch_norm_act.impl("cuda")
def batch_norm_act_cuda(x: Array, gamma: Array | None, beta: Array | None, running_mean: Array | None,
                        running_var: Array | None, *, activation: str | None, **attrs: Any) -> Arrays:
    return _batch_norm(x, gamma, beta, running_mean, running_var, None, activation, **attrs)


@ops.batch_norm_add_act.impl("cuda")
def batch_norm_add_act_cuda(x: Array, gamma: Array | None, beta: Array | None, running_mean: Array | None,
                            running_var: Array | None, residual: Array, *, activation: str | None,
                            **attrs: Any) -> Arrays:
    return _batch_norm(x, gamma, beta, running_mean, running_var, residual, activation, **attrs)


def _batch_norm(x: Array, gamma: Array | None, beta: Array | None, running_mean: Array | None,
                running_var: Array | None, residual: Array | None, activation: str | None, *, training: bool,
                momentum: float, eps: float) -> Arrays:
    """Returns y, which may wait to be written, mean and istd."""
    bound = residual.derived.bound if residual.__class__ is Deferred else None
    waits = training and (residual is None or bound) and _may_wait(x, gamma, beta, residual)
    memory = reserve(x.shape) if waits else None
    mean, istd = empty(x.shape[-1:], "float32"), empty(x.shape[-1:], "float32")
    parameters = running_mean.dtype if running_mean else "float32"
    if training:
        _, kind, w = _matrix(x.shape, x.dtype)
        partial = empty((2, mean.size, w.chunks), "float32")
        header = memory and memory.scale
        _STATISTICS[kind](w.grid, x, partial, header, w.block)
        _FINALIZE_STATISTICS[parameters](mean.size, partial, running_mean, running_var, mean, istd, w.block, momentum,
                                         eps, gamma, beta, bound, header)
    else:
        _RUNNING_STATISTICS[parameters](ceil_div(mean.size, THREADS), running_mean, running_var, mean, istd, mean.size,
                                        eps)
    inputs, floor = (x, gamma, beta, mean, istd, residual), 0.0 if activation == "relu" else -inf
    if memory:
        return later(memory, inputs, partial_of(_write_y, *inputs, floor)), mean, istd
    y = empty(x.shape, x.dtype)
    _apply(*inputs, floor, y)
    return y, mean, istd


def _may_wait(*arrays: Array | None) -> bool:
    """Tells whether a result like the first of arrays, of which it is computed, may be read as planes."""
    x = arrays[0]
    return x.dtype == "float32" and x.shape[-1] % 8 == 0 and planes_are_read() and can_wait(*arrays)


def _write_y(x: Array, gamma: Array | None, beta: Array | None, mean: Array, istd: Array, residual: Array | None,
             floor: float, memory: Memory, planes: bool) -> None:
    """Writes y as planes, or its elements; as elements too where planes turn out not to hold it."""
    y, header, flag = memory
    inputs = x, gamma, beta, mean, istd, residual, floor, y
    if not planes:
        _apply(*inputs)
        return
    _, _, w = _matrix(x.shape, x.dtype, PLANE_WRITERS)
    rest = gamma, beta, mean, istd, y, header, floor, lost_ranges(), w.block
    if residual is None:
        _APPLY_PLANES(w.grid, x, *rest)
    elif stored := _stored(residual):
        _APPLY_ADD_STORED_PLANES(w.grid, x, *stored, *rest)
    else:
        _APPLY_ADD_PLANES(w.grid, x, residual, *rest)
    _apply(*inputs, flag, GUARDED)


def _stored(residual: Array) -> Arrays:
    """Returns memory and header of a residual that consists of planes, else nothing."""
    memory = residual.derived.planes() if residual.__class__ is Deferred else None
    return memory[:2] if memory else ()


def _apply(x: Array, gamma: Array | None, beta: Array | None, mean: Array, istd: Array, residual: Array | None,
           floor: float, y: Array, flag: Array | None = None, blocks: int = WRITERS) -> None:
    """Writes the elements of y, if there is no flag, or it is set."""
    _, kind, w = _matrix(x.shape, x.dtype, blocks)
    rest = gamma, beta, _wide(gamma, beta), mean, istd, y, floor, flag, w.block
    if residual is None:
        _APPLY[kind](w.grid, x, *rest)
    elif stored := _stored(residual):
        _APPLY_ADD_STORED(w.grid, x, *stored, gamma, beta, *rest[3:])
    else:
        _APPLY_ADD[kind](w.grid, x, residual, *rest)


@ops.batch_norm_grad.impl("cuda")
def batch_norm_grad_cuda(g: Array, x: Array, gamma: Array | None, beta: Array | None, mean: Array, istd: Array, *,
                         activation: str | None) -> Arrays:
    hurry()
    rows, kind, w = _matrix(x.shape, x.dtype)
    relu, channels = activation == "relu", mean.shape
    memory = reserve(x.shape) if _may_wait(x, g, gamma, beta, mean, istd) else None
    dgamma, dbeta = empty(channels, "float32"), empty(channels, "float32")
    partial, coefficients = empty((2 + bool(memory), *channels, w.chunks), "float32"), empty((2, *channels), "float32")
    if memory:
        _SUMS_BOUND[relu](w.grid, g, x, gamma, beta, mean, istd, partial, memory.scale, w.block)
    else:
        _SUMS[relu][kind](w.grid, g, x, gamma, beta, _wide(gamma, beta), mean, istd, partial, w.block)
    _FINALIZE_SUMS[gamma.dtype if gamma else "float32"](mean.size, partial, gamma, istd, dgamma, dbeta, coefficients,
                                                        rows, w.chunks, memory and memory.scale)
    inputs = g, x, gamma, beta, mean, istd, coefficients
    if memory:
        return later(memory, inputs, partial_of(_write_dx, relu, *inputs), hurries=True), dgamma, dbeta
    dx = empty(x.shape, x.dtype)
    _gradient(relu, *inputs, dx)
    return dx, dgamma, dbeta


def _write_dx(relu: bool, g: Array, x: Array, gamma: Array | None, beta: Array | None, mean: Array, istd: Array,
              coefficients: Array, memory: Memory, planes: bool) -> None:
    """Writes dx as planes, or its elements; as elements too where planes turn out not to hold it."""
    dx, header, flag = memory
    inputs = g, x, gamma, beta, mean, istd, coefficients
    if not planes:
        _gradient(relu, *inputs, dx)
        return
    _, _, w = _matrix(x.shape, x.dtype, PLANE_WRITERS)
    _GRADIENT_PLANES[relu](w.grid, *inputs, dx, header, lost_ranges(), w.block)
    _gradient(relu, *inputs, dx, flag, GUARDED)


def _gradient(relu: bool, g: Array, x: Array, gamma: Array | None, beta: Array | None, mean: Array, istd: Array,
              coefficients: Array, dx: Array, flag: Array | None = None, blocks: int = BLOCKS) -> None:
    """Writes the elements of dx, if there is no flag, or it is set."""
    _, kind, w = _matrix(x.shape, x.dtype, blocks)
    _GRADIENT[relu][kind](w.grid, g, x, gamma, beta, _wide(gamma, beta), mean, istd, coefficients, dx, flag, w.block)


# ---- layer norm ------------------------------------------------------------------------------------------------------


HELD = 8  # pieces of a row that a thread keeps in registers
NARROW = 4  # threads that a row has at least, if each of them then has 4 pieces
ROW_BLOCKS = 132  # of the gradient, per block that a multiprocessor holds: on an H100 all run at once, to one end


class _Rows(NamedTuple):
    """How threads share rows; see kernels/layer_norm.cu."""

    kind: tuple[str, bool]
    width: int        # threads of a row in the forward pass, 0: too long for registers
    grid: int
    pieces: int       # of a thread in the backward pass, 0: too many for registers
    grad_width: int
    grad_grid: int
    walk: Walk


def _power(n: int) -> int:
    """Returns the smallest power of two that is at least n."""
    return 1 << (n - 1).bit_length()


@lru_cache(maxsize=1024)
def _rows(rows: int, n: int, dtype: str) -> _Rows:
    lanes = _lanes(n, dtype)
    pieces = n // lanes
    width = max(min(NARROW, _power(ceil_div(pieces, 4))), _power(ceil_div(pieces, HELD)))
    width = width if width <= THREADS else 0
    held = next((held for held in _LAYER_GRADIENT if pieces <= held * THREADS), 0)
    grad_width = _power(ceil_div(pieces, held)) if held else THREADS
    resident = 3 if held * lanes <= 4 else 2 if held * lanes <= 8 else 1  # as layer_norm.cu has it
    grad_grid = min(ROW_BLOCKS * resident, ceil_div(rows * grad_width, THREADS))
    return _Rows((dtype, lanes > 1), width, ceil_div(rows * (width or THREADS), THREADS), held, grad_width, grad_grid,
                 walk(rows, pieces))


@ops.layer_norm.impl("cuda")
def layer_norm_cuda(x: Array, gamma: Array | None, beta: Array | None, *, normalized_ndim: int, eps: float) -> Arrays:
    n = prod(x.shape[-normalized_ndim:])
    statistics = (*x.shape[:-normalized_ndim], *(1,) * normalized_ndim)
    y, mean, istd = empty(x.shape, x.dtype), empty(statistics, "float32"), empty(statistics, "float32")
    rows = mean.size
    p = _rows(rows, n, x.dtype)
    if p.width:
        _LAYER_NORM[p.kind](p.grid, x, gamma, beta, _wide(gamma, beta), y, mean, istd, eps, rows, n, p.width)
    else:
        _LAYER_NORM_LONG[p.kind](p.grid, x, gamma, beta, _wide(gamma, beta), y, mean, istd, eps, n)
    return y, mean, istd


def _layer_norm_grad(g: Array, x: Array, gamma: Array | None, mean: Array, istd: Array, dx: Array, n: int
                     ) -> tuple[Array, int]:
    """Writes dx and returns partial[chunk][dgamma, dbeta][n], and how many chunks these are."""
    rows = mean.size
    p = _rows(rows, n, x.dtype)
    chunks = p.grad_grid if p.pieces else p.walk.chunks
    partial = empty((chunks, 2, n), "float32")
    if p.pieces:
        _LAYER_GRADIENT[p.pieces][p.kind](chunks, g, x, gamma, _wide(gamma), mean, istd, dx, partial, rows, n,
                                          p.grad_width)
    else:
        _LAYER_GRADIENT_LONG[p.kind](rows, g, x, gamma, _wide(gamma), mean, istd, dx, n)
        _PARAMETER_SUMS[p.kind](p.walk.grid, g, x, mean, istd, partial, p.walk.block)
    return partial, chunks


# ---- group norm ------------------------------------------------------------------------------------------------------


STEPS = 16  # rows of a thread in a task
LAG = 264   # tasks that are summed before the first one is written: no fewer than run at once, yet L2 holds them


class _Turns(NamedTuple):
    """How blocks take turns at summing and writing; see kernels/group_norm.cu."""

    kind: tuple[str, bool]
    walk: Walk      # of a sample
    tasks: int
    lag: int
    tickets: Array  # zeros, and zeros again after each launch


@lru_cache(maxsize=256)
def _turns(samples: int, pixels: int, channels: int, dtype: str) -> _Turns:
    lanes = _lanes(channels, dtype)
    short = walk(pixels, channels // lanes, pixels * channels)  # 4 rows of a thread in each chunk
    w = walk(pixels, channels // lanes, ceil_div(short.grid, STEPS // 4))
    tasks = samples * w.grid
    return _Turns((dtype, lanes > 1), w, tasks, min(tasks, max(w.grid, LAG)), upload(np.zeros(1 + samples, np.int32)))


@lru_cache(maxsize=256)
def _held(samples: int, pixels: int, channels: int, groups: int, dtype: str, clusters: bool
          ) -> tuple[int, tuple[str, bool], Walk] | None:
    """Returns how many blocks hold a sample, which kernel, and its walk; None where it is too large."""
    lanes = _lanes(channels, dtype)
    columns, pieces = channels // lanes, 4 if lanes == 8 else 8
    if columns > THREADS or 12 * channels + 8 * groups > SUMS or not samples * pixels:
        return None
    step = THREADS // columns
    blocks = 1 if pixels <= pieces * step else 8
    chunk = ceil_div(pixels, blocks)
    if blocks > 1 and (not clusters or chunk > pieces * step):
        return None
    block = struct.pack("@qqiiiiq", pixels, columns, columns, step, 1, blocks, chunk)
    return blocks, (dtype, lanes > 1), Walk(samples * blocks, blocks, chunk, block)


@ops.group_norm.impl("cuda")
def group_norm_cuda(x: Array, gamma: Array | None, beta: Array | None, *, groups: int, eps: float) -> Arrays:
    samples, channels, statistics = x.shape[0], x.shape[-1], (x.shape[0], 1, groups, 1)
    y, mean, istd = empty(x.shape, x.dtype), empty(statistics, "float32"), empty(statistics, "float32")
    pixels = prod(x.shape[1:-1])
    held = _held(samples, pixels, channels, groups, x.dtype, context.arch == "sm_90a")
    if held:
        blocks, kind, w = held
        _GROUP_NORM_HELD[blocks][kind](w.grid, x, gamma, beta, _wide(gamma, beta), y, mean, istd, eps, w.block,
                                       channels // groups)
        return y, mean, istd
    t = _turns(samples, pixels, channels, x.dtype)
    partial = empty((samples, 2, channels, t.walk.chunks), "float32")
    _GROUP_NORM[t.kind](2 * t.tasks, x, gamma, beta, _wide(gamma, beta), y, mean, istd, eps, partial, t.tickets,
                        t.tasks, t.lag, t.walk.block, channels // groups)
    return y, mean, istd


def _group_norm_grad(g: Array, x: Array, gamma: Array | None, mean: Array, istd: Array, dx: Array) -> tuple[Array, int]:
    """Writes dx and returns totals[sample][dgamma, dbeta][C], and how many samples these are."""
    samples, pixels, groups, k = x.shape
    t = _turns(samples, pixels, groups * k, x.dtype)
    totals, coefficients = empty((samples, 2, groups * k), "float32"), empty((2, mean.size), "float32")
    partial = empty((samples, 2, groups * k, t.walk.chunks), "float32")
    _GROUP_GRADIENT[t.kind](2 * t.tasks, g, x, gamma, _wide(gamma), mean, istd, dx, totals, coefficients, partial,
                            t.tickets, t.tasks, t.lag, t.walk.block, k)
    return totals, samples


@ops.sample_norm_grad.impl("cuda")
def sample_norm_grad_cuda(g: Array, x: Array, gamma: Array | None, mean: Array, istd: Array, *, axes: Shape,
                          params_ndim: int) -> Arrays:
    params = x.shape[-params_ndim:]
    dx, dgamma, dbeta = empty(x.shape, x.dtype), empty(params, "float32"), empty(params, "float32")
    if axes[0] == x.ndim - params_ndim:  # layer norm; group norm comes as (samples, pixels, groups, k)
        partial, chunks = _layer_norm_grad(g, x, gamma, mean, istd, dx, dgamma.size)
    else:
        partial, chunks = _group_norm_grad(g, x, gamma, mean, istd, dx)
    _PARAMETER_TOTALS(ceil_div(2 * dgamma.size, 8), partial, dgamma, dbeta, chunks, dgamma.size)
    return dx, dgamma, dbeta
