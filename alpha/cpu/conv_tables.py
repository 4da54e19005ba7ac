"""Packs the geometry of convolutions into the integer tables that the compiled convolution kernels walk.

A table lists levels: one for a ConvDesc; those of a CoConvDesc, whose channels are slices of one tensor.
kernels/conv.hpp reads them back: Geometry (header), AxisTable and AxisClass (positions with one tap list), TapRange
(wgrad). All offsets count int64 numbers from the start of a level's part.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from alpha.ops.coconv_desc import CoConvDesc
from alpha.ops.conv_desc import Axis, ConvDesc, TapClass

HEADER = 18


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


def _pack(read: tuple[int, ...], written: tuple[int, ...], desc: ConvDesc, pitches: tuple[int, int],
          parts: list[list[int]]) -> list[int]:
    offsets = np.cumsum([HEADER, *map(len, parts)])[:-1].tolist()
    offsets += [0] * (4 - len(offsets))
    header = [desc.n, *read[1:], *written[1:], desc.h.f, desc.w.f, desc.groups, desc.h.s, desc.w.s, *pitches, *offsets]
    return header + [number for part in parts for number in part]


def _join(desc: ConvDesc | CoConvDesc, level: int | None, pack: Callable[[ConvDesc, int], list[int]]) -> np.ndarray:
    """Returns [levels, (where its part begins, first channel) per level, parts], of all levels or of one."""
    levels = desc.levels if level is None else desc.levels[level:level + 1]
    parts = [pack(level, desc.y_shape[3]) for _, level in levels]
    begin = np.cumsum([1 + 2 * len(levels), *map(len, parts)]).tolist()
    head = [number for at, (first, _) in zip(begin, levels) for number in (at, first)]
    return np.array([len(levels), *head, *[number for part in parts for number in part]], dtype=np.int64)


@lru_cache(maxsize=2048)
def forward_table(desc: ConvDesc | CoConvDesc, level: int | None = None) -> np.ndarray:
    """Returns the table of fprop and wgrad: x is read, the positions are those of y."""
    def pack(level: ConvDesc, pitch: int) -> list[int]:
        parts = [_axis_table(axis.fprop_classes, axis.f) for axis in (level.h, level.w)]
        parts += [_ranges(level.h), _ranges(level.w)]
        return _pack(level.x_shape, level.y_shape, level, (level.ic, pitch), parts)
    return _join(desc, level, pack)


@lru_cache(maxsize=1024)
def dgrad_table(desc: ConvDesc | CoConvDesc, level: int | None = None) -> np.ndarray:
    """Returns the table of dgrad: g is read, the positions are those of dx."""
    def pack(level: ConvDesc, pitch: int) -> list[int]:
        parts = [_axis_table(axis.dgrad_classes, axis.f) for axis in (level.h, level.w)]
        return _pack(level.y_shape, level.x_shape, level, (pitch, level.ic), parts)
    return _join(desc, level, pack)
