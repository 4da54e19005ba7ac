"""Augmentation as a pure function of (seed, epoch, image), and normalisation.

Every random choice is a word of the Philox4x32-10 stream at a place that (epoch, image) alone decides. So an image
gets the same crop whatever the batch size, whichever batch it falls in, and whether or not the run was resumed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from alpha.errors import ConfigError, DataError, message
from alpha.random import STREAMS, random_bits

WORDS_PER_IMAGE = 4  # one Philox block: crop row, crop column, cutout row, cutout column
DEFAULT_SIZES = {"crop": 4, "flip": 1, "cutout": 16}  # what an item of --augment means without "=size"


def image_words(seed: int, epoch: int, count: int) -> np.ndarray:
    """Returns the random words of every image of `epoch`.  Shape (count, WORDS_PER_IMAGE), uint32."""
    # Epochs lie 2**40 words apart, so they never overlap.
    words = random_bits(seed, STREAMS["augment"], epoch << 40, count * WORDS_PER_IMAGE)
    return words.reshape(count, WORDS_PER_IMAGE)


def below(words: np.ndarray, limit: int) -> np.ndarray:
    """Maps uint32 words to integers 0 <= k < limit, uniform to within limit / 2**32."""
    return ((words.astype(np.uint64) * np.uint64(limit)) >> np.uint64(32)).astype(np.int64)


@dataclass(frozen=True)
class Normalize:
    """y = (x / 255 - mean) / std, from uint8 images to float32.

    Args:
        mean, std: per channel, in units of the full range 0..1.  Shape (C,), float32.
    """

    mean: np.ndarray
    std: np.ndarray

    def __call__(self, images: np.ndarray) -> np.ndarray:
        """Returns the normalised images.  Shape (N, H, W, C), float32."""
        n, h, w, c = images.shape
        # Scale and shift are laid out for a whole image: NumPy is slow where the last axis is short.
        scale = np.tile((1 / (255 * self.std.astype(np.float64))).astype(np.float32), h * w)
        shift = np.tile((self.mean.astype(np.float64) / self.std).astype(np.float32), h * w)
        y = np.multiply(images.reshape(n, h * w * c), scale, dtype=np.float32)
        y -= shift
        return y.reshape(n, h, w, c)

    @property
    def fill(self) -> np.ndarray:
        """The mean colour, which is about 0 once normalised.  Shape (C,), uint8."""
        return np.round(255 * self.mean).astype(np.uint8)


@dataclass(frozen=True)
class Augment:
    """What happens to a training image before it is normalised, in this order.

    Args:
        crop: pad with `crop` black pixels on each side and cut the original size out at random.  0 = off.
        flip: mirror left to right with probability 1/2.
        cutout: paint a square of `cutout` pixels around a random pixel in the fill colour; it may stick out of the
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

    def __call__(self, images: np.ndarray, words: np.ndarray, fill: np.ndarray | int = 0) -> np.ndarray:
        """Returns augmented copies.

        Args:
            images: shape (N, H, W, C), NHWC, uint8.
            words: random words of these images, in the same order.  Shape (N, WORDS_PER_IMAGE), uint32.
            fill: colour of the cutout squares.  Shape (C,) or scalar, uint8.
        Returns:
            shape (N, H, W, C), uint8.
        Raises:
            DataError: if there is not one row of words per image.
        """
        if words.shape != (len(images), WORDS_PER_IMAGE):
            raise DataError(message("augment", f"words has shape {words.shape}, expected "
                                    f"{(len(images), WORDS_PER_IMAGE)}: one row per image",
                                    "pass image_words(seed, epoch, count)[index]", images=images.shape))
        out = self._cropped(images, words) if self.crop else images.copy()
        channels = out.shape[-1]
        pixels = out.view(f"V{channels}")[..., 0]  # one item per pixel: NumPy is slow where the last axis is short
        if self.flip:
            # The positions use the high bits of a word; its lowest bit is still free.
            mirrored = (words[:, 0] & 1).astype(bool)
            pixels[mirrored] = pixels[mirrored][:, :, ::-1]
        if self.cutout:
            colour = np.full(channels, fill, np.uint8)
            pixels[self._holes(out.shape, words)] = colour.view(f"V{channels}")
        return out

    def _cropped(self, images: np.ndarray, words: np.ndarray) -> np.ndarray:
        n, h, w, c = images.shape
        p = self.crop
        padded = np.zeros((n, h + 2 * p, w + 2 * p, c), np.uint8)
        padded[:, p : p + h, p : p + w] = images
        # A row of pixels is contiguous, so one window is h runs of w*c bytes and nothing is gathered pixel by pixel.
        rows = padded.reshape(n, h + 2 * p, (w + 2 * p) * c)
        windows = np.lib.stride_tricks.sliding_window_view(rows, (h, w * c), axis=(1, 2))
        top, left = below(words[:, 0], 2 * p + 1), below(words[:, 1], 2 * p + 1)
        return windows[np.arange(n), top, left * c].reshape(n, h, w, c)

    def _holes(self, shape: tuple[int, ...], words: np.ndarray) -> np.ndarray:
        _, h, w, _ = shape
        covered = []
        for size, word in ((h, words[:, 2]), (w, words[:, 3])):
            first = below(word, size)[:, None] - self.cutout // 2
            position = np.arange(size)
            covered.append((first <= position) & (position < first + self.cutout))
        return covered[0][:, :, None] & covered[1][:, None, :]
