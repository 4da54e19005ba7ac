"""Depthwise convolution with filters of 3x3, 5x5 or 7x7 and stride 1 or 2, in any dtype: conv_depthwise_strip.cu."""

from __future__ import annotations

from alpha.cuda.conv.costs import Cost, Stage, device
from alpha.cuda.conv.depthwise import BLOCKS, LANES, SUM
from alpha.cuda.conv.planner import Candidate, Launch, precision_of
from alpha.cuda.conv.schedule import oversized
from alpha.cuda.ops.pointwise import as_float32
from alpha.cuda.ops.pointwise.epilogue import NOTHING, Epilogue
from alpha.cuda.runtime.context import context
from alpha.cuda.runtime.kernel import FLOAT_DTYPES, per_dtype
from alpha.cuda.runtime.memory import ITEMSIZE, Array, empty
from alpha.ops.conv_desc import ConvDesc, ceil_div

THREADS, STRIP, VECTOR = 128, 4, 2    # of conv_depthwise_strip.cu
ROWS = 8                # lines of a strip, more or less: those above and below are read by two
FILTERS, STRIDES = (3, 5, 7), (1, 2)
_CUT = "i32 strips, i32 parts, i32 per_line, i32 chunks, i32 rows, i32 height, i32 width"
_STRIPS = (f"ptr in, ptr w, ptr bias, ptr out, {_CUT}, i32 in_height, i32 in_width, i32 channels, i32 pad_h, "
           "i32 pad_w, i32 first, i32 lanes, i32 flipped, i32 relu")
_WGRAD = (f"ptr x, ptr g, ptr slices, {_CUT}, i32 in_height, i32 in_width, i32 channels, i32 pad_h, i32 pad_w, "
          "i32 lanes, i32 share")
_KERNELS = {(name, f, s): per_dtype("conv_depthwise_strip.cu", f"strip_{name}", args, threads=THREADS,
                                    defines={"F": f, "STRIDE": s})
            for f in FILTERS for s in STRIDES
            for name, args in (("gather", _STRIPS), ("scatter", _STRIPS), ("wgrad", _WGRAD))}


class Strip(Candidate):
    """A pass of a depthwise convolution, four neighbouring pixels of a line a thread."""

    def __init__(self, pass_name: str, dtype: str) -> None:
        self.pass_name, self.reads, self.writes = pass_name, dtype, "float32" if pass_name == "wgrad" else dtype
        self.name = f"depthwise_strip_{pass_name} {dtype}"
        if dtype != "float32":  # tf32 rounds float32 to float16, but here nobody does
            self.precisions = (precision_of(dtype),)

    def rejection(self, desc: ConvDesc) -> str | None:
        h, w = desc.h, desc.w
        if not desc.groups == desc.ic == desc.oc or desc.ic % VECTOR:
            return f"{desc.ic} -> {desc.oc} channels in {desc.groups} groups, not a multiple of 2, each by itself"
        if (h.f, h.s, h.d) != (w.f, w.s, w.d) or h.f not in FILTERS or h.s not in STRIDES or h.d > 1:
            return f"filters of {h.f}x{w.f}, strides {h.s}, {w.s}, dilations {h.d}, {w.d}"
        return oversized(desc)

    def cost(self, desc: ConvDesc) -> Cost:
        c = device().table.depthwise
        return Cost((Stage(desc.useful_flops / c.strips["fma"], "fma",
                           desc.nbytes(ITEMSIZE[self.reads]) / c.strips[self.pass_name], "dram", c.depth, c.launches),))

    def prepare(self, desc: ConvDesc) -> Launch:
        return self._wgrad(desc) if self.pass_name == "wgrad" else self._maps(desc)

    def _maps(self, desc: ConvDesc) -> Launch:
        h, w, back = desc.h, desc.w, self.pass_name == "dgrad"
        (n, height, width, c), (_, *read) = (desc.x_shape, desc.y_shape) if back else (desc.y_shape, desc.x_shape)
        scatter, flipped = back and h.s == 2, back and h.s == 1
        pads = (h.f - 1 - h.p, w.f - 1 - w.p) if flipped else (h.p, w.p)
        first = -(w.p % 2) if scatter else 0
        tiles, lanes = _lanes(c, VECTOR)
        cut = _cut(n, height, width, first, THREADS // lanes)
        blocks = min(cut[0] // (THREADS // lanes), ceil_div(4 * BLOCKS * context.sm_count, tiles))
        sizes = (*cut, *read[:2], c, *pads, first, lanes, flipped)
        kernel = _KERNELS["scatter" if scatter else "gather", h.f, h.s][self.reads]

        def launch(x: Array, weight: Array, y: Array, epilogue: Epilogue = NOTHING) -> None:
            b, relu = epilogue.known()
            kernel((blocks, tiles), x, as_float32(weight), b, y, *sizes, relu)
        return launch

    def _wgrad(self, desc: ConvDesc) -> Launch:
        h, w, c, taps = desc.h, desc.w, desc.ic, desc.h.f ** 2
        tiles, lanes = _lanes(c, VECTOR if h.f < 5 else 1)
        group = THREADS // lanes
        cut = _cut(desc.n, h.o, w.o, 0, group)
        resident = 5 - h.s if h.f == 3 else 4 if h.f == 5 else 3  # WGRAD_BLOCKS of the kernel: all run at once
        slices = max(1, min(resident * context.sm_count // tiles, cut[0] // group,
                            desc.nbytes(ITEMSIZE[self.reads]) // (8 * taps * c)))
        share = ceil_div(cut[0] // group, slices) * group
        slices = ceil_div(cut[0], share)
        sizes = (*cut, h.i, w.i, c, h.p, w.p, lanes, share)
        kernel = _KERNELS["wgrad", h.f, h.s][self.reads]

        def launch(x: Array, g: Array, dw: Array) -> None:
            parts = empty((slices, taps, c), "float32")
            kernel((slices, tiles), x, g, parts, *sizes)
            SUM(ceil_div(taps * c, LANES), parts, dw, slices, taps, c)
        return launch


def _cut(n: int, height: int, width: int, first: int, group: int) -> tuple[int, ...]:
    """Returns how maps are cut, as `Cut` in the kernel: strips of equally many lines, `group` of the same columns."""
    chunks, per_line = max(1, height // ROWS), ceil_div(width - first, STRIP)
    rows = ceil_div(height, chunks)
    chunks = ceil_div(height, rows)
    return ceil_div(n * chunks, group) * group * per_line, n * chunks, per_line, chunks, rows, height, width


def _lanes(channels: int, vector: int) -> tuple[int, int]:
    """Returns the tiles of channels, and the threads side by side in each: as equal as they can be."""
    groups = channels // vector
    tiles = ceil_div(groups, LANES)
    return tiles, ceil_div(groups, tiles)


CANDIDATES = tuple(Strip(name, dtype) for name in ("fprop", "dgrad", "wgrad") for dtype in FLOAT_DTYPES)
