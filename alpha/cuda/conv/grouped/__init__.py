"""Convolutions of narrow groups on tensor cores, from sm_80 on, in fp16 from sm_75 on: the kernels of this folder.

A tile holds several whole groups side by side. float32 is multiplied as TF32, in the mode fp32 by three products of its
two halves, and 16 bits as they are; nothing is scaled, split or padded in memory.
"""

from __future__ import annotations

from functools import lru_cache
from math import gcd
from typing import NamedTuple

import numpy as np

from alpha.core.precision import Precision
from alpha.cuda.conv.costs import device
from alpha.cuda.conv.first_layer.mma.stem_mma import MODES, defines_of, needs_of
from alpha.cuda.conv.planner import Candidate, Launch
from alpha.cuda.conv.schedule import oversized
from alpha.cuda.ops.pointwise import as_float32
from alpha.cuda.ops.pointwise.epilogue import NOTHING, Epilogue
from alpha.cuda.runtime.context import context, lacks
from alpha.cuda.runtime.kernel import Kernel
from alpha.cuda.runtime.memory import ITEMSIZE, Array, empty, upload
from alpha.ops.conv_desc import Axis, ConvDesc, ceil_div
from alpha.plan import Cost, Stage

THREADS, WARPS, ROW, PIECE = 256, 8, 128, 16  # of the kernels
PITCH, PITCH_OF_SINGLE = ROW + 16, ROW + 32   # bytes from a pixel of a patch to the next
POSITIONS = {"maps": 256, "wgrad": 128}       # of a tile
MOST_TAPS = 9                                 # of a filter, that a block of wgrad has in registers
MOST_LINES = 0x7fff                           # of an output: GroupedRow in grouped.cuh
STATIC = 6 << 10                              # bytes of shared memory that a block has beside patches and filters
SHAPE_ARGS = ", ".join(f"i32 {name}" for name in (
    "images", "in_h", "in_w", "in_c", "out_h", "out_w", "out_c", "filter_taps", "in_group", "out_group", "tile_in",
    "tile_out", "chunks", "k_steps", "turned"))
MAPS_ARGS = f"ptr in, ptr w, ptr bias, ptr out, ptr classes, {SHAPE_ARGS}, i32 patch_size, i32 relu, i32 unused"
BACK_ARGS = "ptr x, ptr g, ptr slices, ptr classes, ptr pieces"
WGRAD_ARGS = f"{BACK_ARGS}, {SHAPE_ARGS}, i32 patch_size, i32 pieces, i32 out_chunks, i32 unused"
SUM_ARGS = f"{BACK_ARGS}, ptr dw, {SHAPE_ARGS}, i32 pieces, i32 tiles, i32 blocks, i32 unused"


# ---- channels --------------------------------------------------------------------------------------------------------
class Channels(NamedTuple):
    """How channels are cut into tiles of whole groups."""

    tile_in: int   # channels of a tile, of the map that is read
    tile_out: int  # of the other map
    tiles: int
    chunks: int    # 16-byte chunks of a pixel of a patch, an even number
    k_steps: int   # of mma.sync, for a piece of 16 outputs

    @property
    def pieces(self) -> int:
        return ceil_div(self.tile_out, PIECE)


