"""Launches of fft_tile.cu: spectra of maps and filters, their inverse, and depthwise convolution."""

from __future__ import annotations

from typing import Any

import numpy as np

from alpha.cuda.conv.transformed.tiling import TILES_ARG, Cut, Points
from alpha.cuda.runtime.kernel import Kernel
from alpha.cuda.runtime.memory import Array
from alpha.ops.conv_desc import ceil_div

THREADS, LINE = 256, 64
LANES = {16: 32, 32: 8, 64: 8}  # channels of a block, by the edge of a tile: what shared memory holds
_ANGLES = 2 * np.pi * np.arange(LINE // 2) / LINE
TWIDDLES = np.concatenate([np.cos(_ANGLES), -np.sin(_ANGLES)]).astype(np.float32).tobytes()


class Kernels:
    """The kernels of tiles of edge x edge.  depthwise: whether filters have a channel each."""

    parts = 2   # numbers of a spectral point

    def __init__(self, edge: int, depthwise: bool) -> None:
        self.depthwise, self.edge, self.lanes = depthwise, edge, LANES[edge]
        self.points = edge * (edge // 2 + 1)
        defines, numbers = {"E": edge, "LANES": self.lanes}, f"block[{len(TWIDDLES)}] twiddles"
        self.shared = 4 * self.parts * self.points * self.lanes

        def kernel(entry: str, args: str, shared: int = self.shared) -> Kernel:
            return Kernel("fft_tile.cu", entry, args, threads=THREADS, shared=shared, defines=defines)
        self._to_points = {entry: kernel(entry, f"ptr map, ptr points, {numbers}, {TILES_ARG} tiles, i64 outer")
                           for entry in ("fft_tiles", "fft_filters")}
        self._to_pixels = {entry: kernel(entry, f"ptr points, ptr map, ptr bias, {numbers}, {TILES_ARG} tiles, "
                                         "i64 outer, i32 relu") for entry in ("fft_maps", "fft_gradients")}
        self._depthwise = kernel("fft_depthwise", f"ptr map, ptr filters, ptr out, ptr bias, {numbers}, {TILES_ARG} x, "
                                 f"{TILES_ARG} y, i32 relu")
        self._sums = kernel("fft_sums", "ptr x, ptr g, ptr sums, i32 tiles, i32 channels", shared=0)

    def points_of(self, channels: int, filters: int = 0) -> Points:
        """Returns where the points of tiles lie, or those of so many filters, as the matrices that multiply."""
        if filters:
            return Points(2 * channels, 4 * filters * channels, channels)
        return Points(self.points * 2 * channels, 2 * channels, channels)

    def to_points(self, kind: str, cut: Cut, points: Points, first: int = 0, count: int = 0) -> Any:
        """Returns the launch (map, points) of "inputs", "filters" or "outputs_t"."""
        kernel = self._to_points["fft_filters" if kind == "filters" and not self.depthwise else "fft_tiles"]
        tiles, grid, outer = cut.packed(points, first, count), self._grid(cut, count), points.point // 2

        def launch(source: Array | int, target: Array) -> None:
            kernel(grid, source, target, TWIDDLES, tiles, outer)
        return launch

    def to_pixels(self, kind: str, cut: Cut, points: Points, first: int = 0, count: int = 0) -> Any:
        """Returns the launch (points, map, bias, relu) of "outputs" or "filters_t"."""
        kernel = self._to_pixels["fft_gradients" if kind == "filters_t" and not self.depthwise else "fft_maps"]
        tiles, grid, outer = cut.packed(points, first, count), self._grid(cut, count), points.point // 2

        def launch(source: Array, target: Array | int, bias: Array | None = None, relu: bool = False) -> None:
            kernel(grid, source, target, bias, TWIDDLES, tiles, outer, relu)
        return launch

    def in_one(self, inputs: Cut, outputs: Cut) -> Any:
        """Returns the launch (map, spectra of filters, out, bias, relu) of a depthwise pass."""
        points = self.points_of(inputs.shape[3])
        packed, grid = (inputs.packed(points), outputs.packed(points)), self._grid(inputs, 0)

        def launch(source: Array, filters: Array, target: Array, bias: Array | None, relu: bool) -> None:
            self._depthwise(grid, source, filters, target, bias, TWIDDLES, *packed, relu)
        return launch

    def sums(self, tiles: int, channels: int) -> Any:
        """Returns the launch (x, g, sums), of spectra, that sums over tiles."""
        grid = ceil_div(self.points * channels, THREADS)

        def launch(x: Array, g: Array, target: Array) -> None:
            self._sums(grid, x, g, target, tiles, channels)
        return launch

    def _grid(self, cut: Cut, count: int) -> tuple[int, int]:
        return count or cut.count, ceil_div(cut.shape[3], self.lanes)


KERNELS = {(edge, depthwise): Kernels(edge, depthwise) for edge in LANES for depthwise in (False, True)}
