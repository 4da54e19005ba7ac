"""MNIST, Fashion-MNIST, KMNIST and EMNIST: IDX files, packed by gzip or not.

An IDX file has two zeros, a code of its dtype (8 is uint8), the number of axes, their lengths as 32-bit numbers with
the largest byte first, and the elements.  Source: http://yann.lecun.com/exdb/mnist/

Images are 28x28 grey; as networks here take 32x32 colours, two black pixels are added on each side and the grey stands
in three channels.
"""

from __future__ import annotations

import gzip
import string
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np

from alpha.core.errors import DataError, message
from alpha.data.public.fetch import DOWNLOAD_DIR, File, fetch, missing, place_of
from alpha.data.sets import Dataset, register_dataset, statistics

MOST_BYTES = 1 << 30    # of a file, unpacked; EMNIST by class has 547 MB
PARTS = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


class Set(NamedTuple):
    """A published set of IDX files: addresses of its folder, MD5 of the four packed files, and its classes."""

    urls: tuple[str, ...]
    digests: tuple[str, ...]
    classes: tuple[str, ...]


DIGITS = tuple(string.digits)
SETS = {
    "mnist": Set(
        ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/",
         "http://yann.lecun.com/exdb/mnist/"),
        ("f68b3c2dcbeaaa9fbdd348bbdeb94873", "d53e105ee54ea40749a09fcbcd1e9432", "9fb629c4189551a2d022fa330f9573f3",
         "ec29112dd5afa0611ce80d1b7f02629c"), DIGITS),
    "fashion_mnist": Set(
        ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
         "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/"),
        ("8d4fb7e6c68d591d4c3dfef9ec88bf0d", "25c81989df183df01b3e8a0aad5dffbe", "bef4ecab320f06d8554ea6380940ec79",
         "bb300cfdad3c16e7a12a480ee83cd310"),
        ("t-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")),
    "kmnist": Set(
        ("http://codh.rois.ac.jp/kmnist/dataset/kmnist/",),
        ("bdb82020997e1d708af4cf47b453dcf7", "e144d726b3acfaa3e44228e80efcd344", "5c965bf0a639b31b8f53240b1b52f4d7",
         "7320c461ea6c1c855c0b718fb2a4b134"), ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo")),
}
TORCHVISION = {"mnist": "MNIST", "fashion_mnist": "FashionMNIST", "kmnist": "KMNIST"}   # its folders in ./data
DEBIAN = Path("/usr/share/datasets/fashion-mnist")      # of the package dataset-fashion-mnist
_MERGED = (*string.digits, *string.ascii_uppercase, *"abdefghnqrt")
EMNIST = {"balanced": _MERGED, "bymerge": _MERGED, "digits": DIGITS, "mnist": DIGITS,
          "byclass": (*string.digits, *string.ascii_uppercase, *string.ascii_lowercase),
          "letters": tuple(string.ascii_uppercase)}
EMNIST_FILE = File("gzip.zip", ("https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",),
                   "58c8d27c78d21e728a6bc7b3cc06412e")


def read_idx(path: Path) -> np.ndarray:
    """Returns the elements of an IDX file, packed by gzip or not.  uint8.

    Raises:
        DataError: it is cut off, damaged, larger than 1 GiB, or of another format.
    """
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        with gzip.open(path) if packed else path.open("rb") as file:
            return parse_idx(path, file.read(MOST_BYTES + 1))
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _damaged(path, f"is not a whole file of gzip: {error}") from error
    except OSError as error:
        raise DataError(message(str(path), f"it cannot be read: {error.strerror}", "make the file readable for this "
                                "user")) from error


def parse_idx(path: Path, blob: bytes) -> np.ndarray:
    """Returns the elements of an IDX file that is in memory.  Raises DataError."""
    if len(blob) > MOST_BYTES:
        raise _damaged(path, f"has more than {MOST_BYTES} bytes, the most that is read")
    if len(blob) < 4 or blob[:2] != b"\0\0" or blob[2] != 8 or not 1 <= blob[3] <= 3 or len(blob) < 4 + 4 * blob[3]:
        raise _damaged(path, f"begins with {blob[:4].hex()}, an IDX file of bytes with 000008 and its number of axes")
    shape = tuple(np.frombuffer(blob, ">u4", blob[3], 4).tolist())
    elements = int(np.prod([*shape, 1], dtype=object))
    if len(blob) != 4 + 4 * blob[3] + elements:
        raise _damaged(path, f"has {len(blob) - 4 - 4 * blob[3]} elements, its shape {shape} has {elements}")
    return np.frombuffer(blob, np.uint8, offset=4 + 4 * blob[3]).reshape(shape)


def _damaged(path: Path, what: str) -> DataError:
    return DataError(message(str(path), what, "delete it and download it again, or pass --data-dir another copy"))


