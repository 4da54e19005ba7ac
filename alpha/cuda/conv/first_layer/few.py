"""First layers on FMA units: conv_few.cu. Forward of up to 8 outputs, as LeNet-5's, in float32 of any number.

The gradient of the filters serves up to 16 input channels, of any number of outputs: a 5x5 filter of 6 channels has 150
columns, and each of its taps just 6.
"""

from __future__ import annotations

from typing import NamedTuple

from alpha.cuda.conv.costs import device
from alpha.cuda.conv.ffma.sk_dilated import sum_of
from alpha.cuda.conv.first_layer.tiles import Tiles, channels_refusal, tiles_of
from alpha.cuda.conv.planner import Candidate, Launch, precision_of
from alpha.cuda.conv.schedule import oversized
from alpha.cuda.ops.pointwise import as_float32
from alpha.cuda.ops.pointwise.epilogue import NOTHING, Epilogue
from alpha.cuda.runtime.context import context
from alpha.cuda.runtime.kernel import FLOAT_DTYPES, Kernel
from alpha.cuda.runtime.memory import ITEMSIZE, Array, empty
from alpha.ops.conv_desc import ConvDesc, ceil_div
from alpha.plan import Cost, Stage

CHANNELS, ALL_CHANNELS, MOST_CHANNELS = (1, 3), (1, 2, 3, 4), 16  # of x: forward in 16 bits, in float32; of wgrad
COLUMNS, MOST, POSITIONS, FILTERS = 32, 8, 512, 3072            # of the kernels
GROUPS = (1, 2, 4)                                              # of MOST outputs, that a block of wgrad may have
THREADS, BLOCKS = 128, 4                                        # of a block; on a multiprocessor
BANKS = 32                                                      # of shared memory
SHAPE_ARGS = ", ".join(f"i32 {name}" for name in (
    "ih", "iw", "oh", "ow", "oc", "fh", "fw", "stride_h", "stride_w", "pad_h", "pad_w", "dilation_h", "dilation_w",
    "tile_h", "tile_w", "tiles_h", "tiles_w", "lines", "pixels", "pitch", "ic", "groups"))


