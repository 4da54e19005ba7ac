"""A folder of pictures as a data set in memory: every file is read ahead, and all that is wrong is told at once.

    data = read_folder("pictures", size=64)     # pictures/cat/1.jpg, or pictures/train/cat/1.jpg and pictures/val/...
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
from tqdm import tqdm

from alpha.core.errors import DataError, message
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import Pair
from alpha.data.folder import ImageFolder
from alpha.data.pictures import read
from alpha.data.sets import Dataset, statistics, stratified

PARTS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}    # names of folders
TEST_SHARE = 0.2        # of a folder that is not divided
SIZE = (32, 32)         # which every shipped model takes
LISTED = 10             # files that a message names
MOST_THREADS = 16
File = tuple[Path, int]


class Layout(NamedTuple):
    """What a folder of pictures holds: names of the classes, and the (path, label) of each picture by part."""

    classes: tuple[str, ...]
    parts: dict[str, list[File]]


def layout_of(where: str, root: str | Path) -> Layout:
    """Returns the classes and the files of a folder; no file is opened.

    Args:
        root: a folder with one folder per class; or with train/ and val/ (or valid/, validation/), test/, or both, each
            with one folder per class. The parts are then "train", "val" and "test", else "all" alone.
    Raises:
        DataError: there is no such folder, it has no pictures or one class, or a part has a class that train/ lacks.
    """
    place = Path(root)
    if not place.is_dir():
        what = "is a file" if place.exists() else "does not exist"
        raise DataError(message(where, f"{place} {what}, a folder of pictures is needed",
                                "pass a folder with one folder per class: pictures/cat/1.jpg"))
    with os.scandir(place) as entries:
        names = sorted(entry.name for entry in entries if entry.name[0] != "." and entry.is_dir())
    if "train" not in names or not PARTS.keys() >= {*names}:
        held = ImageFolder(place)
        found = Layout(held.classes, {"all": held.files})
    else:
        folders = {name: ImageFolder(place / name) for name in names}
        found = _joined(where, place, folders)
    if len(found.classes) < 2:
        raise DataError(message(where, f"{place} has one class, {found.classes[0]!r}, at least two are needed",
                                "put the pictures of each class into a folder of its name"))
    return found


def _joined(where: str, place: Path, folders: dict[str, ImageFolder]) -> Layout:
    classes = folders["train"].classes
    parts: dict[str, list[File]] = {}
    for name, folder in folders.items():
        part = PARTS[name]
        if part in parts:
            raise DataError(message(where, f"{place} has {' and '.join(n for n in folders if PARTS[n] == part)}, which "
                                    "mean the same", "leave one of them"))
        unknown = [c for c in folder.classes if c not in classes]
        if unknown:
            raise DataError(message(where, f"{place / name} has the class {unknown[0]!r}, {place / 'train'} has "
                                    f"{len(classes)} others: {', '.join(classes[:LISTED])}",
                                    "give both the same folders of classes", unknown=len(unknown)))
        numbers = [classes.index(c) for c in folder.classes]
        parts[part] = [(path, numbers[label]) for path, label in folder.files]
    if len(parts) == 1:
        raise DataError(message(where, f"{place} has train/ and neither val/ nor test/",
                                f"add one of them; or pass {place / 'train'}, of which a part is held out"))
    return Layout(classes, parts)


def read_files(where: str, files: Sequence[File], size: tuple[int, int], skip_bad: bool = False
               ) -> tuple[np.ndarray, np.ndarray, list[str | None]]:
    """Reads pictures into memory, several at a time.

    Args:
        files: (path, label) of each.
        size: (height, width) that each is scaled to cover, and cut to.
        skip_bad: whether those that cannot be read are left out; else they are refused, in one list.
    Returns:
        (images, labels, problems): shapes (N, H, W, 3), uint8, and (N,), int64, of the files that can be read; and for
        each file of the list what is wrong with it, or None.
    Raises:
        DataError: a file cannot be read, or the images do not fit into memory.
    """
    _check_room(where, len(files), size)
    images = np.empty((len(files), *size, 3), np.uint8)

    def take(k: int, image: np.ndarray) -> None:
        images[k] = image

    problems = _each(where, [path for path, _ in files], size, take)
    bad = [text for text in problems if text]
    if bad and not skip_bad:
        raise DataError(message(where, f"{len(bad)} of {len(files)} pictures cannot be used:{listed(bad)}",
                                "remove or replace them, or leave them out: --skip-bad, skip_bad=True"))
    good = np.array([text is None for text in problems], bool)
    labels = np.array([label for _, label in files], np.int64)
    return (images[good], labels[good], problems) if bad else (images, labels, problems)


def problems_of(where: str, files: Sequence[Path]) -> list[str | None]:
    """Returns for each file why it is no picture, or None; several are read at a time."""
    return _each(where, files, None, lambda k, image: None)


def _each(where: str, files: Sequence[Path], size: tuple[int, int] | None, take: Callable[[int, np.ndarray], None]
          ) -> list[str | None]:
    """Reads files, several at a time, and returns what is wrong with each.  take: gets the number and the picture."""
    def one(k: int) -> str | None:
        try:
            take(k, read(files[k], size, 3, where))
            return None
        except DataError as error:
            return str(error).partition("\n")[0].removeprefix(f"{where}: ")

    with ThreadPoolExecutor(min(MOST_THREADS, os.cpu_count() or 1)) as pool:
        return list(tqdm(pool.map(one, range(len(files))), desc="reading pictures", total=len(files), leave=False,
                         unit="file", disable=not sys.stderr.isatty()))


def listed(lines: Sequence[str]) -> str:
    """Returns the first lines for a message, each on a line of its own, and how many there are beside them."""
    more = f"\n  and {len(lines) - LISTED} more" if len(lines) > LISTED else ""
    return "".join(f"\n  {line}" for line in lines[:LISTED]) + more


def _check_room(where: str, count: int, size: tuple[int, int]) -> None:
    needed = count * size[0] * size[1] * 3
    try:
        room = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):   # a system that does not say
        return
    if needed > room // 2:
        raise DataError(message(where, f"{count} pictures of {size[0]}x{size[1]} take {needed / 2**30:.1f} GiB in "
                                f"memory, the machine has {room / 2**30:.1f}", "choose smaller ones: --image-size 64; "
                                "or read them while training: fit(model, alpha.data.ImageFolder(root, size))"))


@checked
def read_folder(root: str | Path, size: Pair = SIZE, *, skip_bad: bool = False) -> Dataset:
    """Reads a folder of pictures into memory as a data set.

    A folder with one folder per class is divided: a fifth of each class, always the same, is the test set. A folder
    with train/ and val/ or test/ is divided already; where there is no test/, the test set is that of val/.
    Args:
        root: the folder.
        size: (height, width) of every image, which is scaled until it covers that, and cut out of the middle.
        skip_bad: whether pictures that cannot be read are left out.
    Returns:
        the Dataset, named as the folder, with the classes' names; mean and std are those of the training images.
    Raises:
        DataError: the folder is not there, has one class or an empty one, does not fit into memory, or has pictures
            that cannot be read: the message lists them.
    """
    return read_layout("read_folder", root, layout_of("read_folder", root), cast("tuple[int, int]", size),
                       skip_bad)[0]


def read_layout(where: str, root: str | Path, layout: Layout, size: tuple[int, int], skip_bad: bool
                ) -> tuple[Dataset, list[str]]:
    """Returns the data set of a layout, and what is wrong with each file that was left out.  Raises DataError."""
    order = [(part, file) for part, files in layout.parts.items() for file in files]
    images, labels, problems = read_files(where, [file for _, file in order], size, skip_bad)
    of_part = np.array([part for (part, _), problem in zip(order, problems) if problem is None])
    if "all" in layout.parts:
        test = stratified(labels, max(1, round(TEST_SHARE * len(labels))), seed=0)
        of_part = np.where(test, "test", "train")
    parts = {part: (images[of_part == part], labels[of_part == part]) for part in ("train", "val", "test")}
    train, val = parts["train"], parts["val"]
    missing = sorted({*range(len(layout.classes))} - {*train[1].tolist()})
    if missing:
        raise DataError(message(where, f"class {layout.classes[missing[0]]!r} has no picture to train on, of "
                                f"{sum(label == missing[0] for _, (_, label) in order)}",
                                "add pictures of it, at least two, or remove its folder"))
    mean, std = statistics(train[0])
    test_images, test_labels = parts["test"] if len(parts["test"][1]) else val
    own = {"val_images": val[0], "val_labels": val[1]} if len(val[1]) else {}
    made = Dataset(Path(root).resolve().name or "pictures", layout.classes, mean, np.where(std > 0, std, np.float32(1)),
                   *train, test_images, test_labels, **own)
    return made, [text for text in problems if text]

