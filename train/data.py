"""The data sets that come with the training program: CIFAR, handwritten digits, made-up images; others are alpha's.

    data = load("digits")

One of your own is a function with @register_dataset in a file that --import names; alpha.data has the rest.
"""

from __future__ import annotations

import os
import sys
from errno import ENAMETOOLONG
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from alpha.data import public, sets
from alpha.data.folder_set import SIZE, layout_of, listed, read_layout
from alpha.data.public.fetch import DOWNLOAD_DIR, File, fetch
from alpha.data.sets import DATASETS, Dataset, Entry, read_dataset, register_dataset, statistics, stratified
from alpha.errors import DataError, message
from alpha.random import STREAMS, random_bits
from train import cifar

__all__ = ["DATASETS", "load", "public"]

CIFAR_URLS = ("https://www.cs.toronto.edu/~kriz/",)

# Mean and standard deviation over all training pixels of each channel, in units of 255.
CIFAR10_STATISTICS = ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
CIFAR100_STATISTICS = ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))
FOLDER_AUGMENT = "crop"     # of folders of pictures, which may not be what they show when they are mirrored


def is_folder(name: str) -> bool:
    """Tells whether a data set is named by the path of a folder of pictures."""
    return name not in DATASETS and (os.sep in name or name in (".", "..") or os.path.isdir(name))


def entry_of(name: str) -> Entry:
    """Returns what is known of a data set before it is read, of one that is registered or of a folder."""
    if not is_folder(name):
        return DATASETS[name]

    def read(image_size: int = SIZE[0], skip_bad: bool = False) -> Dataset:
        layout = layout_of("dataset", name)
        data, bad = read_layout("dataset", name, layout, (image_size, image_size), skip_bad)
        if bad:
            print(f"notice: {len(bad)} pictures are left out:{listed(bad)}", file=sys.stderr)
        if "val" in layout.parts and "test" not in layout.parts:
            print(f"notice: {name} has no test/: the test figures are of val/, by which the best epoch is chosen",
                  file=sys.stderr)
        return data
    return Entry(read, FOLDER_AUGMENT, read)


def has_own_validation(name: str) -> bool:
    """Tells whether a data set is a folder with val/.  Raises DataError for a folder that cannot be used."""
    return is_folder(name) and "val" in layout_of("dataset", name).parts


def load(name: str, data_dir: str | Path | None = None, download: bool = True, seed: int = 0,
         image_size: int | None = None, skip_bad: bool = False) -> Dataset:
    """Reads a data set into memory.

    Args:
        name: a key of DATASETS, cifar10, cifar100, digits, synthetic; or the path of a folder of pictures.
        data_dir: for CIFAR, the python or binary archive (.tar.gz), its extracted folder, or a folder that holds
            either. Without it ./data is searched. Data sets that read no files do not look at it; the command line
            refuses --data-dir for them.
        download: whether CIFAR may be downloaded to ./data if it is not there and data_dir is None.
        seed: of the synthetic images; nothing else depends on it.
        image_size, skip_bad: of folders: height and width, and whether files that cannot be read are left out.
    Raises:
        DataError: if the name is unknown, a package is missing, or the files are missing, damaged or hostile.
    """
    if not is_folder(name):
        return sets.load(name, data_dir, download, seed)
    more = {**({} if image_size is None else {"image_size": image_size}), **({"skip_bad": True} if skip_bad else {})}
    return read_dataset(name, entry_of(name), **more)


def _cifar(name: str, data_dir: Path | None, download: bool) -> Dataset:
    try:
        data = cifar.read(name, _find_cifar(name, data_dir, download))
    except OSError as error:
        raise DataError(message(name, f"{error.filename} cannot be read: {error.strerror}",
                                "shorten the path" if error.errno == ENAMETOOLONG else
                                "make the files readable for this user")) from error
    mean, std = CIFAR10_STATISTICS if name == "cifar10" else CIFAR100_STATISTICS
    return Dataset(name, data.classes, np.array(mean, np.float32), np.array(std, np.float32), data.train_images,
                   data.train_labels, data.test_images, data.test_labels)


