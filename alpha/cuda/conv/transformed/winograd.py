"""Launches of winograd.cu: transforms of maps, gradients and filters."""

from __future__ import annotations

import numpy as np

from alpha.cuda.conv.transformed.tiling import Cut, Points, Transforms
from alpha.ops.algorithms.tile_transform import Winograd
from alpha.ops.conv_desc import ceil_div

THREADS = 128


class Kernels(Transforms):
    """The kernels of F(m x m, r x r), and its coefficients."""

    def __init__(self, m: int, r: int) -> None:
        table = Winograd(m, r).table
        entries = {kind: f"winograd_{kind}" for kind in ("inputs", "filters", "outputs_t", "outputs", "filters_t")}
        super().__init__("winograd.cu", entries, np.pad(table, (0, len(table) % 2)).tobytes(), threads=THREADS,
                         defines={"M": m, "R": r})
        self.points = (m + r - 1) ** 2

    def points_of(self, channels: int, filters: int = 0) -> Points:
        """Returns where the points of tiles lie, or those of so many filters, as the matrices that multiply."""
        return Points(channels, filters * channels) if filters else Points(self.points * channels, channels)

    def grid(self, cut: Cut, count: int) -> int:
        return ceil_div(count * cut.shape[3], THREADS)


KERNELS = {(m, r): Kernels(m, r) for m, r in ((2, 3), (4, 3), (2, 5))}
