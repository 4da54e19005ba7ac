"""Memory of a recording on a GPU: an arena (alpha.lifetimes) whose end memory is mapped to.

The range is as long as the device has memory, and costs nothing: memory is mapped behind its end when nothing in it
fits (cuMemMap). Like a pool's blocks, pieces are given to the next at once, which is safe in the order of one stream.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence

from alpha import lifetimes
from alpha.cuda.runtime import libcuda, memory
from alpha.cuda.runtime.context import context

ALIGNMENT = 512  # bytes, of a piece
WORTH = 4 << 20  # bytes, that a plan must spare

# CUmemAllocationProp: types of memory and handle, type and number of the place, 16 bytes more; CUmemAccessDesc
_PROPERTIES, _ACCESS = struct.Struct("4i16x").pack, struct.Struct("3i").pack
PINNED, DEVICE, READ_AND_WRITE = 1, 1, 3

_waiting: list[Arena] = []  # those of which something was freed while the stream was recorded


class Arena(lifetimes.Arena):
    """See the header.  Has what a recording needs of a PyCUDA pool, under the same names.

    Args:
        plan: see alpha.lifetimes.Arena.
    Raises:
        DeviceError: the driver knows no ranges of addresses.
    """

    def __init__(self, plan: Sequence[tuple[int, int]] = ()) -> None:
        super().__init__(ALIGNMENT, WORTH, plan)
        self._mapped: dict[tuple[int, int], ctypes.c_uint64] = {}  # memory behind a part, by its start and size
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

    def _grains(self, nbytes: int) -> int:
        return -(-nbytes // self._grain) * self._grain

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
