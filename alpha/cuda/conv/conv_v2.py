"""ConvV2 in FFMA: kernels/conv_v2.cu with its tiles."""

from __future__ import annotations

from functools import lru_cache

from alpha.cuda.context import context
from alpha.cuda.conv.schedule import Slabs, fprop_slabs, oversized
from alpha.cuda.gemm import Tile, makespan_us
from alpha.cuda.kernel import Kernel
from alpha.cuda.memory import Array, upload
from alpha.cuda.plan import Launch, register
from alpha.ops.conv_desc import ConvDesc

TILES = (Tile(128, 64, 16, 8, 8, 3, 3, 0.84), Tile(64, 64, 16, 8, 8, 3, 6, 0.85),
         Tile(64, 32, 16, 4, 4, 3, 4, 0.76), Tile(32, 32, 16, 4, 4, 3, 8, 0.70),
         Tile(64, 64, 16, 8, 8, 3, 4, 0.75, vector=1), Tile(32, 32, 16, 4, 4, 3, 8, 0.62, vector=1))

slabs_of = lru_cache(maxsize=256)(fprop_slabs)


class ConvV2:
    """A tile of conv_v2; see alpha.cuda.plan for the members."""

    pass_name = "fprop"

    def __init__(self, tile: Tile) -> None:
        self.tile = tile
        self.name = f"conv_v2 {tile}"
        self.kernel = Kernel("conv_v2.cu", "conv_v2", "ptr x, ptr w, ptr b, ptr y, ptr classes, ptr work, i64 x_image, "
                             "i64 y_image, i32 images, i32 channels, i32 columns, i32 w_row, i32 relu",
                             threads=tile.threads, shared=tile.shared_bytes(True, True), defines=tile.defines)

    def fits(self, desc: ConvDesc) -> str:
        if self.tile.vector == 4 and desc.ic // desc.groups % 4:
            return f"{desc.ic // desc.groups} input channels of a group are no multiple of 4"
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

        def launch(x: Array, w: Array, b: Array | None, y: Array, relu: bool) -> None:
            kernel(grid, x, w, b, y, classes_on_device, work_on_device, *sizes, relu)
        return launch


register(*map(ConvV2, TILES))
