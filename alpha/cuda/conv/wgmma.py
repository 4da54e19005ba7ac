"""ConvV2 and KS-deconv on Hopper's tensor cores: kernels/conv_wgmma.cu, its tiles, and what they cost."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import prod
from typing import NamedTuple

from alpha.cuda.context import context
from alpha.cuda.conv.schedule_wgmma import CHUNK, ROWS, Costs, WorkList, dgrad_pixels, fprop_pixels, work_list
from alpha.cuda.kernel import Kernel
from alpha.cuda.memory import ITEMSIZE, Array, empty, upload
from alpha.cuda.operand import ARCH, KEEP, Operand, operand
from alpha.cuda.plan import Guard, Launch
from alpha.cuda.tensor_map import tensor_map
from alpha.ops.conv_desc import ConvDesc

LAUNCH_US, SUM_US = 3.0, 4.5    # of the launch, and of the one that adds slices up
SLOT_BYTES_PER_US = 4e6         # that the latter reads
MEMORY_BYTES_PER_US = 2.5e6     # that are read and written where nothing else takes longer
IMAGES = (128, 64, 32, 16, 8)   # of a tile's pixel; ROWS / images boxes make up a tile
FREE_BOXES, BOX_US = 4, 0.012   # boxes of a block, and microseconds that one more takes
BOX_BYTES = 8192                # 64 rows of 128 bytes: what results are stored by
BOX_ROWS = 64
THREADS, SUM_THREADS = 384, 256
C_TYPES = {"float32": "float", "float16": "f16", "bfloat16": "bf16"}
PIXELS = {"fprop": lru_cache(maxsize=256)(fprop_pixels), "dgrad": lru_cache(maxsize=256)(dgrad_pixels)}


class Mode(NamedTuple):
    """What is read (alpha/cuda/operand.py) and written."""

    reads: str
    writes: str

    @property
    def planes(self) -> int:
        return 2 if self.reads == "float16x2" else 1

    @property
    def element(self) -> str:
        return self.reads.removesuffix("x2")


class Tile(NamedTuple):
    """128 rows by `columns`; buffers; microseconds on an H100 of a block of 64 of k, and of the end of a tile whose
    results have 16 bits.  Both are those of a cool device; only ratios matter to a choice."""

    columns: int
    stages: int
    block_us: float
    end_us: float


class Work(NamedTuple):
    """How many images of a pixel a tile has, the work list, and its time in microseconds."""

    images: int
    lists: WorkList
    us: float


FP32, TF32, BF16, FP16 = (Mode("float16x2", "float32"), Mode("float16", "float32"), Mode("bfloat16", "bfloat16"),
                          Mode("float16", "float16"))
TILES = {2: (Tile(128, 3, 0.985, 1.0), Tile(64, 4, 0.545, 0.7)),
         1: (Tile(128, 6, 0.32, 1.0), Tile(64, 8, 0.205, 0.65), Tile(256, 4, 0.62, 2.0))}  # by the number of planes


def refusal(desc: ConvDesc) -> str:
    """Returns why no kernel on Hopper's tensor cores computes desc on this device, or ""."""
    if context.arch != ARCH:
        return f"needs {ARCH}, the device is {context.arch}"
    if desc.groups > 1:
        return f"computes one group, not {desc.groups}"
    if desc.ic % 8 or desc.oc % 8:
        return f"{desc.ic} input and {desc.oc} output channels are no multiples of 8"
    return ""


