"""DataLoader: batches of anything that has a length and items, made ahead, on the device, in an order of its own.

    loader = DataLoader(torchvision.datasets.Flowers102("."), 64, shuffle=True, workers=4, processes=True)
    for x, y in loader: ...
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from alpha.core.device import get_backend
from alpha.core.errors import ConfigError, DataError, message, shown
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import Count, Seed, Size
from alpha.core.tensor import Tensor, tensor
from alpha.data.augment import Augment
from alpha.data.draws import bounds_of
from alpha.data.forms import Forms, is_bytes, is_floats
from alpha.data.images import epoch_order, resident, steps_per_epoch
from alpha.data.items import in_dtype_of_batches, is_of_torch, remedy
from alpha.data.sets import Dataset
from alpha.data.workers import Work, Workers
from alpha.interop import twins

RESIDENT_NBYTES = 1 << 30  # images up to this size stay on a GPU, unless `resident` says
MOST_WORKERS = 1024        # threads or processes; each has memory and files of the host


class DataLoader:
    """Yields the batches of data, one epoch per iteration.

    A batch is a tuple of tensors: one for each part of an item. Images are the first part. Images of 8 bits are
    augmented and normalised on the device, y = (x / 255 - mean) / std; images of floats become (x - mean) / std in
    their dtype; other parts come as they are, float64 as float32, all integers as int64. A part behind images that has
    their height and width, a mask say, is cropped and mirrored with them. The order is a function of (seed, epoch), the
    augmentation of an image one of (seed, epoch, its number): neither depends on the batch size or on the workers.
    Args:
        data: a tuple of arrays, (images, labels) say, which may be np.memmap; or any object with __len__ and
            __getitem__ that gives (sample, target). Images are (H, W, C); tensors of PyTorch (C, H, W), and turned. A
            picture of Pillow is turned as EXIF says; palettes and CMYK become RGB, black and white 0 and 255. Of a
            Dataset the training images are taken; its mean and std are passed by name.
        batch_size: items of a batch; the last one may be smaller.
        shuffle: whether the order is random; else the data's.
        drop_last: whether a last batch that is not full is left out.
        seed: of order, augmentation and `rng`; nothing else depends on it.
        augment: of images of 8 bits: "crop=4,flip,randaugment", a list of such names, an Augment, or None. A crop of
            images with masks needs Augment(crop=4, mask_fill=-100), as it lets pixels from outside into both. With
            mixup or cutmix targets are probabilities of the classes, (B, classes), float32:
            docs/how_to/augmentation.md.
        mean, std: of each channel, a number stands for all; for images of 8 bits in units of 255, 0 to 1.
        weights: one number for each item: how often it is drawn beside others, with repetition; an epoch has as many
            items as there are. An item that is drawn twice in an epoch is augmented alike. None: each comes once.
        transform: done to the sample of each item by the workers; it gets an array, and, if it has a parameter `rng`, a
            NumPy generator that depends on (seed, epoch, number of the item).
        workers: threads, or processes, that make batches ahead; 0: none.
        processes: whether workers are processes: for data sets that compute in Python. Whatever they draw from the
            generators of Python, NumPy and PyTorch then depends on (seed, epoch, number of the item) as well.
        prefetch: batches per worker that are made ahead; default 2.
        device: where the batches come to be. Copies to a GPU go through page-locked memory on a stream of their own,
            while it computes on the batch before.
        resident: whether arrays of images stay on the device as a whole, without workers; default: where there are no
            workers, on a GPU if they have at most 1 GiB.
        pin_memory: taken and not needed: copies go through page-locked memory.
    Attributes:
        epoch: which one the next iteration yields; 0 at first.
        sample_dtype: of the samples before they are normalised, "uint8" say; None before the first batch.
    Raises:
        ConfigError: a setting is none, or has no effect beside another one.
        DataError: the data has no length or no items, items do not fit each other, mean, std or augment are given and
            the samples are no images, a part of two axes or more would stay where its image is moved, or a worker
            fails.
    """

    @checked
    def __init__(self, data: Any, batch_size: Count = 32, *, shuffle: bool = False, drop_last: bool = False,
                 seed: Seed = 0, augment: Any = None, mean: Any = 0.0, std: Any = 1.0,
                 weights: Any = None, transform: Callable[..., Any] | None = None, workers: Size = 0,
                 processes: bool = False, prefetch: Count | None = None, device: str = "cpu",
                 resident: bool | None = None, pin_memory: bool = False) -> None:
        self.data, self.count = _source(data)
        self.batch_size, self.shuffle, self.drop_last, self.seed, self.device = (batch_size, shuffle, drop_last, seed,
                                                                                device)
        self.augment = Augment.of(augment, "DataLoader")
        if workers > MOST_WORKERS:
            raise ConfigError(message("DataLoader", f"workers={workers}, {MOST_WORKERS} are the most that it starts",
                                      f"pass the number of cores, workers={os.cpu_count() or 1}, or fewer"))
        if processes and not workers:
            raise ConfigError(message("DataLoader", f"processes=True, and workers={workers}: nobody would start one",
                                      "pass workers=4, say, or leave processes out"))
        if prefetch is not None and not workers:
            raise ConfigError(message("DataLoader", f"prefetch={prefetch}, and workers={workers}: nobody works ahead",
                                      "pass workers=4, say, or leave prefetch out"))
        if weights is not None and not shuffle:
            raise ConfigError(message("DataLoader", "weights are given, and shuffle=False: nothing is drawn",
                                      "pass shuffle=True, or leave weights out"))
        if resident and workers:
            raise ConfigError(message("DataLoader", f"workers={workers}, and resident=True: images on the device leave "
                                      "workers nothing to do", "leave one of both out"))
        self._forms, self._classes = Forms(self.augment, mean, std), 0
        if self.augment.mixing:
            self._classes = self.augment.classes or _classes_of(data)
        self.mean, self.std = self._forms.mean, self._forms.std
        self.epoch = 0
        self.sample_dtype: str | None = None    # of the samples of a batch, once there was one
        epoch_order(self.count, batch_size, seed, 0, 0, False, drop_last)
        self._bounds = None if weights is None else bounds_of("DataLoader", weights, self.count)
        self._workers = Workers(Work(self.data, transform, seed), workers, processes, prefetch or 2)
        self._constants: dict[int, tuple[Tensor, Tensor]] = {}  # mean and std, by number of channels
        if isinstance(self.data, tuple) and transform is None:
            self._forms.maps(self.data)
        self._images = self._resident_images(transform, resident if resident or not workers else False)

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
        parts = epoch_order(self.count, self.batch_size, self.seed, epoch, start_step, self.shuffle, self.drop_last,
                            joined=bool(self.augment.mixing), bounds=self._bounds)
        if self._images is not None:
            made_ahead = self.augment.rows_ahead(parts, self._images.shape[1:3], seed=self.seed, epoch=epoch)
            return (self._from_resident(epoch, index, rows) for index, rows in made_ahead)
        made = self._streamed(epoch, parts)
        return made if get_backend(self.device).name == "cpu" else _one_ahead(made)

    def close(self) -> None:
        """Ends the workers; they start again when a batch is asked for."""
        self._workers.close()

    def _from_resident(self, epoch: int, index: np.ndarray, rows: np.ndarray | None) -> tuple[Tensor, ...]:
        assert self._images is not None
        self.sample_dtype = "uint8"
        x = self._augmented(self._images, tensor(index, device=self.device), None, index, epoch, rows)
        if self._classes:
            return self._mixed(x, self.data[1][index], index, epoch)
        return x, *self._targets(epoch, index, [part[index] for part in self.data[1:]], self._forms.maps(self.data),
                                 self._images.shape)

    def _streamed(self, epoch: int, parts: Sequence[np.ndarray]) -> Iterator[tuple[Tensor, ...]]:
        for index, arrays in zip(parts, self._workers.results([(epoch, index) for index in parts])):
            yield self._on_device(epoch, index, arrays)

    def _on_device(self, epoch: int, index: np.ndarray, arrays: Sequence[np.ndarray]) -> tuple[Tensor, ...]:
        first, maps = arrays[0], self._forms.maps(arrays)
        self.sample_dtype = first.dtype.name
        if is_bytes(first):
            images = tensor(first if first.ndim == 4 else first[..., None], device=self.device)
            position = tensor(np.arange(len(index)), device=self.device)
            x = self._augmented(images, position, tensor(index, device=self.device), index, epoch)
        else:
            x = self._tensor(first)
            if self._forms.given and is_floats(first):
                mean, std = self._constants_of(x.shape[3])
                x = ((x.astype("float32") - mean) / std).astype(x.dtype)
        if self._classes:
            return self._mixed(x, arrays[1], index, epoch)
        return x, *self._targets(epoch, index, arrays[1:], maps, first.shape)

    def _mixed(self, x: Tensor, targets: np.ndarray, index: np.ndarray, epoch: int) -> tuple[Tensor, ...]:
        return self.augment.mixed(x, in_dtype_of_batches(targets), index, self._classes, seed=self.seed, epoch=epoch)

    def _targets(self, epoch: int, index: np.ndarray, rest: Sequence[np.ndarray], maps: Sequence[int],
                 shape: tuple[int, ...]) -> list[Tensor]:
        """Returns the parts behind the first one, some of them moved as the images of that shape are."""
        parts = [in_dtype_of_batches(a) for a in rest]
        for k in maps:
            parts[k - 1] = self.augment.moved(parts[k - 1], index, seed=self.seed, epoch=epoch)
        if self.augment.boxes:
            k = self.augment.boxes - 1
            parts[k] = self.augment.moved_boxes(parts[k], index, (shape[1], shape[2]), seed=self.seed, epoch=epoch)
        return [self._tensor(a) for a in parts]

    def _augmented(self, images: Tensor, index: Tensor, key: Tensor | None, numbers: np.ndarray, epoch: int,
                   rows: np.ndarray | None = None) -> Tensor:
        return self.augment.applied(images, index, *self._constants_of(images.shape[3]), numbers, key, seed=self.seed,
                                    epoch=epoch, rows=rows)

    def _constants_of(self, channels: int) -> tuple[Tensor, Tensor]:
        """Returns mean and std, one number for each channel, on the device."""
        if channels not in self._constants:
            self._constants[channels] = tuple([  # type: ignore[assignment]
                tensor(value, device=self.device) for value in self.normalisation(channels)])
        return self._constants[channels]

    def normalisation(self, channels: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns mean and std of images with so many channels.  Shape (channels,), float32."""
        return np.broadcast_to(self.mean, (channels,)), np.broadcast_to(self.std, (channels,))

    def _tensor(self, a: np.ndarray) -> Tensor:
        return tensor(in_dtype_of_batches(a), device=self.device)


