"""Gradients of inputs of at most four channels: conv_stem.cu. And the tiles of first layers."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from alpha.cuda.conv.costs import Cost, Stage, device
from alpha.cuda.conv.planner import Candidate, Launch
from alpha.cuda.conv.schedule import LIMIT, dgrad_slabs, oversized
from alpha.cuda.runtime.context import context
from alpha.cuda.runtime.kernel import Kernel
from alpha.cuda.runtime.memory import Array, upload
from alpha.ops.conv_desc import ConvDesc, ceil_div

MOST_CHANNELS = 4
THREADS, POSITIONS, FILTER_FLOATS = 128, 8, 8192  # of conv_stem.cu
LANES, COLUMNS = 16, 64                           # threads of a position; output channels that they read at once
BLOCKS = 4                                        # resident on a multiprocessor
PATCH = 5120                                      # elements of x that a tile of the other kernels reads, at most
WARPS = 8                                         # that copy a patch
COPY, PER_TILE = 0.5, 2                           # of a tile, in blocks of 16 positions of all channels: estimates
MOST_TILES = 16                                   # of a block, for which it loads the filters once
STEM_ARGS = ("ptr g, ptr w, ptr dx, ptr classes, ptr work, i64 in_image, i64 out_image, i32 images, i32 channels, "
             "i32 w_row, i32 unused")


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
def tiles_of(desc: ConvDesc, positions: int, spare: int, blocks: int) -> Tiles | None:
    """Returns the tiles that are done first, by so many blocks that multiply and copy them, one after the other; None
    where no patch has room.  positions: of a tile, at most; spare: elements from the end of a line to the next, at
    most."""
    best, least = None, float("inf")
    for width in range(1, min(desc.w.o, positions) + 1):
        most = min(desc.h.o, positions // width)
        while most:
            per_height = ceil_div(desc.h.o, most)
            height = ceil_div(desc.h.o, per_height)  # all about as high as another
            lines, pixels = patch_of(desc, height, width)
            tiles = Tiles(height, width, per_height, ceil_div(desc.w.o, width), lines, pixels * desc.ic)
            copies = ceil_div(lines, WARPS) * ceil_div(tiles.line, 128)  # 4 elements a thread
            rounds = max(1.0, desc.n * tiles.per_image / blocks)
            cost = rounds * (COPY * copies + ceil_div(height * width, 16) + PER_TILE)
            if lines * (tiles.line + spare) <= PATCH and cost < least:
                best, least = tiles, cost
            most //= 2
    return best


def work_list(tiles: list[int], blocks: int) -> np.ndarray:
    """Returns int32 (units, 4): class, first tile, number of tiles, 0; tiles: of the positions of each class.

    Units have the number of tiles with which `blocks` of them at a time are done first.
    """
    def rounds(share: int) -> float:  # in tiles; half a tile to load the filters
        return ceil_div(sum(ceil_div(count, share) for count in tiles), blocks) * (share + 0.5)

    share = min(range(1, MOST_TILES + 1), key=rounds)
    return np.array([(number, begin, min(share, count - begin), 0) for number, count in enumerate(tiles)
                     for begin in range(0, count, share)], np.int32)


def first_stage(desc: ConvDesc, padded: float, efficiency: float) -> Stage:
    """Returns the arithmetic and the memory of a pass.  padded: products made for each useful one; efficiency: of the
    FMA rate."""
    c = device().table.stem
    return Stage(desc.useful_flops * padded / efficiency, "fma", desc.nbytes(4) / c.dram, "dram", c.depth, c.launches)


class StemDgrad(Candidate):
    """stem_dgrad."""

    pass_name, name = "dgrad", "stem_dgrad"

    def __init__(self) -> None:
        self.kernels = tuple(Kernel("conv_stem.cu", "stem_dgrad", STEM_ARGS, threads=THREADS, defines={"CHANNELS": ic})
                             for ic in range(1, MOST_CHANNELS + 1))

    def rejection(self, desc: ConvDesc) -> str | None:
        if desc.w.f * desc.ic * COLUMNS > FILTER_FLOATS:
            return f"a row of {desc.w.f} taps does not fit into shared memory"
        return refusal(desc)

    def cost(self, desc: ConvDesc) -> Cost:
        padded = ceil_div(desc.oc, COLUMNS) * COLUMNS / desc.oc
        return Cost((first_stage(desc, 2 * padded, device().table.stem.efficiency),))

    def prepare(self, desc: ConvDesc) -> Launch:
        slabs, kernel = dgrad_slabs(desc), self.kernels[desc.ic - 1]
        tiles = [ceil_div(rows, THREADS // LANES * POSITIONS) for rows in slabs.classes[:, 0].tolist()]
        work = work_list(tiles, context.sm_count * BLOCKS)
        grid, tables = len(work), (upload(slabs.classes), upload(work))
        sizes = slabs.in_image, slabs.out_image, slabs.images, desc.oc, slabs.w_row, 0

        def launch(g: Array, w: Array, dx: Array) -> None:
            kernel(grid, g, w, dx, *tables, *sizes)
        return launch


CANDIDATES = (StemDgrad(),)
