"""ConvV2 and KS-deconv on Hopper's tensor cores: conv_wgmma.cu, its tiles, and what they cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import NamedTuple

from alpha.cuda.conv.planner import Launch
from alpha.cuda.conv.schedule import LIMIT, is_product, oversized
from alpha.cuda.conv.wgmma.schedule import (
    CHUNK,
    COSTS,
    ROWS,
    Costs,
    Pixels,
    WorkList,
    dgrad_pixels,
    estimate,
    field,
    fprop_pixels,
    paired,
    work_list,
)
from alpha.cuda.conv.wgmma.schedule_held import held_list, held_makespan, most_blocks
from alpha.cuda.lazy import GUARD_ARGS, KEEP, UNGUARDED, Guard, Operand, operand, statistics
from alpha.cuda.ops.pointwise.epilogue import NOTHING, Epilogue
from alpha.cuda.runtime.context import context
from alpha.cuda.runtime.kernel import C_TYPES, Kernel
from alpha.cuda.runtime.memory import ITEMSIZE, Array, empty, upload
from alpha.cuda.runtime.tensor_map import KEPT, tensor_maps
from alpha.ops.conv_desc import Axis, ConvDesc, Shape, ceil_div

LAUNCH_US, SUM_US = 3.0, 4.5    # of the launch, and of the one that adds slices up
SLOT_BYTES_PER_US = 4e6         # that the latter reads
MEMORY_BYTES_PER_US = 2.5e6     # that are read and written where nothing else takes longer
SEEN, SEEN_OF_FEW = 0.05, 0.3   # of what takes less: not all of it is hidden, least of a product of few tiles
CACHE_BYTES_PER_US = 8e6        # that are read once more for each further tile of columns; of a product twice as many
HELD_SEEN = 0.14                # less of that time, in the filters' share of what tiles move, where they are held
HELD_BYTES_PER_US = 1e5         # of filters, of a multiprocessor that waits for them
IDLE_SEEN = 0.4                 # of what one waits at the end for others, that hold other filters
BY_IMAGE = 0.5                  # of a list's time that memory takes: then it goes through the batch. On an H100 dgrad
# from 128 to 64 channels at stride 2, 3x3 at 32x32, took 57 us in the place of 76 so; 5x5 took a tenth longer
IMAGES = (128, 64, 32, 16, 8)   # of a tile's pixel; rows / images boxes make up a tile
MOST_PIXELS = 16                # of a tile: a lane of the producer has one, or a box of filters
NARROW_ROW_US = 0.0019          # to copy a row of a box where channels do not fill lines of memory, beyond 1x1
FEW_US = 0.17                   # more, of a block and plane, take filters where they do not fill one at all
FREE_BOXES, BOX_US = 4, 0.012   # boxes of a block, and microseconds that one more takes
STREAMED_BYTES = 40e6           # of an output: one larger does not stay in the L2 cache
BOX_ROWS, OUT_ROW = 64, 128     # rows of a box by which results are stored, and bytes of each
BOX_BYTES = BOX_ROWS * OUT_ROW
MOST_BOXES = 4                  # of a consumer, where shared memory has room: while one is written others leave
SHARED_BYTES = 226 * 1024       # of a block; 1 KB is left to barriers
THREADS, SUM_THREADS = 384, 256
CONSUMERS = 2                   # of a block, each with its slot of statistics
PIXELS: dict[str, Callable[[ConvDesc], Pixels]] = {
    "fprop": lru_cache(maxsize=256)(fprop_pixels), "dgrad": lru_cache(maxsize=256)(dgrad_pixels)}


class Mode(NamedTuple):
    """What is read (lazy/operands.py) and written."""

    reads: str
    writes: str

    @property
    def planes(self) -> int:
        return 2 if self.reads == "float16x2" else 1

    @property
    def element(self) -> str:
        return self.reads.removesuffix("x2")


Run = Callable[..., None]  # of operands x or g, and w; output, epilogue


ONE_PIXEL = Axis(i=1, o=1, f=1, s=1, p=0, d=1)


@lru_cache(maxsize=1024)
def pixels_as_images(desc: ConvDesc) -> ConvDesc:
    """Returns a 1x1 convolution that moves by one as one of images of one pixel, of which it is a product; others as
    they are.  What a box reads are then neighbours in memory, and not the same pixel of 64 images."""
    images = desc.n * desc.h.i * desc.w.i
    if not is_product(desc) or 2 * images >= LIMIT:  # of two planes
        return desc
    return replace(desc, n=images, h=ONE_PIXEL, w=ONE_PIXEL)


def launch_of_arrays(pass_name: str, reads: str, run: Run) -> Launch:
    """Returns the launch of fprop or dgrad that makes the operands, runs, and returns their flags."""
    def fprop(x: Array, w: Array, y: Array, epilogue: Epilogue = NOTHING) -> Guard:
        a, c = operand(x, reads, keep=KEEP["activation"]), operand(w, reads, keep=KEEP["weight"])
        run(a, c, y, epilogue)
        return a.flag, c.flag

    def dgrad(g: Array, w: Array, dx: Array) -> Guard:
        a, c = operand(g, reads, keep=KEEP["gradient"]), operand(w, reads, keep=KEEP["weight"])
        run(a, c, dx)
        return a.flag, c.flag
    return fprop if pass_name == "fprop" else dgrad


def moved_bytes(pass_name: str, mode: Mode, desc: ConvDesc) -> tuple[int, int]:
    """Returns the bytes that fprop or dgrad must write, results, and read: the positions that have a part in any."""
    reads_y = pass_name == "dgrad"
    classes = [axis.fprop_classes if reads_y else axis.dgrad_classes for axis in (desc.h, desc.w)]
    height, width = (sum(len(c.positions) for c in axis if c.count) for axis in classes)
    written, channels = (desc.x_shape, desc.oc) if reads_y else (desc.y_shape, desc.ic)
    return prod(written) * ITEMSIZE[mode.writes], 2 * mode.planes * desc.n * height * width * channels


class Tile(NamedTuple):
    """`rows` by `columns`; buffers; microseconds on an H100 of a block of 64 of k, and of the end of a tile whose
    results have 16 bits.  Both are those of a cool device; only ratios matter to a choice."""

    columns: int
    stages: int
    block_us: float
    end_us: float
    rows: int = ROWS
    alone_us: float = 0.0  # of a tile of pairs of outputs, as many of them: a block of outputs alone
    held: int = 0          # blocks of filters that stay in shared memory; see schedule_held.py
    only: str = ""         # the pass that it serves: in the other it gains nothing; dgrad copies 64 columns at a time

    @property
    def pairs(self) -> bool:
        return self.alone_us > 0

    def __str__(self) -> str:
        return f"{self.rows}{' pairs ' if self.pairs else ''}x{self.columns}{f' held {self.held}' * (self.held > 0)}"


class Estimate(NamedTuple):
    """How many images of a pixel a tile has, what its list is made by, and the list's time in microseconds; and how
    long multiprocessors wait where filters are held: for these, and at the end for others that hold other ones."""

    images: int
    costs: Costs
    us: float
    wait_us: float


FP32, TF32, BF16, FP16 = (Mode("float16x2", "float32"), Mode("float16", "float32"), Mode("bfloat16", "bfloat16"),
                          Mode("float16", "float16"))
# Filters are held because without it the convolutions of ResNet-20 and ResNet-56 take up to 16 % longer, by estimate;
# what a step takes with fewer tiles is measured in benchmarks/results/h200/pruning.jsonl.
WIDE = (Tile(128, 6, 0.324, 1.0), Tile(64, 8, 0.199, 0.67), Tile(256, 4, 0.62, 2.0), Tile(128, 4, 0.7, 1.7, rows=256))
HALF = (*WIDE, Tile(128, 6, 0.305, 1.0, alone_us=0.324, only="dgrad"), Tile(192, 4, 0.47, 1.5),
        Tile(64, 4, 0.48, 0.82, rows=256, only="dgrad"), Tile(64, 8, 0.178, 0.67, alone_us=0.199),
        Tile(256, 4, 0.62, 2.0, held=3), Tile(64, 4, 0.3, 0.67, held=10, only="fprop"),
        Tile(64, 4, 0.48, 0.82, rows=256, held=6), Tile(96, 3, 0.58, 1.25, rows=256, held=6, only="fprop"))
TILES = {FP32: (Tile(128, 3, 0.985, 1.0), Tile(64, 4, 0.545, 0.7), Tile(96, 3, 0.795, 0.8, only="fprop"),
                Tile(32, 4, 0.4, 0.55, only="fprop"), Tile(64, 3, 0.545, 0.7, held=6)),
         TF32: (*WIDE, Tile(64, 4, 0.49, 1.15, rows=256, only="dgrad"), Tile(64, 8, 0.155, 0.84, alone_us=0.199),
                Tile(64, 4, 0.49, 1.15, rows=256, held=6)),
         BF16: HALF, FP16: HALF}


def refusal(desc: ConvDesc) -> str | None:
    """Returns why no kernel on Hopper's tensor cores computes desc on this device, or None."""
    if context.arch != "sm_90a":
        return f"needs sm_90a, the device is {context.arch}"
    ic, oc = desc.ic // desc.groups, desc.oc // desc.groups
    if ic % 8 or oc % 8:
        return f"{ic} input and {oc} output channels{' of a group' * (desc.groups > 1)} are no multiples of 8"
    return None


