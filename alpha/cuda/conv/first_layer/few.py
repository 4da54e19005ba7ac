"""First layers on FMA units: conv_few.cu. Of up to 8 outputs, as LeNet-5's; in float32, forward, of any number."""

from __future__ import annotations

from alpha.cuda.conv.costs import Cost, Stage, device
from alpha.cuda.conv.ffma.sk_dilated import sum_of
from alpha.cuda.conv.first_layer.stem import Tiles, channels_refusal, tiles_of
from alpha.cuda.conv.planner import Candidate, Launch, precision_of
from alpha.cuda.conv.schedule import oversized
from alpha.cuda.ops.pointwise import as_float32
from alpha.cuda.ops.pointwise.epilogue import NOTHING, Epilogue
from alpha.cuda.runtime.context import context
from alpha.cuda.runtime.kernel import FLOAT_DTYPES, Kernel
from alpha.cuda.runtime.memory import ITEMSIZE, Array, empty
from alpha.ops.conv_desc import ConvDesc, ceil_div

CHANNELS, MOST_CHANNELS = (1, 3), (1, 2, 3, 4)                  # of x: grey and colour; of float32 forward
TAPS, MOST, POSITIONS, FILTERS = 32, 8, 512, 3072               # of the kernels
THREADS = {"fprop": 128, "wgrad": 256}
BLOCKS = {"fprop": 4, "wgrad": 2}                               # on a multiprocessor
SPLIT, BANKS = 32, 32                                           # threads that share a sum; of shared memory
SHAPE_ARGS = ", ".join(f"i32 {name}" for name in (
    "ih", "iw", "oh", "ow", "oc", "fh", "fw", "stride_h", "stride_w", "pad_h", "pad_w", "dilation_h", "dilation_w",
    "tile_h", "tile_w", "tiles_h", "tiles_w", "lines", "pixels", "pitch"))


def pitch_of(desc: ConvDesc, line: int) -> int:
    """Returns the floats from a line to the next at which the taps of a warp meet least in a bank."""
    taps = [(tap // desc.w.f * desc.h.d, tap % desc.w.f * desc.w.d * desc.ic)
            for tap in range(min(TAPS, desc.h.f * desc.w.f))]
    return max(range(line, line + BANKS), key=lambda pitch: len({(h * pitch + w) % BANKS for h, w in taps}))


def blocks_of(tiles: int, most: int) -> int:
    """Returns the fewest blocks, at most `most`, of which none has more tiles than it must."""
    return ceil_div(tiles, ceil_div(tiles, max(1, most)))


class Few(Candidate):
    """few_fprop or few_wgrad of a dtype."""

    def __init__(self, pass_name: str, dtype: str) -> None:
        fprop = pass_name == "fprop"
        self.pass_name, self.name, self.reads = pass_name, f"few_{pass_name} {dtype}", dtype
        self.writes = dtype if fprop else "float32"
        self.precisions = None if dtype == "float32" else (precision_of(dtype),)
        self.serves_more = dtype == "float32" and fprop
        operands, relu = ("ptr x, ptr w, ptr b, ptr y", ", i32 relu") if fprop else ("ptr x, ptr g, ptr work", "")
        self.kernels = {ic: Kernel("conv_few.cu", f"few_{pass_name}_{dtype}",
                                   f"{operands}, {SHAPE_ARGS}, i32 tiles{relu}", threads=THREADS[pass_name],
                                   defines={"CHANNELS": ic})
                        for ic in (MOST_CHANNELS if self.serves_more else CHANNELS)}

    def rejection(self, desc: ConvDesc) -> str | None:
        if refused := channels_refusal(desc):
            return refused
        if not self.serves_more and (desc.ic not in CHANNELS or desc.oc > MOST):
            return f"{desc.ic} to {desc.oc} channels, 1 or 3 to at most {MOST} are served"
        if not self._tiles(desc) or MOST * desc.h.f * desc.w.f * desc.ic > FILTERS:
            return f"{desc.h.f}x{desc.w.f} taps of {desc.ic} channels do not fit into shared memory"
        return oversized(desc)

    def cost(self, desc: ConvDesc) -> Cost:
        taps, c = desc.h.f * desc.w.f, device().table.stem
        padded = ceil_div(desc.oc, MOST) * MOST / desc.oc
        if self.pass_name == "wgrad":
            padded *= ceil_div(taps, TAPS) * TAPS / taps
        flops = desc.useful_flops * padded / c.few[self.pass_name, desc.ic]
        launches = 2 if self.pass_name == "wgrad" else 1
        return Cost((Stage(flops, "fma", desc.nbytes(ITEMSIZE[self.reads]) / c.dram, "dram",
                           (2 * launches - 1) * c.depth, launches * c.launches, c.seen * (desc.oc > MOST)),))

    def sizes(self, desc: ConvDesc) -> tuple[int, ...]:
        """Returns the integers of FewShape, and how many tiles there are."""
        tiles, h, w = self._tiles(desc), desc.h, desc.w
        assert tiles, self.rejection(desc)
        return (h.i, w.i, h.o, w.o, desc.oc, h.f, w.f, h.s, w.s, h.p, w.p, h.d, w.d, *tiles[:-1],
                tiles.line // desc.ic, pitch_of(desc, tiles.line), desc.n * tiles.per_image)

    def _tiles(self, desc: ConvDesc) -> Tiles | None:
        return tiles_of(desc, POSITIONS, BANKS - 1, device().sm_count)

    def prepare(self, desc: ConvDesc) -> Launch:
        return self._fprop(desc) if self.pass_name == "fprop" else self._wgrad(desc)

    def _fprop(self, desc: ConvDesc) -> Launch:
        kernel, sizes = self.kernels[desc.ic], self.sizes(desc)
        columns = ceil_div(desc.oc, MOST)
        grid = blocks_of(sizes[-1], context.sm_count * BLOCKS["fprop"] // columns), columns

        def launch(x: Array, w: Array, y: Array, epilogue: Epilogue = NOTHING) -> None:
            b, relu = epilogue
            kernel(grid, x, as_float32(w), b, y, *sizes, relu)
        return launch

    def _wgrad(self, desc: ConvDesc) -> Launch:
        kernel, sizes, taps, columns = self.kernels[desc.ic], self.sizes(desc), desc.h.f * desc.w.f, TAPS * desc.ic
        chunks, depth = ceil_div(taps, TAPS), taps * desc.ic
        blocks = blocks_of(sizes[-1], context.sm_count * BLOCKS["wgrad"] // chunks)
        add_up = sum_of([(chunk * blocks, blocks, chunk * columns, desc.oc, min(columns, depth - chunk * columns))
                         for chunk in range(chunks)], MOST, columns, depth, SPLIT)

        def launch(x: Array, g: Array, dw: Array) -> None:
            work = empty((blocks * chunks * MOST * columns,), "float32")
            kernel((chunks, blocks), x, g, work, *sizes)
            add_up(work, dw)
        return launch


CANDIDATES = tuple(Few(pass_name, dtype) for pass_name in ("fprop", "wgrad") for dtype in FLOAT_DTYPES)
