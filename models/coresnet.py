"""Contextual residual networks: 4, 3, 2 and 1 dilations in the 3x3 convolutions of the four stages."""

from __future__ import annotations

from alpha import nn, ops

from . import check_option, register_model
from .resnet import BasicBlock, Bottleneck, ResNet

LEVELS = (4, 3, 2, 1)


class CoResNet(ResNet):
    """A ResNet whose 3x3 convolutions in residual blocks are contextual; as many parameters as the plain one.

    Args:
        block: Bottleneck, with one contextual convolution; BasicBlock, with two.
        blocks: number of blocks per stage.
        num_classes: size of the output.
        stem: "small", a 3x3 convolution for 32x32 images; "imagenet", 7x7 with stride 2 and a max pool, for 224x224.
            With the latter the weights go to PyTorch by the names of the authors' networks.
        bn_end_stage: whether the last block of each stage has its last norm behind the addition, as the authors'.
        init: "fan_in", PyTorch's default; "fan_out", the authors' normal one for each level by itself.
    Raises:
        ConfigError: stem or init is unknown.
    """

    def __init__(self, block: type[BasicBlock] | type[Bottleneck], blocks: tuple[int, ...], num_classes: int,
                 stem: str = "small", bn_end_stage: bool = False, init: str = "fan_in") -> None:
        check_option("CoResNet", "init", init, ("fan_in", "fan_out"))
        super().__init__(block, blocks, 64, num_classes, levels=LEVELS, bn_end_stage=bn_end_stage, stem=stem)
        if init == "fan_out":
            for module in self.modules():
                if isinstance(module, (nn.Conv2d, nn.CoConv2d)):
                    _draw(module)


def _draw(conv: nn.Conv2d | nn.CoConv2d) -> None:
    """Draws the weight anew: normal, with a variance of 2 / fan_out of each level."""
    channels = conv.channels if isinstance(conv, nn.CoConv2d) else (conv.out_channels,)
    parts = [nn.init.kaiming_normal_(ops.zeros((count, *conv.weight.shape[1:])), mode="fan_out", nonlinearity="relu")
             for count in channels]
    conv.weight.copy_(ops.concat(parts))


@register_model
def coresnet18(num_classes: int, stem: str = "small", bn_end_stage: bool = False, init: str = "fan_in") -> CoResNet:
    """ResNet-18 with contextual convolutions (Duta et al., arXiv 2108.07387) in its blocks, the strided ones too.
    11,173,962 parameters with 10 classes, as resnet18.
    Options: stem="imagenet", bn_end_stage=True, init="fan_out"; see CoResNet.
    """
    return CoResNet(BasicBlock, (2, 2, 2, 2), num_classes, stem, bn_end_stage, init)


@register_model
def coresnet50(num_classes: int, stem: str = "small", bn_end_stage: bool = False, init: str = "fan_in") -> CoResNet:
    """CoResNet-50 (Duta et al., arXiv 2108.07387) with a 3x3 stem and no first pool.
    23,520,842 parameters with 10 classes, as resnet50.
    Options: stem="imagenet", bn_end_stage=True, init="fan_out" make the authors' network; see CoResNet.
    """
    return CoResNet(Bottleneck, (3, 4, 6, 3), num_classes, stem, bn_end_stage, init)


@register_model
def coresnet101(num_classes: int, stem: str = "small", bn_end_stage: bool = False, init: str = "fan_in") -> CoResNet:
    """CoResNet-101 (Duta et al., arXiv 2108.07387) with a 3x3 stem and no first pool.
    42,512,970 parameters with 10 classes, as resnet101.
    Options: stem="imagenet", bn_end_stage=True, init="fan_out" make the authors' network; see CoResNet.
    """
    return CoResNet(Bottleneck, (3, 4, 23, 3), num_classes, stem, bn_end_stage, init)


@register_model
def coresnet152(num_classes: int, stem: str = "small", bn_end_stage: bool = False, init: str = "fan_in") -> CoResNet:
    """CoResNet-152 (Duta et al., arXiv 2108.07387) with a 3x3 stem and no first pool.
    58,156,618 parameters with 10 classes, as resnet152.
    Options: stem="imagenet", bn_end_stage=True, init="fan_out" make the authors' network; see CoResNet.
    """
    return CoResNet(Bottleneck, (3, 8, 36, 3), num_classes, stem, bn_end_stage, init)
