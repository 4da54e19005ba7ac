"""Batch, layer and group normalisation on the GPU (kernels/batch_norm.cu, kernels/sample_norm.cu).

A forward or backward of batch norm is three launches: sums per channel and chunk of rows, a block per channel that
merges the chunks, and the pass that writes. Sums are float32 within a chunk, double across chunks, in fixed order.
"""

from __future__ import annotations

from functools import lru_cache
from math import inf, prod
from typing import NamedTuple

from alpha.cuda.kernel import per_dtype
from alpha.cuda.memory import ITEMSIZE, Array, empty
from alpha.cuda.reduce import BLOCKS, THREADS, WALK, Walk, ceil_div, per_piece, row_width, sum_of_chunks, walk
from alpha.ops import norm as ops

Arrays = tuple[Array, ...]
Shape = tuple[int, ...]


_CHANNELS = "ptr gamma, ptr beta, ptr mean, ptr istd"
_STATISTICS = per_piece("batch_norm.cu", "statistics", f"ptr x, ptr partial, {WALK}")
_FINALIZE_STATISTICS = per_dtype("batch_norm.cu", "finalize_statistics",
                                 "ptr partial, ptr running_mean, ptr running_var, ptr mean, ptr istd, i64 rows, "
                                 "i64 chunk, i32 chunks, f32 momentum, f32 eps")
_RUNNING_STATISTICS = per_dtype("batch_norm.cu", "running_statistics",
                                "ptr running_mean, ptr running_var, ptr mean, ptr istd, i32 channels, f32 eps")
_APPLY = per_piece("batch_norm.cu", "apply", f"ptr x, {_CHANNELS}, ptr y, f32 floor, {WALK}")
_APPLY_ADD = per_piece("batch_norm.cu", "apply_add", f"ptr x, ptr residual, {_CHANNELS}, ptr y, f32 floor, {WALK}")
_SUMS = {relu: per_piece("batch_norm.cu", "sums" + "_relu" * relu, f"ptr g, ptr x, {_CHANNELS}, ptr partial, {WALK}")
         for relu in (False, True)}
_FINALIZE_SUMS = per_dtype("batch_norm.cu", "finalize_sums", "ptr partial, ptr gamma, ptr istd, ptr dgamma, ptr dbeta, "
                           "ptr coefficients, i64 rows, i32 chunks")
_GRADIENT = {relu: per_piece("batch_norm.cu", "gradient" + "_relu" * relu,
                             f"ptr g, ptr x, {_CHANNELS}, ptr coefficients, ptr dx, {WALK}")
             for relu in (False, True)}

_GROUP = "i64 items, i64 pixels, i64 groups, i64 k, i32 width"
_NORMALIZE = per_piece("sample_norm.cu", "normalize",
                       f"ptr x, ptr gamma, ptr beta, ptr y, ptr mean, ptr istd, f32 eps, {_GROUP}")
_SAMPLE_GRADIENT = per_piece("sample_norm.cu", "gradient",
                             f"ptr g, ptr x, ptr gamma, ptr mean, ptr istd, ptr dx, {_GROUP}")
_PARAMETER_SUMS = per_piece("sample_norm.cu", "parameter_sums", "ptr g, ptr x, ptr mean, ptr istd, ptr partial, "
                            f"i64 pixels, i64 groups, i64 k, {WALK}")


# ---- batch norm ------------------------------------------------------------------------------------------------------


WRITERS = 4 * BLOCKS  # blocks of a pass that writes and sums nothing: short ones, so that none is late at the end


