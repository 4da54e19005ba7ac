"""Downloads of published files: several addresses, a partial file is continued, digests are checked.

A file comes to be under its name when it is whole and has its digest; before it is `NAME.part`.
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

from alpha.core.errors import DataError, message

DOWNLOAD_DIR = Path("data")     # where downloads go, and where they are looked for where no folder is named
PIECE = 1 << 20                 # bytes read at a time
TIMEOUT_S = 30.0                # without a byte
TRIES = 3                       # continuations of one address that stops in between
MISSING = (404, 410, 403)       # answers of a server that has no such file


class File(NamedTuple):
    """A published file.

    Args:
        name: in the folder of the data set.
        urls: addresses of it, in the order in which they are tried.
        digest: SHA-256 (64 digits), MD5 (32 digits), or "", where none is published: then its reader checks it.
    """

    name: str
    urls: tuple[str, ...]
    digest: str = ""


def fetch(where: str, file: File, folder: Path) -> Path:
    """Returns the path of a file in a folder; where it is not there, it is downloaded, or a partial one is continued.

    Raises:
        DataError: no address has it, the file has another digest, or it cannot be written.
    """
    path = folder / file.name
    if path.is_file():
        return path
    from http.client import HTTPException  # importing these takes longer than all else of a run that has its files
    from urllib.error import URLError

    failed = []
    for url in file.urls:
        print(f"downloading {url} to {folder}/", file=sys.stderr)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_name(f"{path.name}.part")
            continued = part.exists()
            _download(url, part)
            wrong = _wrong_digest(part, file.digest)
            if wrong and continued:     # the part before may have been of another version, or damaged
                part.unlink()
                _download(url, part)
                wrong = _wrong_digest(part, file.digest)
            if wrong:
                part.unlink()
                failed.append(f"{url}: {wrong}")
                continue
            os.replace(part, path)
            return path
        except (URLError, HTTPException, TimeoutError, ConnectionError) as error:
            failed.append(f"{url}: {getattr(error, 'reason', None) or error}")
        except OSError as error:
            raise DataError(message(where, f"{path} cannot be written: {error.strerror}",
                                    "make room or permission there, or pass --data-dir a folder with the files"
                                    )) from error
    raise DataError(message(where, f"{file.name} could not be downloaded: {'; '.join(failed)}",
                            "check the network and try again, which continues what has come; or fetch the file by hand "
                            f"and put it into {folder}, or into the folder that --data-dir names; "
                            "--dataset digits needs no network"))


def _download(url: str, part: Path) -> None:
    """Writes the content of an address to a file, from its end on where it is there.  Raises OSError."""
    from http.client import HTTPException, IncompleteRead
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen
    for k in range(TRIES):
        had = part.stat().st_size if part.exists() else 0
        rest = {"Range": f"bytes={had}-"} if had else {}
        try:
            with urlopen(Request(url, headers={"User-Agent": "alpha", **rest}), timeout=TIMEOUT_S) as answer:
                continued = answer.status == 206 and _begin_of(answer) == had
                with part.open("ab" if continued else "wb") as out:
                    while piece := answer.read(PIECE):
                        out.write(piece)
                whole = _length_of(answer, had if continued else 0)
            if whole is None or part.stat().st_size == whole:
                return
            if part.stat().st_size > whole:
                part.unlink()
        except HTTPError as error:
            if error.code == 416 and had:   # nothing is left to come: the file is whole, or of another version
                if error.headers.get("Content-Range", "").rpartition("/")[2] == str(had):
                    return
                part.unlink()
            elif error.code in MISSING or k == TRIES - 1:
                raise
        except (HTTPException, TimeoutError, ConnectionError):
            if k == TRIES - 1:
                raise
    raise IncompleteRead(b"")


def _begin_of(answer: Any) -> int:
    """Returns the place of the first byte of a partial answer; -1 if it does not say."""
    place = (answer.headers.get("Content-Range") or "").removeprefix("bytes ").partition("-")[0]
    return int(place) if place.isascii() and place.isdigit() else -1


def _length_of(answer: Any, before: int) -> int | None:
    """Returns how many bytes the whole file has, if the server says."""
    length = answer.headers.get("Content-Length") or ""
    return before + int(length) if length.isascii() and length.isdigit() else None


def _wrong_digest(path: Path, digest: str) -> str:
    """Returns the fault of a file's digest; "" if it is right, or none is known."""
    if not digest:
        return ""
    name = "SHA-256" if len(digest) == 64 else "MD5"
    found = hashlib.sha256() if len(digest) == 64 else hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            found.update(piece)
    return "" if found.hexdigest() == digest else f"its {name} is {found.hexdigest()}, {digest} is published"


def place_of(where: str, data_dir: Path | None, names: tuple[str, ...], also: tuple[Path, ...] = ()) -> Path | None:
    """Returns the first folder that has one of some files; None where none has, and no folder is named.

    Args:
        data_dir: the folder that the user names, which is then the only one; else the folder of this data set in ./data
            and `also` are looked at.
        names: of files, or paths in the folder.
    Raises:
        DataError: data_dir is not there, or has none of them.
    """
    if data_dir is not None and not data_dir.exists():
        raise DataError(message(where, f"--data-dir {data_dir} does not exist",
                                f"correct the path, or leave --data-dir out to use {DOWNLOAD_DIR}"))
    for folder in (data_dir,) if data_dir is not None else (DOWNLOAD_DIR / where, *also):
        if any((folder / name).exists() for name in names):
            return folder
    if data_dir is not None:
        raise missing(where, data_dir, names)
    return None


def missing(where: str, folder: Path, names: tuple[str, ...]) -> DataError:
    """Returns the error of a folder without the wanted files."""
    return DataError(message(where, f"{folder} has none of its files", f"put {names[0]} there, or point --data-dir at "
                             "the folder that has it", looked_for=list(names)))
