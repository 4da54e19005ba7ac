"""The CPU's memory pool: recycling, counting, limits."""

from __future__ import annotations

import gc
import sys
import weakref

import numpy as np
import pytest

from alpha.core.config import config
from alpha.cpu import memory
from alpha.cpu.memory import LINE, SMALL, Pool, Range, Runs, empty

pytestmark = pytest.mark.same_without_kernels("it calls no compiled kernel")


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Pool:
    gc.collect()  # else blocks that other tests left are given back to this one
    fresh = Pool()
    monkeypatch.setattr(memory, "pool", fresh)
    return fresh


def total(runs: Runs) -> int:
    return sum(runs.sizes)


@pytest.mark.parametrize("seed", range(4))
def test_runs_are_the_bytes_that_were_added_and_not_cut(seed: int) -> None:
    rng, runs, free = np.random.default_rng(seed), Runs([], []), np.zeros(60, bool)
    for _ in range(300):
        start, end = np.sort(rng.integers(0, 61, 2)).tolist()
        if start < end and not free[start:end].any():
            runs = runs.add(start, end - start)
            free[start:end] = True
        else:
            runs, removed = runs.cut(start, end)
            assert removed == free[start:end].sum()
            free[start:end] = False
        edges = np.flatnonzero(np.diff(np.pad(free, 1).astype(int)))  # where a run begins, where it ends, and so on
        assert runs.starts == edges[::2].tolist() and runs.sizes == np.diff(edges)[::2].tolist()
        size = int(rng.integers(1, 20))
        fitting = [(n, start) for start, n in zip(*runs) if n >= size]
        best = runs.best(size)
        assert (best is None) == (not fitting)
        assert best is None or (runs.sizes[best], runs.starts[best]) == min(fitting)


def test_a_freed_block_is_handed_out_again(pool: Pool) -> None:
    a = empty((100, 1000), "float32")
    address = a.ctypes.data
    assert pool.live == 400_000 and pool.cached == 0
    del a
    assert pool.live == 0 and pool.cached == 400_000
    assert empty((1000, 100), "float32").ctypes.data == address


def test_the_blocks_given_back_last_serve_their_own_size_and_are_joined_for_others(pool: Pool) -> None:
    sizes = [n * SMALL for n in range(1, memory.LATELY + 1)]
    at = {a.nbytes: a.ctypes.data for a in [empty((size,), "uint8") for size in sizes]}  # each of them freed
    assert len(pool._given) == len(sizes)
    for size in sizes[::-1]:
        held = empty((size,), "uint8")
        assert held.ctypes.data == at[size]
        del held
    peak = sum(sizes)
    whole = empty((peak,), "uint8")
    assert whole.ctypes.data == min(at.values()) and pool._given == [] and pool.peak == pool.live == peak
    many = [empty((SMALL,), "uint8") for _ in range(memory.LATELY + 1)]
    del many[:-1]
    assert len(pool._given) == memory.LATELY
    del many
    assert pool._given == [] and pool.live == peak


