"""The arithmetic of convolution, in one place: output size, tap ranges, FLOPs, bytes.

A convolution along one axis with I inputs, F taps, stride s, padding p and dilation d pairs

    output o  with  input i = o*s - p + t*d,      0 <= t < F,  0 <= i < I,  0 <= o < O.

All three passes walk the same set of (o, t, i); they differ in what they hold still. Whatever lies outside the
set is a product with a padded or an inserted zero, so each pass is a loop over exact ranges and nothing else:

    fprop  (ConvV2)      holds o:  the taps are one run, trimmed at both ends
    dgrad  (KS-deconv)   holds i:  the taps are those of the residue class (i + p) mod s, trimmed
    wgrad  (Sk-dilated)  holds t:  the outputs are one run, read from the input in leaps of s

Sources: arXiv 2306.15951, Algorithms 1B, 2B and 3B, with their bounds corrected (the split-kernel size is
ceil((F - y)/s), oh_s is a ceiling, an input may have no tap at all) and extended by dilation and groups.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import gcd
from typing import NoReturn, Protocol, TypeVar

from alpha.core.errors import ShapeError, message

LONGEST_AXIS = 1 << 24  # positions along an axis: tables have an entry for each

Shape = tuple[int, ...]
Pair = tuple[int, int]


def ceil_div(a: int, b: int) -> int:
    """Returns a / b rounded up, for any sign of a."""
    return -(-a // b)


@dataclass(frozen=True)
class TapClass:
    """Positions of one axis that share one list of taps.

    Position `positions[k]` reads `count` taps; its j-th (0 <= j < count) is filter tap `tap + j * tap_step` and
    meets position `starts[k] + j * step` of the tensor that is read. `step` is positive: reads go upward in memory.
    """

    positions: Shape
    starts: Shape
    tap: int
    count: int
    tap_step: int
    step: int

    @property
    def taps(self) -> range:
        """The filter taps, in the order in which they are read."""
        return range(self.tap, self.tap + self.count * self.tap_step, self.tap_step)

    @property
    def position_slice(self) -> slice:
        """The positions as a slice.  Only for count > 0: there they are evenly spaced, and so are the starts."""
        spacing = self.positions[1] - self.positions[0] if len(self.positions) > 1 else 1
        return slice(self.positions[0], self.positions[-1] + 1, spacing)

    @property
    def start_step(self) -> int:
        """Distance between the starts of two neighbouring positions.  Only for count > 0."""
        return self.starts[1] - self.starts[0] if len(self.starts) > 1 else 1


@dataclass(frozen=True)
class Axis:
    """One spatial axis of a convolution: i inputs, o outputs, f taps, s stride, p padding, d dilation."""

    i: int
    o: int
    f: int
    s: int
    p: int
    d: int

    @staticmethod
    def output_size(i: int, f: int, s: int, p: int, d: int) -> int:
        """Returns the number of outputs of an axis; below 1 where the filter does not fit."""
        return (i + 2 * p - d * (f - 1) - 1) // s + 1

    @staticmethod
    def transposed_size(o: int, f: int, s: int, p: int, d: int) -> int:
        """Returns the smallest number of inputs that gives o outputs: the size that a transposed convolution makes."""
        return (o - 1) * s - 2 * p + d * (f - 1) + 1

    def fprop_taps(self, o: int) -> Pair:
        """Returns the taps [t0, t1) that meet a real input of output o (t0 == t1 where there is none)."""
        t0 = max(0, ceil_div(self.p - o * self.s, self.d))
        t1 = min(self.f, ceil_div(self.i + self.p - o * self.s, self.d))
        return t0, max(t0, t1)

    def dgrad_taps(self, i: int) -> Shape:
        """Returns the taps that meet input i, in ascending order of the output that each belongs to."""
        return tuple(t for t in range(self.f - 1, -1, -1)
                     if (i + self.p - t * self.d) % self.s == 0 and 0 <= (i + self.p - t * self.d) // self.s < self.o)

    def wgrad_range(self, t: int) -> Pair:
        """Returns the outputs [o0, o1) for which tap t meets a real input (o0 == o1 where there is none)."""
        o0 = max(0, ceil_div(self.p - t * self.d, self.s))
        o1 = min(self.o, (self.i - 1 + self.p - t * self.d) // self.s + 1)
        return o0, max(o0, o1)

    def input_of(self, o: int, t: int) -> int:
        """Returns the input position that output o meets at tap t (outside [0, i): padding)."""
        return o * self.s - self.p + t * self.d

    @cached_property
    def runs(self) -> tuple[tuple[int, slice, slice], ...]:
        """For each tap t that meets an input at all: (t, its outputs, the inputs that they meet), as slices."""
        ranges = [(t, *self.wgrad_range(t)) for t in range(self.f)]
        return tuple((t, slice(o0, o1), slice(self.input_of(o0, t), self.input_of(o1 - 1, t) + 1, self.s))
                     for t, o0, o1 in ranges if o0 < o1)

    @cached_property
    def fprop_classes(self) -> tuple[TapClass, ...]:
        """Output positions grouped by their tap list; each output is in exactly one class."""
        groups: dict[Pair, list[int]] = {}
        for o in range(self.o):
            groups.setdefault(self.fprop_taps(o), []).append(o)
        return tuple(TapClass(tuple(outs), tuple(self.input_of(o, t0) for o in outs), t0, t1 - t0, 1, self.d)
                     for (t0, t1), outs in groups.items())

    @cached_property
    def dgrad_classes(self) -> tuple[TapClass, ...]:
        """Input positions grouped by their tap list; each input is in exactly one class."""
        groups: dict[Shape, list[int]] = {}
        for i in range(self.i):
            groups.setdefault(self.dgrad_taps(i), []).append(i)
        leap = gcd(self.s, self.d)
        return tuple(TapClass(tuple(ins), tuple((i + self.p - taps[0] * self.d) // self.s if taps else 0 for i in ins),
                              taps[0] if taps else 0, len(taps), -(self.s // leap), self.d // leap)
                     for taps, ins in groups.items())

    @cached_property
    def pairs(self) -> int:
        """Number of (output, tap) pairs that meet a real input."""
        return sum(t1 - t0 for t0, t1 in map(self.fprop_taps, range(self.o)))


axis_of = lru_cache(maxsize=1024)(Axis)  # one object, with its classes, for the batches of all sizes


@dataclass(frozen=True)
class ConvDesc:
    """A convolution, whichever of its three tensors is asked for.

    Layouts: x (N, IH, IW, IC), y (N, OH, OW, OC), w (OC, FH, FW, IC / groups). FLOPs count a multiply and an add.
    """

    n: int
    ic: int
    oc: int
    h: Axis
    w: Axis
    groups: int = 1

    def __hash__(self) -> int:
        return self._hash  # computed once: tables and plans are looked up by description at every call

    @cached_property
    def _hash(self) -> int:
        return hash((self.n, self.ic, self.oc, self.h, self.w, self.groups))

    @property
    def brief(self) -> str:
        """What it is, in a line."""
        axes = ", ".join(f"{a.i}->{a.o} f{a.f} s{a.s} p{a.p} d{a.d}" for a in (self.h, self.w))
        return f"{self.n} x ({axes}) {self.ic}->{self.oc} groups {self.groups}"

    @property
    def x_shape(self) -> Shape:
        return self.n, self.h.i, self.w.i, self.ic

    @property
    def w_shape(self) -> Shape:
        return self.oc, self.h.f, self.w.f, self.ic // self.groups

    @property
    def y_shape(self) -> Shape:
        return self.n, self.h.o, self.w.o, self.oc

    @property
    def levels(self) -> tuple[tuple[int, ConvDesc], ...]:
        """What CoConvDesc has several of: (first output channel, convolution)."""
        return (0, self),

    @property
    def nominal_flops(self) -> int:
        """FLOPs of each pass where padded zeros are multiplied too, as the field counts them."""
        return 2 * self.n * self.h.o * self.w.o * self.oc * self.h.f * self.w.f * (self.ic // self.groups)

    @property
    def useful_flops(self) -> int:
        """FLOPs of each pass without any product with a padded or inserted zero; the same for all three."""
        return 2 * self.n * self.h.pairs * self.w.pairs * self.oc * (self.ic // self.groups)

    def nbytes(self, itemsize: int = 4) -> int:
        """Bytes of x, w and y together: the least that a pass must move."""
        n, (oc, fh, fw, icg) = self.n, self.w_shape
        return itemsize * (n * self.h.i * self.w.i * self.ic + oc * fh * fw * icg + n * self.h.o * self.w.o * oc)

    @staticmethod
    def fprop(x_shape: Shape, w_shape: Shape, *, stride: Pair, padding: Pair, dilation: Pair, groups: int) -> ConvDesc:
        """Returns the description of y = x * w.  Raises ShapeError if x, w and the geometry do not fit."""
        return describe("conv2d", tuple(x_shape), tuple(w_shape), stride, padding, dilation, groups)

    @staticmethod
    def dgrad(g_shape: Shape, w_shape: Shape, hw: Pair, *, stride: Pair, padding: Pair, dilation: Pair,
              groups: int) -> ConvDesc:
        """Returns the description of the gradient with respect to an x of height and width hw."""
        check_rank("conv2d_dgrad", g=tuple(g_shape), w=tuple(w_shape))
        if groups < 1:
            bad_groups("conv2d_dgrad", w_shape[3] * groups, w_shape[0], groups)
        x_shape = (g_shape[0], *hw, w_shape[3] * groups)
        desc = describe("conv2d_dgrad", x_shape, tuple(w_shape), stride, padding, dilation, groups)
        return check_gradient("conv2d_dgrad", desc, tuple(g_shape))

    @staticmethod
    def wgrad(x_shape: Shape, g_shape: Shape, f: Pair, *, stride: Pair, padding: Pair, dilation: Pair,
              groups: int) -> ConvDesc:
        """Returns the description of the gradient with respect to a w of filter height and width f."""
        check_rank("conv2d_wgrad", x=tuple(x_shape), g=tuple(g_shape))
        if groups < 1 or x_shape[3] % groups:
            bad_groups("conv2d_wgrad", x_shape[3], g_shape[3], groups)
        w_shape = (g_shape[3], *f, x_shape[3] // groups)
        desc = describe("conv2d_wgrad", tuple(x_shape), w_shape, stride, padding, dilation, groups)
        return check_gradient("conv2d_wgrad", desc, tuple(g_shape))


class Shapes(Protocol):
    """A description of a convolution, as far as its shapes go."""

    @property
    def x_shape(self) -> Shape: ...

    @property
    def w_shape(self) -> Shape: ...

    @property
    def y_shape(self) -> Shape: ...


D = TypeVar("D", bound=Shapes)
LAYOUTS = {"x": "N IH IW IC", "w": "OC FH FW IC/groups", "g": "N OH OW OC"}


def check_rank(op: str, **shapes: Shape) -> None:
    """Raises ShapeError unless each has four non-empty axes; there may be no samples."""
    for name, shape in shapes.items():
        if len(shape) != 4 or 0 in (shape if name == "w" else shape[1:]):
            raise ShapeError(message(op, f"{name} has shape {shape}, 4 non-empty axes are needed ({LAYOUTS[name]})",
                                     f"reshape {name} to {LAYOUTS[name]}; a single image needs a leading axis of 1"))


def check_axis(op: str, name: str, *lengths: int) -> None:
    """Refuses an axis whose tables would be too long.  Raises ShapeError."""
    if max(lengths) > LONGEST_AXIS:
        raise ShapeError(message(op, f"{max(lengths)} positions along {name} are too many, {LONGEST_AXIS} is the most",
                                 "make the sizes, the padding or the dilation smaller"))


def bad_groups(op: str, ic: int, oc: int, groups: int) -> NoReturn:
    """Raises ShapeError: groups does not divide the channels."""
    raise ShapeError(message(op, f"groups={groups} does not divide {ic} input and {oc} output channels",
                             "choose a number of groups that divides both"))


@lru_cache(maxsize=2048)
def describe(op: str, x_shape: Shape, w_shape: Shape, stride: Pair, padding: Pair, dilation: Pair,
             groups: int) -> ConvDesc:
    """Returns the description of y = x * w, for an op of that name.  Raises ShapeError."""
    check_rank(op, x=x_shape, w=w_shape)
    (n, ih, iw, ic), (oc, fh, fw, icg) = x_shape, w_shape
    if min(stride) < 1 or min(dilation) < 1 or min(padding) < 0:
        raise ShapeError(message(op, f"stride {stride} and dilation {dilation} must be at least 1, padding {padding} "
                                 "at least 0", "correct the argument that is out of range"))
    if groups < 1 or ic % groups or oc % groups:
        bad_groups(op, ic, oc, groups)
    if ic != icg * groups:
        _bad_channels(op, x_shape, w_shape, groups)
    axes = []
    for name, i, f, s, p, d in zip("HW", (ih, iw), (fh, fw), stride, padding, dilation):
        o = Axis.output_size(i, f, s, p, d)
        if o < 1:
            raise ShapeError(message(
                op, f"a filter of {f} taps (dilation {d}) does not fit into {i} + 2*{p} inputs along {name}",
                f"use padding of at least {ceil_div(d * (f - 1) + 1 - i, 2)}, a smaller kernel, or a larger map",
                x=f"{x_shape} NHWC", w=f"{w_shape} OHWI"))
        check_axis(op, name, i, o, f)
        axes.append(axis_of(i, o, f, s, p, d))
    return ConvDesc(n, ic, oc, axes[0], axes[1], groups)


def _bad_channels(op: str, x_shape: Shape, w_shape: Shape, groups: int) -> None:
    ic, expected = x_shape[3], w_shape[3] * groups
    fix = f"make in_channels of the layer {ic}, or pass an x with {expected} channels; channels are the last axis, " \
          "so maps are joined by concat(xs, axis=3) and cut by x[..., a:b]"
    if x_shape[1] == expected:
        turned = tuple(x_shape[k] for k in (0, 2, 3, 1))
        fix = f"x looks like NCHW; alpha uses NHWC: x.permute(0, 2, 3, 1) gives {turned}"
    raise ShapeError(message(op, f"x has {ic} channels, w expects {expected}", fix,
                             x=f"{x_shape} NHWC", w=f"{w_shape} OHWI", groups=groups))


def check_gradient(op: str, desc: D, g_shape: Shape) -> D:
    """Returns the description.  Raises ShapeError unless its output has the shape of g."""
    if desc.y_shape != g_shape:
        raise ShapeError(message(op, f"g has shape {g_shape}, this geometry gives {desc.y_shape}",
                                 "pass the gradient of the output of the same convolution",
                                 x=f"{desc.x_shape} NHWC", w=f"{desc.w_shape} OHWI"))
    return desc
