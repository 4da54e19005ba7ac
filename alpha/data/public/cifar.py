"""CIFAR-10 and CIFAR-100: the archives, python or binary, as .tar.gz or extracted.

A file on disk is not to be trusted. Nothing is extracted (tarball.py), and nothing of a pickle is run (pickles.py).
The published archives and files are recognised by their digests. Other files of the same format are read by the same
rules, with a note: own data sets in this format are welcome.

Layout of a record, after its label (CIFAR-10) or its coarse and fine labels (CIFAR-100): 3072 bytes, the red, the
green and the blue plane of 32 rows of 32 pixels.  Source: https://www.cs.toronto.edu/~kriz/cifar.html
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from errno import ENAMETOOLONG
from pathlib import Path
from typing import Any

import numpy as np

from alpha.core.errors import DataError, message
from alpha.data.public import pickles, tarball
from alpha.data.public.fetch import DOWNLOAD_DIR, File, fetch
from alpha.data.public.tarball import damaged
from alpha.data.sets import Dataset, register_dataset

URLS = ("https://www.cs.toronto.edu/~kriz/",)
PIXELS = 3 * 32 * 32
MAX_BYTES = 3 << 27     # of an archive, packed and unpacked: twice as many as the published ones have
MAX_NAMES = 1 << 16     # bytes of the file with the names of the classes; a published one has 3 kB

Blob = bytes | memoryview
Arrays = tuple[np.ndarray, np.ndarray]  # images and labels


@dataclass(frozen=True)
class Form:
    """One of the published archives: the names of its files, its digests, and how many classes it has."""

    archive: str
    nbytes: int
    sha256: str
    folder: str
    train: tuple[str, ...]
    test: str
    names: str
    num_classes: int
    label_bytes: int = 0  # of a binary record; 0 for the python form
    label_key: str = ""
    names_key: str = ""
    digests: tuple[str, ...] = ()  # of the extracted train and test files: MD5 (32 digits) or SHA-256

    @property
    def files(self) -> tuple[str, ...]:
        return *self.train, self.test, self.names


FORMS = {
    "cifar10": (
        Form("cifar-10-python.tar.gz", 170_498_071, "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
             "cifar-10-batches-py", tuple(f"data_batch_{k}" for k in range(1, 6)), "test_batch", "batches.meta", 10,
             label_key="labels", names_key="label_names",
             digests=("c99cafc152244af753f735de768cd75f", "d4bba439e000b95fd0a9bffe97cbabec",
                      "54ebc095f3ab1f0389bbae665268c751", "634d18415352ddfa80567beed471001a",
                      "482c414d41f54cd18b22e5b47cb7c3cb", "40351d587109b95175f43aff81a1287e")),
        Form("cifar-10-binary.tar.gz", 170_052_171, "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
             "cifar-10-batches-bin", tuple(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin",
             "batches.meta.txt", 10, label_bytes=1,
             digests=("cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
                      "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
                      "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
                      "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
                      "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
                      "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b")),
    ),
    "cifar100": (
        Form("cifar-100-python.tar.gz", 169_001_437, "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
             "cifar-100-python", ("train",), "test", "meta", 100,
             label_key="fine_labels", names_key="fine_label_names",
             digests=("16019d7e3df5f24257cddd939b257f8d", "f0ef6b0ae62326f3e7ffdfab6717acfc")),
        Form("cifar-100-binary.tar.gz", 168_513_733, "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
             "cifar-100-binary", ("train.bin",), "test.bin", "fine_label_names.txt", 100, label_bytes=2,
             digests=("f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29",
                      "d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a")),
    ),
}


# Mean and standard deviation over all training pixels of each channel, in units of 255.
STATISTICS = {"cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
              "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))}


def find(name: str, path: Path) -> Path | None:
    """Returns the archive or the folder of `name` that is `path`, or lies in it; None where there is none."""
    if path.is_file():
        return path
    for form in FORMS[name]:
        for place in (path, path / form.folder):
            if (place / form.test).is_file() or (place / form.train[0]).is_file():
                return place
        if (path / form.archive).is_file():
            return path / form.archive
    return None


def read(name: str, path: Path) -> Dataset:
    """Reads the archive or the extracted folder at `path`.

    Args:
        name: "cifar10" or "cifar100".
        path: a .tar.gz file in the python or the binary form, or the folder with its files.
    Raises:
        DataError: if a file is missing, damaged, cut off, too large, of another size or shape than its format says,
            has labels out of range, or holds pickled code.
        OSError: if the system refuses to read a file.
    """
    if path.is_dir():
        form = _form_of(name, {file.name for file in path.iterdir()})
        files: Mapping[str, Blob] = _read_folder(path, form)
        published = all(_digest(len(known), files[file]) == known for file, known in zip(form.files, form.digests))
    else:
        nbytes = path.stat().st_size
        if nbytes > MAX_BYTES:
            raise damaged(path, f"{nbytes} bytes, at most {MAX_BYTES} are read")
        packed = path.read_bytes()
        published = _is_published(name, path, packed)
        files = tarball.read(path, packed, {file for form in FORMS[name] for file in form.files}, MAX_BYTES)
        form = _form_of(name, files)
        for file in set(form.files).difference(files):
            raise damaged(path, f"has no {file}, one of the {len(form.files)} files of {form.archive}",
                          "pass --dataset and --data-dir that belong together", found=sorted(files))
    train, test = (_read_part(form, files, path, part) for part in (form.train, (form.test,)))
    classes = _read_names(form, files[form.names], path / form.names)
    if not published:
        print(f"note: {path} is not the published {form.archive}; it is read as a data set of your own: "
              f"{len(train[1])} training and {len(test[1])} test images", file=sys.stderr)
    mean, std = (np.array(values, np.float32) for values in STATISTICS[name])
    return Dataset(name, classes, mean, std, *train, *test)


def _form_of(name: str, files: Collection[str]) -> Form:
    return max(FORMS[name], key=lambda form: sum(file in files for file in form.files))


def _digest(digits: int, blob: Blob) -> str:
    return (hashlib.md5(blob, usedforsecurity=False) if digits == 32 else hashlib.sha256(blob)).hexdigest()


def _read_folder(path: Path, form: Form) -> dict[str, Blob]:
    files: dict[str, Blob] = {}
    for file in form.files:
        if not (path / file).is_file():
            raise damaged(path / file, "this file of the data set is missing", "copy the whole extracted folder",
                          folder=path)
        nbytes = (path / file).stat().st_size
        if nbytes + sum(map(len, files.values())) > MAX_BYTES:
            raise damaged(path / file, f"{nbytes} bytes, at most {MAX_BYTES} are read in all")
        files[file] = (path / file).read_bytes()
    return files


def _is_published(name: str, path: Path, packed: bytes) -> bool:
    digest = _digest(64, packed)
    for form in FORMS[name]:
        if digest == form.sha256:
            return True
        if len(packed) == form.nbytes:  # no other archive has this very size: it is a copy with wrong bytes
            raise damaged(path, f"SHA-256 is {digest}, {form.archive} has {form.sha256}", nbytes=len(packed))
    return False


def _read_part(form: Form, files: Mapping[str, Blob], path: Path, part: tuple[str, ...]) -> Arrays:
    reader = _read_records if form.label_bytes else _read_batch
    pixels, labels = zip(*(reader(form, files[file], path / file) for file in part))
    images, begin = np.empty((sum(map(len, labels)), 1024, 3), np.uint8), 0
    for planes in pixels:
        for channel in range(3):    # one after the other: ten times as fast as all of a pixel
            images[begin : begin + len(planes), :, channel] = planes.reshape(-1, 3, 1024)[:, channel]
        begin += len(planes)
    return images.reshape(-1, 32, 32, 3), np.concatenate(labels)


def _check_labels(form: Form, labels: np.ndarray, path: Path) -> np.ndarray:
    wrong = np.flatnonzero((labels < 0) | (labels >= form.num_classes))
    if wrong.size:
        raise damaged(path, f"label {labels[wrong[0]]} of image {wrong[0]} is out of range 0..{form.num_classes - 1}",
                       "download again, or number the classes of your own data set from 0", images=labels.size)
    return labels.astype(np.int64)


def _read_records(form: Form, blob: Blob, path: Path) -> Arrays:
    record = form.label_bytes + PIXELS
    if len(blob) == 0 or len(blob) % record:
        raise damaged(path, f"{len(blob)} bytes are not a whole number of records of {record} bytes")
    records = np.frombuffer(blob, np.uint8).reshape(-1, record)
    return records[:, form.label_bytes :], _check_labels(form, records[:, form.label_bytes - 1], path)


def _read_names(form: Form, blob: Blob, path: Path) -> tuple[str, ...]:
    if len(blob) > MAX_NAMES:
        raise damaged(path, f"{len(blob)} bytes of class names, at most {MAX_NAMES} are read")
    if form.label_bytes:
        try:
            names: Any = [line.strip() for line in bytes(blob).decode().split("\n") if line.strip()]
        except UnicodeDecodeError as error:
            raise damaged(path, f"is not a text of class names: {error}") from error
    else:
        names = [_text(name) for name in _entry(_unpickle(blob, path), form.names_key, (list, tuple), path)]
    good = [name for name in names if isinstance(name, str) and 0 < len(name) <= 64 and name.isprintable()]
    if not len(names) == len(good) == form.num_classes:
        raise damaged(path, f"{len(good)} readable class names in {len(names)} entries, expected {form.num_classes}")
    return tuple(good)


def _read_batch(form: Form, blob: Blob, path: Path) -> Arrays:
    batch = _unpickle(blob, path)
    array, labels = _entry(batch, "data", (pickles.Array,), path), _entry(batch, form.label_key, (list,), path)
    if not all(type(label) is int and abs(label) < 1 << 31 for label in labels):
        raise damaged(path, f"{form.label_key} are not all integers", "store the labels as a list of int")
    expected = (len(labels), PIXELS)
    if array.shape != expected or not labels or array.dtype not in ("u1", "|u1", "uint8"):
        raise damaged(path, f"data is {array.dtype} of shape {array.shape}, expected uint8 of shape {expected} for "
                       f"{len(labels)} labels, at least one", "store one row of 3072 uint8 pixels per label")
    if len(array.data) != len(labels) * PIXELS or array.fortran:
        order = "columns" if array.fortran else "rows"
        raise damaged(path, f"data holds {len(array.data)} bytes in {order}, expected {len(labels) * PIXELS} in rows",
                       "store a C-contiguous array")
    return np.frombuffer(array.data, np.uint8).reshape(expected), _check_labels(form, np.array(labels, np.int64), path)


def _text(value: object) -> object:
    """Keys and names are str, or bytes in a pickle that Python 3 wrote from Python 2's."""
    return value.decode("latin1") if isinstance(value, bytes) else value


