"""Convolutions with at most four input channels: conv_stem.cu and conv_stem_wgrad.cu.

The gradient of the filters serves up to 16: a 5x5 filter of 6 channels has 150 columns, and each of its taps just 6.
"""

from __future__ import annotations

import numpy as np

from alpha.cuda.conv.costs import Cost, Stage, device
from alpha.cuda.conv.ffma.gemm import Tile
from alpha.cuda.conv.ffma.schedule_wgrad import Tiling, stem_schedule
from alpha.cuda.conv.planner import Candidate, Launch
from alpha.cuda.conv.schedule import LIMIT, Slabs, dgrad_slabs, fprop_slabs, oversized
from alpha.cuda.ops.pointwise import convert
from alpha.cuda.ops.pointwise.epilogue import NOTHING, Epilogue
from alpha.cuda.runtime.context import context
from alpha.cuda.runtime.kernel import Kernel
from alpha.cuda.runtime.memory import Array, empty, upload
from alpha.ops.conv_desc import ConvDesc, ceil_div

MOST_CHANNELS, MOST_WGRAD_CHANNELS = 4, 16
THREADS, POSITIONS, FILTER_FLOATS = 128, 8, 8192  # of conv_stem.cu
BLOCKS = 4                                        # resident on a multiprocessor
SUM_THREADS, SUM_CHANNELS = 512, 16               # of conv_stem_wgrad.cu
MOST_TILES = 16                                   # of a block, for which it loads the filters once
STEM_ARGS = ("ptr in, ptr w, ptr b, ptr out, ptr classes, ptr work, i64 in_image, i64 out_image, i32 images, "
             "i32 channels, i32 w_row, i32 relu")


def channels_refusal(desc: ConvDesc, most: int = MOST_CHANNELS) -> str | None:
    """Returns why desc is no first layer of up to `most` input channels, or None."""
    if desc.groups > 1 or desc.ic > most:
        return f"{desc.ic} input channels in {desc.groups} groups, 1 to {most} in one are served"
    return None


def refusal(desc: ConvDesc, most: int = MOST_CHANNELS) -> str | None:
    """Returns why these kernels cannot compute desc, or None; most: input channels that are served."""
    if refused := channels_refusal(desc, most):
        return refused
    if 4 * desc.n * desc.h.i * desc.w.i * desc.ic >= 2 * LIMIT:
        return "x has 2^30 elements or more"
    return oversized(desc)


def patch_of(desc: ConvDesc, height: int, width: int) -> tuple[int, int]:
    """Returns how many lines of x, and pixels of a line, height x width positions read."""
    lines, pixels = ((n - 1) * axis.s + (axis.f - 1) * axis.d + 1 for n, axis in ((height, desc.h), (width, desc.w)))
    return lines, pixels


def float32_filters(w: Array) -> Array:
    """Returns filters as first layers' kernels read them in every precision: parameters are float32 already."""
    return w if w.dtype == "float32" else convert(w, "float32")


def tiles_of(slabs: Slabs, tile: int) -> list[int]:
    """Returns how many tiles of so many positions each class has."""
    return [ceil_div(rows, tile) for rows in slabs.classes[:, 0].tolist()]


def work_list(tiles: list[int], column_tiles: int, blocks: int) -> np.ndarray:
    """Returns int32 (units, 4): class, first tile, number of tiles, column tile; tiles: of the positions of each class.

    Units have the number of tiles with which `blocks` of them at a time are done first.
    """
    def rounds(share: int) -> float:  # in tiles; half a tile to load the filters
        return ceil_div(sum(ceil_div(count, share) for count in tiles) * column_tiles, blocks) * (share + 0.5)

    share = min(range(1, MOST_TILES + 1), key=rounds)
    return np.array([(number, begin, min(share, count - begin), col) for number, count in enumerate(tiles)
                     for begin in range(0, count, share) for col in range(column_tiles)], np.int32)


def first_stage(desc: ConvDesc, padded: float, efficiency: float, seen: float = 0.0) -> Stage:
    """Returns the arithmetic and the memory of a pass.

    Args:
        padded: products made for each useful one.
        efficiency: of the FMA rate.
        seen: share of the lesser of both that is not hidden behind the greater.
    """
    c = device().table.stem
    return Stage(desc.useful_flops * padded / efficiency, "fma", desc.nbytes(4) / c.dram, "dram", c.depth, c.launches,
                 seen)


