"""ConvV2 in FFMA: conv_v2.cu with its tiles, and conv_v2_held.cu for 1x1 filters with few input channels."""

from __future__ import annotations

from functools import lru_cache

from alpha.cuda.conv.costs import rates
from alpha.cuda.conv.ffma.gemm import LAUNCH_US, TILE_CLOCKS, Tile
from alpha.cuda.conv.ffma.slab import CANDIDATES, SlabTile, ffma_kernel
from alpha.cuda.conv.planner import GUARD_ARGS, UNGUARDED, Guard, Launch, register
from alpha.cuda.conv.schedule import LIMIT, fprop_slabs
from alpha.cuda.conv.tile import ConvTile
from alpha.cuda.runtime.context import context
from alpha.cuda.runtime.kernel import Kernel
from alpha.cuda.runtime.memory import Array
from alpha.ops.conv_desc import ConvDesc, ceil_div

HELD_CHANNELS = 64  # of filters that stay in shared memory
LEAST_BLOCKS = 2    # on a multiprocessor: one alone waits at every barrier


class ConvV2(SlabTile):
    """A tile of conv_v2, and a split; see alpha.cuda.conv.planner for the members."""

    pass_name, copied = "fprop", ("input",)
    slabs_of = staticmethod(lru_cache(maxsize=256)(fprop_slabs))

    def __init__(self, tile: Tile, split: int = 1) -> None:
        kernel = ffma_kernel("conv_v2", tile, split, "ptr x, ptr w, ptr b, ptr y, ptr slots, ptr arrived, "
                             "ptr classes, ptr work, i64 x_image, i64 y_image, i32 images, i32 channels, i32 columns, "
                             f"i32 w_row, i32 relu, {GUARD_ARGS}", w_kmajor=True)
        super().__init__(tile, split, f"conv_v2 {tile}", kernel, w_kmajor=True)

    def prepare(self, desc: ConvDesc) -> Launch:
        kernel, (grid, partial, arrays, sizes) = self.kernel, self.tables(desc)

        def launch(x: Array, w: Array, b: Array | None, y: Array, relu: bool, guard: Guard = UNGUARDED) -> None:
            kernel(grid, x, w, b, y, *partial.arguments(), *arrays, *sizes, relu, *guard)
        return launch


class ConvV2Held(ConvTile):
    """A tile of conv_v2_held; see alpha.cuda.conv.planner for the members."""

    pass_name = "fprop"

    def __init__(self, tile: Tile) -> None:
        copies = tile.threads * tile.vector  # floats that all threads copy at a time
        kernel = Kernel("conv_v2_held.cu", "conv_v2_held", "ptr x, ptr w, ptr b, ptr y, i64 x_image, i32 x_h, i32 x_w, "
                        f"i32 rows, i32 pixels, i32 width, i32 channels, i32 columns, i32 relu, {GUARD_ARGS}",
                        threads=tile.threads, defines=tile.defines,
                        shared=4 * (tile.stages * tile.rows * (tile.k + 4) + HELD_CHANNELS * tile.columns))
        super().__init__(tile, f"conv_v2_held {tile}", kernel, 8 * tile.threads * (tile.rows * tile.k // copies))

    def fits(self, desc: ConvDesc) -> str:
        h, w = desc.h, desc.w
        if h.f * w.f * desc.groups > 1 or h.p or w.p:
            return f"{h.f}x{w.f} filters, padding {h.p, w.p}, groups {desc.groups}; serves 1x1, none, 1"
        if desc.ic > HELD_CHANNELS:
            return f"{desc.ic} input channels, the filters of up to {HELD_CHANNELS} are held"
        if desc.n * h.o * w.o >= LIMIT // 2:
            return f"{desc.n * h.o * w.o} output pixels, fewer than {LIMIT // 2} are counted"
        return super().fits(desc)

    def work(self, desc: ConvDesc) -> tuple[int, int]:
        """Returns the numbers of tiles of rows, and of columns."""
        return ceil_div(desc.n * desc.h.o * desc.w.o, self.tile.rows), ceil_div(desc.oc, self.tile.columns)

    def cost(self, desc: ConvDesc, sm_count: int) -> float:
        row_tiles, column_tiles = self.work(desc)
        each = ceil_div(row_tiles * column_tiles, sm_count)  # tiles of a multiprocessor
        slabs = ceil_div(desc.ic, self.tile.k)
        slower = max(1.0, 128 / self.tile.threads / each, LEAST_BLOCKS / self.resident)
        clocks = each * slabs * self.tile.slab_clocks() * slower + 2 * TILE_CLOCKS
        return LAUNCH_US + clocks / (rates().clock_ghz * 1e3)

    def prepare(self, desc: ConvDesc) -> Launch:
        row_tiles, column_tiles = self.work(desc)
        grid = min(row_tiles, max(1, self.resident * context.sm_count // column_tiles)), column_tiles
        h, w, ic, kernel = desc.h, desc.w, desc.ic, self.kernel
        sizes = h.i * w.i * ic, h.s * w.i * ic, w.s * ic, desc.n * h.o * w.o, h.o * w.o, w.o, ic, desc.oc

        def launch(x: Array, w: Array, b: Array | None, y: Array, relu: bool, guard: Guard = UNGUARDED) -> None:
            kernel(grid, x, w, b, y, *sizes, relu, *guard)
        return launch


register(*(ConvV2(tile, split) for tile, split in CANDIDATES))
register(*(ConvV2Held(tile) for tile in (Tile(64, 128, 32, 8, 8, 3, 3, 0.7), Tile(64, 128, 16, 8, 8, 3, 3, 0.66))))
