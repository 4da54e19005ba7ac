"""Sk-dilated on Hopper's tensor cores: sk_dilated_wgmma.cu with its tiles, and the sum of its units."""

from __future__ import annotations

from itertools import product
from math import gcd
from typing import Any, NamedTuple

import numpy as np

from alpha.cuda.conv.costs import device
from alpha.cuda.conv.costs.records import Key
from alpha.cuda.conv.ffma.sk_dilated import sum_of
from alpha.cuda.conv.schedule import is_product, oversized
from alpha.cuda.conv.wgmma import STREAMED_BYTES, OnOperands, Run, pixels_as_images, refusal
from alpha.cuda.conv.wgmma.boxes import Box
from alpha.cuda.conv.wgmma.schedule import at_a_time
from alpha.cuda.conv.wgmma.schedule_wgrad import CACHE_BYTES, Schedule, cut, memory_us, schedule
from alpha.cuda.conv.wgmma.taps import CONSUMER_ROWS, Tiling, consumers, longest_chain
from alpha.cuda.conv.wgmma.tiles import MOST_SUMS, survivors
from alpha.cuda.lazy import EXACT_ARGS, READS, UNFLAGGED, Operand
from alpha.cuda.runtime.context import ON_HOPPER
from alpha.cuda.runtime.kernel import C_TYPES, Kernel
from alpha.cuda.runtime.memory import Array, empty, offset, upload
from alpha.cuda.runtime.tensor_map import MAPS, NBYTES, by_address, maps_argument, tensor_maps
from alpha.ops.conv_desc import Axis, ConvDesc, Shape, ceil_div
from alpha.plan import Cost, Stage

ROW = 65536                            # distance of rows of positions in boxes, see wgrad_producer.cuh
LINE = 64                              # 16-bit elements of a line of memory
UNIT_BYTES = 2048                      # of shared memory for a unit's description
RING_BYTES = 216 * 1024                # for buffers


class WgradTile(NamedTuple):
    """Rows of a tile, input channels of a tap, taps, and buffers of the ring.

    A buffer is a strip of neighbouring outputs of a row. The taps of a pixel are neighbours in shared memory, those of
    the next pixel lie a box further on, and only the last of them is not there already.
    """

    rows: int
    tap_columns: int
    taps: int
    stages: int
    strip: int = 1
    cluster: int = 1  # blocks that share a unit, and add up what they have of it in each other's shared memory

    def __str__(self) -> str:
        return (f"{self.rows}x{self.taps}x{self.tap_columns}" + f" strip {self.strip}" * (self.strip > 1)
                + f" cluster {self.cluster}" * (self.cluster > 1))

    def key(self, planes: int) -> Key:
        """The key of its constants."""
        return planes, self.rows, self.tap_columns, self.taps, self.strip, self.cluster

    @property
    def columns(self) -> int:
        return self.tap_columns * self.taps

    @property
    def strip_taps(self) -> int:
        """Taps that a strip has columns of x for."""
        return self.taps + self.strip - 1

    @property
    def tap_box(self) -> int:
        """Channels of a box of x."""
        return 32 if self.tap_columns % 64 else 64

    def box_bytes(self, planes: int) -> int:
        """Returns the size of a buffer."""
        return planes * (self.strip * self.rows + self.strip_taps * self.tap_columns) * 128

    def block_us(self, planes: int, desc: ConvDesc, streamed: bool) -> float:
        """Returns the time of a block of k by what limits it: products, copies, or shared memory.

        A strip has as many blocks as pixels.
        """
        sm_count, c = device().sm_count, device().table.wgmma_wgrad
        flops = 2.0 * self.rows * self.columns * 64
        products = planes * (planes + 1) // 2
        reads = products * flops * (1 / 64 + 1 / self.columns)      # 2 bytes an element, 2 FLOP a product
        shared = (reads + self.box_bytes(planes) / self.strip) / (c.shared_bytes_per_flop * products * flops)
        oc, ic = desc.oc // desc.groups, desc.ic // desc.groups     # boxes beyond them are not copied
        g_rows = min(self.rows, ceil_div(oc, LINE) * LINE)
        x_rows = min(self.tap_columns, ceil_div(ic, self.tap_box) * self.tap_box) * self.strip_taps / self.strip
        copies_us = planes * (g_rows * row_us(desc, desc.oc, LINE)
                              + x_rows * 64 / self.tap_box * row_us(desc, desc.ic, self.tap_box))
        stream_us = sm_count * planes * (g_rows + x_rows) * 128 / c.streamed[planes] if streamed else 0.0
        products_us = sm_count * flops / c.flops_per_us[planes] * max(1.0, shared)
        return max(products_us, stream_us, copies_us, c.issue_us / self.strip) * device().slower


