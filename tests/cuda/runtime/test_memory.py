"""Device memory: arrays, copies, counters, the limit, and what is said when it runs out."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import alpha
from alpha.core.config import config
from alpha.cuda import free_cached, memory_summary
from alpha.cuda.runtime import memory
from alpha.cuda.runtime.context import context
from alpha.errors import DeviceError, OutOfMemoryError
from alpha.recompute.recipe import count
from tests.cuda.process import COUNTS_LIVE, run

pytestmark = pytest.mark.cuda

MIB = 1 << 20


@pytest.fixture(autouse=True)
def pool(device) -> memory.Pool:
    """The pool, with nothing cached and no garbage."""
    gc.collect()
    free_cached()
    memory.pool.peak = memory.pool.live
    return memory.pool


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "int64", "uint8", "bool"])
@pytest.mark.parametrize("shape", [(3, 5), (), (0, 4), (300, 301)])
def test_elements_travel_unchanged(dtype, shape):
    a = np.random.default_rng(0).integers(0, 100, shape).astype(dtype)
    x = memory.upload(a)
    assert (x.shape, x.dtype, x.size, x.ndim, x.nbytes) == (shape, dtype, a.size, a.ndim, a.nbytes) and x.ptr % 256 == 0
    back = memory.download(x, dtype)
    assert back.dtype == dtype and back.shape == shape and np.array_equal(back, a)


def test_arrays_in_any_order_are_taken():
    a = np.arange(200_000, dtype=np.float32).reshape(500, 400)
    for view in (a.T, a[::2], a[:, ::-1]):
        assert np.array_equal(memory.download(memory.upload(view), "float32"), view)


def test_uploads_in_a_row_do_not_mix(pool):
    arrays = [np.full(50_000, k, np.float32) for k in range(20)]
    uploaded = [memory.upload(a) for a in arrays]
    assert all((memory.download(x, "float32") == k).all() for k, x in enumerate(uploaded))
    context.synchronize()
    memory.upload(arrays[0])
    context.synchronize()
    memory.upload(arrays[0])
    assert len(pool._in_flight) <= 2, "page-locked memory is given back when its copy is done"


def test_reshaped_shares_and_copy_copies():
    x = memory.upload(np.arange(6, dtype=np.float32))
    y = x.reshaped((2, 3))
    assert (y.ptr, y.shape, y.block) == (x.ptr, (2, 3), x.block)
    z = memory.empty((2, 3), "float32")
    memory.copy(z, y)
    assert memory.download(z, "float32").tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.long
@COUNTS_LIVE
def test_bytes_are_counted(pool):
    free_cached()
    before, rounding = pool.live, pool.cached  # what blocks of other tests hold, and what they round up to
    x = memory.empty((MIB,), "uint8")
    y = memory.empty((2, MIB), "uint8")
    assert pool.live == before + 3 * MIB and pool.peak == before + 3 * MIB
    del x
    assert pool.live == before + 2 * MIB and pool.peak == before + 3 * MIB and pool.cached >= MIB
    again = memory.empty((MIB,), "uint8")
    assert pool.cached < MIB, "the freed block serves again"
    del again, y
    free_cached()
    assert (pool.live, pool.cached) == (before, rounding)
    stats = alpha.cuda.BACKEND.memory_stats()
    assert stats == {"live": pool.live, "cached": pool.cached, "peak": pool.peak}
    alpha.cuda.BACKEND.reset_peak_memory()
    assert pool.peak == pool.live


def test_the_peak_is_exact(pool):
    draw, held, most = np.random.default_rng(0), [], pool.live
    for size in draw.integers(0, 5000, 300):
        if held and draw.random() < 0.5:
            held.pop(draw.integers(len(held)))
        held.append(memory.empty((int(size),), "uint8"))
        most = max(most, pool.live)
        assert pool.peak == most and pool.bound >= pool.main.active_bytes
    held.clear()
    pool.peak = pool.live
    held.append(memory.empty((MIB,), "uint8"))
    assert pool.peak == pool.live


def test_the_pool_is_asked_near_the_peak_alone(pool, monkeypatch):
    asked = []
    count = pool.count
    monkeypatch.setattr(pool, "count", lambda: (asked.append(pool.bound), count()))
    memory.empty((MIB,), "uint8")
    assert len(asked) == 1
    for _ in range(1000):
        memory.empty((100,), "uint8")
    assert len(asked) == 2, "what is freed at once counts until the bound has reached the peak"


@COUNTS_LIVE
def test_a_loop_leaks_nothing(pool):
    def step() -> None:
        x = alpha.tensor(np.ones((100, 100), np.float32), device="cuda", requires_grad=True)
        ((x * x).sum() * 2.0).backward()

    step()
    before = pool.live
    for _ in range(20):
        step()
    assert pool.live <= before


# ---- the limit, and the end of memory --------------------------------------------------------------------------------

@COUNTS_LIVE
def test_the_limit_holds(pool):
    base = -(-pool.live // MIB)
    with config(cuda_memory_mib=base + 4):
        x = memory.empty((3 * MIB,), "uint8")
        with pytest.raises(OutOfMemoryError, match=rf"out of memory: 3\.0 MiB asked .*limit: {base + 4} MiB(?s:.*)\n"
                                                   r"help: use a smaller batch.*or raise ALPHA_CUDA_MEMORY_MIB"):
            memory.empty((3 * MIB,), "uint8")
        del x
        memory.empty((3 * MIB,), "uint8")
    memory.empty((base + 8, MIB), "uint8")


@COUNTS_LIVE
def test_cached_blocks_are_freed_before_the_limit_is_passed(pool):
    base = -(-pool.live // MIB)
    with config(cuda_memory_mib=base + 4):
        memory.empty((3 * MIB,), "uint8")
        assert pool.cached >= 3 * MIB
        y = memory.empty((2 * MIB,), "uint8")
        assert pool.live + pool.cached <= (base + 4) * MIB and y.nbytes == 2 * MIB


def test_garbage_is_collected_before_giving_up(pool):
    base = -(-pool.live // MIB)
    gc.disable()
    try:
        with config(cuda_memory_mib=base + 4):
            cycle = [memory.empty((3 * MIB,), "uint8")]
            cycle.append(cycle)
            del cycle
            assert memory.empty((3 * MIB,), "uint8").nbytes == 3 * MIB
    finally:
        gc.enable()


class Full:
    """A device that refuses the next few allocations."""

    def __init__(self, device, times: int) -> None:
        self.device, self.times, self.freed = device, times, 0

    def __getattr__(self, name: str):
        return getattr(self.device, name)

    def allocate(self, nbytes: int):
        if nbytes > 1 and self.times:
            self.times -= 1
            raise context.driver.MemoryError("cuMemAlloc failed: out of memory")
        return self.device.allocate(nbytes)

    def free_held(self) -> None:
        self.freed += 1
        self.device.free_held()


def test_one_refusal_is_overcome_by_freeing(pool, monkeypatch):
    full = Full(pool.device, times=1)
    monkeypatch.setattr(pool, "device", full)
    monkeypatch.setattr(pool, "main", full)
    assert memory.empty((MIB,), "uint8").nbytes == MIB and full.freed == 1


@COUNTS_LIVE
def test_the_end_of_memory_is_explained(pool):
    w = alpha.tensor(np.ones((300, 1000), np.float32), device="cuda", requires_grad=True)
    y = w * w
    with pytest.raises(OutOfMemoryError) as caught:
        memory.empty((1 << 46,), "uint8")
    text = str(caught.value)
    assert text.startswith(f"cuda: out of memory: {1 << 26}.0 MiB asked for, ")
    for part in (" are free on the device (live: ", "; cached: ", "; peak: ", "; limit: none; ",
                 "largest live tensors: \n", "1.1 MiB (300, 1000) float32, made by mul",
                 "\nhelp: use a smaller batch, or --precision bf16"):
        assert part in text, part
    assert (y.numpy() == 1).all() and memory.empty((5,), "float32"), "what was there is still there"


@COUNTS_LIVE
def test_the_summary_names_the_largest(pool):
    with alpha.no_grad():
        x = alpha.tensor(np.ones((500, 1000), np.float32), device="cuda")
    text = memory_summary()
    assert text.startswith(f"memory of {context.name}\n")
    for part in ("live ", "cached ", "peak ", "limit ", "none", "free on the device", "total on the device",
                 f"{x.shape} float32, a leaf, or without a graph"):
        assert part in text, part


@pytest.mark.long
@COUNTS_LIVE
def test_the_summary_tells_what_was_made_again(pool):
    alpha.recompute_summary(reset=True)
    assert "made again" not in memory_summary()
    with alpha.config(recompute="cheap"):
        x = alpha.tensor(np.ones((512, 1024), np.float32), device="cuda", requires_grad=True)
        (alpha.ops.sigmoid(alpha.ops.softmax(x * 2.0)) @ x.T).sum().backward()
    text = memory_summary()
    assert "kept for backward, while others are made again" in text and "not kept" in text
    assert f"made again, in {count.times} calls" in text and count.times and count.made >= x.nbytes
    alpha.recompute_summary(reset=True)


def test_before_the_first_tensor_there_is_nothing_to_sum_up():
    done = run("import alpha.cuda as c\nc.free_cached()\nprint(c.memory_summary())")
    assert (done.returncode, done.stdout, done.stderr) == (0, "no CUDA tensor was made in this process\n", "")


def test_a_failed_kernel_is_reported_where_it_is_noticed(pool, monkeypatch):
    x, big = memory.upload(np.ones(3, np.float32)), np.ones(50_000, np.float32)

    def broken(*_: object) -> None:
        raise context.driver.LogicError("an illegal memory access was encountered")

    for name in ("memcpy_dtoh_async", "memcpy_htod_async", "memcpy_dtod_async"):
        monkeypatch.setattr(context.driver, name, broken)
    for use in (lambda: memory.download(x, "float32"), lambda: memory.upload(np.ones(3, np.float32)),
                lambda: memory.upload(big), lambda: memory.copy(x, x)):
        with pytest.raises(DeviceError, match="cuda: a kernel failed: an illegal memory access"):
            use()
