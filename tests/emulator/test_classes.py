"""Classes of GPUs: what each has, and that what it lacks is an error that names it."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from emulator.toolchain import EmulatedToolchain
from tests.emulator import cases
from tests.emulator.harness import STORED, cuda, empty, integers, launch, put
from tests.emulator.runner import Runner
from tests.emulator.test_mistakes import caught
from tests.emulator.test_results import matmul_sm90

pytestmark = pytest.mark.emulator
A = cuda.device_attribute

# Bytes of shared memory of a block and of a multiprocessor, threads and blocks of a multiprocessor: tables of NVIDIA's
# CUDA programming guide.
CLASSES = {"sm_75": ((7, 5), 64, 64, 1024, 16), "sm_80": ((8, 0), 163, 164, 2048, 32),
           "sm_86": ((8, 6), 99, 100, 1536, 16), "sm_89": ((8, 9), 99, 100, 1536, 24),
           "sm_90": ((9, 0), 227, 228, 2048, 32), "sm_100": ((10, 0), 227, 228, 2048, 32),
           "sm_120": ((12, 0), 99, 100, 1536, 24), "sm_130": ((13, 0), 99, 100, 1536, 24)}  # as the newest listed


@pytest.mark.parametrize("arch", CLASSES)
def test_a_device_has_what_its_class_has(arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALPHA_EMULATED_ARCH", arch)
    device, (capability, block, whole, threads, blocks) = cuda.Device(0), CLASSES[arch]
    found = [device.get_attribute(attribute) for attribute in (
        A.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, A.MAX_SHARED_MEMORY_PER_MULTIPROCESSOR,
        A.MAX_THREADS_PER_MULTIPROCESSOR, A.MAX_BLOCKS_PER_MULTIPROCESSOR, A.MAX_REGISTERS_PER_MULTIPROCESSOR)]
    assert device.compute_capability() == capability
    assert found == [block << 10, whole << 10, threads, blocks, 65536]


def test_a_block_takes_no_more_shared_memory_than_its_class_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALPHA_EMULATED_ARCH", "sm_75")
    with pytest.raises(cuda.Error, match="65537 bytes of shared memory, a block of sm_75 has 65536"):
        launch("mistakes:past_dynamic_shared", "P", 1, 32, put(integers(32)), shared=65537)


def test_launch_bounds_that_a_class_does_not_grant(monkeypatch: pytest.MonkeyPatch) -> None:
    x = empty(1, np.int32)
    launch("bounds:eight_blocks", "P", 1, 256, x)
    launch("bounds:twenty_blocks", "P", 1, 32, x)
    caught(r"block \(65,1,1\), the kernel has registers for 64 threads", "bounds:sixty_four_threads", "P", 1, 65, x)
    monkeypatch.setenv("ALPHA_EMULATED_ARCH", "sm_86")
    caught("want 8 blocks of 256 threads on a multiprocessor, sm_86 has 16 blocks and 1536 threads",
           "bounds:eight_blocks", "P", 1, 256, x)
    caught("want 20 blocks of 32 threads on a multiprocessor, sm_86 has 16 blocks",
           "bounds:twenty_blocks", "P", 1, 32, x)


def one_product(kind: str, arch: str = "sm_90a") -> np.ndarray:
    """Returns the result of one mma.sync, less what is right."""
    a, b = integers(16, 8 if kind == "tf32" else 16), integers(8, 8 if kind == "tf32" else 16)
    d = empty((16, 8))
    launch(f"tensor_core:mma_{kind}", "PPPP", 1, 32, put(STORED[kind](a)), put(STORED[kind](b)),
           put(np.zeros((16, 8), np.float32)), d, arch=arch)
    return d.get() - a @ b.T


def test_instructions_that_a_class_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALPHA_EMULATED_ARCH", "sm_75")
    x, w, y = put(integers(256, 16)), put(integers(16)), empty(256)
    caught(r"kernel dot_rows, .*: cp.async needs sm_80, the device is sm_75",
           "async_copy:dot_rows", "PPPii", 2, 128, x, w, y, 256, 16, shared=2 * 129 * 64)
    for kind, name in (("f16", "mma.m16n8k16 f16"), ("bf16", "mma bf16"), ("tf32", "mma tf32")):
        with pytest.raises(cuda.Error, match=f"{name} needs sm_80, the device is sm_75"):
            one_product(kind)
    for arch in ("sm_80", "sm_120"):
        monkeypatch.setenv("ALPHA_EMULATED_ARCH", arch)
        assert not one_product("bf16").any()
        needed = "wgmma needs sm_90a" if arch == "sm_120" else "needs sm_90"
        with pytest.raises(cuda.Error, match=f"{needed}, the device is {arch}"):
            matmul_sm90(64, 64, 64)
    monkeypatch.setenv("ALPHA_EMULATED_ARCH", "sm_89")
    with pytest.raises(cuda.Error, match=r"fence.proxy.async needs sm_90, the device is sm_89"):
        Runner(EmulatedToolchain())(cases.tile_problems()[0])


@pytest.mark.parametrize("checked", [False, True])
def test_what_is_compiled_for_sm_75_has_its_instructions(checked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALPHA_EMULATED_ARCH", "sm_75")
    assert not one_product("f16", "sm_75").any()
    x, w, y = integers(200, 40), integers(40), empty(200)
    launch("async_copy:dot_rows", "PPPii", 2, 128, put(x), put(w), y, 200, 40, shared=2 * 129 * 64, checked=checked,
           arch="sm_75")
    assert (y.get() == x @ w).all()


def test_a_name_of_no_class_is_refused() -> None:
    code = ("import os; os.environ['ALPHA_EMULATED_ARCH'] = 'turing'\n"
            "from emulator import emulation; emulation.install()")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "ALPHA_EMULATED_ARCH is 'turing', which names no class of GPUs\nhelp: name one as nvcc does" in done.stderr