def test_a_view_keeps_its_block(pool: Pool) -> None:
    view = empty((100, 1000), "float32")[50:].reshape(-1)
    gc.collect()
    assert pool.live == 400_000
    view[:] = 1.0
    other = empty((100, 1000), "float32")
    other.fill(2.0)
    assert (view == 1.0).all()
    del view
    assert pool.live == 400_000 == pool.cached


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
    assert pool.live == 3 * -(-nbytes // LINE) * LINE


def test_small_arrays_are_not_pooled(pool: Pool) -> None:
    a = empty((3, 5), "float64")
    assert a.shape == (3, 5) and a.dtype == np.float64 and pool.live == 0


def test_exhaustion_frees_the_cache_and_says_what_was_asked(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    block = empty((SMALL,), "uint8")
    del block
    asked = []

    def refuse(nbytes: int) -> Range:
        asked.append(nbytes)
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(memory, "Range", refuse)
    with pytest.raises(MemoryError, match=r"the system refused 1024\.1 MiB .*live: 0\.0 MiB"):
        pool.take(memory.RANGE + SMALL)
    assert pool.cached == 0 and asked == [memory.RANGE + SMALL] * 3


def test_less_is_asked_for_where_the_system_refuses_much(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    def little(nbytes: int) -> Range:
        if nbytes > 10 * SMALL:
            raise OSError(12, "Cannot allocate memory")
        return Range(nbytes)

    monkeypatch.setattr(memory, "Range", little)
    a, b = empty((4 * SMALL,), "uint8"), empty((5 * SMALL,), "uint8")
    a[:], b[:] = 1, 2
    assert (a == 1).all() and len(pool._ranges) == 2
    del a  # what is cached makes room for what is refused otherwise
    monkeypatch.setattr(memory, "Range", lambda nbytes: Range(nbytes) if pool.cached == 0 else little(1 << 40))
    c = empty((6 * SMALL,), "uint8")
    c[:] = 3
    assert (b == 2).all() and len(pool._ranges) == 2 and pool.live == 11 * SMALL


def test_no_block_leaks(pool: Pool) -> None:
    a = empty((SMALL,), "uint8")
    ref = weakref.ref(a.base)
    del a
    assert ref() is None


def step(sizes: list[int]) -> None:
    """What a training step does: one array after another, all of them live at its end."""
    held = [empty((size,), "uint8") for size in sizes]
    del held


def test_freed_neighbours_serve_a_larger_block(pool: Pool) -> None:
    a, b, c = (empty((2 * SMALL,), "uint8") for _ in range(3))
    first = a.ctypes.data
    del a, b
    d = empty((4 * SMALL,), "uint8")
    assert d.ctypes.data == first and pool.cached == 0 and pool.live == 6 * SMALL
    c[:], d[:] = 1, 2
    assert (c == 1).all()


def test_a_block_gets_the_smallest_run_that_holds_it(pool: Pool) -> None:
    large, _a, small, _b = (empty((n * SMALL,), "uint8") for n in (3, 1, 2, 1))
    at = small.ctypes.data
    del large, small
    assert empty((2 * SMALL,), "uint8").ctypes.data == at


@pytest.mark.parametrize("seed", range(3))
def test_blocks_never_share_a_byte(pool: Pool, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Arrays come and go at random, some in ranges of their own; each keeps what was written to it."""
    monkeypatch.setattr(memory, "RANGE", 20 * SMALL)
    rng, held = np.random.default_rng(seed), []
    for k in range(400):
        if held and rng.random() < 0.5:
            value, a = held.pop(rng.integers(len(held)))
            assert (a == value).all()
            del a
        elif len(held) < 30:
            a = empty((int(rng.integers(SMALL, 6 * SMALL)),), "uint8")
            a.fill(k % 251)
            held.append((k % 251, a))
        if k % 50 == 49:
            pool.free_cached()
        live = sum(-(-a.nbytes // LINE) * LINE for _, a in held)
        assert pool.live == live and pool.live + total(pool._free) == sum(r.end - r.start for r in pool._ranges)
        assert pool.cached == total(pool._free) - total(pool._fresh) >= 0
    assert len(pool._ranges) > 1
    held.clear()
    a = np.zeros(1)
    pool.free_cached()
    assert pool._ranges == [] == pool._free.starts == pool._fresh.starts and pool.cached == 0


def test_what_is_cached_returns_to_the_system(pool: Pool) -> None:
    """Whole pages of free runs between live blocks; what is live keeps its elements."""
    a, b, c = (empty((16 * SMALL,), "uint8") for _ in range(3))
    for x in (a, b, c):
        x.fill(7)
    at = b.ctypes.data
    del b
    pool.free_cached()
    assert pool.cached == 0 and (a == 7).all() and (c == 7).all()
    b = empty((16 * SMALL,), "uint8")
    assert b.ctypes.data == at and (b == 0).all()  # fresh memory


def test_the_cache_is_bounded(pool: Pool) -> None:
    with config(cpu_cache_mib=1):
        step([8 * SMALL, 4 * SMALL])  # 1 MiB, and half of one
        assert pool.cached == 0
        step([4 * SMALL])
        assert pool.cached == 4 * SMALL


def test_batches_of_many_sizes_take_what_is_live_at_most(pool: Pool) -> None:
    for size in range(400_000, 600_000, 10_000):
        step([size] * 10)
    assert pool.live == 0 and pool.peak < 6_000_000 and pool.cached <= pool.peak


def test_a_step_that_repeats_takes_nothing_fresh(pool: Pool) -> None:
    sizes = [[300_000] * 4, [350_000] * 4, [500_000] * 2]
    keep = empty((3_000_000,), "uint8")
    for group in sizes:
        step(group)
    held = pool.live + pool.cached
    for group in sizes:
        step(group)
    assert pool.live + pool.cached == held <= 3_000_000 + 1_402_000 and keep.nbytes == 3_000_000


def test_blocks_asked_for_and_freed_in_the_midst_of_another_are_apart(pool: Pool, monkeypatch: pytest.MonkeyPatch
                                                                     ) -> None:
    """As a garbage collection does that begins there."""
    old, found, cut = empty((SMALL,), "uint8"), [], Runs.cut

    def meanwhile(self: Runs, start: int, end: int) -> tuple[Runs, int]:
        if not found:
            nonlocal old
            del old
            found.append(empty((SMALL,), "uint8"))
            pool.free_cached()  # not now
        return cut(self, start, end)

    monkeypatch.setattr(Runs, "cut", meanwhile)
    a = empty((2 * SMALL,), "uint8")
    a[:], found[0][:] = 1, 2
    assert (a == 1).all() and pool.live == 2 * SMALL
    found[0] = None
    b = empty((SMALL,), "uint8")  # in the place of the one that was freed
    assert pool.live == 3 * SMALL and pool.cached == 0 and b.ctypes.data < a.ctypes.data


@pytest.mark.parametrize("line", range(1, 50))
def test_an_interrupt_at_any_line_loses_at_most_one_block(pool: Pool, line: int) -> None:
    held = [empty((n * SMALL,), "uint8") for n in (1, 2, 3)]
    left = line

    def count(frame, event, arg):
        nonlocal left
        if frame.f_code.co_filename != memory.__file__:
            return None
        if event == "line" and frame.f_code.co_name != "__del__":
            left -= 1
            if left == 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return count

    sys.settrace(count)
    try:
        held.append(empty((SMALL,), "uint8"))
        pool.give(pool.take(2 * SMALL))
    except KeyboardInterrupt:
        assert left == 0
    finally:
        sys.settrace(None)
    assert left == 0
    for k, a in enumerate(held):
        a.fill(k)
    more = [empty((n * SMALL,), "uint8") for n in (1, 2, 1)]
    for a in more:
        a.fill(99)
    assert all((a == k).all() for k, a in enumerate(held)) and pool.live <= 13 * SMALL
