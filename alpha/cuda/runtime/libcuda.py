"""Entries of the driver that PyCUDA does not have, called through ctypes: graphs, ranges of addresses, tensor maps."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from alpha.core.errors import DeviceError, message

OUT_OF_MEMORY = 2  # CUresult


@cache
def library() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")  # the one that PyCUDA has loaded


def call(name: str, *arguments: Any) -> None:
    """Calls an entry for a recording.  Raises DeviceError where the driver refuses."""
    check(name, status_of(name, *arguments))


def status_of(name: str, *arguments: Any) -> int:
    """Calls an entry and returns its status; integers travel as 64 bits, of which it reads what it takes."""
    wide = [ctypes.c_uint64(a) if isinstance(a, int) else a for a in arguments]
    return getattr(library(), name)(*wide)  # type: ignore[no-any-return]


def check(name: str, status: int) -> None:
    """Raises DeviceError for a status that is an error."""
    if status:
        text = ctypes.c_char_p()
        library().cuGetErrorString(status, ctypes.byref(text))
        why = text.value.decode() if text.value else "an unknown error"
        raise DeviceError(message("capture", f"{name} failed with {status}: {why}",
                                  "ALPHA_CAPTURE=0 runs the work op by op"))
