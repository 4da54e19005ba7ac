"""Batch normalisation on the GPU, in the three launches that batch_norm.cu has; batch_norm_planes.cu.

Where the convolution that wrote x has counted mean and variance of its parts (lazy/statistics.py), a forward
begins with the second launch. The last one waits for the first reader where convolutions read planes of float32
(lazy/deferred.py), and where the second launch can tell a bound of what is written: of y in training, and of dx.
"""

from __future__ import annotations

from functools import lru_cache, partial
from math import inf, prod
from typing import Any, NamedTuple

from alpha.cuda import lazy
from alpha.cuda.lazy import Memory, Rows
from alpha.cuda.ops.norm import chained
from alpha.cuda.ops.pointwise.chain import bounded, can_chain
from alpha.cuda.runtime.kernel import Kernel, per_dtype
from alpha.cuda.runtime.memory import Array, Shape, empty
from alpha.cuda.runtime.walk import BLOCKS, SUMMERS, THREADS, WALK, Walk, lanes_among, per_lanes, walk
from alpha.ops import norm as ops
from alpha.ops.conv_desc import ceil_div

Arrays = tuple[Array, ...]

NORM = "ptr gamma, ptr beta, i32 wide, ptr mean, ptr istd"  # Norm in reduce.cuh
_STATISTICS = per_lanes("batch_norm.cu", "statistics", f"ptr x, ptr partial, {WALK}")
_OUTCOME = ("ptr running_mean, ptr running_var, ptr mean, ptr istd, f32 momentum, f32 eps, ptr gamma, ptr beta, "
            "ptr residual, ptr header")
_FINALIZE_STATISTICS = per_dtype("batch_norm.cu", "finalize_statistics", f"ptr partial, {WALK}, {_OUTCOME}")
_FINALIZE_TILES = per_dtype("batch_norm.cu", "finalize_tiles",
                            f"ptr parts, i32 slots, ptr x, i64 rows, i32 channels, {_OUTCOME}")
_SIDE = 8  # channels of a block of finalize_tiles
_RUNNING_STATISTICS = per_dtype("batch_norm.cu", "running_statistics",
                                "ptr running_mean, ptr running_var, ptr mean, ptr istd, i32 channels, f32 eps")
_APPLY_BOUND = Kernel("batch_norm.cu", "apply_bound", "i64 rows, i32 channels, ptr gamma, ptr beta, ptr residual, "
                      "ptr header")
_WRITTEN = f"{NORM}, ptr y, f32 floor"
_APPLY = per_lanes("batch_norm.cu", "apply", f"ptr x, {_WRITTEN}, ptr flag, {WALK}")
_APPLY_ADD = per_lanes("batch_norm.cu", "apply_add", f"ptr x, ptr residual, {_WRITTEN}, {WALK}")
_SUMS, _GRADIENT = (
    {relu: per_lanes("batch_norm.cu", entry + "_relu" * relu, f"ptr g, i64 pitch, ptr x, {NORM}, {rest}, {WALK}")
     for relu in (False, True)}
    for entry, rest in (("sums", "ptr partial"), ("gradient", "ptr coefficients, ptr dx, ptr flag")))
_FINALIZE_SUMS = per_dtype("batch_norm.cu", "finalize_sums", "ptr partial, ptr gamma, ptr istd, ptr dgamma, ptr dbeta, "
                           "ptr total, ptr coefficients, i64 rows, i32 chunks, ptr header")

_APPLY_PLANES = Kernel("batch_norm_planes.cu", "apply_planes", f"ptr x, {NORM}, ptr y, ptr header, f32 floor, "
                       f"ptr lost_ranges, i64 columns, i64 begin, i32 blocks, {WALK}")
_SUMS_BOUND, _GRADIENT_PLANES = (
    {relu: Kernel("batch_norm_planes.cu", entry + "_relu" * relu, f"ptr g, i64 pitch, ptr x, {NORM}, {rest}, {WALK}")
     for relu in (False, True)}
    for entry, rest in (("sums_bound", "ptr partial, ptr header"),
                        ("gradient_planes", "ptr coefficients, ptr dx, ptr header, ptr lost_ranges")))

WRITERS = 8 * BLOCKS  # blocks of a pass that writes and sums nothing: short ones, so that none is late at the end


class Norm(NamedTuple):
    """What standardizes a tensor, as kernels take it.  wide: gamma and beta, of one dtype, are float32."""

    gamma: Array | None
    beta: Array | None
    wide: bool
    mean: Array
    istd: Array

    @staticmethod
    def of(gamma: Array | None, beta: Array | None, mean: Array, istd: Array) -> Norm:
        given = gamma or beta
        return Norm(gamma, beta, given is not None and given.dtype == "float32", mean, istd)

    @property
    def arrays(self) -> tuple[Array | None, ...]:
        return self.gamma, self.beta, self.mean, self.istd


