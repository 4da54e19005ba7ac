"""Matrix products: of a few rows by rows; on tensor cores as convolutions of 1x1 maps, many small ones by batched; else
matmul.cu, in float32."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import product
from math import prod
from typing import NamedTuple

import numpy as np

from alpha.core.device import FLOAT_DTYPES, HALF_DTYPES
from alpha.core.errors import DTypeError, message
from alpha.core.precision import PRECISIONS
from alpha.cuda.conv.costs import device, time_us
from alpha.cuda.conv.ffma import gemm
from alpha.cuda.conv.ffma.gemm import Tile, makespan
from alpha.cuda.conv.padded import Padded
from alpha.cuda.conv.planner import conversion, plan, precision_of, rank
from alpha.cuda.conv.split import SPLITS, refusal, shares, workspace
from alpha.cuda.ops.matmul import batched, rows
from alpha.cuda.ops.pointwise import as_float32, convert_into
from alpha.cuda.ops.pointwise.epilogue import NOTHING, Epilogue
from alpha.cuda.runtime.kernel import Kernel
from alpha.cuda.runtime.memory import ITEMSIZE, Array, Shape, empty, upload
from alpha.ops.conv_desc import ConvDesc, ceil_div
from alpha.ops.matmul import linear, matmul
from alpha.ops.shape import permute
from alpha.plan import AUTO, Cost, Request, Stage

TILES = tuple(tile for tile in gemm.TILES if (tile.rows, tile.columns) != (32, 64))  # no layer's product is best by it
LAYOUTS = (False, False), (False, True), (True, False)  # whether a is transposed, and b

KERNELS = {(tile, transpose_a, transpose_b, split): Kernel(
    "matmul.cu", f"matmul_{'nt'[transpose_a]}{'nt'[transpose_b]}" + "_split" * split,
    "ptr a, ptr b, ptr bias, ptr y, ptr slots, ptr arrived, ptr matrices, i32 a_step, i32 b_step, "
    "i32 m, i32 n, i32 k, i32 row_tiles, i32 column_tiles, i32 relu",
    threads=tile.threads, shared=tile.shared_bytes(not transpose_a, transpose_b),
    staged=tile.staged_bytes(not transpose_a, transpose_b), defines=tile.defines)
    for tile, (transpose_a, transpose_b), split in product(TILES, LAYOUTS, (False, True))}


@matmul.impl("cuda")
def matmul_cuda(a: Array, b: Array, *, transpose_a: bool, transpose_b: bool, dtype: str | None,
                algorithm: Request = AUTO) -> Array:
    rows.check_algorithm("matmul", algorithm)
    if transpose_a and transpose_b:  # as in no layer: a copy will do
        a, transpose_a = permute.impls["cuda"](a, axes=(*range(len(a.shape) - 2), -1, -2)), False
    p = _product(a.shape, b.shape, transpose_a, transpose_b)
    y = empty(p.y_shape, dtype or (a.dtype if a.dtype in HALF_DTYPES else b.dtype))
    _multiply(p, a, b, y, NOTHING)
    return y


@linear.impl("cuda")
def linear_cuda(x: Array, w: Array, b: Array | None, *, activation: str | None, algorithm: Request = AUTO) -> Array:
    rows.check_algorithm("linear", algorithm)
    y = empty((*x.shape[:-1], w.shape[0]), x.dtype)
    p = _product((x.size // w.shape[1] if w.shape[1] else prod(x.shape[:-1]), w.shape[1]), w.shape, False, True)
    epilogue = Epilogue.of(b and as_float32(b), activation)
    if rows.skips_zeros(algorithm, p.m, p.n, p.k, x, w, y):
        rows.multiply_without_zeros(p.m, p.n, p.k, x, w, y, epilogue)
    else:
        _multiply(p, x, w, y, epilogue)
    return y


class Product(NamedTuple):
    """Shapes of a product, taken apart once."""

    y_shape: Shape          # shape of the result
    m: int                  # rows,
    n: int                  # columns,
    k: int                  # terms
    batch: int              # and number of matrices of the result
    transpose_a: bool       # as stored, a is (K, M)
    transpose_b: bool       # b is (N, K)
    a_step: int             # matrices from one entry of the batch to the next (0: all share one); only without a table
    b_step: int             # likewise
    matrices: Array | None  # (batch, 2) int32, the matrices of a and b for each entry, where steps cannot say it


@lru_cache(maxsize=1024)
def _product(a: Shape, b: Shape, transpose_a: bool, transpose_b: bool) -> Product:
    vector_a, vector_b = len(a) == 1, len(b) == 1
    if vector_a:
        a = (1, *a)
    if vector_b:
        b, transpose_b = (1, *b), True
    m, k = a[:-3:-1] if transpose_a else a[-2:]
    n = b[-2] if transpose_b else b[-1]
    batch = np.broadcast_shapes(a[:-2], b[:-2])
    y_shape = batch + (() if vector_a else (m,)) + (() if vector_b else (n,))
    count, a_count, b_count = prod(batch), prod(a[:-2]), prod(b[:-2])
    if b_count == 1 and not transpose_a:  # one b for all: the rows of all matrices of a are one matrix
        return Product(y_shape, m * count, n, k, min(count, 1), transpose_a, transpose_b, 0, 0, None)
    if a_count in (1, count) and b_count in (1, count):
        return Product(y_shape, m, n, k, count, transpose_a, transpose_b, int(a_count > 1), int(b_count > 1), None)
    numbers = [np.broadcast_to(np.arange(each, dtype=np.int32).reshape(shape[:-2]), batch).ravel()
               for each, shape in ((a_count, a), (b_count, b))]
    return Product(y_shape, m, n, k, count, transpose_a, transpose_b, 0, 0, upload(np.stack(numbers, axis=1)))


def _multiply(p: Product, a: Array, b: Array, y: Array, epilogue: Epilogue) -> None:
    """Writes a product, of float32 or 16-bit operands, into y, float32 or of 16 bits."""
    for x in (a, b):
        if x.dtype not in FLOAT_DTYPES:
            raise DTypeError(message("matmul", f"the CUDA backend multiplies floats, an operand is {x.dtype}",
                                     'convert it with .astype("float32")'))
    if not y.size:
        return
    if p.batch == 1 and p.transpose_b and not p.transpose_a and rows.serves(p.m, p.k, a, b, y):
        rows.multiply(p.m, p.n, p.k, a, b, y, epilogue)
        return
    stores = next((x.dtype for x in (a, b) if x.dtype in HALF_DTYPES), "float32")
    convolution = None
    if p.batch == 1 and p.k:
        convolution = _convolution(p.m, p.n, p.k, p.transpose_a, p.transpose_b, precision_of(stores), y.dtype)
    if convolution:
        convolution(a, b, y, epilogue)
        return
    bias, relu = epilogue
    kernel, grid, meeting, tiles, time = _choose(p.m, p.n, p.k, p.batch, p.transpose_a, p.transpose_b)
    if p.batch > 1 and p.k and a.dtype == b.dtype and not (bias or relu):
        on_cores = batched.choose(p.m, p.n, p.k, p.batch, p.transpose_a, p.transpose_b, precision_of(stores), y.dtype)
        if on_cores and on_cores.time_us < time + _casts_us(a, b, y):
            on_cores.kernel(on_cores.blocks, a, b, y, p.matrices, p.a_step, p.b_step, p.m, p.n, p.k, *on_cores.sizes)
            return
    product = y if y.dtype == "float32" else empty(y.shape, "float32")
    kernel(grid, as_float32(a), as_float32(b), bias, product, *workspace(*meeting), p.matrices, p.a_step, p.b_step, p.m,
           p.n, p.k, *tiles, relu)
    if product is not y:
        convert_into(product, y)


def _casts_us(a: Array, b: Array, y: Array) -> float:
    """Returns the time of the casts around a product in float32, by estimate."""
    cast, one = [x for x in (a, b, y) if x.dtype != "float32"], device().table.conversion
    nbytes = sum(x.size * (4 + ITEMSIZE[x.dtype]) for x in cast)
    return time_us(Cost((Stage(nbytes=nbytes, depth=len(cast) * one.depth, launches=len(cast) * one.launches),)))


# ---- on tensor cores -------------------------------------------------------------------------------------------------
@lru_cache(maxsize=1024)
def _convolution(m: int, n: int, k: int, transpose_a: bool, transpose_b: bool, precision: str,
                 dtype: str) -> Callable[..., None] | None:
    """Returns the launch of the convolution of 1x1 maps that is this product, if tensor cores are to compute it.

    Rows are images, and columns channels:  a b^T is fprop (x, w),  a b is dgrad (g, w),  a^T b is wgrad (g, x).
    """
    pass_name = "wgrad" if transpose_a else "fprop" if transpose_b else "dgrad"
    images, ic, oc = {"fprop": (m, k, n), "dgrad": (m, n, k), "wgrad": (k, n, m)}[pass_name]
    desc = ConvDesc.fprop((images, 1, 1, ic), (oc, 1, 1, ic), stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1)
    if dtype != ("float32" if transpose_a else PRECISIONS[precision].dtype):
        return None
    options = rank(pass_name, desc, precision, every=False)
    best = options[0]
    if best.reason or best.candidate.reads == "float32":
        return None
    if isinstance(best.candidate, Padded):  # four launches around a small product
        casts = next(conversion(o.candidate, desc, precision) for o in options if o.candidate.reads == "float32")
        if _choose(m, n, k, 1, transpose_a, transpose_b)[-1] + time_us(casts) < best.time_us:
            return None
    launch, (x, w, y) = plan(pass_name, desc, precision).launch, (desc.x_shape, desc.w_shape, desc.y_shape)
    if pass_name == "fprop":
        return lambda a, b, out, epilogue: launch(a.reshaped(x), b.reshaped(w), out.reshaped(y), epilogue)
    if pass_name == "dgrad":
        return lambda a, b, out, _: launch(a.reshaped(y), b.reshaped(w), out.reshaped(x))
    return lambda a, b, out, _: launch(b.reshaped(x), a.reshaped(y), out.reshaped(w))


# ---- in FFMA ---------------------------------------------------------------------------------------------------------
@lru_cache(maxsize=1024)
def _choose(m: int, n: int, k: int, batch: int, transpose_a: bool, transpose_b: bool
            ) -> tuple[Kernel, tuple[int, int], tuple[int, int], tuple[int, int], float]:
    """Returns the kernel of the tile with the least estimated time, its grid, what `workspace` takes, its tiles, and
    that time."""
    vector = 1 if (m if transpose_a else k) % 4 or (k if transpose_b else n) % 4 else 4  # floats that a copy may move

    def sums(tile: Tile) -> list[tuple[int, int]]:
        return [(batch * ceil_div(m, tile.rows) * ceil_div(n, tile.columns), ceil_div(k, tile.k))]

    def cost(option: tuple[Tile, int]) -> float:
        tile, split = option
        return time_us(makespan(tile.slab_clocks(transpose_b), tile.threads, shares(sums(tile), split)))

    tile, split = min(((tile, split) for tile, split in product(TILES, SPLITS)
                       if tile.vector == vector
                       and (split == 1 or not refusal(sums(tile), split, tile.blocks * device().sm_count))), key=cost)
    tiles = sums(tile)[0][0]
    meeting = tiles * split if split > 1 else 0, tile.rows * tile.columns
    return (KERNELS[tile, transpose_a, transpose_b, split > 1], (tiles, split), meeting,
            (ceil_div(m, tile.rows), ceil_div(n, tile.columns)), cost((tile, split)))
