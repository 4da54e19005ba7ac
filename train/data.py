"""Data sets as in-memory uint8 arrays, the validation split, and the batches of an epoch, made on the device.

    data = load("digits")
    parts = split(data, val_size=0.1, seed=0)
    images = Images(parts.train_images, parts.train_labels, data, device="cpu")
    for x, y in images.batches(64, seed=0, epoch=3, augment=Augment(crop=4, flip=True)): ...

A data set of your own is a function that returns a Dataset, registered with @dataset("name").
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np

import alpha
from alpha import ops
from alpha.backend import get_backend
from alpha.errors import DataError, message
from alpha.random import STREAMS, permutation, random_bits
from alpha.tensor import Tensor
from train import cifar
from train.augment import Augment

DOWNLOAD_DIR = Path("data")  # where downloads go, and where they are looked for without --data-dir

# Mean and standard deviation over all training pixels of each channel, in units of 255.
CIFAR10_STATISTICS = ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
CIFAR100_STATISTICS = ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images of one size with a class each, split into training and test.

    Args:
        name: as registered.
        classes: the name of each class.
        mean, std: per channel, of the training images in units of 255.  Shape (C,), float32.
        train_images, test_images: shape (N, H, W, C), NHWC, uint8.
        train_labels, test_labels: indices into classes.  Shape (N,), int64.
    Raises:
        DataError: if a shape, a dtype or a label does not fit, or a split is empty.
    """

    name: str
    classes: tuple[str, ...]
    mean: np.ndarray
    std: np.ndarray
    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray

    def __post_init__(self) -> None:
        for part, images, labels in (("train", self.train_images, self.train_labels),
                                     ("test", self.test_images, self.test_labels)):
            if images.ndim != 4 or images.dtype != np.uint8 or images.shape[1:] != self.image_shape:
                self._refuse(f"{part}_images is {images.dtype} {images.shape}, expected uint8 (N, H, W, C) with "
                             f"(H, W, C) = {self.image_shape}", "convert the images to uint8 in NHWC layout")
            if labels.dtype != np.int64 or labels.shape != images.shape[:1] or not len(labels):
                self._refuse(f"{part}_labels is {labels.dtype} {labels.shape}, expected int64 ({len(images)},) and at "
                             "least one", "give every image one int64 label")
            if labels.min() < 0 or labels.max() >= len(self.classes):
                self._refuse(f"{part}_labels reach from {labels.min()} to {labels.max()}, there are "
                             f"{len(self.classes)} classes", f"number the classes from 0 to {len(self.classes) - 1}")
        if not self.mean.shape == self.std.shape == self.image_shape[-1:] or not (self.std > 0).all():
            self._refuse(f"mean is {self.mean} and std is {self.std}, expected {self.image_shape[-1]} channels and "
                         "std > 0", "give one mean and one positive std per channel")

    def _refuse(self, what: str, fix: str) -> None:
        raise DataError(message(f"data set {self.name}", what, fix))

    @property
    def image_shape(self) -> tuple[int, ...]:
        """(H, W, C) of every image."""
        return self.train_images.shape[1:]


class Entry(NamedTuple):
    """What the registry knows of a data set before it is loaded."""

    read: Callable[[Path | None, bool, int], Dataset]
    augment: str


DATASETS: dict[str, Entry] = {}
Reader = Callable[[Path | None, bool, int], Dataset]


