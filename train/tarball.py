"""Reads chosen files out of a .tar.gz archive, in memory, within bounds; nothing is extracted.

Of the tar format it knows plain files, what tar and Python write around them (directories, long names, attributes),
and skips the rest. Extra headers are bounded in number and in size.
"""

from __future__ import annotations

import re
import tarfile
import zlib
from collections.abc import Collection
from pathlib import Path

from alpha.errors import DataError, message

MAX_BYTES = 3 << 27  # of an archive, packed and unpacked: twice what the published ones have
MAX_HEADERS = 1000  # in an archive; a published one has 9
MAX_EXTRA = 1 << 16  # bytes of a long name, or of attributes
BLOCK = 512
STEP, LARGEST_STEP = 1 << 12, 1 << 20  # bytes unpacked in one go, at the begin of a member and later
GZIP = 31  # zlib's number for gzip's header and checksum, and its largest window
PLAIN = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)
NO_BODY = (tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE)
LONG_NAMES = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
ATTRIBUTES = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)


def read(path: Path, wanted: Collection[str], max_bytes: int = MAX_BYTES) -> dict[str, memoryview]:
    """Returns those of the wanted files, by name without folder, that an archive has.

    Raises:
        DataError: if it is damaged or too large, or a wanted file is not a plain one or is there twice.
    """
    if path.stat().st_size > max_bytes:
        raise damaged(path, f"{path.stat().st_size} bytes, at most {max_bytes} are read")
    try:
        blob = _unpacked(path.read_bytes(), max_bytes)
    except (EOFError, zlib.error) as error:
        raise damaged(path, f"is not a whole .tar.gz file: {error}") from error
    if len(blob) > max_bytes:
        raise damaged(path, f"unpacks to more than {max_bytes} bytes, the most that is read")
    try:
        return _members(path, memoryview(blob), wanted)
    except (tarfile.TarError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise damaged(path, f"is not a whole tar archive: {error}") from error


def _unpacked(packed: bytes, max_bytes: int) -> bytearray:
    """Returns what gzip packed, to the end, where its checksum is verified; or a byte more than is allowed."""
    blob, rest = bytearray(), memoryview(packed)
    while rest and len(blob) <= max_bytes:  # one member after the other
        unpacker, step = zlib.decompressobj(GZIP), STEP
        while not unpacker.eof and len(blob) <= max_bytes:
            if not rest:
                raise EOFError("it ends before its end marker")
            part = rest[:step]
            blob += unpacker.decompress(part, max_bytes + 1 - len(blob))
            rest = rest[len(part) - len(unpacker.unused_data) - len(unpacker.unconsumed_tail):]
            step = min(2 * step, LARGEST_STEP)
        while rest and rest[0] == 0:            # zeros may follow a member
            zeros = bytes(rest[:BLOCK])
            rest = rest[len(zeros) - len(zeros.lstrip(b"\0")):]
    return blob


def damaged(path: Path, what: str, fix: str = "", **values: object) -> DataError:
    """Returns the error of a file that is not what it should be."""
    return DataError(message(str(path), what, fix or "delete it and download it again, or pass --data-dir another copy",
                             **values))


def _members(path: Path, blob: memoryview, wanted: Collection[str]) -> dict[str, memoryview]:
    files: dict[str, memoryview] = {}
    at, name, plain = 0, "", True
    for _ in range(MAX_HEADERS):
        header = bytes(blob[at : at + BLOCK])
        if at and not header.strip(b"\0"):
            return files
        info = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")  # checks the header's checksum
        start, nbytes = at + BLOCK, 0 if info.type in NO_BODY else info.size
        if not 0 <= nbytes <= len(blob) - start:
            raise damaged(path, f"member {info.name[:100]!r} does not end within the archive", nbytes=nbytes)
        body, at = blob[start : start + nbytes], start + -(-nbytes // BLOCK) * BLOCK
        if info.type in LONG_NAMES + ATTRIBUTES:
            if info.size > MAX_EXTRA:
                raise damaged(path, f"a name or attribute of {info.size} bytes, at most {MAX_EXTRA} are read")
            if info.type == tarfile.GNUTYPE_LONGNAME:
                name = str(bytes(body).partition(b"\0")[0], "utf-8", "surrogateescape")
            elif info.type != tarfile.GNUTYPE_LONGLINK:
                name, plain = _attributes(bytes(body), name)
            continue
        file, regular = (name or info.name).rpartition("/")[2], plain and info.type in PLAIN
        name, plain = "", True
        if file not in wanted or info.isdir():
            continue
        if not regular:
            raise damaged(path, f"member {file} is not a plain file within the archive", type=info.type,
                          nbytes=info.size)
        if file in files:
            raise damaged(path, f"holds {file} twice", "pack every file once")
        files[file] = body
    raise damaged(path, f"has more than {MAX_HEADERS} members", "pack the files of the data set alone")


def _attributes(text: bytes, name: str) -> tuple[str, bool]:
    """Returns the name that a block of attributes gives, and whether the file that follows is a plain one."""
    found = re.search(rb"(?:^|\n)\d{1,6} path=([^\n]*)\n", text)
    return (str(found[1], "utf-8", "surrogateescape") if found else name), not re.search(
        rb"(?:^|\n)\d{1,6} (?:size|GNU\.sparse\.[^=\n]*)=", text)
