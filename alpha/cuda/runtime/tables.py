"""Launches over many arrays, which the kernel finds in a table among its arguments (multi_tensor.cuh)."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

from alpha.cuda.runtime import memory
from alpha.cuda.runtime.memory import Array

Arrays = Sequence[Array]

CHUNK = 8192  # elements per block
WORDS = 480   # of 8 bytes in the table of a launch; see multi_tensor.cuh
ROWS = f"block[{8 * WORDS}] table, i32 count"
TABLE = f"{ROWS}, i32 chunk"


class _Part(NamedTuple):
    """Tensors begin .. begin + count - 1 of the lists, which one launch serves."""

    begin: int
    count: int
    blocks: int
    pack: Callable[..., bytes]
    rest: tuple[int, ...]  # what follows the addresses in the table: sizes, first blocks


@lru_cache(maxsize=256)
def _parts(sizes: tuple[int, ...], lists: int, chunk: int = CHUNK) -> list[_Part]:
    """Divides `lists` lists of tensors of these sizes into launches, whose blocks take `chunk` elements each."""
    parts = []
    limit = WORDS // (lists + 2)
    for begin in range(0, len(sizes), limit):
        mine = sizes[begin:begin + limit]
        first, blocks = [], 0
        for size in mine:
            first.append(blocks)
            blocks += -(-size // chunk)
        parts.append(_Part(begin, len(mine), blocks, struct.Struct(f"{(lists + 2) * len(mine)}Q").pack,
                           (*mine, *first)))
    return parts


def tables(lists: Sequence[Arrays], chunk: int = CHUNK) -> list[tuple[_Part, bytes]]:
    """Returns each launch over lists of arrays, the first of which gives the sizes, with its table."""
    parts = _parts(tuple([a.size for a in lists[0]]), len(lists), chunk)
    found = [(part, part.pack(*[a.ptr for arrays in lists for a in arrays[part.begin:part.begin + part.count]],
                              *part.rest)) for part in parts]
    if memory.recorder:     # which does not see what is in a table
        memory.recorder.hold([a for arrays in lists for a in arrays])
    return found
