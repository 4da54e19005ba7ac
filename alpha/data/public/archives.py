"""SVHN (files of MATLAB, version 5) and STL-10 (planes of bytes)."""

from __future__ import annotations

import io
import zlib
from pathlib import Path

import numpy as np

from alpha.core.errors import DataError, message
from alpha.data.public.fetch import DOWNLOAD_DIR, File, fetch, missing, place_of
from alpha.data.sets import Dataset, register_dataset, statistics

SVHN = tuple(File(f"{part}_32x32.mat", (f"http://ufldl.stanford.edu/housenumbers/{part}_32x32.mat",), digest)
             for part, digest in (("train", "e26dedcc434d2e4c54c9b2d4a06d8373"),
                                  ("test", "eb5a983be6a315427106f1b164d9cef3")))
STL10_FILE = File("stl10_binary.tar.gz", ("http://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",
                                          "https://cs.stanford.edu/~acoates/stl10/stl10_binary.tar.gz"),
                  "91f7769df0f17e558f3565bffb0c7dfb")
STL10_PARTS = ("train_X.bin", "train_y.bin", "test_X.bin", "test_y.bin")
STL10_CLASSES = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck")
STL10_BYTES = 3 * 96 * 96   # of an image: three planes, column by column


def _damaged(path: Path, what: str) -> DataError:
    return DataError(message(str(path), what, "delete it and download it again, or pass --data-dir another copy"))


def _read_mat(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Returns the images X and the labels y of a file of MATLAB, as they are.  Raises DataError."""
    try:
        from scipy.io import loadmat
    except ImportError as error:
        raise DataError(message("svhn", "reading files of MATLAB needs SciPy, which is not installed",
                                'pip install ".[data]"')) from error
    try:
        found = loadmat(str(path), variable_names=["X", "y"])
        return np.asarray(found["X"]), np.asarray(found["y"])
    except MemoryError:
        raise
    except Exception as error:  # a damaged file fails in many ways
        raise _damaged(path, f"is not a whole file of MATLAB, version 5, with X and y: {type(error).__name__}: "
                       f"{' '.join(str(error).split())[:200]}") from error


@register_dataset(augment="crop")
def svhn(data_dir: Path | None, download: bool) -> Dataset:
    """73,257 + 26,032 digits of house numbers in photographs, 32x32; SciPy reads them."""
    names = tuple(file.name for file in SVHN)
    folder = place_of("svhn", data_dir, names)
    if folder is None:
        folder = DOWNLOAD_DIR / "svhn"
        if not download:
            raise missing("svhn", folder, names)
    parts: list[np.ndarray] = []
    for file in SVHN:
        if data_dir is not None and not (folder / file.name).is_file():
            raise missing("svhn", folder, (file.name,))
        path = fetch("svhn", file, folder)
        images, labels = _read_mat(path)
        if images.ndim != 4 or images.shape[:3] != (32, 32, 3) or images.dtype != np.uint8 or \
                labels.size != images.shape[3] or not labels.size or labels.dtype.kind not in "iu":
            raise _damaged(path, f"X is {images.dtype} {images.shape} and y {labels.dtype} {labels.shape}, uint8 "
                           "(32, 32, 3, N) and N whole numbers are needed")
        numbers = labels.reshape(-1).astype(np.int64)
        if not 1 <= numbers.min() <= numbers.max() <= 10:
            raise _damaged(path, f"labels reach from {numbers.min()} to {numbers.max()}, 1 to 10 are needed")
        parts += [np.ascontiguousarray(np.moveaxis(images, 3, 0)), numbers % 10]    # 10 is the digit 0
    return Dataset("svhn", tuple("0123456789"), *statistics(parts[0]), *parts)


# ---- STL-10 ----------------------------------------------------------------------------------------------------------


def _stl10_members(path: Path) -> dict[str, bytes]:
    """Returns the four files of the archive; the unlabelled images, which are most of it, are passed over."""
    import tarfile
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                name = member.name.rpartition("/")[2]
                if name in STL10_PARTS and member.isreg():
                    file = archive.extractfile(member)
                    found[name] = (file or io.BytesIO()).read(STL10_BYTES * 100_000)
                if len(found) == len(STL10_PARTS):
                    break
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise _damaged(path, f"is not a whole .tar.gz file: {error}") from error
    for name in STL10_PARTS:
        if name not in found:
            raise _damaged(path, f"has no {name}")
    return found


@register_dataset(augment="crop=12,flip")
def stl10(data_dir: Path | None, download: bool) -> Dataset:
    """5,000 + 8,000 colour photographs of ten kinds of things, 96x96."""
    kinds = (STL10_FILE.name, STL10_PARTS[0], f"stl10_binary/{STL10_PARTS[0]}")
    archive = data_dir if data_dir is not None and data_dir.is_file() else None
    folder = archive.parent if archive else place_of("stl10", data_dir, kinds)
    if folder is None:
        folder = DOWNLOAD_DIR / "stl10"
        if not download:
            raise missing("stl10", folder, kinds)
        archive = fetch("stl10", STL10_FILE, folder)
    unpacked = next((place for place in (folder, folder / "stl10_binary") if (place / STL10_PARTS[0]).is_file()), None)
    if unpacked is not None and archive is None:
        for name in STL10_PARTS:
            if not (unpacked / name).is_file():
                raise missing("stl10", unpacked, (name,))
        blobs = {name: (unpacked / name).read_bytes() for name in STL10_PARTS}
    else:
        blobs = _stl10_members(archive or folder / STL10_FILE.name)
    parts: list[np.ndarray] = []
    for pixels, numbers in (STL10_PARTS[:2], STL10_PARTS[2:]):
        count = len(blobs[numbers])
        if not count or len(blobs[pixels]) != count * STL10_BYTES:
            raise _damaged(folder / pixels, f"has {len(blobs[pixels])} bytes, {count} images of {numbers} have "
                           f"{count * STL10_BYTES}")
        planes = np.frombuffer(blobs[pixels], np.uint8).reshape(count, 3, 96, 96)
        labels = np.frombuffer(blobs[numbers], np.uint8).astype(np.int64) - 1
        if not 0 <= labels.min() <= labels.max() <= 9:
            raise _damaged(folder / numbers, f"labels reach from {labels.min() + 1} to {labels.max() + 1}, 1 to 10 are "
                           "needed")
        parts += [np.ascontiguousarray(planes.transpose(0, 3, 2, 1)), labels]
    return Dataset("stl10", STL10_CLASSES, *statistics(parts[0]), *parts)
