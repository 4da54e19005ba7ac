"""ConvV2 and KS-deconv on Hopper's tensor cores: conv_wgmma.cu, its tiles, and what they cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from alpha.core.precision import PRECISIONS, Precision
from alpha.cuda.conv.costs import Device, device
from alpha.cuda.conv.costs.records import Wgmma as Constants
from alpha.cuda.conv.planner import Candidate, Launch
from alpha.cuda.conv.schedule import LIMIT, POINT, is_product, oversized
from alpha.cuda.conv.wgmma.boxes import STORED_ROWS, tile_boxes
from alpha.cuda.conv.wgmma.pixels import Pixels, field, pixels_of
from alpha.cuda.conv.wgmma.schedule import Costs, Tiles, WorkList, cluster_list, cluster_makespan, estimate, work_list
from alpha.cuda.conv.wgmma.schedule_held import held_list, held_makespan
from alpha.cuda.conv.wgmma.tiles import CHUNK, CONSUMERS, SHARED_BYTES, Tile, fitting, survivors
from alpha.cuda.lazy import EXACT_ARGS, KEEP, UNFLAGGED, Operand, exact, operand, statistics
from alpha.cuda.ops.pointwise.epilogue import NOTHING, Epilogue
from alpha.cuda.runtime.context import ON_HOPPER, context
from alpha.cuda.runtime.kernel import C_TYPES, Kernel
from alpha.cuda.runtime.memory import ITEMSIZE, Array, empty, offset, upload
from alpha.cuda.runtime.tensor_map import MAPS, NBYTES, by_address, maps_argument, tensor_maps
from alpha.ops.conv_desc import ConvDesc, Shape, ceil_div
from alpha.plan import Cost, Stage

BY_IMAGE = 0.5                  # of a list's time that memory takes: then it goes through the batch
STREAMED_BYTES = 40e6           # of an output, or of all operands: what is larger does not stay in the L2 cache
OUT_ROW = 128                   # bytes of a row of the boxes by which results are stored
BOX_BYTES = STORED_ROWS * OUT_ROW
MOST_BOXES = 4                  # of a consumer, where shared memory has room: while one is written others leave
SCALE_FLOATS = 64               # before slots: the last two are their scale
LARGE = 128 * 256               # rows x columns x planes of a tile of which nvcc makes one pass in 10 s and more
THREADS, SUM_THREADS = 384, 256  # with two consumers
LEAST_COUNTED = 64              # channels of which those are counted: of fewer a tile's sums are too short to hide it
ALONE = range(1, 2)             # lengths of runs, where each has one tap
ENTRIES = {"fprop": "conv_v2_wgmma", "dgrad": "ks_deconv_wgmma"}
READ_BY = {"fprop": ("activation", "weight"), "dgrad": ("gradient", "weight"), "wgrad": ("activation", "gradient")}


Run = Callable[..., None]  # of operands x or g, and w; output, epilogue


@lru_cache(maxsize=1024)
def pixels_as_images(desc: ConvDesc) -> ConvDesc:
    """Returns a 1x1 convolution that moves by one as one of images of one pixel, of which it is a product; others as
    they are.  What a box reads are then neighbours in memory, and not the same pixel of 64 images."""
    images = desc.n * desc.h.i * desc.w.i
    if not is_product(desc) or 2 * images >= LIMIT:  # of two planes
        return desc
    return replace(desc, n=images, h=POINT, w=POINT)


def moved_bytes(pass_name: str, mode: Precision, desc: ConvDesc) -> tuple[int, int]:
    """Returns the bytes that fprop or dgrad must write, results, and read: the positions that have a part in any."""
    reads_y = pass_name == "dgrad"
    classes = [axis.fprop_classes if reads_y else axis.dgrad_classes for axis in (desc.h, desc.w)]
    height, width = (sum(len(c.positions) for c in axis if c.count) for axis in classes)
    written, channels = (desc.x_shape, desc.oc) if reads_y else (desc.y_shape, desc.ic)
    return prod(written) * ITEMSIZE[mode.dtype], 2 * mode.planes * desc.n * height * width * channels


class Estimate(NamedTuple):
    """The tiles of a pass, and the time of their list in microseconds; and how long multiprocessors wait where filters
    are held: for these, and at the end for others that hold other ones."""

    tiles: Tiles
    us: float
    wait_us: float


FP32, TF32, BF16, FP16 = (PRECISIONS[name] for name in ("fp32", "tf32", "bf16", "fp16"))
TILES = {mode: survivors(f"maps in {mode.timed_as}", fitting(mode.planes)) for mode in (FP32, TF32, BF16, FP16)}


def refusal(desc: ConvDesc) -> str | None:
    """Returns why no kernel on Hopper's tensor cores computes desc on this device, or None."""
    if context.arch != "sm_90a":
        return f"needs sm_90a, the device is {context.arch}"
    ic, oc = desc.ic // desc.groups, desc.oc // desc.groups
    if ic % 8 or oc % 8:
        return f"{ic} input and {oc} output channels{' of a group' * (desc.groups > 1)} are no multiples of 8"
    return None


