"""What PyCUDA gets from the emulated driver beside launches: device, memory, events, and refusals in plain words."""

from __future__ import annotations

import ctypes
import gc
import os
import re
import subprocess
import sys

import numpy as np
import pytest

from tests.emulator.harness import LIBCUDA, STREAM, cuda, empty, integers, launch, module, put

pytestmark = pytest.mark.emulator


def refused(text: str, *args: object, shared: int = 0) -> None:
    with pytest.raises(cuda.Error, match=re.compile(text)):
        launch(*args, shared=shared)


def test_launches_that_the_driver_refuses() -> None:
    x, kernel = empty(32), "mistakes:write_past_end"
    refused(r"takes 12 argument bytes \(2 arguments\), the launch brings 8", kernel, "P", 1, 32, x)
    refused(r"write_past_end: block \(2048,1,1\)", kernel, "Pi", 1, 2048, x, 32)
    refused(r"write_past_end: grid \(1,70000,1\)", kernel, "Pi", (1, 70000), 32, x, 32)
    refused("240000 bytes of shared memory, a block of sm_90 has 232448", kernel, "Pi", 1, 32, x, 32, shared=240_000)
    function = module("mistakes").get_function("write_past_end")
    function.prepare("Pi")
    with pytest.raises(cuda.Error, match=r"60000 bytes of dynamic shared memory, the limit is 49152"):
        function.prepared_async_call((1, 1), (32, 1, 1), STREAM, x.gpudata, 32, shared_size=60000)
    with pytest.raises(cuda.Error, match=r"no kernel nothing.*write_past_end"):
        module("mistakes").get_function("nothing")


def test_more_shared_memory_after_asking_for_it() -> None:
    x = put(integers(32))
    launch("mistakes:past_dynamic_shared", "P", 1, 32, x, shared=200_000)


def test_modules_that_are_none(tmp_path) -> None:
    with pytest.raises(cuda.Error, match=r"cannot read .*absent.so"):
        cuda.module_from_file(str(tmp_path / "absent.so"))
    with pytest.raises(cuda.Error, match="runs modules built for it"):
        cuda.module_from_buffer(bytes(200))


def test_device() -> None:
    device = cuda.Device(0)
    attribute = cuda.device_attribute
    assert "emulated" in device.name() and device.compute_capability() == (9, 0)
    assert device.get_attribute(attribute.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN) == 227 << 10
    assert device.get_attribute(attribute.WARP_SIZE) == 32
    assert device.get_attribute(attribute.MULTIPROCESSOR_COUNT) == 4


def test_device_by_environment() -> None:
    code = ("import tests.emulator.harness as h; d = h.cuda.Device(0); a = h.cuda.device_attribute\n"
            "print(d.compute_capability(), d.get_attribute(a.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),\n"
            "      d.get_attribute(a.MULTIPROCESSOR_COUNT), h.cuda.mem_get_info())")
    settings = {"ARCH": "sm_80", "SMS": "108", "MEMORY": "1000000"}
    env = {**os.environ, **{f"ALPHA_EMULATED_{name}": value for name, value in settings.items()}}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["(8,", "0)", "166912", "108", "(1000000,", "1000000)"] and done.stderr == ""


