"""ConvV2 in FFMA: kernels/conv_v2.cu with its tiles, alone or in chains."""

from __future__ import annotations

from functools import lru_cache

from alpha.cuda.context import context
from alpha.cuda.conv.schedule import fprop_slabs
from alpha.cuda.conv.slab import CANDIDATES, SlabTile, ffma_kernel, table_bytes
from alpha.cuda.gemm import LAUNCH_US, TILE_CLOCKS, TILES, Tile
from alpha.cuda.kernel import Kernel
from alpha.cuda.memory import Array, upload
from alpha.cuda.plan import GUARD_ARGS, UNGUARDED, Guard, Launch, register
from alpha.cuda.rates import rates
from alpha.ops.conv_desc import ConvDesc, ceil_div

MOST_SLABS = 16  # of a tile in a chain: longer sums hide how they start


class ConvV2(SlabTile):
    """A tile of conv_v2, and a split; see alpha.cuda.plan for the members."""

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


class ConvV2Chain(SlabTile):
    """A tile of conv_v2_chain: short sums of one class, whose blocks take one tile after the other; see
    alpha.cuda.plan for the members."""

    pass_name, copied = "fprop", ("input",)
    slabs_of = staticmethod(ConvV2.slabs_of)

    def __init__(self, tile: Tile) -> None:
        kernel = Kernel("conv_v2.cu", "conv_v2_chain", "ptr x, ptr w, ptr b, ptr y, ptr classes, i64 x_image, "
                        "i64 y_image, i32 images, i32 channels, i32 columns, i32 w_row, i32 relu, " + GUARD_ARGS,
                        threads=tile.threads, shared=tile.shared_bytes(True, True), defines=tile.defines)
        super().__init__(tile, 1, f"conv_v2_chain {tile}", kernel, w_kmajor=True)
        self.shared += table_bytes(tile, w_kmajor=True)  # it has two

    def fits(self, desc: ConvDesc) -> str:
        sums = self.sums(desc)
        if desc.groups * desc.h.f * desc.w.f > 1 or len(sums) > 1:
            return f"{desc.h.f}x{desc.w.f} filters in {desc.groups} groups, {len(sums)} classes: one of each is served"
        if not self.tile.stages <= sums[0][1] <= MOST_SLABS:
            return f"a sum of {sums[0][1]} slabs, {self.tile.stages} to {MOST_SLABS} are served"
        return super().fits(desc)

    def cost(self, desc: ConvDesc, sm_count: int) -> float:
        (tiles, slabs), = self.sums(desc)
        clocks = ceil_div(tiles, sm_count) * slabs * self.tile.slab_clocks(self.b_kmajor) + 2 * TILE_CLOCKS
        return LAUNCH_US + clocks / (rates().clock_ghz * 1e3)

    def prepare(self, desc: ConvDesc) -> Launch:
        slabs, kernel, classes = self.slabs_of(desc), self.kernel, upload(self.slabs_of(desc).classes)
        grid = min(self.sums(desc)[0][0], self.resident * context.sm_count)
        sizes = slabs.in_image, slabs.out_image, slabs.images, slabs.channels, slabs.columns, slabs.w_row

        def launch(x: Array, w: Array, b: Array | None, y: Array, relu: bool, guard: Guard = UNGUARDED) -> None:
            kernel(grid, x, w, b, y, classes, *sizes, relu, *guard)
        return launch


register(*(ConvV2(tile, split) for tile, split in CANDIDATES))
register(*(ConvV2Chain(tile) for tile in TILES[1:3]))
