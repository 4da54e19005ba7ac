"""Tiles of Hopper's tensor cores: all that fit, made by loops, and of them those that earn their place.

survivors.json lists the latter by their sizes, for each kernel and mode, in the order in which equals are taken: tiles
without which a step of a shipped network takes 1 % longer (benchmarks/results/h200/pruning.jsonl). Filters are held
because without it the convolutions of ResNet-20 and ResNet-56 take up to 16 % longer, by estimate; clusters of wgrad,
because a step of GoogLeNet or ResNet-18 at batch 16 in bf16 takes up to 1.7 % longer without them on an H200.
"""

from __future__ import annotations

import json
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from alpha.core.precision import Precision
from alpha.cuda.conv.costs.records import Key
from alpha.cuda.conv.wgmma.boxes import ROWS
from alpha.cuda.conv.wgmma.pixels import CHUNK

SHARED_BYTES = 226 * 1024       # of a block; 1 KB is left to barriers
RING_BYTES = 192 * 1024         # of them for the ring, where results leave through boxes
CONSUMERS = 2                   # of a block, each with its slot of statistics; a tile of 64 rows has one
MOST_SUMS = 128                 # registers of a thread that hold sums
LEAST_STAGES, HELD_STAGES = 3, 4    # buffers at least; at most, where filters stay beside them
HELD = {32: (), 64: (6, 10), 96: (6,), 128: (), 192: (), 256: (3,)}     # blocks of filters that stay, by columns
T = TypeVar("T")


class Tile(NamedTuple):
    """`rows` by `columns`, and buffers."""

    columns: int
    stages: int
    rows: int = ROWS
    pairs: bool = False    # of outputs, as many of them
    held: int = 0          # blocks of filters that stay in shared memory; see schedule_held.py
    only: str = ""         # the pass that it serves: in the other it gains nothing; dgrad copies 64 columns at a time
    cluster: int = 1       # blocks that share a tile; see schedule.py

    @property
    def consumers(self) -> int:
        return min(self.rows // 64, CONSUMERS)

    def key(self, mode: Precision) -> Key:
        """The key of its constants: a cluster's are those of the tile alone."""
        return mode.timed_as, self.rows, self.columns, self.pairs, self.held

    def __str__(self) -> str:
        return (f"{self.rows}{' pairs ' if self.pairs else ''}x{self.columns}{f' held {self.held}' * (self.held > 0)}"
                f"{f' cluster {self.cluster}' * (self.cluster > 1)}")


def fitting(planes: int) -> dict[Key, Tile]:
    """Returns the tiles of fprop and dgrad that registers and shared memory have room for, with as many buffers as fit,
    by rows, columns, whether of pairs, held blocks and cluster."""
    found = {}
    for rows, columns, pairs, cluster in product((64, 128, 256), HELD, (False, True), (1, 4, 8)):
        pixels, filters = (planes * each * CHUNK * 2 for each in (rows, columns))    # bytes of a block
        sums = rows * columns * (1 + pairs) * planes // (128 * min(rows // 64, CONSUMERS))
        for held in (0, *HELD[columns]):
            if sums > MOST_SUMS or ((held or pairs) and cluster > 1) or (held and pairs):
                continue
            room = RING_BYTES if cluster == 1 else SHARED_BYTES
            stages = min(HELD_STAGES, (room - held * filters) // pixels) if held else room // (pixels + filters)
            if stages >= LEAST_STAGES:
                found[rows, columns, pairs, held, cluster] = Tile(columns, stages, rows, pairs, held, "", cluster)
    return found


@lru_cache(maxsize=1)
def _table() -> dict[str, list[dict[str, Any]]]:
    return json.loads((Path(__file__).parent / "survivors.json").read_text())


def survivors(kernel: str, tiles: dict[Key, T]) -> tuple[T, ...]:
    """Returns the tiles of a kernel that survivors.json lists, in its order.

    Args:
        kernel: and mode, as the file calls them.
        tiles: all that fit, by their sizes; what the file has beside these replaces fields of a tile.
    Raises:
        ValueError: a tile of the file does not fit; the message names it.
    """
    found: list[Any] = []
    for line in _table()[kernel]:
        key = tuple(line["tile"])
        if key not in tiles:
            raise ValueError(f"survivors.json: {kernel} has the tile {key}, which does not fit, or is not made")
        found.append(tiles[key]._replace(**{name: v for name, v in line.items() if name != "tile"}))  # type: ignore
    return tuple(found)
