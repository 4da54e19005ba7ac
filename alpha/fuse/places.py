"""Where an operand has the element for each of a result that it broadcasts to, as kernels of chains know it.

What an operand gives for element i of the result, a vector of `length` elements repeating or each serving for many:

    whole    x[i]                   one      x[0]
    column   x[i % length]          row      x[i / length]
    gate     x[i / (length * times) * length + i % length], as (N, 1, 1, C) lies in (N, H, W, C)
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import gcd
from typing import NamedTuple

from alpha.fuse.chain import Value
from alpha.ops.layout import broadcast_strides, merged

Shape = tuple[int, ...]


class Place(NamedTuple):
    """Where an operand has the element for each of the result."""

    kind: str
    length: int = 0
    times: int = 1


WHOLE, UNIFORM = Place("whole"), Place("uniform")   # the latter: random numbers, one for each element


@lru_cache(maxsize=1024)
def place_of(shape: Shape, target: Shape) -> Place | None:
    """Returns how a shape lies in one that it broadcasts to; None where no kernel knows it."""
    if shape == target:
        return WHOLE
    sizes, (steps,) = merged(target, [broadcast_strides(shape, target)])
    if not any(steps):
        return Place("one")
    if len(sizes) == 1:
        return WHOLE
    if steps == (1, 0):
        return Place("column", sizes[0])
    if steps == (0, 1):
        return Place("row", sizes[0])
    if steps == (1, 0, sizes[0]):
        return Place("gate", sizes[0], sizes[1])
    return None


def row_of(places: Sequence[Place], inner: Sequence[Value], size: int) -> int | None:
    """Returns after how many elements the vectors of all begin anew, 0 if none are read; None if they do not agree."""
    rows = {p.length for p in places if p.kind in ("column", "gate")} | {v.row for v in inner if v.row > 0}
    spans = [p.length for p in places if p.kind == "row"] + [-v.row for v in inner if v.row < 0]
    if len(rows) > 1:
        return None
    if rows:
        row = rows.pop()
        return row if all(span % row == 0 for span in spans) and size // row < 1 << 31 else None
    return -gcd(*spans) if spans else 0