def dataset(name: str, augment: str = "none") -> Callable[[Reader], Reader]:
    """Registers a function (data_dir, download, seed) -> Dataset under `name`, with its default augmentation."""
    def register(read: Reader) -> Reader:
        Augment.parse(augment)
        if name in DATASETS:
            raise DataError(message("dataset", f"{name!r} is registered twice", "choose another name"))
        DATASETS[name] = Entry(read, augment)
        return read
    return register


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns "; did you mean <the nearest known name>?", or "" where none is near."""
    close = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean {close[0]!r}?" if close else ""


def load(name: str, data_dir: str | Path | None = None, download: bool = True, seed: int = 0) -> Dataset:
    """Reads a data set into memory.

    Args:
        name: a key of DATASETS: cifar10, cifar100, digits, synthetic.
        data_dir: for CIFAR, the python or binary archive (.tar.gz), its extracted folder, or a folder that holds
            either. Without it ./data is searched.
        download: whether CIFAR may be downloaded to ./data if it is not there and data_dir is None.
        seed: of the synthetic images; nothing else depends on it.
    Raises:
        DataError: if the name is unknown, a package is missing, or the files are missing, damaged or hostile.
    """
    if name not in DATASETS:
        raise DataError(message("load", f"there is no data set {name!r}{did_you_mean(name, DATASETS)}",
                                f"choose one of {', '.join(DATASETS)}"))
    return DATASETS[name].read(None if data_dir is None else Path(data_dir), download, seed)


def _cifar(name: str, data_dir: Path | None, download: bool) -> Dataset:
    try:
        data = cifar.read(name, _find_cifar(name, data_dir, download))
    except OSError as error:
        raise DataError(message(name, f"{error.filename} cannot be read: {error.strerror}",
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
    try:
        import torchvision
    except (ImportError, RuntimeError, OSError) as error:  # one built for another torch fails with any of these
        raise DataError(message(name, "downloading it needs torchvision, which is not installed or does not start",
                                f'pip install ".[download]", or fetch {cifar.FORMS[name][0].archive} by hand and '
                                "pass --data-dir",
                                error=error)) from error
    source = {"cifar10": torchvision.datasets.CIFAR10, "cifar100": torchvision.datasets.CIFAR100}[name]
    print(f"downloading {source.url} to {DOWNLOAD_DIR}/", file=sys.stderr)
    try:  # the archive alone, with torchvision's checksum: it is neither extracted nor unpickled by torchvision
        torchvision.datasets.utils.download_url(source.url, str(DOWNLOAD_DIR), source.filename, source.tgz_md5)
    except (OSError, RuntimeError, EOFError) as error:
        raise DataError(message(name, f"the download failed: {error}",
                                f"try again; or fetch {source.url} by hand and pass --data-dir; or train on --dataset "
                                "digits, which needs no network")) from error
    return DOWNLOAD_DIR / source.filename


@dataset("cifar10", augment="crop,flip")
def cifar10(data_dir: Path | None, download: bool, seed: int) -> Dataset:
    """50,000 + 10,000 colour photographs of ten kinds of things, 32x32."""
    return _cifar("cifar10", data_dir, download)


@dataset("cifar100", augment="crop,flip")
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


@dataset("digits", augment="crop=2")  # half a pixel of the original; no flip, as a mirrored digit is another shape
def digits(data_dir: Path | None, download: bool, seed: int) -> Dataset:
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
    mean, std = _statistics(grey[~test].repeat(3, axis=3))  # equal pixels change neither
    return Dataset("digits", tuple("0123456789"), mean, std, images[~test], labels[~test], images[test], labels[test])


@dataset("synthetic")
def synthetic(data_dir: Path | None, download: bool, seed: int) -> Dataset:
    """8,192 + 2,048 images of ten random 8x8 colour patterns, enlarged to 32x32 and mixed with as much noise."""
    train, total, num_classes = 8192, 10240, 10
    stream = STREAMS["synthetic"]
    pattern = random_bits(seed, stream, 0, num_classes * 8 * 8 * 3).reshape(num_classes, 8, 8, 3) >> np.uint32(25)
    noise = random_bits(seed, stream, 1 << 20, total * 32 * 32 * 3 // 4).view(np.uint8).reshape(total, 32, 32, 3)
    labels = np.arange(total, dtype=np.int64) % num_classes
    images = pattern.astype(np.uint8).repeat(4, axis=1).repeat(4, axis=2)[labels] + (noise >> 1)
    return Dataset("synthetic", tuple(f"pattern {k}" for k in range(num_classes)), *_statistics(images[:train]),
                   images[:train], labels[:train], images[train:], labels[train:])


def _statistics(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns mean and standard deviation of each channel in units of 255.  Shape (C,), float32."""
    mean, std = (f(images, axis=(0, 1, 2)).astype(np.float32) / 255 for f in (np.mean, np.std))
    return mean, std


def stratified(labels: np.ndarray, size: int, seed: int) -> np.ndarray:
    """Returns a mask that is true for `size` labels chosen at random, each class in proportion.  Shape (N,), bool."""
    order = np.argsort(random_bits(seed, STREAMS["split"], 0, len(labels)), kind="stable")
    order = order[np.argsort(labels[order], kind="stable")]  # class by class, random within each
    counts = np.bincount(labels)
    place = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
    share = (place + 0.5) / np.repeat(counts, counts)  # the first k of a class are those whose share is smallest
    mask = np.zeros(len(labels), bool)
    mask[order[np.argsort(share, kind="stable")[:size]]] = True
    return mask


