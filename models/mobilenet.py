"""MobileNet, the first one: depthwise convolutions, each with a 1x1 convolution behind it."""

from __future__ import annotations

from alpha import Tensor, nn, ops
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import Positive

from . import register_model

BLOCKS = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *((512, 1),) * 5, (1024, 2), (1024, 1))


class SeparableBlock(nn.Module):
    """y = relu(bn2(conv2(relu(bn1(conv1(x)))))): conv1 is 3x3 and depthwise, conv2 is 1x1.

    Args:
        in_channels, channels: of x and y.
        stride: of the depthwise convolution.
    """

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        self.conv1 = nn.Conv2d(in_channels, in_channels, 3, stride=stride, padding=1, groups=in_channels, bias=False)
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.conv2 = nn.Conv2d(in_channels, channels, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.bn2(self.conv2(self.bn1(self.conv1(x), activation="relu")), activation="relu")


class MobileNet(nn.Module):
    """A 3x3 convolution, thirteen separable blocks, average pool, linear.

    Args:
        num_classes: size of the output.
        width: above 0, factor of all channels; each is rounded down, to at least 8.
    """

    @checked
    def __init__(self, num_classes: int, width: Positive = 1.0) -> None:
        channels = [max(8, int(c * width)) for c in (32, *(c for c, _ in BLOCKS))]
        self.conv1 = nn.Conv2d(3, channels[0], 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels[0])
        self.layers = nn.Sequential(*[SeparableBlock(a, b, stride)
                                      for a, b, (_, stride) in zip(channels, channels[1:], BLOCKS)])
        self.linear = nn.Linear(channels[-1], num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers(self.bn1(self.conv1(x), activation="relu"))
        return self.linear(ops.adaptive_avg_pool2d(x, 1).flatten(1))


@register_model
def mobilenet(num_classes: int, width: float = 1.0) -> MobileNet:
    """MobileNet (Howard et al., arXiv 1704.04861) for 32x32 images: stride 1 in the first convolution.
    3,217,226 parameters with 10 classes.
    """
    return MobileNet(num_classes, width)
