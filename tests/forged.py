"""Checkpoints whose digest is right and whose content is not."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from alpha.checkpoint.own import _BLANK, _DIGEST


def with_header(header: bytes, data: bytes) -> bytes:
    """Returns a safetensors file of this header, with the digest put right where it has one."""
    return with_digest(len(header).to_bytes(8, "little") + header + data)


def with_digest(data: bytes) -> bytes:
    """Returns the file with the digest that its other bytes call for; as it is where there is none."""
    found = _DIGEST.search(data, 0, 4096)
    if not found:
        return data
    digest = hashlib.sha256(data[:found.start(1)] + _BLANK + data[found.end(1):]).hexdigest()
    return data[:found.start(1)] + digest.encode() + data[found.end(1):]


def header_of(edit: Callable[[Any], Any], path: Path) -> bytes:
    """Returns the header of a file after `edit` has changed it."""
    header, _ = split(path)
    edit(header)
    return json.dumps(header, separators=(",", ":")).encode()


def split(path: Path) -> tuple[Any, bytes]:
    """Returns header and data of a file."""
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    return json.loads(data[8:end]), data[end:]


def forged(path: Path, edit: Callable[[Any], Any]) -> Path:
    """Changes the header of a file, puts the digest right, and returns the path."""
    path.write_bytes(with_header(header_of(edit, path), split(path)[1]))
    return path


def forged_metadata(path: Path, edit: Callable[[Any], Any]) -> Path:
    """Changes the metadata that `checkpoint.save` wrote, puts the digest right, and returns the path."""
    def change(header: Any) -> None:
        document = json.loads(header["__metadata__"]["alpha"])
        edit(document["metadata"])
        header["__metadata__"]["alpha"] = json.dumps(document, separators=(",", ":"))
    return forged(path, change)
