"""What --augment asks for; `alpha.ops.augment_images` does it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any

import numpy as np

from alpha import ops
from alpha.core.errors import ConfigError, message
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import Whole
from alpha.core.tensor import Tensor, tensor
from alpha.data import maps
from alpha.random import STREAMS, random_bits

LARGEST = 64
Edge = Annotated[int, Whole(0, high=LARGEST)]
DEFAULT_SIZES = {"crop": 4, "flip": 1, "altflip": 1, "cutout": 16}  # what an item of --augment means without "=size"


@dataclass(frozen=True)
class Augment:
    """What happens to a training image before it is normalised, in this order.

    Args:
        crop: pad with `crop` black pixels on each side and cut the original size out at random.  0 = off.
        flip: mirror left to right with probability 1/2.
        cutout: paint a square of `cutout` pixels around a random pixel in the mean colour; it may stick out of the
            image.  0 = off.
        altflip: mirror half of the images, drawn once, in even epochs and the other half in odd ones, last of all.
        mask_fill: value of the pixels that crop lets into a map that goes with the images (a mask): crop refuses maps
            without it. -100 is the label that cross_entropy leaves out. Maps are cropped and mirrored, not cut out.

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

    def __post_init__(self) -> None:
        maps.checked_fill(self.mask_fill, self.crop)
        if self.flip and self.altflip:
            raise ConfigError(message("augment", "flip and altflip are both named", "choose one of them"))

    @staticmethod
    def parse(text: str) -> Augment:
        """Returns the augmentation that `text` names: "none", or items such as "crop,flip,cutout" or "crop=2".

        Raises:
            ConfigError: if an item is unknown or given twice, or its size is not a number from 1 to 64.
        """
        sizes: dict[str, int] = {}
        for item in [] if text.strip() == "none" else text.split(","):
            name, has_size, size = item.strip().partition("=")
            if name not in DEFAULT_SIZES or name in sizes:
                what = "named twice" if name in sizes else "unknown"
                raise ConfigError(message("augment", f"{name!r} is {what}; there are {', '.join(DEFAULT_SIZES)}, none",
                                          "write none, or each item at most once: --augment crop,flip,cutout",
                                          augment=repr(text)))
            largest = 1 if name.endswith("flip") else LARGEST
            if has_size and not (size.isdecimal() and len(size) < 4 and 1 <= int(size) <= largest):
                raise ConfigError(message("augment", f"{name} has size {size!r}, allowed are 1 to {largest}",
                                          f"write {name}={DEFAULT_SIZES[name]}, or {name} alone", augment=repr(text)))
            sizes[name] = int(size) if has_size else DEFAULT_SIZES[name]
        return Augment(sizes.get("crop", 0), "flip" in sizes, sizes.get("cutout", 0), "altflip" in sizes)

    def applied(self, images: Tensor, index: Tensor, mean: Tensor, std: Tensor, numbers: np.ndarray, key: Tensor | None,
                *, seed: int, epoch: int) -> Tensor:
        """Returns what ops.augment_images makes of images, mirrored in turn with altflip.

        Args:
            numbers: of the images in the data set, on the host; the other arguments are those of the op.
        """
        x = ops.augment_images(images, index, mean, std, key, seed=seed, epoch=epoch, crop=self.crop, flip=self.flip,
                               cutout=self.cutout)
        if not self.altflip:
            return x
        mirrored = _mirrored_in_turn(seed, epoch, numbers)
        return ops.where(tensor(mirrored.reshape(-1, 1, 1, 1), device=x.device), ops.flip(x, 2), x)

    def moved(self, a: np.ndarray, numbers: np.ndarray, *, seed: int, epoch: int) -> np.ndarray:
        """Returns maps moved as `applied` moves the images of these numbers; they stay as they are themselves.

        Args:
            a: shape (B, H, W, ...), H and W of the images.
        """
        if self.crop or self.flip:
            a = maps.moved(a, numbers, seed=seed, epoch=epoch, crop=self.crop, flip=self.flip, fill=self.mask_fill)
        return maps.mirrored(a, _mirrored_in_turn(seed, epoch, numbers)) if self.altflip else a


Augment.__init__ = checked(Augment.__init__)    # type: ignore[method-assign]


def _mirrored_in_turn(seed: int, epoch: int, numbers: np.ndarray) -> np.ndarray:
    """Returns which images altflip mirrors in an epoch.  Shape of numbers, bool."""
    known = 1 << max(int(numbers.max(initial=0)).bit_length(), 10)
    return _sides(seed, known)[numbers] ^ bool(epoch % 2)


@lru_cache(4)
def _sides(seed: int, count: int) -> np.ndarray:
    """Returns which of `count` images are mirrored in even epochs.  Shape (count,), bool."""
    return (random_bits(seed, STREAMS["sides"], 0, count) & 1).astype(bool)
