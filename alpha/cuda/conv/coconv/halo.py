"""Contextual convolution by conv_coconv.cu and conv_coconv_wgrad.cu: tiles of 8 x 8 pixels, whose halo is copied once
for all levels.  The filter gradient takes a launch for all levels, and one that adds."""

from __future__ import annotations

from math import gcd, prod
from typing import Any, NamedTuple

import numpy as np

from alpha.core.precision import Precision
from alpha.cuda.conv import wgmma
from alpha.cuda.conv.costs import device
from alpha.cuda.conv.ffma.sk_dilated import sum_of
from alpha.cuda.conv.schedule import oversized
from alpha.cuda.conv.wgmma import BF16, CONSUMERS, FP16, FP32, SHARED_BYTES, TF32, THREADS, OnOperands, Run
from alpha.cuda.lazy import EXACT_ARGS, READS, UNFLAGGED, Operand, statistics
from alpha.cuda.ops.pointwise.epilogue import NOTHING, Epilogue
from alpha.cuda.runtime.context import ON_HOPPER
from alpha.cuda.runtime.kernel import C_TYPES, Kernel
from alpha.cuda.runtime.memory import ITEMSIZE, Array, empty, upload
from alpha.cuda.runtime.tensor_map import BLOCK, by_address, maps_argument, tensor_maps
from alpha.ops.coconv_desc import CoConvDesc
from alpha.ops.conv_desc import Shape, ceil_div
from alpha.plan import Cost, Stage

SIDE, CHUNK, STEP = 8, 64, 16  # pixels of a tile's side; channels of a block, and of a step of the product
MOST_STAGES, MOST_DILATION = 12, 255
TAPS, MOST_WGRAD_STAGES = 9, 6
SLOT = CHUNK * TAPS * CHUNK    # floats of a part: 64 channels of g, taps, 64 channels of x


class Tile(NamedTuple):
    """Columns of a tile, and tiles of each of a block's two consumers."""

    columns: int
    depth: int

    def __str__(self) -> str:
        return f"{self.depth}x64x{self.columns}"


class Fit(NamedTuple):
    """What a launch has: columns of one level, halos and blocks of filters in flight, pixels between rows of a halo."""

    unit: int
    halo_stages: int
    stages: int
    pitch: int
    held: bool


