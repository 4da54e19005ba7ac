"""Pictures that a CSV file lists, and arrays that stay in files."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import cast

import numpy as np

from alpha.core.errors import DataError, message
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import Pair
from alpha.data.parts import place
from alpha.data.pictures import read

PATHS = ("path", "file", "filename", "image", "image_path", "filepath")
LABELS = ("label", "class", "target", "category")
SPLITS = ("split", "part", "subset")
OF_TRAINING, OF_TEST = ("train", "training"), ("test", "val", "valid", "validation")
MOST_BYTES = 1 << 30    # of a CSV file


class ImageTable:
    """Pictures in the order of a CSV file, which has a path and a label in each row.

        path,label,split
        cats/1.png,cat,train

    Args:
        path: the CSV file. Its first row has names: path (or file, filename, image), label (or class, target), and, if
            there is one, split. Without names the first two columns are the path and the label.
        root: the folder that paths are relative to; default the file's.
        size: (height, width) of every image, as of ImageFolder; None: as it is.
        split: which rows are taken: "train", or "test", which "val" and "validation" are too; None: all.
    Attributes:
        classes: the labels of the whole file, sorted; as numbers if all are.
        files: (path, number of the class) of each picture, in order.
    Items are (image, number of the class): uint8 of shape (H, W, 3), and an int.
    Raises:
        DataError: the file cannot be read, a row has no path, no label or an unknown split, there are no rows, or, when
            an item is asked for, a picture cannot be read.
    """

    @checked
    def __init__(self, path: str | Path, root: str | Path | None = None, size: Pair | None = None,
                 split: str | None = None) -> None:
        self.path, self.size = Path(path), cast("tuple[int, int] | None", size)
        folder = self.path.parent if root is None else Path(root)
        rows = _rows(self.path)
        if split is not None and (split not in (*OF_TRAINING, *OF_TEST) or not any(row[2] for row in rows)):
            there = ", ".join(sorted({row[2] for row in rows if row[2]})) or "no column of that name"
            raise DataError(message("ImageTable", f"split={split!r}, and {self.path} has {there}",
                                    'write split="train" or split="test", with a column split in the file'))
        names = {row[1] for row in rows}
        whole = all(name.isascii() and name.isdigit() and len(name) < 10 for name in names)
        self.classes = tuple(sorted(names, key=int) if whole else sorted(names))
        number = {name: k for k, name in enumerate(self.classes)}
        wanted = OF_TRAINING if split in OF_TRAINING else OF_TEST
        self.files = [(folder / name, number[label]) for name, label, part in rows if split is None or part in wanted]
        if not self.files:
            raise DataError(message("ImageTable", f"{self.path} has no rows of split {split!r}", "add some, or leave "
                                    "split out"))

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        path, label = self.files[place("ImageTable", index, len(self))]
        return read(path, self.size), label

    @property
    def has_splits(self) -> bool:
        """Whether the file says which rows are for training and which for the test."""
        return any(row[2] for row in _rows(self.path))


def _rows(path: Path) -> list[tuple[str, str, str]]:
    """Returns (path, label, split) of each row; split is "" where there is no such column.  Raises DataError."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise DataError(message("ImageTable", f"{path} has more than {MOST_BYTES} bytes",
                                    "list pictures in it alone"))
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = [line for line in csv.reader(file) if line and any(line)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(message("ImageTable", f"{path} cannot be read: {getattr(error, 'strerror', None) or error}",
                                "pass a CSV file in UTF-8 with columns path and label")) from error
    names = [name.strip().lower() for name in lines[0]] if lines else []
    columns = [next((k for k, name in enumerate(names) if name in known), -1) for known in (PATHS, LABELS, SPLITS)]
    if columns[0] >= 0 and columns[1] >= 0:
        lines = lines[1:]
    else:
        columns = [0, 1, -1]
    if not lines:
        raise DataError(message("ImageTable", f"{path} has no rows", "write a row for each picture: cats/1.png,cat"))
    found = []
    for k, line in enumerate(lines, 1):
        values = [line[c].strip() if 0 <= c < len(line) else "" for c in columns]
        if not values[0] or not values[1]:
            raise DataError(message("ImageTable", f"row {k} of {path} is {','.join(line)[:80]!r}, a path and a label "
                                    "are needed", "write cats/1.png,cat"))
        if columns[2] >= 0 and values[2].lower() not in (*OF_TRAINING, *OF_TEST):
            raise DataError(message("ImageTable", f"row {k} of {path} has split {values[2][:40]!r}",
                                    "write train or test in each row, or leave the column out"))
        found.append((values[0], values[1], values[2].lower()))
    return found
