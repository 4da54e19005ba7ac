"""Work lists of fprop and dgrad: which tiles there are, which taps each sums over, the longest first.

Both passes fill the positions of one tensor (y; dx) from those of another (x; g). Positions along an axis that read
the same taps form a class (TapClass); a pair of classes, of the height and of the width, is a dense product:

    rows      m = (h * width + w) * images + image,  h and w counting the positions of the two classes
    sum       taps of the height x taps of the width x channels
    columns   output channels of a group (fprop), input channels of a group (dgrad)

Positions, the places where they start to read, and taps are evenly spaced, so a class is a row of integers, laid out
as `SlabClass` in conv/ffma/conv_slab.cuh. Whatever is padded or inserted lies outside of all classes.

A contextual convolution has the classes of all of its levels, a convolution those of one. In fprop a level has columns
of its own. In dgrad positions of dx that agree on the taps of all levels are a class, whose sum has a segment for each
level that reaches them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import gcd, prod
from typing import NamedTuple

import numpy as np

from alpha.ops.coconv_desc import CoConvDesc
from alpha.ops.conv_desc import Axis, ConvDesc, Shape, TapClass, ceil_div

FIELDS = ("rows", "width", "in_", "in_h", "in_w", "out", "out_h", "out_w", "taps_h", "taps_w", "tap_in_h", "tap_in_w",
          "w", "tap_w_h", "tap_w_w", "channels", "columns", "first", "segments")
LENGTH = [FIELDS.index(name) for name in ("taps_h", "taps_w", "channels")]
Classes = tuple[TapClass, ...]
Levels = tuple[tuple[int, ConvDesc], ...]  # first channel of y, convolution
LIMIT = 1 << 31  # what the kernel's 32-bit integers hold
POINT = Axis(i=1, o=1, f=1, s=1, p=0, d=1)  # of maps and filters of one pixel: a convolution that is a product


class Slabs(NamedTuple):
    """A pass as the kernel sees it."""

    classes: np.ndarray  # int32 array (segments, 19), columns as in FIELDS, the longest sums first
    in_image: int        # elements of an image of the tensor that is read
    out_image: int       # and of the one that is written
    columns: int         # what divides the columns of all classes, and the channels of out that these begin at
    w_row: int           # elements of an output channel's filter
    images: int          # numbers of them
    groups: int          # likewise

    @property
    def sums(self) -> list[tuple[int, int, int, list[tuple[int, int]]]]:
        """Returns of each sum its first entry, rows and columns, and (taps, channels) of its segments."""
        found, number, entries = [], 0, [dict(zip(FIELDS, row)) for row in self.classes.tolist()]
        while number < len(entries):
            first = entries[number]
            terms = [(e["taps_h"] * e["taps_w"], e["channels"]) for e in entries[number:number + first["segments"]]]
            found.append((number, first["rows"], first["columns"], terms))
            number += first["segments"]
        return found

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


def fprop_slabs(desc: ConvDesc | CoConvDesc) -> Slabs:
    """Returns the classes of y = x * w."""
    sums = [entries for level in desc.levels for entries in _sums((level,), True, desc.x_shape, desc.y_shape)]
    return _slabs(desc, sums, desc.x_shape, desc.y_shape, multiples(desc)["output"])


def dgrad_slabs(desc: ConvDesc | CoConvDesc) -> Slabs:
    """Returns the classes of the gradient with respect to x."""
    sums = _sums(desc.levels, False, desc.y_shape, desc.x_shape)
    return _slabs(desc, sums, desc.y_shape, desc.x_shape, desc.w_shape[3])


def multiples(desc: ConvDesc | CoConvDesc) -> dict[str, int]:
    """Returns what divides the channels of a group: of x; and of y, of all levels and where these begin."""
    groups = desc.levels[0][1].groups
    return {"input": desc.x_shape[3] // groups,
            "output": gcd(*(n for first, level in desc.levels for n in (first, level.oc // groups)))}


def oversized(desc: ConvDesc | CoConvDesc) -> str | None:
    """Returns which number of the description exceeds the kernels' 32-bit integers, or None."""
    (n, *x), (_, *y) = desc.x_shape, desc.y_shape
    sizes = {"an image of x": prod(x), "an image of y": prod(y), "w": prod(desc.w_shape),
             "positions": n * max(prod(x[:2]), prod(y[:2]))}
    return ", ".join(f"{what}: {size} >= 2^31" for what, size in sizes.items() if size >= LIMIT) or None


