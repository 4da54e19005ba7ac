"""How often the elements of a piece of memory were changed in place, and when: so that no gradient is made of others.

Memory has one history for all that share it: a view, a result of `detach`, a parameter made of a tensor, a tensor over
an array of another library. The backend finds it from any array over the memory (`Backend.history`). Changes and the
nodes of the graph draw their numbers from one counter, so that a node tells by its own number whether its saved tensors
were changed since; nothing has to be read or kept when it is saved.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from typing import Any
from weakref import WeakSet, ref

from alpha.core.device import Array, get_backend
from alpha.core.table import settle

numbers = itertools.count(1)  # of changes and of nodes
newest = 0                    # number of the latest change of anything: of elements, or of the array of a tensor

recipes: WeakSet[Any] = WeakSet()  # alpha.recompute.recipe.Recipe: of results that are to be made again
_read: set[int] = set()       # keys of the memory that they read, and of some that is read no more

_lock = threading.Lock()
_shared: list[tuple[int, int, int, ref[History]]] = []  # (type of device, begin, end, history) that others may see


class History:
    """The changes of one piece of memory.

    Attributes:
        count: how many there were; it is called the version.
        last, before: numbers of the last change, and of the change before; 0 if there was none.
        peers: histories of memory that overlaps, where libraries hand arrays to and fro; None if there is none.
    """

    __slots__ = ("__weakref__", "before", "count", "last", "peers")

    def __init__(self) -> None:
        self.count = self.last = self.before = 0
        self.peers: WeakSet[History] | None = None

    def add(self, number: int) -> None:
        """Notes a change."""
        self.before, self.last = self.last, number
        self.count += 1

    def told_since(self, number: int) -> str:
        """Returns the versions of when a number was drawn, before the last change, and of now, in words."""
        if self.before <= number:
            return f"version {self.count - 1} then, {self.count} now"
        return f"version {'at most ' * (self.count > 2)}{self.count - 2} then, {self.count} now"


def histories(device: str, arrays: Sequence[Array]) -> list[History]:
    """Returns the history of the memory of each array."""
    return get_backend(device).histories(arrays)


def note(changed: Sequence[History]) -> None:
    """Notes one change of the memory of each of these histories; of none where a tensor is given another array."""
    global newest
    settle()
    with _lock:
        newest = number = next(numbers)
    for history in changed:
        history.add(number)
        if history.peers is not None:
            for peer in history.peers:
                peer.add(number)


def remember(recipe: Any) -> None:
    """Notes a recipe, until it is dropped."""
    with _lock:
        if not recipes:
            _read.clear()
        _read.update(recipe.memories)
        recipes.add(recipe)


def about_to_change(device: str, arrays: Sequence[Array]) -> None:
    """Has everything made now that is to be made again of arrays whose elements are about to change."""
    settle()
    if recipes:
        changing = set(map(get_backend(device).memory_key, arrays))
        if changing.isdisjoint(_read):
            return
        for recipe in list(recipes):
            if not changing.isdisjoint(recipe.memories):
                recipe.settle()


def changed_since(device: str, x: Array, number: int) -> bool:
    """Tells whether the elements of an array were changed after a number was drawn."""
    history = get_backend(device).history(x)
    return history is not None and history.last > number


def version(device: str, x: Array) -> int:
    """Returns how often the elements of an array were changed."""
    history = get_backend(device).history(x)
    return 0 if history is None else history.count


def told_since(device: str, x: Array, number: int) -> str:
    """Returns the versions of an array that was changed after a number was drawn: then, and now."""
    return get_backend(device).history(x).told_since(number)


def shared(arrays: Sequence[tuple[str, Array]]) -> bool:
    """Tells whether another library sees the memory of one of these (device, array), and may change it."""
    known = [found() for *_, found in _shared]
    histories = [get_backend(device).history(x) for device, x in arrays]
    return any(history is not None and history in known for history in histories)


def are_any_shared() -> bool:
    """Tells whether other libraries see memory of ours at all."""
    return bool(_shared)


def share(backend: Any, address: int, nbytes: int, x: Array) -> None:
    """Joins the history of an array that another library gets, or gave, to the histories over the same bytes."""
    settle()
    if not nbytes:
        return
    kind, begin, end = backend.dlpack_device()[0], address, address + nbytes
    history: History = backend.histories([x])[0]
    with _lock:
        _shared[:] = [entry for entry in _shared if entry[3]() is not None]
        for other_kind, first, last, found in _shared:
            other = found()
            if other is not None and other is not history and kind == other_kind and begin < last and first < end:
                for one, peer in ((history, other), (other, history)):
                    one.peers = one.peers if one.peers is not None else WeakSet()
                    one.peers.add(peer)
        _shared.append((kind, begin, end, ref(history)))
