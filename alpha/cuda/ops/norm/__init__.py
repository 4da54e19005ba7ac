"""Batch normalisation on the GPU (batch_norm.cu, batch_norm_planes.cu).

A forward or backward of batch norm is three launches: sums per channel and chunk of rows, a block per channel that
merges the chunks, and the pass that writes. Sums are float32 within a chunk, double across chunks, in fixed order.
Where the convolution that wrote x has counted mean and variance of its parts (lazy/statistics.py), a forward
begins with the second launch. The last one waits for the first reader where convolutions read planes of float32
(lazy/deferred.py), and where the second launch can tell a bound of what is written: of y in training, and of dx.
"""

from __future__ import annotations

from functools import lru_cache
from functools import partial as partial_of
from math import inf, prod
from typing import Any

from alpha.cuda.lazy import (
    GUARDED,
    PLANE_WRITERS,
    Memory,
    Rows,
    bound_of,
    can_wait,
    defer,
    flag_counter,
    flush_gradients,
    planes_are_read,
    reserve,
    split_view,
    statistics,
)
from alpha.cuda.ops.pointwise.epilogue import Epilogue
from alpha.cuda.runtime.kernel import Kernel, per_dtype
from alpha.cuda.runtime.memory import ITEMSIZE, Array, empty
from alpha.cuda.runtime.walk import BLOCKS, CHAIN, LONGEST, THREADS, WALK, Walk, ceil_div, per_piece, walk
from alpha.ops import norm as ops

Arrays = tuple[Array, ...]
Shape = tuple[int, ...]


AFFINE = "ptr gamma, ptr beta, i32 wide"  # wide: they are float32
_CHANNELS = f"{AFFINE}, ptr mean, ptr istd"
_STATISTICS = per_piece("batch_norm.cu", "statistics", f"ptr x, ptr partial, {WALK}")
_OUTCOME = ("ptr running_mean, ptr running_var, ptr mean, ptr istd, f32 momentum, f32 eps, ptr gamma, ptr beta, "
            "ptr residual, ptr header")
_FINALIZE_STATISTICS = per_dtype("batch_norm.cu", "finalize_statistics", f"ptr partial, {WALK}, {_OUTCOME}")
_FINALIZE_TILES = per_dtype("batch_norm.cu", "finalize_tiles", f"ptr parts, i32 slots, ptr x, i64 rows, {_OUTCOME}")
_RUNNING_STATISTICS = per_dtype("batch_norm.cu", "running_statistics",
                                "ptr running_mean, ptr running_var, ptr mean, ptr istd, i32 channels, f32 eps")
_APPLY_BOUND = Kernel("batch_norm.cu", "apply_bound", "i64 rows, i32 channels, ptr gamma, ptr beta, ptr residual, "
                      "ptr header")
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
_APPLY_PLANES = _planes("apply_planes", f"ptr x, {_PLANES_WRITTEN}, i64 columns, i64 begin, i32 blocks")
_APPLY_ADD_PLANES = _planes("apply_add_planes", f"ptr x, ptr residual, {_PLANES_WRITTEN}")
_APPLY_ADD_STORED_PLANES = _planes("apply_add_stored_planes", f"{_STORED}, {_PLANES_WRITTEN}")
_APPLY_ADD_STORED = _planes("apply_add_stored", f"{_STORED}, {_WIDE_CHANNELS}, ptr y, f32 floor, ptr flag")
_SUMS_BOUND = {relu: _planes("sums_bound" + "_relu" * relu, f"ptr g, ptr x, {_WIDE_CHANNELS}, ptr partial, ptr header")
               for relu in (False, True)}
_GRADIENT_PLANES = {relu: _planes("gradient_planes" + "_relu" * relu, f"ptr g, ptr x, {_WIDE_CHANNELS}, "
                                  "ptr coefficients, ptr dx, ptr header, ptr lost_ranges") for relu in (False, True)}


# ---- batch norm ------------------------------------------------------------------------------------------------------


WRITERS = 8 * BLOCKS  # blocks of a pass that writes and sums nothing: short ones, so that none is late at the end


