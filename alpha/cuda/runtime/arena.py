"""Memory of a recording: one range of addresses that grows, in which neighbours that are freed become one again.

A pool keeps freed blocks by their size; a recording cannot give them back, as its addresses stay what they are. In an
arena a freed piece serves whatever fits, and neighbouring pieces join: over a training step it takes 1 to 30 % more
than the tensors that are there at the peak, where a pool takes 1.6 to 2 times as much. Where that is much, the work is
recorded once more, with each piece where alpha.lifetimes puts it, which knows by then when it comes and goes.

The range is as long as the device has memory, and costs nothing: memory is mapped behind its end when nothing in it
fits (cuMemMap). Like a pool's blocks, pieces are given to the next at once, which is safe in the order of one stream.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections import deque
from collections.abc import Sequence

from alpha.cuda.runtime import libcuda, memory
from alpha.cuda.runtime.context import context
from alpha.lifetimes import Life, Runs, pack

ALIGNMENT = 512  # bytes, of a piece
WORTH = 4 << 20  # bytes, that a plan must spare

# CUmemAllocationProp: types of memory and handle, type and number of the place, 16 bytes more; CUmemAccessDesc
_PROPERTIES, _ACCESS = struct.Struct("4i16x").pack, struct.Struct("3i").pack
PINNED, DEVICE, READ_AND_WRITE = 1, 1, 3

_waiting: list[Arena] = []  # those of which something was freed while the stream was recorded


class Piece:
    """A part of an arena, its holder's alone; `int(piece)` is its address.  Freed with the last reference."""

    __slots__ = ("arena", "number", "size", "start")

    def __init__(self, arena: Arena, start: int, size: int, number: int) -> None:
        self.arena, self.start, self.size, self.number = arena, start, size, number

    def __int__(self) -> int:
        return self.start

    def __del__(self) -> None:
        self.arena.give_back(self)


class Arena:
    """See the header.  Has what a recording needs of a PyCUDA pool, under the same names.

    Args:
        plan: sizes of the pieces to come, and where they are to lie; what comes otherwise lies where it fits best.
    Raises:
        DeviceError: the driver knows no ranges of addresses.
    """

    def __init__(self, plan: Sequence[tuple[int, int]] = ()) -> None:
        self._runs, self._plan = Runs(), plan
        self._mapped: dict[tuple[int, int], ctypes.c_uint64] = {}  # memory behind a part, by its start and size
        self._lives: list[Life] = []  # of all pieces so far
        # A finalizer may run while the lock is held: it leaves word here, of start, size and number.
        self._freed: deque[tuple[int, int, int]] = deque()
        self._lock, self._closed, self._keeps = threading.Lock(), False, False
        self._properties = _PROPERTIES(PINNED, 0, DEVICE, context.index)
        grain, begin = ctypes.c_size_t(), ctypes.c_uint64()
        libcuda.call("cuMemGetAllocationGranularity", ctypes.byref(grain), self._properties, 0)
        self._grain = grain.value
        self._capacity = self._grains(context.nbytes)
        libcuda.call("cuMemAddressReserve", ctypes.byref(begin), self._capacity, 0, 0, 0)
        self._begin = self._end = begin.value  # of what is mapped

    @property
    def managed_bytes(self) -> int:
        return sum(size for _, size in self._mapped)

    @property
    def active_bytes(self) -> int:
        with self._lock:
            self._join_freed()
            return self.managed_bytes - sum(self._runs.sizes.values())

    def allocate(self, nbytes: int) -> Piece:
        """Returns a piece.  Raises pycuda.driver.MemoryError."""
        size = -(-nbytes // ALIGNMENT) * ALIGNMENT
        with self._lock:
            self._join_freed()
            start, number = self._planned(size), len(self._lives)
            start = self._runs.best(size) if start is None else start
            start = self._grow(size) if start is None else start
            self._runs.take(start, size)
            self._lives.append(Life(size, number))
        return Piece(self, start, size, number)

    def plan(self) -> list[tuple[int, int]]:
        """Returns where the pieces that there were would lie in less memory; nothing where that spares little."""
        with self._lock:
            self._join_freed()
            places, nbytes = pack(self._lives)
        worth = self.managed_bytes - nbytes >= WORTH
        return [(life.size, place) for life, place in zip(self._lives, places)] if worth else []

    def keep(self, keeps: bool) -> None:
        """Has pieces that are freed serve nobody as long as it keeps them."""
        with self._lock:
            self._keeps = keeps
            self._join_freed()

    def give_back(self, piece: Piece) -> None:
        """Takes a piece back, from whatever thread, in the middle of whatever it does."""
        self._freed.append((piece.start, piece.size, piece.number))
        if self._closed:
            self._unmap()

    def close(self) -> None:
        """Gives back what no piece is in, and the rest when its pieces go.  Nothing is allocated any more."""
        self._closed = True
        self._unmap()

    def _grains(self, nbytes: int) -> int:
        return -(-nbytes // self._grain) * self._grain

    def _join_freed(self) -> None:
        while self._freed and not self._keeps:
            start, size, number = self._freed.popleft()
            self._runs.add(start, size)
            self._lives[number] = self._lives[number]._replace(end=len(self._lives))

    def _planned(self, size: int) -> int | None:
        """Returns the start of the next piece, if the plan knows it and nobody is there."""
        known, place = self._plan[len(self._lives)] if len(self._lives) < len(self._plan) else (0, 0)
        if known != size:
            return None
        if self._begin + place + size > self._end:
            self._grow(self._begin + place + size - self._runs.starts.get(self._end, self._end))
        return self._begin + place if self._runs.holds(self._begin + place, size) else None

    def _grow(self, size: int) -> int:
        """Maps memory behind the end, so that a run there has `size` bytes, and returns its start."""
        tail = self._runs.starts.get(self._end, self._end)
        start, missing = self._end, self._grains(size - (self._end - tail))
        handle, status = ctypes.c_uint64(), libcuda.OUT_OF_MEMORY
        if start + missing <= self._begin + self._capacity:
            status = libcuda.status_of("cuMemCreate", ctypes.byref(handle), missing, self._properties, 0)
        if status == libcuda.OUT_OF_MEMORY:
            raise context.driver.MemoryError(f"cuMemCreate failed: {missing} bytes are not there")
        libcuda.check("cuMemCreate", status)
        libcuda.call("cuMemMap", start, missing, 0, handle, 0)
        libcuda.call("cuMemSetAccess", start, missing, _ACCESS(DEVICE, context.index, READ_AND_WRITE), 1)
        self._mapped[start, missing] = handle
        self._end = start + missing
        self._runs.add(start, missing)
        return tail

    def _unmap(self) -> None:
        """Gives free memory back to the device; the last that goes takes the range along."""
        if memory.recorder:  # to wait for the stream would spoil the recording
            _waiting.append(self)
            return
        again = context.open
        while again and self._lock.acquire(blocking=False):  # its holder looks at what was freed since, at the end
            try:
                self._join_freed()
                context.synchronize()  # what used it may be running
                for part in [part for part in self._mapped if self._runs.holds(*part)]:
                    self._runs.take(*part)
                    libcuda.call("cuMemUnmap", *part)
                    libcuda.call("cuMemRelease", self._mapped.pop(part))
                if not self._mapped and self._capacity:
                    libcuda.call("cuMemAddressFree", self._begin, self._capacity)
                    self._capacity = 0
            finally:
                self._lock.release()
            again = bool(self._freed)


def unmap_waiting() -> None:
    """Gives back what was freed while the stream was recorded."""
    while _waiting:
        _waiting.pop().close()
