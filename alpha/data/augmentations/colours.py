"""Augmentations that change the colours of pixels, or paint over some, and leave them in their places."""

from __future__ import annotations

import math
from typing import Annotated, Any

import numpy as np

from alpha.core.inputs.kinds import Choice, Either, Many, Real, Share, Whole
from alpha.data.augmentations.base import Array, Augmentation, Draws, augmentation, refuse
from alpha.data.augmentations.steps import fraction, kept, rows_of
from alpha.ops.augment import MEAN, NOISE, ONE, Code

MOST_RADIUS = 13    # of a blur: its weights fit into a row
TRIES = 10          # for a box that fits into the image

_POSITIVE = Real("a number above 0 and up to 100", lambda v: 0 < v <= 100)
Strength = Annotated[float, Real("a number in [0, 10]", lambda v: 0 <= v <= 10)]
HueShift = Annotated[float, Real("a number in [0, 0.5]", lambda v: 0 <= v <= 0.5)]
Shares = Annotated["tuple[float, float]", Many(Real("", lambda v: 0 < v <= 1), 2, "a pair of numbers in (0, 1]",
                                               "pass {name}=(0.02, 0.33), say")]
Ratios = Annotated["tuple[float, float]", Many(_POSITIVE, 2, "a pair of numbers above 0 and up to 100",
                                               "pass {name}=(0.75, 1.33), say")]
Paint = Annotated[Any, Either([Choice("mean", "noise"), Whole(0, high=255)],
                              'pass {name}="mean", {name}="noise", or a value from 0 to 255')]
Level = Annotated[int, Whole(0, high=256)]
Bits = Annotated[int, Whole(0, high=8)]
KernelSize = Annotated[int, Whole(1, high=2 * MOST_RADIUS + 1)]


def check_order(name: str, setting: str, pair: tuple[float, float]) -> None:
    """Raises ConfigError for a range whose ends are the wrong way round."""
    if pair[0] > pair[1]:
        raise refuse(name, f"{setting}={pair} begins above its end", f"write {setting}=({pair[1]:g},{pair[0]:g})")


def boxes(draws: Draws, first: int, hw: tuple[int, int], scale: tuple[float, float], ratio: tuple[float, float],
          smaller: bool) -> tuple[Array, Array]:
    """Returns a box in each image, and whether one was found: the first of ten draws that fits.

    Args:
        first: word from which on words are drawn, four for each try.
        scale: of its area, shares of the image's.
        ratio: of its width by its height, drawn evenly in the logarithm.
        smaller: whether it must be smaller than the image on both axes.
    Returns:
        shape (B, 4): top, left, height, width, int64; shape (B,), bool.
    """
    h, w = hw
    box, found = np.zeros((len(draws), 4), np.int64), np.zeros(len(draws), bool)
    for k in range(first, first + 4 * TRIES, 4):
        if found.all():
            break
        area = h * w * draws.uniform(k, *scale)
        shape = np.exp(draws.uniform(k + 1, math.log(ratio[0]), math.log(ratio[1])))
        height, width = (np.rint(np.sqrt(a)).astype(np.int64) for a in (area / shape, area * shape))
        fits = ((height < h) & (width < w) if smaller else (height <= h) & (width <= w)) & (height > 0) & (width > 0)
        top, left = (((draws.words(word).astype(np.uint64) * np.maximum(room, 1).astype(np.uint64)) >> np.uint64(32)
                      ).astype(np.int64) for word, room in ((k + 2, h - height + 1), (k + 3, w - width + 1)))
        new = fits & ~found
        box[new] = np.stack([top, left, height, width], 1)[new]
        found |= new
    return box, found


class Chance(Augmentation):
    """Something that is done to a share `p` of the images."""

    p: float

    def one(self, count: int) -> Array:
        """Returns the row of an image for all of them."""
        raise NotImplementedError

    def rows(self, draws: Draws, hw: tuple[int, int]) -> Array:
        return kept(self.one(len(draws)), draws.uniform(0) < self.p)


@augmentation("grey")
class Grey(Chance):
    """All three channels show the grey 0.299 r + 0.587 g + 0.114 b.  p: probability."""

    colours = True
    p: Share = 0.1

    def one(self, count: int) -> Array:
        return rows_of(Code.GREY, count=count)


@augmentation("invert")
class Invert(Chance):
    """255 - x.  p: probability."""

    p: Share = 0.5

    def one(self, count: int) -> Array:
        return rows_of(Code.INVERT, count=count)


@augmentation("equalize")
class Equalize(Chance):
    """Levels are spread so that each channel has about as many pixels of each.  p: probability."""

    p: Share = 0.5

    def one(self, count: int) -> Array:
        return rows_of(Code.EQUALIZE, count=count)


@augmentation("autocontrast")
class AutoContrast(Chance):
    """The darkest level of each channel becomes 0, the brightest 255.  p: probability."""

    p: Share = 0.5

    def one(self, count: int) -> Array:
        return rows_of(Code.AUTOCONTRAST, count=count)


@augmentation("posterize")
class Posterize(Chance):
    """The upper `bits` of a pixel stay, the others become 0.  bits: from 0 to 8; p: probability."""

    bits: Bits = 4
    p: Share = 0.5

    def one(self, count: int) -> Array:
        return rows_of(Code.POSTERIZE, 256 - (1 << (8 - self.bits)), count=count)


