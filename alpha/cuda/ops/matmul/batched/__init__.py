"""Products of many small matrices on tensor cores, from sm_80 on, in fp16 from sm_75 on: see matmul_batched.cu.

Operands are multiplied as they are stored, float32 as TF32: in the mode fp32 by three products of its two halves.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from alpha.core.precision import Precision
from alpha.cuda.conv.costs import device, time_us
from alpha.cuda.conv.first_layer.mma.stem_mma import MODES, needs_of
from alpha.cuda.runtime.context import lacks
from alpha.cuda.runtime.kernel import C_TYPES, Kernel
from alpha.cuda.runtime.memory import ITEMSIZE
from alpha.ops.conv_desc import ceil_div
from alpha.plan import Cost, Stage

ARGS = ("ptr a, ptr b, ptr y, ptr matrices, i32 a_step, i32 b_step, i32 m, i32 n, i32 k, i32 row_tiles, "
        "i32 column_tiles, i32 aligned, i32 wide")
DEPTH = 32      # of a slab


class Tile(NamedTuple):
    """Rows x columns of a tile, of which a warp has warp_rows x warp_columns; buffers; blocks that registers allow."""

    rows: int
    columns: int
    warp_rows: int
    warp_columns: int
    stages: int
    blocks: int

    @property
    def threads(self) -> int:
        return 32 * (self.rows // self.warp_rows) * (self.columns // self.warp_columns)

    def shared(self, itemsize: int) -> int:
        return (self.rows + self.columns) * DEPTH * itemsize * self.stages

    def defines(self, mode: Precision) -> dict[str, str | int]:
        return {"ELEMENT": C_TYPES[mode.dtype], "PRODUCTS": mode.multiplications,
                "TILE_M": self.rows, "TILE_N": self.columns, "WARP_M": self.warp_rows, "WARP_N": self.warp_columns,
                "STAGES": self.stages, "MIN_BLOCKS": self.blocks}


TILES = {2: (Tile(128, 128, 64, 32, 3, 1), Tile(64, 64, 32, 32, 4, 3)), 4: (Tile(64, 64, 32, 32, 3, 2),)}
LAYOUTS = (False, False), (False, True), (True, False)


class Choice(NamedTuple):
    """A kernel, its grid, its last arguments, and the time that it takes by estimate."""

    kernel: Kernel
    blocks: int
    sizes: tuple[int, int, bool, bool]
    time_us: float


def _kernel(mode: Precision, tile: Tile, transpose_a: bool, transpose_b: bool) -> Kernel:
    return Kernel("matmul_batched.cu", f"matmul_batched_{'nt'[transpose_a]}{'nt'[transpose_b]}", ARGS,
                  threads=tile.threads, shared=tile.shared(ITEMSIZE[mode.dtype]), needs=needs_of(mode),
                  defines=tile.defines(mode))


KERNELS = {(mode, tile, *layout): _kernel(mode, tile, *layout)
           for mode in MODES for tile in TILES[ITEMSIZE[mode.dtype]] for layout in LAYOUTS}


@lru_cache(maxsize=1024)
def choose(m: int, n: int, k: int, batch: int, transpose_a: bool, transpose_b: bool, precision: str,
           out: str) -> Choice | None:
    """Returns the kernel of least estimated time; None in a precision that tensor cores do not serve."""
    mode = next((mode for mode in MODES if mode.name == precision), None)
    if mode is None or lacks(needs_of(mode)):
        return None
    itemsize = ITEMSIZE[mode.dtype]
    each = 16 // itemsize
    vector = (m if transpose_a else k) % each == 0 and (k if transpose_b else n) % each == 0

    def made(tile: Tile) -> Choice:
        tiles = ceil_div(m, tile.rows), ceil_div(n, tile.columns)
        blocks = batch * tiles[0] * tiles[1]
        return Choice(KERNELS[mode, tile, transpose_a, transpose_b], blocks, (*tiles, vector, out == "float32"),
                      time_us(_cost(tile, mode, blocks, ceil_div(k, DEPTH), vector, batch * (m * k + k * n) * itemsize
                                    + batch * m * n * ITEMSIZE[out])))
    return min((made(tile) for tile in TILES[itemsize]), key=lambda c: c.time_us)


def _cost(tile: Tile, mode: Precision, blocks: int, slabs: int, vector: bool, nbytes: int) -> Cost:
    """Returns the cost of as many tiles: products, or copies to and from shared memory."""
    on, c, itemsize = device(), device().table.matmul_batched, ITEMSIZE[mode.dtype]
    rate = on.mma * (0.5 if itemsize == 4 else 1) / mode.multiplications
    slab = (tile.rows + tile.columns) * DEPTH * itemsize
    read = tile.threads // 32 * (tile.warp_rows + tile.warp_columns) * DEPTH * itemsize
    clocks = max(tile.rows * tile.columns * DEPTH / (rate * c.efficiency),
                 (slab * (1 if vector else c.single) + read) / c.shared_bytes)
    waves = ceil_div(blocks, on.sm_count)
    return Cost((Stage(waves * (slabs * clocks + c.tile_clocks / tile.blocks), "clocks", nbytes, "dram", c.depth, 1),))
