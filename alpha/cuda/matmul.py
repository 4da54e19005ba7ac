"""Matrix products in float32: kernels/matmul.cu for both operands in either orientation."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import NamedTuple

import numpy as np

from alpha.cuda.context import context
from alpha.cuda.gemm import Tile, makespan_us
from alpha.cuda.kernel import Kernel
from alpha.cuda.memory import Array, empty, upload
from alpha.errors import DTypeError, message
from alpha.ops.conv_desc import ceil_div
from alpha.ops.matmul import linear, matmul

Shape = tuple[int, ...]

TILES = (Tile(128, 64, 16, 8, 8, 3, 3, 0.84), Tile(64, 64, 16, 8, 8, 3, 6, 0.85), Tile(32, 32, 16, 4, 4, 3, 8, 0.70),
         Tile(64, 64, 16, 8, 8, 3, 4, 0.75, vector=1), Tile(32, 32, 16, 4, 4, 3, 8, 0.62, vector=1))


def _kernel(tile: Tile, a_kmajor: bool, b_kmajor: bool) -> Kernel:
    return Kernel("matmul.cu", "matmul", "ptr a, ptr b, ptr bias, ptr y, ptr matrices, i32 a_step, i32 b_step, i32 m, "
                  "i32 n, i32 k, i32 row_tiles, i32 column_tiles, i32 relu", threads=tile.threads,
                  shared=tile.shared_bytes(a_kmajor, b_kmajor),
                  defines={**tile.defines, "A_MAJOR_K": int(a_kmajor), "B_MAJOR_K": int(b_kmajor)})


KERNELS = {(tile, a, b): _kernel(tile, a, b) for tile in TILES for a in (True, False) for b in (True, False)}


@matmul.impl("cuda")
def matmul_cuda(a: Array, b: Array, *, transpose_a: bool, transpose_b: bool) -> Array:
    _check("matmul", a)
    p = _product(a.shape, b.shape, transpose_a, transpose_b)
    y = empty(p.y_shape, "float32")
    _launch(p, a, b, None, y, False)
    return y


@linear.impl("cuda")
def linear_cuda(x: Array, w: Array, b: Array | None, *, activation: str | None) -> Array:
    _check("linear", x)
    y = empty((*x.shape[:-1], w.shape[0]), "float32")
    _launch(_product((x.size // w.shape[1] if w.shape[1] else prod(x.shape[:-1]), w.shape[1]), w.shape, False, True),
            x, w, b, y, activation == "relu")
    return y


class Product(NamedTuple):
    """Shapes of a product, taken apart once.

    Attributes:
        y_shape: shape of the result.
        m, n, k, batch: rows, columns, terms and number of matrices of the result.
        transpose_a, transpose_b: as stored, a is (K, M), b is (N, K).
        a_step, b_step: matrices from one entry of the batch to the next (0: all share one); only without a table.
        matrices: (batch, 2) int32, the matrices of a and b for each entry, where steps cannot say it.
    """

    y_shape: Shape
    m: int
    n: int
    k: int
    batch: int
    transpose_a: bool
    transpose_b: bool
    a_step: int
    b_step: int
    matrices: Array | None

    @property
    def vector(self) -> int:
        """How many floats one copy may move."""
        return 1 if (self.m if self.transpose_a else self.k) % 4 or (self.k if self.transpose_b else self.n) % 4 else 4


@lru_cache(maxsize=4096)
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


def _launch(p: Product, a: Array, b: Array, bias: Array | None, y: Array, relu: bool) -> None:
    if not y.size:
        return
    kernel, row_tiles, column_tiles = _choose(p.m, p.n, p.k, p.batch, p.transpose_a, p.transpose_b, p.vector)
    kernel(p.batch * row_tiles * column_tiles, a, b, bias, y, p.matrices, p.a_step, p.b_step, p.m, p.n, p.k, row_tiles,
           column_tiles, relu)


@lru_cache(maxsize=4096)
def _choose(m: int, n: int, k: int, batch: int, transpose_a: bool, transpose_b: bool,
            vector: int) -> tuple[Kernel, int, int]:
    """Returns the kernel of the tile with the least estimated time, and its numbers of row and column tiles."""
    def cost(tile: Tile) -> float:
        tiles = batch * ceil_div(m, tile.rows) * ceil_div(n, tile.columns)
        return makespan_us(tile, [(tiles, ceil_div(k, tile.k))], context.sm_count)

    tile = min((tile for tile in TILES if tile.vector == vector), key=cost)
    return KERNELS[tile, not transpose_a, transpose_b], ceil_div(m, tile.rows), ceil_div(n, tile.columns)


def _check(where: str, x: Array) -> None:
    if x.dtype != "float32":
        raise DTypeError(message(where, f"the CUDA backend computes it in float32, the operands are {x.dtype}",
                                 'convert them with .astype("float32")'))
