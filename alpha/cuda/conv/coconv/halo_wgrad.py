"""The filter gradient of contextual convolution by conv_coconv_wgrad.cu: a launch for all levels, and one that adds."""

from __future__ import annotations

from functools import lru_cache
from math import gcd
from typing import Any, NamedTuple

import numpy as np

from alpha.cuda.conv.coconv.halo import CHUNK, SIDE, dilations_of, image_map, refused, tiles_of
from alpha.cuda.conv.costs import Cost, Device, Stage, device
from alpha.cuda.conv.ffma.sk_dilated import SUM_SLICES
from alpha.cuda.conv.planner import Candidate, Launch
from alpha.cuda.conv.wgmma import CONSUMERS, SHARED_BYTES, THREADS, launch_of_arrays
from alpha.cuda.lazy import EXACT_ARGS, READS, UNFLAGGED, Operand
from alpha.cuda.runtime.kernel import Kernel
from alpha.cuda.runtime.memory import Array, empty, upload
from alpha.cuda.runtime.tensor_map import BLOCK, by_address, maps_argument
from alpha.ops.coconv_desc import CoConvDesc
from alpha.ops.conv_desc import ceil_div

TAPS, MOST_STAGES = 9, 6
SLOT = CHUNK * TAPS * CHUNK  # floats of a part: 64 channels of g, taps, 64 channels of x
SPLIT, SUM_THREADS = 8, 256  # threads that share the slots of an element


class Cut(NamedTuple):
    """How a launch is laid out: channels of a unit, pixels between rows of a halo, halos in flight; 64 channels of x
    and of g each, and among how many blocks the pixels of such a part are divided."""

    unit: int
    pitch: int
    stages: int
    x_chunks: int
    parts: int
    slices: int


