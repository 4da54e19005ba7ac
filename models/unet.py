"""U-Net: a class for each pixel."""

from __future__ import annotations

from alpha import Tensor, nn, ops

from . import register_model


def double_conv(in_channels: int, channels: int) -> nn.Sequential:
    """Twice a 3x3 convolution that keeps the map, batch norm and ReLU."""
    parts: list[nn.Module] = []
    for before in (in_channels, channels):
        parts += [nn.Conv2d(before, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()]
    return nn.Sequential(*parts)


class Up(nn.Module):
    """y = conv(concat(skip, up(x))): up doubles the map and halves the channels; zeros where skip has a pixel more."""

    def __init__(self, in_channels: int, channels: int) -> None:
        self.up = nn.ConvTranspose2d(in_channels, in_channels // 2, 2, stride=2)
        self.conv = double_conv(in_channels, channels)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        x = self.up(x)
        more = [skip.shape[axis] - x.shape[axis] for axis in (1, 2)]
        if any(more):
            x = ops.pad(x, ((0, 0), *((k // 2, k - k // 2) for k in more), (0, 0)))
        return self.conv(ops.concat([skip, x], axis=-1))


class UNet(nn.Module):
    """Double convolutions with max pools down to a sixteenth of the map, and up again beside the maps of the way down.

    Args:
        num_classes: channels of the output, (N, H, W, num_classes).
        in_channels: channels of the images.
        channels: of the first double convolution; each pool doubles them.
    """

    def __init__(self, num_classes: int, in_channels: int = 3, channels: int = 64) -> None:
        wide = [channels << k for k in range(5)]
        self.inc = double_conv(in_channels, channels)
        for k in range(4):
            setattr(self, f"down{k + 1}", nn.Sequential(nn.MaxPool2d(2), double_conv(wide[k], wide[k + 1])))
            setattr(self, f"up{k + 1}", Up(wide[4 - k], wide[3 - k]))
        self.outc = nn.Conv2d(channels, num_classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        maps = [self.inc(x)]
        for k in range(1, 5):
            maps.append(getattr(self, f"down{k}")(maps[-1]))
        x = maps.pop()
        for k in range(1, 5):
            x = getattr(self, f"up{k}")(x, maps.pop())
        return self.outc(x)


@register_model
def unet(num_classes: int, in_channels: int = 3, channels: int = 64) -> UNet:
    """U-Net (Ronneberger et al., arXiv 1505.04597) with batch norm and padding: a class for each pixel.
    31,038,218 parameters with 10 classes. Targets are masks (N, H, W) of class numbers.
    """
    return UNet(num_classes, in_channels, channels)