@lru_cache(maxsize=1024)
def _matrix(shape: Shape, dtype: str, blocks: int = BLOCKS,
            longest: int = LONGEST) -> tuple[int, tuple[str, bool], Walk]:
    """Returns the number of rows, which kernels read them, and how."""
    rows, channels = prod(shape[:-1]), shape[-1]
    lanes = lanes_of(channels, dtype)
    return rows, (dtype, lanes > 1), walk(rows, channels // lanes, blocks, longest)


def lanes_of(channels: int, dtype: str) -> int:
    """Returns how many elements of a row are read at once."""
    lanes = 16 // ITEMSIZE[dtype]
    return lanes if channels % lanes == 0 else 1


def are_wide(*parameters: Array | None) -> bool:
    """Tells whether parameters, of one dtype, are float32; those of 16-bit tensors may be."""
    return any(p is not None and p.dtype == "float32" for p in parameters)


@ops.batch_norm_act.impl("cuda")
def batch_norm_act_cuda(x: Array, gamma: Array | None, beta: Array | None, running_mean: Array | None,
                        running_var: Array | None, *, activation: str | None, **attrs: Any) -> Arrays:
    return _batch_norm(x, gamma, beta, running_mean, running_var, Epilogue.of(None, activation), **attrs)


@ops.batch_norm_add_act.impl("cuda")
def batch_norm_add_act_cuda(x: Array, gamma: Array | None, beta: Array | None, running_mean: Array | None,
                            running_var: Array | None, residual: Array, *, activation: str | None,
                            **attrs: Any) -> Arrays:
    return _batch_norm(x, gamma, beta, running_mean, running_var, Epilogue.of(residual, activation), **attrs)


def _batch_norm(x: Array, gamma: Array | None, beta: Array | None, running_mean: Array | None,
                running_var: Array | None, epilogue: Epilogue, *, training: bool, momentum: float, eps: float
                ) -> Arrays:
    """Returns y, which may wait to be written, mean and istd."""
    residual, relu = epilogue.known()
    bound = bound_of(residual)
    waits = training and (residual is None or bound) and _may_wait(x, gamma, beta, residual)
    memory = reserve(x.shape) if waits else None
    mean, istd = empty(x.shape[-1:], "float32"), empty(x.shape[-1:], "float32")
    parameters = running_mean.dtype if running_mean else "float32"
    if training:
        rows, kind, w = _matrix(x.shape, x.dtype)
        outcome = (running_mean, running_var, mean, istd, momentum, eps, gamma, beta, bound, memory and memory.scale)
        if parts := statistics.take(x):
            _FINALIZE_TILES[parameters](mean.size, parts, parts.shape[0], x, rows, *outcome)
        else:
            partial = empty((2, mean.size, w.chunks), "float32")
            _STATISTICS[kind](w.grid, x, partial, w.block)
            _FINALIZE_STATISTICS[parameters](mean.size, partial, w.block, *outcome)
    else:
        _RUNNING_STATISTICS[parameters](ceil_div(mean.size, THREADS), running_mean, running_var, mean, istd, mean.size,
                                        eps)
    return _result(memory, x, gamma, beta, mean, istd, residual, relu), mean, istd


@ops.batch_norm_apply.impl("cuda")
def batch_norm_apply_cuda(x: Array, gamma: Array | None, beta: Array | None, mean: Array, istd: Array,
                          residual: Array | None, *, activation: str | None, training: bool) -> Array:
    bound = bound_of(residual)
    waits = training and (residual is None or bound) and _may_wait(x, gamma, beta, residual)
    memory = reserve(x.shape) if waits else None
    if memory:
        _APPLY_BOUND(1, prod(x.shape[:-1]), mean.size, gamma, beta, bound, memory.scale)
    return _result(memory, x, gamma, beta, mean, istd, residual, activation == "relu")


def _result(memory: Memory | None, x: Array, gamma: Array | None, beta: Array | None, mean: Array, istd: Array,
            residual: Array | None, relu: bool) -> Array:
    """Returns y: one that waits, if there is memory with a bound of it."""
    inputs, floor = (x, gamma, beta, mean, istd, residual), 0.0 if relu else -inf
    if memory:
        join = None if residual else partial_of(_join_y, *inputs[:-1], floor, memory.elements)
        return defer(memory, inputs, partial_of(_write_y, *inputs, floor), join=join)
    y = empty(x.shape, x.dtype)
    _apply(*inputs, floor, y)
    return y


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
    rest = gamma, beta, mean, istd, y, header, floor, flag_counter(), w.block
    if residual is None:
        _APPLY_PLANES(w.grid, x, *rest[:-1], x.shape[-1], 0, w.grid, w.block)
    elif (held := split_view(residual))[1]:
        _APPLY_ADD_STORED_PLANES(w.grid, x, *held, *rest)
    else:
        _APPLY_ADD_PLANES(w.grid, x, residual, *rest)
    _apply(*inputs, flag, GUARDED)


def _join_y(x: Array, gamma: Array | None, beta: Array | None, mean: Array, istd: Array, floor: float, y: Array,
            whole: Memory, rows: Rows | None) -> None:
    """Writes y as planes among those of a whole; without rows its elements to y, where planes do not hold the whole."""
    if rows is None:
        _apply(x, gamma, beta, mean, istd, None, floor, y, whole.flag, GUARDED)
        return
    _APPLY_PLANES(rows.walk.grid, x, gamma, beta, mean, istd, whole.elements, whole.scale, floor, flag_counter(),
                  rows.columns, rows.first, rows.blocks, rows.walk.block)


def _apply(x: Array, gamma: Array | None, beta: Array | None, mean: Array, istd: Array, residual: Array | None,
           floor: float, y: Array, flag: Array | None = None, blocks: int = WRITERS) -> None:
    """Writes the elements of y, if there is no flag, or it is set."""
    _, kind, w = _matrix(x.shape, x.dtype, blocks)
    rest = gamma, beta, are_wide(gamma, beta), mean, istd, y, floor, flag, w.block
    if residual is None:
        _APPLY[kind](w.grid, x, *rest)
    elif (held := split_view(residual))[1]:
        _APPLY_ADD_STORED(w.grid, x, *held, gamma, beta, *rest[3:])
    else:
        _APPLY_ADD[kind](w.grid, x, residual, *rest)


@ops.batch_norm_grad.impl("cuda")
def batch_norm_grad_cuda(g: Array, x: Array, gamma: Array | None, beta: Array | None, mean: Array, istd: Array, *,
                         activation: str | None) -> Arrays:
    flush_gradients()
    rows, kind, w = _matrix(x.shape, x.dtype, longest=CHAIN)
    relu, channels = activation == "relu", mean.shape
    memory = reserve(x.shape) if _may_wait(x, g, gamma, beta, mean, istd) else None
    dgamma, dbeta = empty(channels, "float32"), empty(channels, "float32")
    partial, coefficients = empty((2 + bool(memory), *channels, w.chunks), "float32"), empty((2, *channels), "float32")
    if memory:
        _SUMS_BOUND[relu](w.grid, g, x, gamma, beta, mean, istd, partial, memory.scale, w.block)
    else:
        _SUMS[relu][kind](w.grid, g, x, gamma, beta, are_wide(gamma, beta), mean, istd, partial, w.block)
    _FINALIZE_SUMS[gamma.dtype if gamma else "float32"](mean.size, partial, gamma, istd, dgamma, dbeta, coefficients,
                                                        rows, w.chunks, memory and memory.scale)
    inputs = g, x, gamma, beta, mean, istd, coefficients
    if memory:
        return defer(memory, inputs, partial_of(_write_dx, relu, *inputs), hurries=True), dgamma, dbeta
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
    _GRADIENT_PLANES[relu](w.grid, *inputs, dx, header, flag_counter(), w.block)
    _gradient(relu, *inputs, dx, flag, GUARDED)


def _gradient(relu: bool, g: Array, x: Array, gamma: Array | None, beta: Array | None, mean: Array, istd: Array,
              coefficients: Array, dx: Array, flag: Array | None = None, blocks: int = BLOCKS) -> None:
    """Writes the elements of dx, if there is no flag, or it is set."""
    _, kind, w = _matrix(x.shape, x.dtype, blocks)
    _GRADIENT[relu][kind](w.grid, g, x, gamma, beta, are_wide(gamma, beta), mean, istd, coefficients, dx, flag, w.block)
