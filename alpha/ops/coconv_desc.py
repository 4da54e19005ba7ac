"""Contextual convolution as a list of convolutions: no geometry of its own.

Output channels are split into levels. Level l is a convolution of the same input with dilation d_l and padding
d_l (F - 1) / 2, F odd, so that every level has OH = floor((IH - 1) / stride) + 1 rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate
from math import prod

from alpha.core.errors import ShapeError, message
from alpha.ops.conv_desc import ConvDesc, Pair, Shape, bad_groups, check_gradient, check_rank, describe

# Shares of the output channels by number of levels, in eighths (Duta et al., arXiv 2108.07387).
SPLITS = {1: (8,), 2: (4, 4), 3: (4, 2, 2), 4: (2, 2, 2, 2), 5: (2, 2, 2, 1, 1)}


@dataclass(frozen=True)
class CoConvDesc:
    """A contextual convolution, whichever of its three tensors is asked for.

    Attributes:
        levels: (first output channel, convolution) of each level, in the order of the channels.
    """

    levels: tuple[tuple[int, ConvDesc], ...]

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(self.levels)

    @property
    def brief(self) -> str:
        """What it is, in a line."""
        return "; ".join(f"from channel {first}: {level.brief}" for first, level in self.levels)

    @cached_property
    def x_shape(self) -> Shape:
        return self.levels[0][1].x_shape

    @cached_property
    def w_shape(self) -> Shape:
        first, last = self.levels[-1]
        return first + last.oc, *last.w_shape[1:]

    @cached_property
    def y_shape(self) -> Shape:
        first, last = self.levels[-1]
        return *last.y_shape[:3], first + last.oc

    @property
    def nominal_flops(self) -> int:
        """FLOPs of each pass where padded zeros are multiplied too."""
        return sum(level.nominal_flops for _, level in self.levels)

    @property
    def useful_flops(self) -> int:
        """FLOPs of each pass without any product with a padded or inserted zero; the same for all three."""
        return sum(level.useful_flops for _, level in self.levels)

    def nbytes(self, itemsize: int = 4) -> int:
        """Bytes of x, w and y together, x once: the least that a pass must move."""
        again = (len(self.levels) - 1) * itemsize * prod(self.x_shape)
        return sum(level.nbytes(itemsize) for _, level in self.levels) - again

    @staticmethod
    def fprop(x_shape: Shape, w_shape: Shape, *, dilations: Sequence[int], channels: Sequence[int] | None,
              stride: Pair, groups: int) -> CoConvDesc:
        """Returns the description of y = coconv2d(x, w).  Raises ShapeError if x, w and the levels do not fit."""
        return _describe("coconv2d", tuple(x_shape), tuple(w_shape), dilations, channels, stride, groups)

    @staticmethod
    def dgrad(g_shape: Shape, w_shape: Shape, hw: Pair, *, dilations: Sequence[int], channels: Sequence[int] | None,
              stride: Pair, groups: int) -> CoConvDesc:
        """Returns the description of the gradient with respect to an x of height and width hw."""
        where = "coconv2d_dgrad"
        check_rank(where, g=tuple(g_shape), w=tuple(w_shape))
        x_shape = (g_shape[0], *hw, w_shape[3] * groups)
        desc = _describe(where, x_shape, tuple(w_shape), dilations, channels, stride, groups)
        return check_gradient(where, desc, tuple(g_shape))

    @staticmethod
    def wgrad(x_shape: Shape, g_shape: Shape, f: Pair, *, dilations: Sequence[int], channels: Sequence[int] | None,
              stride: Pair, groups: int) -> CoConvDesc:
        """Returns the description of the gradient with respect to a w of filter height and width f."""
        where = "coconv2d_wgrad"
        check_rank(where, x=tuple(x_shape), g=tuple(g_shape))
        if x_shape[3] % groups:
            bad_groups(where, x_shape[3], g_shape[3], groups)
        w_shape = (g_shape[3], *f, x_shape[3] // groups)
        desc = _describe(where, tuple(x_shape), w_shape, dilations, channels, stride, groups)
        return check_gradient(where, desc, tuple(g_shape))


def level_channels(where: str, out_channels: int, dilations: Sequence[int], channels: Sequence[int] | None,
                   groups: int) -> tuple[int, ...]:
    """Returns the output channels of each level; `channels` None: the usual split by the number of levels.

    Raises:
        ShapeError: there is no level, the numbers of levels differ, the channels do not add up to out_channels, a level
            has none, groups does not divide a level, or there is no usual split.
    """
    levels = len(dilations)
    if not levels:
        raise ShapeError(message(where, f"dilations is {tuple(dilations)}, at least 1 level is needed",
                                 "pass a dilation for each level: dilations=(1, 2), say"))
    if channels is None:
        channels = _usual(where, out_channels, levels)
    if len(channels) != levels:
        raise ShapeError(message(where, f"channels {tuple(channels)} has {len(channels)} levels, dilations "
                                 f"{tuple(dilations)} has {levels}", "pass one number of channels for each dilation"))
    if min(channels) < 1:
        raise ShapeError(message(where, f"channels {tuple(channels)} has a level with {min(channels)} of the "
                                 f"{out_channels} output channels, each needs at least 1",
                                 "give each level a channel, or leave it out of channels and dilations"))
    if sum(channels) != out_channels:
        raise ShapeError(message(where, f"channels {tuple(channels)} add up to {sum(channels)}, there are "
                                 f"{out_channels} output channels",
                                 "make them equal; channels=None is the usual split of up to 5 levels"))
    for count in channels:
        if groups < 1 or count % groups:
            raise ShapeError(message(where, f"groups={groups} does not divide a level of {count} channels (channels "
                                     f"{tuple(channels)})", "choose groups that divides every level"))
    return tuple(channels)


def _usual(where: str, out_channels: int, levels: int) -> tuple[int, ...]:
    if levels not in SPLITS:
        raise ShapeError(message(where, f"there are {levels} levels, a usual split is known of {len(SPLITS)} at most",
                                 f"pass channels: {levels} numbers that add up to {out_channels}"))
    shares = SPLITS[levels]
    unit = 8 // min(shares)
    if out_channels % unit:
        raise ShapeError(message(where, f"{out_channels} output channels, the usual split into {levels} levels needs a "
                                 f"multiple of {unit}", "choose such a number, or pass channels"))
    return tuple(share * out_channels // 8 for share in shares)


@lru_cache(maxsize=1024)
def _describe(where: str, x_shape: Shape, w_shape: Shape, dilations: tuple[int, ...], channels: tuple[int, ...] | None,
              stride: Pair, groups: int) -> CoConvDesc:
    check_rank(where, x=x_shape, w=w_shape)
    oc, (fh, fw) = w_shape[0], w_shape[1:3]
    check_kernel(where, (fh, fw))
    split = level_channels(where, oc, dilations, channels, groups)
    # As a whole first, without dilation: so that what is wrong with x and w is said of x and w.
    describe(where, x_shape, w_shape, stride, (fh // 2, fw // 2), (1, 1), groups)
    levels = [describe(where, x_shape, (count, *w_shape[1:]), stride, (d * (fh // 2), d * (fw // 2)), (d, d), groups)
              for count, d in zip(split, dilations)]
    return CoConvDesc(tuple(zip(accumulate(split, initial=0), levels)))


def check_kernel(where: str, kernel_size: Pair) -> None:
    """Raises ShapeError unless both sides are odd: then every level has outputs at the same places."""
    if not kernel_size[0] % 2 or not kernel_size[1] % 2:
        raise ShapeError(message(where, f"the kernel is {kernel_size[0]}x{kernel_size[1]}, odd sides are needed",
                                 "use a kernel of 3x3 or 5x5, say, or conv2d for an even one"))
