"""Where the elements of a box lie in several arrays: axes merged, and packed as kernels read them (elementwise.cuh)."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from alpha.core.errors import ShapeError, message

Shape = tuple[int, ...]

RANK = 6  # axes that a Layout of elementwise.cuh has room for


def layout_type(operands: int, more: int = 0) -> str:
    """Returns the argument type of a Layout of this number of operands, with more bytes behind it."""
    return f"block[{struct.calcsize(_format(operands)) + more}]"


def _format(operands: int) -> str:
    return f"@i{RANK}q{operands * RANK}q{RANK}Q{RANK}i"


def division(n: int) -> tuple[int, int]:
    """Returns magic and shift, by which i / n = high(i * magic) >> shift for i < 2^63; for n = 1 that is 0."""
    shift = (n - 1).bit_length() - 1  # 2^(shift + 1) >= n > 2^shift
    return (-(-(1 << 64 + shift) // n), shift) if n > 1 else (0, 0)


def packed(where: str, sizes: Shape, strides: Sequence[Shape]) -> bytes:
    """Returns the Layout of a merged box, for the op `where`.  Raises ShapeError if it has more axes than a Layout."""
    if len(sizes) > RANK:
        raise ShapeError(message(where, f"{len(sizes)} axes are left when those that lie together are merged, the CUDA "
                                 f"backend has room for {RANK}", "permute or reshape the tensor in two steps",
                                 sizes=sizes[::-1]))
    magics, shifts = zip(*map(division, sizes)) if sizes else ((), ())
    room = (0,) * (RANK - len(sizes))
    return struct.pack(_format(len(strides)), len(sizes), *sizes, *room,
                       *[step for s in strides for step in (*s, *room)], *magics, *room,
                       *shifts, *room)
