"""Augmentation and normalisation of images on the CPU, with NumPy."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from alpha.core.errors import ConfigError, ShapeError, message
from alpha.cpu.memory import empty
from alpha.ops.augment import EPOCH_BLOCKS, WORDS_PER_IMAGE, augment_images, below, words_of
from alpha.random import STREAMS, random_bits

Array = np.ndarray


@augment_images.impl("cpu")
def augment_images_cpu(images: Array, index: Array, mean: Array, std: Array, key: Array | None, *, seed: int,
                       epoch: int, crop: int, flip: bool, cutout: int) -> Array:
    if index.size and not 0 <= index.min() <= index.max() < len(images):
        raise ShapeError(message("augment_images", f"index reaches from {index.min()} to {index.max()}, there are "
                                 f"{len(images)} images", "number the images from 0", images=images.shape))
    if not (std > 0).all():
        raise ConfigError(message("augment_images", f"std is {std.tolist()}, and pixels are divided by it",
                                  "pass a std above 0 for each channel"))
    pixels = images[index]
    if crop or flip or cutout:
        if key is None:
            words = image_words(seed, epoch, len(images))[index]
        else:
            words = words_of(seed, epoch, key)
        pixels = augmented(pixels, words, mean_colour(mean), crop=crop, flip=flip, cutout=cutout)
    return normalized(pixels, mean, std)


@lru_cache(maxsize=2)
def image_words(seed: int, epoch: int, count: int) -> Array:
    """Returns the random words of the first `count` images of `epoch`.  Shape (count, WORDS_PER_IMAGE), uint32."""
    words = random_bits(seed, STREAMS["augment"], epoch * EPOCH_BLOCKS * WORDS_PER_IMAGE, count * WORDS_PER_IMAGE)
    return words.reshape(count, WORDS_PER_IMAGE)


def mean_colour(mean: Array) -> Array:
    """Returns the mean in units of 1, which is about 0 once normalised.  Shape (C,), uint8."""
    return np.round(255 * mean).astype(np.uint8)


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
    scale = np.tile((1 / (255 * std.astype(np.float64))).astype(np.float32), h * w)
    shift = np.tile((mean.astype(np.float64) / std).astype(np.float32), h * w)
    y = empty((n, h * w * c), "float32")
    np.multiply(images.reshape(n, h * w * c), scale, out=y, dtype=np.float32)
    y -= shift
    return y.reshape(n, h, w, c)
