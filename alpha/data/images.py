"""Images that stay on a device, from which the batches of an epoch are made there.

    images = Images(parts.train_images, parts.train_labels, data, device="cpu")
    for x, y in images.batches(64, seed=0, epoch=3, augment=Augment(crop=4, flip=True)): ...
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np

from alpha.core.device import get_backend
from alpha.core.errors import ConfigError, DataError, message, shown
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import Count, Size
from alpha.core.names import DEVICES, DTYPES
from alpha.core.tensor import Tensor, tensor
from alpha.data.augment import Augment, check_channels
from alpha.data.draws import balanced_weights, bounds_of, drawn
from alpha.data.sets import Dataset
from alpha.random import permutation

Batch = tuple[Tensor, Tensor]


@checked
def steps_per_epoch(count: Size, batch_size: Count, drop_last: bool = False) -> int:
    """Returns how many batches `count` images make."""
    return count // batch_size if drop_last else -(-count // batch_size)


def epoch_order(count: int, batch_size: int, seed: int, epoch: int, start_step: int, shuffle: bool, drop_last: bool,
                joined: bool = False, bounds: np.ndarray | None = None) -> list[np.ndarray]:
    """Returns the numbers of the items of each batch of an epoch, from `start_step` on.

    Args:
        joined: whether the item before the first one of each batch stands in front of it; before all is the last item
            of the epoch.
        bounds: of alpha.data.draws, for items that are drawn with weights; None: each comes once.
    Raises DataError if batch_size, epoch or start_step is out of range, or drop_last would leave no batch.
    """
    steps = steps_per_epoch(count, batch_size, drop_last) if batch_size > 0 else 0
    if steps == 0:
        raise DataError(message("batches", f"{count} images make no batch of {batch_size}",
                                "choose a batch_size from 1 to their number", drop_last=drop_last))
    if epoch < 0 or not 0 <= start_step <= steps:
        raise DataError(message("batches", f"epoch {epoch}, step {start_step} does not exist: there are {steps} "
                                "steps", "continue with the batch_size and the data set that the run was started "
                                "with"))
    order = (np.arange(count) if not shuffle else permutation(seed, epoch, count) if bounds is None else
             drawn(bounds, seed, epoch))
    if joined:
        order = np.concatenate([order[-1:], order])
    return [order[step * batch_size : (step + 1) * batch_size + joined] for step in range(start_step, steps)]


class Images:
    """Images of a data set on a device, from which the batches of an epoch are made there.

    Args:
        images, labels: shapes (N, H, W, C), NHWC, uint8, and (N,), int64.
        data: the data set they are from: its mean and standard deviation.
        device: where the images stay; the CPU shares their elements.
    Raises:
        DataError: if there is not one label per image, or the images are no such array.
    """

    @checked
    def __init__(self, images: np.ndarray, labels: np.ndarray, data: Dataset, device: str) -> None:
        if len(images) != len(labels):
            raise DataError(message("images", f"there are {len(images)} images and {len(labels)} labels",
                                    "give one label per image", data=data.name))
        if images.ndim != 4 or images.dtype != np.uint8:
            raise DataError(message("images", f"images are {shown(images)}, uint8 of shape (N, H, W, C) is needed",
                                    "convert them", data=data.name))
        if labels.ndim != 1 or labels.dtype.kind not in "iu":
            raise DataError(message("images", f"labels are {shown(labels)}, int64 of shape (N,) is needed",
                                    "number the classes from 0; for masks use DataLoader((images, masks))",
                                    data=data.name))
        self.labels, self.device, self.data = labels.astype(np.int64, copy=False), device, data
        self.images, self.mean, self.std = (resident(a, device) for a in (images, data.mean, data.std))

    @cached_property
    def bounds(self) -> np.ndarray:
        """Of alpha.data.draws, with which each class is drawn equally often."""
        return bounds_of("batches", balanced_weights(self.labels), len(self.labels))

    @checked
    def batches(self, batch_size: int, *, seed: int = 0, epoch: int = 0, start_step: int = 0,
                augment: Augment | None = None, shuffle: bool = True, drop_last: bool = False,
                balance: bool = False) -> Iterator[Batch]:
        """Yields the batches of one epoch, from `start_step` on.

        The order is a function of (seed, epoch), and the augmentation of an image one of (seed, epoch, its index): the
        changes of an image depend neither on batch_size nor on start_step.
        Args:
            augment: the changes of images before they are normalised; None is nothing.
            shuffle: False visits the images in order, for evaluation.
            drop_last: leaves out a last batch that is not full.
            balance: draws each class equally often, with repetition, as many images as there are.
        Yields:
            normalised images of shape (B, H, W, C), float32, and labels of shape (B,), int64; where images are mixed,
            the probabilities of the classes, (B, classes), float32.
        Raises:
            DataError: if batch_size, epoch or start_step is out of range, or drop_last would leave no batch.
            ConfigError: if augment has a mask_fill, or balance is without shuffle. DataError: if augment does not know
                images of so many channels.
        """
        if balance and not shuffle:
            raise ConfigError(message("batches", "balance=True, and shuffle=False: nothing is drawn",
                                      "leave one of both out"))
        choices = augment or Augment()
        parts = epoch_order(len(self.labels), batch_size, seed, epoch, start_step, shuffle, drop_last,
                            joined=bool(choices.mixing), bounds=self.bounds if balance else None)
        self._check(choices)
        return (self.batch(index, seed=seed, epoch=epoch, augment=augment, rows=rows)
                for index, rows in choices.rows_ahead(parts, self.images.shape[1:3], seed=seed, epoch=epoch))

    @checked
    def batch(self, index: np.ndarray, *, seed: int = 0, epoch: int = 0, augment: Augment | None = None,
              rows: np.ndarray | None = None) -> Batch:
        """Returns the images of these numbers as `batches` would: each looks as it does in any other batch.

        Args:
            index: numbers of images.  Shape (B,), int64; with mixing (B + 1,), the image in front of the first one too.
            seed, epoch, augment: as in `batches`.
            rows: of these images, from `Augment.rows_ahead`; None makes them.
        Returns:
            tensors as `batches` yields them.
        Raises:
            ConfigError: if augment has a mask_fill; DataError: if it does not know images of so many channels.
        """
        choices = augment or Augment()
        self._check(choices)
        x = choices.applied(self.images, tensor(index, device=self.device), self.mean, self.std, index, None, seed=seed,
                            epoch=epoch, rows=rows)
        if choices.mixing:
            return choices.mixed(x, self.labels[index], index, choices.classes or len(self.data.classes), seed=seed,
                                 epoch=epoch)
        return x, tensor(self.labels[index], device=self.device)

    def _check(self, choices: Augment) -> None:
        check_channels(choices, self.images.shape[3])
        if choices.mask_fill is not None:
            raise ConfigError(message("batches", f"mask_fill={choices.mask_fill}, and there are labels and no masks",
                                      "leave mask_fill out, or use DataLoader((images, masks))"))


def resident(a: np.ndarray, device: str) -> Tensor:
    """Returns an array as a tensor on a device, without a copy on the CPU: it is not written to."""
    if get_backend(device).name == "cpu":
        return Tensor(np.ascontiguousarray(a), a.shape, DTYPES[a.dtype.name], DEVICES["cpu"])
    return tensor(a, device=device)
