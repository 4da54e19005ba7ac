"""The settings of --augment; `alpha.ops.augment_images` and the other ops of alpha/ops/augment.py do it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any

import numpy as np

from alpha import ops
from alpha.core.errors import ConfigError, DataError, message, shown
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import Whole
from alpha.core.tensor import Tensor, tensor
from alpha.data import maps
from alpha.data.augmentations.base import Augmentation, Draws, items_of, step_of, steps_of
from alpha.data.augmentations.mixing import Mixing, mixed_shares
from alpha.ops.augment import STEP_WIDTH
from alpha.random import STREAMS, random_bits

LARGEST = 64
AHEAD = 2048    # images whose rows are made at once
Edge = Annotated[int, Whole(0, high=LARGEST)]
DEFAULT_SIZES = {"crop": 4, "flip": 1, "altflip": 1, "cutout": 16}  # of an item of --augment without "=size"


@dataclass(frozen=True)
class Augment:
    """The changes of a training image: first `steps`, then crop, flip, cutout and altflip, in this order.

    Args:
        crop: pad with `crop` black pixels on each side and cut the original size out at random.  0 = off.
        flip: mirror left to right with probability 1/2.
        cutout: paint a square of `cutout` pixels around a random pixel in the mean colour; it may stick out of the
            image.  0 = off.
        altflip: mirror half of the images, drawn once, in even epochs and the other half in odd ones, last of all.
        steps: more of them, in their order, on the whole image: names with settings, "randaugment(n=2,m=9),grey=0.1",
            or augmentations, or a list of such; docs/how_to/augmentation.md has them all. mixup and
            cutmix come last, wherever they stand: they join images that are normalised.
        mask_fill: value of the pixels that crop and steps let into a map that goes with the images (a mask): both
            refuse maps without it. -100 is the label that cross_entropy leaves out. Maps are moved, not coloured.
        boxes: the number of the part of a batch that has boxes, 1 for the one behind the images: left, top, right and
            bottom in pixels, shape (K, 4). They become the boxes around the moved corners, within the image; a box
            that has left it is empty. 0 = there is none.

    Raises:
        ArgumentError, ConfigError: a size is no int from 0 to 64, a switch no bool, flip and altflip are both on, or
            mask_fill is no number or there without crop.

    Source: the crop and flip of arXiv 1512.03385, section 4.2; cutout of arXiv 1708.04552; altflip of arXiv 2404.00498.
    """

    crop: Edge = 0
    flip: bool = False
    cutout: Edge = 0
    altflip: bool = False
    mask_fill: Any = None
    steps: Any = ()
    boxes: Edge = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", steps_of(self.steps))
        named = {step.classes for step in self.mixing if step.classes}
        if len(named) > 1:
            raise ConfigError(message("augment", f"mixings are for {' and '.join(map(str, sorted(named)))} classes",
                                      "write classes= once"))
        maps.checked_fill(self.mask_fill, self.opens)
        if self.flip and self.altflip:
            raise ConfigError(message("augment", "flip and altflip are both named", "choose one of them"))

    @staticmethod
    def parse(text: str) -> Augment:
        """Returns the augmentation that `text` names: "none", or items such as "crop=2,flip,erasing(p=0.25)".

        Raises:
            ConfigError: if an item is unknown or given twice, or a setting of it is out of range.
        """
        sizes: dict[str, int] = {}
        steps: list[Augmentation] = []
        for item in [] if text.strip() == "none" else items_of(text):
            name, has_size, size = item.partition("=")
            if name not in DEFAULT_SIZES:
                steps.append(step_of(item, (*DEFAULT_SIZES, "none")))
                name = steps[-1].name
            if name in sizes or name in {step.name for step in steps[:-1]}:
                raise ConfigError(message("augment", f"{name!r} is named twice", "write each item at most once: "
                                          "--augment crop,flip,cutout", augment=repr(text)))
            if name not in DEFAULT_SIZES:
                continue
            largest = 1 if name.endswith("flip") else LARGEST
            if has_size and not (size.isdecimal() and len(size) < 4 and 1 <= int(size) <= largest):
                raise ConfigError(message("augment", f"{name} has size {size!r}, allowed are 1 to {largest}",
                                          f"write {name}={DEFAULT_SIZES[name]}, or {name} alone", augment=repr(text)))
            sizes[name] = int(size) if has_size else DEFAULT_SIZES[name]
        return Augment(sizes.get("crop", 0), "flip" in sizes, sizes.get("cutout", 0), "altflip" in sizes,
                       steps=tuple(steps))

    @staticmethod
    def of(given: Any, where: str = "augment") -> Augment:
        """Returns an Augment of a setting: a text, a list of texts and augmentations, an Augment, or None.

        Args:
            where: the name in messages.
        Raises ConfigError.
        """
        if given is None:
            return Augment()
        if isinstance(given, list) and given and all(isinstance(item, (str, Augmentation)) for item in given):
            given = ",".join(map(str, given))
        if isinstance(given, Augmentation):
            return Augment(steps=given)
        found = Augment.parse(given) if isinstance(given, str) else given
        if not isinstance(found, Augment):
            raise ConfigError(message(where, f"augment is {shown(given)}, names or an Augment are needed",
                                      'pass augment="crop=4,flip"'))
        return found

    @property
    def mixing(self) -> tuple[Mixing, ...]:
        """The `steps` that join images; each image gets one of them."""
        return tuple([step for step in self.steps if isinstance(step, Mixing)])

    def applied(self, images: Tensor, index: Tensor, mean: Tensor, std: Tensor, numbers: np.ndarray, key: Tensor | None,
                *, seed: int, epoch: int, rows: np.ndarray | None = None) -> Tensor:
        """Returns images changed by ops.augment_images, mirrored in turn with altflip.

        Args:
            numbers: of the images in the data set, on the host; the other arguments are the op's.
            rows: of these images, where they are made already.
        """
        if self.pixels:
            if rows is None:
                rows = self.rows(numbers, images.shape[1:3], seed=seed, epoch=epoch)
            images = ops.transform_images(images, index, tensor(rows, device=images.device), mean)
            key = index if key is None else key
            index = tensor(np.arange(len(numbers)), device=images.device)
        x = ops.augment_images(images, index, mean, std, key, seed=seed, epoch=epoch, crop=self.crop, flip=self.flip,
                               cutout=self.cutout)
        if not self.altflip:
            return x
        mirrored = _mirrored_in_turn(seed, epoch, numbers)
        return ops.where(tensor(mirrored.reshape(-1, 1, 1, 1), device=x.device), ops.flip(x, 2), x)

    @property
    def classes(self) -> int | None:
        """How many classes mixed targets have, if the mixing says."""
        return next((step.classes for step in self.mixing if step.classes), None)

    @property
    def pixels(self) -> tuple[tuple[int, Augmentation], ...]:
        """The `steps` that change an image by itself, with their places."""
        return tuple([(place, step) for place, step in enumerate(self.steps) if not step.mixes])

    @property
    def moves(self) -> bool:
        """Whether pixels change their places."""
        return bool(self.crop or self.flip or self.altflip or any(step.moves for step in self.steps))

    @property
    def opens(self) -> bool:
        """Whether pixels from outside of the image come into it."""
        return bool(self.crop or any(step.opens for step in self.steps))

    def rows(self, numbers: np.ndarray, hw: tuple[int, ...], *, seed: int, epoch: int) -> np.ndarray:
        """Returns the steps of the images of these numbers, as ops.transform_images takes them.

        Args:
            hw: height and width of the images.
        Returns:
            shape (B, S, 16), int32.
        """
        found = [step.rows(Draws(seed, epoch, numbers, place), (hw[0], hw[1])) for place, step in self.pixels]
        return np.concatenate(found, 1) if found else np.zeros((len(numbers), 0, STEP_WIDTH), np.int32)

    def rows_ahead(self, parts: Sequence[np.ndarray], hw: tuple[int, ...], *, seed: int, epoch: int
                   ) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
        """Yields the numbers of the images of each batch, and their rows: of several batches at once, which is faster.
        """
        per = max(1, AHEAD // max(1, max(map(len, parts), default=1))) if self.pixels else 1
        for k in range(0, len(parts), per):
            group = parts[k:k + per]
            if not self.pixels:
                yield from ((index, None) for index in group)
                continue
            rows = self.rows(np.concatenate(group), hw, seed=seed, epoch=epoch)
            yield from zip(group, np.split(rows, np.cumsum([len(index) for index in group])[:-1]))

    def mixed(self, x: Tensor, targets: np.ndarray, numbers: np.ndarray, classes: int, *, seed: int, epoch: int
              ) -> tuple[Tensor, Tensor]:
        """Returns images joined each with the one before it, and their targets as probabilities.

        Args:
            x: normalised images, of which the first is there for the second alone.  Shape (B + 1, H, W, C), float32.
            targets: labels of the images, shape (B + 1,), ints; or probabilities, (B + 1, classes).
            numbers: of the images in the data set, on the host.  Shape (B + 1,).
            classes: width of the targets that are returned.
        Returns:
            shapes (B, H, W, C) and (B, classes), float32.
        """
        draws = Draws(seed, epoch, numbers[1:], len(self.steps))
        shares, table = mixed_shares(self.mixing, draws, (x.shape[1], x.shape[2]))
        soft = targets.astype(np.float32)
        if targets.ndim == 1:
            if targets.size and not 0 <= targets.min() <= targets.max() < classes:
                raise DataError(message("augment", f"labels reach from {targets.min()} to {targets.max()}, and targets "
                                        f"have {classes} classes", "number the classes from 0, or write the number of "
                                        f"classes: {self.mixing[0].name}(classes={int(targets.max()) + 1})"))
            soft = np.zeros((len(targets), classes), np.float32)
            soft[np.arange(len(targets)), targets] = 1
        y = soft[1:] * shares[:, None] + soft[:-1] * (1 - shares[:, None])
        return ops.mix_images(x, tensor(table, device=x.device)), tensor(y, device=x.device)

    def moved(self, a: np.ndarray, numbers: np.ndarray, *, seed: int, epoch: int) -> np.ndarray:
        """Returns maps moved as `applied` moves the images of these numbers; they stay as they are themselves.

        Args:
            a: shape (B, H, W, ...), H and W of the images.
        """
        if any(step.moves for step in self.steps):
            a = maps.stepped(a, self.rows(numbers, a.shape[1:3], seed=seed, epoch=epoch), self.mask_fill)
        if self.crop or self.flip:
            a = maps.moved(a, numbers, seed=seed, epoch=epoch, crop=self.crop, flip=self.flip, fill=self.mask_fill)
        return maps.mirrored(a, _mirrored_in_turn(seed, epoch, numbers)) if self.altflip else a

    def moved_boxes(self, boxes: np.ndarray, numbers: np.ndarray, hw: tuple[int, int], *, seed: int, epoch: int
                    ) -> np.ndarray:
        """Returns the boxes around moved boxes, where the images of these numbers move.

        Args:
            boxes: left, top, right, bottom in pixels.  Shape (B, K, 4).
            hw: height and width of the images.
        Returns:
            within the image; of a box that has left it right is left, or bottom is top.  Shape (B, K, 4), float32.
        """
        found = boxes.astype(np.float64)
        if any(step.moves for step in self.steps):
            found = maps.boxes_of_steps(found, self.rows(numbers, hw, seed=seed, epoch=epoch))
        found = maps.boxes_moved(found, numbers, hw, seed=seed, epoch=epoch, crop=self.crop, flip=self.flip)
        if self.altflip:
            found = maps.boxes_mirrored(found, _mirrored_in_turn(seed, epoch, numbers), hw)
        return np.clip(found, 0, [hw[1], hw[0]] * 2).astype(np.float32)


Augment.__init__ = checked(Augment.__init__)    # type: ignore[method-assign]


def check_channels(choices: Augment, channels: int) -> None:
    """Raises DataError for images whose number of channels an augmentation does not know."""
    names = [step.name for step in choices.steps if step.colours]
    if names and channels not in (1, 3):
        raise DataError(message("augment", f"{names[0]} is for images of 1 or 3 channels, these have {channels}",
                                f"leave {names[0]} out"))


def _mirrored_in_turn(seed: int, epoch: int, numbers: np.ndarray) -> np.ndarray:
    """Returns which images altflip mirrors in an epoch.  Shape of numbers, bool."""
    known = 1 << max(int(numbers.max(initial=0)).bit_length(), 10)
    return _sides(seed, known)[numbers] ^ bool(epoch % 2)


@lru_cache(4)
def _sides(seed: int, count: int) -> np.ndarray:
    """Returns which of `count` images are mirrored in even epochs.  Shape (count,), bool."""
    return (random_bits(seed, STREAMS["sides"], 0, count) & 1).astype(bool)