def is_product(desc: ConvDesc) -> bool:
    """Tells whether a convolution has 1x1 filters that move by one: a product of pixels and filters."""
    return all((axis.f, axis.s, axis.p) == (1, 1, 0) for axis in (desc.h, desc.w))


def _slabs(desc: ConvDesc | CoConvDesc, sums: list[np.ndarray], read: Shape, written: Shape, columns: int) -> Slabs:
    """Returns the pass with these sums, given as their entries, in order of their length."""
    order = np.argsort([-entries[:, LENGTH].prod(axis=1).sum() for entries in sums], kind="stable")
    classes = np.ascontiguousarray(np.concatenate([sums[k] for k in order]))
    return Slabs(classes, prod(read[1:]), prod(written[1:]), columns, prod(desc.w_shape[1:]), read[0],
                 desc.levels[0][1].groups)


def _sums(levels: Levels, fprop: bool, read: Shape, written: Shape) -> list[np.ndarray]:
    """Returns the entries of each sum: positions that agree on the taps of all levels, a segment for each that has any.

    read, written: shapes of the two tensors.
    """
    (n, _, out_width, out_c), (first, one) = written, levels[0]
    step_h, step_w = (1, 1) if fprop else (one.h.s, one.w.s)  # of neighbouring positions
    axes = [level.h for _, level in levels], [level.w for _, level in levels]
    h_runs, w_runs = (_runs([axis.fprop_classes if fprop else axis.dgrad_classes for axis in along], step)
                      for along, step in zip(axes, (step_h, step_w)))
    found = []
    for (hs, h0, h_count), (ws, w0, w_count) in product(h_runs, w_runs):
        out = (h0 * out_width + w0) * out_c + (first if fprop else 0)
        place = dict(rows=n * h_count * w_count, width=w_count, out=out, out_h=step_h * out_width * out_c,
                     out_w=step_w * out_c)
        met = [_segment(level, fprop, read, (h, h0), (w, w0)) for level, h, w in zip(levels, hs, ws)]
        met = [segment for segment in met if "taps_h" in segment] or met[:1]
        entries = [{**place, **segment, "segments": len(met)} for segment in met]
        found.append(np.array([[entry.get(name, 0) for name in FIELDS] for entry in entries], np.int32))
    return found


def _segment(level: tuple[int, ConvDesc], fprop: bool, read: Shape, h_at: tuple[TapClass, int],
             w_at: tuple[TapClass, int]) -> dict[str, int]:
    """Returns the fields that say what a level adds to a sum.

    level: its first channel of y, and what it is; h_at, w_at: the class along an axis, and the first of the positions.
    """
    (first, desc), (h, h0), (w, w0), (_, _, width, in_c) = level, h_at, w_at, read
    icg, ocg = desc.ic // desc.groups, desc.oc // desc.groups
    found = dict(channels=icg, columns=ocg, first=first) if fprop else dict(channels=ocg, columns=icg)
    if not h.count * w.count:
        return found
    move_h, move_w = (desc.h.s, desc.w.s) if fprop else (1, 1)  # from where a position begins to read to the next one
    start = h.starts[h.positions.index(h0)] * width + w.starts[w.positions.index(w0)]
    tap_h, tap_w = desc.w.f * icg, icg
    return dict(found, in_=start * in_c + (0 if fprop else first), in_h=move_h * width * in_c, in_w=move_w * in_c,
                taps_h=h.count, taps_w=w.count, tap_in_h=h.step * width * in_c, tap_in_w=w.step * in_c,
                w=(first * desc.h.f + h.tap) * tap_h + w.tap * tap_w,
                tap_w_h=h.tap_step * tap_h, tap_w_w=w.tap_step * tap_w)


def _runs(axes: Sequence[Classes], step: int) -> list[tuple[tuple[TapClass, ...], int, int]]:
    """Returns runs of positions that are a step apart and have the same classes, by the first one: the class on each of
    some axes, the first position, the number of them."""
    of = [{p: c for c in classes for p in c.positions} for classes in axes]
    runs: list[tuple[tuple[TapClass, ...], int, int]] = []
    for p in sorted(of[0], key=lambda p: (p % step, p)):
        found = tuple(classes[p] for classes in of)
        if runs and runs[-1][0] == found and p == runs[-1][1] + step * runs[-1][2]:
            runs[-1] = (found, runs[-1][1], runs[-1][2] + 1)
        else:
            runs.append((found, p, 1))
    return sorted(runs, key=lambda run: run[1])
