"""Packs the geometry of a ConvDesc into the integer tables that the compiled convolution kernels walk.

kernels/conv.hpp reads them back: Geometry (header), AxisTable and AxisClass (positions with one tap list), TapRange
(wgrad). All offsets count int64 numbers from the start of the table.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from alpha.ops.conv_desc import Axis, ConvDesc, TapClass

HEADER = 16


def _slots(classes: tuple[TapClass, ...], f: int) -> list[int]:
    """Returns the taps in the order they are packed: every class then reads consecutive slots.

    Taps of a class are `tap_step` apart, and all classes of an axis share that step.
    """
    step = classes[0].tap_step
    return sorted(range(f), key=lambda tap: (tap % abs(step), tap if step > 0 else -tap))


def _axis_table(classes: tuple[TapClass, ...], f: int) -> list[int]:
    """Returns [classes, taps in slot order, (size, slot, count, step, at) per class, positions, starts, ...]."""
    taps = _slots(classes, f)
    records: list[int] = []
    lists: list[int] = []
    first = 1 + f + 5 * len(classes)
    for c in classes:
        slot = taps.index(c.tap) if c.count else 0
        records += [len(c.positions), slot, c.count, c.step, first + len(lists)]
        lists += [*c.positions, *c.starts]
    return [len(classes), *taps, *records, *lists]


def _ranges(axis: Axis) -> list[int]:
    """Returns (first output, number of outputs, input of the first) for each tap."""
    table: list[int] = []
    for tap in range(axis.f):
        first, last = axis.wgrad_range(tap)
        table += [first, last - first, axis.input_of(first, tap) if first < last else 0]
    return table


def _pack(read: tuple[int, ...], written: tuple[int, ...], desc: ConvDesc, parts: list[list[int]]) -> np.ndarray:
    offsets = np.cumsum([HEADER, *map(len, parts)])[:-1].tolist()
    offsets += [0] * (4 - len(offsets))
    header = [desc.n, *read[1:], *written[1:], desc.h.f, desc.w.f, desc.groups, desc.h.s, desc.w.s, *offsets]
    return np.array(header + [number for part in parts for number in part], dtype=np.int64)


@lru_cache(maxsize=4096)
def forward_table(desc: ConvDesc) -> np.ndarray:
    """Returns the table of fprop and wgrad: x is read, the positions are those of y."""
    parts = [_axis_table(axis.fprop_classes, axis.f) for axis in (desc.h, desc.w)]
    return _pack(desc.x_shape, desc.y_shape, desc, parts + [_ranges(desc.h), _ranges(desc.w)])


@lru_cache(maxsize=4096)
def dgrad_table(desc: ConvDesc) -> np.ndarray:
    """Returns the table of dgrad: g is read, the positions are those of dx."""
    parts = [_axis_table(axis.dgrad_classes, axis.f) for axis in (desc.h, desc.w)]
    return _pack(desc.y_shape, desc.x_shape, desc, parts)
