"""Chosen files of a .tar.gz archive, read in memory within bounds; nothing is extracted, so no path or link counts."""

from __future__ import annotations

import gzip
import io
import tarfile
import zlib
from collections.abc import Collection
from pathlib import Path

from alpha.core.errors import DataError, message

MAX_MEMBERS = 1000      # a published archive has 9
MAX_EXTRA = 1 << 12     # bytes of a long name, or of attributes
PIECE = 1 << 20         # bytes unpacked in one go
EXTRA = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE,
         tarfile.SOLARIS_XHDTYPE)


def damaged(path: Path, what: str, fix: str = "", **values: object) -> DataError:
    """Returns the error of a file that is not as it should be."""
    return DataError(message(str(path), what, fix or "delete it and download it again, or pass --data-dir another copy",
                             **values))


class _Header(tarfile.TarInfo):
    """A header whose size is looked at before tarfile acts on it."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Header:
        info = super().frombuf(buf, encoding, errors)
        if info.size < 0 or (info.type in EXTRA and info.size > MAX_EXTRA):
            raise tarfile.ReadError(f"a name or attribute of {info.size} bytes, at most {MAX_EXTRA} are read"
                                    if info.size > 0 else f"{info.name[:100]!r} has a size of {info.size} bytes")
        return info


def read(path: Path, packed: bytes, wanted: Collection[str], max_bytes: int) -> dict[str, memoryview]:
    """Returns those of the wanted files, by name without folder, that an archive has.

    Args:
        path: of the archive, for messages.
        packed: its content; gzip's checksum is verified.
        max_bytes: how much it may unpack to.
    Raises:
        DataError: it is damaged or too large, or a wanted file is no plain one or is there twice.
    """
    stream = io.BytesIO()
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(packed)) as unpacker:
            while piece := unpacker.read(PIECE):
                stream.write(piece)
                if stream.tell() > max_bytes:
                    raise damaged(path, f"unpacks to more than {max_bytes} bytes, the most that is read")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise damaged(path, f"is not a whole .tar.gz file: {error}") from error
    stream.seek(0)
    try:
        with tarfile.open(fileobj=stream, mode="r:", tarinfo=_Header) as archive:
            return _members(path, archive, stream.getbuffer(), wanted)
    except RecursionError as error:
        raise damaged(path, "is not a whole tar archive: its headers are chained too deeply") from error
    except (tarfile.TarError, ValueError, ArithmeticError, LookupError) as error:
        if isinstance(error, DataError):
            raise
        raise damaged(path, f"is not a whole tar archive: {error}") from error


def _members(path: Path, archive: tarfile.TarFile, blob: memoryview, wanted: Collection[str]) -> dict[str, memoryview]:
    files: dict[str, memoryview] = {}
    for count, member in enumerate(archive):
        if count == MAX_MEMBERS:
            raise damaged(path, f"has more than {MAX_MEMBERS} members", "pack the files of the data set alone")
        name = member.name.rpartition("/")[2]
        if name not in wanted or member.isdir():
            continue
        body = blob[member.offset_data:member.offset_data + max(member.size, 0)]
        if not member.isreg() or member.issparse() or len(body) != member.size:
            raise damaged(path, f"member {name} is not a plain file within the archive", type=member.type,
                          nbytes=member.size)
        if name in files:
            raise damaged(path, f"holds {name} twice", "pack every file once")
        files[name] = body
    return files