def row_us(desc: ConvDesc, channels: int, box: int) -> float:
    """Returns what a row of a box takes, of pixels of so many channels, where a block's copies are not hidden."""
    starts = range(0, LINE, gcd(channels, LINE))  # in a line of memory
    crossing = sum(start + min(box, channels) > LINE for start in starts) / len(starts)
    c = device().table.wgmma_wgrad
    return c.row_us * (1 + c.crossing * crossing) if desc.h.f * desc.w.f > 1 else c.row_us


def _fitting(planes: int) -> dict[Key, WgradTile]:
    """Returns the tiles that registers and shared memory have room for, with as many buffers as fit, by their sizes:
    rows, columns of a tap, taps, strip and cluster."""
    found = {}
    for rows, columns, taps, strip, cluster in product((64, 128, 192, 256), (32, 64, 96, 128, 192, 256), (1, 3),
                                                       (1, 2, 3), (1, 2, 4, 8)):
        tile = WgradTile(rows, columns, taps, 0, strip, cluster)
        stages = RING_BYTES // tile.box_bytes(planes)
        sums = rows * tile.columns // (128 * consumers(rows))
        if stages >= 2 and sums <= MOST_SUMS and (taps > 1 or strip == 1):
            found[rows, columns, taps, strip, cluster] = tile._replace(stages=stages)
    return found


TILES = {planes: survivors(f"wgrad of {planes} planes", _fitting(planes)) for planes in (1, 2)}


