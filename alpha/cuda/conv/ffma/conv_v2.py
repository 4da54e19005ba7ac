"""ConvV2 in FFMA: conv_v2.cu with its tiles."""

from __future__ import annotations

from functools import lru_cache

from alpha.cuda.conv.ffma.gemm import TILES, Tile
from alpha.cuda.conv.ffma.slab import SlabTile, ffma_kernels
from alpha.cuda.conv.planner import Launch
from alpha.cuda.conv.schedule import fprop_slabs
from alpha.cuda.lazy import GUARD_ARGS, UNGUARDED, Guard
from alpha.cuda.ops.pointwise.epilogue import NOTHING, Epilogue
from alpha.cuda.runtime.memory import Array
from alpha.ops.conv_desc import ConvDesc


class ConvV2(SlabTile):
    """A tile of conv_v2."""

    pass_name, copied = "fprop", ("input",)
    slabs_of = staticmethod(lru_cache(maxsize=256)(fprop_slabs))

    def __init__(self, tile: Tile, split: int = 0) -> None:
        kernels = ffma_kernels("conv_v2", tile, "ptr x, ptr w, ptr b, ptr y, ptr slots, ptr arrived, ptr classes, "
                               "ptr work, i64 x_image, i64 y_image, i32 images, i32 channels, i32 columns, i32 w_row, "
                               f"i32 relu, {GUARD_ARGS}", w_kmajor=True)
        super().__init__(tile, split, f"conv_v2 {tile}", kernels, w_kmajor=True)

    def prepare(self, desc: ConvDesc) -> Launch:
        kernel, grid, partial, arrays, sizes = self.tables(desc)

        def launch(x: Array, w: Array, y: Array, epilogue: Epilogue = NOTHING, guard: Guard = UNGUARDED) -> None:
            b, relu = epilogue.known()
            kernel(grid, x, w, b, y, *partial.arguments(), *arrays, *sizes, relu, *guard)
        return launch


CANDIDATES = tuple(map(ConvV2, TILES))
