"""ResNeXt for 32x32 images."""

from __future__ import annotations

from . import register_model
from .resnet import Bottleneck, ResNet


class EightGroups(Bottleneck):
    """A Bottleneck whose 3x3 convolution has eight groups of `channels` each."""

    groups = 8


@register_model
def resnext29_8x64d(num_classes: int) -> ResNet:
    """ResNeXt-29, 8x64d (Xie et al., arXiv 1611.05431, section 5.3): three stages, groups of 64 channels at first.
    34,426,698 parameters with 10 classes.
    """
    return ResNet(EightGroups, (3, 3, 3), 64, num_classes)
