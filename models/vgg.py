"""VGG for 32x32 images, with batch norm (as it is widely used on CIFAR) and without.

`vgg16` has batch norm, as in the widely used CIFAR-10 repository, and `vgg16_plain` has none: torchvision calls them
`vgg16_bn` and `vgg16`.
"""

from __future__ import annotations

from alpha import nn
from alpha.tensor import Tensor
from models import register_model

# Convolutions per stage; each stage ends with a 2x2 max pool. Channels per stage are the same for all.
STAGES = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
CHANNELS = (64, 128, 256, 512, 512)


class VGG(nn.Module):
    """Five stages of 3x3 convolutions, down to a 1x1 map, and one linear layer."""

    def __init__(self, depth: int, num_classes: int, batch_norm: bool) -> None:
        layers: list[nn.Module] = []
        in_channels = 3
        for convolutions, channels in zip(STAGES[depth], CHANNELS):
            for _ in range(convolutions):
                norm = [nn.BatchNorm2d(channels)] if batch_norm else []
                layers += [nn.Conv2d(in_channels, channels, 3, padding=1), *norm, nn.ReLU()]
                in_channels = channels
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(CHANNELS[-1], num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).flatten(1))


@register_model
def vgg11(num_classes: int) -> VGG:
    """VGG-11 (Simonyan and Zisserman, arXiv 1409.1556, configuration A) with batch norm and one linear layer.
    9,231,114 parameters with 10 classes.
    """
    return VGG(11, num_classes, batch_norm=True)


@register_model
def vgg13(num_classes: int) -> VGG:
    """VGG-13 (arXiv 1409.1556, configuration B) with batch norm and one linear layer.
    9,416,010 parameters with 10 classes.
    """
    return VGG(13, num_classes, batch_norm=True)


@register_model
def vgg16(num_classes: int) -> VGG:
    """VGG-16 (arXiv 1409.1556, configuration D) with batch norm and one linear layer.
    14,728,266 parameters with 10 classes.
    """
    return VGG(16, num_classes, batch_norm=True)


@register_model
def vgg19(num_classes: int) -> VGG:
    """VGG-19 (arXiv 1409.1556, configuration E) with batch norm and one linear layer.
    20,040,522 parameters with 10 classes.
    """
    return VGG(19, num_classes, batch_norm=True)


@register_model
def vgg11_plain(num_classes: int) -> VGG:
    """VGG-11 (arXiv 1409.1556, configuration A) without batch norm, with one linear layer.
    9,225,610 parameters with 10 classes.
    """
    return VGG(11, num_classes, batch_norm=False)


@register_model
def vgg13_plain(num_classes: int) -> VGG:
    """VGG-13 (arXiv 1409.1556, configuration B) without batch norm, with one linear layer.
    9,410,122 parameters with 10 classes.
    """
    return VGG(13, num_classes, batch_norm=False)


@register_model
def vgg16_plain(num_classes: int) -> VGG:
    """VGG-16 (arXiv 1409.1556, configuration D) without batch norm, with one linear layer.
    14,719,818 parameters with 10 classes.
    """
    return VGG(16, num_classes, batch_norm=False)


@register_model
def vgg19_plain(num_classes: int) -> VGG:
    """VGG-19 (arXiv 1409.1556, configuration E) without batch norm, with one linear layer.
    20,029,514 parameters with 10 classes.
    """
    return VGG(19, num_classes, batch_norm=False)