def _classes_of(data: Any) -> int:
    """Returns how many classes data has: of their names, or of the largest label.  Raises DataError."""
    names = getattr(data, "classes", None)
    if names is not None:
        return len(names)
    targets = np.asarray(data[1]) if isinstance(data, tuple) and len(data) == 2 else np.zeros(0)
    if targets.ndim == 2 and targets.dtype.kind == "f":
        return targets.shape[1]
    if targets.ndim == 1 and targets.dtype.kind in "iu" and targets.size:
        return int(targets.max()) + 1
    raise DataError(message("DataLoader", "augment mixes images and their targets, and the number of classes is not "
                            "known", 'write it: augment="mixup(classes=10)"', data=shown(data)))


def _source(data: Any) -> tuple[Any, int]:
    """Returns data as a tuple of arrays or as it is, and how many items it has.  Raises DataError."""
    if isinstance(data, Dataset):
        data = (data.train_images, data.train_labels)
    if isinstance(data, (np.ndarray, Tensor)):
        data = (data,)
    if isinstance(data, tuple):
        arrays = tuple([_array(k, a) for k, a in enumerate(data)])
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


def _array(k: int, a: Any) -> np.ndarray:
    """Returns part k of the data as an array of numbers.  Raises DataError for a part that is none."""
    try:
        found = a if isinstance(a, np.ndarray) else np.asarray(a.detach().numpy() if isinstance(a, Tensor) else a)
    except Exception as error:  # lists of unequal lengths, tensors of others that need a gradient, ...
        raise DataError(message("DataLoader", f"part {k} of the data is {shown(a)}, of which no array can be made: "
                                f"{' '.join(str(error).split())}", "pass arrays, one row for each item")) from error
    if found.dtype.kind not in "biuf":
        raise DataError(message("DataLoader", f"part {k} of the data is {shown(found)}, numbers are needed",
                                remedy(found.dtype)))
    return np.ascontiguousarray(np.moveaxis(found, 1, -1)) if found.ndim == 4 and is_of_torch(a) else found


def _one_ahead(batches: Iterator[Any]) -> Iterator[Any]:
    """Yields batches, each when the next one is on its way to the device."""
    waiting = next(batches, None)
    while waiting is not None:
        following = next(batches, None)
        yield waiting
        waiting = following
