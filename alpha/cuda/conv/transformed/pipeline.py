"""Candidates that transform tiles: the launches of a pass, chunk by chunk, what they take, and what they cost.

    fprop   U = filter(w);  per chunk of tiles: V = in(x), M = V U, y = out(M) + bias, relu
    dgrad   the same of g, with turned filters whose channels are exchanged
    wgrad   per chunk: V = in(x), G = out_t(g), S += G^T V;  dw = filter_t(S)

A chunk has so many tiles as the workspace bears well; in wgrad it is a level of partial sums, too. Where FFT's
transformed filters would be too large, the channels that are written go in blocks.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

from alpha.core.config import config
from alpha.cuda.conv.costs import device
from alpha.cuda.conv.planner import Candidate, Launch
from alpha.cuda.conv.schedule import POINT
from alpha.cuda.conv.transformed.products import TERMS, Product, product_of
from alpha.cuda.conv.transformed.transforms import FFT, LANES, WINOGRAD, filters_cut, map_cuts
from alpha.cuda.ops.pointwise.epilogue import NOTHING, Epilogue
from alpha.cuda.ops.pointwise.equations import add_to
from alpha.cuda.runtime.context import context
from alpha.cuda.runtime.memory import Array, empty, offset
from alpha.ops.algorithms.family import (
    LEAST_TILES,
    MIB,
    Tiles,
    Way,
    cost_of,
    mismatch,
    outer_at_a_time,
    tiles_of,
    too_small,
    ways,
)
from alpha.ops.conv_desc import ConvDesc, ceil_div
from alpha.plan import Cost, Stage

WORKSPACE_MIB = 512
LEAST_CHANNELS, LEAST_TAPS, LEAST_DEPTHWISE_TAPS = 32, 5, 13    # where the choice is free; taps of an axis: FFT's
LEAST_FFT_TILES = 16    # of a chunk, so that filters are not read for few; of Winograd LEAST_TILES; of depthwise one
LEVEL = TERMS * TERMS   # tiles of a chunk of wgrad at most: sums of 64 sums of 64 terms


class Sizes(NamedTuple):
    """What a pass is made of."""

    tiles: Tiles  # of the maps, with the channels that are read and those that are written
    kernels: Any  # the transforms
    chunk: int    # tiles at a time
    outer: int    # written channels at a time
    numbers: int  # floats of a spectral point's channel

    def floats(self, channels: int) -> int:
        """Returns the floats of the transformed tiles of a chunk."""
        return self.chunk * self.numbers * channels

    @property
    def filter_floats(self) -> int:
        """Returns those of the transformed filters of a block; of complex ones a number is a matrix of 2 x 2."""
        pairs = self.outer if self.kernels.depthwise else self.tiles.inner * self.outer
        return self.numbers * pairs * (1 if self.kernels.depthwise else self.kernels.parts)


def _pieces(count: int, most: int) -> list[tuple[int, int]]:
    """Returns of each piece, of `most` at most, its first one and their number."""
    return [(first, min(most, count - first)) for first in range(0, count, most)]


class Transformed(Candidate):
    """A way to transform tiles, with its tile, for one pass."""

    def __init__(self, pass_name: str, way: Way) -> None:
        self.pass_name, self.way, self.algorithm, self.name = pass_name, way, way.name, f"{way} {pass_name}"

    def rejection(self, desc: ConvDesc) -> str | None:
        reason = mismatch(self.way.name, desc)
        if reason:
            return f"does not serve {reason}"
        if self.way not in ways(self.way.name, desc):
            f = desc.h.f, desc.w.f
            return f"tiles of {self.way.tile} do not suit filters of {f} on maps of {desc.y_shape[1:3]}"
        sizes = self.sizes(desc)
        if sizes.kernels.shared > context.max_shared:
            return f"{sizes.kernels.shared} bytes of shared memory, the device has {context.max_shared}"
        if not sizes.kernels.depthwise and not product_of(self._product(sizes), self.pass_name == "wgrad"):
            return "its products are larger than the kernels' 32-bit integers hold"
        limit = (config.conv_workspace_mib or WORKSPACE_MIB) * MIB
        if self.workspace(desc) > limit:
            return f"needs {self.workspace(desc) / MIB:,.0f} MiB of workspace, the limit is {limit / MIB:,.0f}"
        return None

    def stays_out(self, desc: ConvDesc, direct: Candidate) -> str | None:
        if direct.reads != "float32":
            return "is not taken where tensor cores make direct's products"
        least = LEAST_DEPTHWISE_TAPS if desc.groups > 1 else LEAST_TAPS
        if self.way.name == "fft" and max(desc.h.f, desc.w.f) < least:
            return f"is not taken below {least} taps"
        return too_small(self.way, self.pass_name, desc, LEAST_CHANNELS, LEAST_TILES) or None

    def sizes(self, desc: ConvDesc) -> Sizes:
        return _sizes(self.way, self.pass_name, desc, device().table.transformed.chunk_bytes)

    def workspace(self, desc: ConvDesc) -> int:
        """Returns the bytes that a launch takes from the pool."""
        s = self.sizes(desc)
        if s.kernels.depthwise and self.pass_name != "wgrad":
            return 4 * s.filter_floats
        return 4 * (s.floats(s.tiles.inner + s.outer) + s.filter_floats * (2 if self.pass_name == "wgrad" else 1))

    def _product(self, s: Sizes, tiles: int = 0, outer: int = 0) -> ConvDesc:
        points, read, written = s.tiles.points, s.kernels.parts * s.tiles.inner, s.kernels.parts * (outer or s.outer)
        if self.pass_name != "wgrad":  # a dgrad, which writes what a convolution reads
            read, written = written, read
        return ConvDesc(tiles or s.chunk, points * read, points * written, POINT, POINT, points)

    def _multiplier(self, desc: ConvDesc) -> Product:
        found = product_of(desc, self.pass_name == "wgrad")
        assert found is not None, desc   # rejection has asked
        return found

    # ---- cost --------------------------------------------------------------------------------------------------------

    def cost(self, desc: ConvDesc) -> Cost:
        s, c, known = self.sizes(desc), device().table.transformed, cost_of(self.way, self.pass_name, desc)
        dram, fma = c.dram, c.fma
        if self.way.name == "fft":
            dram, fma = c.fft[self.way.tile,].dram, c.fft[self.way.tile,].fma
        flops = {stage.name: stage.work for stage in known.stages}
        count, blocks = ceil_div(s.tiles.count, s.chunk), ceil_div(s.tiles.outer, s.outer)

        def transform(name: str, floats: float, launches: float) -> Stage:
            return Stage(flops[name] / fma, "fma", 4 * floats / dram, "dram", c.depth * launches, c.launches * launches)
        read, written = (desc.y_shape, desc.x_shape) if self.pass_name == "dgrad" else (desc.x_shape, desc.y_shape)
        filters = transform("filter", prod(desc.w_shape) + blocks * s.filter_floats, blocks)
        if s.kernels.depthwise and self.pass_name != "wgrad":
            both = flops["in"] + flops["out"]
            one = Stage(both / fma, "fma", 4 * (prod(read) + prod(written)) / dram, "dram", c.depth, c.launches)
            return Cost((filters, one), known.error)
        points = s.tiles.count * s.numbers
        stages = [filters, transform("in", blocks * (prod(read) + points * s.tiles.inner), blocks * count),
                  transform("out", prod(written) + points * s.tiles.outer, blocks * count)]
        if s.kernels.depthwise:
            stages.append(Stage(0.0, "fma", 8 * points * s.tiles.inner / dram, "dram", c.depth, c.launches * count))
        else:
            inner = self._product(s)
            stages += self._multiplier(inner).cost(inner).times(blocks * s.tiles.count / s.chunk).stages
        if self.pass_name == "wgrad" and count > 1:
            stages.append(Stage(0.0, "fma", 12 * blocks * (count - 1) * s.filter_floats / dram, "dram", 0,
                                c.launches * blocks * (count - 1)))
        return Cost(tuple(stages), known.error)

    # ---- launches ----------------------------------------------------------------------------------------------------

    def prepare(self, desc: ConvDesc) -> Launch:
        if self.pass_name == "wgrad":
            return self._gradient(desc)
        return self._in_one(desc) if desc.groups > 1 else self._forward(desc)

    def _in_one(self, desc: ConvDesc) -> Launch:
        """Returns the launch of a depthwise pass."""
        s, turned = self.sizes(desc), self.pass_name == "dgrad"
        inputs, outputs = map_cuts(self.way, self.pass_name, desc)
        f = desc.h.f, desc.w.f
        transform = s.kernels.step("filters", filters_cut(1, desc.ic, f, (0, 1, prod(f)), turned))
        run, floats = s.kernels.in_one(inputs, outputs), s.filter_floats

        def launch(x: Array, w: Array, y: Array, epilogue: Epilogue = NOTHING) -> None:
            u = empty((floats,), "float32")
            transform(w, u)
            run(x, u, y, *epilogue)
        return launch

    def _chunks(self, desc: ConvDesc, s: Sizes, outer: int) -> list[tuple[Any, Any, Any]]:
        """Returns for each chunk the launches from and to maps, of so many written channels, and of the product."""
        inputs, outputs = map_cuts(self.way, self.pass_name, desc)
        outputs = outputs._replace(shape=(*outputs.shape[:3], outer))
        kernels, inner, written = s.kernels, s.tiles.inner, "outputs_t" if self.pass_name == "wgrad" else "outputs"
        found = []
        for tile, count in _pieces(s.tiles.count, s.chunk):
            product = self._product(s, count, outer)
            found.append((
                kernels.step("inputs", inputs, tile, count),
                kernels.step(written, outputs, tile, count),
                kernels.sums(count, inner) if kernels.depthwise else self._multiplier(product).prepare(product)))
        return found

    def _forward(self, desc: ConvDesc) -> Launch:
        s, turned, size = self.sizes(desc), self.pass_name == "dgrad", prod(desc.w_shape[1:])
        strides, step = ((size, desc.ic, 1), 1) if turned else ((1, desc.ic, size), size)
        steps = []
        for first, outer in _pieces(s.tiles.outer, s.outer):
            cut = filters_cut(s.tiles.inner, outer, (desc.h.f, desc.w.f), strides, turned)
            steps.append((4 * first * step, 4 * first, s.kernels.step("filters", cut), self._chunks(desc, s, outer)))
        sizes = s.filter_floats, s.floats(s.tiles.inner), s.floats(s.outer)

        def launch(x: Array, w: Array, y: Array, epilogue: Epilogue = NOTHING) -> None:
            bias, relu = epilogue
            u, v, m = (empty((size,), "float32") for size in sizes)
            for w_at, y_at, transform, chunks in steps:
                transform(offset(w, w_at), u)
                for to_points, to_pixels, multiply in chunks:
                    to_points(x, v)
                    multiply(v, u, m)
                    to_pixels(m, offset(y, y_at), bias and offset(bias, y_at), relu)
        return launch

    def _gradient(self, desc: ConvDesc) -> Launch:
        s, depthwise = self.sizes(desc), desc.groups > 1
        inner, f, row = s.tiles.inner, (desc.h.f, desc.w.f), prod(desc.w_shape[1:])
        steps = []
        for first, outer in _pieces(s.tiles.outer, s.outer):
            filters, strides = (1, (0, 1, row)) if depthwise else (outer, (row, desc.ic, 1))
            steps.append((4 * first, 4 * first * row, self._chunks(desc, s, outer),
                          s.kernels.step("filters_t", filters_cut(filters, inner, f, strides))))
        size, sizes = s.filter_floats, (s.floats(inner), s.floats(s.outer))

        def launch(x: Array, g: Array, dw: Array) -> None:
            v, u = (empty((size,), "float32") for size in sizes)
            for g_at, w_at, chunks, to_filters in steps:
                total = empty((size,), "float32")
                for number, (to_points, to_gradients, multiply) in enumerate(chunks):
                    recent = empty((size,), "float32") if number else total
                    to_points(x, v)
                    to_gradients(offset(g, g_at), u)
                    multiply(v, u, recent)
                    if number:
                        add_to(total, recent)
                to_filters(total, offset(dw, w_at))
        return launch


@lru_cache(maxsize=1024)
def _sizes(way: Way, pass_name: str, desc: ConvDesc, chunk_bytes: int) -> Sizes:
    depthwise, tiles = desc.groups > 1, tiles_of(way, pass_name, desc)
    kernels = WINOGRAD[way.tile, desc.h.f] if way.name == "winograd" else FFT[way.tile, depthwise]
    outer = outer_at_a_time(way, tiles, depthwise)
    numbers = kernels.parts * kernels.points
    least = 1 if depthwise else LEAST_TILES if way.name == "winograd" else LEAST_FFT_TILES
    most = max(least, chunk_bytes // (4 * numbers * (tiles.inner + outer)))
    if pass_name == "wgrad":
        most = min(most, LEVEL)
    return Sizes(tiles, kernels, ceil_div(tiles.count, ceil_div(tiles.count, most)), outer, numbers)


WINOGRAD_TILES = 2, 4
CANDIDATES = tuple(Transformed(pass_name, Way(name, tile)) for pass_name in ("fprop", "dgrad", "wgrad")
                   for name, tiles in (("winograd", WINOGRAD_TILES), ("fft", LANES)) for tile in tiles)
