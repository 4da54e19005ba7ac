"""Maps that go with images, masks and depths say: they are moved as their images are."""

from __future__ import annotations

from typing import Any

import numpy as np

from alpha.core.errors import ConfigError, message, shown
from alpha.core.inputs.ints import BOOLS, as_int, is_real
from alpha.ops.augment import ONE, Code, below, nearest, words_of

Array = np.ndarray


def checked_fill(value: Any, moves: Any) -> Any:
    """Returns the value of pixels that come into a map from outside.  Raises ConfigError.

    Args:
        moves: whether there is anything that lets them in.
    """
    if value is None:
        return None
    if not is_real(value) and not isinstance(value, BOOLS):
        raise ConfigError(message("augment", f"mask_fill is {shown(value)}, a number is needed",
                                  "pass mask_fill=-100, the label that cross_entropy leaves out"))
    if not moves:
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


def stepped(maps: Array, rows: Array, fill: Any) -> Array:
    """Returns maps moved by the steps of their images: each pixel is the nearest one of where it comes from.

    Args:
        maps: shape (B, H, W, ...); they stay as they are.
        rows: as of ops.transform_images.  Shape (B, S, 16), int32.
        fill: the value of pixels that come from outside.
    """
    maps, hw = maps.copy(), (maps.shape[1], maps.shape[2])
    for k, steps in enumerate(rows.astype(np.int64)):
        for row in steps[steps[:, 0] == Code.MOVE]:
            line, column, seen = nearest(row, hw)
            maps[k] = maps[k][line, column]
            if not seen.all():
                maps[k][~seen] = fill
    return maps


def boxes_of_steps(boxes: Array, rows: Array) -> Array:
    """Returns the boxes around boxes that steps have moved.

    Args:
        boxes: left, top, right, bottom, in pixels.  Shape (B, K, 4), float64.
        rows: of their images, as of ops.transform_images.  Shape (B, S, 16), int32.
    """
    boxes = boxes.copy()
    for k, steps in enumerate(rows.astype(np.int64)):
        for row in steps[steps[:, 0] == Code.MOVE]:
            a, b, c, d, e, f = row[1:7] / ONE
            corners = boxes[k][:, [[0, 1], [2, 1], [0, 3], [2, 3]]] - 0.5 - (c, f)  # middles of pixels are whole
            there = corners @ np.linalg.inv([[a, b], [d, e]]).T + 0.5
            boxes[k] = np.concatenate([there.min(1), there.max(1)], 1)
    return boxes


def boxes_moved(boxes: Array, numbers: Array, hw: tuple[int, int], *, seed: int, epoch: int, crop: int, flip: bool
                ) -> Array:
    """Returns boxes (B, K, 4) moved as `moved` moves maps of height and width hw."""
    words = words_of(seed, epoch, numbers)
    if crop:
        down, across = (crop - below(words[:, k], 2 * crop + 1) for k in (0, 1))
        boxes = boxes + np.stack([across, down, across, down], 1)[:, None]
    return boxes_mirrored(boxes, (words[:, 0] & 1).astype(bool), hw) if flip else boxes


def boxes_mirrored(boxes: Array, which: Array, hw: tuple[int, int]) -> Array:
    """Returns boxes (B, K, 4), mirrored left to right in some images."""
    there = np.stack([hw[1] - boxes[..., 2], boxes[..., 1], hw[1] - boxes[..., 0], boxes[..., 3]], -1)
    return np.where(which[:, None, None], there, boxes)


def mirrored(maps: Array, which: Array) -> Array:
    """Returns maps, some of them mirrored left to right."""
    turned = maps.copy()
    turned[which] = maps[which][:, :, ::-1]
    return turned
