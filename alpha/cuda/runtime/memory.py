"""Device memory: arrays in a PyCUDA memory pool, with counters, a limit, and a report when it runs out.

A block that is freed goes back to the pool at once, while kernels that use it may still be running. That is safe
because all kernels run in order on one stream: whoever gets the block next writes it after they have read it.
"""

from __future__ import annotations

import gc
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import cache, partial
from math import prod
from typing import Any

import numpy as np

from alpha.core.config import config
from alpha.core.errors import OutOfMemoryError, message
from alpha.cuda.runtime import backlog
from alpha.cuda.runtime.context import blaming, context

Shape = tuple[int, ...]

ITEMSIZE = {"float32": 4, "bfloat16": 2, "float16": 2, "int64": 8, "int32": 4, "uint8": 1, "bool": 1}
PINNED_FROM = 1 << 16  # bytes from which a copy to the device goes through page-locked memory
RESERVE = 1 << 28      # bytes that are free on the device as long as launches wait to be made
LEAST = 2              # bytes of the smallest block that is asked for; Pool.free_held keeps one of less

here = context.here

on_allocate: Callable[[int, int], None] | None = None  # called with the address and size of every new block
on_exhaustion: Callable[[], None] | None = None        # called when memory has run out, before the last try
write_waiting: Callable[[], None] | None = None        # writes all arrays that wait for a reader: lazy/deferred.py
largest: Callable[[], list[tuple[int, str]]] = list    # the largest live tensors, with their bytes: report.py
recorder: Any = None                                   # while the compute stream is recorded (runtime/recording.py)


class Derived(dict[str, Any]):
    """What was computed from the elements of some memory, by name, until they change; each has .nbytes.

    Whatever overwrites elements clears it: `Op` for the arguments that an op mutates, and the backend's copy_into.
    """

    visible = False  # to other libraries, which write without a word: then nothing may be kept
    wanted = ""      # what whoever writes the elements is asked to leave here too, by name
    history: Any = None  # alpha.core.versions.History of the memory; stays when the rest is dropped


class Array:
    """Elements on the device, C-contiguous, from the start of a block of the pool.

    Attributes:
        ptr: device address, a multiple of 256.
        shape, dtype, size, nbytes: as of a NumPy array; the dtype is a name such as "float32".
        block: the pool's allocation, freed with the last array that uses it; or the owner of memory from elsewhere.
        derived: what was computed from the elements, shared by all arrays over the memory; None until it is used.
    """

    __slots__ = ("__weakref__", "block", "derived", "dtype", "nbytes", "ptr", "shape", "size")

    def __init__(self, block: Any, ptr: int, shape: Shape, dtype: str, size: int, nbytes: int,
                 derived: Derived | None = None) -> None:
        self.block, self.ptr, self.derived = block, ptr, derived
        self.shape, self.dtype = shape, dtype  # assigned in threes at most: more would make a tuple first
        self.size, self.nbytes = size, nbytes

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def reshaped(self, shape: Shape) -> Array:
        """Returns an array of another shape over the same memory."""
        return Array(self.block, self.ptr, shape, self.dtype, self.size, self.nbytes, self.derive())

    def derive(self) -> Derived:
        """Returns `derived`, made if need be."""
        if self.derived is None:
            self.derived = Derived()
        return self.derived

    def written(self) -> Array:
        """Returns an array whose elements are there: itself, unless it waits for a reader (lazy/deferred.py)."""
        return self

    def __repr__(self) -> str:
        return f"<cuda {type(self).__name__} {self.shape} {self.dtype}>"