@augmentation("solarize")
class Solarize(Chance):
    """255 - x where x is at least `threshold`, from 0 to 256.  p: probability."""

    threshold: Level = 128
    p: Share = 0.5

    def one(self, count: int) -> Array:
        return rows_of(Code.SOLARIZE, self.threshold, count=count)


@augmentation("sharpness")
class Sharpness(Chance):
    """factor * x + (1 - factor) * smooth, smooth the mean of 3x3 pixels with weight 5 in the middle; no border.

    Args:
        factor: 0 is smooth, 1 the image, above 1 sharper; in [0, 10].
        p: probability.
    """

    factor: Strength = 2.0
    p: Share = 0.5

    def one(self, count: int) -> Array:
        return rows_of(Code.SHARPNESS, fraction(self.factor), count=count)


@augmentation("jitter")
class Jitter(Augmentation):
    """Brightness, contrast, saturation and hue change, in an order of their own for each image.

    Args:
        brightness, contrast, saturation: the factor is drawn from [max(0, 1 - value), 1 + value]; 0 is off.
        hue: the turn, a share of the circle, is drawn from [-hue, hue]; 0 is off.
        p: probability.
    Source: ColorJitter of torchvision.
    """

    colours = True
    brightness: Strength = 0.4
    contrast: Strength = 0.4
    saturation: Strength = 0.4
    hue: HueShift = 0.1
    p: Share = 1.0

    def __post_init__(self) -> None:
        if not (self.brightness or self.contrast or self.saturation or self.hue):
            raise refuse("jitter", "brightness, contrast, saturation and hue are all 0: nothing changes",
                         "give one of them, or leave jitter out")

    def rows(self, draws: Draws, hw: tuple[int, int]) -> Array:
        found = [rows_of(code, fraction(draws.uniform(k, max(0.0, 1 - value), 1 + value))) for k, code, value in (
            (1, Code.BRIGHTNESS, self.brightness), (2, Code.CONTRAST, self.contrast),
            (3, Code.SATURATION, self.saturation)) if value]
        if self.hue:
            found.append(rows_of(Code.HUE, fraction(draws.uniform(4, -self.hue, self.hue))))
        order = np.argsort(np.stack([draws.words(5 + k) for k in range(len(found))], 1), axis=1, kind="stable")
        rows = np.take_along_axis(np.concatenate(found, 1), order[:, :, None], 1)
        return kept(rows, draws.uniform(0) < self.p)


@augmentation("blur")
class Blur(Augmentation):
    """Gaussian blur; beyond its border the image is mirrored.

    Args:
        sigma: from which the deviation is drawn, in pixels.
        kernel_size: pixels of the window, odd, from 3 to 27.
        p: probability.
    """

    sigma: Ratios = (0.1, 2.0)
    kernel_size: KernelSize = 5
    p: Share = 0.5

    def __post_init__(self) -> None:
        check_order("blur", "sigma", self.sigma)
        if self.kernel_size % 2 == 0 or self.kernel_size < 3:
            raise refuse("blur", f"kernel_size={self.kernel_size} has no middle, or no pixels around it",
                         "pass an odd number from 3 to 27")

    def rows(self, draws: Draws, hw: tuple[int, int]) -> Array:
        return kept(blurs(draws.uniform(1, *self.sigma), self.kernel_size // 2), draws.uniform(0) < self.p)


def blurs(sigma: Array, radius: int) -> Array:
    """Returns rows of BLUR.  sigma: of each image, shape (B,), float64."""
    shape = np.exp(-0.5 * (np.arange(radius + 1) / sigma[:, None]) ** 2)
    weights = fraction(shape / (2 * shape.sum(1, keepdims=True) - 1))
    weights[:, 0] = ONE - 2 * weights[:, 1:].sum(1)     # the rest of rounding goes to the middle
    return rows_of(Code.BLUR, radius, *weights.T)


@augmentation("erasing")
class Erasing(Augmentation):
    """A box is painted over.

    Args:
        p: probability.
        scale: from which its share of the image's area is drawn.
        ratio: from which width by height is drawn.
        value: "mean", the mean colour, which is 0 once normalised; "noise", random bytes; or a value from 0 to 255.
    Source: arXiv 1708.04896.
    """

    p: Share = 0.5
    scale: Shares = (0.02, 0.33)
    ratio: Ratios = (0.3, 3.3)
    value: Paint = "mean"

    def __post_init__(self) -> None:
        check_order("erasing", "scale", self.scale)
        check_order("erasing", "ratio", self.ratio)

    def rows(self, draws: Draws, hw: tuple[int, int]) -> Array:
        box, found = boxes(draws, 4, hw, self.scale, self.ratio, smaller=True)
        top, left, height, width = box.T
        fill = fill_of(self.value)
        rows = rows_of(Code.ERASE, top, left, top + height, left + width, fill, draws.words(1).view(np.int32))
        return kept(rows, found & (draws.uniform(0) < self.p))


def fill_of(value: Any) -> int:
    """Returns the number in a row for a fill value."""
    return {"mean": MEAN, "noise": NOISE}.get(value, value)  # type: ignore[no-any-return]
