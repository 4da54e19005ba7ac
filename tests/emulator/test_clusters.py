"""Clusters of blocks: sizes, distributed shared memory, remote mbarriers, multicast, and mistakes with them."""

from __future__ import annotations

import ctypes
import re
from functools import cache
from typing import Any

import numpy as np
import pytest

from emulator.toolchain import EmulatedToolchain
from tests.emulator import cases
from tests.emulator.harness import LIBCUDA, cuda, empty, error_text, integers, launch, to_bf16
from tests.emulator.runner import KERNELS, Runner

pytestmark = pytest.mark.emulator
RUN = {False: Runner(EmulatedToolchain()), True: Runner(EmulatedToolchain(checked=True))}
both = pytest.mark.parametrize("checked", [False, True], ids=["plain", "checked"])
seeds = pytest.mark.parametrize("seed", ["0", "1", "2"])


@both
@seeds
def test_distributed_shared_memory(seed: str, checked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALPHA_EMULATED_SEED", seed)
    grid = (4, 6)
    assert np.array_equal(RUN[checked](cases.exchange(grid))[0], cases.expected_exchange(grid))


@both
@seeds
def test_multicast(seed: str, checked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALPHA_EMULATED_SEED", seed)
    a, b = integers(128, 320), integers(256, 320)
    assert np.array_equal(RUN[checked](cases.matmul_multicast(to_bf16(a), to_bf16(b)))[0], a @ b.T)


class Attribute(ctypes.Structure):  # CUlaunchAttribute
    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_uint * 16)]


class Config(ctypes.Structure):  # CUlaunchConfig
    _fields_ = [("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint),
                ("stream", ctypes.c_void_p), ("attributes", ctypes.POINTER(Attribute)), ("count", ctypes.c_uint)]


@cache
def function_of(file: str, name: str) -> ctypes.c_void_p:
    """Returns the handle of a kernel, which PyCUDA does not give away."""
    loaded, function = ctypes.c_void_p(), ctypes.c_void_p()
    path = EmulatedToolchain().compile(KERNELS / f"{file}.cu", {}, "sm_90a")
    assert LIBCUDA.cuModuleLoad(ctypes.byref(loaded), str(path).encode()) == 0
    assert LIBCUDA.cuModuleGetFunction(ctypes.byref(function), loaded, name.encode()) == 0
    return function


def launch_in_clusters(kernel: str, grid: tuple[int, ...], cluster: tuple[int, ...] | None, argument: Any,
                       attribute: int = 4) -> int:
    """Calls cuLaunchKernelEx; returns its status."""
    file, name = kernel.split(":")
    function = function_of(file, name)
    attributes = (Attribute * 1)(Attribute(attribute, 0, (*(cluster or ()),)))
    config = Config(grid, (64, 1, 1), 1024, None, attributes, int(cluster is not None))
    pointer = ctypes.c_uint64(int(argument.gpudata))
    params = (ctypes.c_void_p * 1)(ctypes.addressof(pointer))
    return LIBCUDA.cuLaunchKernelEx(ctypes.byref(config), function, params, None)


@pytest.mark.parametrize("cluster", [None, (1, 1, 1), (8, 1, 1), (1, 2, 3), (2, 2, 2)])
def test_clusters_by_launch_attribute(cluster: tuple[int, ...] | None) -> None:
    grid, out = (8, 4, 6), empty((6, 4, 8), np.int32)
    assert launch_in_clusters("clusters_sm90:where_am_i", grid, cluster, out) == 0
    x, y, z = cluster or (1, 1, 1)
    at_z, at_y, at_x = np.indices(out.shape)
    assert np.array_equal(out.get(), at_x % x + x * (at_y % y) + x * y * (at_z % z) + 100 * x * y * z)


@pytest.mark.parametrize("fault, kernel, grid, cluster", [
    (r"where_am_i: clusters of \(3,3,1\), at most 8 blocks", "where_am_i", (9, 9, 1), (3, 3, 1)),
    (r"where_am_i: grid \(9,2,1\) is not made of clusters of \(2,2,1\)", "where_am_i", (9, 2, 1), (2, 2, 1)),
    (r"exchange: grid \(4,3,1\) is not made of clusters of \(2,2,1\)", "exchange", (4, 3, 1), None),
    (r"exchange: clusters of \(4,1,1\), the kernel has \(2,2,1\)", "exchange", (4, 4, 1), (4, 1, 1))])
def test_clusters_that_the_driver_refuses(fault: str, kernel: str, grid: Any, cluster: Any) -> None:
    status = launch_in_clusters(f"clusters_sm90:{kernel}", grid, cluster, empty(4096, np.int32))
    assert status == 912 and re.search(fault, error_text(status))


def test_other_launch_attributes() -> None:
    status = launch_in_clusters("clusters_sm90:where_am_i", (1, 1, 1), (1, 1, 1), empty(4, np.int32), attribute=6)
    assert (status, error_text(status)) == (1, "the emulated driver has no launch attribute 6")


def test_the_cluster_that_a_kernel_requires() -> None:
    function = function_of("clusters_sm90", "exchange")
    sizes = []
    for attribute in (11, 12, 13):  # CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH, _HEIGHT, _DEPTH
        value = ctypes.c_int()
        assert LIBCUDA.cuFuncGetAttribute(ctypes.byref(value), attribute, function) == 0
        sizes.append(value.value)
    assert sizes == [2, 2, 1]


def test_clusters_need_hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALPHA_EMULATED_ARCH", "sm_80")
    with pytest.raises(cuda.Error, match=r"launch of exchange: clusters need sm_90, the device is sm_80"):
        launch("clusters_sm90:exchange", "P", (2, 2), 64, empty(256, np.int32), shared=1024)
