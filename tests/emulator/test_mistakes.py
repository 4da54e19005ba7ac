"""Every kind of mistake that the emulator claims to catch, planted in a kernel, is reported with its place."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from tests.emulator.harness import cuda, empty, integers, launch, put
from tests.emulator.runner import KERNELS
from tests.emulator.test_results import matmul_sm90, test_matmul_ffma

pytestmark = pytest.mark.emulator


def caught(text: str, *args: Any, **how: Any) -> None:
    with pytest.raises(cuda.Error, match=re.compile(text, re.DOTALL)) as error:
        launch(*args, **how)
    print(error.value)  # pytest -rP shows what a user would read


def mistake(text: str, name: str, fmt: str, grid: int, block: int, *args: Any, **how: Any) -> None:
    caught(text, f"mistakes:{name}", fmt, grid, block, *args, **how)


def line(file: str, code: str, nth: int = 0) -> int:
    """Returns the number of the nth line of a kernel file that contains this code."""
    lines = (KERNELS / f"{file}.cu").read_text().split("\n")
    return [i for i, text in enumerate(lines, 1) if code in text][nth]


def test_missing_wait() -> None:
    y, bug = empty(128), dict(shared=2 * 129 * 64, defines=("BUG_NO_WAIT",))
    args = "async_copy:dot_rows", "PPPii", 1, 128, put(integers(128, 64)), put(integers(64)), y, 128, 64
    caught(r"kernel dot_rows, block \(0,0,0\).* returned with \d+ cp.async copies that no wait covers", *args, **bug)
    assert np.isnan(y.get()).any()  # the bytes never landed
    at = line("async_copy", "acc = fmaf")
    caught(rf"reads dynamic shared memory.* copy has not landed.* at async_copy.cu:{at}", *args, checked=True, **bug)


def test_operand_overwritten_before_wgmma_wait() -> None:
    with pytest.raises(cuda.Error, match="wgmma: an operand in shared memory changed before its wgmma_wait"):
        matmul_sm90(64, 64, 320, defines=("BUG_NO_WGMMA_WAIT",))


def test_missing_barrier_between_tiles() -> None:
    A, B, C = integers(64, 64), integers(64, 64), empty((64, 64))
    args = "matmul_ffma:matmul_ffma", "PPPiiif", 1, (16, 16), put(A), put(B), C, 64, 64, 64, np.float32(1)
    launch(*args, defines=("BUG_NO_BARRIER",))
    assert not np.array_equal(C.get(), A @ B)
    at = line("matmul_ffma", "float4 x = *(const float4*)")
    caught(rf"race on static shared memory.*no barrier between at matmul_ffma.cu:{at}", *args,
           checked=True, defines=("BUG_NO_BARRIER",))


def test_missing_barrier_between_warps() -> None:
    mistake("race on static shared memory|uninitialised read", "missing_barrier", "P", 1, 64, empty(64), checked=True)


def test_nobody_looks_where_checks_are_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALPHA_EMULATED_CHECKED", "off")
    launch("mistakes:missing_barrier", "P", 1, 64, empty(64), checked=True)
    monkeypatch.delenv("ALPHA_EMULATED_CHECKED")
    test_missing_barrier_between_warps()


def test_write_past_the_end() -> None:
    x = empty(100)
    mistake("byte 400 of a device block of 400 bytes was overwritten.*write_past_end",
            "write_past_end", "Pi", 4, 32, x, 100)
    at = line("mistakes", "write_past_end")
    mistake(rf"block \(3,0,0\), thread \(4,0,0\): out-of-bounds write of 4 bytes.* at mistakes.cu:{at}",
            "write_past_end", "Pi", 4, 32, x, 100, checked=True)


def test_read_past_the_end() -> None:
    x, y = put(np.ones(64, np.float32)), empty(64)
    launch("mistakes:read_past_end", "PP", 1, 64, x, y)
    assert np.isnan(y.get()[63]) and (y.get()[:63] == 1).all()
    mistake(r"thread \(63,0,0\): out-of-bounds read of 4 bytes", "read_past_end", "PP", 1, 64, x, y, checked=True)


def test_blocks_that_write_the_same_element() -> None:
    mistake(r"block \(1,0,0\), thread \(0,0,0\): race between blocks: it overwrites .* block number 0 wrote",
            "overlapping_blocks", "P", 2, 32, empty(64), checked=True)


def test_divergent_barriers() -> None:
    first, second, third = (line("mistakes", "__syncthreads()", nth) for nth in range(3))
    mistake(rf"kernel barrier_in_branch, block \(0,0,0\): deadlock.*threads \(0,0,0\)..\(39,0,0\) wait at "
            rf"__syncthreads\(\), line {first}.*\(40,0,0\)..\(63,0,0\) have returned",
            "barrier_in_branch", "P", 1, 64, empty(64))
    mistake(rf"divergent __syncthreads\(\): this thread is at line {second}, thread \(0,0,0\) at line {third}",
            "two_barriers", "P", 1, 64, empty(64))


def test_divergent_shuffle() -> None:
    mistake("lane 20 is at __syncwarp, others of mask 0xffffffff are at __shfl_sync",
            "shuffle_in_branch", "P", 1, 32, empty(32, np.int32))


def test_uninitialised_shared_memory() -> None:
    x = empty(64)
    launch("mistakes:uninitialised_shared", "P", 2, 64, x)
    assert np.isnan(x.get()[63])
    mistake("uninitialised read of static shared memory", "uninitialised_shared", "P", 1, 64, x, checked=True)


def test_overrun_of_shared_memory() -> None:
    mistake(r"thread \(31,0,0\): array index out of its declared bounds.* at mistakes.cu:\d+",
            "index_past_array", "P", 1, 32, empty(32), checked=True)
    args = "past_dynamic_shared", "P", 1, 32, put(integers(32))
    mistake("wrote past the 100 bytes of dynamic shared memory", *args, shared=100)
    mistake(r"thread \(25,0,0\): out-of-bounds write of 4 bytes at byte 100", *args, shared=100, checked=True)


def test_a_misaligned_address() -> None:
    mistake(r"thread \(0,0,0\):.* misaligned address.* at mistakes.cu:\d+",
            "misaligned", "P", 1, 32, empty(32), shared=1024, checked=True)


def test_null_pointer_and_recovery() -> None:
    mistake(r"null_pointer.*thread \(5,0,0\): access to invalid address.* at mistakes.cu:\d+",
            "null_pointer", "P", 1, 64, empty(64))
    test_matmul_ffma(False)  # the context survives


def test_fresh_memory_is_poison() -> None:
    assert np.isnan(empty(100).get()).all() and np.isnan(empty(100, np.float16).get()).all()
