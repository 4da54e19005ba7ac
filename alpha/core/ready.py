"""Who is told, within a backward pass, that the gradient of a leaf is complete: alpha.dist sends it to other ranks.

A pass counts the edges that lead to each leaf with a listener before it begins. The listener is told when the last of
them has brought its part, and gives back the gradients that the leaves are to have when the pass ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from alpha.core.mode import recording


class Listener(Protocol):
    """Takes complete gradients during a backward pass."""

    def begin(self, leaves: Iterable[Any]) -> bool:
        """Is told which of its leaves the pass may come to; returns whether it takes part in this pass."""

    def arrived(self, leaf: Any, g: Any) -> None:
        """Takes the complete gradient of a leaf; None if no part of it came."""

    def finish(self) -> Iterable[tuple[Any, Any]]:
        """Returns leaves and the gradients that they have from now on, in place of former ones."""


listeners: dict[int, tuple[Any, Listener]] = {}     # id of a leaf -> the leaf, and its listener


class Count:
    """The edges of one pass that still have to bring a part of a leaf's gradient."""

    def __init__(self, roots: Iterable[Any]) -> None:
        self.left: dict[int, int] = {}
        for edge in _edges(roots):
            if id(edge) in listeners:
                self.left[id(edge)] = self.left.get(id(edge), 0) + 1
        heard = {id(listener): listener for _, listener in listeners.values()}
        self.active = {key for key, listener in heard.items() if listener.begin(
            [leaf for leaf, mine in listeners.values() if mine is listener and id(leaf) in self.left])}
        self._heard = [heard[key] for key in self.active]

    def part(self, leaf: Any, leaves: dict[int, tuple[Any, Any]]) -> None:
        """Is told of a part; `leaves` has the sum so far, which the listener takes when it is complete."""
        key = id(leaf)
        found = listeners.get(key)
        if found is None or key not in self.left or id(found[1]) not in self.active:
            return
        self.left[key] -= 1
        if not self.left[key]:
            found[1].arrived(leaf, leaves.pop(key, (leaf, None))[1])

    def finish(self, leaves: dict[int, tuple[Any, Any]]) -> None:
        """Gives listeners the sums of leaves that are not complete, and puts their gradients among the leaves."""
        for key, count in self.left.items():
            leaf, listener = listeners.get(key, (None, None))
            if count and leaf is not None and listener is not None and id(listener) in self.active:
                listener.arrived(leaf, leaves.pop(key, (leaf, None))[1])
        for listener in self._heard:
            for leaf, g in listener.finish():
                leaf._grad = None   # g has it in it
                leaves[id(leaf)] = (leaf, g)


def counted(roots: Iterable[Any], stores: bool) -> Count | None:
    """Returns the count of a pass from these edges; None where there is no listener, or no gradient is stored."""
    return Count(roots) if listeners and stores and not recording.get() else None


def _edges(roots: Iterable[Any]) -> Iterator[Any]:
    """Yields the leaf at the end of each edge below the roots, as often as there are edges."""
    seen: set[int] = set()
    waiting = list(roots)
    while waiting:
        edge = waiting.pop()
        if edge is None:
            continue
        if isinstance(edge, list):
            waiting.extend(edge)
        elif not isinstance(edge, tuple):
            yield edge
        elif id(edge[0]) not in seen:
            seen.add(id(edge[0]))
            waiting.extend(edge[0].edges)
