"""Mixup and CutMix: an image is joined with the one before it in the order of the epoch, and its target likewise.

The order is a function of (seed, epoch), and shares are functions of (seed, epoch, number of the image): neither the
size of batches nor workers nor a resumed run change them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated

import numpy as np

from alpha.core.inputs.kinds import Either, Nothing, Real, Share, Whole
from alpha.data.augmentations.base import Array, Augmentation, Draws, augmentation

Alpha = Annotated[float, Real("a number in (0, 100]", lambda v: 0 < v <= 100)]
Classes = Annotated["int | None", Either([Nothing(), Whole(1)], "pass {name}=10, say")]
POINTS = 4096       # of the distribution of shares
NO_BOX = (0, 0, 0, 0)


class Mixing(Augmentation):
    """Joins an image with another one."""

    mixes = True
    alpha: float
    p: float
    classes: int | None

    def shares(self, draws: Draws, hw: tuple[int, int]) -> tuple[Array, Array, Array]:
        """Returns the shares that stay of an image's target, of its pixels outside of a box and inside, and the boxes.

        Returns:
            shares of the target (B,), of pixels (B, 2), both float64; boxes (B, 4): top, left, bottom, right, int64.
        """
        raise NotImplementedError


@augmentation("mixup")
class Mixup(Mixing):
    """y = s * x + (1 - s) * other, for images and for targets.

    Args:
        alpha: s is drawn from the distribution Beta(alpha, alpha).
        p: probability that an image is mixed.
        classes: width of the targets; default: as many as the data set names, or its largest label says.
    Source: arXiv 1710.09412, with a share for each image.
    """

    alpha: Alpha = 0.2
    p: Share = 1.0
    classes: Classes = None

    def shares(self, draws: Draws, hw: tuple[int, int]) -> tuple[Array, Array, Array]:
        stays = np.where(draws.uniform(0) < self.p, beta(self.alpha, draws.uniform(1)), 1.0)
        return stays, np.stack([stays, stays], 1), np.zeros((len(draws), 4), np.int64)


@augmentation("cutmix")
class CutMix(Mixing):
    """A box of an image shows the other one; the target is shared as the area is.

    Args:
        alpha: the part outside of the box is drawn from the distribution Beta(alpha, alpha), before the part of the box
            outside of the image is cut off.
        p: probability that an image is mixed.
        classes: width of the targets; default: as many as the data set names, or its largest label says.
    Source: arXiv 1905.04899, with a box for each image.
    """

    alpha: Alpha = 1.0
    p: Share = 1.0
    classes: Classes = None

    def shares(self, draws: Draws, hw: tuple[int, int]) -> tuple[Array, Array, Array]:
        side = np.sqrt(1 - beta(self.alpha, draws.uniform(1)))
        ends = []
        for size, k in zip(hw, (2, 3)):
            middle, half = draws.below(k, size), (side * size * 0.5).astype(np.int64)
            ends += [np.clip(middle - half, 0, size), np.clip(middle + half, 0, size)]
        box = np.stack([ends[0], ends[2], ends[1], ends[3]], 1)
        box[draws.uniform(0) >= self.p] = NO_BOX
        area = (box[:, 2] - box[:, 0]) * (box[:, 3] - box[:, 1])
        return 1 - area / (hw[0] * hw[1]), np.tile([1.0, 0.0], (len(draws), 1)), box


def mixed_shares(steps: Sequence[Mixing], draws: Draws, hw: tuple[int, int]) -> tuple[Array, Array]:
    """Returns the shares of targets, and the table of ops.mix_images; of several mixings each image gets one.

    Args:
        draws: at the place behind all others.
    Returns:
        shapes (B,) and (B, 6), float32.
    """
    found = [step.shares(Draws(draws.seed, draws.epoch, draws.numbers, draws.place + 1 + k), hw)
             for k, step in enumerate(steps)]
    which, every = draws.below(0, len(steps)), np.arange(len(draws))
    stays, pixels, boxes = (np.stack(part)[which, every] for part in zip(*found))
    return stays.astype(np.float32), np.concatenate([pixels, boxes], 1).astype(np.float32)


def beta(alpha: float, u: Array) -> Array:
    """Returns the quantiles u of the distribution Beta(alpha, alpha): x where a share u of it is below x.  float64."""
    levels, places, power = _distribution(alpha)
    below = np.interp(np.minimum(u, 1 - u), levels, places) ** power
    return np.where(u < 0.5, below, 1 - below)


@lru_cache(16)
def _distribution(alpha: float) -> tuple[Array, Array, float]:
    """Returns shares of the lower half, 0 to 0.5, the t that they are below, and the power of t that is x.

    The density x^(alpha - 1) (1 - x)^(alpha - 1) has no bound at 0 for alpha below 1; the density of t = x^alpha has.
    """
    power = max(1.0, 1 / alpha)
    t = np.linspace(0, 0.5 ** (1 / power), POINTS)
    density = ((1 - t ** power) * (t if power == 1 else 1)) ** (alpha - 1)
    levels = np.concatenate([[0], np.cumsum(density[1:] + density[:-1])])
    return 0.5 * levels / levels[-1], t, power
