"""KS-deconv in FFMA: ks_deconv.cu with its tiles."""

from __future__ import annotations

from functools import lru_cache

from alpha.cuda.conv.ffma.gemm import TILES, Tile
from alpha.cuda.conv.ffma.slab import SlabTile, ffma_kernels
from alpha.cuda.conv.planner import Launch
from alpha.cuda.conv.schedule import dgrad_slabs
from alpha.cuda.lazy import GUARD_ARGS, UNGUARDED, Guard
from alpha.cuda.runtime.memory import Array
from alpha.ops.conv_desc import ConvDesc


class KsDeconv(SlabTile):
    """A tile of ks_deconv."""

    pass_name = "dgrad"
    slabs_of = staticmethod(lru_cache(maxsize=256)(dgrad_slabs))

    def __init__(self, tile: Tile, split: int = 0) -> None:
        kernels = ffma_kernels("ks_deconv", tile, "ptr g, ptr w, ptr dx, ptr slots, ptr arrived, ptr classes, "
                               "ptr work, i64 g_image, i64 dx_image, i32 images, i32 channels, i32 columns, i32 w_row, "
                               f"{GUARD_ARGS}", w_kmajor=False)
        super().__init__(tile, split, f"ks_deconv {tile}", kernels, w_kmajor=False)

    def prepare(self, desc: ConvDesc) -> Launch:
        kernel, grid, partial, arrays, sizes = self.tables(desc)

        def launch(g: Array, w: Array, dx: Array, guard: Guard = UNGUARDED) -> None:
            kernel(grid, g, w, dx, *partial.arguments(), *arrays, *sizes, *guard)
        return launch


CANDIDATES = tuple(map(KsDeconv, TILES))
