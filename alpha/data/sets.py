"""Data sets that fit into memory, by name, and the validation split.

    @register_dataset(augment="crop=4,flip")
    def my_data(data_dir): return Dataset.of("my_data", (images, labels), (test_images, test_labels))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from alpha.core.errors import ArgumentError, DataError, message, shown
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import FiniteNumber, Instance, Many, Seed
from alpha.core.inputs.registry import call_with, decorator
from alpha.data.augment import Augment
from alpha.data.items import is_of_torch, remedy, stacked
from alpha.random import STREAMS, random_bits

MOST_PIXELS = 1 << 27  # that statistics are made of


_NAMES = Many(Instance(str))


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images of one size with a class each, split into training and test.

    Args:
        name: as registered.
        classes: the name of each class.
        mean, std: per channel, of the training images in units of 255.  Shape (C,), float32.
        train_images, test_images: shape (N, H, W, C), NHWC, uint8; they may be files in memory (np.memmap).
        train_labels, test_labels: indices into classes.  Shape (N,), int64.
        val_images, val_labels: those to validate on, where the data set has its own; None: `split` holds some out.
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
    val_images: np.ndarray | None = None
    val_labels: np.ndarray | None = None

    def __init_subclass__(cls) -> None:
        raise ArgumentError(message(cls.__name__, "Dataset is a set of images in memory, no base of one's own",
                                    "derive it from nothing: any class with __len__ and __getitem__ is data"))

    def __post_init__(self) -> None:
        object.__setattr__(self, "classes", tuple(_NAMES.take("Dataset", "classes", self.classes)))
        if (self.val_images is None) != (self.val_labels is None):
            there, lost = ("images", "labels") if self.val_labels is None else ("labels", "images")
            self._refuse(f"val_{there} is given and val_{lost} is None", "give both, or neither")
        for part, images, labels in (("train", self.train_images, self.train_labels),
                                     ("test", self.test_images, self.test_labels),
                                     ("val", self.val_images, self.val_labels)):
            if images is None or labels is None:
                continue
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
        if not ((self.mean >= 0) & (self.mean <= 1) & (self.std <= 1)).all():
            self._refuse(f"mean is {self.mean} and std is {self.std}: images of 8 bits, 0 to 255, are scaled to 0 to 1 "
                         "before both are applied", "divide both by 255")

    def _refuse(self, what: str, fix: str) -> None:
        raise DataError(message(f"data set {self.name}", what, fix))

    @property
    def image_shape(self) -> tuple[int, ...]:
        """(H, W, C) of every image."""
        return self.train_images.shape[1:]

    @staticmethod
    @checked
    def of(name: str, train: Any, test: Any, classes: Sequence[str] | None = None) -> Dataset:
        """Returns a data set of two parts, with mean and deviation of the training images.

        Args:
            train, test: (images, labels) as arrays, or objects with __len__ and __getitem__ that give an image and its
                label, read into memory.  Images are uint8, (H, W, C) or (H, W); tensors of PyTorch are turned from
                (C, H, W).
            classes: their names; default the `classes` of train, or the numbers.
        Raises DataError.
        """
        names = classes if classes is not None else getattr(train, "classes", None)
        (images, labels), (test_images, test_labels) = (
            _arrays(f"data set {name}, {part}", data) for part, data in (("train", train), ("test", test)))
        most = max((int(found.max()) for found in (labels, test_labels) if len(found)), default=-1)
        mean, std = statistics(images) if images.ndim == 4 and images.size else (np.zeros(0, np.float32),) * 2
        return Dataset(name, tuple(map(str, names if names is not None else range(most + 1))), mean,
                       np.where(std > 0, std, np.float32(1)), images, labels, test_images, test_labels)


Dataset.__init__ = checked(Dataset.__init__)    # type: ignore[method-assign]


def _arrays(where: str, data: Any) -> tuple[np.ndarray, np.ndarray]:
    found = data if isinstance(data, tuple) and len(data) == 2 else stacked(where, data, range(len(data)))
    if len(found) != 2:
        raise DataError(message(where, f"an item has {len(found)} parts", "give an image and its label"))
    try:
        images, labels = np.asarray(found[0]), np.asarray(found[1])
    except (TypeError, ValueError, RuntimeError) as error:  # lists of unequal lengths, for one
        raise DataError(message(where, f"no arrays can be made of images and labels: {error}",
                                "give one array of images and one of labels")) from error
    if images.ndim == 4 and is_of_torch(found[0]):
        images = np.ascontiguousarray(np.moveaxis(images, 1, -1))
    if labels.dtype.kind not in "biufc":
        raise DataError(message(where, f"labels are {shown(labels)}, int64 is needed",
                                remedy(labels.dtype)))
    if images.ndim == 3:
        images = images[..., None]
    return images, labels.astype(np.int64) if labels.dtype.kind in "iu" else labels


def statistics(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns mean and standard deviation of each channel in units of 255.  Shape (C,), float32.

    Of large sets, which may be files, some of the images are looked at.
    """
    images = images[::max(1, images.size // MOST_PIXELS)]
    mean, std = (f(images, axis=(0, 1, 2)).astype(np.float32) / 255 for f in (np.mean, np.std))
    return mean, std


class Entry(NamedTuple):
    """A data set in the registry, before it is loaded."""

    read: Callable[..., Any]
    augment: str
    written: Any


DATASETS: dict[str, Entry] = {}


@checked
def register_dataset(read: Any = None, *, augment: str = "none") -> Any:
    """Registers a function that returns a Dataset, or its parts (train, test), as a data set of its name.

    It gets data_dir (a Path or None), download and seed where it takes them, and image_size (an int) and skip_bad
    where they are given, too. See Dataset.of for the parts.
    Args:
        augment: the changes of training images, if --augment does not say.
    """
    Augment.parse(augment)
    return decorator(DATASETS, "register_dataset", "a data set", read, lambda thing: Entry(thing, augment, thing))


def read_dataset(name: str, entry: Entry, **settings: Any) -> Dataset:
    """Returns a data set.  Raises DataError.

    Args:
        settings: data_dir (a Path or None), download, seed and others, of which its function gets those that it takes.
    """
    found = call_with(f"data set {name}", entry.read, **settings)
    if isinstance(found, tuple) and len(found) == 2:
        return Dataset.of(name, *found)
    if not isinstance(found, Dataset):
        raise DataError(message(f"data set {name}", f"its function returned {shown(found)}",
                                "return an alpha.data.Dataset, or a tuple (train, test)"))
    return found


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


@checked
def split(data: Dataset, val_size: FiniteNumber, seed: Seed) -> Split:
    """Holds validation images out of the training images; the test set is untouched.

    Args:
        val_size: a share of the training images if below 1, else their number; 0 holds nothing out. A data set with
            validation images of its own takes 0, and gives those.
        seed: of the choice, in which every class keeps its proportion.
    Raises:
        DataError: if val_size is negative or leaves no image to train on, or the data set has validation images.
    """
    if data.val_images is not None and data.val_labels is not None:
        if val_size:
            raise DataError(message("split", f"{data.name} has {len(data.val_labels)} validation images of its own, "
                                    f"and val_size={val_size} would hold others out", "pass val_size=0"))
        return Split(data.train_images, data.train_labels, data.val_images, data.val_labels)
    count = len(data.train_labels)
    size = round(val_size * count) if 0 <= val_size < 1 else int(val_size)
    if val_size >= 1 and val_size != size:
        raise DataError(message("split", f"val_size {val_size} is neither a share below 1 nor a number of images",
                                f"pass {size}, or a share such as 0.1"))
    if val_size < 0 or size >= count:
        raise DataError(message("split", f"val_size {val_size} holds out {size} of {count} training images",
                                f"choose a share below 1 or a number from 0 to {count - 1}: --val-size 0.1"))
    if not size:    # the images may be a file that is larger than memory
        return Split(data.train_images, data.train_labels, data.train_images[:0], data.train_labels[:0])
    val = stratified(data.train_labels, size, seed)
    return Split(data.train_images[~val], data.train_labels[~val], data.train_images[val], data.train_labels[val])