@lru_cache(maxsize=1024)
def _matrix(shape: Shape, dtype: str, *limits: int) -> tuple[int, tuple[str, int], Walk]:
    """Returns the number of rows, which kernels read them, and how; limits: of `walk`."""
    rows, channels = prod(shape[:-1]), shape[-1]
    lanes = lanes_among(channels, dtype)
    return rows, (dtype, lanes), walk(rows, channels // lanes, *limits)


@ops.batch_norm_act.impl("cuda")
def batch_norm_act_cuda(*arrays: Array | None, **attrs: Any) -> Arrays:
    return batch_norm_add_act_cuda(*arrays, None, **attrs)


@ops.batch_norm_add_act.impl("cuda")
def batch_norm_add_act_cuda(x: Array, gamma: Array | None, beta: Array | None, running_mean: Array | None,
                            running_var: Array | None, residual: Array | None, *, activation: str | None,
                            training: bool, momentum: float, eps: float) -> Arrays:
    """Returns y, which may wait to be written, mean and istd."""
    bound = lazy.bound_of(residual)
    memory = _reserve_y(residual, x, gamma, beta) if training else None
    mean, istd = empty(x.shape[-1:], "float32"), empty(x.shape[-1:], "float32")
    parameters = running_mean.dtype if running_mean else "float32"
    if training:
        rows, kind, w = _matrix(x.shape, x.dtype, *SUMMERS)
        outcome = (running_mean, running_var, mean, istd, momentum, eps, gamma, beta, bound, memory and memory.scale)
        if parts := lazy.statistics.take(x):
            _FINALIZE_TILES[parameters](ceil_div(mean.size, _SIDE), parts, parts.shape[0], x, rows, mean.size, *outcome)
        else:
            sums = empty((2, mean.size, w.chunks), "float32")
            _STATISTICS[kind](w.grid, x, sums, w.block)
            _FINALIZE_STATISTICS[parameters](mean.size, sums, w.block, *outcome)
    else:
        _RUNNING_STATISTICS[parameters](ceil_div(mean.size, THREADS), running_mean, running_var, mean, istd, mean.size,
                                        eps)
    return _result(memory, x, Norm.of(gamma, beta, mean, istd), residual, activation == "relu"), mean, istd


@ops.batch_norm_apply.impl("cuda")
def batch_norm_apply_cuda(x: Array, gamma: Array | None, beta: Array | None, mean: Array, istd: Array,
                          residual: Array | None, *, activation: str | None, training: bool) -> Array:
    bound = lazy.bound_of(residual)
    memory = _reserve_y(residual, x, gamma, beta, mean, istd) if training else None
    if memory:
        _APPLY_BOUND(1, prod(x.shape[:-1]), mean.size, gamma, beta, bound, memory.scale)
    return _result(memory, x, Norm.of(gamma, beta, mean, istd), residual, activation == "relu")


def _result(memory: lazy.Memory | None, x: Array, norm: Norm, residual: Array | None, relu: bool) -> Array:
    """Returns y: one that waits, if there is memory with a bound of it."""
    floor, given = 0.0 if relu else -inf, (x, *chained.inputs(norm), *([residual] if residual else ()))
    if memory:
        value = chained.applied(given, relu)
        if residual:
            return bounded(value, memory)
        y = lazy.defer(memory, (x, *norm.arrays), partial(_write_y, x, norm, floor),
                       join=partial(_join_y, x, norm, floor, memory.elements))
        return lazy.offer(y, value)
    y = chained.applied(given, relu, partial(_apply_alone, relu, norm.wide))
    return _apply_alone(relu, norm.wide, *given) if y is None else y


def _apply_alone(relu: bool, wide: bool, x: Array, mean: Array, istd: Array, gamma: Any, beta: Any,
                 residual: Array | None = None) -> Array:
    """Returns y, from what `chained.inputs` makes of a norm."""
    y, (gamma, beta) = empty(x.shape, x.dtype), [p if isinstance(p, Array) else None for p in (gamma, beta)]
    _apply(x, Norm(gamma, beta, wide, mean, istd), residual, 0.0 if relu else -inf, y)
    return y


def _reserve_y(residual: Array | None, x: Array, *more: Array | None) -> lazy.Memory | None:
    """Returns memory for y that may be read as planes; None where it may not.  more: what else y is made of."""
    bounded = residual is None or (lazy.bound_of(residual) is not None and can_chain())
    return lazy.reserve(x.shape) if bounded and _may_wait(x, *more, residual) else None


def _may_wait(*arrays: Array | None) -> bool:
    """Tells whether a result like the first of arrays, of which it is computed, may be read as planes."""
    x = arrays[0]
    return x.dtype == "float32" and x.shape[-1] % 8 == 0 and lazy.planes_are_read() and lazy.can_wait(*arrays)


def _write_y(x: Array, norm: Norm, floor: float, memory: Memory, planes: bool) -> None:
    """Writes y as planes, or its elements; as elements too where planes turn out not to hold it."""
    y, header, flag = memory
    if planes:
        _, _, w = _matrix(x.shape, x.dtype, lazy.PLANE_WRITERS)
        _APPLY_PLANES(w.grid, x, *norm, y, header, floor, lazy.flag_counter(), x.shape[-1], 0, w.grid, w.block)
    _apply(x, norm, None, floor, y, flag if planes else None)


def _join_y(x: Array, norm: Norm, floor: float, y: Array, whole: Memory, rows: Rows | None) -> None:
    """Writes y as planes among those of a whole; without rows its elements to y, where planes do not hold the whole."""
    if rows is None:
        _apply(x, norm, None, floor, y, whole.flag)
        return
    _APPLY_PLANES(rows.walk.grid, x, *norm, whole.elements, whole.scale, floor, lazy.flag_counter(), rows.columns,
                  rows.first, rows.blocks, rows.walk.block)


def _apply(x: Array, norm: Norm, residual: Array | None, floor: float, y: Array, flag: Array | None = None) -> None:
    """Writes the elements of y; without a residual, if there is no flag, or it is set."""
    _, kind, w = _matrix(x.shape, x.dtype, lazy.GUARDED if flag else WRITERS)
    if residual is None:
        _APPLY[kind](w.grid, x, *norm, y, floor, flag, w.block)
    else:
        _APPLY_ADD[kind](w.grid, x, residual, *norm, y, floor, w.block)


@ops.batch_norm_grad.impl("cuda")
def batch_norm_grad_cuda(g: Array, x: Array, gamma: Array | None, beta: Array | None, mean: Array, istd: Array, *,
                         activation: str | None) -> Arrays:
    lazy.flush_gradients()
    rows, kind, w = _matrix(x.shape, x.dtype, *SUMMERS)
    relu, channels, norm = activation == "relu", mean.shape, Norm.of(gamma, beta, mean, istd)
    memory = lazy.reserve(x.shape) if _may_wait(x, g, *norm.arrays) else None
    dgamma, dbeta, total, coefficients = [empty(shape, "float32") for shape in (*[channels] * 3, (2, *channels))]
    if found := chained.sums(g, x, norm, relu, memory and memory.scale):
        v, sums = found
    else:
        sums = empty((2 + bool(memory), *channels, w.chunks), "float32")
        if memory:
            _SUMS_BOUND[relu](w.grid, *lazy.rows_of(g), x, *norm, sums, memory.scale, w.block)
        else:
            _SUMS[relu][kind](w.grid, *lazy.rows_of(g), x, *norm, sums, w.block)
    _FINALIZE_SUMS[gamma.dtype if gamma else "float32"](mean.size, sums, gamma, istd, dgamma, dbeta, total,
                                                        coefficients, rows, sums.shape[-1], memory and memory.scale)
    if found and v.written:
        g, relu = v.written.reshaped(x.shape), False
    if found and not v.written:
        dx = chained.gradient(v, x, norm, coefficients, memory)
    elif memory:
        write = partial(_write_dx, relu, g, x, norm, coefficients)
        dx = lazy.defer(memory, (g, x, *norm.arrays, coefficients), write, hurries=True)
        lazy.offer(dx, chained.gradient_from(g, x, norm, relu, coefficients))
    else:
        def alone(g: Array, x: Array, *_: Any) -> Array:
            return _gradient(relu, g, x, norm, coefficients, empty(x.shape, x.dtype))
        dx = None
        if x.dtype != "float32" and not found:
            dx = chained.gradient_from(g, x, norm, relu, coefficients, alone)
        dx = dx or alone(g, x)
    return lazy.statistics.leave_sums(dx, total), dgamma, dbeta


def _write_dx(relu: bool, g: Array, x: Array, norm: Norm, coefficients: Array, memory: Memory, planes: bool) -> None:
    """Writes dx as planes, or its elements; as elements too where planes turn out not to hold it."""
    dx, header, flag = memory
    if planes:
        _, _, w = _matrix(x.shape, x.dtype, lazy.PLANE_WRITERS)
        _GRADIENT_PLANES[relu](w.grid, *lazy.rows_of(g), x, *norm, coefficients, dx, header, lazy.flag_counter(),
                               w.block)
    _gradient(relu, g, x, norm, coefficients, dx, flag if planes else None)


def _gradient(relu: bool, g: Array, x: Array, norm: Norm, coefficients: Array, dx: Array, flag: Array | None = None
              ) -> Array:
    """Writes the elements of dx, if there is no flag, or it is set, and returns dx."""
    _, kind, w = _matrix(x.shape, x.dtype, lazy.GUARDED if flag else BLOCKS)
    _GRADIENT[relu][kind](w.grid, *lazy.rows_of(g), x, *norm, coefficients, dx, flag, w.block)
    return dx
