"""Every kind of mistake with Hopper's instructions that the emulator claims to catch is reported in plain words."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.emulator.harness import cuda, empty, launch, put, tensor_map

pytestmark = pytest.mark.emulator
both = pytest.mark.parametrize("checked", [False, True], ids=["plain", "checked"])
SHARED = 16384


def multiply(mistake: int, checked: bool = False, threads: int = 128) -> np.ndarray:
    d = empty((max(256, threads), 32))
    launch("mistakes_sm90:multiply", "Pi", 1, threads, d, mistake, shared=SHARED, checked=checked)
    return d.get()


def copy_tile(mistake: int, checked: bool = False) -> np.ndarray:
    x, y = put(np.arange(32, dtype=np.float32)), empty(32)
    launch("mistakes_sm90:copy_tile", "128s128si", 1, 64, tensor_map(x, (32,)), tensor_map(y, (32,)), mistake,
           shared=4000, checked=checked)
    return y.get()


def named_barriers(mistake: int, checked: bool = False) -> np.ndarray:
    x = empty(32, np.int32)
    launch("mistakes_sm90:named_barriers", "Pi", 1, 64, x, mistake, checked=checked)
    return x.get()


def neighbours(mistake: int, checked: bool = False) -> np.ndarray:
    x = empty(4, np.int32)
    launch("mistakes_sm90:neighbours", "128sPi", 4, 32, tensor_map(empty(32), (32,)), x, mistake, shared=1024,
           checked=checked)
    return x.get()


@both
def test_without_a_mistake(checked: bool) -> None:
    assert (multiply(0, checked)[:128] == 16).all()
    assert np.array_equal(copy_tile(0, checked), np.arange(32) + 1)
    assert (named_barriers(0, checked) == 7).all()
    assert np.array_equal(neighbours(0, checked), [1, 0, 3, 2])


ALWAYS = [
    (multiply, 2, "warps 0 to 3 are one warpgroup, but did not all execute the same wgmma and setmaxnreg"),
    (multiply, 3, "wgmma without a wgmma_fence before it"),
    (multiply, 4, "wgmma: descriptor starts at byte 112 of a row of 128, which 32 bytes of k leave"),
    (multiply, 6, "wgmma: accumulator 5 was written before wgmma_wait"),
    (multiply, 7, "returned before wgmma_wait: its results never arrive"),
    (multiply, 8, "wgmma: accumulators were modified since the last wgmma_fence"),
    (multiply, 10, "warps 0 to 3 are one warpgroup, but did not all execute the same wgmma and setmaxnreg"),
    (copy_tile, 20, "mbarrier_init: 0 arrivals, not 1 to 8191"),
    (copy_tile, 21, "arrive on an mbarrier that was not initialised"),
    (copy_tile, 22, "an mbarrier cannot expect 1048576 bytes, at most 1048575"),
    (copy_tile, 23, r"deadlock.*\(0,0,0\)..\(63,0,0\) wait at mbarrier_wait"),
    (copy_tile, 24, "more arrivals on an mbarrier than its count of 1|deadlock"),
    (copy_tile, 25, "TMA: tile at byte 16 of dynamic shared memory, must be a multiple of 128"),
    (copy_tile, 26, "TMA: tile of 128 bytes at byte 3968 leaves the 4000 bytes"),
    (copy_tile, 30, "TMA: a copy of rank 2 with a tensor map of rank 1"),
    (copy_tile, 31, "returned before bulk_wait: a TMA store still reads shared memory"),
    (copy_tile, 32, "spins in mbarrier_try_wait while no other thread of its block or cluster can go on"),
    (named_barriers, 40, "there is no barrier 16; 0 is __syncthreads, 1 to 15 are free"),
    (named_barriers, 41, "60 threads are not whole warps of a block of 64"),
    (named_barriers, 42, "barrier 1 is for 32 threads here, and for 64 where another thread waits"),
    (neighbours, 50, "mbarrier_arrive_remote to rank . before any cluster barrier: it may not have begun"),
    (neighbours, 51, "cluster_wait without cluster_arrive"),
    (neighbours, 53, "cluster_arrive twice without cluster_wait"),
    (neighbours, 54, "mbarrier_arrive_remote: there is no rank 2 in a cluster of 2"),
    (neighbours, 55, "tma_load_multicast: there is no rank 2 in a cluster of 2"),
    (neighbours, 56, "tma_load_multicast to no block"),
    (neighbours, 57, "mapa: .* is not in this block's shared memory"),
    (neighbours, 58, "mapa: there is no rank 2 in a cluster of 2"),
    (neighbours, 59, "mbarrier_wait on an mbarrier of another block"),
    (neighbours, 62, r"deadlock.*block \(0,0,0\).*wait at mbarrier_wait.*block \(1,0,0\).*wait at cluster_wait")]
CHECKED = [
    (multiply, 1, "was written without fence_proxy_async before TMA or wgmma read it"),
    (multiply, 5, r"it reads accumulator 3 of a wgmma before wgmma_wait at mistakes_sm90.cu:\d+"),
    (multiply, 6, r"it writes accumulator 5 of a wgmma before wgmma_wait at mistakes_sm90.cu:\d+"),
    (copy_tile, 27, "reads dynamic shared memory.* where an asynchronous copy has not landed"),
    (copy_tile, 28, "was written without fence_proxy_async before TMA or wgmma read it"),
    (copy_tile, 29, "race on dynamic shared memory.*reads what thread|was written without fence_proxy_async"),
    (neighbours, 52, "a load to rank . before any cluster barrier"),
    (neighbours, 60, "a load to rank 1, which has returned"),
    (neighbours, 61, "race on static shared memory.* of rank . (wrote|read), with no barrier between")]


@pytest.mark.parametrize("kernel, mistake, text", ALWAYS, ids=lambda x: x if isinstance(x, int) else "")
def test_always_caught(kernel, mistake: int, text: str) -> None:
    caught(kernel, mistake, text, False)


@pytest.mark.parametrize("kernel, mistake, text", CHECKED, ids=lambda x: x if isinstance(x, int) else "")
def test_caught_when_checked(kernel, mistake: int, text: str) -> None:
    caught(kernel, mistake, text, True)


def caught(kernel, mistake: int, text: str, checked: bool) -> None:
    with pytest.raises(cuda.Error, match=re.compile(text, re.DOTALL)) as error:
        kernel(mistake, checked)
    print(error.value)  # pytest -rP shows what a user would read


def test_registers_that_a_multiprocessor_does_not_have() -> None:
    with pytest.raises(cuda.Error, match="setmaxnreg: the warps ask for 98304 registers, a multiprocessor has 65536"):
        multiply(11, threads=384)


def test_rows_shorter_than_their_swizzle() -> None:
    narrow = tensor_map(empty((4, 32)), (8, 4), 128)
    with pytest.raises(cuda.Error, match="TMA: rows of 32 bytes in a tile swizzled over 128"):
        launch("mistakes_sm90:copy_tile", "128s128si", 1, 64, narrow, narrow, 33, shared=4000)


def test_results_before_the_wait_are_nan() -> None:
    assert np.isnan(multiply(5)[128:132]).all()
