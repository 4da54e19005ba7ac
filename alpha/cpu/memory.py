"""A pool for the CPU's arrays: freed blocks are kept and handed out again.

A fresh array of megabytes costs a page fault per 4 KiB, often more than the kernel that fills it. The pool keeps freed
blocks in bins (a power of two in eight steps, so at most one ninth is wasted) and counts live, cached and peak bytes.
Live and cached blocks together are at most KEPT times what was live at most: a training step of GoogLeNet, whose sizes
are many, needs 1.4 times. What more there is comes from shapes that changed: the bin unused longest is freed first.
Arrays below SMALL bytes are NumPy's own and are not counted.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from alpha.config import config
from alpha.cpu.native import ptr
from alpha.errors import OutOfMemoryError, message
from alpha.inputs.sizes import host_nbytes

SMALL = 128 * 1024  # malloc keeps those, and asks the system for larger ones
LINE = 64  # bytes of a line of the cache; a vector that crosses lines is read and written twice
MIB = 1 << 20
KEPT, FLOOR = 1.6, 64 * MIB  # times the highest live bytes, or always this much: what live and cached blocks may have

on_allocate: Callable[[int, int], None] | None = None  # called with the address and size of every block handed out

_typestr = {key: np.dtype(name).str for name in ("float16", "float32", "float64", "int32", "int64", "uint8", "bool")
            for key in (name, np.dtype(name), np.dtype(name).type)}  # dtype.name takes microseconds
_itemsize = {key: np.dtype(key).itemsize for key in _typestr}


def bin_size(nbytes: int) -> int:
    """Returns the size of the smallest block that serves nbytes."""
    step = 1 << max(0, nbytes.bit_length() - 4)
    return -(-nbytes // step) * step


def _aligned(size: int) -> np.ndarray:
    """Returns fresh bytes that begin with a line of the cache; NumPy's own begin 16 bytes behind a page."""
    raw = np.empty(size + LINE, np.uint8)
    first = -raw.__array_interface__["data"][0] % LINE
    return raw[first:first + size]


class Pool:
    """Blocks of host memory, live and cached.  Thread-safe."""

    def __init__(self) -> None:
        self.live = self.cached = self.peak = 0
        self._high = 0  # the most that was live since the last free_cached
        self._bins: OrderedDict[int, list[np.ndarray]] = OrderedDict()  # the one that got a block last comes last
        self._lock = threading.RLock()  # reentrant: a garbage collection inside may free a block

    def take(self, nbytes: int) -> np.ndarray:
        """Returns raw bytes of at least nbytes, recycled if there are some.  Raises OutOfMemoryError."""
        size = bin_size(nbytes)
        with self._lock:
            free = self._bins.get(size)
            if free:
                raw = free.pop()
                self.cached -= size
                self.live += size
            else:
                raw = self._fresh(size)
                self.live += size
                self._shrink()
            self.peak = max(self.peak, self.live)
            if self.live > self._high:
                self._high = self.live
        return raw

    def _shrink(self) -> None:
        """Frees the bins unused longest; here and not in `give`, which a garbage collection may call at any moment."""
        self._high = max(self._high, self.live)
        limit = max(FLOOR, KEPT * self._high)
        while self.live + self.cached > limit and self._bins:
            size, blocks = self._bins.popitem(last=False)
            self.cached -= size * len(blocks)

    def _fresh(self, size: int) -> np.ndarray:
        if self.live + size > host_nbytes():  # the system might promise it, and end the process when it is used
            raise OutOfMemoryError(message(
                "memory", f"{size / MIB:,.1f} MiB are asked for, the host has {host_nbytes() / MIB:,.1f}",
                "use a smaller batch or a smaller model", live=f"{self.live / MIB:,.1f} MiB",
                peak=f"{self.peak / MIB:,.1f} MiB"))
        for last in (False, True):
            try:
                return _aligned(size)
            except MemoryError as error:
                if last:
                    raise OutOfMemoryError(message(
                        "memory", f"the system refused {size / MIB:.1f} MiB", "use a smaller batch or a smaller model",
                        live=f"{self.live / MIB:.1f} MiB", peak=f"{self.peak / MIB:.1f} MiB")) from error
                self.free_cached()
        raise AssertionError("unreachable")

    def give(self, raw: np.ndarray) -> None:
        """Takes a block back; keeps it unless the cache is full."""
        with self._lock:
            size = raw.nbytes
            self.live -= size
            if self.cached + size <= config.cpu_cache_mib * MIB:
                self.cached += size
                blocks = self._bins.get(size)
                if blocks is None:
                    self._bins[size] = [raw]
                else:
                    blocks.append(raw)
                    self._bins.move_to_end(size)

    def free_cached(self) -> None:
        """Returns every cached block to the system."""
        with self._lock:
            self._bins.clear()
            self.cached, self._high = 0, self.live


class _Block:
    """Owner of one block: the array made from it holds it, and its end gives the block back."""

    __slots__ = ("__array_interface__", "__weakref__", "_raw")

    def __init__(self, raw: np.ndarray, address: int, shape: tuple[int, ...], typestr: str) -> None:
        self._raw = raw
        self.__array_interface__ = {"shape": shape, "typestr": typestr, "version": 3, "data": (address, False)}

    def __del__(self) -> None:
        pool.give(self._raw)


class Borrowed:
    """Memory of somebody else: the array made from it holds it, and with it the owner."""

    def __init__(self, address: int, shape: tuple[int, ...], dtype: str, owner: Any) -> None:
        self.owner = owner
        self.__array_interface__ = {"shape": shape, "typestr": _typestr[dtype], "version": 3, "data": (address, False)}


pool = Pool()


def empty(shape: tuple[int, ...], dtype: Any = "float32") -> np.ndarray:
    """Returns an uninitialised C-contiguous array of a shape and a dtype (name or NumPy dtype)."""
    nbytes = prod(shape) * _itemsize[dtype]
    if nbytes < SMALL:
        return np.empty(shape, dtype)
    raw = pool.take(nbytes)
    address = ptr(raw).value or 0
    if on_allocate:
        on_allocate(address, raw.nbytes)
    return np.asarray(_Block(raw, address, tuple(shape), _typestr[dtype]))


def empty_like(a: np.ndarray) -> np.ndarray:
    """Returns an uninitialised array of the shape and dtype of `a`."""
    return empty(a.shape, a.dtype)