class WgmmaWgrad(OnOperands):
    """A tile of sk_dilated_wgmma. It writes float32, whatever it reads."""

    pass_name = "wgrad"

    def __init__(self, reads: str, tile: WgradTile) -> None:
        self.reads, self.tile = reads, tile
        self.planes = READS[reads].planes
        self.name = f"sk_dilated_wgmma {reads} {tile}"
        defines = {"ELEMENT": C_TYPES[READS[reads].dtype], "TILE_ROWS": tile.rows,
                   "TAP_COLUMNS": tile.tap_columns, "TAPS_TOGETHER": tile.taps, "OPERAND_PLANES": self.planes,
                   "PIPELINE": tile.stages, "STRIP_PIXELS": tile.strip, "BLOCKS_TOGETHER": tile.cluster}
        self.kernel = Kernel(
            "sk_dilated_wgmma.cu", "sk_dilated_wgmma", f"{MAPS}, i32 first_g, ptr dw, ptr work, ptr units, "
            "i32 unit_ints, ptr scale_x, ptr scale_g, i32 images, i32 rows, i32 boxed, i32 wide_x, "
            "i32 wide_g, i32 x_once, i32 g_once, i32 g_row, i32 g_step, i32 x_row, i32 x_step, i32 dw_row, "
            f"{EXACT_ARGS}, block[72] shape",  # Exact, WgradShape
            threads=128 * (1 + consumers(tile.rows)), shared=tile.stages * tile.box_bytes(self.planes) + UNIT_BYTES,
            defines=defines, **ON_HOPPER)

    def rejection(self, desc: ConvDesc) -> str | None:
        if self.tile.taps > 1 and self.tile.taps > desc.h.f * desc.w.f:
            return f"{self.tile.taps} taps at a time, the filter has {desc.h.f * desc.w.f}"
        if refused := refusal(desc):
            return refused
        if self.tile.strip > 1 and self.tile.taps > longest_chain(desc.w):
            return f"strips need {self.tile.taps} taps of a row that meet inputs a stride apart"
        return oversized(desc)

    def tiling(self, desc: ConvDesc) -> Tiling:
        tile, streamed = self.tile, is_product(desc) and desc.nbytes(2 * self.planes) > CACHE_BYTES
        return Tiling(tile.rows, tile.tap_columns, tile.taps, at_a_time(device().sm_count, tile.cluster),
                      tile.block_us(self.planes, desc, streamed) / tile.cluster, self.planes, tile.strip, tile.cluster)

    def schedule(self, desc: ConvDesc) -> Schedule:
        return schedule(pixels_as_images(desc), self.tiling(desc))

    def cost(self, desc: ConvDesc) -> Cost:
        us = self._factor(desc) * cut(pixels_as_images(desc), self.tiling(desc)).time_us
        return Cost((Stage(us, launches=device().table.wgmma_wgrad.launches),))

    def least_us(self, desc: ConvDesc) -> float:
        tile, tiling, on = self.tile, self.tiling(desc), device()
        c = on.table.wgmma_wgrad
        blocks = desc.useful_flops / 2 / (tile.rows * tile.columns * 64)
        faster = min(1.0, c.strip[tile.rows]) if tile.strip > 1 else 1.0
        busy_us = blocks * tiling.block_us * faster / tiling.blocks + tiling.unit_us
        us = self._factor(desc) * max(busy_us, memory_us(pixels_as_images(desc), tiling))
        return c.launches * on.launch_us + us

    def _factor(self, desc: ConvDesc) -> float:
        taken = device().table.wgmma_wgrad.tiles[self.tile.key(self.planes)]
        return taken.of_taps if desc.h.f * desc.w.f > 1 else taken.of_product

    def on_operands(self, desc: ConvDesc, first: int = 0, channels: int = 0) -> Run:
        """Returns the launch that takes what the tensor cores read, (x, g, dw).

        first, channels: if g has so many channels and dw as many filters, those of desc being from `first` on.
        """
        desc = pixels_as_images(desc)
        plan, tile = self.schedule(desc), self.tile
        units, h, w, planes, box = upload(plan.units), desc.h, desc.w, self.planes, plan.box
        boxed = box.height * box.width > 1
        x_form = _form(desc, "x", box, planes, tile.tap_columns, tile.tap_box)
        g_form = _form(desc, "g", box, planes, tile.rows, 64, channels)
        dw_row = h.f * w.f * (desc.ic // desc.groups)
        large = desc.nbytes(2 * planes) > STREAMED_BYTES and h.f * w.f == 1  # what one tile alone reads leaves L2 first
        x_once, g_once = (large and channels // desc.groups <= of_tile for channels, of_tile in (
            (desc.oc, tile.rows), (desc.ic, tile.tap_columns)))
        g_row, x_row, x_step = (box.height * ROW,) * 2 + (box.width,) if boxed else (w.o, h.s * w.i, w.s)
        sizes = (box.images, box.rows, boxed, int(x_form.wide), int(g_form.wide), x_once, g_once, g_row, box.width,
                 x_row, x_step, dw_row)
        moves = w.f, h.s, w.s, h.p, w.p, h.d, w.d
        shape = np.array([*desc.x_shape, *desc.y_shape[1:3], channels or desc.oc, *moves, *box, 0], np.int32).tobytes()
        kernel, grid, ints = self.kernel, plan.blocks, plan.units.shape[1]
        tiling = self.tiling(desc)
        slot_floats = plan.slots * tiling.slot_bytes // 4
        add_up = sum_of(plan.sums, CONSUMER_ROWS, tiling.part_columns, dw_row, plan.apart, accumulators=True)

        @by_address
        def maps(x_ptr: int, g_ptr: int, dtype: str) -> tuple[Any, ...]:
            x, g = _maps(x_ptr, dtype, x_form), _maps(g_ptr, dtype, g_form)
            return *maps_argument(x + g), len(x) // NBYTES

        def run(a: Operand, b: Operand, dw: Array, exact: tuple[Any, ...] = UNFLAGGED) -> None:
            work = empty((slot_floats,), "float32") if slot_floats else None
            out = offset(dw, 4 * first * dw_row)
            kernel(grid, *maps(a.ptr, b.ptr + 2 * first, a.dtype), out, work, units, ints, a.scale, b.scale, *sizes,
                   *exact, first, shape)
            if work:
                add_up(work, out)
        return run


