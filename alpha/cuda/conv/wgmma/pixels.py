"""What tiles of fprop and dgrad on Hopper's tensor cores are made of: classes of positions that read the same taps.

A tile has `images` successive images of rows / images pixels of one class: positions, or boxes of them (boxes.py). A
block of its sum is a chunk of 64 of a run: the channels of a tap, or where these are no multiple of 64 and the taps of
a filter's row meet neighbouring pixels, those of the whole row, side by side in NHWC. The last chunk of a run has what
is left, and is multiplied in steps of 16. `_paired` has neighbouring outputs of a row share what they read.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from math import gcd
from typing import NamedTuple

import numpy as np

from alpha.ops.conv_desc import Axis, ConvDesc, Pair, TapClass, ceil_div

CHUNK = 64             # values of a block
STEP = 16              # values that are multiplied at once
CLASS = ("pixels", "width", "in_h", "in_h_step", "in_w", "in_w_step", "out_h", "out_h_step", "out_w", "out_w_step",
         "runs_h", "runs_w", "tap_in_h", "tap_in_w", "tap_h", "tap_h_step", "tap_w", "tap_w_step", "run", "length",
         "pair")


class Sums(NamedTuple):
    """Of each sum or slice: its blocks, and of them the whole ones, which come first."""

    blocks: np.ndarray
    whole: np.ndarray

    def of(self, which: np.ndarray | int) -> Sums:
        return Sums(*(each[which] for each in self))


class Pixels(NamedTuple):
    """A pass as the kernel sees it."""

    # int32 array (classes, len(CLASS)), those with most taps first; "run" is the number of taps in a run, "length" that
    # of its values, "pair" how far apart the outputs of a pair are, of which "runs_w" pixels are read in a row, or 0.
    classes: np.ndarray
    images: int              # of the batch
    channels: int            # of a group that are summed over at each tap
    columns: int             # channels of a group of the tensor that is written
    groups: int              # of both
    unit: int                # values of the sum in a box of the filters

    @property
    def runs(self) -> range:
        """How many taps runs have, from the shortest to the longest."""
        taps = field(self.classes, "run")[runs_of(self.classes) > 0].tolist() or [1]
        return range(min(taps), max(taps) + 1)

    @property
    def sums(self) -> Sums:
        """Those of each class."""
        runs, length = runs_of(self.classes), field(self.classes, "length")
        return Sums(runs * -(-length // CHUNK), runs * ((length + STEP - 1) // CHUNK))

    @property
    def most_blocks(self) -> int:
        """Blocks of the longest sum."""
        return int(self.sums.blocks.max())


class Span(NamedTuple):
    """Positions, or boxes of them, that follow each other along an axis and read the same taps; see TapClass."""

    boxes: int
    position: int
    start: int
    tap: int
    count: int
    tap_step: int
    step: int


def steps(pass_name: str, desc: ConvDesc) -> tuple[tuple[int, int], tuple[int, int]]:
    """Returns how far the positions of a box lie apart in what is read, and in what is written: (height, width)."""
    strides = desc.h.s, desc.w.s
    return (strides, (1, 1)) if pass_name == "fprop" else ((1, 1), strides)


@lru_cache(maxsize=512)
def pixels_of(pass_name: str, desc: ConvDesc, pairs: bool = False) -> Pixels:
    """Returns fprop, y = x * w, or dgrad, the gradient with respect to x, whose boxes of filters are of one tap."""
    fprop, of_x, of_y = pass_name == "fprop", desc.ic // desc.groups, desc.oc // desc.groups
    channels, columns = (of_x, of_y) if fprop else (of_y, of_x)
    unit = CHUNK if fprop or channels % STEP else gcd(channels, CHUNK)
    joined = desc.groups == 1 and channels % CHUNK > 0 and (fprop or unit < CHUNK)
    classes = _classes(pass_name, desc, channels, joined=joined)
    return Pixels(_paired(classes) if pairs else classes, desc.n, channels, columns, desc.groups, unit)


@lru_cache(maxsize=1024)
def boxed(pass_name: str, desc: ConvDesc, height: int, width: int, trimmed: bool) -> Pixels:
    """Returns a pass whose pixels are boxes; trimmed: see boxes.py."""
    pixels = pixels_of(pass_name, desc)
    return pixels._replace(classes=_classes(pass_name, desc, pixels.channels, (height, width), trimmed))


def _classes(pass_name: str, desc: ConvDesc, channels: int, side: Pair = (1, 1), trimmed: bool = True,
             joined: bool = False) -> np.ndarray:
    """side: of a box, (height, width); joined: a run has all taps of a row, where it can."""
    (in_h, in_w), (out_h, out_w) = steps(pass_name, desc)
    (height, width), found = side, []
    rows, columns = _spans(pass_name, desc.h, height, trimmed), _spans(pass_name, desc.w, width, trimmed)
    if side == (1, 1):  # classes of a gradient in the order of their first positions
        rows, columns = (tuple(sorted(spans, key=lambda span: span.position)) for spans in (rows, columns))
    for h, w in product(rows, columns):
        taps = h.count * w.count > 0
        run = w.count if joined and taps and w.step == 1 else 1
        found.append((
            h.boxes * w.boxes, w.boxes, h.start, height * in_h, w.start, width * in_w,
            h.position, height * out_h, w.position, width * out_w, h.count * taps, w.count // run * taps,
            h.step, w.step, h.tap, h.tap_step, w.tap, w.tap_step, run, run * channels, 0))
    classes = np.array(found, dtype=np.int32)
    return classes[np.argsort(-runs_of(classes) * field(classes, "run"), kind="stable")]


@lru_cache(maxsize=1024)
def _spans(pass_name: str, axis: Axis, side: int, trimmed: bool) -> tuple[Span, ...]:
    """side: positions of a box."""
    fprop = pass_name == "fprop"
    classes, spacing, start_step = ((axis.fprop_classes, 1, axis.s) if fprop else (axis.dgrad_classes, axis.s, 1))
    taps = {p: (c, start) for c in classes for p, start in zip(c.positions, c.starts)}
    found: list[Span] = []
    for residue in range(min(spacing, len(taps))):
        positions = range(residue, len(taps), spacing)
        width = side if trimmed else len(positions)
        for first in range(0, len(positions), width):
            span = _united([taps[p] for p in positions[first:first + width]], positions[first], start_step)
            span = span._replace(boxes=ceil_div(len(positions[first:first + width]), side))
            last = found[-1] if found else None
            if first and last and (last.tap, last.count) == (span.tap, span.count):
                found[-1] = last._replace(boxes=last.boxes + span.boxes)
            else:
                found.append(span)
    return tuple(found)


def _united(members: list[tuple[TapClass, int]], position: int, start_step: int) -> Span:
    """Returns a span of one box: the taps that any of its positions reads, from where its first position meets them."""
    there = [(k, c, start) for k, (c, start) in enumerate(members) if c.count]
    if not there:
        return Span(1, position, 0, 0, 0, members[0][0].tap_step, members[0][0].step)
    k, c, start = there[0]
    firsts = [(other.tap - c.tap) // c.tap_step for _, other, _ in there]  # taps, counted from c's first one
    first, end = min(firsts), max(at + other.count for at, (_, other, _) in zip(firsts, there))
    return Span(1, position, start - k * start_step + first * c.step, c.tap + first * c.tap_step, end - first,
                c.tap_step, c.step)


def _paired(classes: np.ndarray) -> np.ndarray:
    """Returns the classes with pairs of outputs in the place of two, where these share what they read."""
    found = []
    for row in classes:
        c = dict(zip(CLASS, row.tolist()))
        taps, pairs = c["runs_w"], c["width"] // 2
        if pairs == 0 or (taps > 1 and c["tap_in_w"] != c["in_w_step"]) or c["length"] % CHUNK:
            found.append(row)
            continue
        rows, last = c["pixels"] // c["width"], c["width"] - 1
        found.append(_changed(c, pixels=rows * pairs, width=pairs, runs_w=taps + (taps > 0), pair=c["out_w_step"],
                              tap_in_w=c["in_w_step"], in_w_step=2 * c["in_w_step"], out_w_step=2 * c["out_w_step"]))
        if c["width"] % 2:
            found.append(_changed(c, pixels=rows, width=1, in_w=c["in_w"] + last * c["in_w_step"],
                                  out_w=c["out_w"] + last * c["out_w_step"]))
    return np.stack(found)


def _changed(of_class: dict[str, int], **values: int) -> np.ndarray:
    return np.array([{**of_class, **values}[name] for name in CLASS], dtype=np.int32)


def field(classes: np.ndarray, name: str) -> np.ndarray:
    """Returns a column of classes."""
    return classes[:, CLASS.index(name)]


def runs_of(classes: np.ndarray) -> np.ndarray:
    return field(classes, "runs_h") * field(classes, "runs_w")
