"""What ConvV2 and KS-deconv share on the host: their tiles, what these cost, and the tables of a launch."""

from __future__ import annotations

from collections.abc import Callable

from alpha.cuda.context import context
from alpha.cuda.conv.schedule import Slabs, oversized
from alpha.cuda.gemm import Tile, makespan_us
from alpha.cuda.kernel import Kernel
from alpha.cuda.memory import Array, upload
from alpha.ops.conv_desc import ConvDesc

TILES = (Tile(128, 64, 16, 8, 8, 3, 3, 0.84), Tile(64, 64, 16, 8, 8, 3, 6, 0.85),
         Tile(64, 32, 16, 4, 4, 3, 4, 0.76), Tile(32, 32, 16, 4, 4, 3, 8, 0.70),
         Tile(64, 64, 16, 8, 8, 3, 4, 0.75, vector=1), Tile(32, 32, 16, 4, 4, 3, 8, 0.62, vector=1))


class SlabTile:
    """A kernel over tap classes with one tile; a subclass adds `pass_name`, `slabs_of`, `unaligned` and `prepare`."""

    slabs_of: Callable[[ConvDesc], Slabs]

    def __init__(self, tile: Tile, entry: str, args: str, w_kmajor: bool) -> None:
        self.tile = tile
        self.name = f"{entry} {tile}"
        self.kernel = Kernel(f"{entry}.cu", entry, args, threads=tile.threads,
                             shared=tile.shared_bytes(True, w_kmajor), defines=tile.defines)

    def unaligned(self, desc: ConvDesc) -> str:
        """Returns why copies of 16 bytes cannot be used, or ""."""
        raise NotImplementedError

    def fits(self, desc: ConvDesc) -> str:
        reason = self.unaligned(desc) if self.tile.vector == 4 else ""
        if not reason and self.kernel.shared > context.max_shared:
            reason = f"{self.kernel.shared} bytes of shared memory, the device has {context.max_shared}"
        return reason or oversized(desc)

    def cost(self, desc: ConvDesc, sm_count: int) -> float:
        tile = self.tile
        return makespan_us(tile, self.slabs_of(desc).slabs(tile.rows, tile.columns, tile.k), sm_count)

    def tables(self, desc: ConvDesc) -> tuple[int, tuple[Array, Array], tuple[int, ...]]:
        """Returns the grid, the tap classes and the work list on the device, and the sizes that follow them."""
        slabs = self.slabs_of(desc)
        work = slabs.work(self.tile.rows, self.tile.columns)
        sizes = slabs.in_image, slabs.out_image, slabs.images, slabs.channels, slabs.columns, slabs.w_row
        return len(work), (upload(slabs.classes), upload(work)), sizes