class Form(NamedTuple):
    """How TMA sees an operand: (channels of a box, pixels, images, chunks of channels, planes), or all in one chunk; in
    boxes of positions (channels of a box, column, row, image, chunk of channels).
    """

    dims: tuple[Shape, ...]   # of each map
    strides: Shape
    boxes: tuple[Shape, ...]  # that of a tile, and that of the last one, which has fewer chunks; of each map
    wide: bool                # a box has all of a tile's channels
    offsets: Shape = ()       # where the tensor of each map begins


def _form(desc: ConvDesc, which: str, box: Box, planes: int, tile_channels: int, width: int, pitch: int = 0) -> Form:
    """Returns the form whose boxes have all channels of a tile, where the shared memory of a box would be in order.

    Of boxes of positions a tap has maps of the outputs in which it meets inputs, or of these.
    pitch: channels of a pixel in memory, if these are a part of them.
    """
    n, height, columns, channels = desc.x_shape if which == "x" else desc.y_shape
    of_group, pixel = channels // desc.groups, 2 * (pitch or channels)  # pixel and what follows in bytes
    row, image, plane = columns * pixel, height * columns * pixel, n * height * columns * pixel
    wide = box.rows == 64 and of_group % width == 0
    inner, chunks = (width, channels // width) if wide else (channels, 1)
    counts = [each // width if wide else 1 for each in (tile_channels, of_group % tile_channels or tile_channels)]
    if box.height * box.width == 1:
        boxes = tuple((width, 1, box.images, count, 1) for count in counts)
        strides = pixel, image, 2 * width if wide else plane, plane
        return Form(((inner, height * columns, n, chunks, planes),) * 2, strides, boxes, wide)
    boxes = tuple((width, box.width, box.height, box.images, count) for count in counts)
    down, right = (desc.h.s, desc.w.s) if which == "x" else (1, 1)
    dims, offsets = [], []
    for (h, rows), (w, length) in product(_met(desc.h, which), _met(desc.w, which)):
        dims += [(inner, length, rows, n, chunks)] * 2 * planes
        offsets += [number * plane + h * row + w * pixel for number in range(planes) for _ in boxes]
    return Form(tuple(dims), (right * pixel, down * row, image, 2 * width), boxes * (len(dims) // 2), wide,
                tuple(offsets))


def _met(axis: Axis, which: str) -> list[tuple[int, int]]:
    """Returns for each tap the first output in which it meets an input, or this input, and their number; any, where
    there are none."""
    ranges = [axis.wgrad_range(tap) for tap in range(axis.f)]
    return [(first if which == "g" else axis.input_of(first, tap), end - first) if first < end else (0, 1)
            for tap, (first, end) in enumerate(ranges)]


def _maps(ptr: int, dtype: str, form: Form) -> bytes:
    return tensor_maps(ptr, dtype, form.dims, form.boxes, form.strides, swizzle=2 * form.boxes[0][0],
                       offsets=form.offsets)


CANDIDATES = tuple(WgmmaWgrad(reads, tile) for reads, form in READS.items() for tile in TILES[form.planes])