def pitch_of(desc: ConvDesc, line: int, each: int, columns: int) -> int:
    """Returns the floats from a line to the next at which the columns of a warp, of `each` channels, meet least in a
    bank."""
    firsts = [(tap // desc.w.f * desc.h.d, tap % desc.w.f * desc.w.d * desc.ic + part)
              for tap in range(desc.h.f * desc.w.f) for part in range(0, desc.ic, each)][:columns]
    return max(range(line, line + BANKS), key=lambda pitch: len({(h * pitch + w) % BANKS for h, w in firsts}))


def blocks_of(tiles: int, most: int) -> int:
    """Returns the fewest blocks, at most `most`, of which none has more tiles than it must."""
    return ceil_div(tiles, ceil_div(tiles, max(1, most)))


class Cut(NamedTuple):
    """How a pass is cut: the channels of a column, the groups of outputs of a block, and tiles of each."""

    each: int
    groups: int
    columns: int  # tiles of columns, of wgrad
    outputs: int  # tiles of outputs

    @property
    def wide(self) -> int:
        """How many columns a tile has."""
        return COLUMNS // self.groups


def cut_of(pass_name: str, desc: ConvDesc) -> Cut:
    """Returns the cut of which fewest lanes have nothing to do."""
    if pass_name == "fprop":
        return Cut(desc.ic, 1, 1, ceil_div(desc.oc, MOST))
    each = next(each for each in reversed(ALL_CHANNELS) if desc.ic % each == 0)
    columns = desc.h.f * desc.w.f * desc.ic // each
    cuts = [Cut(each, groups, ceil_div(columns * groups, COLUMNS), ceil_div(desc.oc, groups * MOST))
            for groups in GROUPS]
    return min(cuts, key=lambda cut: cut.columns * cut.outputs)


class Few(Candidate):
    """few_fprop or few_wgrad of a dtype."""

    def __init__(self, pass_name: str, dtype: str) -> None:
        fprop = pass_name == "fprop"
        self.pass_name, self.name, self.reads = pass_name, f"few_{pass_name} {dtype}", dtype
        self.writes = dtype if fprop else "float32"
        self.precisions = None if dtype == "float32" else (precision_of(dtype),)
        self.narrow = fprop and dtype != "float32"  # which tensor cores do better
        operands, relu = ("ptr x, ptr w, ptr b, ptr y", ", i32 relu") if fprop else ("ptr x, ptr g, ptr work", "")
        self.kernels = {each: Kernel("conv_few.cu", f"few_{pass_name}_{dtype}",
                                     f"{operands}, {SHAPE_ARGS}, i32 tiles{relu}", threads=THREADS,
                                     defines={"CHANNELS": each})
                        for each in (CHANNELS if self.narrow else ALL_CHANNELS)}

    def rejection(self, desc: ConvDesc) -> str | None:
        fprop = self.pass_name == "fprop"
        if refused := channels_refusal(desc, ALL_CHANNELS[-1] if fprop else MOST_CHANNELS):
            return refused
        if self.narrow and (desc.ic not in CHANNELS or desc.oc > MOST):
            return f"{desc.ic} to {desc.oc} channels, 1 or 3 to at most {MOST} are served"
        if not self._tiles(desc) or (fprop and MOST * desc.h.f * desc.w.f * desc.ic > FILTERS):
            return f"{desc.h.f}x{desc.w.f} taps of {desc.ic} channels do not fit into shared memory"
        return oversized(desc)

    def cost(self, desc: ConvDesc) -> Cost:
        c, cut, fprop = device().table.stem, cut_of(self.pass_name, desc), self.pass_name == "fprop"
        padded, launches = cut.outputs * cut.groups * MOST / desc.oc, 1 if fprop else 2
        if not fprop:
            padded *= cut.columns * cut.wide * cut.each / (desc.h.f * desc.w.f * desc.ic)
        flops = desc.useful_flops * padded / c.few[self.pass_name, cut.each].rate
        return Cost((Stage(flops, "fma", desc.nbytes(ITEMSIZE[self.reads]) / c.dram, "dram",
                           (2 * launches - 1) * c.depth, launches * c.launches,
                           c.seen * (fprop and desc.oc > MOST)),))

    def sizes(self, desc: ConvDesc) -> tuple[int, ...]:
        """Returns the integers of FewShape, and how many tiles there are."""
        tiles, h, w, cut = self._tiles(desc), desc.h, desc.w, cut_of(self.pass_name, desc)
        assert tiles, self.rejection(desc)
        return (h.i, w.i, h.o, w.o, desc.oc, h.f, w.f, h.s, w.s, h.p, w.p, h.d, w.d, *tiles[:-1],
                tiles.line // desc.ic, pitch_of(desc, tiles.line, cut.each, cut.wide), desc.ic, cut.groups,
                desc.n * tiles.per_image)

    def _tiles(self, desc: ConvDesc) -> Tiles | None:
        cut = cut_of(self.pass_name, desc)
        blocks = max(1, device().sm_count * BLOCKS // (cut.columns * cut.outputs))
        return tiles_of(desc, POSITIONS // cut.groups, BANKS - 1, blocks)

    def prepare(self, desc: ConvDesc) -> Launch:
        return self._fprop(desc) if self.pass_name == "fprop" else self._wgrad(desc)

    def _fprop(self, desc: ConvDesc) -> Launch:
        kernel, sizes, columns = self.kernels[desc.ic], self.sizes(desc), cut_of("fprop", desc).outputs
        grid = blocks_of(sizes[-1], context.sm_count * BLOCKS // columns), columns

        def launch(x: Array, w: Array, y: Array, epilogue: Epilogue = NOTHING) -> None:
            b, relu = epilogue
            kernel(grid, x, as_float32(w), b, y, *sizes, relu)
        return launch

    def _wgrad(self, desc: ConvDesc) -> Launch:
        cut, sizes, depth = cut_of("wgrad", desc), self.sizes(desc), desc.h.f * desc.w.f * desc.ic
        kernel, rows, columns = self.kernels[cut.each], cut.groups * MOST, cut.wide * cut.each
        blocks = blocks_of(sizes[-1], context.sm_count * BLOCKS // (cut.columns * cut.outputs))
        add_up = sum_of([((k * cut.columns + j) * blocks, blocks, k * rows * depth + j * columns,
                          min(rows, desc.oc - k * rows), min(columns, depth - j * columns))
                         for k in range(cut.outputs) for j in range(cut.columns)], rows, columns, depth)

        def launch(x: Array, g: Array, dw: Array) -> None:
            work = empty((cut.outputs * cut.columns * blocks * rows * columns,), "float32")
            kernel((cut.columns, blocks, cut.outputs), x, g, work, *sizes)
            add_up(work, dw)
        return launch


CANDIDATES = tuple(Few(pass_name, dtype) for pass_name in ("fprop", "wgrad") for dtype in FLOAT_DTYPES)
