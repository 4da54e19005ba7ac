"""Batches of images for training: taken by index from 8-bit images, augmented at random, normalised, in one pass."""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from alpha.core.errors import DTypeError, ShapeError, message
from alpha.core.inputs.kinds import Seed, Size
from alpha.core.op import Spec, op
from alpha.core.table import public
from alpha.random import STREAMS, philox

WORDS_PER_IMAGE = 4     # one block of Philox: crop row and mirror, crop column, cutout row, cutout column
STEP_WIDTH = 16         # numbers of a row of transform_images
LARGEST_EDGE = 4096     # pixels of an image that transform_images takes: fractions of 16 bits fit beside them
EPOCH_BLOCKS = 1 << 38  # blocks from one epoch to the next, so that epochs never overlap


ONE = 1 << 16           # of 16 bits of fraction, in rows
BILINEAR, CLAMPED = 1, 2    # flags of a row of MOVE
MEAN, NOISE = -1, -2    # what is filled with, in place of a value from 0 to 255


class Code(IntEnum):
    """The first number of a row of transform_images; behind each the numbers that follow.

    Factors and shares have 16 bits of fraction.
    """

    KEEP = 0            # nothing
    MOVE = 1            # a, b, c, d, e, f, flags, fill, left, top, right, bottom: see `source`
    BRIGHTNESS = 2      # factor
    CONTRAST = 3        # factor
    SATURATION = 4      # factor
    HUE = 5             # share of the circle
    GREY = 6
    POSTERIZE = 7       # a mask of the bits that stay
    SOLARIZE = 8        # threshold
    INVERT = 9
    EQUALIZE = 10
    AUTOCONTRAST = 11
    SHARPNESS = 12      # factor
    BLUR = 13           # radius, weights
    ERASE = 14          # top, left, bottom, right, fill, word of the noise


def source(row: np.ndarray, hw: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Returns where the pixels of a MOVE come from: (d * column + e * row + f, a * column + b * row + c).

    Args:
        row: shape (STEP_WIDTH,), int64.
        hw: height and width of the image.
    Returns:
        down and across, of shape (H, W), int64, with 16 bits of fraction; within the box if the row is CLAMPED.
    """
    line, column = np.mgrid[:hw[0], :hw[1]]
    across, down = row[1] * column + row[2] * line + row[3], row[4] * column + row[5] * line + row[6]
    if row[7] & CLAMPED:
        across = np.clip(across, row[9] * ONE, (row[11] - 1) * ONE)
        down = np.clip(down, row[10] * ONE, (row[12] - 1) * ONE)
    return down, across


def nearest(row: np.ndarray, hw: tuple[int, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the pixel that is nearest to where each comes from: line, column, and whether it is in the box.

    Shapes (H, W); what is not in the box has line and column 0.
    """
    down, across = ((a + ONE // 2) >> 16 for a in source(row, hw))
    seen = (row[9] <= across) & (across < row[11]) & (row[10] <= down) & (down < row[12])
    return np.where(seen, down, 0), np.where(seen, across, 0), seen


def words_of(seed: int, epoch: int, key: np.ndarray) -> np.ndarray:
    """Returns the random words of the images that have these numbers.  Shape (len(key), WORDS_PER_IMAGE), uint32."""
    return philox(key.astype(np.uint64) + np.uint64(epoch * EPOCH_BLOCKS), STREAMS["augment"], seed)


def below(words: np.ndarray, limit: int) -> np.ndarray:
    """Maps uint32 words to integers 0 <= k < limit, uniform to within limit / 2**32."""
    return ((words.astype(np.uint64) * np.uint64(limit)) >> np.uint64(32)).astype(np.int64)


@public()
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


@public()
@op
class transform_images:
    """Takes images by index and does steps to each: moved, recoloured, blurred, erased, as its rows say.

        y[b] = step(... step(images[index[b]], rows[b, 0]) ..., rows[b, S - 1])

    A row has the code of a step and its numbers; alpha/data/augmentations/steps.py makes rows, and
    alpha/cpu/augment/steps.py has the equations. All arithmetic is of integers, with the same bits on each device.
    Args:
        images: shape (M, H, W, C), NHWC; uint8.
        index: which of them, 0 to M - 1.  Shape (B,); int64.
        rows: steps of each image.  Shape (B, S, 16); int32.
        mean: of each channel, in units of 255: the colour of steps that fill with it.  Shape (C,); float32.
    Returns:
        y of shape (B, H, W, C), uint8.  On the GPU an index that is out of range yields a black image.
    Raises:
        ShapeError: a shape does not fit, an edge is longer than 4096, or, on the CPU, an index is out of range.
        DTypeError: an argument is of another dtype.
    """

    args, mixed = "images index rows mean", "images index rows mean"

    def shape(images, index, rows, mean):
        for name, t, dtype in (("images", images, "uint8"), ("index", index, "int64"), ("rows", rows, "int32"),
                               ("mean", mean, "float32")):
            if t.dtype != dtype:
                raise DTypeError(message("transform_images", f"{name} has dtype {t.dtype}, {dtype} is needed",
                                         f'convert it: {name}.astype("{dtype}")'))
        if (images.ndim != 4 or index.ndim != 1 or mean.shape != images.shape[3:] or rows.ndim != 3
                or rows.shape[0] != index.shape[0] or rows.shape[2] != STEP_WIDTH):
            raise ShapeError(message(
                "transform_images", "the shapes do not fit; images (M, H, W, C), index (B,), rows (B, S, 16), mean (C,)"
                " are needed", "give images in NHWC, and rows for each image taken", images=images.shape,
                index=index.shape, rows=rows.shape, mean=mean.shape))
        if max(images.shape[1:3]) > LARGEST_EDGE:
            raise ShapeError(message("transform_images", f"images are {images.shape[1]} x {images.shape[2]} pixels, "
                                     f"{LARGEST_EDGE} are the most of an edge", "scale them down before"))
        return Spec((index.shape[0], *images.shape[1:]), "uint8")


@public()
@op
class mix_images:
    """Joins each image with the one before it, with other shares inside of a box than outside.

        y[b] = s * x[b + 1] + (1 - s) * x[b],   s = inside where top <= row < bottom and left <= column < right

    Both products and their sum are rounded by themselves; where s is 1 or 0, y has the bits of one of the images.
    Args:
        x: images, of which the first is joined to the second alone.  Shape (B + 1, H, W, C), NHWC; float32.
        table: outside, inside, top, left, bottom, right of each y: the shares s, and the box.  Shape (B, 6); float32.
    Returns:
        y of shape (B, H, W, C), float32.
    Raises:
        ShapeError: a shape does not fit.
        DTypeError: x or table is of another dtype.
    Source: mixup of arXiv 1710.09412 and CutMix of arXiv 1905.04899.
    """

    args, mixed = "x table", "x table"

    def shape(x, table):
        for name, t in (("x", x), ("table", table)):
            if t.dtype != "float32":
                raise DTypeError(message("mix_images", f"{name} has dtype {t.dtype}, float32 is needed",
                                         f'convert it: {name}.astype("float32")'))
        if x.ndim != 4 or not len(x.shape) or table.shape != (x.shape[0] - 1, 6):
            raise ShapeError(message("mix_images", f"x has shape {x.shape}, table {table.shape}; (B + 1, H, W, C) and "
                                     "(B, 6) are needed", "give one image more than there are rows"))
        return Spec((x.shape[0] - 1, *x.shape[1:]), "float32")
