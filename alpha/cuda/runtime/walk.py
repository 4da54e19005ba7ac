"""How the blocks of a launch walk down the columns of a matrix, in pieces of 16 bytes or elements (reduce.cuh)."""

from __future__ import annotations

import struct
from functools import lru_cache
from math import gcd
from typing import NamedTuple

from alpha.core.device import HALF_DTYPES
from alpha.cuda.runtime.kernel import Kernel, per_dtype
from alpha.cuda.runtime.memory import ITEMSIZE

THREADS = 256      # of a block
BLOCKS = 1056      # keep a large GPU busy: 8 per multiprocessor of an H100. Fixed, so that no sum depends on the GPU
LONGEST = 64       # pieces that a thread adds in one chain; more of them become more chunks
CHAIN = 16         # terms that a thread adds in one chain of float32, where nothing keeps what rounding leaves out
SUMMERS = 264, 128  # blocks of a pass that sums columns, and rows of a thread at most: all blocks run at once, as each
#                    ends with sums over its threads
LINE = 8           # pieces of 16 bytes that a tile of a pass that sums has across, so that few chunks meet in one tile
WALK = "block[40] walk"
LANES = {dtype: 16 // size for dtype, size in ITEMSIZE.items()}  # elements of 16 bytes


def per_piece(source: str, entry: str, args: str) -> dict[tuple[str, bool], Kernel]:
    """Returns kernels by (dtype, whether they read pieces of 16 bytes, or single elements)."""
    kernels = {}
    for wide, name in ((True, entry), (False, f"{entry}_single")):
        found = per_dtype(source, name, args, threads=THREADS)
        kernels.update({(dtype, wide): kernel for dtype, kernel in found.items()})
    return kernels


def per_lanes(source: str, entry: str, args: str) -> dict[tuple[str, int], Kernel]:
    """Returns kernels by (dtype, elements that are read at once): 16 bytes of them, or 1; of 16 bits 2 and 4 too."""
    found = {(dtype, LANES[dtype] if wide else 1): kernel
             for (dtype, wide), kernel in per_piece(source, entry, args).items()}
    for lanes in (2, 4):
        kernels = per_dtype(source, f"{entry}_single", args, dtypes=HALF_DTYPES, threads=THREADS,
                            defines={"PIECE": lanes})
        found.update({(dtype, lanes): kernel for dtype, kernel in kernels.items()})
    return found


def pieces_of(columns: int, dtype: str) -> tuple[tuple[str, bool], int]:
    """Returns which kernel of `per_piece` reads rows, and how many elements at once."""
    wide = columns % LANES[dtype] == 0
    return (dtype, wide), LANES[dtype] if wide else 1


def lanes_among(columns: int, dtype: str) -> int:
    """Returns how many elements of a row, or of a part of one, the kernels of `per_lanes` read at once."""
    if dtype == "float32":
        return 1 if columns % 4 else 4
    return gcd(columns, 8) or 1  # as a chain reads them


class Walk(NamedTuple):
    """How blocks walk down the columns of a matrix; see reduce.cuh."""

    grid: int
    chunks: int
    chunk: int    # rows of a block
    block: bytes  # the kernel's argument


@lru_cache(maxsize=1024)
def walk(rows: int, columns: int, blocks: int = BLOCKS, longest: int = LONGEST, across: int = THREADS) -> Walk:
    """Divides a matrix of `columns` pieces per row among blocks, in tiles of columns and chunks of rows.

    A thread gets up to `longest` rows of a chunk.  Tiles have about `across` columns if threads then have 4 rows each.
    """
    most = max(1, min(THREADS // max(1, min(4, rows)), max(across, THREADS // max(1, -(-rows // 4)))))
    tiles = -(-columns // most)
    width = -(-columns // max(1, tiles)) or 1
    step = max(1, min(THREADS // width, rows))
    steps, down = -(-rows // step), -(-blocks // max(1, tiles))
    chunk = step * min(longest, max(4, -(-steps // down)))
    chunks = -(-rows // chunk)
    block = struct.pack("@qqiiiiq", rows, columns, width, step, tiles, chunks, chunk)
    return Walk(tiles * chunks, chunks, chunk, block)
