"""Depthwise convolution with filters of 3x3, 5x5 or 7x7 and stride 1 or 2, in any dtype: conv_depthwise_strip.cu."""

from __future__ import annotations

from alpha.cuda.conv.costs import Cost, Stage, device
from alpha.cuda.conv.depthwise import LANES, SUM
from alpha.cuda.conv.planner import Candidate, Launch, precision_of
from alpha.cuda.conv.schedule import oversized
from alpha.cuda.ops.pointwise import as_float32
from alpha.cuda.ops.pointwise.epilogue import NOTHING, Epilogue
from alpha.cuda.runtime.context import context
from alpha.cuda.runtime.kernel import FLOAT_DTYPES, per_dtype
from alpha.cuda.runtime.memory import ITEMSIZE, Array, empty
from alpha.ops.conv_desc import ConvDesc, ceil_div

THREADS, P, VECTOR = 128, 4, 2  # of conv_depthwise_strip.cu, as all of `_Shape`
# What a tile costs beside the strips that its threads compute, by estimate: reading a pixel, a last wave of blocks, the
# beginning of each; and runs of channels of fewer bytes, by the filter, which an H200's times decided.
READ, WAVE, BEGIN = 0.3, 0.5, 0.25
SHORT = {3: (0.5, 128), 5: (0.15, 64), 7: (0.15, 64)}
FILTERS, STRIDES = (3, 5, 7), (1, 2)
_CUT = ("i32 n, i32 height, i32 width, i32 images, i32 rows, i32 columns, i32 down, i32 across, i32 lanes, "
        "i32 first_h, i32 first_w, i32 in_height, i32 in_width, i32 channels, i32 pad_h, i32 pad_w")
_STRIPS = f"ptr in, ptr w, ptr bias, ptr out, {_CUT}, i32 flipped, i32 relu"
_WGRAD = f"ptr x, ptr g, ptr slices, {_CUT}, i32 tiles, i32 unused"
_KERNELS = {(name, f, s): per_dtype("conv_depthwise_strip.cu", f"strip_{name}", args, threads=THREADS,
                                    defines={"F": f, "STRIDE": s})
            for f in FILTERS for s in STRIDES
            for name, args in (("gather", _STRIPS), ("scatter", _STRIPS), ("wgrad", _WGRAD))
            if (name, s) != ("scatter", 1)}


class Strip(Candidate):
    """A pass of a depthwise convolution, in strips of four columns a thread."""

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
        firsts = (-(h.p % 2), -(w.p % 2)) if scatter else (0, 0)
        blocks, tiles, cut = _Shape(h.f, h.s, self.pass_name).cut(n, height - firsts[0], width - firsts[1], c,
                                                                  ITEMSIZE[self.reads])
        sizes = (n, height, width, *cut, *firsts, *read[:2], c, *pads, flipped)
        kernel = _KERNELS["scatter" if scatter else "gather", h.f, h.s][self.reads]

        def launch(x: Array, weight: Array, y: Array, epilogue: Epilogue = NOTHING) -> None:
            b, relu = epilogue
            kernel((blocks, tiles), x, as_float32(weight), b, y, *sizes, relu)
        return launch

    def _wgrad(self, desc: ConvDesc) -> Launch:
        h, w, c, taps = desc.h, desc.w, desc.ic, desc.h.f ** 2
        shape = _Shape(h.f, h.s, "wgrad")
        blocks, tiles, cut = shape.cut(desc.n, h.o, w.o, c, ITEMSIZE[self.reads])
        slices = max(1, min(shape.resident * context.sm_count // tiles, blocks,
                            desc.nbytes(ITEMSIZE[self.reads]) // (8 * taps * c)))
        slices = ceil_div(blocks, ceil_div(blocks, slices))
        sizes = (desc.n, h.o, w.o, *cut, 0, 0, h.i, w.i, c, h.p, w.p, blocks, 0)
        kernel = _KERNELS["wgrad", h.f, h.s][self.reads]

        def launch(x: Array, g: Array, dw: Array) -> None:
            parts = empty((slices, taps, c), "float32")
            kernel((slices, tiles), x, g, parts, *sizes)
            SUM(ceil_div(taps * c, LANES), parts, dw, slices, taps, c)
        return launch


class _Shape:
    """How a kernel cuts maps into tiles."""

    def __init__(self, f: int, s: int, pass_name: str) -> None:
        self.f, self.s, self.wgrad, self.scatter = f, s, pass_name == "wgrad", pass_name == "dgrad" and s == 2
        self.rows = 8 if f == 3 and s == 1 else 4                            # Q of the kernel
        self.most = 43008 if f == 3 else 49152 if self.wgrad else 36096      # bytes of a tile
        self.resident = 5 if f == 3 else 4                                   # blocks of a multiprocessor
        self.vector = VECTOR if f == 3 or not self.wgrad else 1

    def pixels(self, rows: int, columns: int) -> int:
        """Returns how many pixels a tile of one image has in shared memory."""
        columns = up(columns, P)
        read = [(k + 1) // 2 + self.f // 2 if self.scatter else (k - 1) * self.s + self.f for k in (rows, columns)]
        return read[0] * read[1] + self.wgrad * rows * columns

    def cut(self, n: int, height: int, width: int, channels: int, itemsize: int) -> tuple[int, int, tuple[int, ...]]:
        """Returns the number of tiles, of tiles of channels, and images to lanes as the kernels take them.

        Of all tiles that fit the one is taken that costs least, of an output, by estimate.
        """
        least, groups = (float("inf"), 0, (0, 0, (0,))), channels // self.vector
        short, short_bytes = SHORT[self.f]
        most = min(LANES, 1 << (groups - 1).bit_length())
        for lanes in (most, most // 2, most // 4) if most > 8 else (most,):
            strips, tiles, run = THREADS // lanes, ceil_div(groups, lanes), lanes * self.vector * itemsize
            for rows in {min(height, k) for k in range(self.rows, min(height, 32) + self.rows, self.rows)}:
                for columns in {min(width, up(ceil_div(width, k), P)) for k in range(1, ceil_div(width, P) + 1)}:
                    read, down, across = self.pixels(rows, columns), ceil_div(height, rows), ceil_div(width, columns)
                    each, fit = ceil_div(rows, self.rows) * ceil_div(columns, P), self.most // (read * run)
                    images = min(n, fit, max(1, ceil_div(strips, each) if down * across == 1 else 1))
                    if not images:
                        continue
                    blocks = ceil_div(n, images) * down * across
                    computed = (up(images * each, strips) + BEGIN * strips) * lanes * self.rows * P * self.vector
                    cost = (blocks * tiles * computed / (n * height * width * channels)
                            * (1 + WAVE * self.resident * context.sm_count / (blocks * tiles))
                            + READ * read / (rows * columns) + short * (run < short_bytes))
                    found = blocks, tiles, (images, rows, columns, down, across, lanes)
                    least = min(least, (cost, -lanes, found))
        return least[2]


def up(value: int, step: int) -> int:
    """Returns the next multiple."""
    return ceil_div(value, step) * step


CANDIDATES = tuple(Strip(name, dtype) for name in ("fprop", "dgrad", "wgrad") for dtype in FLOAT_DTYPES)
