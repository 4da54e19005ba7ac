"""ResNeXt for 32x32 images."""

from __future__ import annotations

from alpha import Tensor, nn, ops

from . import register_model
from .resnet import Bottleneck, ResNet, projection


class EightGroups(Bottleneck):
    """A Bottleneck whose 3x3 convolution has eight groups of `channels` each."""

    groups = 8


class NarrowGroups(nn.Module):
    """y = relu(bn3(conv3(...)) + shortcut(x)): 1x1, 3x3 in 32 groups, and 1x1 to twice the channels.

    Args:
        in_channels: channels of x.
        channels: of the 3x3 convolution, a multiple of 32.
        stride: of the 3x3 convolution.
    """

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        self.conv1 = nn.Conv2d(in_channels, channels, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, stride=stride, padding=1, groups=32, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv3 = nn.Conv2d(channels, 2 * channels, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(2 * channels)
        same = stride == 1 and in_channels == 2 * channels
        self.shortcut = nn.Sequential() if same else projection(in_channels, 2 * channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.bn1(self.conv1(x), activation="relu")), activation="relu")
        return self.bn3(self.conv3(y), residual=self.shortcut(x), activation="relu")


class ResNeXt29(nn.Module):
    """A 1x1 convolution, three stages of three blocks (each but the first halves the map), average pool, linear.

    Args:
        channels: of the 3x3 convolutions of the first stage; they double from stage to stage.
        num_classes: size of the output.
    """

    layer1: nn.Module
    layer2: nn.Module
    layer3: nn.Module

    def __init__(self, channels: int, num_classes: int) -> None:
        self.conv1 = nn.Conv2d(3, 64, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        before = 64
        for stage in range(3):
            wide, made = channels << stage, []
            for k in range(3):
                made.append(NarrowGroups(before, wide, 2 if k == 0 and stage > 0 else 1))
                before = 2 * wide
            setattr(self, f"layer{stage + 1}", nn.Sequential(*made))
        self.linear = nn.Linear(before, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer3(self.layer2(self.layer1(self.bn1(self.conv1(x), activation="relu"))))
        return self.linear(ops.adaptive_avg_pool2d(x, 1).flatten(1))


@register_model
def resnext29_32x4d(num_classes: int) -> ResNeXt29:
    """ResNeXt-29, 32x4d (Xie et al., arXiv 1611.05431): 32 groups of 4 channels at first, 1x1 stem, as the repository.
    4,774,218 parameters with 10 classes.
    """
    return ResNeXt29(128, num_classes)


@register_model
def resnext29_8x64d(num_classes: int) -> ResNet:
    """ResNeXt-29, 8x64d (Xie et al., arXiv 1611.05431, section 5.3): three stages, groups of 64 channels at first.
    34,426,698 parameters with 10 classes.
    """
    return ResNet(EightGroups, (3, 3, 3), 64, num_classes)