class Stem(Candidate):
    """stem_fprop with a width of its tile in output channels, or stem_dgrad, which reads as many at a time."""

    def __init__(self, pass_name: str, columns: int) -> None:
        self.pass_name, self.columns = pass_name, columns
        self.name = f"stem_fprop {columns}" if pass_name == "fprop" else "stem_dgrad"
        self.kernels = tuple(Kernel("conv_stem.cu", self.name.replace(" ", "_"), STEM_ARGS, threads=THREADS,
                                    defines={"CHANNELS": ic}) for ic in range(1, MOST_CHANNELS + 1))

    def rejection(self, desc: ConvDesc) -> str | None:
        if desc.w.f * desc.ic * self.columns > FILTER_FLOATS:
            return f"a row of {desc.w.f} taps does not fit into shared memory"
        return refusal(desc)

    def cost(self, desc: ConvDesc) -> Cost:
        padded, c = ceil_div(desc.oc, self.columns) * self.columns / desc.oc, device().table.stem
        if self.pass_name == "dgrad":
            return Cost((first_stage(desc, 2 * padded, c.efficiency),))
        return Cost((first_stage(desc, padded * c.columns[self.columns], c.efficiency, c.seen),))

    def prepare(self, desc: ConvDesc) -> Launch:
        if self.pass_name == "fprop":
            slabs, lanes, column_tiles = fprop_slabs(desc), self.columns // 8, ceil_div(desc.oc, self.columns)
        else:
            slabs, lanes, column_tiles = dgrad_slabs(desc), 16, 1
        work = work_list(tiles_of(slabs, THREADS // lanes * POSITIONS), column_tiles, context.sm_count * BLOCKS)
        kernel, grid, tables = self.kernels[desc.ic - 1], len(work), (upload(slabs.classes), upload(work))
        sizes = slabs.in_image, slabs.out_image, slabs.images, desc.oc, slabs.w_row

        def launch(x: Array, w: Array, y: Array, epilogue: Epilogue = NOTHING) -> None:
            b, relu = epilogue
            kernel(grid, x, w, b, y, *tables, *sizes, relu)
        return launch


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
        return refusal(desc, MOST_WGRAD_CHANNELS)

    def cost(self, desc: ConvDesc) -> Cost:
        tile, columns, c = self.tile, desc.h.f * desc.w.f * desc.ic, device().table.stem
        padded = (ceil_div(columns, tile.columns) * tile.columns / columns
                  * ceil_div(desc.oc, tile.rows) * tile.rows / desc.oc)
        both = first_stage(desc, padded, c.wgrad[str(tile)])
        return Cost((both, Stage(depth=2 * c.depth, launches=2 * c.launches)))

    def prepare(self, desc: ConvDesc) -> Launch:
        tile = self.tile
        plan = stem_schedule(desc, Tiling(tile.rows, tile.columns, tile.k, tile.blocks * context.sm_count, 0.0))
        classes, units, sums, first = (upload(table) for table in plan[:4])
        x_image, g_image = desc.h.i * desc.w.i * desc.ic, desc.h.o * desc.w.o * desc.oc
        dw_row = desc.h.f * desc.w.f * desc.ic
        grid, work_size, kernel = len(plan.units), plan.slots * tile.rows * tile.columns, self.kernel

        def launch(x: Array, g: Array, dw: Array) -> None:
            work = empty((work_size,), "float32")
            kernel(grid, x, g, work, classes, units, x_image, g_image, desc.n, desc.ic, desc.oc)
            self.sum((dw_row, plan.row_tiles, tile.rows // SUM_CHANNELS), work, dw, sums, first,
                     plan.row_tiles, desc.oc, dw_row)
        return launch


CANDIDATES = (Stem("fprop", 64), Stem("fprop", 16), Stem("dgrad", 64), StemWgrad(Tile(64, 32, 16, 8, 4, 4, 8)),
              StemWgrad(Tile(16, 32, 16, 4, 4, 3, 16)), StemWgrad(Tile(16, 32, 16, 4, 4, 3, 16, vector=1)))