class Halo(OnOperands):
    """One tile in one mode and pass."""

    def __init__(self, pass_name: str, mode: Precision, tile: Tile) -> None:
        self.pass_name, self.mode, self.tile = pass_name, mode, tile
        self.reads, self.writes = mode.operand, mode.dtype
        self.name = f"conv_coconv {tile} {mode.operand} to {mode.dtype}"
        defines = {"ELEMENT": C_TYPES[mode.element], "TILE_N": tile.columns, "TILE_DEPTH": tile.depth,
                   "OPERAND_PLANES": mode.planes, "OUT": C_TYPES[mode.dtype]}
        self.kernel = Kernel(
            "conv_coconv.cu", f"conv_coconv_{pass_name}", f"{BLOCK} maps, ptr b, ptr scale_in, ptr scale_w, "
            "ptr statistics, ptr dilations, i32 images, i32 height, i32 width, i32 channels, i32 columns, i32 side, "
            f"i32 reach, i32 unit, i32 halo_stages, i32 stages, i32 relu, i32 streams, {EXACT_ARGS}",
            threads=THREADS, shared=SHARED_BYTES, defines=defines, **ON_HOPPER)

    def rejection(self, desc: CoConvDesc) -> str | None:  # type: ignore[override]
        fit = refused(desc) or self.fit(desc)
        return fit if isinstance(fit, str) else None

    def fit(self, desc: CoConvDesc) -> Fit | str:
        """Returns how a launch is laid out, or why there is no room."""
        tile, planes, side, levels = self.tile, self.mode.planes, desc.w_shape[1], desc.levels
        unit = gcd(tile.columns, *(first for first, _ in levels)) if self.pass_name == "fprop" else tile.columns
        if unit < tile.columns // 4:
            return f"levels begin at {[first for first, _ in levels]}, it takes {tile.columns // 4} at a time"
        pitch = SIDE + (side - 1) * max(level.h.d for _, level in levels)
        halos = CONSUMERS * tile.depth * planes * ceil_div(pitch * pitch * CHUNK * 2, 1024) * 1024
        of_block, room = planes * tile.columns * CHUNK * 2, SHARED_BYTES - CONSUMERS * wgmma.BOX_BYTES
        (*_, channels), (*_, columns) = self._shapes(desc)
        blocks = side * side * ceil_div(channels, CHUNK)
        whole = columns <= tile.columns and blocks <= MOST_STAGES  # all filters stay, if they have room
        for halo_stages, least in ((2, blocks if whole else 3), (1, 2)):
            left = (room - halo_stages * halos) // of_block
            if left >= least and pitch <= 256:
                stages = min(left, MOST_STAGES, blocks)
                return Fit(unit, halo_stages, stages, pitch, whole and stages == blocks)
        return f"halos of {pitch} x {pitch} pixels take {halos} bytes of {room}, a block of filters {of_block}"

    def _shapes(self, desc: CoConvDesc) -> tuple[Shape, Shape]:
        """Returns those of what is read and of what is written."""
        return (desc.x_shape, desc.y_shape) if self.pass_name == "fprop" else (desc.y_shape, desc.x_shape)

    def _items(self, desc: CoConvDesc) -> int:
        read, (*_, columns) = self._shapes(desc)
        return ceil_div(tiles_of(read), CONSUMERS * self.tile.depth) * ceil_div(columns, self.tile.columns)

    def cost(self, desc: CoConvDesc) -> Cost:  # type: ignore[override]
        fit, tile, planes, on = self.fit(desc), self.tile, self.mode.planes, device()
        assert isinstance(fit, Fit)
        c, (read, written), items = on.table.coconv, self._shapes(desc), self._items(desc)
        chunks = ceil_div(read[3], CHUNK)
        blocks = desc.w_shape[1] ** 2 * chunks
        width = fit.unit if self.pass_name == "fprop" else tile.columns
        of_tile = blocks * _block_clocks(c, planes, width, tile.columns) + c.end_clocks
        clocks = ceil_div(items, on.sm_count) * (CONSUMERS * tile.depth * of_tile + c.item_clocks)
        halos = CONSUMERS * tile.depth * fit.pitch ** 2 * CHUNK * 2 * chunks
        filters = 0 if fit.held else blocks * tile.columns * CHUNK * 2
        copied = items * planes * (halos + filters) / on.l2
        moved = prod(written) * ITEMSIZE[self.writes] + prod(read) * 2 * planes
        return Cost((Stage(max(clocks / on.rate("clocks"), copied), nbytes=moved, depth=c.depth, launches=1,
                           seen=c.seen),))

    def on_operands(self, desc: CoConvDesc) -> Run:
        """Returns the launch that takes what the tensor cores read, (x or g, w, output, epilogue)."""
        fit, fprop, (in_shape, out_shape) = self.fit(desc), self.pass_name == "fprop", self._shapes(desc)
        assert isinstance(fit, Fit)
        of_row, each = (self.tile.columns, fit.unit) if fprop else (CHUNK, STEP)
        table, grid = upload(dilations_of(desc, of_row, each)), min(device().sm_count, self._items(desc))
        sizes = (*in_shape, out_shape[3], desc.w_shape[1], (fit.pitch - SIDE) // 2, fit.unit, fit.halo_stages,
                 fit.stages)
        streams = prod(out_shape) * ITEMSIZE[self.writes] > wgmma.STREAMED_BYTES
        halo = (CHUNK, fit.pitch, fit.pitch, 1)
        box = (wgmma.OUT_ROW // ITEMSIZE[self.writes], SIDE, SIDE, 1)
        filters = ((CHUNK, 1, 1, self.tile.columns if fprop else CHUNK, 1),)
        element, planes = self.mode.element, self.mode.planes

        @by_address
        def maps(x_ptr: int, w_ptr: int, y_ptr: int) -> bytes:
            return maps_argument(
                image_map(x_ptr, element, in_shape, planes, halo)
                + wgmma.filter_maps(w_ptr, element, desc.w_shape, planes, 1, wgmma.ALONE, filters)
                + image_map(y_ptr, self.writes, out_shape, 1, box))[0]

        def run(x: Operand, w: Operand, y: Array, epilogue: Epilogue = NOTHING,
                exact: tuple[Any, ...] = UNFLAGGED) -> None:
            b, relu = epilogue
            parts = statistics.attach(y, CONSUMERS * grid) if fprop else None
            self.kernel(grid, maps(x.ptr, w.ptr, y.ptr), b, x.scale, w.scale, parts, table, *sizes, relu, streams,
                        *exact, 0)
        return run


def refused(desc: CoConvDesc) -> str | None:
    """Returns why no kernel that copies halos computes desc on this device, or None."""
    one = desc.levels[0][1]
    if reason := wgmma.refusal(one) or oversized(desc):
        return reason
    if one.groups > 1 or (one.h.s, one.w.s) != (1, 1) or one.h.f != one.w.f:
        return (f"{one.groups} groups, stride {one.h.s, one.w.s}, kernel {one.h.f, one.w.f}: it has one group, moves "
                "by one, and its kernel is square")
    if max(level.h.d for _, level in desc.levels) > MOST_DILATION:
        return f"a dilation above {MOST_DILATION}"
    if any(first % STEP for first, _ in desc.levels) or desc.y_shape[3] % 8:
        return f"levels begin at {[first for first, _ in desc.levels]}, it takes {STEP} channels at a time"
    return None


def image_map(ptr: int, dtype: str, shape: Shape, planes: int, box: Shape) -> bytes:
    """Returns a map (channel, pixel, row, image of a plane)."""
    n, h, w, channels = shape
    pixel = channels * ITEMSIZE[dtype]
    return tensor_maps(ptr, dtype, [(channels, w, h, n * planes)], [box], (pixel, w * pixel, h * w * pixel))


def tiles_of(shape: Shape) -> int:
    """Returns the tiles of 8 x 8 pixels of a tensor."""
    n, h, w, _ = shape
    return n * ceil_div(h, SIDE) * ceil_div(w, SIDE)


def dilations_of(desc: CoConvDesc, of_row: int, each: int) -> np.ndarray:
    """Returns the dilations of y's channels, a byte for `each` of them and 8 bytes for `of_row`; beyond the last, 0."""
    of_channel = np.concatenate([np.full(level.oc, level.h.d, np.uint8) for _, level in desc.levels])
    rows = np.pad(of_channel, (0, -len(of_channel) % of_row)).reshape(-1, of_row)[:, ::each]
    return np.pad(rows, ((0, 0), (0, 8 - rows.shape[1]))).ravel().view(np.int32)


def _block_clocks(c: Any, planes: int, width: int, columns: int) -> float:
    """Returns the clocks of the products of 64 rows, 64 of the sum and so many columns, in products of `width` of them.

    c: the constants.
    """
    products = planes * (planes + 1) // 2
    return 4 * products * max(width / 2, c.a_clocks + width / c.b_columns) * columns / width * c.busy[planes]


# ---- the filter gradient ---------------------------------------------------------------------------------------------
class Cut(NamedTuple):
    """How a launch is laid out: channels of a unit, pixels between rows of a halo, halos in flight; 64 channels of x
    and of g each, and among how many blocks the pixels of such a part are divided."""

    unit: int
    pitch: int
    stages: int
    x_chunks: int
    parts: int
    slices: int


class HaloWgrad(OnOperands):
    """The kernel that reads one kind of operands.  It writes float32."""

    pass_name = "wgrad"

    def __init__(self, reads: str) -> None:
        self.reads, self.planes = reads, READS[reads].planes
        self.name = f"conv_coconv_wgrad {reads} to float32"
        defines = {"ELEMENT": C_TYPES[READS[reads].dtype], "OPERAND_PLANES": self.planes}
        self.kernel = Kernel(
            "conv_coconv_wgrad.cu", "conv_coconv_wgrad", f"{BLOCK} maps, ptr slots, ptr scale_x, ptr scale_g, "
            "ptr dilations, i32 images, i32 height, i32 width, i32 x_chunks, i32 parts, i32 reach, i32 unit, "
            f"i32 stages, i32 x_channels, i32 g_channels, {EXACT_ARGS}",
            threads=THREADS, shared=SHARED_BYTES, defines=defines, **ON_HOPPER)

    def rejection(self, desc: CoConvDesc) -> str | None:  # type: ignore[override]
        if reason := refused(desc):
            return reason
        if desc.w_shape[1] != 3:
            return f"a kernel of {desc.w_shape[1]}x{desc.w_shape[2]}, it computes 3x3"
        cut = self.cut(desc)
        return None if cut.stages > 1 else f"halos of {cut.pitch} x {cut.pitch} pixels do not fit twice"

    def cut(self, desc: CoConvDesc) -> Cut:
        """Returns how a launch is laid out; of a halo without room, with too few stages."""
        unit = gcd(CHUNK // self.planes, *(first for first, _ in desc.levels))
        pitch = SIDE + 2 * max(level.h.d for _, level in desc.levels)
        buffer = self.planes * (ceil_div(pitch * pitch * CHUNK * 2, 1024) * 1024 + CHUNK * CHUNK * 2)
        x_chunks = ceil_div(desc.x_shape[3], CHUNK)
        parts = x_chunks * ceil_div(desc.y_shape[3], CHUNK)
        slices = max(1, min(device().sm_count // parts, tiles_of(desc.x_shape)))
        return Cut(unit, pitch, min(MOST_WGRAD_STAGES, SHARED_BYTES // buffer), x_chunks, parts, slices)

    def cost(self, desc: CoConvDesc) -> Cost:  # type: ignore[override]
        cut, planes, on, tiles = self.cut(desc), self.planes, device(), tiles_of(desc.x_shape)
        c, width = on.table.coconv, CHUNK if cut.unit == CHUNK else min(cut.unit, CHUNK // CONSUMERS)
        of_tile = TAPS * _block_clocks(c, planes, width, CHUNK) * (c.taps if width == CHUNK else 1) + c.tile_clocks
        waves = ceil_div(cut.parts * cut.slices, on.sm_count)
        clocks = waves * (ceil_div(tiles, cut.slices) * of_tile + c.slot_clocks)
        copied = cut.parts * tiles * planes * (cut.pitch ** 2 + SIDE ** 2) * CHUNK * 2 / on.l2
        moved = 2 * planes * (prod(desc.x_shape) + prod(desc.y_shape))
        added = Stage(nbytes=2 * 4 * SLOT * cut.parts * cut.slices, level="l2", depth=c.depth, launches=1)
        return Cost((Stage(max(clocks / on.rate("clocks"), copied), nbytes=moved, depth=c.depth, launches=1,
                           seen=c.seen), added))

    def on_operands(self, desc: CoConvDesc) -> Run:
        """Returns the launch that takes what the tensor cores read, (x, g, dw)."""
        cut, (*pixels, ic), oc = self.cut(desc), desc.x_shape, desc.y_shape[3]
        table = upload(dilations_of(desc, CHUNK, cut.unit))
        add_up = sum_of([
            (part * cut.slices, cut.slices, g * CHUNK * TAPS * ic + x * CHUNK, min(CHUNK, oc - g * CHUNK) * TAPS,
             min(CHUNK, ic - x * CHUNK))
            for part in range(cut.parts) for g, x in [divmod(part, cut.x_chunks)]], CHUNK * TAPS, CHUNK, ic)
        sizes = *pixels, cut.x_chunks, cut.parts, (cut.pitch - SIDE) // 2, cut.unit, cut.stages, ic, oc
        grid, halo, box = cut.parts * cut.slices, (CHUNK, cut.pitch, cut.pitch, 1), (CHUNK, SIDE, SIDE, 1)

        @by_address
        def maps(x_ptr: int, g_ptr: int, dtype: str) -> bytes:
            return maps_argument(image_map(x_ptr, dtype, desc.x_shape, self.planes, halo)
                                 + image_map(g_ptr, dtype, desc.y_shape, self.planes, box))[0]

        def run(x: Operand, g: Operand, dw: Array, exact: tuple[Any, ...] = UNFLAGGED) -> None:
            slots = empty((grid * SLOT,), "float32")
            self.kernel(grid, maps(x.ptr, g.ptr, x.dtype), slots, x.scale, g.scale, table, *sizes, *exact, 0)
            add_up(slots, dw)
        return run


TILES = {FP32: (Tile(64, 1), Tile(128, 1)),
         **{mode: (Tile(64, 1), Tile(128, 2)) for mode in (TF32, BF16, FP16)}}
CANDIDATES = (*(Halo(pass_name, mode, tile) for pass_name in ("fprop", "dgrad") for mode, tiles in TILES.items()
                for tile in tiles), *map(HaloWgrad, READS))
