"""Work lists of contextual convolutions: the classes of all levels in one table, as levels.cuh reads them.

fprop: the classes of every level, whose columns are that level's. dgrad: positions of dx that agree on the taps of all
levels are a class, whose sum has a segment for each level that reaches them.
"""

from __future__ import annotations

from itertools import product
from math import gcd

import numpy as np

from alpha.cuda.conv.schedule import FIELDS, Slabs, class_table
from alpha.ops.coconv_desc import CoConvDesc
from alpha.ops.conv_desc import Axis, ConvDesc, TapClass

LEVEL_FIELDS = (*FIELDS, "channels", "columns", "first", "segments")
Run = tuple[tuple[TapClass, ...], int, int]  # class of each level, first position, number of positions


class LevelSlabs(Slabs):
    """A pass as the kernel sees it: classes have columns as in LEVEL_FIELDS, and the segments of one follow each other,
    those with the longest sums first.  channels: 0 where they differ from segment to segment; columns: what divides all
    that a row of out begins at, and its length."""

    @property
    def sums(self) -> list[tuple[int, int, int, list[tuple[int, int]]]]:
        found, number, entries = [], 0, [dict(zip(LEVEL_FIELDS, row)) for row in self.classes.tolist()]
        while number < len(entries):
            first = entries[number]
            terms = [(e["taps_h"] * e["taps_w"], e["channels"]) for e in entries[number:number + first["segments"]]]
            found.append((number, first["rows"], first["columns"], terms))
            number += first["segments"]
        return found


def _sorted(classes: list[np.ndarray]) -> np.ndarray:
    """Returns the table of all entries, the longest sums first."""
    fields = [LEVEL_FIELDS.index(name) for name in ("taps_h", "taps_w", "channels")]
    lengths = [int(entries[:, fields].prod(axis=1).sum()) for entries in classes]
    order = np.argsort(-np.array(lengths), kind="stable")
    return np.ascontiguousarray(np.concatenate([classes[k] for k in order]), np.int32)


def fprop_slabs(desc: CoConvDesc) -> LevelSlabs:
    """Returns the classes of y."""
    (_, h, w, oc), level = desc.y_shape, desc.levels[0][1]
    w_row = int(np.prod(desc.w_shape[1:]))
    classes, unit = [], oc
    for first, level in desc.levels:
        columns = level.oc // level.groups
        table = class_table(level, level.h.fprop_classes, level.w.fprop_classes, (level.w.i, level.ic), (w, oc), (1, 1))
        table[:, FIELDS.index("out")] += first
        table[:, FIELDS.index("w")] += first * w_row
        more = np.broadcast_to(np.array([level.ic // level.groups, columns, first, 1], np.int32), (len(table), 4))
        classes += [row[None] for row in np.concatenate([table, more], 1)]
        unit = gcd(unit, gcd(first, columns))
    n, ih, iw, ic = desc.x_shape
    return LevelSlabs(_sorted(classes), ih * iw * ic, h * w * oc, ic // level.groups, unit, w_row, n, level.groups)


def dgrad_slabs(desc: CoConvDesc) -> LevelSlabs:
    """Returns the classes of dx."""
    (n, ih, iw, ic), (_, oh, ow, oc), level = desc.x_shape, desc.y_shape, desc.levels[0][1]
    columns = ic // level.groups
    axes = [[level.h for _, level in desc.levels], [level.w for _, level in desc.levels]]
    classes = []
    for (hs, h0, h_count), (ws, w0, w_count) in product(*map(_runs, axes)):
        place = (n * h_count * w_count, w_count), ((h0 * iw + w0) * ic, level.h.s * iw * ic, level.w.s * ic)
        met = [_segment(one, first, place, (h, h0), (w, w0), oc)
               for (first, one), h, w in zip(desc.levels, hs, ws) if h.count * w.count]
        if not met:
            met = [(*place[0], 0, 0, 0, *place[1], *(0,) * 8, level.oc // level.groups)]
        classes.append(np.array([(*entry, columns, 0, len(met)) for entry in met], np.int32))
    return LevelSlabs(_sorted(classes), oh * ow * oc, ih * iw * ic, 0, columns, int(np.prod(desc.w_shape[1:])), n,
                      level.groups)


def _segment(level: ConvDesc, first: int, place: tuple[tuple[int, int], tuple[int, int, int]],
             h_at: tuple[TapClass, int], w_at: tuple[TapClass, int], oc: int) -> tuple[int, ...]:
    """Returns the fields of a level's part of a sum, down to its channels."""
    (h, h0), (w, w0), ow, icg = h_at, w_at, level.w.o, level.ic // level.groups
    start_h, start_w = h.starts[h.positions.index(h0)], w.starts[w.positions.index(w0)]
    tap_h, tap_w = level.w.f * icg, icg
    return (*place[0], (start_h * ow + start_w) * oc + first, ow * oc, oc, *place[1], h.count, w.count,
            h.step * ow * oc, w.step * oc, first * level.h.f * tap_h + h.tap * tap_h + w.tap * tap_w,
            h.tap_step * tap_h, w.tap_step * tap_w, 0, level.oc // level.groups)


def _runs(axes: list[Axis]) -> list[Run]:
    """Returns runs of positions, a stride apart, whose class is the same in every level."""
    stride, size = axes[0].s, axes[0].i
    of = [{p: c for c in axis.dgrad_classes for p in c.positions} for axis in axes]
    runs: list[Run] = []
    for p in sorted(range(size), key=lambda p: (p % stride, p)):
        found = tuple(classes[p] for classes in of)
        if runs and runs[-1][0] == found and p == runs[-1][1] + stride * runs[-1][2]:
            runs[-1] = (found, runs[-1][1], runs[-1][2] + 1)
        else:
            runs.append((found, p, 1))
    return runs
