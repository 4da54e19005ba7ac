"""The convolutions that are measured beside cuDNN, and how fast each has to be there.

layers: v of VGG and ResNet at batch 512, from 32x32 maps down to 2x2; d the same with stride 2; e 5x5 filters with
stride 2; p32 a projection shortcut; b batch 128; in3 the first layer of a network.
paper3, paper5: the protocol of arXiv 2306.15951, section V: eight cases each, maps from 128x128 down to 1x1, more
images and channels as they shrink, stride 2. It does not print the numbers of images and channels: these here keep the
operations of the first seven cases equal.
networks: the training shapes of the shipped networks.
groups: 3x3 filters of narrow groups, at stride 1 and 2.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any, NamedTuple

from alpha.ops.conv_desc import Axis, ConvDesc, Pair

PASSES = ("fprop", "dgrad", "wgrad")
WGRAD_BAR_BELOW = 40.0  # TFLOP/s: where cuDNN is faster than this it has left the direct algorithm


class ConvShape(NamedTuple):
    """A square convolution: x (n, hw, hw, ic), w (oc, f, f, ic / groups)."""

    name: str
    n: int
    hw: int
    ic: int
    oc: int
    f: int
    padding: int
    stride: int
    groups: int = 1

    @property
    def geometry(self) -> dict[str, Pair | int]:
        """The attributes of the three convolution ops, canonical."""
        return dict(stride=(self.stride,) * 2, padding=(self.padding,) * 2, dilation=(1, 1), groups=self.groups)

    @property
    def desc(self) -> ConvDesc:
        return ConvDesc.fprop((self.n, self.hw, self.hw, self.ic),
                              (self.oc, self.f, self.f, self.ic // self.groups), **self.geometry)  # type: ignore[arg-type]


SHAPES = tuple(ConvShape(*row) for row in (
    ("v1", 512, 32, 64, 64, 3, 1, 1), ("v2", 512, 16, 128, 128, 3, 1, 1), ("v3", 512, 8, 256, 256, 3, 1, 1),
    ("v4", 512, 4, 512, 512, 3, 1, 1), ("v5", 512, 2, 512, 512, 3, 1, 1),
    ("d32", 512, 32, 64, 128, 3, 1, 2), ("d16", 512, 16, 128, 256, 3, 1, 2), ("d8", 512, 8, 256, 512, 3, 1, 2),
    ("d4", 512, 4, 512, 512, 3, 1, 2),
    ("e32", 512, 32, 64, 128, 5, 2, 2), ("e16", 512, 16, 128, 256, 5, 2, 2), ("e8", 512, 8, 256, 512, 5, 2, 2),
    ("e4", 512, 4, 512, 512, 5, 2, 2),
    ("p32", 512, 32, 64, 128, 1, 0, 2), ("b128", 128, 8, 256, 256, 3, 1, 1), ("b128d", 128, 16, 128, 256, 3, 1, 2),
    ("in3", 512, 32, 3, 64, 3, 1, 1)))

# Layers of GoogLeNet, whose channels are no multiples of 64, or whose filters are 1x1; g8 is its first one as tensor
# cores read it.
NARROW = tuple(ConvShape(*row) for row in (
    ("g8", 512, 32, 8, 192, 3, 1, 1), ("g16", 512, 32, 16, 32, 3, 1, 1), ("g32", 512, 32, 32, 96, 3, 1, 1),
    ("g48", 512, 16, 48, 48, 3, 1, 1), ("g96", 512, 32, 96, 128, 3, 1, 1), ("g112", 512, 16, 112, 224, 3, 1, 1),
    ("g128", 512, 32, 128, 192, 3, 1, 1), ("g144", 512, 16, 144, 288, 3, 1, 1), ("g160", 512, 16, 160, 320, 3, 1, 1),
    ("g192", 512, 32, 192, 64, 1, 0, 1), ("g256", 512, 32, 256, 128, 1, 0, 1), ("g480", 512, 16, 480, 192, 1, 0, 1),
    ("g512", 512, 16, 512, 144, 1, 0, 1), ("g528", 512, 16, 528, 160, 1, 0, 1), ("g832", 512, 8, 832, 384, 1, 0, 1)))

# Groups of 2 to 32 channels, as ResNeXt, RegNet and DPN have them; n: stride 1, m: stride 2, then channels of a group.
GROUPS = tuple(ConvShape(f"{letter}{ic // groups} {n}x{hw}x{hw}x{ic}", n, hw, ic, ic, 3, 1, stride, groups)
               for letter, stride in (("n", 1), ("m", 2)) for n, hw, ic, groups in (
                   (256, 32, 128, 32), (256, 16, 256, 32), (256, 8, 512, 32), (256, 4, 1024, 32), (256, 32, 128, 16),
                   (256, 16, 256, 8), (256, 32, 64, 32), (64, 56, 128, 32)))


PAPER = ((128, 32, 64, 64), (64, 64, 64, 128), (32, 128, 128, 128), (16, 256, 128, 256), (8, 512, 256, 256),
         (4, 1024, 256, 512), (2, 2048, 512, 512), (1, 4096, 512, 512))  # map, images, channels in, channels out
CPU_SHARE = 32  # a CPU gets one in 32 of the images in the paper's cases


def paper(f: int, device: str) -> tuple[ConvShape, ...]:
    """Returns the paper's eight cases for filters of f x f, as many images as the device bears."""
    share = CPU_SHARE if device == "cpu" else 1
    return tuple(ConvShape(f"{hw}x{hw} {ic}-{oc} {f}x{f}/2", n // share, hw, ic, oc, f, f // 2, 2)
                 for hw, n, ic, oc in PAPER)


def squares(kernels: Iterable[int], maps: Iterable[int], channels: Iterable[int], depthwise: bool, flops: float,
            most: int) -> Iterator[ConvShape]:
    """Yields convolutions of the same padding, of at most so many images, and of about so many FLOP where they can."""
    for f, hw, c in product(kernels, maps, channels):
        groups = c if depthwise else 1
        images = int(max(1, min(most, flops // (2 * hw * hw * f * f * c * c // groups))))
        yield ConvShape(f"{f}x{f} {hw}^2 {c}" + " depthwise" * depthwise, images, hw, c, c, f, f // 2, 1, groups)


def network_shapes(names: Iterable[str], batch: int) -> dict[ConvShape, dict[str, int]]:
    """Returns every convolution of some of the shipped networks, and how often each network has it."""
    import alpha
    import models
    from alpha import nn
    found: dict[ConvShape, dict[str, int]] = {}
    for name in names:
        net = models.create(name)

        def note(layer: nn.Conv2d, args: tuple[Any, ...], y: Any, name: str = name) -> None:
            hw, f, s = args[0].shape[1], layer.kernel_size[0], layer.stride[0]
            title = f"{hw}x{hw} {layer.in_channels}-{layer.out_channels} {f}x{f}" + (f"/{s}" if s > 1 else "")
            shape = ConvShape(title, batch, hw, layer.in_channels, layer.out_channels, f, layer.padding[0], s)
            count = found.setdefault(shape, {})
            count[name] = count.get(name, 0) + 1
        for module in net.modules():
            if isinstance(module, nn.Conv2d):
                module.register_forward_hook(note)
        with alpha.no_grad():
            net.eval()(alpha.zeros((1, 32, 32, 3)))
    return found


def table2_flops(desc: ConvDesc, pass_name: str) -> int:
    """Returns the operations of a pass by the formulas of arXiv 2306.15951, Table II: every zero is multiplied.

    As printed, the filters' gradient has no N; the sum runs over the images too, and they are counted here.
    """
    per_tap = 2 * desc.n * desc.oc * desc.ic * desc.h.f * desc.w.f
    if pass_name == "fprop":
        return per_tap * desc.h.o * desc.w.o
    if pass_name == "dgrad":
        return per_tap * desc.h.i * desc.w.i
    return per_tap * (desc.h.o + (desc.h.o - 1) * (desc.h.s - 1)) * (desc.w.o + (desc.w.o - 1) * (desc.w.s - 1))


def moved_bytes(desc: ConvDesc, pass_name: str, itemsize: int) -> int:
    """Returns the least that a pass must read and write: not the inputs that strides leap over, but all of dx."""
    def met(axis: Axis) -> int:
        return len({o * axis.s + f * axis.d - axis.p for o in range(axis.o) for f in range(axis.f)} & {*range(axis.i)})
    leapt = 0 if pass_name == "dgrad" else desc.h.i * desc.w.i - met(desc.h) * met(desc.w)
    return desc.nbytes(itemsize) - itemsize * desc.n * desc.ic * leapt


def bar(shape: ConvShape, pass_name: str, cudnn_tflops: float) -> float | None:
    """Returns how many times as fast as cuDNN a pass has to be; None where nothing is asked of it.

    Args:
        cudnn_tflops: cuDNN's rate in its better layout, products with padded zeros counted.
    """
    if pass_name == "fprop":
        return 1.3 if shape.hw <= 4 else 0.9
    if pass_name == "dgrad":
        return 3.0 if shape.name in ("d4", "e4") else 1.5 if shape.stride > 1 else 1.0
    return 1.2 if cudnn_tflops < WGRAD_BAR_BELOW else None


def waves(desc: ConvDesc, sm_count: int, tile: int = 128) -> float:
    """Returns how often the multiprocessors are filled by blocks of tile x tile outputs of the forward pass."""
    n, oh, ow, oc = desc.y_shape
    return -(-n * oh * ow // tile) * -(-oc // tile) / sm_count
