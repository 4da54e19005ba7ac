"""RandAugment, TrivialAugment and AutoAugment's policy for CIFAR: operations that are drawn for each image."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from alpha.core.inputs.kinds import Share, Whole
from alpha.data.augmentations.base import Array, Augmentation, Draws, augmentation
from alpha.data.augmentations.geometry import Outside, fill_of
from alpha.data.augmentations.steps import fraction, inverse, moves, rows_of
from alpha.ops.augment import Code

Magnitude = Annotated[int, Whole(0, high=30)]
Operations = Annotated[int, Whole(1, high=8)]

NAMES = ("identity", "shear_x", "shear_y", "translate_x", "translate_y", "rotate", "brightness", "colour", "contrast",
         "sharpness", "posterize", "solarize", "autocontrast", "equalize", "invert")
(IDENTITY, SHEAR_X, SHEAR_Y, TRANSLATE_X, TRANSLATE_Y, ROTATE, BRIGHTNESS, COLOUR, CONTRAST, SHARPNESS, POSTERIZE,
 SOLARIZE, AUTOCONTRAST, EQUALIZE, INVERT) = range(len(NAMES))
CODES = np.array([Code.KEEP, *[Code.MOVE] * 5, Code.BRIGHTNESS, Code.SATURATION, Code.CONTRAST, Code.SHARPNESS,
                  Code.POSTERIZE, Code.SOLARIZE, Code.AUTOCONTRAST, Code.EQUALIZE, Code.INVERT])
SIGNED = np.isin(np.arange(len(NAMES)), range(SHEAR_X, POSTERIZE))     # whose magnitude may be turned round
BINS = 31       # of magnitudes, from 0 to 30
# Of AutoAugment: two operations with their probabilities and magnitudes, 0 to 9, for each of 25 choices.
CIFAR = tuple(tuple((NAMES.index(name), float(p), int(m)) for name, p, m in (part.split() for part in line.split(", ")))
              for line in """
    invert .1 0, contrast .2 6; rotate .7 2, translate_x .3 9; sharpness .8 1, sharpness .9 3;
    shear_y .5 8, translate_y .7 9; autocontrast .5 0, equalize .9 0; shear_y .2 7, posterize .3 7;
    colour .4 3, brightness .6 7; sharpness .3 9, brightness .7 9; equalize .6 0, equalize .5 0;
    contrast .6 7, sharpness .6 5; colour .7 7, translate_x .5 8; equalize .3 0, autocontrast .4 0;
    translate_y .4 3, sharpness .2 6; brightness .9 6, colour .2 8; solarize .5 2, invert .0 0;
    equalize .2 0, autocontrast .6 0; equalize .2 0, equalize .6 0; colour .9 9, equalize .6 0;
    autocontrast .8 0, solarize .2 8; brightness .1 3, colour .7 0; solarize .4 5, autocontrast .9 0;
    translate_y .9 9, translate_y .7 9; autocontrast .9 0, solarize .8 3; equalize .8 0, invert .1 0;
    translate_y .7 9, autocontrast .9 0""".replace("\n", " ").split(";"))


def operation_rows(which: Array, magnitude: Array, hw: tuple[int, int], fill: int) -> Array:
    """Returns the row of an operation for each image.  Shape (B, 1, STEP_WIDTH), int32.

    Args:
        which: number of the operation in NAMES.  Shape (B,).
        magnitude: of shears the tangent, of shifts pixels, of turns degrees against the clock, of factors the number
            added to 1, bits that stay, or the threshold.  Shape (B,), float64.
    """
    moved = (which >= SHEAR_X) & (which <= ROTATE)
    value = np.where(which == POSTERIZE, 256 - (1 << (8 - np.clip(magnitude, 0, 8).astype(np.int64))),
                     np.where(which == SOLARIZE, np.ceil(magnitude), fraction(1 + magnitude)))
    rows = rows_of(np.where(moved, Code.KEEP, CODES[which]), value)
    if moved.any():
        rows[moved] = moves(_maps(which[moved], magnitude[moved], hw), hw, bilinear=False, fill=fill)
    return rows


def _maps(which: Array, magnitude: Array, hw: tuple[int, int]) -> Array:
    """Returns where pixels come from: shears are about the upper left corner, turns about the middle."""
    turn = np.deg2rad(np.where(which == ROTATE, -magnitude, 0.0))
    x, y = (size / 2 for size in hw[::-1])
    shear_x, shear_y, right, down = (np.where(which == k, magnitude, 0.0)
                                     for k in (SHEAR_X, SHEAR_Y, TRANSLATE_X, TRANSLATE_Y))
    cos, sin = np.cos(turn), np.sin(turn)
    # With the corner at 0, pixels have their middles at 0.5, 1.5, ...
    forward = np.stack([cos, -sin - shear_x, x - cos * x + sin * y + np.trunc(right),
                        sin - shear_y, cos, y - sin * x - cos * y + np.trunc(down)], 1)
    back = inverse(forward)
    back[:, 2] += 0.5 * (back[:, 0] + back[:, 1] - 1)
    back[:, 5] += 0.5 * (back[:, 3] + back[:, 4] - 1)
    return back


def magnitudes(which: Array, level: Array, hw: tuple[int, int], *, wide: bool) -> Array:
    """Returns how much of an operation a level from 0 to 1 is, without a sign.  Shape (B,), float64.

    Args:
        wide: whether the ranges are TrivialAugment's; else RandAugment's and AutoAugment's.
    """
    most = np.zeros(len(NAMES))
    most[[SHEAR_X, SHEAR_Y]] = 0.99 if wide else 0.3
    most[[TRANSLATE_X, TRANSLATE_Y]] = 32 if wide else (150 / 331 * hw[1], 150 / 331 * hw[0])
    most[ROTATE] = 135 if wide else 30
    most[[BRIGHTNESS, COLOUR, CONTRAST, SHARPNESS]] = 0.99 if wide else 0.9
    found = level * most[which]
    found = np.where(which == POSTERIZE, 8 - np.rint(level * (6 if wide else 4)), found)
    return np.where(which == SOLARIZE, 255 * (1 - level), found)


def turned_round(which: Array, magnitude: Array, words: Array) -> Array:
    """Returns magnitudes; of signed operations they are below 0 for half of the words."""
    return np.where(SIGNED[which] & (words >> np.uint32(31)).astype(bool), -magnitude, magnitude)


@augmentation("randaugment")
class RandAugment(Augmentation):
    """`n` operations of fourteen, one after the other, of one magnitude.

    Args:
        n: operations.
        m: magnitude, from 0 to 30.
        fill: the value of pixels outside of a moved image: "mean", or a value from 0 to 255.
        p: probability that an image is changed.
    Source: arXiv 1909.13719, with the ranges of torchvision.
    """

    moves = opens = colours = True
    n: Operations = 2
    m: Magnitude = 9
    fill: Outside = 0
    p: Share = 1.0

    def rows(self, draws: Draws, hw: tuple[int, int]) -> Array:
        found, level = [], np.full(len(draws), self.m / (BINS - 1))
        for k in range(self.n):
            which = draws.below(1 + 2 * k, INVERT)
            amount = turned_round(which, magnitudes(which, level, hw, wide=False), draws.words(2 + 2 * k))
            found.append(operation_rows(which, amount, hw, fill_of(self.fill)))
        return chosen(np.concatenate(found, 1), draws, self.p)


@augmentation("trivialaugment")
class TrivialAugment(Augmentation):
    """One operation of fourteen, with a magnitude that is drawn, too: TrivialAugmentWide.

    Args:
        fill, p: as of randaugment.
    Source: arXiv 2103.10158.
    """

    moves = opens = colours = True
    fill: Outside = 0
    p: Share = 1.0

    def rows(self, draws: Draws, hw: tuple[int, int]) -> Array:
        which, level = draws.below(1, INVERT), draws.below(2, BINS) / (BINS - 1)
        amount = turned_round(which, magnitudes(which, level, hw, wide=True), draws.words(3))
        return chosen(operation_rows(which, amount, hw, fill_of(self.fill)), draws, self.p)


@augmentation("autoaugment")
class AutoAugment(Augmentation):
    """Two operations, of one of the 25 pairs that were found for CIFAR-10, each with its probability.

    Args:
        fill, p: as of randaugment.
    Source: arXiv 1805.09501, with the ranges of torchvision.
    """

    moves = opens = colours = True
    fill: Outside = 0
    p: Share = 1.0

    def rows(self, draws: Draws, hw: tuple[int, int]) -> Array:
        pair, found = np.array(CIFAR)[draws.below(1, len(CIFAR))], []
        for k in range(2):
            which, p, level = pair[:, k, 0].astype(np.int64), pair[:, k, 1], pair[:, k, 2] / 9
            amount = turned_round(which, magnitudes(which, level, hw, wide=False), draws.words(2 + k))
            rows = operation_rows(which, amount, hw, fill_of(self.fill))
            rows[draws.uniform(4 + k) >= p, :, 0] = Code.KEEP
            found.append(rows)
        return chosen(np.concatenate(found, 1), draws, self.p)


def chosen(rows: Array, draws: Draws, p: float) -> Array:
    """Returns rows that do something to a share p of the images."""
    if p < 1:
        rows[draws.uniform(0) >= p, :, 0] = Code.KEEP
    return rows
