"""Convolutions with at most four input channels whose filters fit into shared memory: kernels/conv_stem_runs.cu."""

from __future__ import annotations

import numpy as np

from alpha.cuda.context import context
from alpha.cuda.conv.schedule import FIELDS, Slabs, dgrad_slabs, fprop_slabs
from alpha.cuda.conv.stem import MOST_CHANNELS, THREADS, estimate_us, refusal, work_list
from alpha.cuda.kernel import Kernel
from alpha.cuda.memory import Array, upload
from alpha.cuda.plan import Launch, register
from alpha.ops.conv_desc import ConvDesc, ceil_div

RUN, COLUMNS = 8, 64                      # of kernels/conv_stem_runs.cu
FILTER_FLOATS = (2048, 12288)             # shared memory that a block may take: what is left over caches x and g
FPROP_RUNS, DGRAD_RUNS = THREADS // 8, THREADS // 16  # of a tile
FOUR_CHANNELS_BLOCKS = 4                  # that the registers hold; with fewer channels there may be room for more
EFFICIENCY = 0.7                          # fraction of the FMA rate that products reach which are made, on an H100
TURNED = {"in_h": "in_w", "out_h": "out_w", "taps_h": "taps_w", "tap_in_h": "tap_in_w", "tap_w_h": "tap_w_w"}
COLUMN = {name: number for number, name in enumerate(FIELDS)}


def runs_of(classes: np.ndarray) -> list[int]:
    """Returns how many runs each class has."""
    return [rows // width * ceil_div(width, RUN) for rows, width in classes[:, :2].tolist()]


def with_runs(slabs: Slabs) -> np.ndarray:
    """Returns the classes with their lines along the axis that takes fewer runs.

    A class of one column, as padding makes them at borders, has its lines along the height: both axes change places.
    """
    classes = slabs.classes.copy()
    height = classes[:, COLUMN["rows"]] // slabs.images // classes[:, COLUMN["width"]]
    turned = classes.copy()
    for h, w in TURNED.items():
        turned[:, [COLUMN[h], COLUMN[w]]] = classes[:, [COLUMN[w], COLUMN[h]]]
    turned[:, COLUMN["width"]] = height
    fewer = np.array(runs_of(turned)) < np.array(runs_of(classes))
    classes[fewer] = turned[fewer]
    return classes


def refusal_of_runs(desc: ConvDesc) -> str:
    """Returns why the filters of desc do not fit, or ""."""
    floats = desc.h.f * desc.w.f * desc.ic * COLUMNS
    if floats > FILTER_FLOATS[-1]:
        return f"{desc.h.f}x{desc.w.f} filters do not fit into shared memory"
    return refusal(desc)


class Runs:
    """What both passes share; a subclass adds `pass_name`, `name`, `slabs_of`, `tile` (runs) and `prepare`."""

    reads, writes, takes_guard = "float32", "float32", False
    tile: int

    def __init__(self, entry: str, args: str, blocks: int) -> None:
        self.blocks, self.name = blocks, f"{entry} {blocks}"
        self.kernels = {(ic, floats): Kernel("conv_stem_runs.cu", entry, args, threads=THREADS, shared=4 * floats,
                                             defines={"CHANNELS": ic, "MIN_BLOCKS": min(blocks, FOUR_CHANNELS_BLOCKS)})
                        for ic in range(1, MOST_CHANNELS + 1) for floats in FILTER_FLOATS}

    def least(self, desc: ConvDesc, sm_count: int) -> float:
        return 0.0  # what it costs is known at once

    def parts(self, desc: ConvDesc, slabs: Slabs) -> tuple[Kernel, int, tuple[Array, Array]]:
        """Returns the kernel, its grid, and its tables on the device."""
        classes = with_runs(slabs)
        tiles = [ceil_div(runs, self.tile) for runs in runs_of(classes)]
        columns = ceil_div(desc.oc, COLUMNS) if self.tile == FPROP_RUNS else 1
        work = work_list(tiles, columns, context.sm_count * self.blocks)
        needed = desc.h.f * desc.w.f * desc.ic * COLUMNS
        floats = next(floats for floats in FILTER_FLOATS if floats >= needed)
        return self.kernels[desc.ic, floats], len(work), (upload(classes), upload(work))


class StemRunsFprop(Runs):
    """stem_runs_fprop with a number of blocks at a time; see alpha.cuda.plan for the members."""

    pass_name, tile = "fprop", FPROP_RUNS

    def __init__(self, blocks: int) -> None:
        super().__init__("stem_runs_fprop", "ptr x, ptr w, ptr b, ptr y, ptr classes, ptr work, i64 x_image, "
                         "i64 y_image, i32 images, i32 columns, i32 w_row, i32 relu", blocks)

    def fits(self, desc: ConvDesc) -> str:
        if desc.w.s > 1 or desc.w.d > 1 or desc.w.f % 3:
            return "its steps are three taps of positions side by side"
        return refusal_of_runs(desc)

    def cost(self, desc: ConvDesc, sm_count: int) -> float:
        return estimate_us(desc, sm_count, ceil_div(desc.oc, COLUMNS) * COLUMNS / desc.oc, EFFICIENCY)

    def prepare(self, desc: ConvDesc) -> Launch:
        slabs = fprop_slabs(desc)
        kernel, grid, tables = self.parts(desc, slabs)
        sizes = slabs.in_image, slabs.out_image, slabs.images, slabs.columns, slabs.w_row

        def launch(x: Array, w: Array, b: Array | None, y: Array, relu: bool) -> None:
            kernel(grid, x, w, b, y, *tables, *sizes, relu)
        return launch


class StemRunsDgrad(Runs):
    """stem_runs_dgrad with a number of blocks at a time; see alpha.cuda.plan for the members."""

    pass_name, tile = "dgrad", DGRAD_RUNS

    def __init__(self, blocks: int) -> None:
        super().__init__("stem_runs_dgrad", "ptr g, ptr w, ptr dx, ptr classes, ptr work, i64 g_image, i64 x_image, "
                         "i32 images, i32 channels, i32 w_row", blocks)

    def fits(self, desc: ConvDesc) -> str:
        if desc.oc % 4 or desc.oc > COLUMNS:
            return f"{desc.oc} output channels, multiples of 4 up to {COLUMNS} are served"
        return refusal_of_runs(desc)

    def cost(self, desc: ConvDesc, sm_count: int) -> float:
        return estimate_us(desc, sm_count, COLUMNS / desc.oc, EFFICIENCY)

    def prepare(self, desc: ConvDesc) -> Launch:
        slabs = dgrad_slabs(desc)
        kernel, grid, tables = self.parts(desc, slabs)
        sizes = slabs.in_image, slabs.out_image, slabs.images, slabs.channels, slabs.w_row

        def launch(g: Array, w: Array, dx: Array) -> None:
            kernel(grid, g, w, dx, *tables, *sizes)
        return launch


register(StemRunsFprop(4), StemRunsFprop(3), StemRunsDgrad(5), StemRunsDgrad(4))
