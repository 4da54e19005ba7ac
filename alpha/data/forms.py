"""Which settings of a loader apply to a batch: told from its dtypes and shapes, once for each form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from alpha.core.errors import ConfigError, DataError, message, shown
from alpha.core.tensor import Tensor
from alpha.data.augment import Augment, check_channels
from alpha.data.maps import fits

Array = np.ndarray


class Forms:
    """The work on batches of a form.  Raises for a setting that would have no effect, or a wrong one.

    Images are the first part of a batch: 8 bits of shape (N, H, W, C) or (N, H, W), or floats of (N, H, W, C). Maps are
    parts behind images whose first axes are the images' height and width.
    """

    def __init__(self, augment: Augment, mean: Any, std: Any) -> None:
        self.augment = augment
        self.mean, self.std = _of_channels("mean", mean), _of_channels("std", std)
        if not (self.std > 0).all():
            raise ConfigError(message("DataLoader", f"std={std} is not above 0: pixels are divided by it",
                                      "pass the standard deviation of each channel, or leave it out"))
        self.given = [name for name, value, plain in (("mean", self.mean, 0), ("std", self.std, 1))
                      if value.size != 1 or (value != plain).any()]
        self._maps: dict[Any, tuple[int, ...]] = {}     # by form: numbers of the parts that are maps

    def maps(self, arrays: Sequence[Array]) -> tuple[int, ...]:
        """Returns which parts of a batch are moved with the images.  Raises DataError, ConfigError."""
        form = tuple([(a.dtype, a.shape[1:]) for a in arrays])
        if form not in self._maps:
            self._check_first(arrays[0])
            self._check_steps(arrays)
            self._maps[form] = self._checked_maps(arrays[0], arrays[1:])
        return self._maps[form]

    def _check_first(self, first: Array) -> None:
        if not is_bytes(first) and self.augment != Augment():
            raise DataError(message("DataLoader", f"augment is for images of 8 bits, a batch is {shown(first)}",
                                    "leave augment out, and use `transform`"))
        if not self.given:
            return
        if not is_bytes(first) and not is_floats(first):
            names = " and ".join(self.given)
            raise DataError(message("DataLoader", f"{names} given, for images of shape (N, H, W, C) of 8 bits or of "
                                    f"floats; a batch is {shown(first)}", f"leave {names} out, or give the images that "
                                    "shape: images[..., None] has an axis of channels"))
        channels = 1 if first.ndim == 3 else first.shape[3]
        for name, value in (("mean", self.mean), ("std", self.std)):
            if value.size not in (1, channels):
                raise DataError(message("DataLoader", f"{name} has {value.size} elements, the images have {channels} "
                                        "channels", "pass one number, or one for each channel"))
            if is_bytes(first) and not ((value >= 0) & (value <= 1)).all():
                raise ConfigError(message(
                    "DataLoader", f"{name}={_plain(value)} is outside of 0 to 1: images of 8 bits, 0 to 255, are "
                    f"scaled to 0 to 1 before {name} is applied", f"divide it by 255: {name}={_plain(value / 255)}"))

    def _check_steps(self, arrays: Sequence[Array]) -> None:
        first, mixing = arrays[0], self.augment.mixing
        if is_bytes(first):
            check_channels(self.augment, 1 if first.ndim == 3 else first.shape[3])
        if mixing and not (len(arrays) == 2 and ((arrays[1].ndim == 1 and arrays[1].dtype.kind in "iu") or (
                arrays[1].ndim == 2 and arrays[1].dtype.kind == "f"))):
            raise DataError(message(
                "DataLoader", f"{mixing[0].name} mixes images with their labels, and a batch has "
                f"{', '.join(f'{a.dtype} {a.shape[1:]}' for a in arrays)} of each item", "give images with labels (N,) "
                f"of whole numbers, or with probabilities (N, classes); or leave {mixing[0].name} out"))

        k = self.augment.boxes
        if not k:
            return
        if not self.augment.moves:
            raise DataError(message("DataLoader", f"boxes={k}, and augment moves no pixels", "leave boxes out, or name "
                                    "what moves: Augment(flip=True, boxes=1)"))
        part = arrays[k] if k < len(arrays) else arrays[0]
        if part is arrays[0] or part.ndim != 3 or part.shape[2] != 4 or part.dtype.kind not in "iuf":
            raise DataError(message(
                "DataLoader", f"boxes={k}, and a batch has {', '.join(f'{a.dtype} {a.shape[1:]}' for a in arrays)} of "
                "each item", "name the part that has left, top, right and bottom of K boxes, shape (K, 4)"))

    def _checked_maps(self, images: Array, rest: Sequence[Array]) -> tuple[int, ...]:
        choices, found = self.augment, []
        if not choices.moves:
            return ()
        for k, part in enumerate(rest, 1):
            if part.ndim < 3 or k == choices.boxes:
                continue
            if part.shape[1:3] != images.shape[1:3]:
                raise DataError(message(
                    "DataLoader", f"augment moves images of {images.shape[1:3]}, and part {k} of shape "
                    f"{part.shape[1:]} would stay as it is", "give maps (H, W) or (H, W, C) of the images' height and "
                    "width; or boxes, and their number: Augment(flip=True, boxes=1); or flatten a part that has no "
                    "place in the image"))
            _check_fill(choices, part, k)
            found.append(k)
        if choices.mask_fill is not None and not found:
            raise DataError(message("DataLoader", f"mask_fill={choices.mask_fill}, and no part of a batch is a map of "
                                    f"the images' height and width, {images.shape[1:3]}", "leave mask_fill out",
                                    parts=[part.shape for part in rest]))
        return tuple(found)


def _check_fill(choices: Augment, part: Array, k: int) -> None:
    if not choices.opens:
        return
    advice = "-100), the label that cross_entropy leaves out" if part.dtype.kind in "iu" else "0)"
    given = [*([f"crop={choices.crop}"] if choices.crop else []), *(["flip=True"] if choices.flip else []),
             *(['steps="' + ",".join(map(str, choices.steps)) + '"'] if choices.steps else [])]
    opens = f"crop={choices.crop}" if choices.crop else next(step.name for step in choices.steps if step.opens)
    text = f"Augment({', '.join(given)}, mask_fill="
    if choices.mask_fill is None:
        raise DataError(message(
            "DataLoader", f"{opens} lets pixels from outside into part {k}, a map of "
            f"{part.dtype} {part.shape[1:]}, and their value is not known",
            f"pass augment={text}{advice}, or leave {opens.partition('=')[0]} out"))
    if not fits(choices.mask_fill, part.dtype):
        raise DataError(message("DataLoader", f"mask_fill={choices.mask_fill}, and part {k} is a map of {part.dtype}",
                                f"pass augment={text}{'True' if part.dtype.kind == 'b' else '-100'})"))


def is_bytes(first: Array) -> bool:
    """Tells whether a batch is of images of 8 bits."""
    return first.dtype == np.uint8 and first.ndim in (3, 4)


def is_floats(first: Array) -> bool:
    """Tells whether a batch is of images of floats."""
    return first.dtype.kind == "f" and first.ndim == 4


def _plain(value: Array) -> Any:
    """Returns a number or a list of numbers, as messages show it."""
    numbers = [float(f"{v:.6g}") for v in value.reshape(-1)]
    return numbers if len(numbers) > 1 else numbers[0]


def _of_channels(name: str, value: Any) -> Array:
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
