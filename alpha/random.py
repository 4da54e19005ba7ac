"""Random numbers that are a function of (seed, stream, counter): the same on every backend, in any order.

Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) turns a counter of 128 bits and a
key of 64 bits into four 32-bit words. The key is the seed; the counter is (block low, block high, stream, 0); number k
of a stream is word k mod 4 of block k // 4. A caller names a stream and a range of k, so results depend neither on how
a batch is split nor on earlier calls, and a resumed run draws the numbers that it would have drawn.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock

import numpy as np

from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import Seed, Size

STREAMS = {"default": 0, "dropout": 1, "permutation": 2, "augment": 3, "split": 4, "synthetic": 5, "sides": 6,
           "steps": 7, "draws": 8}

CHUNK = 1 << 14  # blocks made at a time, so that the words stay in the cache over the ten rounds

_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def philox(blocks: np.ndarray, stream: int | np.ndarray, seed: int, last: int = 0) -> np.ndarray:
    """Returns the four words of each block.

    Args:
        blocks: block numbers, uint64, shape (B,).
        stream: third counter word, below 2^32; a number or one per block.
        seed: the key, below 2^64.
        last: fourth counter word, below 2^32; 0 in every stream of alpha but "steps".
    Returns:
        uint32 of shape (B, 4).
    """
    c0, c1 = blocks & _LOW, blocks >> _HALF
    c2 = np.broadcast_to(np.asarray(stream, np.uint64), blocks.shape)
    c3 = np.full_like(blocks, last)
    k0, k1 = seed & 0xFFFFFFFF, seed >> 32
    for _ in range(10):
        p0, p1 = c0 * _M0, c2 * _M1
        c0, c1, c2, c3 = ((p1 >> _HALF) ^ c1 ^ np.uint64(k0), p1 & _LOW, (p0 >> _HALF) ^ c3 ^ np.uint64(k1), p0 & _LOW)
        k0, k1 = (k0 + _W0) & 0xFFFFFFFF, (k1 + _W1) & 0xFFFFFFFF
    return np.stack((c0, c1, c2, c3), -1).astype(np.uint32)


def random_bits(seed: int, stream: int, offset: int, n: int) -> np.ndarray:
    """Returns numbers offset .. offset + n - 1 of a stream, uint32 of shape (n,)."""
    first, last = offset // 4, (offset + n + 3) // 4
    words = np.empty((last - first, 4), np.uint32)
    for block in range(first, last, CHUNK):
        end = min(last, block + CHUNK)
        words[block - first:end - first] = philox(np.arange(block, end, dtype=np.uint64), stream, seed)
    return words.reshape(-1)[offset - 4 * first:offset - 4 * first + n]


def uniform(seed: int, stream: int, offset: int, n: int) -> np.ndarray:
    """Returns n numbers in [0, 1), multiples of 2^-24, float32: the upper 24 bits of `random_bits`."""
    return (random_bits(seed, stream, offset, n) >> np.uint32(8)).astype(np.float32) * np.float32(2.0 ** -24)


def normal(seed: int, stream: int, offset: int, n: int) -> np.ndarray:
    """Returns n standard normal numbers, float64, by Box and Muller; uses 2 * ceil(n / 2) numbers of the stream."""
    u = random_bits(seed, stream, offset, 2 * math.ceil(n / 2)).astype(np.float64).reshape(-1, 2)
    radius = np.sqrt(-2.0 * np.log((u[:, 0] + 0.5) * 2.0 ** -32))
    angle = 2.0 * math.pi * (u[:, 1] + 0.5) * 2.0 ** -32
    return np.stack((radius * np.cos(angle), radius * np.sin(angle)), -1).reshape(-1)[:n]


def permutation(seed: int, epoch: int, n: int) -> np.ndarray:
    """Returns an order of 0 .. n - 1 that depends on (seed, epoch) alone, int64 of shape (n,)."""
    bits = random_bits(seed, STREAMS["permutation"], epoch << 40, 2 * n).astype(np.uint64)
    return np.argsort((bits[0::2] << _HALF) | bits[1::2], kind="stable").astype(np.int64)


class _Global:
    """Where the next numbers of the process come from; saved in checkpoints as (seed, counter)."""

    def __init__(self) -> None:
        self.seed = self.counter = 0
        self.told: list[int] | None = None  # offsets, while a recording looks
        self.new_lock()

    def new_lock(self) -> None:
        """Forgets who was about to change them: a thread that a fork has left behind, say."""
        self.lock = Lock()


_global = _Global()
_part: ContextVar[tuple[int, int, int] | None] = ContextVar("alpha.random.part", default=None)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_global.new_lock)


@checked
def manual_seed(seed: Seed) -> None:
    """Starts the process's random numbers again from a seed in [0, 2^64).  Raises ConfigError, ArgumentError."""
    set_state(seed, 0)


def reserve(n: int) -> tuple[int, int]:
    """Returns (seed, offset) of n numbers that no other caller gets, in any thread; whole blocks are reserved.

    Within `part` they belong to the rows of a part, where n is a multiple of its rows.
    """
    with _global.lock:
        offset, before, total = _global.counter, 0, n
        rows = _part.get()
        if rows is not None and n % (rows[1] - rows[0]) == 0:
            each = n // (rows[1] - rows[0])
            before, total = rows[0] * each, rows[2] * each
        _global.counter = offset + -(-total // 4) * 4
        if _global.told is not None:
            _global.told.append(offset + before)
        return _global.seed, offset + before


@contextmanager
def told() -> Iterator[list[int]]:
    """For a block: what `reserve` gives is noted, the offsets in the list returned."""
    before, _global.told = _global.told, []
    try:
        yield _global.told
    finally:
        _global.told = before


@contextmanager
def part(first: int, last: int, rows: int) -> Iterator[None]:
    """For a block that computes rows first to before last of a batch: they get the numbers that they have in the whole.

    So dropout does not depend on how many ranks share a batch (alpha.dist).
    """
    token = _part.set((first, last, rows))
    try:
        yield
    finally:
        _part.reset(token)


def get_state() -> tuple[int, int]:
    """Returns (seed, counter) for `set_state`."""
    with _global.lock:
        return _global.seed, _global.counter


@checked
def set_state(seed: Seed, counter: Size) -> None:
    """Continues from a state that `get_state` returned.  Raises ConfigError, ArgumentError."""
    with _global.lock:
        _global.seed, _global.counter = int(seed), int(counter)
