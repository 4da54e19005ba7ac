"""Tensor maps: what Hopper's copy engine (TMA) knows of a tensor, as 128 bytes.

    tensor_maps(x.ptr, "float16", [(c, w, h, n)], [(64, 1, 1, 128)], (2 * c, 2 * w * c, 2 * h * w * c))
    # boxes of 64 channels of one pixel of 128 images

A kernel declares MAPS and gets them by value: to acquire those in device memory takes a launch up to 0.3 us. Where
there are more than BY_VALUE all lie in device memory, and the kernel calls ptx::tensor_map_acquire before the first use
of each. Dimensions and boxes begin with the innermost one. What a box has beyond the tensor is read as zeros, and is
not written.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from alpha.core.errors import AlphaError, message
from alpha.cuda.runtime.libcuda import status_of
from alpha.cuda.runtime.memory import Array, upload

Sizes = tuple[int, ...]

TYPES = {"float16": 6, "float32": 7, "bfloat16": 9}    # CUtensorMapDataType
SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}                # bytes -> CUtensorMapSwizzle
L2_PROMOTION = 2                                       # 128 bytes: what a row of a box has
NBYTES, ALIGNMENT = 128, 64
BY_VALUE = 4                                           # maps that are an argument of a launch
LEAD = -0x210 % 128                                    # bytes before them: arguments begin at 0x210 of a bank
ROOM = LEAD + BY_VALUE * NBYTES
BLOCK = f"block[{ROOM}]"                               # their type in a declaration
MAPS = f"{BLOCK} maps, ptr more"                       # of a kernel that may get more: see ptx::maps_of
by_address = lru_cache(maxsize=256)                    # of a plan's maps: its tensors come back at their addresses


def tensor_maps(ptr: int, dtype: str, dims: Sequence[Sizes], boxes: Sequence[Sizes], strides: Sizes, *,
                swizzle: int = 128, offsets: Sizes = ()) -> bytes:
    """Returns maps of a tensor on the device that differ in their dimensions or boxes, one behind the other.

    Dimensions may overlap: with strides smaller than what the inner ones take, rows begin within each other.

    Args:
        ptr: device address, a multiple of 16.
        dtype: "float16", "bfloat16" or "float32".
        dims: of each map, number of elements along each of up to 5 dimensions.
        boxes: of each map; rows have at most `swizzle` bytes.
        strides: bytes from an element to the next along each dimension but the first, multiples of 16.
        swizzle: 128, 64, 32, or 0 for none.
        offsets: where the tensor of each map begins, in bytes behind ptr; (): all are of one.

    Raises:
        AlphaError: the driver refuses one.
    """
    begins = offsets or (0,) * len(dims)
    return b"".join(_encoded(ptr + begin, dtype, each, box, strides, swizzle)
                    for begin, each, box in zip(begins, dims, boxes, strict=True))


def maps_argument(maps: bytes) -> tuple[bytes, Array | None]:
    """Returns what a launch is given for MAPS.  More than BY_VALUE of them are uploaded: callers keep the result."""
    if len(maps) <= BY_VALUE * NBYTES:
        return (bytes(LEAD) + maps).ljust(ROOM, b"\0"), None
    return bytes(ROOM), upload(np.frombuffer(maps, np.uint8))


def _encoded(ptr: int, dtype: str, dims: Sizes, box: Sizes, strides: Sizes, swizzle: int) -> bytes:
    rank = len(dims)
    memory = ctypes.create_string_buffer(NBYTES + ALIGNMENT)
    at = -ctypes.addressof(memory) % ALIGNMENT
    code = status_of(
        "cuTensorMapEncodeTiled", ctypes.addressof(memory) + at, TYPES[dtype], rank, ptr,
        (ctypes.c_uint64 * rank)(*dims), (ctypes.c_uint64 * max(rank - 1, 1))(*strides), (ctypes.c_uint32 * rank)(*box),
        (ctypes.c_uint32 * rank)(*[1] * rank), 0, SWIZZLES[swizzle], L2_PROMOTION, 0)
    if code:
        raise AlphaError(message("tensor_maps", f"the driver refuses it with error {code}",
                                 "addresses and strides are multiples of 16 bytes, boxes have at most 256 elements a "
                                 "dimension and as many bytes a row as the swizzle", address=hex(ptr), dtype=dtype,
                                 dims=dims, strides=strides, box=box, swizzle=swizzle))
    return memory.raw[at:at + NBYTES]
