"""Work lists of fprop and dgrad: which tiles there are, which taps each sums over, the longest first.

Both passes fill the positions of one tensor (y; dx) from those of another (x; g). Positions along an axis that read
the same taps form a class (TapClass); a pair of classes, of the height and of the width, is a dense product:

    rows      m = (h * width + w) * images + image,  h and w counting the positions of the two classes
    sum       taps of the height x taps of the width x channels
    columns   output channels of a group (fprop), input channels of a group (dgrad)

Positions, the places where they start to read, and taps are evenly spaced, so a class is a row of integers, laid out
as `SlabClass` in conv/ffma/conv_slab.cuh. Whatever is padded or inserted lies outside of all classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from alpha.ops.conv_desc import Axis, ConvDesc, TapClass, ceil_div

FIELDS = ("rows", "width", "in_", "in_h", "in_w", "out", "out_h", "out_w", "taps_h", "taps_w", "tap_in_h", "tap_in_w",
          "w", "tap_w_h", "tap_w_w", "unused")
Run = tuple[int, int, int]
LIMIT = 1 << 31  # what the kernel's 32-bit integers hold
POINT = Axis(i=1, o=1, f=1, s=1, p=0, d=1)  # of maps and filters of one pixel: a convolution that is a product


class Slabs(NamedTuple):
    """A pass as the kernel sees it."""

    classes: np.ndarray  # int32 array (classes, 16), columns as in FIELDS, the longest sums first
    in_image: int        # elements of an image of the tensor that is read
    out_image: int       # and of the one that is written
    channels: int        # of one group; what is summed over at each tap
    columns: int         # of one group; what is written
    w_row: int           # elements of an output channel's filter
    images: int          # numbers of them
    groups: int          # likewise

    @property
    def sums(self) -> list[tuple[int, int, int, list[tuple[int, int]]]]:
        """Returns of each class its entry, rows and columns, and (taps, channels) of its sum."""
        rows, taps_h, taps_w = (self.classes[:, FIELDS.index(name)].tolist() for name in ("rows", "taps_h", "taps_w"))
        return [(number, rows[number], self.columns, [(taps_h[number] * taps_w[number], self.channels)])
                for number in range(len(rows))]

    def work(self, tile_rows: int, tile_columns: int) -> np.ndarray:
        """Returns the work list: int32 array (tiles, 4) of class, row tile, column tile, group."""
        parts = []
        for number, rows, columns, _ in self.sums:
            grid = np.indices((1, ceil_div(rows, tile_rows), self.groups, ceil_div(columns, tile_columns)))
            grid = grid.reshape(4, -1)
            parts.append(np.stack([grid[0] + number, grid[1], grid[3], grid[2]], axis=1))
        return np.ascontiguousarray(np.concatenate(parts), dtype=np.int32)

    def slabs(self, tile_rows: int, tile_columns: int, k: int) -> list[tuple[int, int]]:
        """Returns (number of tiles, slabs of k in each) per class, in the order of the work list."""
        return [(ceil_div(rows, tile_rows) * self.groups * ceil_div(columns, tile_columns),
                 sum(taps * ceil_div(channels, k) for taps, channels in terms))
                for _, rows, columns, terms in self.sums]


def fprop_slabs(desc: ConvDesc) -> Slabs:
    """Returns the classes of y = x * w."""
    classes = class_table(desc, desc.h.fprop_classes, desc.w.fprop_classes, (desc.w.i, desc.ic), (desc.w.o, desc.oc),
                          (1, 1))
    return Slabs(classes, desc.h.i * desc.w.i * desc.ic, desc.h.o * desc.w.o * desc.oc, desc.ic // desc.groups,
                 desc.oc // desc.groups, _filter(desc), desc.n, desc.groups)


def dgrad_slabs(desc: ConvDesc) -> Slabs:
    """Returns the classes of the gradient with respect to x."""
    classes = class_table(desc, desc.h.dgrad_classes, desc.w.dgrad_classes, (desc.w.o, desc.oc), (desc.w.i, desc.ic),
                          (desc.h.s, desc.w.s))
    return Slabs(classes, desc.h.o * desc.w.o * desc.oc, desc.h.i * desc.w.i * desc.ic, desc.oc // desc.groups,
                 desc.ic // desc.groups, _filter(desc), desc.n, desc.groups)


def oversized(desc: ConvDesc) -> str | None:
    """Returns which number of the description exceeds the kernels' 32-bit integers, or None."""
    sizes = {"an image of x": desc.h.i * desc.w.i * desc.ic, "an image of y": desc.h.o * desc.w.o * desc.oc,
             "w": desc.oc * _filter(desc), "positions": desc.n * max(desc.h.i * desc.w.i, desc.h.o * desc.w.o)}
    return ", ".join(f"{what}: {size} >= 2^31" for what, size in sizes.items() if size >= LIMIT) or None


