"""Batches of images for training: taken by index from 8-bit images, augmented at random, normalised, in one pass."""

from __future__ import annotations

import numpy as np

from alpha.core.errors import DTypeError, ShapeError, message
from alpha.core.inputs.kinds import Seed, Size
from alpha.core.op import Spec, op
from alpha.random import STREAMS, philox

WORDS_PER_IMAGE = 4     # one block of Philox: crop row and mirror, crop column, cutout row, cutout column
EPOCH_BLOCKS = 1 << 38  # blocks from one epoch to the next, so that epochs never overlap


def words_of(seed: int, epoch: int, key: np.ndarray) -> np.ndarray:
    """Returns the random words of the images that have these numbers.  Shape (len(key), WORDS_PER_IMAGE), uint32."""
    return philox(key.astype(np.uint64) + np.uint64(epoch * EPOCH_BLOCKS), STREAMS["augment"], seed)


def below(words: np.ndarray, limit: int) -> np.ndarray:
    """Maps uint32 words to integers 0 <= k < limit, uniform to within limit / 2**32."""
    return ((words.astype(np.uint64) * np.uint64(limit)) >> np.uint64(32)).astype(np.int64)


@op
class augment_images:
    """Takes images by index, crops, mirrors and cuts them out at random, and normalises them.

        y[b] = (augmented(images[index[b]]) / 255 - mean) / std

    An image depends on (seed, epoch, key[b]) alone, whatever batch it is in: block epoch * EPOCH_BLOCKS + key[b] of
    the stream "augment" has its four words, and word * limit / 2^32 is a choice below limit.  In this order:
        crop:   pad with `crop` black pixels on each side, and cut H x W out at row and column below 2 * crop + 1
        flip:   mirror left to right if the lowest bit of the first word is set
        cutout: paint the square of `cutout` pixels, less where it sticks out, around a pixel in the mean colour
    Args:
        images: shape (M, H, W, C), NHWC; uint8.
        index: which of them, 0 to M - 1.  Shape (B,); int64.
        mean, std: of each channel, in units of 255.  Shape (C,); float32.
        key: numbers of the images in the data set, where `images` is a part of it; default index.  Shape (B,); int64.
        seed, epoch: see above.
        crop, flip, cutout: see above; 0 or False is off.
    Returns:
        y of shape (B, H, W, C), float32.  On the GPU an index that is out of range, or a std that is not above 0,
        yields NaN.
    Raises:
        ShapeError: a shape does not fit, or, on the CPU, an index is out of range.
        DTypeError: images, index, mean or std is of another dtype.
        ConfigError: crop or cutout is below 0, or, on the CPU, a std is not above 0.
    Source: crop and flip of arXiv 1512.03385, section 4.2; cutout of arXiv 1708.04552, in the mean colour.
    """

    args, mixed = "images index mean std key?", "images index key"

    def shape(images, index, mean, std, key, *, seed: Seed = 0, epoch: Size = 0, crop: Size = 0, flip: bool = False,
              cutout: Size = 0):
        for name, t, dtype in (("images", images, "uint8"), ("index", index, "int64"), ("mean", mean, "float32"),
                               ("std", std, "float32"), ("key", key, "int64")):
            if t is not None and t.dtype != dtype:
                raise DTypeError(message("augment_images", f"{name} has dtype {t.dtype}, {dtype} is needed",
                                         f'convert it: {name}.astype("{dtype}")'))
        if images.ndim != 4 or index.ndim != 1 or not mean.shape == std.shape == images.shape[3:]:
            raise ShapeError(message(
                "augment_images", "the shapes do not fit; images (M, H, W, C), index (B,), mean, std (C,) are needed",
                "give images in NHWC, and one mean and one std per channel", images=images.shape, index=index.shape,
                mean=mean.shape, std=std.shape))
        if key is not None and key.shape != index.shape:
            raise ShapeError(message("augment_images", f"key has shape {key.shape}, index has {index.shape}",
                                     "give one number per image taken"))
        return Spec((index.shape[0], *images.shape[1:]), "float32")
