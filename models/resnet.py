"""Residual networks for 32x32 images."""

from __future__ import annotations

from alpha import Tensor, nn, ops

from . import STEMS, check_option, register_model


def conv3x3(in_channels: int, channels: int, stride: int, levels: int | None, groups: int = 1) -> nn.Module:
    """A 3x3 convolution that keeps the map; with a number of levels a contextual one of dilations 1, 2, ..."""
    if levels is None:
        return nn.Conv2d(in_channels, channels, 3, stride=stride, padding=1, groups=groups, bias=False)
    return nn.CoConv2d(in_channels, channels, 3, stride=stride, dilations=tuple(range(1, levels + 1)))


class BasicBlock(nn.Module):
    """y = relu(bn2(conv2(relu(bn1(conv1(x))))) + shortcut(x)), two 3x3 convolutions.

    Args:
        in_channels: channels of x.
        channels: of both convolutions.
        stride: of the first one.
        shortcut: its result is added.
        levels: of contextual convolutions; None: plain ones.
        norm_last: whether the last norm is behind the addition.
    """

    expansion = 1

    def __init__(self, in_channels: int, channels: int, stride: int, shortcut: nn.Module, levels: int | None = None,
                 norm_last: bool = False) -> None:
        self.conv1 = conv3x3(in_channels, channels, stride, levels)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = conv3x3(channels, channels, 1, levels)
        self.bn2 = nn.BatchNorm2d(channels)
        self.shortcut = shortcut
        self.norm_last = norm_last

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn1(self.conv1(x, for_norm=self.training), activation="relu")
        y = self.conv2(y, for_norm=self.training)
        if self.norm_last:
            return self.bn2(y + self.shortcut(x), activation="relu")
        return self.bn2(y, residual=self.shortcut(x), activation="relu")


