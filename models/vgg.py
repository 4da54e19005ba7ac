"""VGG for 32x32 images, with batch norm (as it is widely used on CIFAR) and without.

`vgg16` has batch norm, as in the widely used CIFAR-10 repository, and `vgg16_plain` has none: torchvision calls them
`vgg16_bn` and `vgg16`.
"""

from __future__ import annotations

from alpha import Tensor, nn, ops

from . import STEMS, check_option, register_model

# Convolutions per stage; each stage ends with a 2x2 max pool. Channels per stage are the same for all.
STAGES = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
CHANNELS = (64, 128, 256, 512, 512)
WIDTH = 4096    # of the two hidden layers behind a 7x7 map


class VGG(nn.Module):
    """Five stages of 3x3 convolutions, each with a max pool behind it, and a classifier.

    Args:
        depth: 11, 13, 16 or 19.
        num_classes: size of the output.
        batch_norm: whether there is one behind each convolution.
        stem: "small", for 32x32 images: one linear layer on a 1x1 map; "imagenet", for 224x224: three linear layers
            with dropout on a 7x7 map. With the latter names and shapes are torchvision's.
    Raises:
        ConfigError: the stem is unknown.
    """

    def __init__(self, depth: int, num_classes: int, batch_norm: bool, stem: str = "small") -> None:
        check_option("VGG", "stem", stem, STEMS)
        self.imagenet = stem == "imagenet"
        layers: list[nn.Module] = []
        in_channels = 3
        for convolutions, channels in zip(STAGES[depth], CHANNELS):
            for _ in range(convolutions):
                norm = [nn.BatchNorm2d(channels)] if batch_norm else []
                layers += [nn.Conv2d(in_channels, channels, 3, padding=1), *norm, nn.ReLU()]
                in_channels = channels
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.classifier = _three_layers(num_classes) if self.imagenet else nn.Linear(CHANNELS[-1], num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x)
        if self.imagenet and x.shape[1:3] != (7, 7):
            x = ops.adaptive_avg_pool2d(x, 7)
        return self.classifier(x.flatten(1))


def _three_layers(num_classes: int) -> nn.Module:
    features = (7, 7, CHANNELS[-1])
    return nn.Sequential(nn.Linear(7 * 7 * CHANNELS[-1], WIDTH, flattened=features), nn.ReLU(), nn.Dropout(0.5),
                         nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Dropout(0.5), nn.Linear(WIDTH, num_classes))


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
def vgg16(num_classes: int, stem: str = "small") -> VGG:
    """VGG-16 (arXiv 1409.1556, configuration D) with batch norm and one linear layer.
    14,728,266 parameters with 10 classes. stem="imagenet" makes the paper's network for 224x224 images, with three
    linear layers: 138,365,992 parameters with 1,000 classes.
    """
    return VGG(16, num_classes, True, stem)


@register_model
def vgg19(num_classes: int, stem: str = "small") -> VGG:
    """VGG-19 (arXiv 1409.1556, configuration E) with batch norm and one linear layer.
    20,040,522 parameters with 10 classes. stem="imagenet" makes the paper's network for 224x224 images, with three
    linear layers: 143,678,248 parameters with 1,000 classes.
    """
    return VGG(19, num_classes, True, stem)


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
