"""What --augment asks for; `alpha.ops.augment_images` does it."""

from __future__ import annotations

from dataclasses import dataclass

from alpha.errors import ConfigError, message

DEFAULT_SIZES = {"crop": 4, "flip": 1, "cutout": 16}  # what an item of --augment means without "=size"


@dataclass(frozen=True)
class Augment:
    """What happens to a training image before it is normalised, in this order.

    Args:
        crop: pad with `crop` black pixels on each side and cut the original size out at random.  0 = off.
        flip: mirror left to right with probability 1/2.
        cutout: paint a square of `cutout` pixels around a random pixel in the mean colour; it may stick out of the
            image.  0 = off.

    Source: the crop and flip of arXiv 1512.03385, section 4.2; cutout of arXiv 1708.04552.
    """

    crop: int = 0
    flip: bool = False
    cutout: int = 0

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
            largest = 1 if name == "flip" else 64
            if has_size and not (size.isdecimal() and len(size) < 4 and 1 <= int(size) <= largest):
                raise ConfigError(message("augment", f"{name} has size {size!r}, allowed are 1 to {largest}",
                                          f"write {name}={DEFAULT_SIZES[name]}, or {name} alone", augment=repr(text)))
            sizes[name] = int(size) if has_size else DEFAULT_SIZES[name]
        return Augment(sizes.get("crop", 0), "flip" in sizes, sizes.get("cutout", 0))
