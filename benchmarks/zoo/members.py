"""The networks of the zoo: their family, the images of a step, and how each library makes one.

Dropout is off in both libraries, whose random numbers differ.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Member(NamedTuple):
    """A network.

    Attributes:
        family: the group of the table that it stands in.
        cuda, cpu: images in a step, by device.
    """

    family: str
    cuda: int
    cpu: int


MEMBERS = {
    "lenet5": Member("plain", 512, 256), "alexnet": Member("plain", 512, 32),
    "vgg11": Member("plain", 512, 16), "vgg13": Member("plain", 256, 8), "vgg16": Member("plain", 512, 8),
    "vgg19": Member("plain", 256, 8), "vgg11_plain": Member("plain", 256, 16), "vgg13_plain": Member("plain", 256, 8),
    "vgg16_plain": Member("plain", 256, 8), "vgg19_plain": Member("plain", 256, 8),
    "allconv": Member("plain", 256, 16), "nin": Member("plain", 256, 16), "repvgg": Member("plain", 256, 16),
    "airbench94": Member("plain", 1024, 64),
    "resnet18": Member("residual", 512, 8), "resnet34": Member("residual", 256, 8),
    "resnet50": Member("residual", 256, 8), "resnet101": Member("residual", 128, 4),
    "resnet152": Member("residual", 128, 4), "resnet20": Member("residual", 512, 64),
    "resnet56": Member("residual", 512, 64), "wrn28_10": Member("residual", 128, 4),
    "pyramidnet": Member("residual", 256, 32), "res2net": Member("residual", 128, 8),
    "coresnet18": Member("residual", 256, 8), "coresnet50": Member("residual", 128, 4),
    "coresnet101": Member("residual", 128, 4), "coresnet152": Member("residual", 128, 4),
    "preact_resnet18": Member("pre-activation", 128, 8),
    "densenet100_12": Member("dense", 128, 16), "densenet121": Member("dense", 128, 8),
    "googlenet": Member("branches", 512, 8), "inceptionv3": Member("branches", 128, 16),
    "squeezenet": Member("branches", 256, 32),
    "resnext29_8x64d": Member("grouped", 128, 4), "resnext29_32x4d": Member("grouped", 128, 8),
    "regnet_x_200mf": Member("grouped", 128, 16), "regnet_x_400mf": Member("grouped", 128, 16),
    "regnet_y_400mf": Member("grouped", 128, 16),
    "mobilenet": Member("depthwise", 128, 16), "mobilenetv2": Member("depthwise", 256, 16),
    "efficientnet_b0": Member("depthwise", 128, 8), "xception": Member("depthwise", 128, 16),
    "ghostnet": Member("depthwise", 256, 32), "convnext_tiny": Member("depthwise", 256, 8),
    "convmixer": Member("depthwise", 128, 8),
    "shufflenet_g2": Member("shuffled", 128, 16), "shufflenetv2": Member("shuffled", 256, 32),
    "senet18": Member("gates", 128, 8), "cbam": Member("gates", 128, 16),
    "dpn26": Member("dual path", 128, 8), "dpn92": Member("dual path", 128, 4),
    "dla": Member("aggregation trees", 128, 8),
    "cells": Member("searched cells", 128, 16),
    "mixer": Member("mixers", 256, 32), "gmlp": Member("mixers", 256, 32), "poolformer": Member("mixers", 256, 16),
    "vit_tiny_4": Member("transformers", 256, 8), "cct": Member("transformers", 256, 16),
    "swin": Member("transformers", 128, 8),
    "unet": Member("maps to maps", 64, 2), "hourglass": Member("maps to maps", 128, 8),
    "dcgan": Member("maps to maps", 256, 32),
}


def alpha_network(name: str) -> Any:
    """Returns alpha's network: a shipped one, or one of this folder.  Raises ConfigError for an unknown name."""
    import models
    from alpha import nn
    from benchmarks.zoo import convs, tokens
    own = {**convs.NETWORKS, **tokens.NETWORKS}
    made: Any = own[name]() if name in own else models.create(name)
    for layer in made.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
    return made


def torch_network(name: str) -> Any:
    """Returns PyTorch's network of the same parameters.  Raises KeyError for an unknown name."""
    from torch import nn

    from benchmarks.torch_models import TWINS
    from benchmarks.zoo import torch_convs, torch_tokens
    made = {**TWINS, **torch_convs.TWINS, **torch_tokens.TWINS}[name]()
    for layer in made.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
    return made
