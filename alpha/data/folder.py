"""Folders of pictures."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import numpy as np

from alpha.core.errors import DataError, message
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import Pair
from alpha.data.parts import place
from alpha.data.pictures import read

ENDINGS = {".png", ".jpg", ".jpeg", ".bmp", ".webp", ".ppm", ".pgm", ".gif", ".tif", ".tiff"}


class ImageFolder:
    """Pictures in one folder per class, `root/cat/1.png`; they are read when an item is asked for.

    Args:
        root: the folder of folders; their sorted names are the classes. A class may have folders inside, and links to
            pictures and folders. Names that begin with a dot are left out.
        size: (height, width) of every image: it is scaled until it covers that, and cut out of the middle. None: as
            it is, for pictures of one size.
    Attributes:
        classes: names of the classes.
        files: (path, label) of each picture, in order.
    Items are (image, label): uint8 of shape (H, W, 3), and an int. Pictures are turned as their EXIF orientation says.
    Grey, palettes and CMYK become RGB; transparency is left out, and of several frames all but the first.
    Raises:
        DataError: there is no such folder, a class has no pictures, a link leads nowhere or in a circle, a picture
            cannot be read or has more than 8 bits a channel, or Pillow is not installed.
    """

    @checked
    def __init__(self, root: str | Path, size: Pair | None = None) -> None:
        self.root, self.size = Path(root), cast("tuple[int, int] | None", size)
        try:
            self.classes = tuple(entry.name for entry in _entries(self.root) if entry.is_dir())
            self.files = [(path, label) for label, name in enumerate(self.classes)
                          for path in _pictures(self.root / name)]
        except DataError:
            raise
        except (OSError, ValueError) as error:  # the latter for a path with a zero byte
            raise DataError(message("ImageFolder", f"{root} cannot be read: {getattr(error, 'strerror', error)}",
                                    "pass the folder that has one folder per class")) from error
        if not self.files:
            raise DataError(message("ImageFolder", f"{root} has no pictures in {len(self.classes)} folders",
                                    "put the pictures of each class into a folder of its name: root/cat/1.png"))

        empty = sorted({*range(len(self.classes))} - {label for _, label in self.files})
        if empty:   # else the labels behind it would be other ones than where it has some
            raise DataError(message("ImageFolder", f"{self.root / self.classes[empty[0]]} has no pictures",
                                    "remove the folder, or put pictures into it"))

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        path, label = self.files[place("ImageFolder", index, len(self))]
        return read(path, self.size), label


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """Returns the entries of a folder, by name, without hidden names.  Raises DataError for a dead link."""
    with os.scandir(folder) as found:
        entries = sorted((entry for entry in found if entry.name[0] != "."), key=lambda entry: entry.name)
    for entry in entries:
        if entry.is_symlink() and not os.path.exists(entry.path):
            raise DataError(message("ImageFolder", f"{entry.path} is a link to {os.readlink(entry.path)}, which is not "
                                    "there", "remove the link, or bring back the file or folder that it names"))
    return entries


def _pictures(folder: Path, above: tuple[str, ...] = ()) -> Iterator[Path]:
    """Yields the pictures in a folder and in the folders inside, by name."""
    real = os.path.realpath(folder)
    if real in above:
        raise DataError(message("ImageFolder", f"{folder} is a link to a folder that it is in, {real}",
                                "remove the link"))
    for entry in _entries(folder):
        path = folder / entry.name
        if entry.is_dir():
            yield from _pictures(path, (*above, real))
        elif entry.is_file() and path.suffix.lower() in ENDINGS:
            yield path
