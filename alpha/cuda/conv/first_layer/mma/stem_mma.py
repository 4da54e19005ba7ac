"""The first layer on tensor cores, from sm_80 on, in fp16 from sm_75 on: conv_stem_mma.cu, conv_stem_mma_wgrad.cu.

At most four input channels. float32 is multiplied as TF32, in the mode fp32 by three products of its two halves, and 16
bits as they are; nothing is scaled, split or padded in memory.
"""

from __future__ import annotations

from math import prod

from alpha.core.precision import PRECISIONS, Precision
from alpha.cuda.conv.costs import RESERVED, device
from alpha.cuda.conv.ffma.sk_dilated import sum_of
from alpha.cuda.conv.first_layer.tiles import PATCH, Tiles, channels_refusal, patch_of, tiles_of
from alpha.cuda.conv.planner import Candidate, Launch
from alpha.cuda.conv.schedule import oversized
from alpha.cuda.ops.pointwise import as_float32
from alpha.cuda.ops.pointwise.epilogue import NOTHING, Epilogue
from alpha.cuda.runtime.context import ASYNC, OLDEST, context, lacks
from alpha.cuda.runtime.kernel import C_TYPES, Kernel
from alpha.cuda.runtime.memory import ITEMSIZE, Array, empty
from alpha.ops.conv_desc import ConvDesc, ceil_div
from alpha.plan import Cost, Stage

THREADS, POSITIONS, CHUNK, COLUMNS = 256, 256, 32, 64  # of the kernels
MOST_CHUNKS = (1, 3, 5, 12)                            # of 32 k: 3x3, 5x5, 7x7 and 11x11 filters of 3 channels
BLOCKS = 2                                             # resident on a multiprocessor, as registers allow
MOST_LINES = 0x7fff                                    # of an output: StemRow in stem_mma.cuh
STATIC = 2304                                          # bytes of shared memory that fprop has beside
SHAPE_ARGS = ", ".join(f"i32 {name}" for name in (
    "images", "ih", "iw", "ic", "oh", "ow", "oc", "fh", "fw", "stride_h", "stride_w", "pad_h", "pad_w", "dilation_h",
    "dilation_w", "tile_h", "tile_w", "tiles_h", "tiles_w", "lines", "line"))


MODES = tuple(PRECISIONS[name] for name in ("fp32", "tf32", "bf16", "fp16"))


def needs_of(mode: Precision) -> tuple[int, int]:
    """Returns the compute capability whose tensor cores multiply the elements of a precision."""
    return OLDEST if mode.dtype == "float16" else ASYNC


def defines_of(mode: Precision) -> dict[str, str | int]:
    """Returns the macros of a precision's kernels: the elements of x, y and g, and how many products make one."""
    return {"ELEMENT": C_TYPES[mode.dtype], "PRODUCTS": mode.multiplications, "PATCH": PATCH}


def refusal(desc: ConvDesc) -> str | None:
    """Returns why these kernels cannot compute desc, or None."""
    if refused := channels_refusal(desc):
        return refused
    if prod(patch_of(desc, 1, 1)) * desc.ic > PATCH:
        return "what a position reads does not fit into shared memory"
    if desc.h.o >= MOST_LINES:
        return f"an output of {desc.h.o} lines, fewer than {MOST_LINES} are served"
    return oversized(desc)


def _tiles(desc: ConvDesc, sm_count: int) -> Tiles:
    tiles = tiles_of(desc, POSITIONS, 0, sm_count * BLOCKS)
    assert tiles, refusal(desc)
    return tiles


def chunks_of(desc: ConvDesc) -> int:
    """Returns how many chunks of 32 a filter has."""
    return ceil_div(desc.h.f * desc.w.f * desc.ic, CHUNK)


def shape_of(desc: ConvDesc, tiles: Tiles) -> tuple[int, ...]:
    """Returns the integers of StemShape in stem_mma.cuh."""
    h, w = desc.h, desc.w
    return (desc.n, h.i, w.i, desc.ic, h.o, w.o, desc.oc, h.f, w.f, h.s, w.s, h.p, w.p, h.d, w.d, *tiles)


