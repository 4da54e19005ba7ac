"""Launching a test kernel on the emulated driver through PyCUDA, without anything of alpha.cuda between."""

from __future__ import annotations

import atexit
import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from emulator.toolchain import EmulatedToolchain, load_driver
from tests.emulator.runner import KERNELS, Tiles, encode_tensor_map

LIBCUDA = load_driver()  # before PyCUDA, which then finds this libcuda.so.1 loaded

import pycuda.autoprimaryctx  # noqa: E402,F401
import pycuda.driver as cuda  # noqa: E402
from pycuda import gpuarray  # noqa: E402
from pycuda.tools import DeviceMemoryPool  # noqa: E402

POOL = DeviceMemoryPool()
atexit.register(POOL.stop_holding)  # arrays of modules go after the context: the pool would want it to take them back
STREAM = cuda.Stream()
RNG = np.random.default_rng(0)
Size = int | tuple[int, ...]


@cache
def module(file: str, checked: bool = False, defines: tuple[str, ...] = (), arch: str = "sm_90a") -> Any:
    """Returns the loaded module of kernels/<file>.cu, compiled for a class of GPUs."""
    path = EmulatedToolchain(checked).compile(KERNELS / f"{file}.cu", dict.fromkeys(defines, 1), arch)
    return cuda.module_from_file(str(path))


def launch(kernel: str, fmt: str, grid: Size, block: Size, *args: Any, shared: int = 0, checked: bool = False,
           defines: tuple[str, ...] = (), arch: str = "sm_90a") -> None:
    """Runs "file:name" and waits for it.  fmt: the arguments as PyCUDA's `prepare` takes them."""
    file, name = kernel.split(":")
    function = module(file, checked, defines, arch).get_function(name)
    if shared > 48 << 10:
        function.set_attribute(cuda.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES, shared)
    function.prepare(fmt)
    values = [a.gpudata if isinstance(a, gpuarray.GPUArray) else a for a in args]
    function.prepared_async_call(_three(grid), _three(block), STREAM, *values, shared_size=shared)
    STREAM.synchronize()


def _three(size: Size) -> tuple[int, ...]:
    return (*((size,) if isinstance(size, int) else size), 1, 1)[:3]


def error_text(status: int) -> str:
    """Returns what the driver says about a status that a call through ctypes has returned."""
    text = ctypes.c_char_p()
    LIBCUDA.cuGetErrorString(status, ctypes.byref(text))
    return text.value.decode()


def empty(shape: Size, dtype: Any = np.float32) -> gpuarray.GPUArray:
    """Returns an array from the pool, and tells the driver its exact size, because the pool rounds blocks up."""
    array = gpuarray.GPUArray(shape, dtype, allocator=POOL.allocate)
    assert LIBCUDA.emuClaim(int(array.gpudata), array.nbytes) == 0
    return array


def put(a: np.ndarray) -> gpuarray.GPUArray:
    """Returns a copy of `a` on the device."""
    array = empty(a.shape, a.dtype)
    array.set(np.ascontiguousarray(a))
    return array


def integers(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    """Returns small integers, of which sums of products are exact."""
    return RNG.integers(-4, 5, shape).astype(dtype)


def to_bf16(a: np.ndarray) -> np.ndarray:
    """Returns the bits of bfloat16 values, cut off: exact for those that bfloat16 has."""
    return (a.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


STORED = {"f16": lambda a: a.astype(np.float16), "bf16": to_bf16, "tf32": lambda a: a.astype(np.float32)}


def tensor_map(array: gpuarray.GPUArray, box: Sequence[int], span: int = 0) -> bytes:
    """Returns a CUtensorMap over a C-contiguous array; `box` starts with the innermost dimension."""
    like = np.empty(array.shape, array.dtype)
    status, encoded = encode_tensor_map(LIBCUDA, int(array.gpudata), like, Tiles(like, box, span))
    assert status == 0
    return encoded
