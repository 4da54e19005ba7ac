"""Running a kernel on whatever driver is loaded, the emulated one or a GPU's, on arrays from the host."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

KERNELS = Path(__file__).with_name("kernels")
UINT8, FP16, FP32, BF16 = 0, 6, 7, 9  # CU_TENSOR_MAP_DATA_TYPE_*
TILE_TYPES = {"uint8": UINT8, "float16": FP16, "float32": FP32, "uint16": BF16}
SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}  # CU_TENSOR_MAP_SWIZZLE_*, by the bytes that it spans


class Out(NamedTuple):
    """An array that the kernel writes to, and what it holds before."""

    before: np.ndarray


class Tiles(NamedTuple):
    """A tensor map over a C-contiguous array, of which `inner` elements of each row exist; box and steps from the
    innermost dimension. `of` may be a view of `memory` whose rows overlap."""

    of: np.ndarray | Out
    box: Sequence[int]
    span: int = 0
    steps: Sequence[int] | None = None
    inner: int | None = None
    memory: np.ndarray | None = None


class Problem(NamedTuple):
    """One launch. Arguments are arrays, Out, Tiles, int, and bytes for structures."""

    name: str
    source: str
    entry: str
    arguments: tuple[Any, ...]
    grid: tuple[int, int, int] = (1, 1, 1)
    threads: int = 128
    shared: int = 0
    defines: dict[str, int] = {}


def encode_tensor_map(library: ctypes.CDLL, address: int, array: np.ndarray, tiles: Tiles) -> tuple[int, bytes]:
    """Returns the status and the 128 bytes of cuTensorMapEncodeTiled, for the shape of an array at a device address."""
    sizes, rank = list(array.shape[::-1]), array.ndim
    pitches = [*array.strides[-2::-1], array.nbytes]
    sizes[0] = sizes[0] if tiles.inner is None else tiles.inner
    room = ctypes.create_string_buffer(128 + 64)
    at = -ctypes.addressof(room) % 64
    status = library.cuTensorMapEncodeTiled(
        ctypes.byref(room, at), TILE_TYPES[array.dtype.name], rank, ctypes.c_void_p(address),
        (ctypes.c_uint64 * rank)(*sizes), (ctypes.c_uint64 * rank)(*pitches), (ctypes.c_uint32 * rank)(*tiles.box),
        (ctypes.c_uint32 * rank)(*(tiles.steps or [1] * rank)), 0, SWIZZLES[tiles.span], 0, 0)
    return status, room.raw[at:at + 128]


class Runner:
    """Runs problems with the modules of a toolchain."""

    def __init__(self, toolchain: Any) -> None:
        from pycuda import autoprimaryctx, driver  # noqa: F401

        self.toolchain, self.driver, self.modules = toolchain, driver, {}
        self.library = ctypes.CDLL("libcuda.so.1")  # the one that PyCUDA has loaded

    def load(self, problem: Problem) -> Any:
        """Returns the module, compiled and loaded at the first call."""
        key = problem.source, tuple(problem.defines.items())
        if key not in self.modules:
            path = self.toolchain.compile(KERNELS / problem.source, problem.defines, "sm_90a")
            self.modules[key] = self.driver.module_from_file(str(path))
        return self.modules[key]

    def __call__(self, problem: Problem) -> list[np.ndarray]:
        """Returns the arrays that were written, in the order of the arguments."""
        driver, kept, written, fmt, values = self.driver, [], [], "", []

        def put(argument: np.ndarray | Out) -> int:
            array = np.ascontiguousarray(argument.before if isinstance(argument, Out) else argument)
            kept.append(driver.to_device(array))
            if isinstance(argument, Out):
                written.append((kept[-1], array))
            return int(kept[-1])

        for argument in problem.arguments:
            if isinstance(argument, Tiles):
                array = argument.of.before if isinstance(argument.of, Out) else argument.of
                there = put(argument.of if argument.memory is None else argument.memory)
                status, value = encode_tensor_map(self.library, there, array, argument)
                assert status == 0, problem.name
            else:
                value = put(argument) if isinstance(argument, np.ndarray | Out) else argument
            fmt += ("i" if isinstance(argument, int) else "P" if isinstance(value, int) else f"{len(value)}s")
            values.append(value)
        function = self.load(problem).get_function(problem.entry)
        if problem.shared > 48 << 10:
            function.set_attribute(driver.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES, problem.shared)
        function._launch_kernel(problem.grid, (problem.threads, 1, 1), struct.pack(fmt, *values), problem.shared, None)
        results = []
        for block, array in written:
            results.append(np.empty_like(array))
            driver.memcpy_dtoh(results[-1], block)
        return results
