"""ConvNeXt.  Parameters have torchvision's names."""

from __future__ import annotations

from alpha import Tensor, nn, ops

from . import STEMS, check_option, register_model

EPS = 1e-6


class ConvNeXtBlock(nn.Module):
    """y = x + layer_scale * linear(gelu(linear(norm(depthwise 7x7(x))))), four times the channels in between."""

    torch_channels_first = ("layer_scale",)     # (C, 1, 1) there

    def __init__(self, channels: int, scale: float) -> None:
        self.block = nn.Sequential({
            "0": nn.Conv2d(channels, channels, 7, padding=3, groups=channels), "2": nn.LayerNorm(channels, eps=EPS),
            "3": nn.Linear(channels, 4 * channels), "4": nn.GELU(), "5": nn.Linear(4 * channels, channels)})
        self.layer_scale = nn.Parameter(ops.full((1, 1, channels), scale))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layer_scale * self.block(x)


class ConvNeXt(nn.Module):
    """A convolution without overlap, stages of blocks with a 2x2 one between each two, average pool, norm, linear.

    Args:
        channels, blocks: of each stage.
        num_classes: size of the output.
        stem: "small": the first convolution is 2x2, for 32x32 images; "imagenet": 4x4, for 224x224.
        scale: first value of layer_scale.
    Raises:
        ConfigError: the stem is unknown.
    """

    def __init__(self, channels: tuple[int, ...], blocks: tuple[int, ...], num_classes: int, stem: str = "small",
                 scale: float = 1e-6) -> None:
        check_option("ConvNeXt", "stem", stem, STEMS)
        patch = 4 if stem == "imagenet" else 2
        parts: list[nn.Module] = [nn.Sequential(nn.Conv2d(3, channels[0], patch, stride=patch),
                                                nn.LayerNorm(channels[0], eps=EPS))]
        for stage, (c, count) in enumerate(zip(channels, blocks)):
            if stage:
                parts.append(nn.Sequential(nn.LayerNorm(channels[stage - 1], eps=EPS),
                                           nn.Conv2d(channels[stage - 1], c, 2, stride=2)))
            parts.append(nn.Sequential(*[ConvNeXtBlock(c, scale) for _ in range(count)]))
        self.features = nn.Sequential(*parts)
        self.classifier = nn.Sequential(nn.LayerNorm(channels[-1], eps=EPS), nn.Identity(),
                                        nn.Linear(channels[-1], num_classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(ops.adaptive_avg_pool2d(self.features(x), 1).flatten(1))


@register_model
def convnext_tiny(num_classes: int, stem: str = "small", scale: float = 1e-6) -> ConvNeXt:
    """ConvNeXt-T (Liu et al., arXiv 2201.03545) with a 2x2 stem and without stochastic depth.
    27,824,362 parameters with 10 classes. stem="imagenet" makes the paper's network for 224x224 images: 28,589,128
    parameters with 1,000 classes.
    """
    return ConvNeXt((96, 192, 384, 768), (3, 3, 9, 3), num_classes, stem, scale)
