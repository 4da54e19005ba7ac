"""How large a tensor may be: a tensor that cannot exist is refused by its size, before its memory is asked for."""

from __future__ import annotations

import os
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

from alpha.core.device import ITEMSIZE
from alpha.core.errors import AlphaError, OutOfMemoryError, ShapeError, message

MAX_SIZE = 1 << 62  # bytes of a tensor, and the largest int for a size
MAX_NDIM = 32       # axes, as in every NumPy

GIB = 1 << 30
CGROUP = Path("/sys/fs/cgroup/memory.max")


@cache
def host_nbytes() -> int:
    """Returns the bytes of memory that the host has, or that a container leaves to the process."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(total, int(CGROUP.read_text()))
    except (OSError, ValueError):  # there is no such file, or it says "max"
        return total


def check_size(where: str, shape: tuple[int, ...]) -> None:
    """Refuses a shape that no tensor can have.  Raises ShapeError."""
    count = prod([n for n in shape if n])  # NumPy refuses an empty array too whose other sizes are too large
    if count * 8 > MAX_SIZE:
        raise ShapeError(message(where, f"a tensor of shape {_brief(shape)} is larger than any memory, 2^59 elements "
                                 "are the most", "make the sizes smaller"))
    if len(shape) > MAX_NDIM:
        raise ShapeError(message(where, f"a tensor of {len(shape)} axes, {MAX_NDIM} is the most",
                                 "join some axes: x.reshape(...)"))


def check_host(where: str, shape: tuple[int, ...], dtype: str) -> None:
    """Refuses a tensor that the host's memory cannot hold.  Raises ShapeError or OutOfMemoryError."""
    check_size(where, shape)
    nbytes = prod(shape) * ITEMSIZE[dtype]
    if nbytes > host_nbytes():
        raise OutOfMemoryError(message(where, f"a {dtype} tensor of shape {_brief(shape)} takes {nbytes / GIB:,.1f} "
                                       f"GiB, the host has {host_nbytes() / GIB:,.1f}", "make the sizes smaller"))


def explain(where: str, error: Exception, specs: Any, dtype: str, args: Any) -> None:
    """Raises the cause of `error`, raised by an implementation: outputs that are too large, or a number that is.

    Args:
        specs: one shape, or (shape, dtype), per output.
        dtype: of the outputs without one.
        args: of the call of the op.
    """
    if isinstance(error, AlphaError):
        return
    for spec in specs or ():
        shape, kind = spec if hasattr(spec, "dtype") else (spec, dtype)
        check_size(where, shape)
        if isinstance(error, MemoryError):
            nbytes = prod(shape) * ITEMSIZE[kind]
            raise OutOfMemoryError(message(where, f"there is no room for a {kind} tensor of shape {_brief(shape)}, "
                                           f"{nbytes / GIB:,.3f} GiB", "use a smaller batch or a smaller model"
                                           )) from error
    if isinstance(error, OverflowError):
        for value in args:
            if isinstance(value, int) and value.bit_length() >= 64:
                raise ShapeError(message(where, f"a number of {value.bit_length()} bits fits no dtype",
                                         "pass a smaller number")) from error


def _brief(shape: tuple[int, ...]) -> str:
    text = str(shape)
    return text if len(text) <= 80 else text[:77] + "..."
