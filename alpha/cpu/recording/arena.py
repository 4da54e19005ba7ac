"""Memory of a recording on the CPU: an arena (alpha.lifetimes) of addresses that get memory when they are used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from alpha import lifetimes
from alpha.core.errors import OutOfMemoryError, message
from alpha.cpu import memory
from alpha.cpu.native import ptr

Array = np.ndarray
LARGE = 8 * memory.MIB  # bytes in use from which the system is asked for large pages
WORTH = 1   # bytes that a plan must spare: to call a function once more costs little, as nothing is computed


class Place(memory.Owner):
    """Owner of a piece of an arena; its end gives the piece back."""

    __slots__ = ("piece",)
    piece: lifetimes.Piece

    def __del__(self) -> None:
        """The piece goes by itself."""


class Arena(lifetimes.Arena):
    """See the header.  Raises OutOfMemoryError where the system has no addresses."""

    def __init__(self, plan: Sequence[tuple[int, int]] = ()) -> None:
        super().__init__(memory.LINE, WORTH, plan)
        capacity, limited = memory.host_nbytes(), False
        while True:
            try:
                self._within = memory.Range(capacity, promised=False)
                if not limited:
                    break
                capacity, limited = capacity // 2, False    # others need addresses, too, until `shrink`
            except (OSError, MemoryError) as error:
                capacity, limited = capacity // 2, True
                if capacity < memory.RANGE // 64:
                    raise OutOfMemoryError(message("capture", "the system has no addresses for the memory of a "
                                                   "recording", "use a smaller batch or a smaller model")) from error
        self._begin = self._end = -(-self._within.start // memory.LINE) * memory.LINE

    def shrink(self) -> None:
        """Gives back the addresses that are not in use, when all pieces have their places."""
        self._within.shrink(self._end)

    def _grow(self, size: int) -> int:
        tail = self._runs.starts.get(self._end, self._end)
        start, missing = self._end, size - (self._end - tail)
        if start + missing > self._within.end:
            raise OutOfMemoryError(message(
                "capture", f"a recording needs more than the {self.managed_bytes / memory.MIB:,.1f} MiB that it has",
                "use a smaller batch or a smaller model"))
        if self.managed_bytes < LARGE <= start + missing - self._begin:
            self._within.in_large_pages()
        self._end = start + missing
        self._runs.add(start, missing)
        return tail

    def _unmap(self) -> None:
        """Gives the pages of free runs back; the range goes with its last piece."""
        if self._lock.acquire(blocking=False):
            try:
                self._join_freed()
                for start, size in self._runs.sizes.items():
                    first, last = -(-start // memory.PAGE) * memory.PAGE, (start + size) // memory.PAGE * memory.PAGE
                    if first < last:
                        self._within.drop(first, last)
            finally:
                self._lock.release()

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Returns an array in a piece of its own."""
        kind = np.dtype(dtype)
        piece = self.allocate(max(int(np.prod(shape, dtype=np.int64)) * kind.itemsize, 1))
        owner = Place.from_address(piece.start)
        owner.piece = piece
        return np.ndarray(shape, kind, owner)

    def alias(self, x: Array) -> Array:
        """Returns an array of the arena without a hold on its piece, for repeated calls."""
        address = ptr(x).value or 0
        return np.ndarray(x.shape, x.dtype, self._within._bytes, address - self._within.start, x.strides)
