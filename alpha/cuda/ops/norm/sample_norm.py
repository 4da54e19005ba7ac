"""Layer and group normalisation on the GPU (layer_norm.cu, group_norm.cu).

Forward, rows of layer norm that are too long for registers are samples of one pixel and one group.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import NamedTuple

from alpha.cuda.ops.norm import NORM, WRITERS, Norm
from alpha.cuda.runtime.context import context
from alpha.cuda.runtime.kernel import Kernel
from alpha.cuda.runtime.memory import Array, Shape, empty
from alpha.cuda.runtime.walk import CHAIN, SUMMERS, THREADS, WALK, Walk, per_piece, pieces_of, walk
from alpha.ops import norm as ops
from alpha.ops.conv_desc import ceil_div

Arrays = tuple[Array, ...]

_LAYER_NORM = per_piece("layer_norm.cu", "normalize",
                        f"ptr x, {NORM}, ptr rest, ptr y, f32 eps, i64 rows, i64 n, i32 width")
_SAMPLE_GRADIENT = f"ptr g, ptr x, {NORM}, ptr rest, ptr dx"
STAGES = {"float32": 1, "bfloat16": 2, "float16": 2}  # of the gradient, as layer_norm.cu has them
_LAYER_GRADIENT = {((dtype, wide), pieces): Kernel(
    "layer_norm.cu", f"gradient_{pieces}{'' if wide else '_single'}_{dtype}",
    f"{_SAMPLE_GRADIENT}, ptr partial, i64 rows, i64 n, i32 width",
    shared=wide * stages * pieces * 2 * 16 * THREADS)
    for dtype, stages in STAGES.items() for wide in (True, False) for pieces in (1, 2, 4, 8)
    if pieces < 8 or (wide and dtype == "float32")}
_LAYER_GRADIENT_LONG = per_piece("layer_norm.cu", "gradient_long", f"{_SAMPLE_GRADIENT}, i64 n")
_PARAMETER_SUMS = per_piece("layer_norm.cu", "parameter_sums", f"ptr g, ptr x, {NORM}, ptr rest, ptr partial, {WALK}")
_PARAMETER_TOTALS = Kernel("layer_norm.cu", "parameter_totals", "ptr partial, ptr dgamma, ptr dbeta, i64 chunks, i64 n")

_TEAMS = f"{WALK}, i64 items, i32 k, i32 width"
_STATISTICS = per_piece("group_norm.cu", "statistics", f"ptr x, ptr partial, {WALK}, i32 k")
_FINISH = per_piece("group_norm.cu", "finish", f"ptr x, ptr partial, {NORM}, ptr rest, f32 eps, {_TEAMS}")
_APPLY = per_piece("group_norm.cu", "apply", f"ptr x, {NORM}, ptr rest, ptr y, {WALK}, i32 k")
_GRADIENT_SUMS = per_piece("group_norm.cu", "sums", f"ptr g, ptr x, {NORM}, ptr rest, ptr partial, {WALK}, i32 k")
_FINISH_GRADIENT = per_piece("group_norm.cu", "finish_gradient",
                             f"ptr partial, {NORM}, ptr rest, ptr coefficients, {_TEAMS}")
_GRADIENT = per_piece("group_norm.cu", "gradient",
                      f"ptr g, ptr x, {NORM}, ptr rest, ptr coefficients, i64 items, ptr dx, {WALK}, i32 k")


# ---- layer norm ------------------------------------------------------------------------------------------------------
HELD = 8  # pieces of a row that a thread keeps
NARROW = 4  # threads that a row has at least, if each of them then has 4 pieces
GRAD_NARROW = 8  # the same of the backward pass, and of all the pieces that a thread may have:
GRAD_HELD = {1: 4, 4: 8, 8: 4}  # lanes of a piece -> pieces
STATIC = 9216  # bytes of shared memory of the gradient beside its pieces
ROW_BLOCKS = 132  # of the gradient, per block that a multiprocessor holds: on an H100 all run at once, to one end


class _Rows(NamedTuple):
    """How threads share rows; see layer_norm.cu."""

    kind: tuple[str, bool]
    width: int        # threads of a row in the forward pass, 0: too long for registers
    grid: int
    pieces: int       # of a thread in the backward pass, 0: too many for registers
    grad_width: int
    grad_grid: int
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
    most = GRAD_HELD[lanes]
    while most > 1 and kind[1] and _LAYER_GRADIENT[kind, most].shared + STATIC > context.max_shared:
        most //= 2
    held = min(most, _power(ceil_div(pieces, GRAD_NARROW)))
    grad_width = _power(ceil_div(pieces, held))
    held = held if grad_width <= THREADS else 0
    resident = 1 if held * lanes > 16 else 2 if held * lanes > 8 else 3  # as layer_norm.cu has it
    grad_grid = min(ROW_BLOCKS * resident, ceil_div(rows * grad_width, THREADS))
    chunks = grad_grid
    if held and rows > CHAIN * grad_grid * (THREADS // grad_width):
        chunks *= 2  # the others are what rounding has left out of the first
    return _Rows(kind, width, ceil_div(rows * width, THREADS), held, grad_width, grad_grid, chunks)


@ops.layer_norm.impl("cuda")
def layer_norm_cuda(x: Array, gamma: Array | None, beta: Array | None, *, normalized_ndim: int, eps: float) -> Arrays:
    n = prod(x.shape[-normalized_ndim:])
    shape, rows = (*x.shape[:-normalized_ndim], *(1,) * normalized_ndim), x.size // n
    p = _rows(rows, n, x.dtype)
    if not p.width:  # a sample of one pixel and one group
        y, *statistics = group_norm_cuda(x.reshaped((rows, n)), gamma, beta, groups=1, eps=eps)
        return y.reshaped(x.shape), *[found.reshaped(shape) for found in statistics]
    y, statistics = empty(x.shape, x.dtype), [empty(shape, "float32") for _ in range(3)]
    norm = *Norm.of(gamma, beta, *statistics[:2]), statistics[2]
    _LAYER_NORM[p.kind](p.grid, x, *norm, y, eps, rows, n, p.width)
    return y, *statistics


def _layer_norm_grad(g: Array, x: Array, norm: tuple, dx: Array, n: int) -> Array:
    """Writes dx and returns partial[chunk][dgamma, dbeta][n]."""
    rows = x.size // n
    p = _rows(rows, n, x.dtype)
    if p.pieces:
        partial = empty((p.chunks, 2, n), "float32")
        _LAYER_GRADIENT[p.kind, p.pieces](p.grad_grid, g, x, *norm, dx, partial, rows, n, p.grad_width)
    else:
        w = walk(rows, n // pieces_of(n, x.dtype)[1])
        partial = empty((w.chunks, 2, n), "float32")
        _LAYER_GRADIENT_LONG[p.kind](rows, g, x, *norm, dx, n)
        _PARAMETER_SUMS[p.kind](w.grid, g, x, *norm, partial, w.block)
    return partial


# ---- group norm ------------------------------------------------------------------------------------------------------
class _Sums(NamedTuple):
    """How blocks sum down samples, and threads finish the groups of these; see group_norm.cu."""

    walk: Walk                   # of a sample
    teams: int                   # blocks of those that finish
    team: tuple[int, int, int]   # what they finish: how many groups, of how many channels, by how many threads each


@lru_cache(maxsize=256)
def _sums(samples: int, pixels: int, channels: int, groups: int, lanes: int) -> _Sums:
    blocks, longest = SUMMERS
    w = walk(pixels, channels // lanes, ceil_div(blocks, max(1, samples)), longest)
    items, k = samples * groups, channels // groups
    width = min(THREADS, _power(ceil_div(k * w.chunks, 4)))
    return _Sums(w, ceil_div(items * width, THREADS), (items, k, width))


def _writes(samples: int, pixels: int, pieces: int) -> Walk:
    return walk(pixels, pieces, ceil_div(WRITERS, max(1, samples)))


@ops.group_norm.impl("cuda")
def group_norm_cuda(x: Array, gamma: Array | None, beta: Array | None, *, groups: int, eps: float) -> Arrays:
    samples, channels, pixels = x.shape[0], x.shape[-1], prod(x.shape[1:-1])
    y, statistics = empty(x.shape, x.dtype), [empty((samples, 1, groups, 1), "float32") for _ in range(3)]
    norm = *Norm.of(gamma, beta, *statistics[:2]), statistics[2]
    kind, lanes = pieces_of(channels, x.dtype)
    columns = channels if groups > 1 else lanes  # elements of one group may be in any column: in as few as there can be
    s = _sums(samples, pixels * channels // columns, columns, groups, lanes)
    w = _writes(samples, pixels, channels // lanes)
    partial = empty((samples, 2, columns, s.walk.chunks), "float32")
    _STATISTICS[kind](samples * s.walk.grid, x, partial, s.walk.block, columns // groups)
    _FINISH[kind](s.teams, x, partial, *norm, eps, s.walk.block, *s.team)
    _APPLY[kind](samples * w.grid, x, *norm, y, w.block, channels // groups)
    return y, *statistics


def _group_norm_grad(g: Array, x: Array, norm: tuple, dx: Array) -> Array:
    """Writes dx and returns partial[sample, chunk][dgamma, dbeta][C]."""
    samples, pixels, groups, k = x.shape
    kind, lanes = pieces_of(groups * k, x.dtype)
    s, w = _sums(samples, pixels, groups * k, groups, lanes), _writes(samples, pixels, groups * k // lanes)
    partial = empty((samples * s.walk.chunks, 2, groups * k), "float32")
    coefficients = empty((2, samples * groups), "float32")
    _GRADIENT_SUMS[kind](samples * s.walk.grid, g, x, *norm, partial, s.walk.block, k)
    _FINISH_GRADIENT[kind](s.teams, partial, *norm, coefficients, s.walk.block, *s.team)
    _GRADIENT[kind](samples * w.grid, g, x, *norm, coefficients, samples * groups, dx, w.block, k)
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
