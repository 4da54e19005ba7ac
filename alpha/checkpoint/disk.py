"""Files that are read whole and replaced whole: a reader of the path finds the old content or the new one."""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
import time
from collections.abc import Container
from contextlib import suppress
from pathlib import Path
from typing import Any, Union

from alpha.core.errors import CheckpointError, message, remedy, warn
from alpha.core.inputs.arguments import bound
from alpha.core.inputs.schema import shown

PathLike = Union[str, "os.PathLike[str]"]
DAY = 24 * 3600


def as_path(where: str, path: Any) -> Path:
    """Returns a Path.  Raises CheckpointError for other values."""
    try:
        made = Path(path)
    except TypeError:
        made = None
    if made is None or "\0" in str(made):
        raise CheckpointError(message(where, f"{shown(path)} is no path", "pass a string or a pathlib.Path"))
    return made


@bound
def previous(path: PathLike) -> Path:
    """Returns where `save` keeps the checkpoint that was at `path` before."""
    return Path(path).with_name(Path(path).name + ".prev")


def check_readable(where: str, path: Path) -> None:
    """Raises CheckpointError if `path` is not there, or is a device or a pipe, whose reading may never end."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise unreadable(where, path, error) from error
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # of a directory, its reading will tell
        raise CheckpointError(message(where, f"{path} cannot be read: it is a device, a pipe or a socket",
                                      "name a file"))


def unreadable(where: str, path: Path, error: OSError) -> CheckpointError:
    return CheckpointError(message(where, f"{path} cannot be read: {error.strerror or error}",
                                   "check the path and its permissions"))


# Names of other programs' files: readers of them cannot read alpha's.
FOREIGN = {**dict.fromkeys((".pt", ".pth"), ("PyTorch", "alpha.checkpoint.save_torch(path, model) writes PyTorch's "
                                             "files")),
           **dict.fromkeys((".npz", ".npy"), ("NumPy", "np.savez(path, **arrays) writes NumPy's files")),
           **dict.fromkeys((".pkl", ".pickle"), ("pickle", "pickle.dump(state, file) writes them")),
           ".onnx": ("ONNX", "alpha.onnx.export(model, example, path) writes an ONNX file")}


def warn_of_name(where: str, path: Path, known: Container[str] = ()) -> None:
    """Warns of a file whose name says that another program reads it, unless the suffix is known."""
    if path.suffix in FOREIGN and path.suffix not in known:
        whose, instead = FOREIGN[path.suffix]
        warn(message(where, f"{path.name} has a name of {whose}'s files, and {whose} cannot read what is "
                     "written there", f"name it {path.stem}.safetensors; {instead}"))


def check_target(where: str, path: Path) -> None:
    """Raises CheckpointError where there is no folder, or a new file would take the place of no file."""
    if path.name and not path.parent.is_dir() and not path.parent.is_symlink():
        reason = errno.ENOTDIR if path.parent.exists() else errno.ENOENT
        raise CheckpointError(message(where, f"{path} cannot be written: {os.strerror(reason)}",
                                      remedy(reason, path)))
    for place in (path, previous(path)) if path.name else (path,):
        try:
            mode = place.stat().st_mode
        except OSError:
            continue  # nothing is there; or the write will tell the obstacle
        if not stat.S_ISREG(mode):
            kind = "a directory" if stat.S_ISDIR(mode) else "no regular file"
            raise CheckpointError(message(where, f"{place} is {kind}, it would be renamed or replaced",
                                          f"name a file, such as {path / 'model.safetensors'}"
                                          if place is path else "move it away, or save under another name"))


def write(where: str, path: Path, data: bytes) -> None:
    """Writes `data` to a name of its own in the same directory, then renames it to `path`.

    The file before is kept as `previous(path)`. Processes that write to one path at once do not disturb each other:
    the last one to end wins. Names that killed writers left behind go after a day.
    Raises CheckpointError; then `path` is as it was.
    """
    check_target(where, path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    _remove_leftovers(path)
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            _keep_previous(path, temporary.with_suffix(".link"))
        os.replace(temporary, path)
        directory = os.open(path.parent, os.O_RDONLY)       # makes the new name itself durable
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        for leftover in (temporary, temporary.with_suffix(".link")):
            with suppress(OSError):
                leftover.unlink()
        raise CheckpointError(message(where, f"{path} cannot be written: {error.strerror or error}",
                                      remedy(error.errno, path), size=f"{len(data)} bytes")) from error


def _keep_previous(path: Path, link: Path) -> None:
    """Gives the file at `path` a second name, so that `path` is never missing; renames it where links are not known."""
    try:
        os.link(path, link)
    except OSError:
        with suppress(FileNotFoundError):  # another writer was faster: it keeps the file
            os.replace(path, previous(path))
        return
    with suppress(FileNotFoundError):       # another writer took it for a leftover
        os.replace(link, previous(path))
    link.unlink(missing_ok=True)        # where both names were of one file already, the rename did nothing


def _remove_leftovers(path: Path) -> None:
    """Removes files that writers of this path, killed more than a day ago, have left beside it."""
    ours = re.compile(rf"\.{re.escape(path.name)}(\.\d+-[0-9a-f]{{8}})?\.(tmp|link)")
    with suppress(OSError), os.scandir(path.parent) as entries:
        for entry in entries:
            if ours.fullmatch(entry.name):
                with suppress(OSError):
                    if entry.stat(follow_symlinks=False).st_mtime < time.time() - DAY:
                        os.unlink(entry.path)
