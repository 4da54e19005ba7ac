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
    gc.collect()  # else blocks that other tests left are given back to this one
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


@pytest.mark.parametrize("nbytes", [SMALL, SMALL + 4, 199_999, 1 << 20, (1 << 20) + 4, 1 << 23])
def test_a_block_begins_with_a_line_of_the_cache(pool: Pool, nbytes: int) -> None:
    held = [empty((nbytes,), "uint8") for _ in range(3)]
    assert {a.ctypes.data % 64 for a in held} == {0}
    assert pool.live == 3 * bin_size(nbytes)


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


def step(sizes: list[int]) -> None:
    """What a training step does: one array after another, all of them live at its end."""
    held = [empty((size,), "uint8") for size in sizes]
    del held


def test_the_cache_is_bounded_by_what_was_live(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of many sizes fill many bins, of which a step uses few."""
    monkeypatch.setattr(memory, "FLOOR", 1 << 20)
    for size in range(100_000, 600_000, 10_000):
        step([size] * 10)
        assert pool.live + pool.cached <= max(memory.FLOOR, memory.KEPT * pool.peak)
    assert pool.live == 0 and 5_000_000 < pool.peak < 7_000_000
    assert pool.cached == sum(size * len(blocks) for size, blocks in pool._bins.items())
    pool.free_cached()
    for size in range(100_000, 200_000, 10_000):  # what was live before counts no more
        step([size])
    assert pool.cached <= memory.FLOOR


def test_the_floor_is_kept_whatever_was_live(pool: Pool) -> None:
    for size in range(100_000, 10_000_000, 100_000):
        step([size])
    assert memory.FLOOR / 2 < pool.cached <= memory.FLOOR


def test_what_was_unused_longest_is_freed_first(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "FLOOR", 1_150_000)
    sizes = [bin_size(size) for size in (400_000, 300_000, 200_000)]
    for size in (*sizes, sizes[0]):  # the first one is used again
        step([size])
    held = empty((bin_size(400_000) + 1,), "uint8")
    assert list(pool._bins) == [sizes[2], sizes[0]] and held.nbytes > 400_000


def test_a_step_that_repeats_frees_and_faults_nothing(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays that are live one after another: the cache needs more than the peak, as sizes differ."""
    monkeypatch.setattr(memory, "FLOOR", 0)
    sizes = [[300_000] * 4, [350_000] * 4, [500_000] * 2]
    keep = empty((3_000_000,), "uint8")
    for group in sizes:
        step(group)
    fresh: list[int] = []
    monkeypatch.setattr(pool, "_fresh", lambda size: fresh.append(size) or np.empty(size, np.uint8))
    for group in sizes:
        step(group)
    assert fresh == [] and keep.nbytes == 3_000_000
