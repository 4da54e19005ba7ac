"""Layer and group normalisation on the GPU (layer_norm.cu, group_norm.cu)."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import NamedTuple

from alpha.cuda.ops.norm import NORM, WRITERS, Norm
from alpha.cuda.runtime.kernel import Kernel
from alpha.cuda.runtime.memory import Array, Shape, empty
from alpha.cuda.runtime.walk import CHAIN, SUMMERS, THREADS, WALK, Walk, ceil_div, per_piece, pieces_of, walk
from alpha.ops import norm as ops

Arrays = tuple[Array, ...]

_LAYER = f"ptr x, {NORM}, ptr rest, ptr y, f32 eps"
_LAYER_NORM, _LAYER_NORM_LONG = (per_piece("layer_norm.cu", name, f"{_LAYER}, i64 rows, i64 n, i32 width")
                                 for name in ("normalize", "normalize_long"))
_SAMPLE_GRADIENT = f"ptr g, ptr x, {NORM}, ptr rest, ptr dx"
STAGES = {"float32": 1, "bfloat16": 2, "float16": 2}  # of the gradient, as layer_norm.cu has them
_LAYER_GRADIENT = {((dtype, wide), pieces): Kernel(
    "layer_norm.cu", f"gradient_{pieces}{'' if wide else '_single'}_{dtype}",
    f"{_SAMPLE_GRADIENT}, ptr partial, i64 rows, i64 n, i32 width", shared=wide * stages * pieces * 2 * 16 * THREADS)
    for dtype, stages in STAGES.items() for wide in (True, False) for pieces in (1, 2, 4, 8)
    if pieces < 8 or (wide and dtype == "float32")}
_LAYER_GRADIENT_LONG = per_piece("layer_norm.cu", "gradient_long", f"{_SAMPLE_GRADIENT}, i64 n")
_PARAMETER_SUMS = per_piece("layer_norm.cu", "parameter_sums", f"ptr g, ptr x, {NORM}, ptr rest, ptr partial, {WALK}")
_PARAMETER_TOTALS = Kernel("layer_norm.cu", "parameter_totals", "ptr partial, ptr dgamma, ptr dbeta, i64 chunks, i64 n")

_TEAMS = f"{WALK}, i64 items, i32 k, i32 width"
_STATISTICS = per_piece("group_norm.cu", "statistics", f"ptr x, ptr partial, {WALK}, i32 k")
_FINISH = per_piece("group_norm.cu", "finish", f"ptr x, ptr partial, {NORM}, ptr rest, f32 eps, {_TEAMS}")
_APPLY = per_piece("group_norm.cu", "apply", f"ptr x, {NORM}, ptr rest, ptr y, {WALK}, i32 k")
_SUMS = per_piece("group_norm.cu", "sums", f"ptr g, ptr x, {NORM}, ptr rest, ptr partial, {WALK}, i32 k")
_FINISH_GRADIENT = per_piece("group_norm.cu", "finish_gradient",
                             f"ptr partial, {NORM}, ptr rest, ptr coefficients, {_TEAMS}")
_GRADIENT = per_piece("group_norm.cu", "gradient",
                      f"ptr g, ptr x, {NORM}, ptr rest, ptr coefficients, i64 items, ptr dx, {WALK}, i32 k")


# ---- layer norm ------------------------------------------------------------------------------------------------------
HELD = 8  # pieces of a row that a thread keeps
NARROW = 4  # threads that a row has at least, if each of them then has 4 pieces
GRAD_NARROW = 8  # the same of the backward pass, and of all the pieces that a thread may have:
GRAD_HELD = {1: 4, 4: 8, 8: 4}  # lanes of a piece -> pieces
ROW_BLOCKS = 132  # of the gradient, per block that a multiprocessor holds: on an H100 all run at once, to one end


class _Rows(NamedTuple):
    """How threads share rows; see layer_norm.cu."""

    kind: tuple[str, bool]
    width: int        # threads of a row in the forward pass, 0: too long for registers
    grid: int
    pieces: int       # of a thread in the backward pass, 0: too many for registers
    grad_width: int
    grad_grid: int
    walk: Walk
    chunks: int       # of what is summed backward


def _power(n: int) -> int:
    """Returns the smallest power of two that is at least n."""
    return 1 << (n - 1).bit_length()


@lru_cache(maxsize=1024)
def _rows(rows: int, n: int, dtype: str) -> _Rows:
    kind, lanes = pieces_of(n, dtype)
    pieces = n // lanes
    width = max(min(NARROW, _power(ceil_div(pieces, 4))), _power(ceil_div(pieces, HELD)))
    width = width if width <= THREADS else 0
    held = min(GRAD_HELD[lanes], _power(ceil_div(pieces, GRAD_NARROW)))
    grad_width = _power(ceil_div(pieces, held))
    held, grad_width = (held, grad_width) if grad_width <= THREADS else (0, THREADS)
    resident = 1 if held * lanes > 16 else 2 if held * lanes > 8 else 3  # as layer_norm.cu has it
    grad_grid = min(ROW_BLOCKS * resident, ceil_div(rows * grad_width, THREADS))
    w, chunks = walk(rows, pieces), grad_grid
    if rows > CHAIN * grad_grid * (THREADS // grad_width):
        chunks *= 2  # the others are what rounding has left out of the first
    return _Rows(kind, width, ceil_div(rows * (width or THREADS), THREADS), held, grad_width, grad_grid, w,
                 chunks if held else w.chunks)


@ops.layer_norm.impl("cuda")
def layer_norm_cuda(x: Array, gamma: Array | None, beta: Array | None, *, normalized_ndim: int, eps: float) -> Arrays:
    n = prod(x.shape[-normalized_ndim:])
    shape = (*x.shape[:-normalized_ndim], *(1,) * normalized_ndim)
    y, statistics = empty(x.shape, x.dtype), [empty(shape, "float32") for _ in range(3)]
    rows, norm = statistics[0].size, (*Norm.of(gamma, beta, *statistics[:2]), statistics[2])
    p = _rows(rows, n, x.dtype)
    kernels = _LAYER_NORM if p.width else _LAYER_NORM_LONG
    kernels[p.kind](p.grid, x, *norm, y, eps, rows, n, p.width or THREADS)
    return y, *statistics


def _layer_norm_grad(g: Array, x: Array, norm: tuple, dx: Array, n: int) -> Array:
    """Writes dx and returns partial[chunk][dgamma, dbeta][n]."""
    rows = x.size // n
    p = _rows(rows, n, x.dtype)
    partial = empty((p.chunks, 2, n), "float32")
    if p.pieces:
        _LAYER_GRADIENT[p.kind, p.pieces](p.grad_grid, g, x, *norm, dx, partial, rows, n, p.grad_width)
    else:
        _LAYER_GRADIENT_LONG[p.kind](rows, g, x, *norm, dx, n)
        _PARAMETER_SUMS[p.kind](p.walk.grid, g, x, *norm, partial, p.walk.block)
    return partial


# ---- group norm ------------------------------------------------------------------------------------------------------
class _Passes(NamedTuple):
    """How blocks pass over samples, and how threads finish what they have summed; see group_norm.cu."""

    kind: tuple[str, bool]
    sums: Walk      # down a sample, where it is summed,
    writes: Walk    # and where results are written
    teams: int      # blocks of those that finish groups
    team: tuple[int, int, int]


@lru_cache(maxsize=256)
def _passes(samples: int, pixels: int, channels: int, groups: int, dtype: str) -> _Passes:
    kind, lanes = pieces_of(channels, dtype)
    blocks, longest = SUMMERS
    sums = walk(pixels, channels // lanes, ceil_div(blocks, max(1, samples)), longest)
    items, k = samples * groups, channels // groups
    width = min(THREADS, _power(ceil_div(k * sums.chunks, 4)))
    return _Passes(kind, sums, walk(pixels, channels // lanes, ceil_div(WRITERS, max(1, samples))),
                   ceil_div(items * width, THREADS), (items, k, width))


@ops.group_norm.impl("cuda")
def group_norm_cuda(x: Array, gamma: Array | None, beta: Array | None, *, groups: int, eps: float) -> Arrays:
    samples, channels, pixels = x.shape[0], x.shape[-1], prod(x.shape[1:-1])
    y, statistics = empty(x.shape, x.dtype), [empty((samples, 1, groups, 1), "float32") for _ in range(3)]
    norm = *Norm.of(gamma, beta, *statistics[:2]), statistics[2]
    p = _passes(samples, pixels, channels, groups, x.dtype)
    partial = empty((samples, 2, channels, p.sums.chunks), "float32")
    _STATISTICS[p.kind](samples * p.sums.grid, x, partial, p.sums.block, channels // groups)
    _FINISH[p.kind](p.teams, x, partial, *norm, eps, p.sums.block, *p.team)
    _APPLY[p.kind](samples * p.writes.grid, x, *norm, y, p.writes.block, channels // groups)
    return y, *statistics


def _group_norm_grad(g: Array, x: Array, norm: tuple, dx: Array) -> Array:
    """Writes dx and returns partial[sample, chunk][dgamma, dbeta][C]."""
    samples, pixels, groups, k = x.shape
    p = _passes(samples, pixels, groups * k, groups, x.dtype)
    partial, coefficients = empty((samples * p.sums.chunks, 2, groups * k), "float32"), empty((2, p.team[0]), "float32")
    _SUMS[p.kind](samples * p.sums.grid, g, x, *norm, partial, p.sums.block, k)
    _FINISH_GRADIENT[p.kind](p.teams, partial, *norm, coefficients, p.sums.block, *p.team)
    _GRADIENT[p.kind](samples * p.writes.grid, g, x, *norm, coefficients, p.team[0], dx, p.writes.block, k)
    return partial


@ops.sample_norm_grad.impl("cuda")
def sample_norm_grad_cuda(g: Array, x: Array, gamma: Array | None, mean: Array, istd: Array, rest: Array | None, *,
                          axes: Shape, params_ndim: int) -> Arrays:
    params, norm = x.shape[-params_ndim:], (*Norm.of(gamma, None, mean, istd), rest)
    dx, dgamma, dbeta = empty(x.shape, x.dtype), empty(params, "float32"), empty(params, "float32")
    if axes[0] == x.ndim - params_ndim:  # layer norm; group norm comes as (samples, pixels, groups, k)
        partial = _layer_norm_grad(g, x, norm, dx, dgamma.size)
    else:
        partial = _group_norm_grad(g, x, norm, dx)
    _PARAMETER_TOTALS(ceil_div(2 * dgamma.size, 8), partial, dgamma, dbeta, partial.shape[0], dgamma.size)
    return dx, dgamma, dbeta
