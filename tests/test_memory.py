"""The CPU's memory pool: recycling, counting, limits."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from alpha.config import config
from alpha.cpu import memory
from alpha.cpu.memory import SMALL, Pool, bin_size, empty


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Pool:
    fresh = Pool()
    monkeypatch.setattr(memory, "pool", fresh)
    return fresh


@pytest.mark.parametrize("nbytes", [1, 15, 16, 17, SMALL, SMALL + 1, 99_999, 1 << 20, (1 << 20) + 1])
def test_a_bin_serves_what_is_asked_and_wastes_little(nbytes: int) -> None:
    assert nbytes <= bin_size(nbytes) <= max(nbytes * 9 / 8, nbytes + 1)
    assert bin_size(bin_size(nbytes)) == bin_size(nbytes)


def test_a_freed_block_is_handed_out_again(pool: Pool) -> None:
    a = empty((100, 1000), "float32")
    address = a.ctypes.data
    assert pool.live == bin_size(400_000) and pool.cached == 0
    del a
    assert pool.live == 0 and pool.cached == bin_size(400_000)
    assert empty((1000, 100), "float32").ctypes.data == address


def test_a_view_keeps_its_block(pool: Pool) -> None:
    view = empty((100, 1000), "float32")[50:].reshape(-1)
    gc.collect()
    assert pool.live == bin_size(400_000)
    view[:] = 1.0
    other = empty((100, 1000), "float32")
    other.fill(2.0)
    assert (view == 1.0).all()
    del view
    assert pool.live == bin_size(400_000) == pool.cached


def test_peak_and_limits(pool: Pool) -> None:
    blocks = [empty((SMALL,), "uint8") for _ in range(4)]
    del blocks
    assert pool.peak == 4 * SMALL and pool.live == 0 and pool.cached == 4 * SMALL
    pool.free_cached()
    assert pool.cached == 0
    with config(cpu_cache_mib=0):
        block = empty((SMALL,), "uint8")
        del block
    assert pool.cached == 0


def test_small_arrays_are_not_pooled(pool: Pool) -> None:
    a = empty((3, 5), "float64")
    assert a.shape == (3, 5) and a.dtype == np.float64 and pool.live == 0


def test_exhaustion_frees_the_cache_and_says_what_was_asked(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    block = empty((SMALL,), "uint8")
    del block

    def refuse(size: int, dtype: object) -> np.ndarray:
        raise MemoryError

    monkeypatch.setattr(memory.np, "empty", refuse)
    with pytest.raises(MemoryError, match=r"the system refused 2\.0 MiB .*live: 0\.0 MiB"):
        pool.take(2 << 20)
    assert pool.cached == 0


def test_no_block_leaks(pool: Pool) -> None:
    a = empty((SMALL,), "uint8")
    ref = weakref.ref(a.base)
    del a
    assert ref() is None
