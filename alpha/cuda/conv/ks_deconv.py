"""KS-deconv in FFMA: kernels/ks_deconv.cu with its tiles."""

from __future__ import annotations

from functools import lru_cache

from alpha.cuda.context import context
from alpha.cuda.conv.schedule import Slabs, dgrad_slabs, oversized
from alpha.cuda.gemm import Tile, makespan_us
from alpha.cuda.kernel import Kernel
from alpha.cuda.memory import Array, upload
from alpha.cuda.plan import Launch, register
from alpha.ops.conv_desc import ConvDesc

TILES = (Tile(128, 64, 16, 8, 8, 3, 3, 0.84), Tile(64, 64, 16, 8, 8, 3, 6, 0.85),
         Tile(64, 32, 16, 4, 4, 3, 4, 0.76), Tile(32, 32, 16, 4, 4, 3, 8, 0.70),
         Tile(64, 64, 16, 8, 8, 3, 4, 0.75, vector=1), Tile(32, 32, 16, 4, 4, 3, 8, 0.62, vector=1))

slabs_of = lru_cache(maxsize=256)(dgrad_slabs)


class KsDeconv:
    """A tile of ks_deconv; see alpha.cuda.plan for the members."""

    pass_name = "dgrad"

    def __init__(self, tile: Tile) -> None:
        self.tile = tile
        self.name = f"ks_deconv {tile}"
        self.kernel = Kernel("ks_deconv.cu", "ks_deconv", "ptr g, ptr w, ptr dx, ptr classes, ptr work, i64 g_image, "
                             "i64 dx_image, i32 images, i32 channels, i32 columns, i32 w_row",
                             threads=tile.threads, shared=tile.shared_bytes(True, False), defines=tile.defines)

    def fits(self, desc: ConvDesc) -> str:
        channels = desc.ic // desc.groups, desc.oc // desc.groups
        if self.tile.vector == 4 and (channels[0] % 4 or channels[1] % 4):
            return f"{channels[0]} input and {channels[1]} output channels of a group are no multiples of 4"
        if self.kernel.shared > context.max_shared:
            return f"{self.kernel.shared} bytes of shared memory, the device has {context.max_shared}"
        return oversized(desc)

    def cost(self, desc: ConvDesc, sm_count: int) -> float:
        tile = self.tile
        return makespan_us(tile, slabs_of(desc).slabs(tile.rows, tile.columns, tile.k), sm_count)

    def prepare(self, desc: ConvDesc) -> Launch:
        slabs: Slabs = slabs_of(desc)
        work = slabs.work(self.tile.rows, self.tile.columns)
        classes_on_device, work_on_device = upload(slabs.classes), upload(work)
        kernel, grid = self.kernel, len(work)
        sizes = slabs.in_image, slabs.out_image, slabs.images, slabs.channels, slabs.columns, slabs.w_row

        def launch(g: Array, w: Array, dx: Array) -> None:
            kernel(grid, g, w, dx, classes_on_device, work_on_device, *sizes)
        return launch


register(*map(KsDeconv, TILES))
