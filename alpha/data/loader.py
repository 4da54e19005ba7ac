"""DataLoader: batches of anything that has a length and items, made ahead, on the device, in an order of its own.

    loader = DataLoader(torchvision.datasets.Flowers102("."), 64, shuffle=True, workers=4, processes=True)
    for x, y in loader: ...
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from alpha.backend import get_backend
from alpha.data.augment import Augment
from alpha.data.images import epoch_order, resident, steps_per_epoch
from alpha.data.sets import Dataset
from alpha.data.workers import Work, Workers
from alpha.errors import ConfigError, DataError, message, shown
from alpha.inputs.arguments import checked
from alpha.inputs.kinds import Count, Seed, Size
from alpha.methods import twins
from alpha.tensor import Tensor, tensor

RESIDENT_NBYTES = 1 << 30  # images up to this size stay on a GPU, unless `resident` says
MOST_WORKERS = 1024        # threads or processes; each has memory and files of the host


class DataLoader:
    """Yields the batches of data, one epoch per iteration.

    A batch is a tuple of tensors: one for each part of an item. Images of 8 bits are augmented and normalised on the
    device, y = (x / 255 - mean) / std; other parts come as they are, float64 as float32, integers as int64. The order
    is a function of (seed, epoch), the augmentation of an image one of (seed, epoch, its number): neither depends on
    the batch size or on the workers.
    Args:
        data: a tuple of arrays, (images, labels) say, which may be np.memmap; or any object with __len__ and
            __getitem__ that gives (sample, target). Images are (H, W, C); tensors of PyTorch (C, H, W), and turned.
        batch_size: items of a batch; the last one may be smaller.
        shuffle: whether the order is random; else that of the data.
        drop_last: whether a last batch that is not full is left out.
        seed: of order and augmentation.
        augment: of images of 8 bits: "crop=4,flip,cutout=8", an Augment, or None.
        mean, std: of each channel, in units of 255; a number stands for all.
        transform: done to the sample of each item by the workers; it gets an array, and, if it has a parameter `rng`, a
            NumPy generator that depends on (seed, epoch, number of the item).
        workers: threads, or processes, that make batches ahead; 0: none.
        processes: whether workers are processes: for data sets that compute in Python. Whatever they draw from the
            generators of Python, NumPy and PyTorch then depends on (seed, epoch, number of the item) as well.
        prefetch: batches per worker that are made ahead.
        device: where the batches come to be. Copies to a GPU go through page-locked memory on a stream of their own,
            while it computes on the batch before.
        resident: whether arrays of images stay on the device as a whole; default: on a GPU if they have at most 1 GiB.
        pin_memory: taken and not needed: copies go through page-locked memory.
    Attributes:
        epoch: which one the next iteration yields; 0 at first.
    Raises:
        ConfigError: a setting is none.
        DataError: the data has no length or no items, items do not fit each other, or a worker fails.
    """

    @checked
    def __init__(self, data: Any, batch_size: Count = 32, *, shuffle: bool = False, drop_last: bool = False,
                 seed: Seed = 0, augment: Any = None, mean: Any = 0.0, std: Any = 1.0,
                 transform: Callable[..., Any] | None = None, workers: Size = 0, processes: bool = False,
                 prefetch: Count = 2, device: str = "cpu", resident: bool | None = None, pin_memory: bool = False
                 ) -> None:
        self.data, self.count = _source(data)
        self.batch_size, self.shuffle, self.drop_last, self.seed, self.device = (batch_size, shuffle, drop_last, seed,
                                                                                device)
        self.augment = Augment.parse(augment) if isinstance(augment, str) else Augment() if augment is None else augment
        if not isinstance(self.augment, Augment):
            raise ConfigError(message("DataLoader", f"augment is {shown(augment)}, names or an Augment are needed",
                                      'pass augment="crop=4,flip"'))
        if workers > MOST_WORKERS:
            raise ConfigError(message("DataLoader", f"workers={workers}, {MOST_WORKERS} are the most that it starts",
                                      f"pass the number of cores, workers={os.cpu_count() or 1}, or fewer"))
        if processes and not workers:
            raise ConfigError(message("DataLoader", f"processes=True, and workers={workers}: nobody would start one",
                                      "pass workers=4, say, or leave processes out"))
        self.mean, self.std = _of_channels("mean", mean), _of_channels("std", std)
        if not (self.std > 0).all():
            raise ConfigError(message("DataLoader", f"std={std} is not above 0: pixels are divided by it",
                                      "pass the standard deviation of each channel, or leave it out"))
        self.epoch = 0
        epoch_order(self.count, batch_size, seed, 0, 0, False, drop_last)
        self._workers = Workers(Work(self.data, transform, seed), workers, processes, prefetch)
        self._constants: dict[int, tuple[Tensor, Tensor]] = {}  # mean and std, by number of channels
        self._images = self._resident_images(transform, resident)

    if not TYPE_CHECKING:
        def __getattr__(self, name: str) -> Any:
            return twins.attribute(self, "DataLoader", name, twins.LOADER)

    def _resident_images(self, transform: Any, wanted: bool | None) -> Tensor | None:
        """Returns all images as one tensor on the device, where they are to stay there."""
        first = self.data[0] if isinstance(self.data, tuple) else None
        may = first is not None and first.dtype == np.uint8 and first.ndim == 4 and transform is None
        if wanted and not may:
            raise DataError(message("DataLoader", "resident=True is for arrays of 8-bit images (N, H, W, C), without a "
                                    "transform", "leave it out", data=shown(first) if first is not None else "items"))
        on_cpu = get_backend(self.device).name == "cpu"
        if first is None or not may or wanted is False or not (wanted or on_cpu or first.nbytes <= RESIDENT_NBYTES):
            return None
        return resident(first, self.device)

    def __len__(self) -> int:
        """Batches of an epoch."""
        return steps_per_epoch(self.count, self.batch_size, self.drop_last)

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        epoch, self.epoch = self.epoch, self.epoch + 1
        return self.batches(epoch)

    @checked
    def batches(self, epoch: int, start_step: int = 0) -> Iterator[tuple[Tensor, ...]]:
        """Yields the batches of an epoch from a step on, whatever was yielded before.  Raises DataError."""
        parts = epoch_order(self.count, self.batch_size, self.seed, epoch, start_step, self.shuffle, self.drop_last)
        if self._images is not None:
            return (self._from_resident(epoch, index) for index in parts)
        made = self._streamed(epoch, parts)
        return made if get_backend(self.device).name == "cpu" else _one_ahead(made)

    def close(self) -> None:
        """Ends the workers; they start again when a batch is asked for."""
        self._workers.close()

    def _from_resident(self, epoch: int, index: np.ndarray) -> tuple[Tensor, ...]:
        assert self._images is not None
        x = self._augmented(self._images, tensor(index, device=self.device), None, index, epoch)
        return x, *[self._tensor(part[index]) for part in self.data[1:]]

    def _streamed(self, epoch: int, parts: Sequence[np.ndarray]) -> Iterator[tuple[Tensor, ...]]:
        for index, arrays in zip(parts, self._workers.results([(epoch, index) for index in parts])):
            yield self._on_device(epoch, index, arrays)

    def _on_device(self, epoch: int, index: np.ndarray, arrays: Sequence[np.ndarray]) -> tuple[Tensor, ...]:
        first, *rest = arrays
        if first.dtype == np.uint8 and first.ndim in (3, 4):
            images = tensor(first if first.ndim == 4 else first[..., None], device=self.device)
            position = tensor(np.arange(len(index)), device=self.device)
            x = self._augmented(images, position, tensor(index, device=self.device), index, epoch)
        elif self.augment != Augment():
            raise DataError(message("DataLoader", f"augment is for images of 8 bits, a batch is {shown(first)}",
                                    "leave augment out, and use `transform`"))
        else:
            x = self._tensor(first)
        return x, *map(self._tensor, rest)

    def _augmented(self, images: Tensor, index: Tensor, key: Tensor | None, numbers: np.ndarray, epoch: int
                   ) -> Tensor:
        channels = images.shape[3]
        if channels not in self._constants:
            for name, value in (("mean", self.mean), ("std", self.std)):
                if value.size not in (1, channels):
                    raise DataError(message("DataLoader", f"{name} has {value.size} elements, the images have "
                                            f"{channels} channels", "pass one number, or one for each channel"))
            self._constants[channels] = tuple([  # type: ignore[assignment]
                tensor(np.broadcast_to(value, (channels,)), device=self.device)
                for value in (self.mean, self.std)])
        return self.augment.applied(images, index, *self._constants[channels], numbers, key, seed=self.seed,
                                    epoch=epoch)

    def _tensor(self, a: np.ndarray) -> Tensor:
        if a.dtype == np.float64:
            a = a.astype(np.float32)
        elif a.dtype.kind in "iu" and a.dtype != np.int64 and a.ndim < 3:
            a = a.astype(np.int64)
        return tensor(a, device=self.device)


def _of_channels(name: str, value: Any) -> np.ndarray:
    """Returns a number, or one for each channel, as an array of float32.  Raises ConfigError."""
    try:
        given = np.asarray(value.numpy() if isinstance(value, Tensor) else value)
        found = given.astype(np.float32) if given.dtype.kind not in "bcmM" else np.full(1, np.nan, np.float32)
    except (OverflowError, TypeError, ValueError):
        found = np.full(1, np.nan, np.float32)
    if found.ndim > 1 or not np.isfinite(found).all():
        raise ConfigError(message("DataLoader", f"{name} is {shown(value)}, finite numbers are needed",
                                  f"pass {name}=0.5, say, or one number for each channel"))
    return found


def _source(data: Any) -> tuple[Any, int]:
    """Returns data as a tuple of arrays or as it is, and how many items it has.  Raises DataError."""
    if isinstance(data, Dataset):
        data = (data.train_images, data.train_labels)
    if isinstance(data, np.ndarray):
        data = (data,)
    if isinstance(data, tuple):
        arrays = tuple([a if isinstance(a, np.ndarray) else np.asarray(a.numpy() if isinstance(a, Tensor) else a)
                        for a in data])
        counts = [len(a) if a.ndim else 0 for a in arrays]
        if not arrays or len(set(counts)) != 1:
            raise DataError(message("DataLoader", f"the arrays have {' and '.join(map(str, counts)) or 'no'} items",
                                    "give one label per image"))
        return arrays, counts[0]
    if not hasattr(data, "__len__") or not hasattr(data, "__getitem__"):
        raise DataError(message("DataLoader", f"data is {shown(data)}, without __len__ and __getitem__",
                                "pass (images, labels), or an object with both: a list of (image, label) will do"))
    try:
        return data, len(data)
    except (TypeError, ValueError) as error:
        raise DataError(message("DataLoader", f"the length of data, {shown(data)}, is no number of items: {error}",
                                "let __len__ return an int of at least 0")) from error


def _one_ahead(batches: Iterator[Any]) -> Iterator[Any]:
    """Yields batches, each when the next one is on its way to the device."""
    waiting = next(batches, None)
    while waiting is not None:
        following = next(batches, None)
        yield waiting
        waiting = following