def _find_cifar(name: str, data_dir: Path | None, download: bool) -> Path:
    if data_dir is not None and not data_dir.exists():
        raise DataError(message(name, f"--data-dir {data_dir} does not exist",
                                f"correct the path, or leave --data-dir out to use {DOWNLOAD_DIR}"))
    place = cifar.find(name, data_dir or DOWNLOAD_DIR)
    if place is not None:
        return place
    if data_dir is None and download:
        return _download(name)
    forms = cifar.FORMS[name]
    raise DataError(message(name, f"{data_dir or DOWNLOAD_DIR} holds none of its archives or folders",
                            f"put {forms[0].archive} there, or point --data-dir at it",
                            looked_for=[form.archive for form in forms] + [form.folder for form in forms]))


def _download(name: str) -> Path:
    form = cifar.FORMS[name][0]
    return fetch(name, File(form.archive, tuple(url + form.archive for url in CIFAR_URLS), form.sha256), DOWNLOAD_DIR)


@register_dataset(augment="crop,flip")
def cifar10(data_dir: Path | None, download: bool, seed: int) -> Dataset:
    """50,000 + 10,000 colour photographs of ten kinds of things, 32x32."""
    return _cifar("cifar10", data_dir, download)


@register_dataset(augment="crop,flip")
def cifar100(data_dir: Path | None, download: bool, seed: int) -> Dataset:
    """50,000 + 10,000 colour photographs of a hundred kinds of things, 32x32."""
    return _cifar("cifar100", data_dir, download)


def _digits_table() -> np.ndarray:
    """Returns 64 pixels and the label of each digit.  Shape (1797, 65), float64.

    Importing scikit-learn would take longer than all else before the first step, and the file alone is needed.
    Raises:
        DataError: if it is not there, or damaged.
    """
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise DataError(message("digits", "it is part of scikit-learn, which is not installed",
                                'pip install ".[data]"'))
    path = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    try:
        table = np.loadtxt(path, delimiter=",")
        if table.shape != (1797, 65):
            raise ValueError(f"it has the shape {table.shape} and not (1797, 65)")
        return table
    except (OSError, EOFError, ValueError) as error:
        raise DataError(message("digits", f"{path} of scikit-learn cannot be read: {error}",
                                "pip install --force-reinstall scikit-learn")) from error


@register_dataset(augment="crop=2")  # half a pixel of the original; no flip, as a mirrored digit is another shape
def digits() -> Dataset:
    """1,797 handwritten digits of 8x8 pixels and 17 grey levels, as 32x32x3: each pixel becomes 4x4 equal ones.

    The test set is a fixed fifth, 360 images, with every digit in proportion; 1,437 images remain for training.
    Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI, 1998, as in scikit-learn.
    """
    table = _digits_table()
    pixels, labels = table[:, :-1], table[:, -1]
    grey = np.round(pixels.reshape(-1, 8, 8, 1) * (255 / 16)).astype(np.uint8)
    images = grey.repeat(4, axis=1).repeat(4, axis=2).repeat(3, axis=3)
    labels = labels.astype(np.int64)
    test = stratified(labels, 360, seed=0)
    mean, std = statistics(grey[~test].repeat(3, axis=3))  # equal pixels change neither
    return Dataset("digits", tuple("0123456789"), mean, std, images[~test], labels[~test], images[test], labels[test])


@register_dataset
def synthetic(seed: int) -> Dataset:
    """8,192 + 2,048 images of ten random 8x8 colour patterns, enlarged to 32x32 and mixed with as much noise."""
    train, total, num_classes = 8192, 10240, 10
    stream = STREAMS["synthetic"]
    pattern = random_bits(seed, stream, 0, num_classes * 8 * 8 * 3).reshape(num_classes, 8, 8, 3) >> np.uint32(25)
    noise = random_bits(seed, stream, 1 << 20, total * 32 * 32 * 3 // 4).view(np.uint8).reshape(total, 32, 32, 3)
    labels = np.arange(total, dtype=np.int64) % num_classes
    images = pattern.astype(np.uint8).repeat(4, axis=1).repeat(4, axis=2)[labels] + (noise >> 1)
    return Dataset("synthetic", tuple(f"pattern {k}" for k in range(num_classes)), *statistics(images[:train]),
                   images[:train], labels[:train], images[train:], labels[train:])
