"""Shapes of contextual convolutions, small: tests on the CPU and on CUDA take theirs from here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from alpha.ops.coconv_desc import CoConvDesc
from alpha.testing.conv_cases import Shapes
from tests.conv_oracle import conv_dgrad_padded, conv_fprop_padded, conv_wgrad_padded


@dataclass(frozen=True)
class CoCase(Shapes):
    """One contextual convolution.  Pairs are (height, width)."""

    name: str
    n: int
    hw: tuple[int, int]
    ic: int
    oc: int
    dilations: tuple[int, ...]
    channels: tuple[int, ...] | None = None
    f: tuple[int, int] = (3, 3)
    stride: tuple[int, int] = (1, 1)
    groups: int = 1

    @property
    def attrs(self) -> dict:
        """The keyword arguments of coconv2d."""
        return {"dilations": self.dilations, "channels": self.channels, "stride": self.stride, "groups": self.groups}

    @property
    def desc(self) -> CoConvDesc:
        return CoConvDesc.fprop(self.x_shape, self.w_shape, **self.attrs)


CASES = (
    *(CoCase(f"map{i}", 2, (i, i), 8, 16, (1, 2, 3, 4)) for i in (1, 2, 3, 5, 7, 8, 14)),
    *(CoCase(f"map{i}.stride2", 3, (i, i), 8, 16, (1, 2, 3, 4), stride=(2, 2)) for i in (1, 2, 5, 8, 13)),
    CoCase("one_level", 3, (9, 9), 8, 16, (2,)),
    CoCase("two_levels", 5, (7, 7), 16, 32, (1, 2)),
    CoCase("three_levels", 4, (14, 14), 16, 64, (1, 2, 3)),
    CoCase("five_levels", 9, (6, 6), 8, 64, (1, 2, 3, 4, 5)),
    CoCase("six_levels", 2, (9, 9), 4, 24, (1, 2, 3, 4, 5, 6), (4, 4, 4, 4, 4, 4)),
    CoCase("any_order", 2, (9, 9), 8, 24, (3, 1), (8, 16)),
    CoCase("odd_split", 3, (6, 7), 5, 11, (2, 1, 4), (3, 7, 1)),
    CoCase("same_dilations", 2, (5, 5), 4, 8, (2, 2), (4, 4)),
    CoCase("kernel5", 2, (11, 11), 8, 16, (1, 2), f=(5, 5)),
    CoCase("kernel5.stride2", 2, (11, 10), 8, 16, (1, 2, 3, 4), f=(5, 5), stride=(2, 2)),
    CoCase("kernel1", 3, (4, 4), 8, 16, (1, 2), f=(1, 1)),
    CoCase("product", 3, (1, 1), 8, 16, (1, 2), f=(1, 1)),
    CoCase("kernel1x3", 2, (5, 9), 8, 16, (1, 3), f=(1, 3), stride=(1, 2)),
    CoCase("groups2", 2, (8, 8), 16, 32, (1, 2, 3, 4), groups=2),
    CoCase("groups4.kernel5.stride2", 2, (7, 7), 8, 24, (3, 1), (8, 16), (5, 5), (2, 2), 4),
    CoCase("depthwise", 2, (6, 6), 16, 32, (1, 2), groups=16),
    CoCase("depthwise.multiplier", 2, (6, 6), 8, 24, (1, 2), (8, 16), stride=(2, 2), groups=8),
    CoCase("few_channels", 2, (9, 9), 3, 16, (1, 2, 3, 4)),
    CoCase("wide", 17, (4, 4), 72, 128, (1, 2)),
    CoCase("tail", 19, (5, 5), 24, 40, (1, 3, 2), (8, 24, 8)),
)


def oracle(case: CoCase, x: np.ndarray, w: np.ndarray, g: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns y, dx, dw: for each level what the padded oracle of convolution says."""
    y, dx, dw = [], 0, []
    for first, level in case.desc.levels:
        rows = slice(first, first + level.oc)
        geometry = (case.stride, (level.h.p, level.w.p), (level.h.d, level.w.d), case.groups)
        y.append(conv_fprop_padded(x, w[rows], *geometry))
        dx = dx + conv_dgrad_padded(g[..., rows], w[rows], case.hw, *geometry)
        dw.append(conv_wgrad_padded(x, g[..., rows], case.f, *geometry))
    return np.concatenate(y, 3), dx, np.concatenate(dw)
