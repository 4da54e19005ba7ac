"""The small network of airbench, made for fast training on CIFAR-10.

Its first layer whitens patches of 2x2 pixels: its filters are computed from images, and are not trained. The training
program does that before the first step; elsewhere it is `model.init_from_data(images)`.
"""

from __future__ import annotations

import numpy as np

from alpha import Tensor, nn
from alpha.core.graph import no_grad

from . import register_model

SCALE = 1 / 9   # of the linear layer's input
EPSILON = 5e-4  # added to the variance of each component of patches


class ConvGroup(nn.Module):
    """Two 3x3 convolutions, each with a norm and GELU; a 2x2 max pool behind the first one."""

    def __init__(self, in_channels: int, channels: int) -> None:
        self.conv1 = nn.Conv2d(in_channels, channels, 3, padding=1, bias=False)
        self.pool = nn.MaxPool2d(2)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.activ = nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        x = self.activ(self.norm1(self.pool(self.conv1(x))))
        return self.activ(self.norm2(self.conv2(x, for_norm=self.training)))


class Airbench(nn.Sequential):
    """A Sequential whose first layer is a convolution that whitens."""

    def init_from_data(self, x: Tensor) -> None:
        """Makes the filters of the first layer: patches projected on their principal components, each with variance 1.

        Both signs of each component are there, as a GELU follows; the filters are frozen, the bias is trained.
        Args:
            x: some thousand images, normalised.  Shape (N, H, W, C).
        """
        first = self[0]
        assert isinstance(first, nn.Conv2d)
        weight = whitening(x.numpy(), first.weight.shape[1])
        with no_grad():
            first.weight.copy_(np.concatenate([weight, -weight]))
        first.weight.requires_grad_(False)


def whitening(images: np.ndarray, size: int) -> np.ndarray:
    """Returns filters whose outputs on patches of images are uncorrelated and have variance 1.

    Args:
        images: shape (N, H, W, C).
        size: height and width of the patches.
    Returns:
        shape (size * size * C, size, size, C), float32, the component of the largest variance first.
    """
    patches = np.lib.stride_tricks.sliding_window_view(images, (size, size), axis=(1, 2))  # (N, OH, OW, C, size, size)
    rows = patches.transpose(0, 1, 2, 4, 5, 3).reshape(-1, size * size * images.shape[3])
    variance, vectors = np.linalg.eigh(rows.T @ rows / len(rows))
    scaled_vectors = vectors / np.sqrt(variance + EPSILON)
    return scaled_vectors.T[::-1].reshape(-1, size, size, images.shape[3]).astype(np.float32)


@register_model
def airbench94(num_classes: int) -> Airbench:
    """The network of airbench94 (Jordan, arXiv 2404.00498); its first layer is made of images.
    1,972,792 parameters with 10 classes.
    """
    return Airbench(nn.Conv2d(3, 24, 2), nn.GELU(), ConvGroup(24, 64), ConvGroup(64, 256), ConvGroup(256, 256),
                    nn.MaxPool2d(3), nn.Flatten(), nn.Lambda(scaled), nn.Linear(256, num_classes, bias=False))


def scaled(x: Tensor) -> Tensor:
    return x * SCALE