@lru_cache(maxsize=1024)
def _matrix(shape: Shape, dtype: str, blocks: int = BLOCKS) -> tuple[int, tuple[str, bool], Walk]:
    """Returns the number of rows, which kernels read them, and how."""
    rows, channels = prod(shape[:-1]), shape[-1]
    lanes = 16 // ITEMSIZE[dtype]
    wide = channels % lanes == 0
    return rows, (dtype, wide), walk(rows, channels // lanes if wide else channels, blocks)


@ops.batch_norm_act.impl("cuda")
def batch_norm_act_cuda(x: Array, gamma: Array | None, beta: Array | None, running_mean: Array | None,
                        running_var: Array | None, *, training: bool, momentum: float, eps: float,
                        activation: str | None) -> Arrays:
    mean, istd = _statistics(x, running_mean, running_var, training, momentum, eps)
    _, kind, w = _matrix(x.shape, x.dtype, WRITERS)
    y = empty(x.shape, x.dtype)
    _APPLY[kind](w.grid, x, gamma, beta, mean, istd, y, 0.0 if activation == "relu" else -inf, w.block)
    return y, mean, istd


@ops.batch_norm_add_act.impl("cuda")
def batch_norm_add_act_cuda(x: Array, gamma: Array | None, beta: Array | None, running_mean: Array | None,
                            running_var: Array | None, residual: Array, *, training: bool, momentum: float, eps: float,
                            activation: str | None) -> Arrays:
    mean, istd = _statistics(x, running_mean, running_var, training, momentum, eps)
    _, kind, w = _matrix(x.shape, x.dtype, WRITERS)
    y = empty(x.shape, x.dtype)
    _APPLY_ADD[kind](w.grid, x, residual, gamma, beta, mean, istd, y, 0.0 if activation == "relu" else -inf, w.block)
    return y, mean, istd


def _statistics(x: Array, running_mean: Array | None, running_var: Array | None, training: bool, momentum: float,
                eps: float) -> Arrays:
    """Returns mean and istd, of x in training, else the running ones; in training those are updated."""
    channels = x.shape[-1]
    mean, istd = empty((channels,), "float32"), empty((channels,), "float32")
    if not training:
        _RUNNING_STATISTICS[x.dtype](ceil_div(channels, THREADS), running_mean, running_var, mean, istd, channels, eps)
        return mean, istd
    rows, kind, w = _matrix(x.shape, x.dtype)
    partial = empty((2, channels, w.chunks), "float32")
    _STATISTICS[kind](w.grid, x, partial, w.block)
    _FINALIZE_STATISTICS[x.dtype](channels, partial, running_mean, running_var, mean, istd, rows, w.chunk, w.chunks,
                                  momentum, eps)
    return mean, istd


@ops.batch_norm_grad.impl("cuda")
def batch_norm_grad_cuda(g: Array, x: Array, gamma: Array | None, beta: Array | None, mean: Array, istd: Array, *,
                         activation: str | None) -> Arrays:
    rows, kind, w = _matrix(x.shape, x.dtype)
    relu, dtype, channels = activation == "relu", x.dtype, x.shape[-1]
    dx, dgamma, dbeta = empty(x.shape, dtype), empty((channels,), dtype), empty((channels,), dtype)
    partial, coefficients = empty((2, channels, w.chunks), "float32"), empty((2, channels), "float32")
    _SUMS[relu][kind](w.grid, g, x, gamma, beta, mean, istd, partial, w.block)
    _FINALIZE_SUMS[dtype](channels, partial, gamma, istd, dgamma, dbeta, coefficients, rows, w.chunks)
    _GRADIENT[relu][kind](w.grid, g, x, gamma, beta, mean, istd, coefficients, dx, w.block)
    return dx, dgamma, dbeta


# ---- statistics of each sample ---------------------------------------------------------------------------------------


class _Groups(NamedTuple):
    """x as (samples, pixels, groups, k), and how threads share it; see kernels/sample_norm.cu."""

    kind: tuple[str, bool]
    grid: int
    args: tuple[int, int, int, int, int]  # items = samples * groups, pixels, groups, k, width
    walk: Walk


@lru_cache(maxsize=1024)
def _groups(samples: int, pixels: int, groups: int, k: int, dtype: str) -> _Groups:
    lanes = 16 // ITEMSIZE[dtype]
    lanes = lanes if k % lanes == 0 else 1
    width = row_width(pixels * k // lanes)
    items = samples * groups
    return _Groups((dtype, lanes > 1), ceil_div(items, THREADS // width), (items, pixels, groups, k, width),
                   walk(samples * pixels, groups * k // lanes))


def _normalize(x: Array, gamma: Array | None, beta: Array | None, eps: float, statistics: Shape, *view: int) -> Arrays:
    y, mean, istd = empty(x.shape, x.dtype), empty(statistics, "float32"), empty(statistics, "float32")
    p = _groups(*view, x.dtype)
    _NORMALIZE[p.kind](p.grid, x, gamma, beta, y, mean, istd, eps, *p.args)
    return y, mean, istd


@ops.layer_norm.impl("cuda")
def layer_norm_cuda(x: Array, gamma: Array | None, beta: Array | None, *, normalized_ndim: int, eps: float) -> Arrays:
    lead, normalized = x.shape[:-normalized_ndim], x.shape[-normalized_ndim:]
    return _normalize(x, gamma, beta, eps, (*lead, *(1,) * normalized_ndim), prod(lead), 1, 1, prod(normalized))


@ops.group_norm.impl("cuda")
def group_norm_cuda(x: Array, gamma: Array | None, beta: Array | None, *, groups: int, eps: float) -> Arrays:
    n, c = x.shape[0], x.shape[-1]
    return _normalize(x, gamma, beta, eps, (n, 1, groups, 1), n, prod(x.shape[1:-1]), groups, c // groups)


@ops.sample_norm_grad.impl("cuda")
def sample_norm_grad_cuda(g: Array, x: Array, gamma: Array | None, mean: Array, istd: Array, *, axes: Shape,
                          params_ndim: int) -> Arrays:
    params, dtype = x.shape[-params_ndim:], x.dtype
    whole_samples = axes[0] == x.ndim - params_ndim  # layer norm; group norm comes as (samples, pixels, groups, k)
    p = _groups(*(prod(x.shape[:axes[0]]), 1, 1, prod(params)) if whole_samples else x.shape, dtype)
    dx, dgamma, dbeta = empty(x.shape, dtype), empty(params, dtype), empty(params, dtype)
    partial = empty((2, dgamma.size, p.walk.chunks), "float32")
    _SAMPLE_GRADIENT[p.kind](p.grid, g, x, gamma, mean, istd, dx, *p.args)
    _PARAMETER_SUMS[p.kind](p.walk.grid, g, x, mean, istd, partial, *p.args[1:4], p.walk.block)
    sum_of_chunks(partial.ptr, p.walk.chunks, dgamma)
    sum_of_chunks(partial.ptr + partial.nbytes // 2, p.walk.chunks, dbeta)
    return dx, dgamma, dbeta