class Bottleneck(nn.Module):
    """y = relu(bn3(conv3(...)) + shortcut(x)): 1x1 down, 3x3, 1x1 up to four times the channels.

    Args: see BasicBlock; stride and levels belong to the 3x3 convolution, which has `groups` times the channels.
    """

    expansion = 4
    groups = 1

    def __init__(self, in_channels: int, channels: int, stride: int, shortcut: nn.Module, levels: int | None = None,
                 norm_last: bool = False) -> None:
        inner = self.groups * channels
        self.conv1 = nn.Conv2d(in_channels, inner, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(inner)
        self.conv2 = conv3x3(inner, inner, stride, levels, self.groups)
        self.bn2 = nn.BatchNorm2d(inner)
        self.conv3 = nn.Conv2d(inner, self.expansion * channels, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(self.expansion * channels)
        self.shortcut = shortcut
        self.norm_last = norm_last

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn1(self.conv1(x, for_norm=self.training), activation="relu")
        y = self.bn2(self.conv2(y, for_norm=self.training), activation="relu")
        y = self.conv3(y, for_norm=self.training)
        if self.norm_last:
            return self.bn3(y + self.shortcut(x), activation="relu")
        return self.bn3(y, residual=self.shortcut(x), activation="relu")


class PadShortcut(nn.Module):
    """Option A of He et al.: every stride-th pixel, and zeros for the new channels, half on each side."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        self.stride = stride
        self.before = (out_channels - in_channels) // 2
        self.after = out_channels - in_channels - self.before

    def forward(self, x: Tensor) -> Tensor:
        return ops.pad(x[:, ::self.stride, ::self.stride], ((0, 0), (0, 0), (0, 0), (self.before, self.after)))


def projection(in_channels: int, out_channels: int, stride: int) -> nn.Module:
    """Option B of He et al.: a 1x1 convolution with batch norm."""
    return nn.Sequential(nn.Conv2d(in_channels, out_channels, 1, stride=stride, bias=False),
                         nn.BatchNorm2d(out_channels))


class ResNet(nn.Module):
    """A 3x3 convolution, stages of residual blocks (each but the first halves the map), average pool, linear.

    Args:
        block: BasicBlock or Bottleneck.
        blocks: number of blocks per stage.
        channels: channels of the first stage; they double from stage to stage.
        num_classes: size of the output.
        shortcut: makes the shortcut of a block whose input and output differ in shape: projection or PadShortcut.
        levels: of the contextual convolutions, per stage; None: plain convolutions.
        bn_end_stage: whether the last block of each stage has its last norm behind the addition.
        stem: "small", a 3x3 convolution for 32x32 images; "imagenet", 7x7 with stride 2 and a max pool, for 224x224.
            With the latter the weights go to PyTorch by torchvision's names.
    Raises:
        ConfigError: the stem is unknown.
    """

    def __init__(self, block: type[BasicBlock] | type[Bottleneck], blocks: tuple[int, ...], channels: int,
                 num_classes: int, shortcut: type[PadShortcut] | None = None, levels: tuple[int, ...] | None = None,
                 bn_end_stage: bool = False, stem: str = "small") -> None:
        check_option(type(self).__name__, "stem", stem, STEMS)
        self.imagenet = stem == "imagenet"
        self.conv1 = self.first_conv(channels)
        self.bn1 = nn.BatchNorm2d(channels)
        make_shortcut = shortcut or projection
        self.stages = tuple(f"layer{k + 1}" for k in range(len(blocks)))
        in_channels = channels
        for stage, count in enumerate(blocks):
            made = []
            for k in range(count):
                width, stride = channels << stage, 2 if k == 0 and stage > 0 else 1
                out_channels = width * block.expansion
                same = stride == 1 and in_channels == out_channels
                added = nn.Identity() if same else make_shortcut(in_channels, out_channels, stride)
                made.append(block(in_channels, width, stride, added, levels[stage] if levels else None,
                                  bn_end_stage and k == count - 1))
                in_channels = out_channels
            setattr(self, self.stages[stage], nn.Sequential(*made))
        self.linear = nn.Linear(in_channels, num_classes)
        if self.imagenet:
            self.torch_names = {"linear": "fc"}
            for module in self.modules():
                if isinstance(module, (BasicBlock, Bottleneck)):
                    module.torch_names = {"shortcut": "downsample"}

    def first_conv(self, channels: int) -> nn.Module:
        if self.imagenet:
            return nn.Conv2d(3, channels, 7, stride=2, padding=3, bias=False)
        return nn.Conv2d(3, channels, 3, padding=1, bias=False)

    def stem(self, x: Tensor) -> Tensor:
        x = self.bn1(self.conv1(x, for_norm=self.training), activation="relu")
        return ops.max_pool2d(x, 3, stride=2, padding=1) if self.imagenet else x

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for stage in self.stages:
            x = getattr(self, stage)(x)
        return self.linear(ops.adaptive_avg_pool2d(x, 1).flatten(1))


@register_model
def resnet18(num_classes: int, stem: str = "small") -> ResNet:
    """ResNet-18 (He et al., arXiv 1512.03385) with a 3x3 stem and no first pool, option B shortcuts.
    11,173,962 parameters with 10 classes. stem="imagenet" makes the paper's network for 224x224 images: 11,689,512
    parameters with 1,000 classes.
    """
    return ResNet(BasicBlock, (2, 2, 2, 2), 64, num_classes, stem=stem)


@register_model
def resnet34(num_classes: int) -> ResNet:
    """ResNet-34 (He et al., arXiv 1512.03385) with a 3x3 stem and no first pool, option B shortcuts.
    21,282,122 parameters with 10 classes.
    """
    return ResNet(BasicBlock, (3, 4, 6, 3), 64, num_classes)


@register_model
def resnet50(num_classes: int) -> ResNet:
    """ResNet-50 (He et al., arXiv 1512.03385) with a 3x3 stem and no first pool, option B shortcuts.
    23,520,842 parameters with 10 classes.
    """
    return ResNet(Bottleneck, (3, 4, 6, 3), 64, num_classes)


@register_model
def resnet101(num_classes: int) -> ResNet:
    """ResNet-101 (He et al., arXiv 1512.03385) with a 3x3 stem and no first pool, option B shortcuts.
    42,512,970 parameters with 10 classes.
    """
    return ResNet(Bottleneck, (3, 4, 23, 3), 64, num_classes)


@register_model
def resnet152(num_classes: int) -> ResNet:
    """ResNet-152 (He et al., arXiv 1512.03385) with a 3x3 stem and no first pool, option B shortcuts.
    58,156,618 parameters with 10 classes.
    """
    return ResNet(Bottleneck, (3, 8, 36, 3), 64, num_classes)


@register_model
def resnet20(num_classes: int) -> ResNet:
    """ResNet-20 for CIFAR (He et al., arXiv 1512.03385, section 4.2, n = 3), option A shortcuts.
    269,722 parameters with 10 classes.
    """
    return ResNet(BasicBlock, (3, 3, 3), 16, num_classes, PadShortcut)


@register_model
def resnet56(num_classes: int) -> ResNet:
    """ResNet-56 for CIFAR (He et al., arXiv 1512.03385, section 4.2, n = 9), option A shortcuts.
    853,018 parameters with 10 classes.
    """
    return ResNet(BasicBlock, (9, 9, 9), 16, num_classes, PadShortcut)