class Pool:
    """PyCUDA's pools and what is counted about them.  Bytes are those asked for, not those that blocks round up to."""

    def __init__(self, main: Any, pinned: Any) -> None:
        self.main, self.pinned = main, pinned  # main: of all arrays but those of recordings, which have an arena each
        self.device = self.main                # the one that blocks are taken from now
        self.reserved = 0                      # bytes that recordings hold
        self.peak = 0                          # the most that was live since the last reset
        self.bound = 0  # at least the bytes of `main` that are live; what is freed counts until `count` has asked
        self.free_held()
        self._in_flight: deque[tuple[Any, Any]] = deque()  # (event, what the device uses until then)
        self._lock = threading.RLock()  # reentrant: a garbage collection inside may call `until`

    @property
    def live(self) -> int:
        recording = 0 if self.device is self.main else self.device.active_bytes
        return self.main.active_bytes + self.reserved + recording

    @property
    def cached(self) -> int:
        return self.main.managed_bytes - self.main.active_bytes

    def count(self) -> None:
        """Raises the peak to what is live, if that is more, and brings the bound down to it."""
        surplus = self.bound - self.main.active_bytes
        self.bound -= surplus  # not set: another thread may have added its block meanwhile
        self.peak = max(self.peak, self.live)

    def until(self, event: Any, thing: Any) -> None:
        """Keeps `thing` alive until the event has passed, and lets go of what was kept for earlier events."""
        self._in_flight.append((event, thing))
        self.drain()

    def drain(self) -> None:
        """Lets go of what the device is done with."""
        done = []
        with self._lock:
            while self._in_flight and self._in_flight[0][0].query():
                done.append(self._in_flight.popleft())

    def free_held(self) -> None:
        """Gives all blocks that no array uses back to the device, but for one of a size that nobody asks for.

        A pool that holds none of its freed blocks needs a current context to take one back, and ends the process where
        there is none: in a thread that never used the device, but drops the last reference to a tensor.
        """
        self.main.free_held()
        self.main.allocate(1)

    def close(self) -> None:
        """At exit, while the context is there: page-locked memory is given back, and nothing freed is held any more."""
        self._in_flight.clear()
        self.pinned.stop_holding()
        self.main.stop_holding()


pool: Pool = None  # type: ignore[assignment]  # made by `start`
_starting = threading.Lock()


def start() -> None:
    """Makes the pools, once the context is there."""
    global pool
    with _starting:
        if pool is None:
            from pycuda.tools import DeviceMemoryPool, PageLockedMemoryPool

            pool = Pool(DeviceMemoryPool(), PageLockedMemoryPool())
            context.at_exit.append(pool.close)


def empty(shape: Shape, dtype: str) -> Array:
    """Returns an array with undefined elements.  Raises OutOfMemoryError."""
    size, nbytes = extent(shape, dtype)
    block = allocate(nbytes)
    return Array(block, int(block), shape, dtype, size, nbytes)


def extent(shape: Shape, dtype: str) -> tuple[int, int]:
    """Returns size and bytes of an array."""
    size = prod(shape)
    return size, size * ITEMSIZE[dtype]


def allocate(nbytes: int) -> Any:
    """Returns a block of the pool of at least `nbytes` bytes; `int(block)` is its address."""
    if not here.entered:
        context.enter()
    limit = config.cuda_memory_mib << 20
    if limit and pool.live + nbytes > limit:
        gc.collect()
        if pool.live + nbytes > limit and on_exhaustion:
            on_exhaustion()
        if pool.live + nbytes > limit:
            raise _out_of_memory(nbytes)
    asked = nbytes if nbytes > LEAST else LEAST
    if backlog.waiting and context.driver.mem_get_info()[0] < RESERVE + 2 * asked:
        backlog.run()  # the pool may soon give blocks back to the device that launches in the backlog use
    try:
        block = pool.device.allocate(asked)
    except context.driver.MemoryError:
        block = _allocate_again(nbytes, asked)
    if recorder:
        recorder.allocated(int(block))  # it serves several arrays at each replay, of which nobody is told
    elif on_allocate:
        on_allocate(int(block), nbytes)
    pool.bound += asked
    if recorder or pool.bound + pool.reserved > pool.peak:  # else there is no need to ask the pool
        pool.count()
    if limit and pool.live + pool.cached > limit:
        free_cached()
    return block


def _allocate_again(nbytes: int, asked: int) -> Any:
    """Tries once more, when garbage and cached blocks are gone."""
    gc.collect()
    if on_exhaustion:
        on_exhaustion()
    free_cached()
    try:
        return pool.device.allocate(asked)
    except context.driver.MemoryError:
        raise _out_of_memory(nbytes) from None


def free_cached() -> None:
    """Gives all blocks that no array uses back to the device."""
    if pool is not None:
        context.synchronize()
        pool.drain()
        pool.free_held()


def _out_of_memory(nbytes: int) -> OutOfMemoryError:
    free, total = context.driver.mem_get_info()
    limit = config.cuda_memory_mib
    lines = "".join(f"\n  {mib(size)} {what}" for size, what in largest())
    return OutOfMemoryError(message(
        "cuda", f"out of memory: {mib(nbytes)} asked for, {mib(free)} of {mib(total)} are free on the device",
        "use a smaller batch, or --precision bf16" + (", or raise ALPHA_CUDA_MEMORY_MIB" if limit else ""),
        live=mib(pool.live), cached=mib(pool.cached), peak=mib(pool.peak), limit=f"{limit} MiB" if limit else "none",
        **{"largest live tensors": lines or "none"}))


def mib(nbytes: int) -> str:
    return f"{nbytes / 2 ** 20:.1f} MiB"


