"""KS-deconv in FFMA: kernels/ks_deconv.cu with its tiles."""

from __future__ import annotations

from functools import lru_cache

from alpha.cuda.conv.schedule import dgrad_slabs
from alpha.cuda.conv.slab import TILES, SlabTile
from alpha.cuda.gemm import Tile
from alpha.cuda.memory import Array
from alpha.cuda.plan import Launch, register
from alpha.ops.conv_desc import ConvDesc


class KsDeconv(SlabTile):
    """A tile of ks_deconv; see alpha.cuda.plan for the members."""

    pass_name = "dgrad"
    slabs_of = staticmethod(lru_cache(maxsize=256)(dgrad_slabs))

    def __init__(self, tile: Tile) -> None:
        super().__init__(tile, "ks_deconv", "ptr g, ptr w, ptr dx, ptr classes, ptr work, i64 g_image, i64 dx_image, "
                         "i32 images, i32 channels, i32 columns, i32 w_row", w_kmajor=False)

    def unaligned(self, desc: ConvDesc) -> str:
        channels = desc.ic // desc.groups, desc.oc // desc.groups
        if channels[0] % 4 or channels[1] % 4:
            return f"{channels[0]} input and {channels[1]} output channels of a group are no multiples of 4"
        return ""

    def prepare(self, desc: ConvDesc) -> Launch:
        kernel, (grid, tables, sizes) = self.kernel, self.tables(desc)

        def launch(g: Array, w: Array, dx: Array) -> None:
            kernel(grid, g, w, dx, *tables, *sizes)
        return launch


register(*map(KsDeconv, TILES))
