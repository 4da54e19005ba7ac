"""Gradients of filters of few input channels on FMA units: conv_stem_wgrad.cu. And the tiles of other first layers.

It serves up to 16 channels: a 5x5 filter of 6 channels has 150 columns, and each of its taps just 6.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from alpha.cuda.conv.costs import Cost, Stage, device
from alpha.cuda.conv.ffma.gemm import Tile
from alpha.cuda.conv.ffma.schedule_wgrad import Tiling, stem_schedule
from alpha.cuda.conv.planner import Candidate, Launch
from alpha.cuda.conv.schedule import LIMIT, oversized
from alpha.cuda.runtime.context import context
from alpha.cuda.runtime.kernel import Kernel
from alpha.cuda.runtime.memory import Array, empty, upload
from alpha.ops.conv_desc import ConvDesc, ceil_div

MOST_CHANNELS, MOST_WGRAD_CHANNELS = 4, 16
SUM_THREADS, SUM_CHANNELS = 512, 16  # of conv_stem_wgrad.cu
PATCH = 5120                         # elements of x that a tile of the other kernels reads, at most
WARPS, TILE_BLOCKS = 8, 2            # that copy a patch; resident on a multiprocessor
COPY, PER_TILE = 0.5, 2              # of a tile, in blocks of 16 positions of all channels: estimates


def channels_refusal(desc: ConvDesc, most: int = MOST_CHANNELS) -> str | None:
    """Returns why desc is no first layer of up to `most` input channels, or None."""
    if desc.groups > 1 or desc.ic > most:
        return f"{desc.ic} input channels in {desc.groups} groups, 1 to {most} in one are served"
    return None


def patch_of(desc: ConvDesc, height: int, width: int) -> tuple[int, int]:
    """Returns how many lines of x, and pixels of a line, height x width positions read."""
    lines, pixels = ((n - 1) * axis.s + (axis.f - 1) * axis.d + 1 for n, axis in ((height, desc.h), (width, desc.w)))
    return lines, pixels


class Tiles(NamedTuple):
    """How the outputs of an image are cut: positions of a tile, tiles of an image, and the patch of x for a tile: its
    lines, and the elements of one."""

    height: int
    width: int
    per_height: int
    per_width: int
    lines: int
    line: int

    @property
    def per_image(self) -> int:
        return self.per_height * self.per_width


@lru_cache(maxsize=256)
def tiles_of(desc: ConvDesc, positions: int, spare: int, sm_count: int) -> Tiles | None:
    """Returns the tiles that are done first, by blocks that multiply and copy them, one after the other; None where no
    patch has room.  positions: of a tile, at most; spare: elements from the end of a line to the next, at most."""
    best, least = None, float("inf")
    for width in range(1, min(desc.w.o, positions) + 1):
        most = min(desc.h.o, positions // width)
        while most:
            per_height = ceil_div(desc.h.o, most)
            height = ceil_div(desc.h.o, per_height)  # all about as high as another
            lines, pixels = patch_of(desc, height, width)
            tiles = Tiles(height, width, per_height, ceil_div(desc.w.o, width), lines, pixels * desc.ic)
            copies = ceil_div(lines, WARPS) * ceil_div(tiles.line, 128)  # 4 elements a thread
            rounds = max(1.0, desc.n * tiles.per_image / (sm_count * TILE_BLOCKS))
            cost = rounds * (COPY * copies + ceil_div(height * width, 16) + PER_TILE)
            if lines * (tiles.line + spare) <= PATCH and cost < least:
                best, least = tiles, cost
            most //= 2
    return best


class StemWgrad(Candidate):
    """stem_wgrad with a tile."""

    pass_name = "wgrad"

    def __init__(self, tile: Tile) -> None:
        self.tile = tile
        self.name = f"stem_wgrad {tile}"
        self.kernel = Kernel("conv_stem_wgrad.cu", "stem_wgrad", "ptr x, ptr g, ptr work, ptr classes, ptr units, "
                             "i64 x_image, i64 g_image, i32 images, i32 ic, i32 oc", threads=tile.threads,
                             shared=tile.shared_bytes(False, False), defines=tile.defines)
        self.sum = Kernel("conv_stem_wgrad.cu", "stem_sum", "ptr work, ptr dw, ptr sums, ptr first, i32 row_tiles, "
                          "i32 oc, i32 dw_row", threads=SUM_THREADS, defines=tile.defines)

    def rejection(self, desc: ConvDesc) -> str | None:
        if self.tile.vector == 4 and desc.oc % 4:
            return f"{desc.oc} output channels are no multiple of 4"
        if 4 * desc.n * desc.h.i * desc.w.i * desc.ic >= 2 * LIMIT:
            return "x has 2^30 elements or more"
        return channels_refusal(desc, MOST_WGRAD_CHANNELS) or oversized(desc)

    def cost(self, desc: ConvDesc) -> Cost:
        tile, columns, c = self.tile, desc.h.f * desc.w.f * desc.ic, device().table.stem
        padded = (ceil_div(columns, tile.columns) * tile.columns / columns
                  * ceil_div(desc.oc, tile.rows) * tile.rows / desc.oc)
        return Cost((Stage(desc.useful_flops * padded / c.wgrad[str(tile)], "fma", desc.nbytes(4) / c.dram, "dram",
                           3 * c.depth, 3 * c.launches),))

    def prepare(self, desc: ConvDesc) -> Launch:
        tile = self.tile
        plan = stem_schedule(desc, Tiling(tile.rows, tile.columns, tile.k, tile.blocks * context.sm_count, 0.0))
        classes, units, sums, first = (upload(table) for table in plan[:4])
        x_image, g_image = desc.h.i * desc.w.i * desc.ic, desc.h.o * desc.w.o * desc.oc
        dw_row = desc.h.f * desc.w.f * desc.ic
        grid, work_size, kernel = len(plan.units), len(plan.units) * tile.rows * tile.columns, self.kernel

        def launch(x: Array, g: Array, dw: Array) -> None:
            work = empty((work_size,), "float32")
            kernel(grid, x, g, work, classes, units, x_image, g_image, desc.n, desc.ic, desc.oc)
            self.sum((dw_row, plan.row_tiles, tile.rows // SUM_CHANNELS), work, dw, sums, first,
                     plan.row_tiles, desc.oc, dw_row)
        return launch


CANDIDATES = (StemWgrad(Tile(64, 32, 16, 8, 4, 4, 8)),
              StemWgrad(Tile(16, 32, 16, 4, 4, 3, 16)), StemWgrad(Tile(16, 32, 16, 4, 4, 3, 16, vector=1)))
