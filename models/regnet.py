"""RegNet.  Parameters have torchvision's names."""

from __future__ import annotations

from alpha import Tensor, nn, ops

from . import STEMS, check_option, conv_norm, register_model


class RegNetBlock(nn.Module):
    """y = relu(f(x) + proj(x)): f is 1x1, 3x3 in groups, a gate if there is one, and 1x1, all of `channels`.

    Args:
        in_channels, channels: of x and y.
        stride: of the 3x3 convolution, and of proj, a 1x1 convolution where x and y differ in shape.
        group_width: channels of a group.
        gate: of in_channels, the share that a gate has between its convolutions; 0: no gate.
    """

    def __init__(self, in_channels: int, channels: int, stride: int, group_width: int, gate: float) -> None:
        parts: dict[str, nn.Module] = {"a": conv_norm(in_channels, channels, 1, activation=nn.ReLU),
                                       "b": conv_norm(channels, channels, 3, stride, channels // group_width, nn.ReLU)}
        if gate:
            parts["se"] = nn.SqueezeExcite(channels, round(gate * in_channels))
        parts["c"] = conv_norm(channels, channels, 1)
        self.f = nn.Sequential(parts)
        self.projected = in_channels != channels or stride != 1
        if self.projected:
            self.proj = conv_norm(in_channels, channels, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return ops.relu((self.proj(x) if self.projected else x) + self.f(x))


class RegNet(nn.Module):
    """A 3x3 convolution to 32 channels, four stages of blocks, average pool, linear.

    Args:
        widths, depths: channels and blocks of each stage.
        group_width: channels of a group of the 3x3 convolutions.
        num_classes: size of the output.
        gate: see RegNetBlock.
        stem: "small": the first convolution and the first stage keep the map, for 32x32 images; "imagenet": both halve
            it, for 224x224.
    Raises:
        ConfigError: the stem is unknown.
    """

    def __init__(self, widths: tuple[int, ...], depths: tuple[int, ...], group_width: int, num_classes: int,
                 gate: float = 0.0, stem: str = "small") -> None:
        check_option("RegNet", "stem", stem, STEMS)
        halved = stem == "imagenet"
        self.stem = conv_norm(3, 32, 3, 2 if halved else 1, activation=nn.ReLU)
        stages, before = {}, 32
        for stage, (wide, count) in enumerate(zip(widths, depths), 1):
            stride = 1 if stage == 1 and not halved else 2
            stages[f"block{stage}"] = nn.Sequential({
                f"block{stage}-{k}": RegNetBlock(wide if k else before, wide, 1 if k else stride, group_width, gate)
                for k in range(count)})
            before = wide
        self.trunk_output = nn.Sequential(stages)
        self.fc = nn.Linear(before, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(ops.adaptive_avg_pool2d(self.trunk_output(self.stem(x)), 1).flatten(1))


@register_model
def regnet_x_200mf(num_classes: int, stem: str = "small") -> RegNet:
    """RegNetX-200MF (Radosavovic et al., arXiv 2003.13678): groups of 8 channels, for 32x32 images.
    2,319,482 parameters with 10 classes. stem="imagenet" makes the paper's network for 224x224 images: 2,684,792
    parameters with 1,000 classes.
    """
    return RegNet((24, 56, 152, 368), (1, 1, 4, 7), 8, num_classes, stem=stem)


@register_model
def regnet_x_400mf(num_classes: int, stem: str = "small") -> RegNet:
    """RegNetX-400MF (Radosavovic et al., arXiv 2003.13678): groups of 16 channels, for 32x32 images.
    5,097,898 parameters with 10 classes. stem="imagenet" makes the paper's network for 224x224 images: 5,495,976
    parameters with 1,000 classes.
    """
    return RegNet((32, 64, 160, 400), (1, 2, 7, 12), 16, num_classes, stem=stem)


@register_model
def regnet_y_400mf(num_classes: int, stem: str = "small") -> RegNet:
    """RegNetY-400MF (Radosavovic et al., arXiv 2003.13678): groups of 8 channels and gates, for 32x32 images.
    3,907,554 parameters with 10 classes. stem="imagenet" makes the paper's network for 224x224 images: 4,344,144
    parameters with 1,000 classes.
    """
    return RegNet((48, 104, 208, 440), (1, 3, 6, 6), 8, num_classes, gate=0.25, stem=stem)
