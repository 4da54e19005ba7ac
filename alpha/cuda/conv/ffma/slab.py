"""What ConvV2 and KS-deconv share on the host: their candidates, what these cost, and the tables of a launch."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import NamedTuple

import numpy as np

from alpha.cuda.conv.ffma.gemm import TILES, Tile, makespan_us
from alpha.cuda.conv.mma.gemm import MmaTile
from alpha.cuda.conv.schedule import Slabs
from alpha.cuda.conv.split import SPLITS, Partial, cut, refusal, shares
from alpha.cuda.conv.tile import ConvTile
from alpha.cuda.runtime.context import context
from alpha.cuda.runtime.kernel import Kernel
from alpha.cuda.runtime.memory import Array, upload
from alpha.ops.conv_desc import ConvDesc

CANDIDATES = tuple(product(TILES, SPLITS))


class Tables(NamedTuple):
    """What a launch takes beside its tensors: the grid, the workspace, the arrays on the device, and the sizes."""

    grid: int
    partial: Partial
    arrays: tuple[Array, Array]
    sizes: tuple[int, ...]


class SlabTile(ConvTile):
    """A kernel over tap classes with one tile and one split; a subclass adds `pass_name`, `slabs_of` and `prepare`."""

    slabs_of: Callable[[ConvDesc], Slabs]

    def __init__(self, tile: Tile | MmaTile, split: int, name: str, kernel: Kernel, w_kmajor: bool) -> None:
        super().__init__(tile, name + (f" split {split}" if split > 1 else ""), kernel,
                         8 * (2 * tile.rows + tile.columns * w_kmajor) + 64)
        self.split, self.b_kmajor = split, w_kmajor

    def fits(self, desc: ConvDesc) -> str:
        reason = super().fits(desc)
        if reason or self.split == 1:
            return reason
        return refusal(self.sums(desc), self.split, self.resident * context.sm_count)

    def cost(self, desc: ConvDesc, sm_count: int) -> float:
        return makespan_us(self.tile.slab_clocks(self.b_kmajor), self.tile.threads, self.resident,
                           shares(self.sums(desc), self.split), sm_count)

    def sums(self, desc: ConvDesc) -> list[tuple[int, int]]:
        """Returns (number of tiles, slabs of each) per class, the longest first."""
        return self.slabs_of(desc).slabs(self.tile.rows, self.tile.columns, self.tile.k)

    def tables(self, desc: ConvDesc) -> Tables:
        slabs, tile = self.slabs_of(desc), self.tile
        counts, each = zip(*self.sums(desc))
        work, slots = cut(slabs.work(tile.rows, tile.columns), np.repeat(each, counts), self.split)
        sizes = slabs.in_image, slabs.out_image, slabs.images, slabs.channels, slabs.columns, slabs.w_row
        return Tables(len(work), Partial(slots, tile.rows * tile.columns), (upload(slabs.classes), upload(work)), sizes)


def ffma_kernel(entry: str, tile: Tile, split: int, args: str, w_kmajor: bool) -> Kernel:
    """Returns the kernel of a tile in FFMA; where no sum is split, the one whose registers hold more."""
    return Kernel(f"{entry}.cu", entry if split == 1 else f"{entry}_split", args, threads=tile.threads,
                  shared=tile.shared_bytes(True, w_kmajor), defines=tile.defines)
