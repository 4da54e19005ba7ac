"""The checkpoints of alpha: a safetensors file that carries a digest of itself.

The header's "__metadata__" has one entry, "alpha": JSON of {"sha256", "schema", "metadata"}. The digest is of the
whole file with 64 zeros in its own place, so that no byte can change or go unnoticed. It tells damage, not a forger:
every field is checked all the same.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from alpha.checkpoint import disk, tensors_file
from alpha.checkpoint.disk import PathLike
from alpha.checkpoint.tensors_file import LONGEST_HEADER, METADATA, MOST_AXES, Damaged, encoding_problem, parse_json
from alpha.core.device import DTYPES
from alpha.core.errors import CheckpointError, message
from alpha.core.inputs.arguments import bound
from alpha.core.inputs.ints import as_int
from alpha.core.inputs.schema import shown
from alpha.core.tensor import Tensor, tensor

SCHEMA = 1
_BLANK = b"0" * 64
_HEAD_BYTES = 4096      # the digest is among the first
_DIGEST = re.compile(rb'\\"sha256\\":\\"([0-9a-f]{64})\\"')
_DAMAGED = "use the previous checkpoint, see alpha.checkpoint.previous(path)"
_TORCH = "alpha.checkpoint.load_torch(path, model) reads what torch.save wrote"


@bound
def save(path: PathLike, tensors: Mapping[str, Any], metadata: Mapping[str, Any] | None = None) -> None:
    """Writes a checkpoint, so that at every moment `path` holds either the old or the new one as a whole.

    The file that was at `path` is kept as `previous(path)`.
    Args:
        path: where to; a name that ends in .safetensors is customary. The directory must exist.
        tensors: Tensor or NumPy array by name.
        metadata: values for json.dumps: numbers, strings, None, lists, dicts.
    Raises:
        CheckpointError: `path` is a directory or a device, the metadata is no JSON, a name or a dtype could not be
            loaded, the disk is full, or the directory is not there or not writable. The file before is still there.
    """
    place = disk.as_path("checkpoint.save", path)
    disk.check_target("checkpoint.save", place)
    disk.warn_of_name("checkpoint.save", place)
    try:
        document = json.dumps({"sha256": _BLANK.decode(), "schema": SCHEMA, "metadata": dict(metadata or {})},
                              separators=(",", ":"))
        parse_json(document, "it")      # two keys that JSON writes alike, such as 1 and "1", would lose a value
    except (TypeError, ValueError, RecursionError, Damaged) as error:
        raise CheckpointError(message("checkpoint.save", f"the metadata of {place} cannot be written as JSON: {error}",
                                      "pass numbers, strings, None, lists and dicts")) from error
    data = safetensors.numpy.save(arrays_of("checkpoint.save", tensors), {"alpha": document})
    if int.from_bytes(data[:8], "little") > LONGEST_HEADER:
        raise CheckpointError(message("checkpoint.save", f"names and metadata of {place} have "
                                      f"{int.from_bytes(data[:8], 'little')} bytes, at most {LONGEST_HEADER} can be "
                                      "loaded", "store large values as tensors"))
    disk.write("checkpoint.save", place, data.replace(_BLANK, hashlib.sha256(data).hexdigest().encode(), 1))


@bound
def load(path: PathLike) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Reads a checkpoint that `save` wrote.

    Returns:
        (tensors, metadata); the tensors live on the CPU.
    Raises:
        CheckpointError: the file is missing or unreadable, a byte of it has changed, it is no file of
            `save`, or it was written by a later version of alpha.
    """
    place = disk.as_path("checkpoint.load", path)
    try:
        file = tensors_file.read("checkpoint.load", place)
        metadata = _metadata(file.data, file.metadata)
    except Damaged as error:
        with place.open("rb") as begun:
            fix = _TORCH if begun.read(2) in (b"PK", b"\x80\x02") else _DAMAGED
        raise CheckpointError(message("checkpoint.load", f"{place} is damaged, or no checkpoint of alpha: {error}",
                                      fix)) from error
    if metadata["schema"] > SCHEMA:
        raise CheckpointError(message("checkpoint.load", f"{place} has schema {metadata['schema']}, this version of "
                                      f"alpha reads up to {SCHEMA}", "update alpha"))
    arrays = file.arrays("checkpoint.load", place)
    for name, a in arrays.items():
        if a.dtype.name not in DTYPES:
            raise CheckpointError(message("checkpoint.load", f"{name} in {place} has dtype {a.dtype}, which alpha does "
                                          "not have", _DAMAGED))
    return {name: tensor(a) for name, a in arrays.items()}, metadata["metadata"]


def _metadata(data: bytearray, texts: Mapping[str, str]) -> dict[str, Any]:
    """Returns the entry "alpha" of a file.  Raises Damaged unless its digest is the file's and its parts fit."""
    found = _DIGEST.search(data, 0, _HEAD_BYTES)
    if not found:
        raise Damaged("it has no digest")
    view = memoryview(data)
    digest = hashlib.sha256(view[:found.start(1)])
    digest.update(_BLANK)
    digest.update(view[found.end(1):])
    if digest.hexdigest().encode() != found[1]:
        raise Damaged("its bytes do not match its digest")
    document = parse_json(texts.get("alpha", ""), f"{METADATA}.alpha")
    if not isinstance(document, dict) or document.get("sha256") != found[1].decode():
        raise Damaged(f"{METADATA}.alpha is not where its digest stands")
    schema, metadata = document.get("schema"), document.get("metadata")
    if (version := as_int(schema)) is None or version < 1:
        raise Damaged(f"its schema is {shown(schema)}, not an integer of at least 1")
    if not isinstance(metadata, dict) and version <= SCHEMA:
        raise Damaged(f"its metadata is {shown(metadata)}, not a dict")
    return document


def is_own(path: Path) -> bool:
    """Tells whether `save` wrote the file; False where it cannot be read, which the next reader explains."""
    try:
        with open(path, "rb") as file:
            return _DIGEST.search(file.read(_HEAD_BYTES)) is not None
    except OSError:
        return False


def arrays_of(where: str, tensors: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Returns contiguous arrays by name.  Raises CheckpointError for values that could not be loaded again."""
    if not isinstance(tensors, Mapping):
        raise CheckpointError(message(where, f"the tensors are {shown(tensors)}, not a dict", "pass tensors by name: "
                                      "model.state_dict()"))
    arrays = {}
    for name, t in tensors.items():
        if not isinstance(name, str) or name == METADATA or encoding_problem(name):
            raise CheckpointError(message(where, f"a tensor cannot be called {shown(name)}", "give it a name, a string "
                                          f"of Unicode; safetensors files keep {METADATA} for themselves"))
        if not isinstance(t, (Tensor, np.ndarray, np.generic)):
            raise CheckpointError(message(where, f"{name} is {shown(t)}, not a Tensor or a NumPy array",
                                          "convert it: np.asarray(value)"))
        a = np.asarray(t.numpy() if isinstance(t, Tensor) else t)
        if a.dtype.name not in DTYPES:
            raise CheckpointError(message(where, f"{name} has dtype {a.dtype}, which alpha cannot load",
                                          f"convert it to one of {', '.join(sorted(DTYPES))}"))
        if a.ndim > MOST_AXES:
            raise CheckpointError(message(where, f"{name} has {a.ndim} axes, at most {MOST_AXES} can be loaded",
                                          "reshape it"))
        arrays[name] = np.ascontiguousarray(a, a.dtype.newbyteorder("=")).reshape(a.shape)
    return arrays