def test_no_device() -> None:
    code = "import tests.emulator.harness"
    env = {**os.environ, "ALPHA_EMULATED_DEVICES": "0"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert "no CUDA-capable device is detected" in done.stderr


def test_events_and_streams() -> None:
    begin, end, other = cuda.Event(), cuda.Event(), cuda.Stream()
    with pytest.raises(cuda.Error, match="one of which was not recorded"):
        end.time_since(begin)
    begin.record(STREAM)
    other.wait_for_event(begin)
    end.record(other)
    end.synchronize()
    assert end.query() and other.is_done() and 0 <= end.time_since(begin) < 1000


def test_memory_runs_out_where_it_is_told_to() -> None:
    gc.collect()  # what PyCUDA does too before it gives up: nothing must come back then
    free, total = cuda.mem_get_info()
    block = cuda.mem_alloc(1 << 20)
    assert cuda.mem_get_info() == (free - (1 << 20), total)
    try:
        LIBCUDA.emuSetMemory(total - free + (3 << 20))
        assert cuda.mem_get_info() == (2 << 20, total - free + (3 << 20))
        with pytest.raises(cuda.MemoryError, match="out of memory"):
            cuda.mem_alloc((2 << 20) + 1)
        cuda.mem_alloc(2 << 20).free()
    finally:
        LIBCUDA.emuSetMemory(0)
    block.free()
    assert cuda.mem_get_info() == (free, total)


def test_copies_that_leave_their_block() -> None:
    x = empty(100)
    with pytest.raises(cuda.Error, match="copy of 800 bytes runs outside its device block"):
        cuda.memcpy_dtoh(np.empty(200, np.float32), x.gpudata)
    with pytest.raises(cuda.Error, match="memset runs outside its device block"):
        cuda.memset_d32(int(x.gpudata), 0, 101)


def test_what_the_driver_does_not_have() -> None:
    with pytest.raises(cuda.Error, match="operation not supported"):
        cuda.mem_alloc_pitch(100, 10, 4)


# ---- ranges of addresses that memory is mapped into ------------------------------------------------------------------

Number, Size = ctypes.c_ulonglong, ctypes.c_size_t


def call(name: str, *args: object) -> int:
    """Calls an entry of the driver and returns its status."""
    return int(getattr(LIBCUDA, name)(*args))


class Range:
    """Three parts, each as long as the driver maps at once."""

    def __init__(self) -> None:
        size, begin = Size(), Number()
        assert call("cuMemGetAllocationGranularity", ctypes.byref(size), None, 0) == 0
        self.part = size.value
        assert call("cuMemAddressReserve", ctypes.byref(begin), Size(3 * self.part), Size(0), Number(0), Number(0)) == 0
        self.begin, self.handles = begin.value, {}

    def map(self, k: int, access: bool = True) -> int:
        handle, at = Number(), Number(self.begin + k * self.part)
        assert call("cuMemCreate", ctypes.byref(handle), Size(self.part), None, Number(0)) == 0
        status = call("cuMemMap", at, Size(self.part), Size(0), handle, Number(0))
        if status == 0:
            self.handles[k] = handle
            assert not access or call("cuMemSetAccess", at, Size(self.part), None, Size(1)) == 0
        return status

    def unmap(self, k: int) -> None:
        assert call("cuMemUnmap", Number(self.begin + k * self.part), Size(self.part)) == 0
        assert call("cuMemRelease", self.handles.pop(k)) == 0

    def copy(self, at: int, nbytes: int) -> int:
        return call("cuMemcpyDtoD_v2", Number(self.begin + at), Number(self.begin), Size(nbytes))

    def free(self) -> int:
        return call("cuMemAddressFree", Number(self.begin), Size(3 * self.part))


def test_neighbours_in_a_range_are_one_block() -> None:
    before = cuda.mem_get_info()[0]
    r = Range()
    assert r.copy(0, 4) != 0, "nothing is mapped yet"
    for k in (0, 2, 1):
        assert r.map(k) == 0
    assert cuda.mem_get_info()[0] == before - 3 * r.part
    assert r.copy(r.part // 2, 2 * r.part) == 0 and r.copy(2 * r.part + 4, r.part) != 0
    r.unmap(1)
    assert r.copy(0, r.part) == r.copy(2 * r.part, r.part) == 0 and r.copy(r.part, 4) != 0
    assert r.free() != 0, "two parts are still mapped"
    r.unmap(0)
    r.unmap(2)
    assert r.free() == 0 and cuda.mem_get_info()[0] == before


def test_mistakes_with_ranges_are_refused() -> None:
    r = Range()
    assert r.map(3) != 0, "behind the end"
    assert r.map(0, access=False) == 0 and r.copy(0, 4) != 0, "no access was given"
    assert r.map(0) != 0, "mapped already"
    assert call("cuMemRelease", r.handles[0]) != 0, "still mapped"
    r.unmap(0)
    assert call("cuMemUnmap", Number(r.begin), Size(r.part)) != 0
    assert call("cuMemCreate", ctypes.byref(Number()), Size(1), None, Number(0)) != 0, "not a multiple"
    assert call("cuMemCreate", ctypes.byref(Number()), Size(1 << 40), None, Number(0)) == 2
    assert r.free() == 0 and r.free() != 0


def test_a_write_behind_what_is_mapped_is_found() -> None:
    r = Range()
    assert r.map(0) == 0
    with pytest.raises(cuda.Error, match=f"byte {r.part} of a device block of {r.part} bytes was overwritten"):
        function = module("mistakes").get_function("write_past_end")
        function.prepare("Pi")
        function.prepared_async_call((r.part // 128 + 1, 1), (32, 1, 1), STREAM, r.begin, r.part // 4)
    r.unmap(0)
    assert r.free() == 0