class Split(NamedTuple):
    """The training images of a data set, divided.  Shapes as in Dataset; the validation part may be empty."""

    train_images: np.ndarray
    train_labels: np.ndarray
    val_images: np.ndarray
    val_labels: np.ndarray


def split(data: Dataset, val_size: float, seed: int) -> Split:
    """Holds validation images out of the training images; the test set is untouched.

    Args:
        val_size: a share of the training images if below 1, else their number; 0 holds nothing out.
        seed: of the choice, in which every class keeps its proportion.
    Raises:
        DataError: if val_size is negative or leaves no image to train on.
    """
    count = len(data.train_labels)
    size = round(val_size * count) if 0 <= val_size < 1 else int(val_size)
    if val_size < 0 or size >= count:
        raise DataError(message("split", f"val_size {val_size} holds out {size} of {count} training images",
                                f"choose a share below 1 or a number from 0 to {count - 1}: --val-size 0.1"))
    val = stratified(data.train_labels, size, seed)
    return Split(data.train_images[~val], data.train_labels[~val], data.train_images[val], data.train_labels[val])


Batch = tuple[Tensor, Tensor]


def steps_per_epoch(count: int, batch_size: int, drop_last: bool = False) -> int:
    """Returns how many batches `count` images make."""
    return count // batch_size if drop_last else -(-count // batch_size)


class Images:
    """Images of a data set on a device, from which the batches of an epoch are made there.

    Args:
        images, labels: shapes (N, H, W, C), NHWC, uint8, and (N,), int64.
        data: the data set they are from: its mean and standard deviation.
        device: where the images stay; the CPU shares their elements.
    Raises:
        DataError: if there is not one label per image.
    """

    def __init__(self, images: np.ndarray, labels: np.ndarray, data: Dataset, device: str) -> None:
        if len(images) != len(labels):
            raise DataError(message("images", f"there are {len(images)} images and {len(labels)} labels",
                                    "give one label per image", data=data.name))
        self.labels, self.device = labels, device
        self.images, self.mean, self.std = (_resident(a, device) for a in (images, data.mean, data.std))

    def batches(self, batch_size: int, *, seed: int = 0, epoch: int = 0, start_step: int = 0,
                augment: Augment | None = None, shuffle: bool = True, drop_last: bool = False) -> Iterator[Batch]:
        """Yields the batches of one epoch, from `start_step` on.

        The order is a function of (seed, epoch), and the augmentation of an image one of (seed, epoch, its index): what
        an image looks like depends neither on batch_size nor on start_step.
        Args:
            augment: what happens to the images before they are normalised; None is nothing.
            shuffle: False visits the images in order, for evaluation.
            drop_last: leaves out a last batch that is not full.
        Yields:
            normalised images of shape (B, H, W, C), float32, and labels of shape (B,), int64.
        Raises:
            DataError: if batch_size, epoch or start_step is out of range, or drop_last would leave no batch.
        """
        count = len(self.labels)
        steps = steps_per_epoch(count, batch_size, drop_last) if batch_size > 0 else 0
        if steps == 0:
            raise DataError(message("batches", f"{count} images make no batch of {batch_size}",
                                    "choose a batch_size from 1 to their number", drop_last=drop_last))
        if epoch < 0 or not 0 <= start_step <= steps:
            raise DataError(message("batches", f"epoch {epoch}, step {start_step} does not exist: there are {steps} "
                                    "steps", "continue with the batch_size and the data set that the run was started "
                                    "with"))
        order = permutation(seed, epoch, count) if shuffle else np.arange(count)
        choices = asdict(augment) if augment else {}

        def batch(index: np.ndarray) -> Batch:
            x = ops.augment_images(self.images, alpha.tensor(index, device=self.device), self.mean, self.std, seed=seed,
                                   epoch=epoch, **choices)
            return x, alpha.tensor(self.labels[index], device=self.device)

        return (batch(order[step * batch_size : (step + 1) * batch_size]) for step in range(start_step, steps))


def _resident(a: np.ndarray, device: str) -> Tensor:
    """Returns an array as a tensor on a device, without a copy on the CPU: nobody writes to it."""
    if get_backend(device).name == "cpu":
        return Tensor(np.ascontiguousarray(a), a.shape, a.dtype.name, "cpu")
    return alpha.tensor(a, device=device)
