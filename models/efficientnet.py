"""EfficientNet.  Parameters have torchvision's names."""

from __future__ import annotations

from functools import partial

from alpha import Tensor, nn, ops

from . import STEMS, check_option, conv_norm, register_model

# expand, kernel, stride, channels, blocks
STAGES = ((1, 3, 1, 16, 1), (6, 3, 2, 24, 2), (6, 5, 2, 40, 2), (6, 3, 2, 80, 3), (6, 5, 1, 112, 3), (6, 5, 2, 192, 4),
          (6, 3, 1, 320, 1))
LAST = 1280     # channels in front of the classifier
unit = partial(conv_norm, activation=nn.SiLU)   # of every block


class MBConv(nn.Module):
    """1x1 to `expand` times the channels, depthwise, a gate, 1x1 without an activation; plus x where it fits.

    Args:
        in_channels, channels: of x and y.
        expand: 1 leaves out the first convolution.
        kernel_size, stride: of the depthwise convolution.
    """

    def __init__(self, in_channels: int, channels: int, expand: int, kernel_size: int, stride: int) -> None:
        wide = in_channels * expand
        first = [unit(in_channels, wide, 1)] if expand > 1 else []
        last = nn.Sequential(nn.Conv2d(wide, channels, 1, bias=False), nn.BatchNorm2d(channels))
        self.block = nn.Sequential(*first, unit(wide, wide, kernel_size, stride, wide),
                                   nn.SqueezeExcite(wide, max(1, in_channels // 4), "silu"), last)
        self.added = stride == 1 and in_channels == channels

    def forward(self, x: Tensor) -> Tensor:
        y = self.block(x)
        return x + y if self.added else y


class EfficientNet(nn.Module):
    """A 3x3 convolution, seven stages of MBConv blocks, a 1x1 convolution, average pool, dropout, linear.

    Args:
        num_classes: size of the output.
        stem: "small": the first convolution and the first stage of stride 2 keep the map, for 32x32 images;
            "imagenet": both halve it, for 224x224.
        dropout: in front of the classifier; torchvision's is 0.2.
    Raises:
        ConfigError: the stem is unknown, or dropout is not in [0, 1].
    """

    def __init__(self, num_classes: int, stem: str = "small", dropout: float = 0.0) -> None:
        check_option("EfficientNet", "stem", stem, STEMS)
        halved = stem == "imagenet"
        channels = 32
        parts: list[nn.Module] = [unit(3, channels, 3, 2 if halved else 1)]
        for stage, (expand, kernel_size, stride, out_channels, count) in enumerate(STAGES):
            blocks = []
            for k in range(count):
                step = stride if k == 0 and (stage != 1 or halved) else 1
                blocks.append(MBConv(channels, out_channels, expand, kernel_size, step))
                channels = out_channels
            parts.append(nn.Sequential(*blocks))
        self.features = nn.Sequential(*parts, unit(channels, LAST, 1))
        self.classifier = nn.Sequential(nn.Dropout(dropout), nn.Linear(LAST, num_classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(ops.adaptive_avg_pool2d(self.features(x), 1).flatten(1))


@register_model
def efficientnet_b0(num_classes: int, stem: str = "small", dropout: float = 0.0) -> EfficientNet:
    """EfficientNet-B0 (Tan and Le, arXiv 1905.11946) for 32x32 images, without stochastic depth.
    4,020,358 parameters with 10 classes. stem="imagenet" makes the paper's network for 224x224 images: 5,288,548
    parameters with 1,000 classes.
    """
    return EfficientNet(num_classes, stem, dropout)
