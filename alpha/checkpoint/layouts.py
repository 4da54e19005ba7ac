"""Which parameters PyTorch stores in another order: the modules that take them say so.

A module names its parameters and buffers whose channels PyTorch has in front of height and width in
`torch_channels_first`; a Linear behind a flattened map has `flattened=(H, W, C)`. All others are stored alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from alpha import nn, ops
from alpha.core.errors import CheckpointError, message
from alpha.core.inputs.schema import shown
from alpha.nn import BatchNorm2d, Linear, Module, Sequential


@dataclass(frozen=True)
class Layout:
    """How one parameter is turned: with its channels third from last in PyTorch, or with columns of a (H, W, C) map."""

    flattened: tuple[int, int, int] | None = None
    space: int = 2      # axes between the channels and the end

    def from_torch(self, a: np.ndarray) -> np.ndarray:
        """Returns the array in the order of alpha; one of another shape than expected as it is."""
        if self.flattened is None:
            return np.ascontiguousarray(np.moveaxis(a, -1 - self.space, -1)) if a.ndim > self.space else a
        h, w, c = self.flattened
        if a.ndim != 2 or a.shape[1] != h * w * c:
            return a
        return np.ascontiguousarray(np.moveaxis(a.reshape(-1, c, h, w), -3, -1)).reshape(a.shape)

    def to_torch(self, a: np.ndarray) -> np.ndarray:
        """The inverse of from_torch."""
        if self.flattened is None:
            return np.ascontiguousarray(np.moveaxis(a, -1, -1 - self.space))
        return np.ascontiguousarray(np.moveaxis(a.reshape(-1, *self.flattened), -1, -3)).reshape(a.shape)


def layouts(where: str, model: Module) -> dict[str, Layout]:
    """Returns the layout of each parameter that PyTorch stores in another order, by its path.

    Raises CheckpointError where `torch_channels_first` does not name tensors of three axes or more.
    """
    found = {}
    for prefix, module in paths(model):
        names = module.torch_channels_first
        if not isinstance(names, (tuple, list)) or not all(isinstance(name, str) for name in names):
            raise CheckpointError(message(where, f"{type(module).__name__}.torch_channels_first is {shown(names)}, not "
                                          "a tuple of names", 'write torch_channels_first = ("weight",)'))
        for name in names:
            if name in vars(module).get("parametrizations", ()):
                continue    # computed from others, which say so themselves
            t = getattr(module, name, None)
            if t is None:
                continue  # such as the bias of a layer without one
            if len(getattr(t, "shape", ())) < 3:
                raise CheckpointError(message(where, f"{type(module).__name__}.torch_channels_first has {name!r}, "
                                              "which is no parameter of height, width and channels",
                                              "name parameters and buffers of three axes or more"))
            found[prefix + name] = Layout(space=module.torch_space)
        if isinstance(module, Linear) and module.flattened:
            found[prefix + "weight"] = Layout(module.flattened)
    return found


def counters(model: Module) -> list[str]:
    """Returns the names of the counters that PyTorch's batch norms have and ours do not."""
    return [f"{prefix}num_batches_tracked" for prefix, module in paths(model)
            if isinstance(module, BatchNorm2d) and module.running_mean is not None and module.momentum is not None]


def paths(module: Module, prefix: str = "") -> Iterator[tuple[str, Module]]:
    """Yields (prefix of its names, module) of a module and of all below it; a shared module once per path."""
    yield prefix, module
    for name, child in module.named_children():
        yield from paths(child, f"{prefix}{name}.")


# ---- a Linear behind a flattened map that does not say so ------------------------------------------------------------