class OnOperands(Candidate):
    """What reads operands: `on_operands` returns the launch that takes them, `prepare` that which makes them too, but
    of float32, which is read as it lies."""

    on_operands: Callable[..., Run]

    def prepare(self, desc: Any) -> Launch:
        run, (first, second) = self.on_operands(desc), (KEEP[what] for what in READ_BY[self.pass_name])
        if self.reads == "float32":
            return run

        def launch(x: Array, w: Array, *rest: Any, **more: Any) -> None:
            a, c = operand(x, self.reads, keep=first), operand(w, self.reads, keep=second)
            run(a, c, *rest, exact=exact(x, a, w, c), **more)
        return launch


class Wgmma(OnOperands):
    """One tile in one mode.  pooled: of fprop the largest of each 2 x 2 is written, see alpha/cuda/conv/pooled.py."""

    def __init__(self, pass_name: str, mode: Precision, tile: Tile, pooled: bool = False) -> None:
        self.pass_name, self.mode, self.tile, self.pooled = pass_name, mode, tile, pooled
        self.reads, self.writes = mode.operand, mode.dtype
        self.adds, self.joins = pass_name == "dgrad", pass_name == "fprop" and not (tile.pairs or pooled)
        self.name = f"conv_wgmma {tile} {mode.operand} to {mode.dtype}"
        pixels, filters = (mode.planes * rows * CHUNK * 2 for rows in (tile.rows, tile.columns))  # bytes of a block
        ring = tile.stages * pixels + (tile.held or tile.stages) * filters
        boxes = min(MOST_BOXES, (SHARED_BYTES - ring) // (tile.consumers * BOX_BYTES)) * (tile.cluster == 1)
        defines = {"ELEMENT": C_TYPES[mode.element], "TILE_M": tile.rows * (1 + tile.pairs), "TILE_N": tile.columns,
                   "OPERAND_PLANES": mode.planes, "RING_STAGES": tile.stages, "OUTPUT_BOXES": boxes,
                   "OF_PAIRS": int(tile.pairs), "FILTERS_HELD": tile.held, "BLOCKS_TOGETHER": tile.cluster,
                   "OUT": C_TYPES[mode.dtype], "POOLED": int(pooled)}
        if tile.rows * tile.columns * mode.planes >= LARGE:
            defines["PASS"] = pass_name  # a module of its own
        self.kernel = Kernel(
            "conv_wgmma.cu", ENTRIES[pass_name], f"{MAPS}, i32 first_w, i32 first_out, ptr b, ptr scale_x, "
            "ptr scale_w, ptr slots, ptr parts, ptr joined, ptr work, i32 entries, i32 box, i32 batch, i32 height, "
            "i32 width, i32 groups, i32 columns, i32 counted, i32 least_run, i32 most_run, i32 unit, i32 relu, "
            f"i32 adds, i32 streams, {EXACT_ARGS}, block[16] shape",
            threads=128 * (1 + tile.consumers), shared=ring + tile.consumers * boxes * BOX_BYTES,
            defines=defines, **ON_HOPPER)
        self.sum = Kernel(
            "conv_wgmma.cu", "conv_wgmma_slices", "ptr slots, ptr tiles, ptr b, ptr y, "
            "i32 batch, i32 height, i32 width, i32 channels, i32 columns, i32 box, i32 relu, ptr added",
            threads=SUM_THREADS, defines=defines, **ON_HOPPER)

    def rejection(self, desc: ConvDesc) -> str | None:
        if refused := refusal(desc) or oversized(desc):
            return refused
        pixels = self._pixels(desc)
        if self.tile.pairs and not field(pixels.classes, "pair").any():
            return "no outputs beside each other share what they read in chunks of 64"
        if self.tile.held and (blocks := pixels.most_blocks) > self.tile.held:
            return f"the filters of a sum are {blocks} blocks, room is for {self.tile.held}"
        if self.tile.columns % (OUT_ROW // ITEMSIZE[self.writes]) and pixels.columns > self.tile.columns:
            return f"tiles of {self.tile.columns} columns end within a box that is stored: one has all columns, or none"
        return None

    def _pixels(self, desc: ConvDesc) -> Pixels:
        return pixels_of(self.pass_name, pixels_as_images(desc), self.tile.pairs)

    def cost(self, desc: ConvDesc) -> Cost:
        desc, on = pixels_as_images(desc), device()
        c, found = on.table.wgmma, self._estimate(desc)
        tiles = desc.groups * ceil_div(desc.n, self.tile.rows) * ceil_div(self._pixels(desc).columns, self.tile.columns)
        few = is_product(desc) and tiles <= 2 * on.sm_count
        cost = Cost((Stage(found.us, nbytes=self._memory_us(desc) * on.dram, depth=c.depth, launches=c.launches,
                           seen=c.seen_of_few if few else c.seen), Stage(found.wait_us)))
        narrow = desc.groups > 1 and desc.ic // desc.groups < CHUNK
        return cost.times(1 + c.narrow_group / (desc.ic // desc.groups)) if narrow else cost

    def _memory_us(self, desc: ConvDesc) -> float:
        on, pixels, (written, read) = device(), self._pixels(desc), moved_bytes(self.pass_name, self.mode, desc)
        c, again = on.table.wgmma, ceil_div(pixels.columns, self.tile.columns) - 1
        us = (written + read) / on.dram + again * read / (on.l2 * (c.product_l2 if is_product(desc) else 1))
        if not self.tile.held or not is_product(desc):
            return us
        channels, rows, of_tile = pixels.channels, self.tile.rows, min(self.tile.columns, pixels.columns)
        return us * (1 - c.seen_held * channels * of_tile / (channels * (rows + of_tile) + rows * of_tile))

    def least_us(self, desc: ConvDesc) -> float:
        on = device()
        products = desc.useful_flops / 2 / (self.tile.rows * self.tile.columns * CHUNK)
        block_us = on.table.wgmma.tiles[self.tile.key(self.mode)].block_us * on.slower
        return on.table.wgmma.launches * on.launch_us + products * block_us / on.sm_count

    def _estimate(self, desc: ConvDesc) -> Estimate:
        return _estimate(self.pass_name, desc, self.tile, self.mode, device(), self.pooled)

    def work_list(self, desc: ConvDesc) -> WorkList:
        """Returns the work list that is done first."""
        desc = pixels_as_images(desc)
        tiles, us, _ = self._estimate(desc)
        if self.tile.held:
            return held_list(tiles)
        if self.tile.cluster > 1:
            return cluster_list(tiles, self.tile.cluster)
        return work_list(tiles, by_image=self._memory_us(desc) > BY_IMAGE * us)

    def on_operands(self, desc: ConvDesc, first: int = 0, channels: int = 0) -> Run:
        """Returns the launch that takes what the tensor cores read, (x or g, w, output, epilogue).

        first, channels: of fprop, if y has so many channels and w as many filters, those of desc being from `first` on.
            The launch then takes memory for the statistics of all channels too, or None.
        """
        desc = pixels_as_images(desc)
        batch, height, width, of_y = out_shape = desc.y_shape if self.pass_name == "fprop" else desc.x_shape
        work, (pixels, box, *_) = self.work_list(desc), self._estimate(desc).tiles
        packed, maps = box.packed(self.pass_name, desc), self._maps(desc, channels)
        (grid, entries, _), items = work.items.shape, upload(work.items)
        tile_floats, clustered = self.tile.rows * self.tile.columns, self.tile.cluster > 1
        sliced, sum_grid = upload(work.sliced), (tile_floats // 4 // SUM_THREADS, len(work.sliced))
        slot_floats, of_y, columns, runs = work.slots * tile_floats, channels or of_y, pixels.columns, pixels.runs
        sizes = batch, height, width, pixels.groups, columns, of_y, runs[0], runs[-1], pixels.unit
        streams = prod(out_shape) * ITEMSIZE[self.writes] > STREAMED_BYTES
        counts = columns >= LEAST_COUNTED and not (channels or slot_floats or clustered)
        w_first, y_first = first * prod(desc.w_shape[1:]), first * ITEMSIZE[self.writes]
        in_shape = desc.x_shape if self.pass_name == "fprop" else desc.y_shape
        shape = np.array([*in_shape[1:3], desc.h.f, desc.w.f], np.int32).tobytes()  # ConvShape

        def run(x: Operand, w: Operand, y: Array, epilogue: Epilogue = NOTHING, parts: Array | None = None,
                adds: bool = False, residual: Array | None = None, exact: tuple[Any, ...] = UNFLAGGED) -> None:
            b, relu = epilogue
            b, out = b and offset(b, 4 * first), offset(y, y_first)
            if counts:
                parts = statistics.attach(y, CONSUMERS * grid)
            memory = empty((SCALE_FLOATS + slot_floats,), "float32") if slot_floats else None
            slots = memory and offset(memory, 4 * SCALE_FLOATS)
            w_ptr = w.ptr + w_first * ITEMSIZE[w.dtype]
            self.kernel(grid, *maps(x.ptr, w_ptr, y.ptr + y_first, y.dtype), b, x.scale, w.scale,
                        out if clustered else slots, parts and offset(parts, 4 * first), residual, items, entries,
                        packed, *sizes, relu, adds, streams, *exact, w_first, shape)
            if slots:
                self.sum(sum_grid, slots, sliced, b, out, batch, height, width, of_y, columns, packed,
                         relu, out if adds else residual)
        return run

    def _maps(self, desc: ConvDesc, channels: int) -> Callable[..., tuple[Any, ...]]:
        """Returns what makes MAPS of a launch, of x or g, of w and of the output, and the numbers of the first of w and
        of the output.  channels: see above."""
        fprop, (pixels, box, *_) = self.pass_name == "fprop", self._estimate(desc).tiles
        in_shape, out_shape = (desc.x_shape, desc.y_shape) if fprop else (desc.y_shape, desc.x_shape)
        in_steps, out_steps = box.apart(self.pass_name, desc)
        # rows of a box beyond the tensor take TMA three times as long as others: the last tile has a box of its own
        tail = (pixels.columns % self.tile.columns,) if pixels.columns % self.tile.columns else ()
        w_runs, heights = (pixels.runs, (self.tile.columns, *tail)) if fprop else (ALONE, (pixels.unit,))
        in_box, w_boxes = (CHUNK, *box.spans), tuple((CHUNK, 1, 1, height, 1) for height in heights)
        stored = box.stored
        if self.pooled:
            n, height, width, of_y = out_shape
            out_shape = n, height // 2, width // 2, of_y
            stored = stored._replace(height=stored.height // 2, width=stored.width // 2)
        out_box = OUT_ROW // ITEMSIZE[self.writes], *stored.spans

        # of float32 as it is stored (conv/as_stored.py) an element counts as two
        element = self.mode.element.replace("float32", "float16")
        planes, groups = self.mode.planes, pixels.groups

        @by_address
        def maps(x_ptr: int, w_ptr: int, y_ptr: int, y_dtype: str) -> tuple[Any, ...]:
            x = _image_maps(x_ptr, element, in_shape, planes, groups, pixels.runs, in_box, in_steps)
            w = filter_maps(w_ptr, element, desc.w_shape, planes, groups, w_runs, w_boxes, channels)
            y = _image_maps(y_ptr, y_dtype, out_shape, 1, groups, ALONE, out_box, out_steps, channels)
            return *maps_argument(x + w + y), len(x) // NBYTES, len(x + w) // NBYTES
        return maps


def _image_maps(ptr: int, dtype: str, shape: Shape, planes: int, groups: int, runs: range, box: Shape,
                apart: tuple[int, int], pitch: int = 0) -> bytes:
    """Returns a map (channels of a run, its first pixel, row, image of a plane, group) for each length of a run.

    apart: the positions of a box, (height, width): where not 1, a map for each residue class, (row, column).
    pitch: channels of a pixel in memory, if those of the shape are a part of them.
    """
    n, h, w, channels = shape
    pixel, each, (down, right) = (pitch or channels) * ITEMSIZE[dtype], channels // groups, apart
    classes = [(y, x, run) for y in range(down) for x in range(right) for run in runs]
    dims = [(run * each, ceil_div(w - run + 1 - x, right), ceil_div(h - y, down), n * planes, groups)
            for y, x, run in classes]
    return tensor_maps(ptr, dtype, dims, [box] * len(dims),
                       (right * pixel, down * w * pixel, h * w * pixel, each * ITEMSIZE[dtype]),
                       offsets=tuple((y * w + x) * pixel for y, x, _ in classes))


def filter_maps(ptr: int, dtype: str, shape: Shape, planes: int, groups: int, runs: range, boxes: tuple[Shape, ...],
                 filters: int = 0) -> bytes:
    """Returns a map (channels of a run, its first tap, row, filter, group of a plane) for each box and length of a
    run.  filters: of a plane, if those of the shape are a part of them; then there is one group, or one plane."""
    oc, fh, fw, channels = shape
    tap, each = channels * ITEMSIZE[dtype], oc // groups
    apart = filters if filters and groups == 1 else each
    dims = [(run * channels, fw - run + 1, fh, each, groups * planes) for run in runs]
    return tensor_maps(ptr, dtype, dims * len(boxes), [box for box in boxes for _ in runs],
                       (tap, fw * tap, fh * fw * tap, apart * fh * fw * tap))


def _copies(pass_name: str, desc: ConvDesc, pixels: Pixels, tile: Tile, planes: int, c: Constants
            ) -> tuple[bool, float]:
    """Returns whether channels are so few that they do not fill a line of memory once, and what copying a block takes
    where they do not fill whole lines.  c: the constants."""
    fprop = pass_name == "fprop"
    if desc.h.f * desc.w.f == 1 or not (desc.ic % CHUNK or (desc.oc % CHUNK and not fprop)):
        return False, 0.0
    few = min(pixels.channels, CHUNK if fprop else pixels.columns) < CHUNK
    if tile.held:
        return few, c.narrow_row_us * tile.rows
    filters = pixels.columns / ceil_div(pixels.columns, tile.columns)
    if not fprop:  # they are copied 64 columns at a time
        filters = tile.columns
    return few, c.narrow_row_us * (tile.rows + filters) + few * planes * c.few_us


@lru_cache(maxsize=1024)
def _estimate(pass_name: str, desc: ConvDesc, tile: Tile, mode: Precision, on: Device, pooled: bool = False
              ) -> Estimate:
    pixels, c = pixels_of(pass_name, desc, tile.pairs), on.table.wgmma
    taken = c.tiles[tile.key(mode)]
    whole_us, end_us, alone_us = (us * on.slower for us in (taken.block_us, taken.end_us, taken.alone_us))
    few, copied_us = _copies(pass_name, desc, pixels, tile, mode.planes, c)
    stored = min(1.0, pixels.columns / tile.columns)
    slot_us = tile.rows * tile.columns * ITEMSIZE["float32"] / (c.sum_l2 * on.l2)
    end_us *= ITEMSIZE[mode.dtype] / 2
    cluster_us = c.cluster_us * (tile.cluster > 1) * on.slower
    held_us = (tile.held > 0) * pixels.most_blocks * mode.planes * 2 * CHUNK * tile.columns / c.held_bytes_per_us
    found = []
    for box, of_boxes in tile_boxes(pass_name, desc, tile.rows, pixels, not (tile.pairs or tile.held), pooled):
        block_us = max(whole_us, copied_us) + c.box_us * max(0, tile.rows // box.rows - c.free_boxes)
        costs = Costs(*(us / block_us for us in (stored * end_us + cluster_us, c.sum_us, slot_us)),
                      block=1.0 if few and not tile.held else c.part, filters=held_us / block_us,
                      alone=max(alone_us, copied_us) / block_us if tile.pairs else 1.0)
        tiles, wait_us = Tiles(of_boxes, box, tile.columns, on.sm_count, costs, tile.rows), 0.0
        if tile.held:
            makespan, mean = held_makespan(tiles)
            wait_us = held_us + c.idle_seen * (makespan - mean) * block_us
        elif tile.cluster > 1:
            makespan = cluster_makespan(tiles, tile.cluster)
        else:
            makespan, _ = estimate(tiles)
        found.append(Estimate(tiles, makespan * block_us, wait_us))
    return min(found, key=lambda one: one.us)


CANDIDATES = tuple(Wgmma(pass_name, mode, tile) for pass_name in ("fprop", "dgrad") for mode in TILES
                   for tile in TILES[mode] if tile.only in ("", pass_name))
