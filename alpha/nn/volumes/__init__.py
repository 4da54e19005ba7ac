"""Layers over volumes (N, D, H, W, C), channels last, each composed of layers over maps."""

from alpha.nn.volumes.conv import Conv3d, ConvTranspose3d
from alpha.nn.volumes.pool import AdaptiveAvgPool3d, AdaptiveMaxPool3d, AvgPool3d, MaxPool3d

__all__ = ["AdaptiveAvgPool3d", "AdaptiveMaxPool3d", "AvgPool3d", "Conv3d", "ConvTranspose3d", "MaxPool3d"]
