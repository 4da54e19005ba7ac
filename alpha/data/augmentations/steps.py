"""Rows of ops.transform_images: the parts of augmentations.  alpha/cpu/augment/steps.py has their equations."""

from __future__ import annotations

from typing import Any

import numpy as np

from alpha.ops.augment import BILINEAR, CLAMPED, ONE, STEP_WIDTH, Code

Array = np.ndarray

MOST = 2 ** 31 - 1


def rows_of(code: Any, *numbers: Any, count: int | None = None) -> Array:
    """Returns a row for each image.  Shape (B, 1, STEP_WIDTH), int32.

    Args:
        code, numbers: ints, or arrays of shape (B,).
        count: B, where all are ints.
    """
    parts = [np.asarray(part) for part in (code, *numbers)]
    size = count if count is not None else max(part.size for part in parts)
    rows = np.zeros((size, 1, STEP_WIDTH), np.int32)
    for k, part in enumerate(parts):
        rows[:, 0, k] = np.clip(part, -MOST, MOST)
    return rows


def fraction(value: Any) -> Array:
    """Returns numbers with 16 bits of fraction, as ints."""
    return np.rint(np.asarray(value, np.float64) * ONE).astype(np.int64)


def kept(rows: Array, which: Array) -> Array:
    """Returns rows that do something to some images only.  which: shape (B,), bool."""
    rows = rows.copy()
    rows[~which, :, 0] = Code.KEEP
    return rows


def moves(matrix: Array, hw: tuple[int, int], *, bilinear: bool, fill: int = 0, box: Array | None = None) -> Array:
    """Returns rows of MOVE: pixel (row, column) shows (d * column + e * row + f, a * column + b * row + c).

    Args:
        matrix: a, b, c, d, e, f of each image.  Shape (B, 6), float64.
        fill: the value of pixels outside.
        box: left, top, right, bottom of the visible part of each image, whose edge stands for pixels outside, shape
            (B, 4), int64; default the whole image, and `fill` is outside.
    """
    h, w = hw
    ends = box if box is not None else np.tile([0, 0, w, h], (len(matrix), 1))
    flags = (BILINEAR if bilinear else 0) | (CLAMPED if box is not None else 0)
    return rows_of(Code.MOVE, *fraction(matrix).T, flags, fill, *ends.T)


def about_the_middle(matrix: Array, hw: tuple[int, int]) -> Array:
    """Returns matrices (B, 6) that act about the middle of the image as `matrix` does about its first pixel."""
    y, x = ((size - 1) / 2 for size in hw)
    a, b, c, d, e, f = matrix.T
    return np.stack([a, b, c + x - a * x - b * y, d, e, f + y - d * x - e * y], 1)


def inverse(matrix: Array) -> Array:
    """Returns the inverses of affine maps (x, y) -> (a x + b y + c, d x + e y + f).  Shape (B, 6), float64."""
    a, b, c, d, e, f = matrix.T
    area = a * e - b * d
    return np.stack([e, -b, b * f - c * e, -d, a, c * d - a * f], 1) / area[:, None]
