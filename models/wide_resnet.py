"""Wide residual networks for 32x32 images."""

from __future__ import annotations

from alpha import Tensor, nn, ops

from . import register_model


class WideBlock(nn.Module):
    """y = conv2(relu(bn2(conv1(relu(bn1(x)))))) + shortcut(x), two 3x3 convolutions: norms come first.

    Args:
        in_channels: channels of x.
        channels: of both convolutions.
        stride: of the first one.
    """

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.shortcut = nn.Identity() if stride == 1 and in_channels == channels else nn.Sequential(
            nn.Conv2d(in_channels, channels, 1, stride=stride, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(self.bn1(x, activation="relu"), for_norm=self.training)
        return self.conv2(self.bn2(y, activation="relu")) + self.shortcut(x)


class WideResNet(nn.Module):
    """A 3x3 convolution, three stages of blocks (each but the first halves the map), norm, average pool, linear.

    Args:
        depth: 6 n + 4, with n blocks a stage.
        widen: times the channels 16, 32 and 64 of the stages.
        num_classes: size of the output.
    """

    def __init__(self, depth: int, widen: int, num_classes: int) -> None:
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        in_channels, stages = 16, []
        for stage in range(3):
            channels = (16 << stage) * widen
            blocks = []
            for k in range((depth - 4) // 6):
                blocks.append(WideBlock(in_channels, channels, 2 if k == 0 and stage > 0 else 1))
                in_channels = channels
            stages.append(nn.Sequential(*blocks))
        self.layer1, self.layer2, self.layer3 = stages
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.linear = nn.Linear(in_channels, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer3(self.layer2(self.layer1(self.conv1(x))))
        return self.linear(ops.adaptive_avg_pool2d(self.bn1(x, activation="relu"), 1).flatten(1))


@register_model
def wrn28_10(num_classes: int) -> WideResNet:
    """WRN-28-10 (Zagoruyko and Komodakis, arXiv 1605.07146) without dropout.
    36,479,194 parameters with 10 classes.
    """
    return WideResNet(28, 10, num_classes)
