"""Launches of winograd.cu: transforms of maps, gradients and filters."""

from __future__ import annotations

from typing import Any

import numpy as np

from alpha.cuda.conv.transformed.tiling import TILES_ARG, Cut, Points
from alpha.cuda.runtime.kernel import Kernel
from alpha.cuda.runtime.memory import Array
from alpha.ops.algorithms.tile_transform import Winograd
from alpha.ops.conv_desc import ceil_div

THREADS = 128


class Kernels:
    """The kernels of F(m x m, r x r), and its coefficients."""

    parts, depthwise = 1, False   # numbers of a spectral point; filters have all channels

    def __init__(self, m: int, r: int) -> None:
        table = Winograd(m, r).table
        self.points = (m + r - 1) ** 2
        self.table = np.pad(table, (0, len(table) % 2)).tobytes()
        numbers, defines = f"block[{len(self.table)}] table, {TILES_ARG} tiles", {"M": m, "R": r}

        def kernel(entry: str, args: str) -> Kernel:
            return Kernel("winograd.cu", f"winograd_{entry}", args, threads=THREADS, defines=defines)
        self._to_points = {entry: kernel(entry, f"ptr map, ptr points, {numbers}")
                           for entry in ("inputs", "filters", "outputs_t")}
        self._to_pixels = {entry: kernel(entry, f"ptr points, ptr map, ptr bias, {numbers}, i32 relu")
                           for entry in ("outputs", "filters_t")}

    def points_of(self, channels: int, filters: int = 0) -> Points:
        """Returns where the points of tiles lie, or those of so many filters."""
        return Points(channels, filters * channels) if filters else Points(self.points * channels, channels)

    def to_points(self, kind: str, cut: Cut, points: Points, first: int = 0, count: int = 0) -> Any:
        """Returns the launch (map, points) of "inputs", "filters" or "outputs_t"."""
        kernel, tiles, grid = self._to_points[kind], cut.packed(points, first, count), self._grid(cut, count)

        def launch(source: Array | int, target: Array) -> None:
            kernel(grid, source, target, self.table, tiles)
        return launch

    def to_pixels(self, kind: str, cut: Cut, points: Points, first: int = 0, count: int = 0) -> Any:
        """Returns the launch (points, map, bias, relu) of "outputs" or "filters_t"."""
        kernel, tiles, grid = self._to_pixels[kind], cut.packed(points, first, count), self._grid(cut, count)

        def launch(source: Array, target: Array | int, bias: Array | None = None, relu: bool = False) -> None:
            kernel(grid, source, target, bias, self.table, tiles, relu)
        return launch

    def _grid(self, cut: Cut, count: int) -> int:
        return ceil_div((count or cut.count) * cut.shape[3], THREADS)


KERNELS = {(m, r): Kernels(m, r) for m, r in ((2, 3), (4, 3), (2, 5))}
