"""The steps of ops.transform_images in NumPy: what alpha/cuda/ops/augment/steps.cuh computes, bit for bit.

A row is a code and its numbers. Fractions have 16 bits (ONE is 1), and all arithmetic is of integers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from alpha.ops.augment import BILINEAR, MEAN, NOISE, ONE, Code, nearest, source

Array = np.ndarray

LEVELS = np.arange(256, dtype=np.int64)


def transformed(image: Array, rows: Array, colour: Array) -> Array:
    """Returns an image after its steps.

    Args:
        image: shape (H, W, C), uint8.
        rows: shape (steps, WIDTH), int32.
        colour: with which MEAN fills.  Shape (C,), uint8.
    """
    x = image
    for row in rows.astype(np.int64):
        if row[0] != Code.KEEP:
            x = _step(x, row, colour)
    return x


def _step(x: Array, row: Array, colour: Array) -> Array:
    code = row[0]
    if code == Code.MOVE:
        return _moved(x, row, colour)
    if code in (Code.SATURATION, Code.HUE, Code.GREY):
        return _recoloured(x, row) if x.shape[2] == 3 else x
    if code == Code.SHARPNESS:
        return _sharpened(x, int(row[1]))
    if code == Code.BLUR:
        return _blurred(x, row)
    if code == Code.ERASE:
        return _erased(x, row, colour)
    if code in (Code.EQUALIZE, Code.AUTOCONTRAST):
        return np.stack([_levels(x[..., c], code)[x[..., c]] for c in range(x.shape[2])], 2)
    return _bytes(_relevelled(x, code, int(row[1])))[x]


def _bytes(values: Any) -> Array:
    return np.clip(values, 0, 255).astype(np.uint8)


def _moved(x: Array, row: Array, colour: Array) -> Array:
    hw = x.shape[0], x.shape[1]
    fill = colour if row[8] == MEAN else np.full(x.shape[2], row[8] & 255, np.uint8)
    if not row[7] & BILINEAR:
        line, column, seen = nearest(row, hw)
        return np.where(seen[..., None], x[line, column], fill)
    down, across = source(row, hw)
    i, j = down >> 16, across >> 16
    v, u = (((a & (ONE - 1)) >> 4)[..., None] for a in (down, across))

    def at(i: Array, j: Array) -> Array:
        seen = (row[10] <= i) & (i < row[12]) & (row[9] <= j) & (j < row[11])
        return np.where(seen[..., None], x[np.where(seen, i, 0), np.where(seen, j, 0)], fill).astype(np.int64)

    upper = at(i, j) * (4096 - u) + at(i, j + 1) * u
    lower = at(i + 1, j) * (4096 - u) + at(i + 1, j + 1) * u
    return ((upper * (4096 - v) + lower * v + (1 << 23)) >> 24).astype(np.uint8)


def grey_of(x: Array) -> Array:
    """Returns the grey of pixels.  Shape (..., 3) -> (...), int64."""
    return (x.astype(np.int64) @ np.array([19595, 38470, 7471]) + 32768) >> 16


def _levels(x: Array, code: int) -> Array:
    counts = np.bincount(x.reshape(-1), minlength=256)
    used = np.flatnonzero(counts)
    low, high = int(used[0]), int(used[-1])
    if code == Code.AUTOCONTRAST:
        return _bytes((LEVELS - low) * 255 // (high - low) if high > low else LEVELS)
    share = int(x.size - counts[high]) // 255
    if not share:
        return LEVELS.astype(np.uint8)
    return _bytes((share // 2 + np.cumsum(counts) - counts) // share)


def _relevelled(x: Array, code: int, value: int) -> Array:
    if code == Code.BRIGHTNESS:
        return (value * LEVELS) >> 16
    if code == Code.CONTRAST:
        grey = grey_of(x) if x.shape[2] == 3 else x[..., 0]
        mean = int(grey.sum(dtype=np.int64)) * ONE // grey.size
        return (value * LEVELS * ONE + (ONE - value) * mean) >> 32
    if code == Code.POSTERIZE:
        return LEVELS & value
    if code == Code.SOLARIZE:
        return np.where(value <= LEVELS, 255 - LEVELS, LEVELS)
    return 255 - LEVELS


def _recoloured(x: Array, row: Array) -> Array:
    value = int(row[1])
    if row[0] == Code.HUE:
        return _turned(x.astype(np.int64), value)
    grey = grey_of(x)[..., None]
    if row[0] == Code.GREY:
        return np.broadcast_to(grey, x.shape).astype(np.uint8)
    return _bytes((value * x.astype(np.int64) + (ONE - value) * grey) >> 16)


def _turned(x: Array, by: int) -> Array:
    """Returns pixels with their hue turned by a share of the circle, of ONE."""
    sixth_of_circle, circle = ONE * 256, 6 * ONE * 256
    r, g, b = np.moveaxis(x, 2, 0)
    high, low = x.max(2), x.min(2)
    chroma = np.maximum(high - low, 1)
    base = np.where(high == r, 6, np.where(high == g, 8, 10))
    slope = np.where(high == r, g - b, np.where(high == g, b - r, r - g))
    hue = ((base * chroma + slope) * sixth_of_circle // chroma + by * (circle // ONE) + circle) % circle
    sixth, rest = hue // sixth_of_circle, hue % sixth_of_circle
    way = ((high - low) * rest + sixth_of_circle // 2) >> 24
    falls, rises = high - way, low + way
    red, green, blue = ((high, falls, low, low, rises, high), (rises, high, high, falls, low, low),
                        (low, low, rises, high, high, falls))
    return np.stack([np.choose(sixth, choices) for choices in (red, green, blue)], 2).astype(np.uint8)


def _sharpened(x: Array, factor: int) -> Array:
    wide, h, w = x.astype(np.int64), x.shape[0], x.shape[1]
    if h < 3 or w < 3:
        return x
    sums = 4 * wide[1:-1, 1:-1]
    for i in range(3):
        for j in range(3):
            sums = sums + wide[i:h - 2 + i, j:w - 2 + j]
    y = x.copy()
    y[1:-1, 1:-1] = _bytes((factor * wide[1:-1, 1:-1] + (ONE - factor) * ((2 * sums + 13) // 26)) >> 16)
    return y


def _blurred(x: Array, row: Array) -> Array:
    radius = int(row[1])
    weights = row[2:3 + radius]
    wide = x.astype(np.int64)
    for axis, shift in ((1, 8), (0, 24)):
        places = mirrored(np.arange(-radius, x.shape[axis] + radius), x.shape[axis])
        padded = np.take(wide, places, axis)
        wide = sum(weights[abs(k)] * np.take(padded, np.arange(x.shape[axis]) + radius + k, axis)  # type: ignore[assignment]
                   for k in range(-radius, radius + 1))
        wide = (wide + (1 << (shift - 1))) >> shift
    return _bytes(wide)


def mirrored(i: Array, n: int) -> Array:
    """Returns places of an axis of n; those outside are mirrored at its ends, as often as need be."""
    if n == 1:
        return np.zeros_like(i)
    i = np.abs(i) % (2 * (n - 1))
    return np.where(i < n, i, 2 * (n - 1) - i)


def noise(word: int, shape: tuple[int, ...]) -> Array:
    """Returns pseudo-random bytes of a word, by place (the mixer of MurmurHash3).  uint8."""
    place = np.arange(int(np.prod(shape)), dtype=np.uint64)
    low = np.uint64(0xFFFFFFFF)
    h = np.uint64(word & 0xFFFFFFFF) ^ (place * np.uint64(0x9E3779B9) & low)
    h = (h ^ (h >> np.uint64(16))) * np.uint64(0x85EBCA6B) & low
    h = (h ^ (h >> np.uint64(13))) * np.uint64(0xC2B2AE35) & low
    return ((h ^ (h >> np.uint64(16))) >> np.uint64(24)).astype(np.uint8).reshape(shape)


def _erased(x: Array, row: Array, colour: Array) -> Array:
    _, top, left, bottom, right, fill, word = (int(v) for v in row[:7])
    inner = (slice(max(top, 0), max(bottom, 0)), slice(max(left, 0), max(right, 0)))
    y = x.copy()
    y[inner] = noise(word, x.shape)[inner] if fill == NOISE else colour if fill == MEAN else fill & 255
    return y
