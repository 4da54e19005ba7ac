"""How far results that are made again may reach back to kept results: by bytes, as a graph is recorded.

While backward goes through a segment, the memory holds the results kept so far, the results of the segment's costly
calls, and two gradients of the map at hand. Cheap results are made on the way, dropped, and made
once more for their readers, so they do not count. A segment may be as long as

    0.8 of the bytes kept before it, so that segments grow as a network gets deep: about the square root of the whole;
    one result, of the size at hand: to make it again takes no more there than to keep it, and later it is gone;
    bytes that fit below 0.6 of the worst moment of the segments before: maps shrink with depth, and the first ones
    leave room.

The rest of that room is for memory that no estimate counts: workspaces, gradients of parameters, indices.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

DEEPEST = 64         # calls of a chain, each of which takes a few of Python's frames
OF_KEPT = 0.8        # of the bytes kept
OF_WORST = 0.6       # of those at the worst moment
GRADIENTS = 2        # of the map at hand: one came, one is made
AT_JOINS = 0.2, 0.5  # where paths meet all of them are made at once: of the bytes kept, and of the result's size
NOTHING: dict[int, int] = {}  # no bytes of no call


class Chain:
    """The bytes behind the results of a call.

    Attributes:
        kept: bytes that full keeps on the way, by the number of the call that made them.
        made: bytes of costly calls, to be made for the results, of all paths that meet.
        depth: by how many calls, cheap ones too.
        joins: whether paths meet in the call.
        worst: bytes at the worst moment of backward so far.
    """

    __slots__ = ("depth", "joins", "kept", "made", "worst")

    def __init__(self, inputs: Sequence[Chain] = (), counts: bool = False) -> None:
        """inputs: of the results that the call reads.  counts: whether bytes do, not the depth alone."""
        self.depth: int = max([c.depth for c in inputs], default=0)
        self.joins = len(inputs) > 1
        self.kept: dict[int, int] = _union([c.kept for c in inputs]) if counts else NOTHING
        self.made: dict[int, int] = _union([c.made for c in inputs]) if counts else NOTHING
        self.worst: int = max([c.worst for c in inputs], default=0) if counts else 0

    def grow(self, order: int, nbytes: int, counts: bool) -> bool:
        """Adds the call itself, with the bytes of its results; tells whether that gets too long.

        counts: whether the bytes do, as of a costly call.
        """
        self.depth += 1
        if counts:
            self.made = {**self.made, order: nbytes}
        kept, made = sum(self.kept.values()), sum(self.made.values())
        if self.joins:
            longest = max(AT_JOINS[0] * kept, AT_JOINS[1] * nbytes)
        else:
            longest = max(OF_KEPT * kept, nbytes, OF_WORST * self.worst - kept - GRADIENTS * nbytes) if counts else inf
        if self.depth > DEEPEST or made > longest:
            return True
        if counts:
            self.worst = max(self.worst, kept + made + GRADIENTS * nbytes)
        return False

    def end(self, kept: dict[int, int]) -> None:
        """Says that the results are kept.  kept: the call's number and their bytes, where they count."""
        if kept:
            self.kept = {**self.kept, **kept}
            self.worst = max(self.worst, sum(self.kept.values()) + GRADIENTS * max(kept.values()))
        self.made, self.depth = NOTHING, 0


START = Chain()


def _union(found: list[dict[int, int]]) -> dict[int, int]:
    """Returns the bytes of calls of several paths, each call once."""
    if len(found) == 1:
        return found[0]
    return {order: nbytes for one in found for order, nbytes in one.items()}
