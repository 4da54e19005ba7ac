"""Data sets of the user's own files by name: `csv`, a table of pictures, and `arrays`, files of NumPy; Tiny-ImageNet.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from alpha.core.errors import DataError, message
from alpha.data.items import stack
from alpha.data.pictures import read
from alpha.data.public.fetch import DOWNLOAD_DIR, File, fetch, missing, place_of
from alpha.data.sets import Dataset, register_dataset, statistics, stratified
from alpha.data.tables import ImageTable

SHARE_OF_TEST = 0.2     # of a table without splits
ARRAYS = ("train_images.npy", "train_labels.npy", "test_images.npy", "test_labels.npy")
MOST_BYTES = 1 << 30    # of an archive, unpacked; the published one has 370 MB
THREADS = 8             # that read pictures: Pillow computes without the lock of Python
TINY = File("tiny-imagenet-200.zip", ("http://cs231n.stanford.edu/tiny-imagenet-200.zip",))


def pictures_of(files: list[tuple[Path, int]], size: tuple[int, int] | None) -> tuple[np.ndarray, np.ndarray]:
    """Returns the pictures of files, read in threads, and their labels.  Raises DataError."""
    from concurrent.futures import ThreadPoolExecutor
    with ThreadPoolExecutor(THREADS) as pool:
        images = list(pool.map(lambda file: (read(file[0], size),), files))
    (found,) = stack("pictures", images, [str(path) for path, _ in files])
    return found, np.array([label for _, label in files], np.int64)


@register_dataset("csv")
def table(data_dir: Path | None) -> Dataset:
    """Pictures of one size that a CSV file, --data-dir, lists: path, label and, if there is one, split."""
    if data_dir is None or not data_dir.is_file():
        raise DataError(message("csv", f"--data-dir is {data_dir}, a CSV file is needed",
                                "write --dataset csv --data-dir pictures.csv, with columns path and label"))
    whole = ImageTable(data_dir)
    if whole.has_splits:
        train, held = (pictures_of(ImageTable(data_dir, split=split).files, None) for split in ("train", "test"))
        return Dataset.of("csv", train, held, classes=whole.classes)
    images, labels = pictures_of(whole.files, None)
    test = stratified(labels, max(1, round(SHARE_OF_TEST * len(labels))), seed=0)
    return Dataset.of("csv", (images[~test], labels[~test]), (images[test], labels[test]), classes=whole.classes)


@register_dataset
def arrays(data_dir: Path | None) -> Dataset:
    """Files of NumPy in the folder --data-dir: train_images.npy, train_labels.npy, test_images.npy, test_labels.npy.

    Images are uint8 of shape (N, H, W, C) or (N, H, W). They stay files and are read as they are needed.
    """
    if data_dir is None:
        raise DataError(message("arrays", "--data-dir is not given", f"name the folder that has {', '.join(ARRAYS)}"))
    found: list[Any] = []
    for name in ARRAYS:
        path = data_dir / name
        try:
            found.append(np.load(path, mmap_mode="r" if "images" in name else None, allow_pickle=False))
        except (OSError, ValueError, EOFError) as error:
            raise DataError(message("arrays", f"{path} cannot be read: {getattr(error, 'strerror', None) or error}",
                                    f'write it: np.save("{name}", array)')) from error
    return Dataset.of("arrays", (found[0], found[1]), (found[2], found[3]))


@register_dataset(augment="crop=8,flip")
def tiny_imagenet(data_dir: Path | None, download: bool) -> Dataset:
    """100,000 + 10,000 colour photographs of 200 kinds of things, 64x64; the validation images are the test set."""
    kinds = ("wnids.txt", "tiny-imagenet-200/wnids.txt")
    folder = place_of("tiny_imagenet", data_dir, kinds)
    if folder is None:
        folder = DOWNLOAD_DIR / "tiny_imagenet"
        if not download:
            raise missing("tiny_imagenet", folder, kinds)
        _unpack(fetch("tiny_imagenet", TINY, folder), folder)
    root = folder if (folder / "wnids.txt").is_file() else folder / "tiny-imagenet-200"
    try:
        numbers = {name: k for k, name in enumerate((root / "wnids.txt").read_text().split())}
        words = dict(line.split("\t", 1) for line in (root / "words.txt").read_text().splitlines() if "\t" in line) if (
            root / "words.txt").is_file() else {}
        train = [(path, k) for name, k in numbers.items() for path in sorted((root / "train" / name).rglob("*.JPEG"))]
        lines = [line.split("\t") for line in (root / "val" / "val_annotations.txt").read_text().splitlines() if line]
        test = [(root / "val" / "images" / Path(line[0]).name, numbers[line[1]]) for line in lines]
    except (OSError, IndexError, KeyError, UnicodeDecodeError) as error:
        raise DataError(message("tiny_imagenet", f"{root} is not whole: {error}", "unpack the archive again: "
                                "wnids.txt, train/ and val/ with val_annotations.txt are needed")) from error
    if not train or not test:
        raise DataError(message("tiny_imagenet", f"{root} has {len(train)} training and {len(test)} validation images",
                                "unpack the archive again"))
    names = tuple(words.get(name, name).partition(",")[0].strip() or name for name in numbers)
    images, labels = pictures_of(train, (64, 64))
    test_images, test_labels = pictures_of(test, (64, 64))
    return Dataset("tiny_imagenet", names, *statistics(images), images, labels, test_images, test_labels)


def _unpack(path: Path, folder: Path) -> None:
    """Unpacks a zip archive beside it.  Raises DataError if it is damaged, or has names outside of the folder.
    """
    import zipfile
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            outside = [m.filename[:80] for m in members
                       if not (folder / m.filename).resolve().is_relative_to(folder.resolve())]
            nbytes = sum(m.file_size for m in members)
            if outside or nbytes > MOST_BYTES:
                what = f"a file outside of its folder, {outside[0]}" if outside else f"{nbytes} bytes, unpacked"
                raise DataError(message("tiny_imagenet", f"{path} has {what}", "delete it, and download it again"))
            archive.extractall(folder)
    except (zipfile.BadZipFile, OSError, EOFError) as error:
        raise DataError(message("tiny_imagenet", f"{path} is not a whole zip archive: {error}",
                                "delete it, and download it again")) from error
