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


def read(path: Path, size: tuple[int, int] | None) -> np.ndarray:
    """Returns the picture in a file.  Shape (H, W, 3), uint8.

    Args:
        size: (height, width) that it is scaled to cover, and cut to; None: as it is.
    Raises:
        DataError: Pillow is not installed, or the file is no picture of 8 bits a channel.
    """
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise DataError(message("ImageFolder", "reading pictures needs Pillow, which is not installed",
                                'pip install ".[images]"')) from error
    try:
        with Image.open(path) as picture:
            _check_depth(picture)
            image = _converted(upright(picture), "RGB")
            if size is not None:
                image = ImageOps.fit(image, size[::-1], Image.Resampling.BILINEAR)
            return np.asarray(image)
    except Exception as error:  # a damaged file fails in many ways
        raise DataError(message("ImageFolder", f"{path} cannot be read: {error}",
                                "remove it, or replace it by a picture of 8 bits a channel")) from error


def _converted(picture: Any, mode: str) -> Any:
    if mode == "RGB" and picture.mode in ("P", "PA"):
        picture = picture.convert("RGBA")   # else Pillow warns of transparent colours
    return picture.convert(mode)


def _check_depth(picture: Any, but: str = "") -> None:
    mode = next(filter(None, (DEEP.search(str(tile)) for tile in getattr(picture, "tile", []))), None)
    if mode or (picture.mode[0] in "IF" and picture.mode != but):    # to bytes Pillow would clip or cut them
        raise ValueError(f"its pixels are of mode {mode[0] if mode else picture.mode}, 8 bits a channel are needed")
