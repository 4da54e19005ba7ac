"""Launches of fft_tile.cu: spectra of maps and filters, their inverse, and depthwise convolution."""

from __future__ import annotations

from typing import Any

import numpy as np

from alpha.cuda.conv.transformed.tiling import TILES_ARG, Cut, Points, Transforms
from alpha.cuda.runtime.kernel import Kernel
from alpha.cuda.runtime.memory import Array
from alpha.ops.conv_desc import ceil_div

THREADS, LINE = 256, 64
LANES = {16: 32, 32: 8, 64: 8}  # channels of a block, by the edge of a tile: what shared memory holds
_ANGLES = 2 * np.pi * np.arange(LINE // 2) / LINE
TWIDDLES = np.concatenate([np.cos(_ANGLES), -np.sin(_ANGLES)]).astype(np.float32).tobytes()


class Kernels(Transforms):
    """The kernels of tiles of edge x edge.  depthwise: whether filters have a channel each."""

    parts = 2

    def __init__(self, edge: int, depthwise: bool) -> None:
        self.depthwise, self.lanes = depthwise, LANES[edge]
        self.points = edge * (edge // 2 + 1)
        self.shared = 4 * self.parts * self.points * self.lanes
        filters, gradients = ("fft_tiles", "fft_maps") if depthwise else ("fft_filters", "fft_gradients")
        entries = {"inputs": "fft_tiles", "outputs_t": "fft_tiles", "filters": filters, "outputs": "fft_maps",
                   "filters_t": gradients}
        options = {"threads": THREADS, "defines": {"E": edge, "LANES": self.lanes}}
        super().__init__("fft_tile.cu", entries, TWIDDLES, shared=self.shared, **options)
        args = f"block[{len(TWIDDLES)}] twiddles, {TILES_ARG} x, {TILES_ARG} y, i32 relu"
        self._depthwise = Kernel("fft_tile.cu", "fft_depthwise", f"ptr map, ptr filters, ptr out, ptr bias, {args}",
                                 shared=self.shared, **options)
        self._sums = Kernel("fft_tile.cu", "fft_sums", "ptr x, ptr g, ptr sums, i32 tiles, i32 channels", **options)

    def points_of(self, channels: int, filters: int = 0) -> Points:
        """Returns where the points of tiles lie, or those of so many filters, as the matrices that multiply."""
        if filters:
            return Points(2 * channels, 4 * filters * channels, channels)
        return Points(self.points * 2 * channels, 2 * channels, channels)

    def grid(self, cut: Cut, count: int) -> tuple[int, int]:
        return count, ceil_div(cut.shape[3], self.lanes)

    def in_one(self, inputs: Cut, outputs: Cut) -> Any:
        """Returns the launch (map, spectra of filters, out, bias, relu) of a depthwise pass."""
        points = self.points_of(inputs.shape[3])
        packed, grid = (inputs.packed(points), outputs.packed(points)), self.grid(inputs, inputs.count)

        def launch(source: Array, filters: Array, target: Array, bias: Array | None, relu: bool) -> None:
            self._depthwise(grid, source, filters, target, bias, TWIDDLES, *packed, relu)
        return launch

    def sums(self, tiles: int, channels: int) -> Any:
        """Returns the launch (x, g, sums), of spectra, that sums over tiles."""
        grid = ceil_div(self.points * channels, THREADS)

        def launch(x: Array, g: Array, target: Array) -> None:
            self._sums(grid, x, g, target, tiles, channels)
        return launch


KERNELS = {(edge, depthwise): Kernels(edge, depthwise) for edge in LANES for depthwise in (False, True)}
