"""ShuffleNet, both versions. Version 1 has the names of the CIFAR-10 repository, version 2 torchvision's."""

from __future__ import annotations

from alpha import Tensor, nn, ops

from . import STEMS, check_option, register_model


class ShuffleBlock(nn.Module):
    """y = relu(bn3(conv3(relu(bn2(conv2(shuffle(relu(bn1(conv1(x)))))))) + x); with stride 2 the two are joined.

    conv1 and conv3 are 1x1 in groups, conv2 is 3x3 and depthwise.

    Args:
        in_channels: channels of x.
        channels: channels of conv3; y has in_channels more where stride is 2.
        stride: of conv2; 2 brings x to y's size by an average pool.
        groups: of conv3; and of conv1, where x does not come from the first convolution (`first`).
    """

    def __init__(self, in_channels: int, channels: int, stride: int, groups: int, first: bool) -> None:
        inner, self.stride = channels // 4, stride
        self.shuffle = nn.ChannelShuffle(1 if first else groups)
        self.conv1 = nn.Conv2d(in_channels, inner, 1, groups=1 if first else groups, bias=False)
        self.bn1 = nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, stride=stride, padding=1, groups=inner, bias=False)
        self.bn2 = nn.BatchNorm2d(inner)
        self.conv3 = nn.Conv2d(inner, channels, 1, groups=groups, bias=False)
        self.bn3 = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        y = self.shuffle(self.bn1(self.conv1(x), activation="relu"))
        y = self.bn3(self.conv3(self.bn2(self.conv2(y), activation="relu")))
        if self.stride == 1:
            return ops.relu(y + x)
        return ops.relu(ops.concat([y, ops.avg_pool2d(x, 3, stride=2, padding=1)], axis=-1))


class ShuffleNet(nn.Module):
    """A 1x1 convolution to 24 channels, three stages of shuffled blocks (each halves the map), average pool, linear.

    Args:
        channels, blocks: of each stage.
        groups: of the 1x1 convolutions.
        num_classes: size of the output.
    """

    layer1: nn.Module
    layer2: nn.Module
    layer3: nn.Module

    def __init__(self, channels: tuple[int, int, int], blocks: tuple[int, int, int], groups: int,
                 num_classes: int) -> None:
        self.conv1 = nn.Conv2d(3, 24, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(24)
        before = 24
        for stage, (wide, count) in enumerate(zip(channels, blocks), 1):
            made = [ShuffleBlock(before, wide - before, 2, groups, stage == 1)]
            made += [ShuffleBlock(wide, wide, 1, groups, False) for _ in range(count - 1)]
            setattr(self, f"layer{stage}", nn.Sequential(*made))
            before = wide
        self.linear = nn.Linear(before, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer3(self.layer2(self.layer1(self.bn1(self.conv1(x), activation="relu"))))
        return self.linear(ops.adaptive_avg_pool2d(x, 1).flatten(1))


def _depthwise(channels: int, stride: int) -> list[nn.Module]:
    return [nn.Conv2d(channels, channels, 3, stride=stride, padding=1, groups=channels, bias=False),
            nn.BatchNorm2d(channels)]


def _pointwise(in_channels: int, channels: int) -> list[nn.Module]:
    return [nn.Conv2d(in_channels, channels, 1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()]


class SplitBlock(nn.Module):
    """y = shuffle(concat(left, branch2(right))): x's two halves; with stride 2 branch1(x) and branch2(x).

    Args:
        in_channels, channels: of x and y.
        stride: 1 or 2, of the depthwise convolutions.
    """

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        half, self.stride = channels // 2, stride
        self.branch1 = nn.Sequential(*(_depthwise(in_channels, stride) + _pointwise(in_channels, half)
                                       if stride > 1 else []))
        self.branch2 = nn.Sequential(*_pointwise(in_channels if stride > 1 else half, half), *_depthwise(half, stride),
                                     *_pointwise(half, half))
        self.shuffle = nn.ChannelShuffle(2)

    def forward(self, x: Tensor) -> Tensor:
        if self.stride > 1:
            return self.shuffle(ops.concat([self.branch1(x), self.branch2(x)], axis=-1))
        half = x.shape[-1] // 2
        return self.shuffle(ops.concat([x[..., :half], self.branch2(x[..., half:])], axis=-1))


class ShuffleNetV2(nn.Module):
    """A 3x3 convolution, three stages of split blocks (each halves the map), a 1x1 convolution, average pool, linear.

    Args:
        channels: of the first convolution, of each stage, and of the last convolution.
        num_classes: size of the output.
        stem: "small": the first convolution keeps the map, for 32x32 images; "imagenet": it has stride 2, and a max
            pool follows, for 224x224.
    Raises:
        ConfigError: the stem is unknown.
    """

    stage2: nn.Module
    stage3: nn.Module
    stage4: nn.Module

    def __init__(self, channels: tuple[int, int, int, int, int], num_classes: int, stem: str = "small") -> None:
        check_option("ShuffleNetV2", "stem", stem, STEMS)
        halved = stem == "imagenet"
        before, *stages, last = channels
        self.conv1 = nn.Sequential(nn.Conv2d(3, before, 3, stride=2 if halved else 1, padding=1, bias=False),
                                   nn.BatchNorm2d(before), nn.ReLU())
        self.pool = nn.MaxPool2d(3, stride=2, padding=1) if halved else nn.Identity()
        for stage, (wide, count) in enumerate(zip(stages, (4, 8, 4)), 2):
            made = [SplitBlock(before if k == 0 else wide, wide, 2 if k == 0 else 1) for k in range(count)]
            setattr(self, f"stage{stage}", nn.Sequential(*made))
            before = wide
        self.conv5 = nn.Sequential(*_pointwise(before, last))
        self.fc = nn.Linear(last, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv5(self.stage4(self.stage3(self.stage2(self.pool(self.conv1(x))))))
        return self.fc(ops.adaptive_avg_pool2d(x, 1).flatten(1))


@register_model
def shufflenet_g2(num_classes: int) -> ShuffleNet:
    """ShuffleNet with two groups (Zhang et al., arXiv 1707.01083) for 32x32 images, ReLU behind all but the last norm.
    887,582 parameters with 10 classes.
    """
    return ShuffleNet((200, 400, 800), (4, 8, 4), 2, num_classes)


@register_model
def shufflenetv2(num_classes: int, stem: str = "small") -> ShuffleNetV2:
    """ShuffleNet V2, width 1 (Ma et al., arXiv 1807.11164) for 32x32 images: stride 1 at first, and no first pool.
    1,263,854 parameters with 10 classes. stem="imagenet" makes the paper's network for 224x224 images: 2,278,604
    parameters with 1,000 classes.
    """
    return ShuffleNetV2((24, 116, 232, 464, 1024), num_classes, stem)