class HaloWgrad(Candidate):
    """The kernel that reads one kind of operands.  It writes float32."""

    pass_name = "wgrad"

    def __init__(self, reads: str) -> None:
        self.reads, self.planes = reads, READS[reads].planes
        self.name = f"conv_coconv_wgrad {reads} to float32"
        defines = {"ELEMENT": {"float16": "f16", "bfloat16": "bf16"}[READS[reads].dtype], "OPERAND_PLANES": self.planes}
        self.kernel = Kernel(
            "conv_coconv_wgrad.cu", "conv_coconv_wgrad", f"{BLOCK} maps, ptr slots, ptr scale_x, ptr scale_g, "
            "ptr dilations, i32 images, i32 height, i32 width, i32 x_chunks, i32 parts, i32 reach, i32 unit, "
            f"i32 stages, i32 x_channels, i32 g_channels, {EXACT_ARGS}",
            threads=THREADS, shared=SHARED_BYTES, defines=defines)

    def rejection(self, desc: CoConvDesc) -> str | None:  # type: ignore[override]
        """Returns why it does not compute desc, or None."""
        if reason := refused(desc):
            return reason
        if desc.w_shape[1] != 3:
            return f"a kernel of {desc.w_shape[1]}x{desc.w_shape[2]}, it computes 3x3"
        cut = self.cut(desc)
        return None if cut.stages > 1 else f"halos of {cut.pitch} x {cut.pitch} pixels do not fit twice"

    def cut(self, desc: CoConvDesc) -> Cut:
        """Returns how a launch is laid out; of a halo without room, with too few stages."""
        return _cut(desc, self.planes, device().sm_count)

    def cost(self, desc: CoConvDesc) -> Cost:  # type: ignore[override]
        return _cost(desc, self.planes, device())

    def prepare(self, desc: CoConvDesc) -> Launch:  # type: ignore[override]
        cut, (n, height, width, ic), oc = self.cut(desc), desc.x_shape, desc.y_shape[3]
        table = upload(dilations_of(desc, CHUNK, cut.unit))
        sums = upload(np.array([  # SumTile in conv/sum_slices.cu
            (part * cut.slices, cut.slices, g * CHUNK * TAPS * ic + x * CHUNK, min(CHUNK, oc - g * CHUNK) * TAPS,
             min(CHUNK, ic - x * CHUNK), 0, 0, 0)
            for part in range(cut.parts) for g, x in [divmod(part, cut.x_chunks)]], np.int32))
        sizes = n, height, width, cut.x_chunks, cut.parts, (cut.pitch - SIDE) // 2, cut.unit, cut.stages
        grid, sum_grid = cut.parts * cut.slices, (SLOT // 4 * SPLIT // SUM_THREADS, cut.parts)
        halo, box = (CHUNK, cut.pitch, cut.pitch, 1), (CHUNK, SIDE, SIDE, 1)

        @by_address
        def maps(x_ptr: int, g_ptr: int, dtype: str) -> bytes:
            return maps_argument(image_map(x_ptr, dtype, desc.x_shape, self.planes, halo)
                                 + image_map(g_ptr, dtype, desc.y_shape, self.planes, box))[0]

        def run(x: Operand, g: Operand, dw: Array, exact: tuple[Any, ...] = UNFLAGGED) -> None:
            slots = empty((grid * SLOT,), "float32")
            self.kernel(grid, maps(x.ptr, g.ptr, x.dtype), slots, x.scale, g.scale, table, *sizes, ic, oc,
                        *exact, 0)
            SUM_SLICES(sum_grid, slots, dw, sums, SLOT, CHUNK, ic, SPLIT)
        return launch_of_arrays("wgrad", self.reads, run)


@lru_cache(maxsize=1024)
def _cut(desc: CoConvDesc, planes: int, sm_count: int) -> Cut:
    unit = gcd(CHUNK // planes, *(first for first, _ in desc.levels))
    pitch = SIDE + 2 * max(level.h.d for _, level in desc.levels)
    buffer = planes * (ceil_div(pitch * pitch * CHUNK * 2, 1024) * 1024 + CHUNK * CHUNK * 2)
    x_chunks, parts = ceil_div(desc.x_shape[3], CHUNK), ceil_div(desc.y_shape[3], CHUNK)
    parts *= x_chunks
    slices = max(1, min(sm_count // parts, tiles_of(desc.x_shape)))
    return Cut(unit, pitch, min(MOST_STAGES, SHARED_BYTES // buffer), x_chunks, parts, slices)


@lru_cache(maxsize=1024)
def _cost(desc: CoConvDesc, planes: int, on: Device) -> Cost:
    cut, c = _cut(desc, planes, on.sm_count), on.table.coconv
    products, width = 3 if planes == 2 else 1, cut.unit if cut.unit == CHUNK else min(cut.unit, CHUNK // CONSUMERS)
    step = max(width / 2, c.a_clocks + width / c.b_columns) * CHUNK / width * (c.taps if width == CHUNK else 1)
    waves = ceil_div(cut.parts * cut.slices, on.sm_count)
    tiles = ceil_div(tiles_of(desc.x_shape), cut.slices)
    clocks = waves * (tiles * (TAPS * 4 * products * step * c.busy[planes] + c.tile_clocks) + c.slot_clocks)
    copied = cut.parts * tiles_of(desc.x_shape) * planes * (cut.pitch ** 2 + SIDE ** 2) * CHUNK * 2 / on.l2
    moved = 2 * planes * (int(np.prod(desc.x_shape)) + int(np.prod(desc.y_shape)))
    added = Stage(nbytes=2 * 4 * SLOT * cut.parts * cut.slices, level="l2", depth=c.depth, launches=1)
    return Cost((Stage(max(clocks / on.rate("clocks"), copied), nbytes=moved, depth=c.depth, launches=1, seen=c.seen),
                 added))


CANDIDATES: dict[str, tuple[HaloWgrad, ...]] = {"wgrad": tuple(HaloWgrad(reads) for reads in READS)}