# names: same channels, written by python -m tools.names
_SAME_CHANNELS = (
    nn.Identity, nn.CELU, nn.ELU, nn.GELU, nn.SELU, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, nn.AvgPool2d,
    nn.Dropout, nn.Hardshrink, nn.Hardsigmoid, nn.Hardswish, nn.Hardtanh, nn.LayerNorm, nn.LeakyReLU,
    nn.LocalResponseNorm, nn.LogSigmoid, nn.LogSoftmax, nn.MaxPool2d, nn.Mish, nn.PReLU, nn.RMSNorm, nn.ReLU, nn.ReLU6,
    nn.SiLU, nn.Sigmoid, nn.Softmax, nn.Softmax2d, nn.Softmin, nn.Softplus, nn.Softshrink, nn.Softsign, nn.Tanh,
    nn.Tanhshrink, nn.Threshold,
)
_SAME_CHANNELS_OPS = (
    ops.adaptive_avg_pool2d, ops.adaptive_max_pool2d, ops.avg_pool2d, ops.celu, ops.dropout, ops.elu, ops.gelu,
    ops.gelu_tanh, ops.hardshrink, ops.hardsigmoid, ops.hardswish, ops.hardtanh, ops.layer_norm, ops.leaky_relu,
    ops.local_response_norm, ops.log_softmax, ops.logsigmoid, ops.max_pool2d, ops.mish, ops.prelu, ops.relu, ops.relu6,
    ops.rms_norm, ops.selu, ops.sigmoid, ops.silu, ops.softmax, ops.softmin, ops.softplus, ops.softshrink, ops.softsign,
    ops.tanh, ops.tanhshrink, ops.threshold,
)
# end of names


def check_flattened(where: str, model: Module) -> None:
    """Raises CheckpointError where a Linear reads a flattened map of several pixels, and `flattened` is not given.

    Its columns would come in the wrong order without a word. It is found in a Sequential, and in one within another,
    where the channels of the map follow from the layers of alpha in front of the Flatten.
    """
    for prefix, module in paths(model):
        if isinstance(module, Sequential):
            _check_chain(where, prefix, module)


def _check_chain(where: str, prefix: str, chain: Sequential) -> None:
    channels: int | None = None
    flat = False
    for name, layer in _layers(chain, prefix):
        if isinstance(layer, Linear):
            c = channels or 0
            if flat and not layer.flattened and c and layer.in_features > c and layer.in_features % c == 0:
                pixels = layer.in_features // c
                side = math.isqrt(pixels)
                shape = f"({side}, {side}, {c})" if side * side == pixels else f"(H, W, {c})"
                raise CheckpointError(message(
                    where, f"{name} reads a flattened map of {c} channels and {pixels} pixels, which PyTorch flattens "
                    "in another order", f"write Linear({layer.in_features}, {layer.out_features}, flattened={shape}), "
                    "with height, width and channels of the map; flattened=(1, 1, "
                    f"{layer.in_features}) if PyTorch's model flattens (H, W, C) too"))
            channels, flat = None, False
        elif isinstance(layer, nn.Flatten) or _function(layer) is ops.flatten:
            flat = True
        elif not isinstance(layer, _SAME_CHANNELS) and not any(_function(layer) is op for op in _SAME_CHANNELS_OPS):
            channels, flat = channels_of(layer), False


def _layers(chain: Sequential, prefix: str) -> Iterator[tuple[str, Module]]:
    """Yields (path, layer) in the order of the calls."""
    for name, child in chain.named_children():
        if isinstance(child, Sequential):
            yield from _layers(child, f"{prefix}{name}.")
        else:
            yield prefix + name, child


def _function(layer: Module) -> Any:
    """Returns the op that a layer is made of; None where it is no function."""
    found = getattr(layer, "function", None) if isinstance(layer, nn.Lambda) else None
    return found.func if isinstance(found, partial) else found


def channels_of(layer: Module) -> int | None:
    """Returns the channels of the map that a layer makes; None where that is not known."""
    if isinstance(layer, (nn.Conv2d, nn.CoConv2d, nn.ConvTranspose2d)):
        return layer.out_channels
    if isinstance(layer, BatchNorm2d):
        return layer.num_features
    return layer.num_channels if isinstance(layer, nn.GroupNorm) else None
