"""Residual networks whose norms come before their convolutions, without and with squeeze-excite."""

from __future__ import annotations

from alpha import Tensor, nn, ops

from . import register_model


class PreActBlock(nn.Module):
    """y = conv2(relu(bn2(conv1(a)))) * gate + shortcut(a), a = relu(bn1(x)); x itself is added where its shape fits.

    Args:
        in_channels: channels of x.
        channels: channels of both convolutions.
        stride: of the first convolution.
        reduction: None: gate = 1. Else gate = sigmoid(fc2(relu(fc1(mean over the map)))), channels / reduction between.
    """

    def __init__(self, in_channels: int, channels: int, stride: int, reduction: int | None = None) -> None:
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.projected = stride != 1 or in_channels != channels
        if self.projected:
            self.shortcut = nn.Sequential(nn.Conv2d(in_channels, channels, 1, stride=stride, bias=False))
        self.gated = reduction is not None
        if reduction is not None:
            self.fc1 = nn.Conv2d(channels, channels // reduction, 1)
            self.fc2 = nn.Conv2d(channels // reduction, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.bn1(x, activation="relu")
        y = self.conv2(self.bn2(self.conv1(a), activation="relu"))
        if self.gated:
            y = y * ops.sigmoid(self.fc2(ops.relu(self.fc1(ops.adaptive_avg_pool2d(y, 1)))))
        return y + (self.shortcut(a) if self.projected else x)


class PreActResNet(nn.Module):
    """A 3x3 convolution, four stages of blocks (each but the first halves the map), average pool, linear.

    Args:
        blocks: number of blocks per stage; the stages have 64, 128, 256 and 512 channels.
        num_classes: size of the output.
        reduction: of the squeeze-excite gates; None: no gates.
        norm_first: whether batch norm and ReLU follow the first convolution.
    """

    layer1: nn.Module
    layer2: nn.Module
    layer3: nn.Module
    layer4: nn.Module

    def __init__(self, blocks: tuple[int, int, int, int], num_classes: int, reduction: int | None = None,
                 norm_first: bool = False) -> None:
        self.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
        self.norm_first = norm_first
        if norm_first:
            self.bn1 = nn.BatchNorm2d(64)
        in_channels = 64
        for stage, count in enumerate(blocks):
            channels, made = 64 << stage, []
            for k in range(count):
                made.append(PreActBlock(in_channels, channels, 2 if k == 0 and stage > 0 else 1, reduction))
                in_channels = channels
            setattr(self, f"layer{stage + 1}", nn.Sequential(*made))
        self.linear = nn.Linear(in_channels, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(x)
        if self.norm_first:
            x = self.bn1(x, activation="relu")
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.linear(ops.adaptive_avg_pool2d(x, 1).flatten(1))


@register_model
def preact_resnet18(num_classes: int) -> PreActResNet:
    """Pre-activation ResNet-18 (He et al., arXiv 1603.05027); no norm follows the last block, as in the repository.
    11,171,146 parameters with 10 classes.
    """
    return PreActResNet((2, 2, 2, 2), num_classes)


@register_model
def senet18(num_classes: int) -> PreActResNet:
    """SE-ResNet-18 of pre-activation blocks (Hu et al., arXiv 1709.01507), reduction 16.
    11,260,354 parameters with 10 classes.
    """
    return PreActResNet((2, 2, 2, 2), num_classes, reduction=16, norm_first=True)
