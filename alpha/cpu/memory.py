"""A pool for the CPU's arrays: blocks lie in ranges of addresses, and freed ones are handed out again.

A fresh array of megabytes costs a page fault per 4 KiB, often more than the kernel that fills it; so what was freed is
kept. A block gets the smallest free run that holds it, and a freed one is joined with its neighbours, whatever their
sizes: a training step of four networks takes 2 to 5 % more than what is live at its worst moment, and from the third
step on nothing fresh. A range is much larger than what is asked for, as the system gives memory to those pages alone
that were written to. Arrays below SMALL bytes are NumPy's own and are not counted.

The next array often has the size of one just freed, and an op that reads megabytes leaves nothing of Python's in the
caches: to join and cut runs takes 20 us then, 7 % of an addition of a million elements. So the blocks given back last
are looked at first, and joined when none of them will do, or there are more than LATELY.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
import threading
from bisect import bisect_right
from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import numpy as np

from alpha.core.config import config
from alpha.core.errors import OutOfMemoryError, message
from alpha.core.inputs.sizes import host_nbytes

SMALL = 128 * 1024  # malloc keeps those, and asks the system for larger ones
LINE = 64  # bytes of a line of the cache; a vector that crosses lines is read and written twice
MIB = 1 << 20
LATELY = 8  # blocks given back that are not joined yet
RANGE = 1 << 30  # bytes of addresses that are asked for at least; as many as there are, if those are more

PAGE = mmap.PAGESIZE
NO_RESERVE = 0x4000 if sys.platform == "linux" else 0   # MAP_NORESERVE, which Python names from 3.13 on

on_allocate: Callable[[int, int], None] | None = None  # called with the address and size of every block handed out

_dtype = {key: np.dtype(name) for name in ("float16", "float32", "float64", "int32", "int64", "uint8", "bool")
            for key in (name, np.dtype(name), np.dtype(name).type)}  # dtype.name takes microseconds
_itemsize = {key: dtype.itemsize for key, dtype in _dtype.items()}


class Range:
    """Addresses that the system gives memory for as they are written to.

    promised: whether the system counts them as memory that may be wanted, as it does for a fork.
    """

    def __init__(self, nbytes: int, promised: bool = True) -> None:
        pages = -(-(nbytes + LINE) // mmap.PAGESIZE)  # a line more, else a run could go on in the next range
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | (0 if promised else NO_RESERVE)
        self._map = mmap.mmap(-1, pages * mmap.PAGESIZE, flags)
        if promised:
            self.in_large_pages()
        self._see()

    def _see(self) -> None:
        first = ctypes.c_char.from_buffer(self._map)    # for a moment: a map that is looked at cannot shrink
        self.start = ctypes.addressof(first)
        del first
        seen = (ctypes.c_uint8 * len(self._map)).from_address(self.start)
        seen.map = self._map    # type: ignore[attr-defined]  # arrays over the bytes keep it
        self._bytes = np.frombuffer(seen, np.uint8)
        self.end = self.start + self._bytes.nbytes - LINE

    def shrink(self, end: int) -> None:
        """Gives the addresses from `end` on back to the system, where it takes a part of them."""
        try:
            self._map.resize(-(-(end + LINE - self.start) // mmap.PAGESIZE) * mmap.PAGESIZE)
        except (OSError, SystemError, ValueError):  # without mremap
            return
        self._see()

    def in_large_pages(self) -> None:
        """Asks for 2 MiB a fault, as NumPy does."""
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._map.madvise(mmap.MADV_HUGEPAGE)

    def drop(self, start: int, end: int) -> None:
        """Gives the memory of whole pages back to the system, not the addresses."""
        self._map.madvise(mmap.MADV_DONTNEED, start - self.start, end - start)


class Block(NamedTuple):
    """A piece of a range, which it keeps."""

    within: Range
    start: int
    nbytes: int


class Runs(NamedTuple):
    """Runs of addresses in order; neighbours are joined.  Never changed: `add` and `cut` return others."""

    starts: list[int]
    sizes: list[int]

    def best(self, size: int) -> int | None:
        """Returns the number of the smallest run that is large enough, the first of those; None if there is none."""
        fitting = [n for n in self.sizes if n >= size]
        return self.sizes.index(min(fitting)) if fitting else None

    def add(self, start: int, size: int) -> Runs:
        """Returns the runs with one more, which touches or overlaps none but at its ends."""
        starts, sizes = self
        first = last = bisect_right(starts, start)
        end = start + size
        if first and starts[first - 1] + sizes[first - 1] == start:
            first -= 1
            start = starts[first]
        if last < len(starts) and starts[last] == end:
            end += sizes[last]
            last += 1
        return Runs([*starts[:first], start, *starts[last:]], [*sizes[:first], end - start, *sizes[last:]])

    def cut(self, start: int, end: int) -> tuple[Runs, int]:
        """Returns the runs without what lies in [start, end), and how many bytes that is."""
        left, removed = self, 0
        if not self.starts or end <= self.starts[0]:
            return left, removed
        for run, size in zip(*self):
            first, last = max(run, start), min(run + size, end)
            if first < last:
                k = left.starts.index(run)
                parts = [(a, b - a) for a, b in ((run, first), (last, run + size)) if a < b]
                left = Runs([*left.starts[:k], *(a for a, _ in parts), *left.starts[k + 1:]],
                            [*left.sizes[:k], *(n for _, n in parts), *left.sizes[k + 1:]])
                removed += last - first
        return left, removed


class Pool:
    """Blocks of host memory, live and cached.  Thread-safe.

    A garbage collection may begin at any line, and free blocks, or take some: those wait in `_given`, or get a range of
    their own, while `_busy`. An interrupt may end any line: the next state is made beside the one that counts. Only who
    is `_busy` takes blocks out of `_given`; anybody appends to it.
    """

    def __init__(self) -> None:
        self.peak = self._taken = self._cached = 0  # what was given back counts as taken until it is joined
        self._ranges: list[Range] = []
        self._free = self._fresh = Runs([], [])  # what is not live, and the part of it that has no memory
        self._given: list[Block] = []
        self._lock = threading.RLock()
        self._busy = False

    @property
    def live(self) -> int:
        """Bytes of the blocks in use."""
        self._settle()
        return self._taken

    @property
    def cached(self) -> int:
        """Bytes of memory that is kept for blocks to come."""
        self._settle()
        return self._cached

    def take(self, nbytes: int) -> Block:
        """Returns a block of at least nbytes, recycled if there is one.  Raises OutOfMemoryError."""
        size = -(-nbytes // LINE) * LINE
        with self._lock:
            if self._busy:
                own = Range(size)
                return Block(own, own.start, size)
            self._busy = True
            try:
                given = self._given
                for k in range(len(given) - 1, -1, -1):
                    if given[k].nbytes == size and given[k].within in self._ranges:
                        # `peak` knows of it: it was no less when the block was cut
                        return given.pop(k)
                self._join()
                return self._take(size)
            finally:
                self._busy = False

    def _take(self, size: int) -> Block:
        if self._taken + size > host_nbytes():  # the system might promise it, and end the process when it is used
            raise OutOfMemoryError(message(
                "memory", f"{size / MIB:,.1f} MiB are asked for, the host has {host_nbytes() / MIB:,.1f}",
                "use a smaller batch or a smaller model", live=f"{self._taken / MIB:,.1f} MiB",
                peak=f"{self.peak / MIB:,.1f} MiB"))
        k = self._free.best(size)
        if k is None:
            self._add_range(size)
            k = self._free.best(size)
            assert k is not None
        starts, sizes = self._free[0][:], self._free[1][:]
        start = starts[k]
        if sizes[k] == size:
            del starts[k], sizes[k]
        else:
            starts[k] += size
            sizes[k] -= size
        fresh, unused = self._fresh.cut(start, start + size)
        block = Block(self._range_of(start), start, size)
        self._free, self._fresh = Runs(starts, sizes), fresh
        self._taken += size
        self._cached -= size - unused
        if self._taken > self.peak:
            self.peak = self._taken
        return block

    def _range_of(self, start: int) -> Range:
        for within in self._ranges:
            if within.start <= start < within.end:
                return within
        raise AssertionError("unreachable")

    def _add_range(self, size: int) -> None:
        """Asks the system for addresses: for many, else for what is needed, else once more without what is cached."""
        most = max(RANGE, size, sum(r.end - r.start for r in self._ranges))
        refused: Exception | None
        for nbytes in (most, size, size):
            try:
                new = Range(nbytes)
                break
            except (OSError, MemoryError) as error:
                refused = error
                if nbytes == size:
                    self._free_cached()
        else:
            raise OutOfMemoryError(message(
                "memory", f"the system refused {size / MIB:.1f} MiB", "use a smaller batch or a smaller model",
                live=f"{self._taken / MIB:.1f} MiB", peak=f"{self.peak / MIB:.1f} MiB")) from refused
        refused = None  # it holds the frames of all callers, and this one holds it
        free, fresh = (runs.add(new.start, new.end - new.start) for runs in (self._free, self._fresh))
        self._ranges, self._free, self._fresh = [*self._ranges, new], free, fresh

    def give(self, block: Block) -> None:
        """Takes a block back; keeps its memory unless the cache is full."""
        self._given.append(block)
        if len(self._given) > LATELY or self._taken + self._cached > config.cpu_cache_mib * MIB:
            self._settle()

    def _settle(self) -> None:
        """Joins what was given back with the free runs, but in the midst of another call."""
        with self._lock:
            if not self._busy:
                self._busy = True
                try:
                    self._join()
                finally:
                    self._busy = False

    def _join(self) -> None:
        """Joins what was given back with the free runs."""
        while self._given:
            within, start, size = self._given.pop(0)
            if within not in self._ranges:  # a range of its own, which goes with it
                continue
            self._free = free = self._free.add(start, size)
            self._taken -= size
            self._cached += size
            if self._cached > config.cpu_cache_mib * MIB:
                k = bisect_right(free.starts, start) - 1
                self._drop(within, free.starts[k], free.starts[k] + free.sizes[k])

    def _drop(self, within: Range, start: int, end: int) -> None:
        """Gives the whole pages of a free run back to the system."""
        start, end = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
        if start < end:
            within.drop(start, end)
            fresh, unused = self._fresh.cut(start, end)
            self._fresh = fresh.add(start, end - start)
            self._cached -= end - start - unused

    def reserve(self, nbytes: int) -> None:
        """Counts the memory of a recording as live; a negative number takes it back."""
        self._settle()
        with self._lock:
            self._taken += nbytes
            self.peak = max(self.peak, self._taken)

    def free_cached(self) -> None:
        """Returns what is cached to the system: whole pages, and ranges in which nothing is live."""
        with self._lock:
            if not self._busy:
                self._busy = True
                try:
                    self._join()
                    self._free_cached()
                finally:
                    self._busy = False

    def _free_cached(self) -> None:
        for within in self._ranges:
            for start, size in zip(*self._free):
                if (start, start + size) == (within.start, within.end):
                    fresh, unused = self._fresh.cut(start, within.end)
                    self._free, self._fresh = self._free.cut(start, within.end)[0], fresh
                    self._ranges = [r for r in self._ranges if r is not within]
                    self._cached -= size - unused
                elif within.start <= start < within.end:
                    self._drop(within, start, start + size)


class Owner(ctypes.c_uint8 * (1 << 46)):
    """Owner of one block: the array made from it holds it, and its end gives the block back.

    An array takes the address from it, and has a shape of its own: the length of all addresses says nothing.
    """

    __slots__ = ("block",)
    block: Block

    def __del__(self) -> None:
        pool.give(self.block)


class Borrowed:
    """Memory of somebody else: the array made from it holds it, and with it the owner."""

    def __init__(self, address: int, shape: tuple[int, ...], dtype: str, owner: Any) -> None:
        self.owner = owner
        self.__array_interface__ = {"shape": shape, "typestr": _dtype[dtype].str, "version": 3,
                                    "data": (address, False)}


pool = Pool()


class Here(threading.local):
    """What a thread does: records a function, or repeats a part of one (alpha.cpu.recording).

    Attributes:
        instead: gives arrays in place of the pool, None for one that it has not.
        recorder: while a function is recorded.
    """

    instead: Callable[[tuple[int, ...], Any], np.ndarray | None] | None = None
    recorder: Any = None


here = Here()


def empty(shape: tuple[int, ...], dtype: Any = "float32") -> np.ndarray:
    """Returns an uninitialised C-contiguous array of a shape and a dtype (name or NumPy dtype)."""
    if here.instead is not None and (given := here.instead(shape, dtype)) is not None:
        return given
    nbytes = prod(shape) * _itemsize[dtype]
    if nbytes < SMALL:
        return np.empty(shape, dtype)
    block = pool.take(nbytes)
    if on_allocate:
        on_allocate(block.start, block.nbytes)
    owner = Owner.from_address(block.start)
    owner.block = block
    return np.ndarray(shape, _dtype[dtype], owner)


def empty_like(a: np.ndarray) -> np.ndarray:
    """Returns an uninitialised array of the shape and dtype of `a`."""
    return empty(a.shape, a.dtype)
