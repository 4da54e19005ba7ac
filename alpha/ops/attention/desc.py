"""Where queries, keys, values and results of attention lie: the sizes and strides that every device's kernel reads."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from alpha.core.errors import ShapeError, message

Shape = tuple[int, ...]


class Place(NamedTuple):
    """Elements from the start of a tensor to the first head, and from one sample, head and row to the next."""

    first: int
    sample: int
    head: int
    row: int


class AttentionDesc(NamedTuple):
    """Sizes of a call of attention, and where its operands lie.

    Attributes:
        n, heads: samples N and heads H.
        rows, keys: queries L and keys S of a head.
        width, value_width: elements E of a query and a key, and EV of a value and a result.
        y_shape: shape of the result.
        q, k, v, y: places.
    """

    n: int
    heads: int
    rows: int
    keys: int
    width: int
    value_width: int
    y_shape: Shape
    q: Place
    k: Place
    v: Place
    y: Place

    @property
    def scores(self) -> Shape:
        """Returns the shape of the scores, (N, H, L, S)."""
        return self.n, self.heads, self.rows, self.keys


@lru_cache(maxsize=1024)
def describe(q: Shape, k: Shape | None, v: Shape | None, heads: int, batch_first: bool) -> AttentionDesc:
    """Returns sizes and places of operands of these shapes: see the op attention.  Raises ShapeError."""
    shapes = [s for s in (q, k, v) if s is not None]
    parts = {1: (3,), 2: (1, 2), 3: (1, 1, 1)}[len(shapes)]     # q; k and v; all of them in one tensor
    if heads == 0:
        if len(shapes) < 3 or {len(s) for s in shapes} != {4} or not q[:2] == shapes[1][:2] == shapes[2][:2] or (
                shapes[1][2] != shapes[2][2] or shapes[1][3] != q[3]):
            raise _refused("(N, H, L, E), (N, H, S, E) and (N, H, S, EV)", q, k, v)
        places = [Place(0, s[1] * s[2] * s[3], s[2] * s[3], s[3]) for s in shapes]
        n, h, rows, width = q
        keys, value_width = shapes[2][2:]
        y = Place(0, h * rows * value_width, rows * value_width, value_width)
        return AttentionDesc(n, h, rows, keys, width, value_width, (n, h, rows, value_width), *places, y)
    order = 0 if batch_first else 1     # the axis of samples
    if {len(s) for s in shapes} != {3} or len({s[order] for s in shapes}) > 1 or any(
            s[2] % (part * heads) for s, part in zip(shapes, parts)):
        raise _refused(f"three axes, of which the last is a multiple of heads={heads}", q, k, v)
    widths = [s[2] // (part * heads) for s, part in zip(shapes, parts) for _ in range(part)]
    lengths = [s[1 - order] for s, part in zip(shapes, parts) for _ in range(part)]
    if lengths[1] != lengths[2] or widths[0] != widths[1]:
        raise _refused("queries and keys of one width, and as many values as keys", q, k, v)
    n, firsts = q[order], [k * heads * width for part, width in zip(parts, _of_first(widths, parts))
                           for k in range(part)]
    places = [_place(first, n, length, last, width, batch_first) for first, length, last, width in zip(
        firsts, lengths, [s[2] for s, part in zip(shapes, parts) for _ in range(part)], widths)]
    columns = heads * widths[2]
    shape = (n, lengths[0], columns) if batch_first else (lengths[0], n, columns)
    return AttentionDesc(n, heads, lengths[0], lengths[1], widths[0], widths[2], shape, *places,
                         _place(0, n, lengths[0], columns, widths[2], batch_first))


def _of_first(widths: list[int], parts: tuple[int, ...]) -> list[int]:
    """Returns the width that the first part of each tensor has."""
    return [widths[sum(parts[:k])] for k in range(len(parts))]


def _place(first: int, n: int, length: int, last: int, width: int, batch_first: bool) -> Place:
    """Returns the place of one of the parts of a tensor (N, length, last), or (length, N, last)."""
    return Place(first, length * last, width, last) if batch_first else Place(first, last, width, n * last)


def _refused(needed: str, q: Shape, k: Shape | None, v: Shape | None) -> ShapeError:
    return ShapeError(message("attention", f"q has shape {q}, k has {k}, v has {v}", f"pass {needed}"))
