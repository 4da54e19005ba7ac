"""ConvV2 in FFMA: kernels/conv_v2.cu with its tiles."""

from __future__ import annotations

from functools import lru_cache

from alpha.cuda.conv.schedule import fprop_slabs
from alpha.cuda.conv.slab import TILES, SlabTile
from alpha.cuda.gemm import Tile
from alpha.cuda.memory import Array
from alpha.cuda.plan import Launch, register
from alpha.ops.conv_desc import ConvDesc


class ConvV2(SlabTile):
    """A tile of conv_v2; see alpha.cuda.plan for the members."""

    pass_name = "fprop"
    slabs_of = staticmethod(lru_cache(maxsize=256)(fprop_slabs))

    def __init__(self, tile: Tile) -> None:
        super().__init__(tile, "conv_v2", "ptr x, ptr w, ptr b, ptr y, ptr classes, ptr work, i64 x_image, "
                         "i64 y_image, i32 images, i32 channels, i32 columns, i32 w_row, i32 relu", w_kmajor=True)

    def unaligned(self, desc: ConvDesc) -> str:
        channels = desc.ic // desc.groups
        return f"{channels} input channels of a group are no multiple of 4" if channels % 4 else ""

    def prepare(self, desc: ConvDesc) -> Launch:
        kernel, (grid, tables, sizes) = self.kernel, self.tables(desc)

        def launch(x: Array, w: Array, b: Array | None, y: Array, relu: bool) -> None:
            kernel(grid, x, w, b, y, *tables, *sizes, relu)
        return launch


register(*map(ConvV2, TILES))