class Wgmma:
    """One tile in one mode; see alpha.cuda.conv.planner for the members."""

    def __init__(self, pass_name: str, mode: Mode, tile: Tile) -> None:
        self.pass_name, self.mode, self.tile = pass_name, mode, tile
        self.reads, self.writes, self.takes_guard = *mode, False
        self.name = f"conv_wgmma {tile} {mode.reads} to {mode.writes}"
        pixels, filters = (mode.planes * rows * CHUNK * 2 for rows in (tile.rows, tile.columns))  # bytes of a block
        ring = tile.stages * pixels + (tile.held or tile.stages) * filters
        self._out_boxes = min(MOST_BOXES, (SHARED_BYTES - ring) // (CONSUMERS * BOX_BYTES))
        self._shared = ring + CONSUMERS * self._out_boxes * BOX_BYTES
        defines = {"ELEMENT": C_TYPES[mode.element], "TILE_M": tile.rows * (1 + tile.pairs), "TILE_N": tile.columns,
                   "OPERAND_PLANES": mode.planes, "B_MAJOR_N": int(self.pass_name == "dgrad"),
                   "RING_STAGES": tile.stages, "OUTPUT_BOXES": self._out_boxes, "OF_PAIRS": int(tile.pairs),
                   "FILTERS_HELD": tile.held, "OUT": C_TYPES[mode.writes]}
        self.kernel = Kernel(
            "conv_wgmma.cu", "conv_wgmma", "ptr x, ptr w, ptr y, ptr b, ptr scale_x, ptr scale_w, ptr slots, "
            "ptr statistics, ptr work, i32 entries, i32 images_log2, i32 batch, i32 groups, i32 columns, "
            f"i32 least_run, i32 most_run, i32 unit, i32 relu, i32 streams, {GUARD_ARGS}",
            threads=THREADS, shared=self._shared, defines=defines)
        self.sum = Kernel(
            "conv_wgmma.cu", "conv_wgmma_slices", "ptr slots, ptr tiles, ptr b, ptr scale_x, ptr scale_w, ptr y, "
            "i32 batch, i32 height, i32 width, i32 groups, i32 columns, i32 images_log2, i32 relu",
            threads=SUM_THREADS, defines=defines)

    def rejection(self, desc: ConvDesc) -> str | None:
        if refused := refusal(desc) or oversized(desc):
            return refused
        if self.tile.pairs and not field(self._pixels(desc).classes, "pair").any():
            return "no outputs beside each other share what they read in chunks of 64"
        if self.tile.held and (blocks := most_blocks(self._pixels(desc))) > self.tile.held:
            return f"the filters of a sum are {blocks} blocks, room is for {self.tile.held}"
        if self.tile.columns % (OUT_ROW // ITEMSIZE[self.writes]) and self._columns(desc) > self.tile.columns:
            return f"tiles of {self.tile.columns} columns end within a box that is stored: one has all columns, or none"
        return None

    def _pixels(self, desc: ConvDesc) -> Pixels:
        return _pixels(self.pass_name, pixels_as_images(desc), self.tile.pairs)

    def _columns(self, desc: ConvDesc) -> int:
        return (desc.oc if self.pass_name == "fprop" else desc.ic) // desc.groups

    def cost(self, desc: ConvDesc, sm_count: int) -> float:
        desc = pixels_as_images(desc)
        found = self._estimate(desc, sm_count)
        both = found.us, self._memory_us(desc)
        tiles = desc.groups * ceil_div(desc.n, self.tile.rows) * ceil_div(self._columns(desc), self.tile.columns)
        few = is_product(desc) and tiles <= 2 * sm_count
        return LAUNCH_US + max(both) + (SEEN_OF_FEW if few else SEEN) * min(both) + found.wait_us

    def _memory_us(self, desc: ConvDesc) -> float:
        written, read = moved_bytes(self.pass_name, self.mode, desc)
        columns = self._columns(desc)
        again = ceil_div(columns, self.tile.columns) - 1
        us = (written + read) / MEMORY_BYTES_PER_US + again * read / (CACHE_BYTES_PER_US * (1 + is_product(desc)))
        if not self.tile.held or not is_product(desc):
            return us
        channels, rows, of_tile = self._pixels(desc).channels, self.tile.rows, min(self.tile.columns, columns)
        return us * (1 - HELD_SEEN * channels * of_tile / (channels * (rows + of_tile) + rows * of_tile))

    def least(self, desc: ConvDesc, sm_count: int) -> float:
        products = desc.useful_flops / 2 / (self.tile.rows * self.tile.columns * CHUNK)
        return LAUNCH_US + products * self.tile.block_us / sm_count

    def _estimate(self, desc: ConvDesc, sm_count: int) -> Estimate:
        return _estimate(self.pass_name, desc, self.tile, self.mode, sm_count)

    def plan(self, desc: ConvDesc, sm_count: int) -> tuple[int, WorkList]:
        """Returns how many images of a pixel a tile has, and the work list that is done first."""
        desc = pixels_as_images(desc)
        found = self._estimate(desc, sm_count)
        tile = self._pixels(desc), found.images, self.tile.columns, sm_count, found.costs
        if self.tile.held:
            return found.images, held_list(*tile, rows=self.tile.rows)
        by_image = self._memory_us(desc) > BY_IMAGE * found.us
        return found.images, work_list(*tile, rows=self.tile.rows, by_image=by_image)

    def prepare(self, desc: ConvDesc) -> Launch:
        return launch_of_arrays(self.pass_name, self.reads, self.on_operands(desc))

    def on_operands(self, desc: ConvDesc) -> Run:
        """Returns the launch that takes what the tensor cores read, (x or g, w, output, epilogue)."""
        desc = pixels_as_images(desc)
        shapes = desc.x_shape, desc.y_shape
        in_shape, out_shape = shapes if self.pass_name == "fprop" else shapes[::-1]
        batch, height, width, _ = out_shape
        tile_floats = self.tile.rows * self.tile.columns
        images, work = self.plan(desc, context.sm_count)
        (grid, entries, _), items = work.items.shape, upload(work.items)
        images_log2, slot_floats = images.bit_length() - 1, work.slots * tile_floats
        sliced, sum_grid = upload(work.sliced), (tile_floats // 4 // SUM_THREADS, len(work.sliced))
        pixels = self._pixels(desc)
        columns, groups, unit, runs = pixels.columns, pixels.groups, pixels.unit, pixels.runs
        streams = prod(out_shape) * ITEMSIZE[self.writes] > STREAMED_BYTES
        rewritten = self.writes == "float32"  # where a flag is set, by an exact kernel
        sizes = groups, columns, runs[0], runs[-1], unit
        box, single = (CHUNK, 1, 1, images, 1), range(1, 2)
        # rows of a box beyond the tensor take TMA three times as long as others: the last tile has a box of its own
        tail = (columns % self.tile.columns,) if columns % self.tile.columns else ()
        w_runs, heights = (runs, (self.tile.columns, *tail)) if self.pass_name == "fprop" else (single, (unit,))
        w_boxes = tuple((CHUNK, 1, 1, height, 1) for height in heights)
        out_rows = min(images, BOX_ROWS)
        out_box = (OUT_ROW // ITEMSIZE[self.writes], 1, 1, out_rows, 1)

        def run(x: Operand, w: Operand, y: Array, epilogue: Epilogue = NOTHING) -> None:
            b, relu = epilogue.known()
            counted = statistics.attach(y, CONSUMERS * grid) if not slot_floats else None
            guard = (x.flag, w.flag) if rewritten else UNGUARDED
            out = _image_maps(y.ptr, y.dtype, out_shape, 1, groups, single, out_box)
            slots = empty((slot_floats,), "float32") if slot_floats else None
            self.kernel(grid, _image_maps(x.ptr, x.dtype, in_shape, x.planes, groups, runs, box),
                        _filter_maps(w.ptr, w.dtype, w.shape, w.planes, groups, w_runs, w_boxes),
                        out, b, x.scale, w.scale, slots, counted, items, entries, images_log2, batch, *sizes, relu,
                        streams, *guard)
            if slots:
                self.sum(sum_grid, slots, sliced, b, x.scale, w.scale, y, batch, height, width, groups, columns,
                         images_log2, relu)
        return run


@lru_cache(maxsize=512)
def _pixels(pass_name: str, desc: ConvDesc, pairs: bool) -> Pixels:
    pixels = PIXELS[pass_name](desc)
    return paired(pixels) if pairs else pixels


@lru_cache(maxsize=KEPT)
def _image_maps(ptr: int, dtype: str, shape: Shape, planes: int, groups: int, runs: range, box: Shape) -> Array:
    """Returns a map (channels of a run, its first pixel, row, image of a plane, group) for each length of a run."""
    n, h, w, channels = shape
    pixel, each = channels * ITEMSIZE[dtype], channels // groups
    dims = [(run * each, w - run + 1, h, n * planes, groups) for run in runs]
    return tensor_maps(ptr, dtype, dims, [box] * len(dims), (pixel, w * pixel, h * w * pixel, pixel // groups))


@lru_cache(maxsize=KEPT)
def _filter_maps(ptr: int, dtype: str, shape: Shape, planes: int, groups: int, runs: range, boxes: tuple[Shape, ...]
                 ) -> Array:
    """Returns a map (channels of a run, its first tap, row, filter, group of a plane) for each box and length of a
    run."""
    oc, fh, fw, channels = shape
    tap, each = channels * ITEMSIZE[dtype], oc // groups
    dims = [(run * channels, fw - run + 1, fh, each, groups * planes) for run in runs]
    return tensor_maps(ptr, dtype, dims * len(boxes), [box for box in boxes for _ in runs],
                       (tap, fw * tap, fh * fw * tap, each * fh * fw * tap))


def _copies(pass_name: str, desc: ConvDesc, pixels: Pixels, tile: Tile, planes: int) -> tuple[bool, float]:
    """Returns whether channels are so few that they do not fill a line of memory once, and what copying a block takes
    where they do not fill whole lines."""
    fprop = pass_name == "fprop"
    if desc.h.f * desc.w.f == 1 or not (desc.ic % CHUNK or (desc.oc % CHUNK and not fprop)):
        return False, 0.0
    few = min(pixels.channels, CHUNK if fprop else pixels.columns) < CHUNK
    if tile.held:
        return few, NARROW_ROW_US * tile.rows
    filters = pixels.columns / ceil_div(pixels.columns, tile.columns)
    if not fprop:  # they are copied 64 columns at a time
        filters = tile.columns
    return few, NARROW_ROW_US * (tile.rows + filters) + few * planes * FEW_US


@lru_cache(maxsize=1024)
def _estimate(pass_name: str, desc: ConvDesc, tile: Tile, mode: Mode, sm_count: int) -> Estimate:
    pixels = _pixels(pass_name, desc, tile.pairs)
    few, copied_us = _copies(pass_name, desc, pixels, tile, mode.planes)
    stored = min(1.0, pixels.columns / tile.columns)
    slot_us = tile.rows * tile.columns * ITEMSIZE["float32"] / SLOT_BYTES_PER_US
    end_us = tile.end_us * ITEMSIZE[mode.writes] / 2
    held_us = (tile.held > 0) * most_blocks(pixels) * mode.planes * 2 * CHUNK * tile.columns / HELD_BYTES_PER_US
    found = []
    possible = [images for images in IMAGES if tile.rows <= MOST_PIXELS * images]
    for images in possible:
        if images < 2 * pixels.images or images == possible[-1]:
            block_us = max(tile.block_us, copied_us) + BOX_US * max(0, tile.rows // images - FREE_BOXES)
            costs = Costs(*(us / block_us for us in (stored * end_us, SUM_US, slot_us)),
                          block=1.0 if few and not tile.held else COSTS.block, filters=held_us / block_us,
                          alone=max(tile.alone_us, copied_us) / block_us if tile.pairs else 1.0)
            cut, wait_us = (pixels, images, tile.columns, sm_count, costs), 0.0
            if tile.held:
                makespan, mean = held_makespan(*cut, rows=tile.rows)
                wait_us = held_us + IDLE_SEEN * (makespan - mean) * block_us
            else:
                makespan, _ = estimate(*cut, rows=tile.rows)
            found.append(Estimate(images, costs, makespan * block_us, wait_us))
    return min(found, key=lambda one: one.us)


CANDIDATES = tuple(Wgmma(pass_name, mode, tile) for pass_name in PIXELS for mode in TILES for tile in TILES[mode]
                   if tile.only in ("", pass_name))
