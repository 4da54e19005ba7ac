"""Maps that go with images, masks and depths say: they are moved as their images are."""

from __future__ import annotations

from typing import Any

import numpy as np

from alpha.core.errors import ConfigError, message, shown
from alpha.core.inputs.ints import BOOLS, as_int, is_real
from alpha.ops.augment import below, words_of

Array = np.ndarray


def checked_fill(value: Any, crop: int) -> Any:
    """Returns the value of pixels that a crop lets into a map.  Raises ConfigError."""
    if value is None:
        return None
    if not is_real(value) and not isinstance(value, BOOLS):
        raise ConfigError(message("augment", f"mask_fill is {shown(value)}, a number is needed",
                                  "pass mask_fill=-100, the label that cross_entropy leaves out"))
    if not crop:
        raise ConfigError(message("augment", f"mask_fill={value}, and crop=0: no pixel of a map is filled",
                                  "leave mask_fill out, or pass crop=4, say"))
    return value


def fits(fill: Any, dtype: np.dtype[Any]) -> bool:
    """Tells whether a map of this dtype can hold the value."""
    if dtype.kind == "b":
        return isinstance(fill, BOOLS) or fill in (0, 1)
    return dtype.kind == "f" or as_int(fill) is not None or float(fill).is_integer()


def moved(maps: Array, numbers: Array, *, seed: int, epoch: int, crop: int, flip: bool, fill: Any) -> Array:
    """Returns maps cropped and mirrored as ops.augment_images does it to the images of the same numbers.

    Args:
        maps: shape (B, H, W, ...); they stay as they are.
        numbers: of the images in the data set.  Shape (B,).
        fill: the value of pixels that crop lets in.
    """
    words = words_of(seed, epoch, numbers)
    if crop:
        height, width = maps.shape[1:3]
        padded = np.full((len(maps), height + 2 * crop, width + 2 * crop, *maps.shape[3:]), fill, maps.dtype)
        padded[:, crop:crop + height, crop:crop + width] = maps
        top, left = below(words[:, 0], 2 * crop + 1), below(words[:, 1], 2 * crop + 1)
        maps = np.stack([padded[k, i:i + height, j:j + width] for k, (i, j) in enumerate(zip(top, left))])
    return mirrored(maps, (words[:, 0] & 1).astype(bool)) if flip else maps


def mirrored(maps: Array, which: Array) -> Array:
    """Returns maps, some of them mirrored left to right."""
    turned = maps.copy()
    turned[which] = maps[which][:, :, ::-1]
    return turned
