"""MobileNetV2.  Parameters have torchvision's names."""

from __future__ import annotations

from functools import partial

from alpha import Tensor, nn, ops

from . import STEMS, check_option, conv_norm, register_model

STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
LAST = 1280     # channels in front of the classifier
unit = partial(conv_norm, activation=nn.ReLU6)   # of every block


class InvertedResidual(nn.Module):
    """1x1 to `expand` times the channels, 3x3 depthwise, 1x1 to few again without an activation; plus x if it fits.

    Args:
        in_channels, channels: of x and y.
        stride: of the depthwise convolution.
        expand: 1 leaves out the first convolution.
    """

    def __init__(self, in_channels: int, channels: int, stride: int, expand: int) -> None:
        wide = in_channels * expand
        first = [unit(in_channels, wide, 1)] if expand > 1 else []
        self.conv = nn.Sequential(*first, unit(wide, wide, 3, stride, wide),
                                  nn.Conv2d(wide, channels, 1, bias=False), nn.BatchNorm2d(channels))
        self.added = stride == 1 and in_channels == channels

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return x + y if self.added else y


class MobileNetV2(nn.Module):
    """A convolution, inverted residuals, a 1x1 convolution, average pool, dropout, linear.

    Args:
        num_classes: size of the output.
        stem: "small": the first convolution and the second stage keep the map, for 32x32 images; "imagenet": both
            halve it, for 224x224.
        dropout: in front of the classifier; torchvision's is 0.2.
    Raises:
        ConfigError: the stem is unknown, or dropout is not in [0, 1].
    """

    def __init__(self, num_classes: int, stem: str = "small", dropout: float = 0.0) -> None:
        check_option("MobileNetV2", "stem", stem, STEMS)
        halved = stem == "imagenet"
        channels = 32
        blocks: list[nn.Module] = [unit(3, channels, 3, 2 if halved else 1)]
        for stage, (expand, out_channels, count, stride) in enumerate(STAGES):
            for k in range(count):
                blocks.append(InvertedResidual(channels, out_channels, stride if k == 0 and (stage != 1 or halved)
                                               else 1, expand))
                channels = out_channels
        self.features = nn.Sequential(*blocks, unit(channels, LAST, 1))
        self.classifier = nn.Sequential(nn.Dropout(dropout), nn.Linear(LAST, num_classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(ops.adaptive_avg_pool2d(self.features(x), 1).flatten(1))


@register_model
def mobilenetv2(num_classes: int, stem: str = "small", dropout: float = 0.0) -> MobileNetV2:
    """MobileNetV2 (Sandler et al., arXiv 1801.04381) for 32x32 images: stride 1 in the first convolution and stage 2.
    2,236,682 parameters with 10 classes. stem="imagenet" makes the paper's network for 224x224 images: 3,504,872
    parameters with 1,000 classes.
    """
    return MobileNetV2(num_classes, stem, dropout)