class StemMmaFprop(Candidate):
    """stem_mma_fprop in a mode."""

    pass_name = "fprop"

    def __init__(self, mode: Precision) -> None:
        self.mode, self.precisions, self.name = mode, (mode.name,), f"conv_stem_mma_fprop {mode.name}"
        self.needs = needs_of(mode)
        self.reads = self.writes = mode.dtype
        self.kernels = {most: Kernel(
            "conv_stem_mma.cu", "stem_mma_fprop", f"ptr x, ptr w, ptr b, ptr y, {SHAPE_ARGS}, i32 tiles, i32 chunks, "
            "i32 relu", threads=THREADS, shared=self._shared(most), needs=self.needs,
            defines={**defines_of(mode), "SHORT": int(most == 1)}) for most in MOST_CHUNKS}

    def _shared(self, chunks: int) -> int:
        itemsize = ITEMSIZE[self.mode.dtype]
        return chunks * CHUNK * (COLUMNS * itemsize + 4) + 2 * PATCH * itemsize

    def _most(self, desc: ConvDesc) -> int:
        """Returns the chunks of the least kernel that has enough of them, 0 where none has."""
        return next((most for most in MOST_CHUNKS if most >= chunks_of(desc)), 0)

    def _resident(self, desc: ConvDesc) -> int:
        """Returns how many blocks a multiprocessor holds, as registers and this device's shared memory allow."""
        shared = self._shared(self._most(desc)) + STATIC + RESERVED
        return max(1, min(BLOCKS, (context.max_shared + RESERVED) // shared))

    def rejection(self, desc: ConvDesc) -> str | None:
        most = self._most(desc)
        if lacking := lacks(self.needs):
            return lacking
        if not refusal(desc) and not (most and self._shared(most) + STATIC <= context.max_shared):
            return f"filters of {desc.h.f}x{desc.w.f}x{desc.ic} do not fit into shared memory"
        return refusal(desc)

    def cost(self, desc: ConvDesc) -> Cost:
        return Cost((only_stage("fprop", desc, self.mode),))

    def prepare(self, desc: ConvDesc) -> Launch:
        tiles = _tiles(desc, context.sm_count)
        kernel, total = self.kernels[self._most(desc)], desc.n * tiles.per_image
        column_tiles = ceil_div(desc.oc, COLUMNS)
        grid = min(total, max(1, context.sm_count * self._resident(desc) // column_tiles)), column_tiles
        sizes = *shape_of(desc, tiles), total, chunks_of(desc)

        def launch(x: Array, w: Array, y: Array, epilogue: Epilogue = NOTHING) -> None:
            b, relu = epilogue
            kernel(grid, x, as_float32(w), b, y, *sizes, relu)
        return launch


class StemMmaWgrad(Candidate):
    """stem_mma_wgrad in a mode, for g whose channels are a multiple of 4."""

    pass_name = "wgrad"

    def __init__(self, mode: Precision) -> None:
        self.mode, self.precisions, self.reads = mode, (mode.name,), mode.dtype
        self.needs = needs_of(mode)
        self.name = f"conv_stem_mma_wgrad {mode.name} 4"  # channels of g at a time
        self.kernel = Kernel(
            "conv_stem_mma_wgrad.cu", "stem_mma_wgrad", f"ptr x, ptr g, ptr work, {SHAPE_ARGS}, i32 tiles",
            threads=THREADS, shared=max(2 * PATCH * ITEMSIZE[mode.dtype], 4 * 4 * COLUMNS * CHUNK),
            needs=self.needs, defines=defines_of(mode))

    def rejection(self, desc: ConvDesc) -> str | None:
        if desc.oc % 4:
            return f"{desc.oc} output channels are no multiple of 4"
        return lacks(self.needs) or refusal(desc)

    def cost(self, desc: ConvDesc) -> Cost:
        return Cost((only_stage("wgrad", desc, self.mode),))

    def prepare(self, desc: ConvDesc) -> Launch:
        tiles, chunks, row_tiles = _tiles(desc, context.sm_count), chunks_of(desc), ceil_div(desc.oc, COLUMNS)
        kernel, total, depth = self.kernel, desc.n * tiles.per_image, desc.h.f * desc.w.f * desc.ic
        blocks = min(total, max(1, context.sm_count * BLOCKS // (chunks * row_tiles)))
        grid, sizes = (chunks, blocks, row_tiles), (*shape_of(desc, tiles), total)
        add_up = sum_of([
            ((row * chunks + chunk) * blocks, blocks, row * COLUMNS * depth + chunk * CHUNK,
             min(COLUMNS, desc.oc - row * COLUMNS), min(CHUNK, depth - chunk * CHUNK))
            for row in range(row_tiles) for chunk in range(chunks)], COLUMNS, CHUNK, depth)
        work_size = blocks * chunks * row_tiles * COLUMNS * CHUNK

        def launch(x: Array, g: Array, dw: Array) -> None:
            work = empty((work_size,), "float32")
            kernel(grid, x, g, work, *sizes)
            add_up(work, dw)
        return launch


def only_stage(pass_name: str, desc: ConvDesc, mode: Precision) -> Stage:
    """Returns what memory, the tensor cores or all instructions need, whichever is most."""
    on, itemsize, chunks = device(), ITEMSIZE[mode.dtype], chunks_of(desc)
    c, tiles = on.table.stem_mma, _tiles(desc, on.sm_count)
    rows = desc.n * tiles.per_image * ceil_div(tiles.height * tiles.width, 16) * 16 * ceil_div(desc.oc, COLUMNS)
    taken = c.clocks[pass_name, mode.timed_as]
    products = COLUMNS * CHUNK * mode.multiplications / (on.mma * 2 / itemsize)
    clocks = max(taken.position + taken.chunk * chunks, products * chunks)
    return Stage(rows * clocks / on.sm_count, "clocks", desc.nbytes(itemsize) / c.dram, "dram",
                 c.depth[pass_name], c.launches[pass_name])


CANDIDATES = (*map(StemMmaFprop, MODES), *map(StemMmaWgrad, MODES))
