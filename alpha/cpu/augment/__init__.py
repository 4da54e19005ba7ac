"""Augmentation and normalisation of images on the CPU: compiled kernels, or NumPy, with the same bits."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from alpha.core.errors import ConfigError, ShapeError, message
from alpha.cpu import native
from alpha.cpu.augment.steps import transformed
from alpha.cpu.memory import empty
from alpha.ops.augment import (
    EPOCH_BLOCKS,
    WORDS_PER_IMAGE,
    augment_images,
    below,
    mix_images,
    transform_images,
    words_of,
)
from alpha.random import STREAMS, random_bits

Array = np.ndarray


@augment_images.impl("cpu")
def augment_images_cpu(images: Array, index: Array, mean: Array, std: Array, key: Array | None, *, seed: int,
                       epoch: int, crop: int, flip: bool, cutout: int) -> Array:
    _check_index("augment_images", images, index)
    if not (std > 0).all():
        raise ConfigError(message("augment_images", f"std is {std.tolist()}, and pixels are divided by it",
                                  "pass a std above 0 for each channel"))
    words = None
    if crop or flip or cutout:
        words = words_of(seed, epoch, key) if key is not None else image_words(seed, epoch, len(images))[index]
    if images.flags.c_contiguous and native.library() is not None:
        _, h, w, c = images.shape
        y = empty((len(index), h, w, c), "float32")
        scale, shift = scale_and_shift(mean, std, w)
        words, index, colour = (None if words is None else np.ascontiguousarray(words), np.ascontiguousarray(index),
                                mean_colour(mean))
        native.loaded().augment_images(
            *map(native.ptr, (images, index, words, scale, shift, colour, y)), len(index), h, w, c, crop, flip, cutout)
        return y
    pixels = images[index]
    if words is not None:
        pixels = augmented(pixels, words, mean_colour(mean), crop=crop, flip=flip, cutout=cutout)
    return normalized(pixels, mean, std)


@transform_images.impl("cpu")
def transform_images_cpu(images: Array, index: Array, rows: Array, mean: Array) -> Array:
    _check_index("transform_images", images, index)
    _, h, w, c = images.shape
    y = empty((len(index), h, w, c), "uint8")
    colour = mean_colour(mean)
    if images.flags.c_contiguous and native.library() is not None:
        index, rows = np.ascontiguousarray(index), np.ascontiguousarray(rows)
        native.loaded().transform_images(*map(native.ptr, (images, index, rows, colour, y)), len(index), rows.shape[1],
                                         h, w, c)
        return y
    for b, k in enumerate(index):
        y[b] = transformed(images[k], rows[b], colour)
    return y


@mix_images.impl("cpu")
def mix_images_cpu(x: Array, table: Array) -> Array:
    y = empty((len(table), *x.shape[1:]), "float32")
    if native.usable(x, table):
        native.loaded().mix_images(*map(native.ptr, (x, table, y)), *y.shape)
        return y
    row, column = np.arange(x.shape[1]), np.arange(x.shape[2])
    outside, inside, top, left, bottom, right = table.T[..., None]
    covered = (((top <= row) & (row < bottom))[:, :, None] & ((left <= column) & (column < right))[:, None, :])
    share = np.where(covered, inside[..., None], outside[..., None])[..., None]
    np.add(share * x[1:], (np.float32(1) - share) * x[:-1], out=y)
    return y


def _check_index(where: str, images: Array, index: Array) -> None:
    if index.size and not 0 <= index.min() <= index.max() < len(images):
        raise ShapeError(message(where, f"index reaches from {index.min()} to {index.max()}, there are {len(images)} "
                                 "images", "number the images from 0", images=images.shape))


@lru_cache(maxsize=2)
def image_words(seed: int, epoch: int, count: int) -> Array:
    """Returns the random words of the first `count` images of `epoch`.  Shape (count, WORDS_PER_IMAGE), uint32."""
    words = random_bits(seed, STREAMS["augment"], epoch * EPOCH_BLOCKS * WORDS_PER_IMAGE, count * WORDS_PER_IMAGE)
    return words.reshape(count, WORDS_PER_IMAGE)


def mean_colour(mean: Array) -> Array:
    """Returns the mean in units of 1, which is about 0 once normalised.  Shape (C,), uint8."""
    return np.clip(np.round(255 * mean), 0, 255).astype(np.uint8)


def augmented(images: Array, words: Array, colour: Array, *, crop: int = 0, flip: bool = False, cutout: int = 0
              ) -> Array:
    """Returns images cropped, mirrored and cut out, in memory of their own if crop is set, else in place.

    Args:
        images: shape (N, H, W, C), uint8.
        words: of these images.  Shape (N, WORDS_PER_IMAGE), uint32.
        colour: of the cutout squares.  Shape (C,), uint8.
    """
    out = _cropped(images, words, crop) if crop else images
    channels = out.shape[-1]
    pixels = out.view(f"V{channels}")[..., 0]  # one item per pixel: NumPy is slow where the last axis is short
    if flip:
        # The positions use the high bits of a word; its lowest bit is still free.
        mirrored = (words[:, 0] & 1).astype(bool)
        pixels[mirrored] = pixels[mirrored][:, :, ::-1]
    if cutout:
        pixels[_holes(out.shape, words, cutout)] = colour.view(f"V{channels}")
    return out


def _cropped(images: Array, words: Array, p: int) -> Array:
    n, h, w, c = images.shape
    padded = np.zeros((n, h + 2 * p, w + 2 * p, c), np.uint8)
    padded[:, p : p + h, p : p + w] = images
    # A row of pixels is contiguous, so one window is h runs of w*c bytes and nothing is gathered pixel by pixel.
    rows = padded.reshape(n, h + 2 * p, (w + 2 * p) * c)
    windows = np.lib.stride_tricks.sliding_window_view(rows, (h, w * c), axis=(1, 2))
    top, left = below(words[:, 0], 2 * p + 1), below(words[:, 1], 2 * p + 1)
    return windows[np.arange(n), top, left * c].reshape(n, h, w, c)


def _holes(shape: tuple[int, ...], words: Array, cutout: int) -> Array:
    _, h, w, _ = shape
    covered = []
    for size, word in ((h, words[:, 2]), (w, words[:, 3])):
        first = below(word, size)[:, None] - cutout // 2
        position = np.arange(size)
        covered.append((first <= position) & (position < first + cutout))
    return covered[0][:, :, None] & covered[1][:, None, :]


def normalized(images: Array, mean: Array, std: Array) -> Array:
    """Returns (images / 255 - mean) / std.  Shape (N, H, W, C), float32."""
    n, h, w, c = images.shape
    # Scale and shift are laid out for a whole image: NumPy is slow where the last axis is short.
    scale, shift = scale_and_shift(mean, std, h * w)
    y = empty((n, h * w * c), "float32")
    np.multiply(images.reshape(n, h * w * c), scale, out=y, dtype=np.float32)
    y -= shift
    return y.reshape(n, h, w, c)


def scale_and_shift(mean: Array, std: Array, pixels: int) -> tuple[Array, Array]:
    """Returns what pixels are multiplied with, and what is subtracted then.  Shapes (pixels * C,), float32."""
    return (np.tile((1 / (255 * std.astype(np.float64))).astype(np.float32), pixels),
            np.tile((mean.astype(np.float64) / std).astype(np.float32), pixels))
