"""The catalogue of convolution shapes: every test and every benchmark takes its shapes from here.

`NETWORKS` holds the layers of the shipped networks on 32x32 images, `PAPER` the two series of arXiv 2306.15951,
`EDGE` geometries that are easily got wrong. `small(case)` keeps the geometry, and shrinks batch, channels and large
maps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from alpha.ops.conv_desc import ConvDesc


class Shapes:
    """The shapes of a case's tensors."""

    n: int
    hw: tuple[int, int]
    ic: int
    oc: int
    f: tuple[int, int]
    groups: int

    @property
    def x_shape(self) -> tuple[int, ...]:
        return self.n, *self.hw, self.ic

    @property
    def w_shape(self) -> tuple[int, ...]:
        return self.oc, *self.f, self.ic // self.groups


@dataclass(frozen=True)
class Case(Shapes):
    """One convolution.  Pairs are (height, width)."""

    name: str
    n: int
    hw: tuple[int, int]
    ic: int
    oc: int
    f: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1

    @property
    def attrs(self) -> dict:
        """The keyword arguments of conv2d."""
        return {"stride": self.stride, "padding": self.padding, "dilation": self.dilation, "groups": self.groups}

    @property
    def desc(self) -> ConvDesc:
        return ConvDesc.fprop(self.x_shape, self.w_shape, **self.attrs)

    def small(self) -> Case:
        """Returns the case with batch <= 3, at most 3 groups, <= 7 channels per group and maps of at most 17."""
        groups = min(self.groups, 3)
        h, w = (min(i, 16 + i % 2) for i in self.hw)
        return replace(self, n=min(self.n, 3), groups=groups, hw=(h, w),
                       ic=groups * min(self.ic // self.groups, 5), oc=groups * min(self.oc // self.groups, 7))


def square(name: str, n: int, i: int, ic: int, oc: int, f: int, stride: int = 1, padding: int = 0,
           dilation: int = 1, groups: int = 1) -> Case:
    """Returns a case whose two axes are alike."""
    return Case(name, n, (i, i), ic, oc, (f, f), (stride, stride), (padding, padding), (dilation, dilation), groups)


LENET5 = (square("lenet5.conv1", 8, 32, 3, 6, 5), square("lenet5.conv2", 8, 14, 6, 16, 5))


def vgg16() -> tuple[Case, ...]:
    """The thirteen 3x3 layers of VGG-16; a pool halves the map after each stage."""
    cases, ic = [], 3
    for stage, (i, oc, depth) in enumerate(((32, 64, 2), (16, 128, 2), (8, 256, 3), (4, 512, 3), (2, 512, 3)), 1):
        for k in range(1, depth + 1):
            cases.append(square(f"vgg16.conv{stage}_{k}", 8, i, ic, oc, 3, 1, 1))
            ic = oc
    return tuple(cases)


def resnet18() -> tuple[Case, ...]:
    """The distinct layers of ResNet-18: stem, and per stage the strided, the plain and the shortcut convolution."""
    cases, i, ic = [square("resnet18.stem", 8, 32, 3, 64, 3, 1, 1)], 32, 64
    for stage, oc in enumerate((64, 128, 256, 512), 1):
        stride = 1 if stage == 1 else 2
        if stride == 2:
            cases.append(square(f"resnet18.stage{stage}.down", 8, i, ic, oc, 3, 2, 1))
            cases.append(square(f"resnet18.stage{stage}.shortcut", 8, i, ic, oc, 1, 2))
        i, ic = i // stride, oc
        cases.append(square(f"resnet18.stage{stage}.conv", 8, i, ic, oc, 3, 1, 1))
    return tuple(cases)


INCEPTION = {  # name: map, in_channels, 1x1, 3x3 reduce, 3x3, 5x5 reduce, 5x5 (as two 3x3), pool projection
    "3a": (32, 192, 64, 96, 128, 16, 32, 32), "3b": (32, 256, 128, 128, 192, 32, 96, 64),
    "4a": (16, 480, 192, 96, 208, 16, 48, 64), "4b": (16, 512, 160, 112, 224, 24, 64, 64),
    "4c": (16, 512, 128, 128, 256, 24, 64, 64), "4d": (16, 512, 112, 144, 288, 32, 64, 64),
    "4e": (16, 528, 256, 160, 320, 32, 128, 128), "5a": (8, 832, 256, 160, 320, 32, 128, 128),
    "5b": (8, 832, 384, 192, 384, 48, 128, 128)}


def googlenet() -> tuple[Case, ...]:
    """The stem and the nine inception blocks of GoogLeNet for 32x32 images."""
    cases = [square("googlenet.stem", 4, 32, 3, 192, 3, 1, 1)]
    for name, (i, ic, b1, r3, b3, r5, b5, proj) in INCEPTION.items():
        layers = (("b1", ic, b1, 1), ("b2.reduce", ic, r3, 1), ("b2.conv", r3, b3, 3), ("b3.reduce", ic, r5, 1),
                  ("b3.conv1", r5, b5, 3), ("b3.conv2", b5, b5, 3), ("b4.project", ic, proj, 1))
        cases += [square(f"googlenet.{name}.{layer}", 4, i, c, k, f, 1, f // 2) for layer, c, k, f in layers]
    return tuple(cases)


def paper_series(f: int) -> tuple[Case, ...]:
    """Eight cases of filter f, padding f // 2 and stride 2: maps shrink while channels and batch grow.

    The paper states filter, padding, stride and the direction of the series but not its sizes: these are ours.
    """
    sizes = ((16, 128, 32, 64), (32, 96, 32, 64), (64, 64, 64, 64), (64, 48, 64, 128), (128, 32, 64, 128),
             (256, 16, 128, 256), (512, 8, 256, 512), (512, 4, 512, 512))
    return tuple(square(f"paper.{f}x{f}p{f // 2}.{k}", n, i, ic, oc, f, 2, f // 2)
                 for k, (n, i, ic, oc) in enumerate(sizes, 1))


NETWORKS = {"lenet5": LENET5, "vgg16": vgg16(), "resnet18": resnet18(), "googlenet": googlenet()}
PAPER = paper_series(3) + paper_series(5)
EDGE = (
    square("edge.map1_3x3p1", 4, 1, 16, 24, 3, 1, 1),
    square("edge.map1_1x1", 4, 1, 16, 24, 1),
    square("edge.kernel_over_map", 3, 2, 5, 7, 5, 1, 2),
    square("edge.kernel_over_map_stride", 3, 3, 5, 7, 7, 2, 3),
    square("edge.stride_over_kernel", 3, 9, 5, 7, 2, 3),
    square("edge.stride_over_kernel_padded", 2, 10, 4, 6, 2, 5, 1),
    square("edge.outputs_without_tap", 2, 3, 5, 7, 2, 1, 4),
    square("edge.inputs_without_tap", 2, 7, 5, 7, 1, 3),
    square("edge.padding_of_kernel", 2, 5, 3, 4, 3, 1, 3),
    square("edge.unread_last_inputs", 2, 8, 3, 4, 3, 3),
    square("edge.stride4_5x5", 2, 17, 3, 5, 5, 4, 2),
    square("edge.batch1", 1, 13, 9, 11, 3, 1, 1),
    square("edge.one_channel", 2, 11, 1, 1, 3, 2, 1),
    square("edge.padding_alone", 2, 1, 3, 4, 1, 3, 1),
    Case("edge.padding_alone_rows", 2, (1, 1), 8, 8, (1, 1), (3, 1), (1, 0)),
    square("edge.odd_channels", 2, 7, 65, 33, 3, 1, 1),
    square("edge.dilation2", 2, 12, 6, 8, 3, 1, 2, 2),
    square("edge.dilation3_stride2", 2, 13, 6, 8, 3, 2, 3, 3),
    square("edge.dilation2_stride2", 2, 13, 6, 8, 3, 2, 2, 2),
    square("edge.dilation2_stride4", 2, 15, 3, 4, 4, 4, 3, 2),
    square("edge.dilation6_stride4", 2, 19, 3, 4, 3, 4, 6, 6),
    square("edge.dilation_over_map", 2, 3, 4, 5, 3, 1, 5, 5),
    square("edge.groups2", 2, 9, 8, 12, 3, 1, 1, 1, 2),
    square("edge.groups3_stride2", 2, 9, 9, 6, 3, 2, 1, 1, 3),
    square("edge.groups4_dilation2", 2, 8, 16, 16, 3, 1, 2, 2, 4),
    square("edge.groups2_map2", 2, 2, 6, 4, 3, 1, 1, 1, 2),
    square("edge.depthwise", 2, 14, 32, 32, 3, 1, 1, 1, 32),
    square("edge.depthwise_stride2", 2, 15, 24, 24, 5, 2, 2, 1, 24),
    square("edge.depthwise_multiplier", 2, 7, 6, 18, 3, 1, 1, 1, 6),
    square("edge.depthwise_dilation", 2, 11, 7, 7, 3, 2, 2, 2, 7),
    Case("edge.asymmetric", 2, (9, 14), 4, 6, (3, 5), (2, 1), (0, 2)),
    Case("edge.asymmetric_dilation", 2, (13, 6), 4, 6, (2, 3), (1, 3), (2, 1), (3, 1)),
    Case("edge.row_filter", 2, (6, 17), 4, 6, (1, 7), (1, 2), (0, 3)),
    Case("edge.column_filter", 2, (17, 6), 4, 6, (7, 1), (2, 1), (3, 0)),
    Case("edge.one_row", 2, (1, 20), 3, 5, (3, 3), (1, 2), (1, 1)),
)
CASES = tuple(case for network in NETWORKS.values() for case in network) + PAPER + EDGE


def small_cases() -> tuple[Case, ...]:
    """Returns the small variants of the catalogue, each shape once."""
    distinct: dict[Case, Case] = {}
    for case in CASES:
        distinct.setdefault(replace(case.small(), name=""), case.small())
    return tuple(distinct.values())