def is_product(desc: ConvDesc) -> bool:
    """Tells whether a convolution has 1x1 filters that move by one: a product of pixels and filters."""
    return all((axis.f, axis.s, axis.p) == (1, 1, 0) for axis in (desc.h, desc.w))


def _filter(desc: ConvDesc) -> int:
    return desc.h.f * desc.w.f * (desc.ic // desc.groups)


def class_table(desc: ConvDesc, h_classes: tuple[TapClass, ...], w_classes: tuple[TapClass, ...],
                read: tuple[int, int], written: tuple[int, int], spacing: tuple[int, int]) -> np.ndarray:
    """Returns the classes as rows of FIELDS, the longest sums first.

    read, written: width and channels of the two tensors; spacing: distance of neighbouring positions in a class.
    """
    (in_width, in_c), (out_width, out_c) = read, written
    tap_h, tap_w = desc.w.f * (desc.ic // desc.groups), desc.ic // desc.groups
    found = []
    for h, w, taps, (h0, h_step, h_count), (w0, w_step, w_count) in grids(h_classes, w_classes, spacing):
        found.append((
            desc.n * h_count * w_count, w_count,
            (h.starts[0] * in_width + w.starts[0]) * in_c if taps else 0,
            h.start_step * in_width * in_c if taps else 0, w.start_step * in_c if taps else 0,
            (h0 * out_width + w0) * out_c, h_step * out_width * out_c, w_step * out_c,
            h.count if taps else 0, w.count if taps else 0, h.step * in_width * in_c, w.step * in_c,
            h.tap * tap_h + w.tap * tap_w, h.tap_step * tap_h, w.tap_step * tap_w, 0))
    classes = np.array(found, dtype=np.int32)
    taps_of = classes[:, FIELDS.index("taps_h")] * classes[:, FIELDS.index("taps_w")]
    return classes[np.argsort(-taps_of, kind="stable")]


def grids(h_classes: tuple[TapClass, ...], w_classes: tuple[TapClass, ...], spacing: tuple[int, int]
          ) -> Iterator[tuple[TapClass, TapClass, bool, Run, Run]]:
    """Yields evenly spaced positions that read the same taps: the classes of height and width, whether these have any
    tap in common, and a run of positions along each axis.  spacing: distance of neighbours, (height, width)."""
    for h in h_classes:
        for w in w_classes:
            taps = h.count * w.count > 0
            for h_run in _runs(h, taps, spacing[0]):
                for w_run in _runs(w, taps, spacing[1]):
                    yield h, w, taps, h_run, w_run


def _runs(tap_class: TapClass, taps: bool, spacing: int) -> list[Run]:
    """Returns (first, step, count) of evenly spaced positions that make up the class.

    Where the pair of classes has taps there is one such run. Positions without taps may have gaps.
    """
    if taps:
        s = tap_class.position_slice
        return [(s.start, s.step, len(tap_class.positions))]
    runs: list[Run] = []
    for p in sorted(tap_class.positions, key=lambda p: (p % spacing, p)):
        if runs and p == runs[-1][0] + spacing * runs[-1][2]:
            runs[-1] = (runs[-1][0], spacing, runs[-1][2] + 1)
        else:
            runs.append((p, spacing, 1))
    return runs