class Wgmma:
    """One tile in one mode; see alpha.cuda.plan for the members."""

    def __init__(self, pass_name: str, mode: Mode, tile: Tile) -> None:
        self.pass_name, self.mode, self.tile = pass_name, mode, tile
        self.reads, self.writes, self.takes_guard = *mode, False
        self.name = f"conv_wgmma {ROWS}x{tile.columns} {mode.reads} to {mode.writes}"
        stage = mode.planes * (ROWS + tile.columns) * CHUNK * 2
        defines = {"ELEMENT": C_TYPES[mode.element], "TILE_N": tile.columns, "OPERAND_PLANES": mode.planes,
                   "B_MAJOR_N": int(pass_name == "dgrad"), "RING_STAGES": tile.stages, "OUT": C_TYPES[mode.writes]}
        self.kernel = Kernel(
            "conv_wgmma.cu", "conv_wgmma", "ptr x, ptr w, ptr y, ptr b, ptr scale_x, ptr scale_w, ptr slots, "
            "ptr work, i32 entries, i32 images_log2, i32 columns, i32 relu", threads=THREADS,
            shared=tile.stages * stage + 4 * BOX_BYTES, defines=defines)
        self.sum = Kernel(
            "conv_wgmma.cu", "conv_wgmma_slices", "ptr slots, ptr tiles, ptr b, ptr scale_x, ptr scale_w, ptr y, "
            "i32 batch, i32 height, i32 width, i32 columns, i32 images_log2, i32 relu", threads=SUM_THREADS,
            defines=defines)

    def fits(self, desc: ConvDesc) -> str:
        return refusal(desc)

    def cost(self, desc: ConvDesc, sm_count: int) -> float:
        return LAUNCH_US + max(self.plan(desc, sm_count).us, self._nbytes(desc) / MEMORY_BYTES_PER_US)

    def plan(self, desc: ConvDesc, sm_count: int) -> Work:
        """Returns the work list that is done first."""
        return _work(self.pass_name, desc, self.tile, ITEMSIZE[self.writes], sm_count)

    def _nbytes(self, desc: ConvDesc) -> int:
        """Returns the bytes that a launch must move: results, and the positions that have a part in any."""
        reads_y = self.pass_name == "dgrad"
        classes = [axis.fprop_classes if reads_y else axis.dgrad_classes for axis in (desc.h, desc.w)]
        height, width = (sum(len(c.positions) for c in axis if c.count) for axis in classes)
        written, channels = (desc.x_shape, desc.oc) if reads_y else (desc.y_shape, desc.ic)
        return prod(written) * ITEMSIZE[self.writes] + 2 * self.mode.planes * desc.n * height * width * channels

    def prepare(self, desc: ConvDesc) -> Launch:
        run, reads = self.on_operands(desc), self.reads

        def fprop(x: Array, w: Array, b: Array | None, y: Array, relu: bool) -> Guard:
            a, c = operand(x, reads, keep=KEEP["activation"]), operand(w, reads, keep=KEEP["weight"])
            run(a, c, b, y, relu)
            return a.flag, c.flag

        def dgrad(g: Array, w: Array, dx: Array) -> Guard:
            a, c = operand(g, reads, keep=KEEP["gradient"]), operand(w, reads, keep=KEEP["weight"])
            run(a, c, None, dx, False)
            return a.flag, c.flag
        return fprop if self.pass_name == "fprop" else dgrad

    def on_operands(self, desc: ConvDesc) -> Callable[[Operand, Operand, Array | None, Array, bool], None]:
        """Returns the launch that takes what the tensor cores read, (x or g, w, bias, output, relu)."""
        kernel, add, tile_floats = self.kernel, self.sum, ROWS * self.tile.columns
        images, work, _ = self.plan(desc, context.sm_count)
        (grid, entries, _), items = work.items.shape, upload(work.items)
        images_log2, slot_floats = images.bit_length() - 1, work.slots * tile_floats
        sliced, sum_grid = upload(work.sliced), (tile_floats // 4 // SUM_THREADS, len(work.sliced))
        box = (CHUNK, 1, 1, images, 1)
        w_box = (CHUNK, 1, 1, self.tile.columns, 1) if self.pass_name == "fprop" else (CHUNK, 1, 1, CHUNK, 1)
        out_box = (BOX_BYTES // BOX_ROWS // ITEMSIZE[self.writes], 1, 1, min(images, BOX_ROWS))

        def run(x: Operand, w: Operand, b: Array | None, y: Array, relu: bool) -> None:
            batch, height, width, columns = y.shape
            slots = empty((slot_floats,), "float32") if slot_floats else None
            kernel(grid, tensor_map(x.ptr, x.dtype, (*x.shape[::-1], x.planes), box),
                   tensor_map(w.ptr, w.dtype, (*w.shape[::-1], w.planes), w_box),
                   tensor_map(y.ptr, y.dtype, (columns, width, height, batch), out_box),
                   b, x.scale, w.scale, slots, items, entries, images_log2, columns, relu)
            if slots:
                add(sum_grid, slots, sliced, b, x.scale, w.scale, y, batch, height, width, columns, images_log2, relu)
        return run


@lru_cache(maxsize=1024)
def _work(pass_name: str, desc: ConvDesc, tile: Tile, itemsize: int, sm_count: int) -> Work:
    pixels = PIXELS[pass_name](desc)
    slot_us = ROWS * tile.columns * ITEMSIZE["float32"] / SLOT_BYTES_PER_US
    found = []
    for images in IMAGES:
        if images < 2 * pixels.images or images == IMAGES[-1]:
            block_us = tile.block_us + BOX_US * max(0, ROWS // images - FREE_BOXES)
            costs = Costs(*(us / block_us for us in (tile.end_us * itemsize / 2, SUM_US, slot_us)))
            work = work_list(pixels, images, tile.columns, sm_count, costs)
            found.append(Work(images, work, work.makespan * block_us))
    return min(found, key=lambda work: work.us)


CANDIDATES = tuple(Wgmma(pass_name, mode, tile) for pass_name in PIXELS for mode in (FP32, TF32, BF16, FP16)
                   for tile in TILES[mode.planes])


def candidates() -> tuple[Wgmma, ...]:
    """Returns all tiles in all modes, of both passes."""
    return CANDIDATES
