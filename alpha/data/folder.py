"""Folders of pictures."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import numpy as np

from alpha.data.parts import place
from alpha.errors import DataError, message
from alpha.inputs.arguments import checked
from alpha.inputs.kinds import Pair

ENDINGS = {".png", ".jpg", ".jpeg", ".bmp", ".webp", ".ppm", ".pgm", ".gif", ".tif", ".tiff"}


class ImageFolder:
    """Pictures in one folder per class, `root/cat/1.png`; they are read when an item is asked for.

    Args:
        root: the folder of folders; their sorted names are the classes. Names that begin with a dot are left out.
        size: (height, width) of every image: it is scaled until it covers that, and cut out of the middle. None: as
            it is, for pictures of one size.
    Attributes:
        classes: names of the classes.
        files: (path, label) of each picture, in order.
    Items are (image, label): uint8 of shape (H, W, 3), and an int.
    Raises:
        DataError: there is no such folder, a class has no pictures, one cannot be read or has more than 8 bits a
            channel, or Pillow is not installed.
    """

    @checked
    def __init__(self, root: str | Path, size: Pair | None = None) -> None:
        self.root, self.size = Path(root), cast("tuple[int, int] | None", size)
        try:
            self.classes = tuple(sorted(p.name for p in self.root.iterdir()
                                        if p.is_dir() and p.name[0] != "."))
            self.files = [(path, label) for label, name in enumerate(self.classes)
                          for path in sorted((self.root / name).rglob("*"))
                          if path.suffix.lower() in ENDINGS and path.name[0] != "."]
        except OSError as error:
            raise DataError(message("ImageFolder", f"{root} cannot be read: {error.strerror}",
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
        try:
            from PIL import Image, ImageOps
        except ImportError as error:
            raise DataError(message("ImageFolder", "reading pictures needs Pillow, which is not installed",
                                    'pip install ".[images]"')) from error
        path, label = self.files[place("ImageFolder", index, len(self))]
        try:
            with Image.open(path) as picture:
                if picture.mode[0] in "IF":     # to bytes Pillow would clip them
                    raise ValueError(f"its pixels are of mode {picture.mode}, 8 bits a channel are needed")
                image = picture.convert("RGB")
                if self.size is not None:
                    image = ImageOps.fit(image, self.size[::-1], Image.Resampling.BILINEAR)
                return np.asarray(image), label
        except (OSError, ValueError, Image.DecompressionBombError) as error:
            raise DataError(message("ImageFolder", f"{path} cannot be read: {error}",
                                    "remove it, or replace it by a picture of 8 bits a channel")) from error
