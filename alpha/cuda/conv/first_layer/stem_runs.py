"""dgrad to at most four channels, of filters that fit into shared memory: conv_stem_runs.cu."""

from __future__ import annotations

import numpy as np

from alpha.cuda.conv.first_layer.stem import (
    MOST_CHANNELS,
    THREADS,
    columns_refusal,
    estimate_us,
    float32_filters,
    refusal,
    work_list,
)
from alpha.cuda.conv.planner import Launch, register
from alpha.cuda.conv.schedule import FIELDS, Slabs, dgrad_slabs
from alpha.cuda.runtime.context import context
from alpha.cuda.runtime.kernel import C_TYPES, Kernel
from alpha.cuda.runtime.memory import ITEMSIZE, Array, upload
from alpha.ops.conv_desc import ConvDesc, ceil_div

RUN, COLUMNS = 8, 64                      # of conv_stem_runs.cu
FILTER_FLOATS = (2048, 12288)             # shared memory that a block may take: what is left over caches x and g
TILE = THREADS // 16                      # runs
BLOCKS = {4: 5, 2: 4}                     # on a multiprocessor, by an element's bytes: with four channels there are 4
SINGLE_TAPS = {4: 2.8, 2: 1.6}            # times as long takes a line whose taps are not taken in twos or threes
SEEN = 0.3                                # of alpha.cuda.conv.first_layer.stem.estimate_us
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


def filter_floats(desc: ConvDesc) -> int:
    """Returns how many floats of shared memory the filters take."""
    return desc.h.f * desc.w.f * desc.ic * COLUMNS


class StemRunsDgrad:
    """stem_runs_dgrad of one storage type; see alpha.cuda.conv.planner for the members."""

    pass_name, takes_guard = "dgrad", False

    def __init__(self, dtype: str) -> None:
        self.reads = self.writes = dtype
        self.itemsize = ITEMSIZE[dtype]
        self.name = "stem_runs_dgrad" if dtype == "float32" else f"stem_runs_dgrad {dtype}"
        self.kernels = {(ic, floats): Kernel(
            "conv_stem_runs.cu", "stem_runs_dgrad", "ptr g, ptr w, ptr dx, ptr classes, ptr work, i64 g_image, "
            "i64 x_image, i32 images, i32 channels, i32 w_row", threads=THREADS, shared=4 * floats,
            defines={"CHANNELS": ic, "ELEMENT": C_TYPES[dtype]})
            for ic in range(1, MOST_CHANNELS + 1) for floats in FILTER_FLOATS}

    def fits(self, desc: ConvDesc) -> str:
        if refused := columns_refusal(desc, COLUMNS):
            return refused
        if filter_floats(desc) > FILTER_FLOATS[-1]:
            return f"{desc.h.f}x{desc.w.f} filters do not fit into shared memory"
        return refusal(desc)

    def cost(self, desc: ConvDesc, sm_count: int) -> float:
        taps = ceil_div(desc.w.f, desc.w.s)
        alone = SINGLE_TAPS[self.itemsize] if taps % 2 and taps % 3 else 1.0
        return estimate_us(desc, sm_count, alone * COLUMNS / desc.oc, self.itemsize, SEEN)

    def least(self, desc: ConvDesc, sm_count: int) -> float:
        return 0.0  # what it costs is known at once

    def prepare(self, desc: ConvDesc) -> Launch:
        slabs = dgrad_slabs(desc)
        classes = with_runs(slabs)
        tiles = [ceil_div(runs, TILE) for runs in runs_of(classes)]
        work = work_list(tiles, 1, context.sm_count * BLOCKS[self.itemsize])
        kernel = self.kernels[desc.ic, next(floats for floats in FILTER_FLOATS if floats >= filter_floats(desc))]
        grid, tables = len(work), (upload(classes), upload(work))
        sizes = slabs.in_image, slabs.out_image, slabs.images, slabs.channels, slabs.w_row

        def launch(g: Array, w: Array, dx: Array) -> None:
            kernel(grid, g, float32_filters(w), dx, *tables, *sizes)
        return launch


register(*(StemRunsDgrad(dtype) for dtype in C_TYPES))
