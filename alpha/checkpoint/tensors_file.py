"""Reads safetensors files without trust in a single field of them.

    8 bytes: length N of the header | N bytes: header, JSON | data
    header: {"__metadata__": {text: text}, name: {"dtype": ..., "shape": [...], "data_offsets": [begin, end]}, ...}

The data of the tensors tile the rest behind the header: no gap, no overlap, nothing behind.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from alpha.checkpoint.disk import check_readable, unreadable
from alpha.core.errors import CheckpointError, message
from alpha.core.inputs.schema import Integer, Items, Record, Text, shown

LONGEST_HEADER = 100_000_000     # bytes, as in the library of safetensors
MOST_AXES = 32                   # of a NumPy array, in all versions
METADATA = "__metadata__"
DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1",
          "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1", "BOOL": "u1", "C64": "<c8"}
SMALL_FLOATS = ("F8_", "F6_", "F4")
_ENTRY = Record({"dtype": Text(20), "shape": Items(Integer(0), 0, MOST_AXES), "data_offsets": Items(Integer(0), 2, 2)})


class Damaged(Exception):
    """A file that is no safetensors file; the text says why."""


@dataclass(frozen=True)
class Entry:
    """One tensor of a file: its dtype as the file calls it, its shape, and where its bytes are."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class TensorsFile:
    """A file whose header is known to be sound.

    Args:
        data: all of its bytes.
        metadata: text by name.
        entries: the tensors by name.
        start: where their data begins.
    """

    data: bytearray
    metadata: Mapping[str, str]
    entries: Mapping[str, Entry]
    start: int

    def arrays(self, where: str, path: Path) -> dict[str, np.ndarray]:
        """Returns the tensors as arrays, most of which share their bytes with `data`; bfloat16 becomes float32.

        Raises CheckpointError for a float of less than 16 bits, of which NumPy has none.
        """
        return {name: self._array(where, path, name, entry) for name, entry in self.entries.items()}

    def _array(self, where: str, path: Path, name: str, entry: Entry) -> np.ndarray:
        if entry.dtype.startswith(SMALL_FLOATS):
            raise CheckpointError(message(where, f"{name} in {path} has dtype {entry.dtype}, which alpha cannot read",
                                          "convert it where it was made, to float32 or bfloat16, with its scale"))
        dtype = np.dtype(DTYPES[entry.dtype])
        a = np.frombuffer(self.data, dtype, math.prod(entry.shape), self.start + entry.begin)
        a = (a if a.flags.aligned else a.copy()).reshape(entry.shape)
        if entry.dtype == "BF16":
            return np.left_shift(a, 16, dtype=np.uint32).view(np.float32)
        return a != 0 if entry.dtype == "BOOL" else a


def read(where: str, path: Path) -> TensorsFile:
    """Reads a file; its header is checked against its size before the data is read.

    Raises:
        CheckpointError: the file cannot be read, or memory has no room for it.
        Damaged: it is no safetensors file.
    """
    check_readable(where, path)
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            head = file.read(8)
            length = int.from_bytes(head, "little")
            if len(head) < 8 or length > min(size - 8, LONGEST_HEADER):
                raise Damaged(f"its header has {length} bytes, the file {size}" if len(head) == 8 else
                              f"it has {len(head)} bytes, too few for a header")
            text = file.read(length)
            metadata, entries = parse_header(text, size - 8 - length)
            data = bytearray(size)
            data[:8 + length] = head + text
            got = file.readinto(memoryview(data)[8 + length:])
    except OSError as error:
        raise unreadable(where, path, error) from error
    except MemoryError as error:
        raise CheckpointError(message(where, f"{path} has no room in memory", "use a machine with more memory")
                              ) from error
    if 8 + length + got != size:
        raise Damaged(f"it ends after {8 + length + got} of {size} bytes")
    return TensorsFile(data, metadata, entries, 8 + length)


def parse_header(text: bytes, nbytes: int) -> tuple[dict[str, str], dict[str, Entry]]:
    """Returns (metadata, entries) of a header in front of `nbytes` bytes of data.  Raises Damaged."""
    header = parse_json(text, "its header")
    if not isinstance(header, dict):
        raise Damaged(f"its header is {shown(header)}, not a dict")
    metadata = header.pop(METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise Damaged(f"{METADATA} is not a dict of texts")
    for item in (*metadata, *metadata.values()):
        if encoding_problem(item):
            raise Damaged(f"{METADATA}: {encoding_problem(item)}")
    entries = {}
    for name, value in header.items():
        problem = _ENTRY.problem(value, shown(name)) or encoding_problem(name)
        if problem:
            raise Damaged(problem)
        entries[name] = Entry(value["dtype"], tuple(value["shape"]), *value["data_offsets"])
        _check_entry(shown(name), entries[name])
    end = 0
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
        if entry.begin != end:
            raise Damaged(f"the data of {shown(name)} begins at {entry.begin}, that before it ends at {end}")
        end = entry.end
    if end != nbytes:
        raise Damaged(f"its tensors have {end} bytes, behind the header are {nbytes}")
    return metadata, entries


def _check_entry(name: str, entry: Entry) -> None:
    """Raises Damaged unless the bytes fit the dtype and the shape."""
    if entry.dtype.startswith(SMALL_FLOATS):
        return
    if entry.dtype not in DTYPES:
        raise Damaged(f"{name} has the unknown dtype {entry.dtype!r}")
    itemsize = np.dtype(DTYPES[entry.dtype]).itemsize
    if math.prod(n for n in entry.shape if n) * max(itemsize, 4) >= 1 << 62:  # NumPy counts so, be one axis 0 or not
        raise Damaged(f"{name} has {len(entry.shape)} axes of more elements than any memory")
    if math.prod(entry.shape) * itemsize != entry.end - entry.begin:
        raise Damaged(f"{name} has {entry.end - entry.begin} bytes, its shape {shown_shape(entry.shape)} of "
                      f"{entry.dtype} needs {math.prod(entry.shape) * itemsize}")


def parse_json(text: bytes | str, what: str) -> Any:
    """Returns the value of a JSON text.  Raises Damaged if it is none, too deep, or has a name twice in one dict."""
    try:
        return json.loads(text.decode() if isinstance(text, bytes) else text, object_pairs_hook=_without_doubles)
    except RecursionError as error:
        raise Damaged(f"{what} is nested too deeply") from error
    except MemoryError as error:
        raise Damaged(f"{what} has no room in memory") from error
    except ValueError as error:  # no JSON, no UTF-8, or an integer of thousands of digits
        raise Damaged(f"{what} is not JSON: {error}") from error


def _without_doubles(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise Damaged("a name comes twice in its header")
    return made


def encoding_problem(name: str) -> str | None:
    """Returns the fault of a name or a text that cannot be written as UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return f"{shown(name)} is not Unicode"
    return None


def shown_shape(shape: tuple[int, ...]) -> str:
    return str(shape) if len(str(shape)) <= 80 else f"of {len(shape)} axes"

