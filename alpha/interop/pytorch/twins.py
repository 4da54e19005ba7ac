"""PyTorch's twin of each layer of alpha: how it is made of the layer's attributes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from alpha import nn
from alpha.core.errors import ConfigError, message
from alpha.nn import Module

WHERE = "to_torch"


def _conv(torch: Any, m: Any) -> Any:
    padding: Any = m.padding
    if any(side for axis in m.border for side in axis):
        if m.padding_mode == "zeros":
            padding = "same"
        elif all(near == far for near, far in m.border):
            padding = tuple([near for near, _ in m.border])
        else:
            raise refuse(f"a Conv2d with padding_mode={m.padding_mode!r} and a border of {m.border}",
                         "use a border that is as wide on both sides")
    return torch.nn.Conv2d(m.in_channels, m.out_channels, m.kernel_size, m.stride, padding, m.dilation, m.groups,
                           m.bias is not None, m.padding_mode)


def _norm(torch: Any, m: Any) -> Any:
    return torch.nn.BatchNorm2d(m.num_features, m.eps, m.momentum, m.weight is not None, m.running_mean is not None)


def _layer_norm(torch: Any, m: Any) -> Any:
    return torch.nn.LayerNorm(m.normalized_shape, m.eps, m.weight is not None, m.bias is not None)


def _pool(torch: Any, m: Any) -> Any:
    return torch.nn.MaxPool2d(m.kernel_size, m.stride, m.padding, m.dilation, ceil_mode=m.ceil_mode)


def _mean_pool(torch: Any, m: Any) -> Any:
    return torch.nn.AvgPool2d(m.kernel_size, m.stride, m.padding, m.ceil_mode, m.count_include_pad, m.divisor_override)


def _attributes(*names: str) -> Callable[[Any, Any], Any]:
    """Returns the maker of a layer that has the same name and the same arguments there."""
    return lambda torch, m: getattr(torch.nn, type(m).__name__)(*[getattr(m, name) for name in names])


# layer -> (how its twin is made, whether its x are maps)
TWINS: dict[type[Module], tuple[Callable[[Any, Any], Any], bool]] = {
    nn.Conv2d: (_conv, True),
    nn.ConvTranspose2d: (lambda torch, m: torch.nn.ConvTranspose2d(
        m.in_channels, m.out_channels, m.kernel_size, m.stride, m.padding, m.output_padding, m.groups,
        m.bias is not None, m.dilation), True),
    nn.BatchNorm2d: (_norm, True),
    nn.GroupNorm: (lambda torch, m: torch.nn.GroupNorm(m.num_groups, m.num_channels, m.eps, m.weight is not None),
                   True),
    nn.InstanceNorm2d: (lambda torch, m: torch.nn.InstanceNorm2d(m.num_features, m.eps, affine=m.weight is not None),
                        True),
    nn.MaxPool2d: (_pool, True),
    nn.AvgPool2d: (_mean_pool, True),
    nn.AdaptiveAvgPool2d: (_attributes("output_size"), True),
    nn.AdaptiveMaxPool2d: (_attributes("output_size"), True),
    nn.PixelShuffle: (_attributes("upscale_factor"), True),
    nn.Dropout2d: (_attributes("p"), True),
    nn.LayerNorm: (_layer_norm, False),
    nn.Linear: (lambda torch, m: torch.nn.Linear(m.in_features, m.out_features, m.bias is not None), False),
    nn.Embedding: (lambda torch, m: torch.nn.Embedding(*m.weight.shape, padding_idx=m.padding_idx), False),
    nn.Dropout: (_attributes("p"), True),
    nn.ReLU: (_attributes(), True), nn.ReLU6: (_attributes(), True), nn.SiLU: (_attributes(), True),
    nn.Mish: (_attributes(), True), nn.SELU: (_attributes(), True), nn.Sigmoid: (_attributes(), True),
    nn.Tanh: (_attributes(), True), nn.Hardswish: (_attributes(), True), nn.Hardsigmoid: (_attributes(), True),
    nn.GELU: (_attributes("approximate"), True), nn.LeakyReLU: (_attributes("negative_slope"), True),
    nn.ELU: (_attributes("alpha"), True),
}

POINTWISE = (nn.Dropout, nn.ReLU, nn.ReLU6, nn.SiLU, nn.Mish, nn.SELU, nn.Sigmoid, nn.Tanh, nn.Hardswish,
             nn.Hardsigmoid, nn.GELU, nn.LeakyReLU, nn.ELU)     # in whatever order the elements lie


def refuse(what: str, fix: str) -> ConfigError:
    """Returns the error of to_torch."""
    return ConfigError(message(WHERE, what, fix))


def is_leaf(module: Module) -> bool:
    """Tells whether a layer has a twin, or is a contextual convolution, which is made of several."""
    return type(module) in TWINS or type(module) is nn.CoConv2d


def twin_of(torch: Any, module: Module) -> Any:
    """Returns PyTorch's layer, of new weights."""
    return TWINS[type(module)][0](torch, module)


def levels_of(torch: Any, m: nn.CoConv2d) -> list[Any]:
    """Returns the convolutions that a contextual one is, a level each."""
    found = []
    for dilation, channels in zip(m.dilations, m.channels):
        padding = tuple([dilation * (k - 1) // 2 for k in m.kernel_size])
        found.append(torch.nn.Conv2d(m.in_channels, channels, m.kernel_size, m.stride, padding, dilation, m.groups,
                                     m.bias is not None))
    return found