@lru_cache(maxsize=256)
def channels_of(groups: int, in_group: int, out_group: int, itemsize: int, most_out: int) -> Channels | None:
    """Returns the tiles of most groups, or None where none begins at 16 bytes of both maps and fits."""
    each = 16 // itemsize
    unit = max(each // gcd(each, in_group), each // gcd(each, out_group))  # groups up to a multiple of 16 bytes of both
    if groups % unit:
        return None
    held = min(groups, (ROW // itemsize) // in_group // unit * unit, most_out // out_group // unit * unit)
    if not held:
        return None
    tile_in, tile_out, step = held * in_group, held * out_group, 2 * each
    chunks = ceil_div(tile_in, step) * 2
    spans = [(p // out_group * in_group // step,
              ceil_div(((min(p + PIECE, tile_out) - 1) // out_group + 1) * in_group, step))
             for p in range(0, tile_out, PIECE)]
    return Channels(tile_in, tile_out, ceil_div(groups, held), chunks, max(end - start for start, end in spans))


def pieces_of(desc: ConvDesc, channels: Channels) -> np.ndarray:
    """Returns int32 (pieces, 2): blocks of 16 channels of g and of x that have a group in common."""
    icg, ocg = desc.ic // desc.groups, desc.oc // desc.groups
    pairs = {(group * ocg // PIECE + a, group * icg // PIECE + b) for group in range(channels.tile_in // icg)
             for a in range((group * ocg + ocg - 1) // PIECE - group * ocg // PIECE + 1)
             for b in range((group * icg + icg - 1) // PIECE - group * icg // PIECE + 1)}
    return np.array(sorted(pairs), np.int32)


# ---- positions -------------------------------------------------------------------------------------------------------
class Line(NamedTuple):
    """Positions of one axis that read the same taps, as GroupedClass of grouped.cuh has them."""

    first: int   # position, and from one to the next
    step: int
    count: int
    start: int   # pixel that the first position reads at the first tap; pixels from a position to the next
    move: int
    taps: int    # number; pixels from one to the next
    tap: int
    w: int       # the first one's number in the filter, and from one to the next
    w_step: int


def fprop_line(a: Axis) -> Line:
    return Line(0, 1, a.o, -a.p, a.s, a.f, a.d, 0, 1)


def dgrad_lines(a: Axis) -> list[Line]:
    """Returns a line for each residue of the stride that has positions; one without taps is zeros."""
    lines, leap = [], a.s // gcd(a.s, a.d)
    for first in range(min(a.s, a.i)):
        taps = [t for t in range(a.f) if (first + a.p - t * a.d) % a.s == 0]
        last = taps[-1] if taps else 0
        lines.append(Line(first, a.s, ceil_div(a.i - first, a.s), (first + a.p - last * a.d) // a.s, 1, len(taps),
                          leap * a.d // a.s, last, -leap))
    return lines


class Cut(NamedTuple):
    """A class of positions and its tiles."""

    h: Line
    w: Line
    height: int   # of a tile
    width: int
    images: int
    lines: int    # of its patch, of an image
    columns: int
    tiles: int

    @property
    def pixels(self) -> int:
        return self.images * self.lines * self.columns

    def numbers(self, taps_w: int) -> tuple[int, ...]:
        """Returns the integers of GroupedClass."""
        h, w = self.h, self.w
        return (h.first, w.first, h.step, w.step, h.count, w.count, h.start, w.start, h.move, w.move, h.taps, w.taps,
                h.tap, w.tap, h.w * taps_w + w.w, h.w_step * taps_w, w.w_step, self.height, self.width, self.images,
                ceil_div(h.count, self.height), ceil_div(w.count, self.width), self.tiles, self.lines, self.columns)


def _reach(line: Line, positions: int) -> int:
    return (positions - 1) * line.move + max(0, line.taps - 1) * line.tap + 1


class Work(NamedTuple):
    """What a block does with a tile: positions at most, of which a warp multiplies `rows` at a time in `parts`; by
    estimate instructions of a warp for such rows, beside those for copies."""

    positions: int
    rows: int
    parts: int
    each: int


PER_PIXEL, PER_TILE = 6 / WARPS, 300  # instructions of a warp: to copy a pixel, to begin a tile


@lru_cache(maxsize=1024)
def cut(n: int, h: Line, w: Line, work: Work, most_pixels: int) -> Cut | None:
    """Returns the tiles that take the least instructions; None where no patch is small enough."""
    best, least = None, float("inf")
    for width in {min(w.count, k) for k in (*range(1, 9), 10, 12, 14, 16, 20, 24, 28, 32, 48, 64, 128, 256, w.count)}:
        for height in {min(h.count, k) for k in (*range(1, 17), 20, 24, 28, 32, 64, 128, 256, h.count)}:
            if width * height > work.positions:
                continue
            lines, columns = _reach(h, height), _reach(w, width)
            whole = height == h.count and width == w.count
            most = min(n, work.positions // (width * height), most_pixels // (lines * columns)) if whole else 1
            for images in {max(1, most), max(1, most // 2)}:
                tiles = ceil_div(n, images) * ceil_div(h.count, height) * ceil_div(w.count, width)
                pixels = images * lines * columns
                turns = ceil_div(ceil_div(images * height * width, work.rows), work.parts)
                cost = tiles * (PER_PIXEL * pixels + work.each * turns + PER_TILE)
                if pixels <= most_pixels and cost < least:
                    best, least = Cut(h, w, height, width, images, lines, columns, tiles), cost
    return best


# ---- candidates ------------------------------------------------------------------------------------------------------
class _Grouped(Candidate):
    """What the three passes have in common."""

    blocks = 2     # resident on a multiprocessor, as registers allow
    pitch = PITCH

    def __init__(self, pass_name: str, mode: Precision) -> None:
        self.pass_name, self.mode, self.precisions = pass_name, mode, (mode.name,)
        self.needs = needs_of(mode)
        self.reads = mode.dtype
        self.writes = "float32" if pass_name == "wgrad" else mode.dtype
        self.itemsize = ITEMSIZE[mode.dtype]
        self.name = f"conv_grouped_{pass_name} {mode.name}"

    def channels(self, desc: ConvDesc) -> Channels | None:
        icg, ocg = desc.ic // desc.groups, desc.oc // desc.groups
        read, written = (ocg, icg) if self.pass_name == "dgrad" else (icg, ocg)
        most = ROW // self.itemsize if self.pass_name == "wgrad" else 64
        return channels_of(desc.groups, read, written, self.itemsize, most)

    def cuts(self, desc: ConvDesc) -> list[Cut] | None:
        """Returns the classes with their tiles, or None where a patch does not fit into shared memory."""
        channels = self.channels(desc)
        assert channels
        if self.pass_name == "dgrad":
            lines = [(h, w) for h in dgrad_lines(desc.h) for w in dgrad_lines(desc.w)]
        else:
            lines = [(fprop_line(desc.h), fprop_line(desc.w))]
        work = self.work(desc, channels)
        for blocks in (self.blocks, 1):  # smaller tiles, else fewer blocks
            room = (context.max_shared + 1024) // blocks - STATIC - self._fixed(desc, channels)
            found = [cut(desc.n, h, w, work, room // (2 * self.pitch)) for h, w in lines] if room > 0 else [None]
            if all(found) and (blocks == 1 or min(c.height * c.width * c.images for c in found if c)
                               >= min(64, desc.n * desc.h.o * desc.w.o)):
                return found  # type: ignore[return-value]
        return None

    def _fixed(self, desc: ConvDesc, channels: Channels) -> int:
        """Returns the bytes of shared memory beside the two patches."""
        raise NotImplementedError

    def work(self, desc: ConvDesc, channels: Channels) -> Work:
        raise NotImplementedError

    def rejection(self, desc: ConvDesc) -> str | None:
        icg, ocg = desc.ic // desc.groups, desc.oc // desc.groups
        if lacking := lacks(self.needs):
            return lacking
        if desc.groups == 1:
            return "one group, several are served"
        if not self.channels(desc):
            return (f"groups of {icg} -> {ocg} channels do not come together in tiles of {ROW} bytes "
                    f"that begin at multiples of 16")
        if max(desc.h.o, desc.w.o, desc.h.i, desc.w.i) >= MOST_LINES:
            return f"maps of {desc.h.i}x{desc.w.i}, edges of less than {MOST_LINES} are served"
        if not self.cuts(desc):
            return "the pixels that a tile reads do not fit into shared memory"
        return oversized(desc)

    def cost(self, desc: ConvDesc) -> Cost:
        c, channels, cuts = device().table.grouped, self.channels(desc), self.cuts(desc)
        assert channels and cuts
        key = "wgrad" if self.pass_name == "wgrad" else "maps"
        blocks = (len(pieces_of(desc, channels)) if key == "wgrad" else channels.pieces * channels.k_steps)
        work, most = self.work(desc, channels), max(1, device().sm_count * self.blocks // (channels.tiles * len(cuts)))
        products = 0  # of 16 rows, with those of parts that have nothing to do
        for each in cuts:
            turns = ceil_div(ceil_div(each.images * each.height * each.width, work.rows), work.parts)
            tiles = ceil_div(each.tiles, min(each.tiles, most)) * min(each.tiles, most)
            products += turns * work.parts * work.rows // 16 * tiles * each.h.taps * each.w.taps
        products = products * channels.tiles * blocks * (c.classes if len(cuts) > 1 else 1)
        clocks = products * c.clocks[key, self.mode.timed_as].clocks / device().sm_count
        if key == "maps":   # filters, brought into place by each block
            clocks += self._fixed(desc, channels) / 4 * c.word_clocks * self.blocks
        return Cost((Stage(clocks, "clocks", desc.nbytes(self.itemsize) / c.dram[key], "dram", c.depth[key],
                           c.launches[key], c.seen),))

    def least_us(self, desc: ConvDesc) -> float:
        return desc.nbytes(self.itemsize) / device().dram

    def sizes(self, desc: ConvDesc, channels: Channels) -> tuple[int, ...]:
        """Returns the integers of GroupedShape."""
        icg, ocg, back = desc.ic // desc.groups, desc.oc // desc.groups, self.pass_name == "dgrad"
        (n, *read, _), (_, *written, _) = (desc.y_shape, desc.x_shape) if back else (desc.x_shape, desc.y_shape)
        read_c, written_c, in_group, out_group = (desc.oc, desc.ic, ocg, icg) if back else (desc.ic, desc.oc, icg, ocg)
        return (n, *read, read_c, *written, written_c, desc.h.f * desc.w.f, in_group, out_group, channels.tile_in,
                channels.tile_out, channels.chunks, channels.k_steps, int(back))

    def resident(self, shared: int) -> int:
        return max(1, min(self.blocks, (context.max_shared + 1024) // (shared + STATIC)))


class GroupedMaps(_Grouped):
    """conv_grouped in a mode: fprop or dgrad."""

    def __init__(self, pass_name: str, mode: Precision) -> None:
        super().__init__(pass_name, mode)
        self.kernel(0)  # declares the module, for those that are built ahead

    def kernel(self, shared: int) -> Kernel:
        return Kernel("conv_grouped.cu", "conv_grouped", MAPS_ARGS, threads=THREADS, shared=shared,
                      needs=self.needs, defines=defines_of(self.mode))

    def _fixed(self, desc: ConvDesc, channels: Channels) -> int:
        return channels.pieces * desc.h.f * desc.w.f * channels.k_steps * 512

    def work(self, desc: ConvDesc, channels: Channels) -> Work:
        steps = desc.h.f * desc.w.f * channels.k_steps // (desc.h.s * desc.w.s if self.pass_name == "dgrad" else 1)
        wide = self.itemsize == 4
        each = 200 + 60 * steps if wide else 400 + 28 * steps
        return Work(POSITIONS["maps"], 32 if wide else 64, WARPS // channels.pieces, each)

    def prepare(self, desc: ConvDesc) -> Launch:
        channels, cuts = self.channels(desc), self.cuts(desc)
        assert channels and cuts
        patch = max(c.pixels for c in cuts) * PITCH
        shared = 2 * patch + self._fixed(desc, channels)
        kernel = self.kernel(shared)
        classes = upload(np.array([c.numbers(desc.w.f) for c in cuts], np.int32))
        most = ceil_div(context.sm_count * self.resident(shared), channels.tiles * len(cuts))
        grid = min(max(c.tiles for c in cuts), most), channels.tiles, len(cuts)
        sizes = (*self.sizes(desc, channels), patch // self.itemsize)

        def launch(x: Array, w: Array, y: Array, epilogue: Epilogue = NOTHING) -> None:
            b, relu = epilogue
            kernel(grid, x, as_float32(w), b, y, classes, *sizes, relu, 0)
        return launch


class GroupedWgrad(_Grouped):
    """conv_grouped_wgrad in a mode."""

    def __init__(self, mode: Precision) -> None:
        super().__init__("wgrad", mode)
        self.blocks, self.pitch = (1, PITCH_OF_SINGLE) if self.itemsize == 4 else (2, PITCH)
        for taps in (1, MOST_TAPS):
            self.kernels(taps, 0)  # declares the modules, for those that are built ahead

    def kernels(self, taps: int, shared: int) -> tuple[Kernel, Kernel]:
        """Returns the kernel that makes slices, and the one that adds them up."""
        defines = {**defines_of(self.mode), "TAPS": taps, "SINGLE": int(self.itemsize == 4)}
        return (Kernel("conv_grouped_wgrad.cu", "conv_grouped_wgrad", WGRAD_ARGS, threads=THREADS, shared=shared,
                       needs=self.needs, defines=defines),
                Kernel("conv_grouped_wgrad.cu", "grouped_sum", SUM_ARGS, threads=512, needs=self.needs,
                       defines=defines))

    def _fixed(self, desc: ConvDesc, channels: Channels) -> int:
        return 2 * POSITIONS["wgrad"] * self.pitch

    def work(self, desc: ConvDesc, channels: Channels) -> Work:
        splits = WARPS // min(WARPS, len(pieces_of(desc, channels)))
        each = 20 + (70 if self.itemsize == 4 else 20) * min(MOST_TAPS, desc.h.f * desc.w.f)
        return Work(POSITIONS["wgrad"], 16, splits, each)

    def prepare(self, desc: ConvDesc) -> Launch:
        channels, cuts = self.channels(desc), self.cuts(desc)
        assert channels and cuts
        (cut,), table, taps = cuts, pieces_of(desc, channels), desc.h.f * desc.w.f
        held = 1 if taps == 1 else MOST_TAPS
        patch, pieces = cut.pixels * self.pitch, len(table)
        shared = 2 * patch + self._fixed(desc, channels)
        kernel, add_up = self.kernels(held, shared)
        parts = ceil_div(pieces, WARPS) * ceil_div(taps, held)
        blocks = min(cut.tiles, max(1, context.sm_count * self.resident(shared) // (channels.tiles * parts)))
        classes, pairs = upload(np.array([cut.numbers(desc.w.f)], np.int32)), upload(table)
        in_chunks, out_chunks = (ceil_div(tile, PIECE) * PIECE * self.itemsize // 16    # of whole pieces
                                 for tile in (channels.tile_in, channels.tile_out))
        sizes = self.sizes(desc, channels._replace(chunks=in_chunks))
        most_splits = WARPS // min(WARPS, pieces - (pieces - 1) // WARPS * WARPS)
        work_size = blocks * most_splits * channels.tiles * pieces * taps * PIECE * PIECE
        count = ceil_div(desc.oc * taps * (desc.ic // desc.groups), 32)

        def launch(x: Array, g: Array, dw: Array) -> None:
            work = empty((work_size,), "float32")
            kernel((blocks, channels.tiles, parts), x, g, work, classes, pairs, *sizes, patch // self.itemsize, pieces,
                   out_chunks, 0)
            add_up(count, x, g, work, classes, pairs, dw, *sizes, pieces, channels.tiles, blocks, 0)
        return launch


CANDIDATES = (*(GroupedMaps(pass_name, mode) for pass_name in ("fprop", "dgrad") for mode in MODES),
              *map(GroupedWgrad, MODES))