def as_dataset(name: str, folder: Path, parts: list[np.ndarray], classes: tuple[str, ...]) -> Dataset:
    """Returns a Dataset of training images and labels, and of test images and labels.  Raises DataError."""
    found = []
    for images, labels in (parts[:2], parts[2:]):
        if images.ndim != 3 or images.shape[1:] != (28, 28) or labels.shape != images.shape[:1] or not len(labels):
            raise DataError(message(name, f"{folder} has images of shape {images.shape} and labels of {labels.shape}",
                                    "pass --data-dir the files of this data set: (N, 28, 28) and (N,)"))
        found += [np.pad(images, ((0, 0), (2, 2), (2, 2)))[..., None], labels.astype(np.int64)]
    mean, std = (value.repeat(3) for value in statistics(found[0]))
    return Dataset(name, classes, mean, std, found[0].repeat(3, 3), found[1], found[2].repeat(3, 3), found[3])


def _read(name: str, data_dir: Path | None, download: bool) -> Dataset:
    known = SETS[name]
    names = (*(f"{part}.gz" for part in PARTS), *PARTS, *(part.replace("-idx", ".idx") for part in PARTS))
    folder = place_of(name, data_dir, names[::4], (DOWNLOAD_DIR / TORCHVISION[name] / "raw",
                                                   *([DEBIAN] if name == "fashion_mnist" else [])))
    if folder is None:
        folder = DOWNLOAD_DIR / name
        if not download:
            raise missing(name, folder, names[:4])
    paths = []
    for k, part in enumerate(PARTS):
        there = [folder / other for other in names[k::4] if (folder / other).is_file()]
        file = File(names[k], tuple(f"{url}{part}.gz" for url in known.urls), known.digests[k])
        if not there and (data_dir is not None or not download or folder != DOWNLOAD_DIR / name):
            raise missing(name, folder, names[k::4])
        paths.append(there[0] if there else fetch(name, file, folder))
    return as_dataset(name, folder, [read_idx(path) for path in paths], known.classes)


@register_dataset(augment="crop=2")
def mnist(data_dir: Path | None, download: bool) -> Dataset:
    """60,000 + 10,000 handwritten digits, 28x28 grey, here 32x32x3."""
    return _read("mnist", data_dir, download)


@register_dataset(augment="crop=2,flip")
def fashion_mnist(data_dir: Path | None, download: bool) -> Dataset:
    """60,000 + 10,000 pieces of clothing of ten kinds, 28x28 grey, here 32x32x3.  Debian's package serves, too."""
    return _read("fashion_mnist", data_dir, download)


@register_dataset(augment="crop=2")
def kmnist(data_dir: Path | None, download: bool) -> Dataset:
    """60,000 + 10,000 handwritten hiragana of ten kinds, 28x28 grey, here 32x32x3."""
    return _read("kmnist", data_dir, download)


# ---- EMNIST ----------------------------------------------------------------------------------------------------------


def _emnist(split: str, data_dir: Path | None, download: bool) -> Dataset:
    where = f"emnist_{split}"
    names = [f"emnist-{split}-{part}".replace("t10k", "test") for part in PARTS]
    kinds = (names[0], f"{names[0]}.gz", f"gzip/{names[0]}.gz", EMNIST_FILE.name)
    folder = data_dir.parent if data_dir is not None and data_dir.is_file() else place_of(
        where, data_dir, kinds, (DOWNLOAD_DIR / "emnist",))
    if folder is None:
        folder = DOWNLOAD_DIR / "emnist"
        if not download:
            raise missing(where, folder, kinds[::-1])
        fetch("emnist", EMNIST_FILE, folder)
    archive = data_dir if data_dir is not None and data_dir.is_file() else folder / EMNIST_FILE.name
    parts = []
    for name in names:
        there = [p for p in (folder / name, folder / f"{name}.gz", folder / "gzip" / f"{name}.gz") if p.is_file()]
        parts.append(read_idx(there[0]) if there else _of_archive(where, archive, f"{name}.gz"))
    for k in (0, 2):    # the published images are mirrored at the diagonal
        parts[k] = parts[k].swapaxes(1, 2) if parts[k].ndim == 3 else parts[k]
    if split == "letters":
        parts[1], parts[3] = (np.where(labels > 0, labels, 256).astype(np.int64) - 1 for labels in (parts[1], parts[3]))
    return as_dataset(where, folder, parts, EMNIST[split])


def _of_archive(where: str, path: Path, name: str) -> np.ndarray:
    """Returns the elements of an IDX file of a zip archive.  Raises DataError."""
    import zipfile
    if not path.is_file():
        raise missing(where, path.parent, (name, EMNIST_FILE.name))
    try:
        with zipfile.ZipFile(path) as archive:
            member = next((info for info in archive.infolist() if info.filename.rpartition("/")[2] == name), None)
            if member is None:
                raise _damaged(path, f"has no {name}")
            with archive.open(member) as packed, gzip.open(packed) as file:
                return parse_idx(path / name, file.read(MOST_BYTES + 1))
    except (zipfile.BadZipFile, EOFError, zlib.error, OSError, NotImplementedError, RuntimeError) as error:
        if isinstance(error, DataError):
            raise
        raise _damaged(path, f"is not a whole zip archive with {name}: {error}") from error


def _register(split: str) -> None:
    def read(data_dir: Path | None, download: bool) -> Dataset:
        return _emnist(split, data_dir, download)
    read.__doc__ = f"EMNIST, {split}: handwritten characters of {len(EMNIST[split])} kinds, 28x28 grey, here 32x32x3."
    register_dataset(f"emnist_{split}", augment="crop=2")(read)


for _split in EMNIST:
    _register(_split)
