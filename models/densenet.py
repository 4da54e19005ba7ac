"""Densely connected networks, DenseNet-BC.  Parameters have torchvision's names."""

from __future__ import annotations

from alpha import Tensor, nn, ops

from . import STEMS, check_option, register_model


class DenseLayer(nn.Module):
    """y = concat(x, conv2(relu(norm2(conv1(relu(norm1(x))))))): `growth` new channels behind x's.

    conv1 is 1x1 to four times as many channels, conv2 is 3x3.
    """

    def __init__(self, in_channels: int, growth: int) -> None:
        self.norm1 = nn.BatchNorm2d(in_channels)
        self.conv1 = nn.Conv2d(in_channels, 4 * growth, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(4 * growth)
        self.conv2 = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(self.norm1(x, activation="relu"), for_norm=self.training)
        return ops.concat([x, self.conv2(self.norm2(y, activation="relu"))], axis=-1)


class Transition(nn.Module):
    """Half the channels by a 1x1 convolution, half the height and width by an average pool."""

    def __init__(self, in_channels: int) -> None:
        self.norm = nn.BatchNorm2d(in_channels)
        self.conv = nn.Conv2d(in_channels, in_channels // 2, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return ops.avg_pool2d(self.conv(self.norm(x, activation="relu")), 2)


class DenseNet(nn.Module):
    """A convolution, blocks of dense layers with a transition between each two, norm, average pool, linear.

    Args:
        layers: dense layers per block.
        growth: channels that a layer adds; the first convolution has twice as many.
        num_classes: size of the output.
        stem: "small", a 3x3 convolution for 32x32 images; "imagenet", 7x7 with stride 2, norm and a max pool, for
            224x224.
    Raises:
        ConfigError: the stem is unknown.
    """

    def __init__(self, layers: tuple[int, ...], growth: int, num_classes: int, stem: str = "small") -> None:
        check_option("DenseNet", "stem", stem, STEMS)
        channels = 2 * growth
        parts: dict[str, nn.Module] = {"conv0": nn.Conv2d(3, channels, 3, padding=1, bias=False)}
        if stem == "imagenet":
            parts = {"conv0": nn.Conv2d(3, channels, 7, stride=2, padding=3, bias=False),
                     "norm0": nn.BatchNorm2d(channels), "relu0": nn.ReLU(),
                     "pool0": nn.MaxPool2d(3, stride=2, padding=1)}
        for block, count in enumerate(layers, 1):
            parts[f"denseblock{block}"] = nn.Sequential(
                {f"denselayer{k + 1}": DenseLayer(channels + k * growth, growth) for k in range(count)})
            channels += count * growth
            if block < len(layers):
                parts[f"transition{block}"] = Transition(channels)
                channels //= 2
        parts["norm5"] = nn.BatchNorm2d(channels)
        parts["relu5"] = nn.ReLU()
        self.features = nn.Sequential(parts)
        self.classifier = nn.Linear(channels, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(ops.adaptive_avg_pool2d(self.features(x), 1).flatten(1))


@register_model
def densenet100_12(num_classes: int) -> DenseNet:
    """DenseNet-BC-100 with growth 12 (Huang et al., arXiv 1608.06993, section 4.2): three blocks of 16 layers.
    769,162 parameters with 10 classes.
    """
    return DenseNet((16, 16, 16), 12, num_classes)


@register_model
def densenet121(num_classes: int, stem: str = "small") -> DenseNet:
    """DenseNet-121 (Huang et al., arXiv 1608.06993) with a 3x3 stem and no first pool.
    6,956,298 parameters with 10 classes. stem="imagenet" makes the paper's network for 224x224 images: 7,978,856
    parameters with 1,000 classes.
    """
    return DenseNet((6, 12, 24, 16), 32, num_classes, stem)
