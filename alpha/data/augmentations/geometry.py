"""Augmentations that move pixels: masks and boxes are moved along."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np

from alpha.core.inputs.kinds import Choice, Either, Real, Share, Whole
from alpha.data.augmentations.base import Array, Augmentation, Draws, augmentation
from alpha.data.augmentations.colours import Ratios, Shares, boxes, check_order, fill_of
from alpha.data.augmentations.steps import about_the_middle, inverse, kept, moves

Degrees = Annotated[float, Real("a number in [0, 180]", lambda v: 0 <= v <= 180)]
Shear = Annotated[float, Real("a number in [0, 80]", lambda v: 0 <= v <= 80)]
Outside = Annotated[Any, Either([Choice("mean"), Whole(0, high=255)], 'pass {name}="mean", or a value from 0 to 255')]


def affine_maps(angle: Array, shift: tuple[Array, Array], scale: Array, shear: tuple[Array, Array],
                hw: tuple[int, int]) -> Array:
    """Returns where pixels of the output come from, for maps about the middle of the image.  Shape (B, 6), float64.

    The image is sheared, turned clockwise by `angle`, scaled and moved, in this order.
    Args:
        angle, shear: in degrees; shear of x along y, and of y along x.
        shift: to the right, and down, in pixels.
    """
    turn, along_x, along_y = (np.deg2rad(a) for a in (angle, *shear))
    # The product of R(turn) * scale, of a shear of y and one of x: as torchvision's affine.
    a = np.cos(turn - along_y) / np.cos(along_y)
    b = -a * np.tan(along_x) - np.sin(turn)
    d = np.sin(turn - along_y) / np.cos(along_y)
    e = -d * np.tan(along_x) + np.cos(turn)
    nothing = np.zeros_like(a)
    forward = np.stack([scale * a, scale * b, nothing, scale * d, scale * e, nothing], 1)
    forward = about_the_middle(forward, hw)
    forward[:, 2] += shift[0]
    forward[:, 5] += shift[1]
    return inverse(forward)


@augmentation("affine")
class Affine(Augmentation):
    """The image is turned, moved, scaled and sheared about its middle.

    Args:
        degrees: the angle is drawn from [-degrees, degrees].
        translate: largest shift on each axis, a share of the image's edge.
        scale: from which the factor is drawn.
        shear: the shear along each axis is drawn from [-shear, shear], in degrees.
        bilinear: whether values between pixels are interpolated; else the nearest is taken.
        fill: the value of pixels outside: "mean", or a value from 0 to 255.
        p: probability.
    Source: RandomAffine of torchvision.
    """

    moves = opens = True
    degrees: Degrees = 15.0
    translate: Share = 0.1
    scale: Ratios = (0.9, 1.1)
    shear: Shear = 0.0
    bilinear: bool = True
    fill: Outside = 0
    p: Share = 1.0

    def __post_init__(self) -> None:
        check_order("affine", "scale", self.scale)

    def rows(self, draws: Draws, hw: tuple[int, int]) -> Array:
        across, down = (np.rint(draws.uniform(k, -1, 1) * self.translate * size)
                        for k, size in ((2, hw[1]), (3, hw[0])))
        maps = affine_maps(draws.uniform(1, -self.degrees, self.degrees), (across, down),
                           draws.uniform(4, *self.scale), (draws.uniform(5, -self.shear, self.shear),
                                                           draws.uniform(6, -self.shear, self.shear)), hw)
        return kept(moves(maps, hw, bilinear=self.bilinear, fill=fill_of(self.fill)), draws.uniform(0) < self.p)


@augmentation("rotation")
class Rotation(Augmentation):
    """The image is turned about its middle.

    Args:
        degrees: the angle is drawn from [-degrees, degrees].
        bilinear, fill, p: as of affine.
    """

    moves = opens = True
    degrees: Degrees = 15.0
    bilinear: bool = True
    fill: Outside = 0
    p: Share = 1.0

    def rows(self, draws: Draws, hw: tuple[int, int]) -> Array:
        nothing, one = np.zeros(len(draws)), np.ones(len(draws))
        maps = affine_maps(draws.uniform(1, -self.degrees, self.degrees), (nothing, nothing), one, (nothing, nothing),
                           hw)
        return kept(moves(maps, hw, bilinear=self.bilinear, fill=fill_of(self.fill)), draws.uniform(0) < self.p)


@augmentation("resizedcrop")
class ResizedCrop(Augmentation):
    """A box of the image is scaled to the size of the image, with linear interpolation.

    Where ten draws give no box that fits, the largest in the middle whose ratio is allowed is taken.
    Args:
        scale: from which its share of the image's area is drawn.
        ratio: from which width by height is drawn.
        p: probability.
    Source: RandomResizedCrop of torchvision, without its filter before images are made smaller, which a box of the
        image of the same size never is.
    """

    moves = True
    scale: Shares = (0.08, 1.0)
    ratio: Ratios = (0.75, 1.3333)
    p: Share = 1.0

    def __post_init__(self) -> None:
        check_order("resizedcrop", "scale", self.scale)
        check_order("resizedcrop", "ratio", self.ratio)

    def rows(self, draws: Draws, hw: tuple[int, int]) -> Array:
        box, found = boxes(draws, 4, hw, self.scale, self.ratio, smaller=False)
        box[~found] = _middle(hw, self.ratio)
        return kept(crops(box, hw), draws.uniform(0) < self.p)


def crops(box: Array, hw: tuple[int, int]) -> Array:
    """Returns rows that show a box of each image (top, left, height, width) in the size of the image."""
    top, left, height, width = box.T
    down, across, nothing = height / hw[0], width / hw[1], np.zeros(len(box))
    maps = np.stack([across, nothing, left + across / 2 - 0.5, nothing, down, top + down / 2 - 0.5], 1)
    return moves(maps, hw, bilinear=True, box=np.stack([left, top, left + width, top + height], 1))


def _middle(hw: tuple[int, int], ratio: tuple[float, float]) -> tuple[int, int, int, int]:
    h, w = hw
    if w / h < ratio[0]:
        height, width = max(1, round(w / ratio[0])), w
    elif w / h > ratio[1]:
        height, width = h, max(1, round(h * ratio[1]))
    else:
        height, width = h, w
    return (h - height) // 2, (w - width) // 2, height, width