def upload(a: np.ndarray, dtype: str | None = None) -> Array:
    """Returns a device array with the elements of `a`, there before any later kernel runs.

    Large arrays travel through page-locked memory on the copy stream; the host goes on at once.
    """
    a = np.asarray(a, order="C")
    if recorder:
        return recorder.upload(a, dtype)
    out = empty(a.shape, dtype or a.dtype.name)
    if backlog.waiting and a.nbytes:
        backlog.add(partial(_send, out.ptr, a.copy()))
    elif a.nbytes:
        _send(out.ptr, a)
    return out


def counters(n: int) -> Array:
    """Returns n zeros, int32, by which blocks count those that have come: a launch leaves them as it finds them.

    All launches share them, as they follow each other; those of a recording need not, and have their own.
    """
    return upload(np.zeros(n, np.int32)) if recorder else _kept_counters((n - 1).bit_length())


@cache
def _kept_counters(bits: int) -> Array:
    return upload(np.zeros(1 << bits, np.int32))


def _send(ptr: int, a: np.ndarray) -> None:
    """Copies the elements of `a` to an address, in stream order."""
    driver = context.driver
    with blaming:
        if a.nbytes < PINNED_FROM:
            driver.memcpy_htod_async(ptr, a, context.stream)
            return
        staged = pool.pinned.allocate(a.shape, a.dtype)
        staged[...] = a
        context.copy_stream.wait_for_event(event().record(context.stream))  # the block's last reader is done
        driver.memcpy_htod_async(ptr, staged, context.copy_stream)
        copied = event().record(context.copy_stream)
        context.stream.wait_for_event(copied)
        pool.until(copied, staged)


def event() -> Any:
    """Returns an event that orders streams and keeps no time, which is the cheaper kind."""
    return context.driver.Event(context.driver.event_flags.DISABLE_TIMING)


def download(x: Array, dtype: Any) -> np.ndarray:
    """Returns a NumPy array with the elements of x, when everything before is done."""
    if not here.entered:
        context.enter()
    if recorder:
        raise recorder.refusal("a tensor is read back to the host")
    out = np.empty(x.shape, dtype)
    if not x.nbytes:
        return out
    ptr = x.ptr
    backlog.run()
    with blaming:
        context.driver.memcpy_dtoh_async(out, ptr, context.stream)
        context.stream.synchronize()
    return out


def fetch(arrays: Sequence[Array]) -> Callable[[], list[np.ndarray]]:
    """Begins to copy arrays to the host, beside later work; what is returned waits for them, and gives them."""
    if recorder or backlog.waiting or not all(x.nbytes for x in arrays):
        return lambda: [download(x, x.dtype) for x in arrays]
    staged = [(pool.pinned.allocate(x.shape, x.dtype), x.ptr) for x in arrays]  # ptr has what waits written
    with blaming:
        context.copy_stream.wait_for_event(event().record(context.stream))
        for host, ptr in staged:
            context.driver.memcpy_dtoh_async(host, ptr, context.copy_stream)
        copied = event().record(context.copy_stream)
    pool.until(copied, (arrays, staged))

    def fetched() -> list[np.ndarray]:
        with blaming:
            copied.synchronize()
        return [host.copy() for host, _ in staged]
    return fetched


def copy(dst: Array, src: Array) -> None:
    """Copies the bytes of src to dst, in stream order."""
    if not here.entered:
        context.enter()
    if recorder:
        recorder.hold((dst, src))
    if src.nbytes:
        work = partial(_copy, dst.ptr, src.ptr, src.nbytes)
        backlog.add(work) if backlog.waiting else work()


def offset(x: Array, nbytes: int) -> Array | int:
    """Returns what a launch takes for x from so many bytes on: an address, or x itself, which a recording holds."""
    return x.ptr + nbytes if nbytes else x


def _copy(dst: int, src: int, nbytes: int) -> None:
    with blaming:
        context.driver.memcpy_dtod_async(dst, src, nbytes, context.stream)


class Lease:
    """Holds the owner of memory from elsewhere until the kernels that were launched on it are done."""

    def __init__(self, owner: Any) -> None:
        self.owner = owner

    def __del__(self) -> None:
        if context.open:
            if not here.entered:
                context.enter()
            pool.until(event().record(context.stream), self.owner)


def wrap(address: int, shape: Shape, dtype: str, owner: Any) -> Array:
    """Returns an array over memory of the device that somebody else owns; `owner` lives as long as it is in use."""
    backlog.close()
    array = Array(Lease(owner), address, shape, dtype, *extent(shape, dtype))
    array.derive().visible = True
    return array