def _entry(batch: object, key: str, types: tuple[type, ...], path: Path) -> Any:
    values = {_text(k): v for k, v in batch.items()} if isinstance(batch, dict) else {}
    if not isinstance(values.get(key), types):
        raise damaged(path, f"has no {key!r} of type {' or '.join(t.__name__.strip('_') for t in types)}",
                       "check that --dataset is what this archive holds", keys=sorted(str(k)[:32] for k in values)[:8])
    return values[key]


def _unpickle(blob: Blob, path: Path) -> object:
    try:
        return pickles.load(bytes(blob))
    except pickles.PickleError as error:
        raise damaged(path, f"is not a pickle of arrays, numbers and texts alone: {error}",
                      "use a copy from a source that you trust, the binary archive, or pickle protocol 2 to 4"
                      ) from error


# ---- by name ---------------------------------------------------------------------------------------------------------


def _load(name: str, data_dir: Path | None, download: bool) -> Dataset:
    try:
        return read(name, _place(name, data_dir, download))
    except OSError as error:
        raise DataError(message(name, f"{error.filename} cannot be read: {error.strerror}",
                                "shorten the path" if error.errno == ENAMETOOLONG else
                                "make the files readable for this user")) from error


def _place(name: str, data_dir: Path | None, download: bool) -> Path:
    if data_dir is not None and not data_dir.exists():
        raise DataError(message(name, f"--data-dir {data_dir} does not exist",
                                f"correct the path, or leave --data-dir out to use {DOWNLOAD_DIR}"))
    place, forms = find(name, data_dir or DOWNLOAD_DIR), FORMS[name]
    if place is not None:
        return place
    if data_dir is None and download:
        file = File(forms[0].archive, tuple(url + forms[0].archive for url in URLS), forms[0].sha256)
        return fetch(name, file, DOWNLOAD_DIR)
    raise DataError(message(name, f"{data_dir or DOWNLOAD_DIR} holds none of its archives or folders",
                            f"put {forms[0].archive} there, or point --data-dir at it",
                            looked_for=[form.archive for form in forms] + [form.folder for form in forms]))


@register_dataset(augment="crop,flip")
def cifar10(data_dir: Path | None, download: bool) -> Dataset:
    """50,000 + 10,000 colour photographs of ten kinds of things, 32x32."""
    return _load("cifar10", data_dir, download)


@register_dataset(augment="crop,flip")
def cifar100(data_dir: Path | None, download: bool) -> Dataset:
    """50,000 + 10,000 colour photographs of a hundred kinds of things, 32x32."""
    return _load("cifar100", data_dir, download)
