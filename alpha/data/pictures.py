"""Pictures of Pillow as arrays: turned as EXIF says, in colours, with 8 bits a channel."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np

from alpha.core.errors import DataError, message

DEEP = re.compile(r"\b(?:L|LA|RGBA?|RGBX|CMYK);16")     # how Pillow names 16 bits a channel that it cuts to 8


def is_picture(value: Any) -> bool:
    """Tells whether a value is a picture of Pillow, which need not be installed."""
    module = sys.modules.get("PIL.Image")
    return module is not None and isinstance(value, module.Image)


def upright(picture: Any) -> Any:
    """Returns a picture as it is to be seen: turned and mirrored as its EXIF orientation says."""
    from PIL import ImageOps
    return ImageOps.exif_transpose(picture)


def pixels(picture: Any) -> np.ndarray:
    """Returns a picture as an array, (H, W) or (H, W, C).

    Colours of a palette and CMYK become RGB, black and white 0 and 255, in uint8. Floats become (H, W, 1), float32.
    Raises:
        ValueError: it has 16 or 32 bits a channel.
    """
    _check_depth(picture, "F")
    picture = upright(picture)
    if picture.mode == "F":
        return np.asarray(picture)[..., None]
    mode = {"1": "L", "P": "RGB", "PA": "RGB", "CMYK": "RGB"}.get(picture.mode)
    return np.asarray(_converted(picture, mode) if mode else picture)


def read(path: Path, size: tuple[int, int] | None, channels: int = 3, where: str = "ImageFolder") -> np.ndarray:
    """Returns the picture in a file.  Shape (H, W, channels), uint8.

    Args:
        size: (height, width) that it is scaled to cover, and cut to; None: as it is.
        channels: 3, colours, or 1, grey.
        where: who asks, for messages.
    Raises:
        DataError: Pillow is not installed, or the file is no picture of 8 bits a channel.
    """
    Image = _pillow(where, "reading pictures")
    try:
        with Image.open(path) as picture:
            return _fitted(picture, size, channels)
    except Exception as error:  # a damaged file fails in many ways
        raise DataError(message(where, f"{path} cannot be read: {error}",
                                "remove it, or replace it by a picture of 8 bits a channel")) from error


def of_array(where: str, a: Any, size: tuple[int, int], channels: int) -> np.ndarray:
    """Returns an array or a picture of Pillow in the form in which `read` returns a file.  Raises DataError.

    Args:
        a: (H, W), (H, W, 1), (H, W, 3) or (H, W, 4), uint8: grey, colours, colours and transparency.
    """
    if isinstance(a, np.ndarray):
        is_one = a.ndim == 2 or (a.ndim == 3 and a.shape[2] in (1, 3, 4, channels))
        if a.dtype != np.uint8 or not is_one or not a.size:
            raise DataError(message(where, f"a picture is an array of {a.dtype} {a.shape}, uint8 of shape (H, W, "
                                    f"{channels}) or (H, W) is needed", "pixels from 0 to 1 become (a * 255).astype("
                                    "np.uint8); channels come last"))
        if a.shape[:2] == size and a.shape[2:] == (channels,):
            return a
        if channels not in (1, 3):
            raise DataError(message(where, f"a picture has shape {a.shape}, {(*size, channels)} is needed, and only "
                                    "grey and colours can be scaled", "scale it before"))
        Image = _pillow(where, f"bringing an array of {a.shape} to {(*size, channels)}")
        a = Image.fromarray(a[..., 0] if a.ndim == 3 and a.shape[2] == 1 else a)
    try:
        return _fitted(a, size, channels)
    except Exception as error:
        raise DataError(message(where, f"a picture cannot be used: {error}",
                                "pass a picture of 8 bits a channel")) from error


def _fitted(picture: Any, size: tuple[int, int] | None, channels: int) -> np.ndarray:
    from PIL import Image, ImageOps

    _check_depth(picture)
    image = _converted(upright(picture), "RGB")
    if channels == 1:
        image = image.convert("L")
    if size is not None:
        image = ImageOps.fit(image, size[::-1], Image.Resampling.BILINEAR)
    return np.asarray(image).reshape(image.height, image.width, channels)


def _pillow(where: str, what: str) -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError(message(where, f"{what} needs Pillow, which is not installed",
                                'pip install ".[images]"')) from error
    return Image


def _converted(picture: Any, mode: str) -> Any:
    if mode == "RGB" and picture.mode in ("P", "PA"):
        picture = picture.convert("RGBA")   # else Pillow warns of transparent colours
    return picture.convert(mode)


def _check_depth(picture: Any, but: str = "") -> None:
    mode = next(filter(None, (DEEP.search(str(tile)) for tile in getattr(picture, "tile", []))), None)
    if mode or (picture.mode[0] in "IF" and picture.mode != but):    # to bytes Pillow would clip or cut them
        raise ValueError(f"its pixels are of mode {mode[0] if mode else picture.mode}, 8 bits a channel are needed")
