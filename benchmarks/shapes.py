"""The convolutions that are measured on a GPU, and how fast each has to be beside cuDNN.

v: layers of VGG and ResNet at batch 512, from 32x32 maps down to 2x2; d: the same with stride 2; e: 5x5 filters with
stride 2; p32: a projection shortcut; b: batch 128; in3: the first layer of a network.
"""

from __future__ import annotations

from typing import NamedTuple

from alpha.ops.conv_desc import ConvDesc, Pair

PASSES = ("fprop", "dgrad", "wgrad")
WGRAD_BAR_BELOW = 40.0  # TFLOP/s: where cuDNN is faster than this it has left the direct algorithm


class ConvShape(NamedTuple):
    """A square convolution: x (n, hw, hw, ic), w (oc, f, f, ic)."""

    name: str
    n: int
    hw: int
    ic: int
    oc: int
    f: int
    padding: int
    stride: int

    @property
    def geometry(self) -> dict[str, Pair | int]:
        """The attributes of the three convolution ops, canonical."""
        return dict(stride=(self.stride,) * 2, padding=(self.padding,) * 2, dilation=(1, 1), groups=1)

    @property
    def desc(self) -> ConvDesc:
        return ConvDesc.fprop((self.n, self.hw, self.hw, self.ic), (self.oc, self.f, self.f, self.ic),
                              **self.geometry)  # type: ignore[arg-type]


SHAPES = tuple(ConvShape(*row) for row in (
    ("v1", 512, 32, 64, 64, 3, 1, 1), ("v2", 512, 16, 128, 128, 3, 1, 1), ("v3", 512, 8, 256, 256, 3, 1, 1),
    ("v4", 512, 4, 512, 512, 3, 1, 1), ("v5", 512, 2, 512, 512, 3, 1, 1),
    ("d32", 512, 32, 64, 128, 3, 1, 2), ("d16", 512, 16, 128, 256, 3, 1, 2), ("d8", 512, 8, 256, 512, 3, 1, 2),
    ("d4", 512, 4, 512, 512, 3, 1, 2),
    ("e32", 512, 32, 64, 128, 5, 2, 2), ("e16", 512, 16, 128, 256, 5, 2, 2), ("e8", 512, 8, 256, 512, 5, 2, 2),
    ("e4", 512, 4, 512, 512, 5, 2, 2),
    ("p32", 512, 32, 64, 128, 1, 0, 2), ("b128", 128, 8, 256, 256, 3, 1, 1), ("b128d", 128, 16, 128, 256, 3, 1, 2),
    ("in3", 512, 32, 3, 64, 3, 1, 1)))

# Layers of GoogLeNet, whose channels are no multiples of 64; g8 is its first one as tensor cores read it.
NARROW = tuple(ConvShape(*row) for row in (
    ("g8", 512, 32, 8, 192, 3, 1, 1), ("g16", 512, 32, 16, 32, 3, 1, 1), ("g32", 512, 32, 32, 96, 3, 1, 1),
    ("g48", 512, 16, 48, 48, 3, 1, 1), ("g96", 512, 32, 96, 128, 3, 1, 1), ("g112", 512, 16, 112, 224, 3, 1, 1),
    ("g160", 512, 16, 160, 320, 3, 1, 1), ("g528", 512, 16, 528, 160, 1, 0, 1)))


def bar(shape: ConvShape, pass_name: str, cudnn_tflops: float) -> float | None:
    """Returns how many times as fast as cuDNN a pass has to be; None where nothing is asked of it.

    Args:
        cudnn_tflops: what cuDNN reaches in its better layout, products with padded zeros counted.
    """
    if pass_name == "fprop":
        return 1.3 if shape.hw <= 4 else 0.9
    if pass_name == "dgrad":
        return 3.0 if shape.name in ("d4", "e4") else 1.5 if shape.stride > 1 else 1.0
    return 1.2 if cudnn_tflops < WGRAD_BAR_BELOW else None


def waves(desc: ConvDesc, sm_count: int, tile: int = 128) -> float:
    """Returns how often the multiprocessors are filled by blocks of tile x tile outputs of the forward pass."""
    n, oh, ow, oc = desc.y_shape
    return -(-n * oh * ow // tile) * -(-oc // tile) / sm_count
