"""How maps are cut into tiles, and the launches of winograd.cu and fft_tile.cu on these: transforms of maps, gradients
and filters, and depthwise convolution."""

from __future__ import annotations

import struct
from math import prod
from typing import Any, NamedTuple

import numpy as np

from alpha.cuda.runtime.kernel import Kernel
from alpha.cuda.runtime.memory import Array
from alpha.ops.algorithms.family import Way
from alpha.ops.algorithms.tile_transform import Winograd
from alpha.ops.conv_desc import ConvDesc, Pair, ceil_div

_TILES = struct.Struct("4q16i")     # Tiles of tiles.cuh
TILES_ARG = f"block[{_TILES.size}]"
WINOGRAD_THREADS, FFT_THREADS = 128, 256
LANES = {16: 32, 32: 8, 64: 8}  # channels of a block of FFT, by the edge of a tile: what shared memory holds
LINE = 64
_ANGLES = 2 * np.pi * np.arange(LINE // 2) / LINE
TWIDDLES = np.concatenate([np.cos(_ANGLES), -np.sin(_ANGLES)]).astype(np.float32).tobytes()


class Cut(NamedTuple):
    """A map, or filters, in tiles."""

    shape: tuple[int, ...]         # (images, height, width, channels)
    strides: tuple[int, int, int]  # floats from image to image, from column to column, and from channel to channel
    grid: Pair                     # tiles of an image
    step: Pair                     # pixels from tile to tile
    padding: Pair                  # that the first one begins outside
    size: Pair                     # of a tile that count
    turned: bool = False           # whether pixels of a tile are taken in reverse
    filters: bool = False          # whether it is filters that are cut, each of which is a tile

    @property
    def count(self) -> int:
        return self.shape[0] * self.grid[0] * self.grid[1]

    def packed(self, points: tuple[int, int, int], first: int = 0, count: int = 0) -> bytes:
        """Returns Tiles of tiles.cuh, for `count` tiles from `first` on, or all."""
        (_, h, w, c), (image, pixel, channel) = self.shape, self.strides
        return _TILES.pack(*points, image, h, w, c, pixel, channel, *self.grid, *self.step, *self.padding, *self.size,
                           first, count or self.count, self.turned)


def filters_cut(filters: int, channels: int, f: Pair, strides: tuple[int, int, int], turned: bool = False) -> Cut:
    """Returns so many filters, each of which is a tile of so many channels."""
    return Cut((filters, *f, channels), strides, (1, 1), f, (0, 0), f, turned, True)


def map_cuts(way: Way, pass_name: str, desc: ConvDesc) -> tuple[Cut, Cut]:
    """Returns the tiles of x (of g in dgrad), and those of y (of dx; of g in wgrad).

    dgrad reads g, padded so that the filters can be turned.
    """
    h, w = desc.h, desc.w
    read, written, padding = desc.x_shape, desc.y_shape, (h.p, w.p)
    if pass_name == "dgrad":
        read, written, padding = desc.y_shape, desc.x_shape, (h.f - 1 - h.p, w.f - 1 - w.p)
    edge = (way.tile + h.f - 1, way.tile + w.f - 1) if way.name == "winograd" else (way.tile, way.tile)
    step = edge[0] - h.f + 1, edge[1] - w.f + 1
    grid = ceil_div(written[1], step[0]), ceil_div(written[2], step[1])
    return (Cut(read, _nhwc(read), grid, step, padding, edge),
            Cut(written, _nhwc(written), grid, step, (0, 0), step))


def _nhwc(shape: tuple[int, ...]) -> tuple[int, int, int]:
    return prod(shape[1:]), shape[3], 1


class Transforms:
    """The transforms of tiles to points and back, of one kind and one size of tiles.

    Args:
        source: of the kernels.
        entries: their names, by what is transformed: "inputs", "filters" and "outputs_t" to points, "outputs" and
            "filters_t" from them.
        numbers: constants that each of them takes.
        options: of all kernels, as of Kernel.
    """

    parts = 1          # numbers of a spectral point
    depthwise = False  # whether filters have one channel
    points: int        # of a tile
    shared = 0         # bytes of shared memory of a block

    def __init__(self, source: str, entries: dict[str, str], numbers: bytes, **options: Any) -> None:
        self.numbers = numbers
        args = f"ptr source, ptr target, ptr bias, block[{len(numbers)}] numbers, {TILES_ARG} tiles, i32 relu"
        self._kernels = {kind: Kernel(source, entry, args, **options) for kind, entry in entries.items()}

    def points_of(self, cut: Cut) -> tuple[int, int, int]:
        """Returns the floats from tile to tile, from point to point, and from real to imaginary parts; of filters those
        of the matrices that multiply."""
        parts, (filters, *_, channels) = self.parts, cut.shape
        part = channels if parts > 1 else 0
        if cut.filters and not self.depthwise:
            return parts * channels, parts * parts * filters * channels, part
        return self.points * parts * channels, parts * channels, part

    def grid(self, cut: Cut, count: int) -> int | tuple[int, int]:
        """Returns the blocks that transform so many tiles of a map."""
        raise NotImplementedError

    def step(self, kind: str, cut: Cut, first: int = 0, count: int = 0) -> Any:
        """Returns the launch (source, target, bias, relu) of a transform, of `count` tiles from `first` on, or all."""
        kernel, grid = self._kernels[kind], self.grid(cut, count or cut.count)
        tiles = cut.packed(self.points_of(cut), first, count)

        def launch(source: Any, target: Any, bias: Any = None, relu: bool = False) -> None:
            kernel(grid, source, target, bias, self.numbers, tiles, relu)
        return launch


class WinogradTransforms(Transforms):
    """Those of F(m x m, r x r), and its coefficients."""

    def __init__(self, m: int, r: int) -> None:
        table = Winograd(m, r).table
        entries = {kind: f"winograd_{kind}" for kind in ("inputs", "filters", "outputs_t", "outputs", "filters_t")}
        super().__init__("winograd.cu", entries, np.pad(table, (0, len(table) % 2)).tobytes(),
                         threads=WINOGRAD_THREADS, defines={"M": m, "R": r})
        self.points = (m + r - 1) ** 2

    def grid(self, cut: Cut, count: int) -> int:
        return ceil_div(count * cut.shape[3], WINOGRAD_THREADS)


class FftTransforms(Transforms):
    """Those of tiles of edge x edge.  depthwise: whether filters have a channel each."""

    parts = 2

    def __init__(self, edge: int, depthwise: bool) -> None:
        self.depthwise, self.lanes = depthwise, LANES[edge]
        self.points = edge * (edge // 2 + 1)
        self.shared = 4 * self.parts * self.points * self.lanes
        filters, gradients = ("fft_tiles", "fft_maps") if depthwise else ("fft_filters", "fft_gradients")
        entries = {"inputs": "fft_tiles", "outputs_t": "fft_tiles", "filters": filters, "outputs": "fft_maps",
                   "filters_t": gradients}
        options = {"threads": FFT_THREADS, "defines": {"E": edge, "LANES": self.lanes}}
        super().__init__("fft_tile.cu", entries, TWIDDLES, shared=self.shared, **options)
        args = f"block[{len(TWIDDLES)}] twiddles, {TILES_ARG} x, {TILES_ARG} y, i32 relu"
        self._depthwise = Kernel("fft_tile.cu", "fft_depthwise", f"ptr map, ptr filters, ptr out, ptr bias, {args}",
                                 shared=self.shared, **options)
        self._sums = Kernel("fft_tile.cu", "fft_sums", "ptr x, ptr g, ptr sums, i32 tiles, i32 channels", **options)

    def grid(self, cut: Cut, count: int) -> tuple[int, int]:
        return count, ceil_div(cut.shape[3], self.lanes)

    def in_one(self, inputs: Cut, outputs: Cut) -> Any:
        """Returns the launch (map, spectra of filters, out, bias, relu) of a depthwise pass."""
        points = self.points_of(inputs)
        packed, grid = (inputs.packed(points), outputs.packed(points)), self.grid(inputs, inputs.count)

        def launch(source: Array, filters: Array, target: Array, bias: Array | None, relu: bool) -> None:
            self._depthwise(grid, source, filters, target, bias, TWIDDLES, *packed, relu)
        return launch

    def sums(self, tiles: int, channels: int) -> Any:
        """Returns the launch (x, g, sums), of spectra, that sums over tiles."""
        grid = ceil_div(self.points * channels, FFT_THREADS)

        def launch(x: Array, g: Array, target: Array) -> None:
            self._sums(grid, x, g, target, tiles, channels)
        return launch


WINOGRAD = {(m, r): WinogradTransforms(m, r) for m, r in ((2, 3), (4, 3), (2, 5))}
FFT = {(edge, depthwise): FftTransforms(edge, depthwise) for edge in LANES for depthwise in (False, True)}
