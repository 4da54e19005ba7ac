"""The family of algorithms for the three passes of a convolution: what each serves and costs.

    direct    the loops of C-K-S over exact ranges, whichever kernel makes them
    im2col    columns written out, padding and all, and one product; col2im is its adjoint
    winograd  F(m x m, r x r) over tiles: (m + r - 1)^2 products for m^2 outputs of r^2 taps
    fft       tiles of E x E: a product is one multiplication per spectral point, however many taps there are
    strassen  seven products of halves in the place of eight, for 1x1 filters, which are matrix products
    sparse    the loops of direct over the elements of the input that are not zero: for maps behind a relu

Work is counted in FLOP, bytes are those that a stage reads and writes. dgrad is the same as fprop with the channels
exchanged, over the tiles of the input; wgrad sums over tiles.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple, NoReturn

from alpha.core.errors import ConfigError, message
from alpha.ops.algorithms.tile_transform import WINOGRAD_ERRORS, Winograd, fft_edges, winograd_tiles
from alpha.ops.conv_desc import ConvDesc, ceil_div
from alpha.plan import Cost, Request, Stage
from alpha.plan.choice import broken
from alpha.plan.cost import tree

ERRORS = {"direct": 1e-6, "im2col": 1e-6, "sparse": 1e-6, "fft": 4e-7, "strassen": 1.3e-6}
OPS = {"fprop": "conv2d", "dgrad": "conv2d_dgrad", "wgrad": "conv2d_wgrad"}
CHUNK_BYTES = 8 << 20       # of transformed tiles that are worked on at a time
LEAST_TILES = 64            # of a chunk, so that transformed filters are not read for few
FILTER_BYTES = 64 << 20     # of transformed filters of FFT: with more, output channels go in blocks
MOST_TAPS = 48              # of a filter in tiles of 64 x 64
SPARSE_CHUNK, SPARSE_BLOCK = 48, 64     # channels in and out for which a pixel and a row of taps are one visit,
VISIT_FLOPS = 700                       # and what such a visit costs beside its products, in FLOP of a transform
TILE_PIXELS, FEW_PIXELS = 6, 4          # of a tile of direct's loops; with fewer, reading weights sets the pace
COUNTED_FROM = 128          # channels in and out: zeros of fewer are not worth counting
MIB = 1 << 20


class Way(NamedTuple):
    """An algorithm with its tile: m of Winograd, the edge E of FFT, else 0."""

    name: str
    tile: int = 0

    def __str__(self) -> str:
        return self.name + (f"[{self.tile}]" if self.tile else "")


def one_group(desc: ConvDesc) -> ConvDesc:
    """Returns the convolution of one of the groups."""
    return replace(desc, ic=desc.ic // desc.groups, oc=desc.oc // desc.groups, groups=1)


def mismatch(name: str, desc: ConvDesc, grouped: tuple[str, ...] = ()) -> str:
    """Returns why an algorithm cannot compute a convolution, "" if it can.

    grouped: the names that compute the groups of a convolution one after the other.
    """
    if name in ("direct", "im2col"):
        return ""
    if name == "strassen":
        return _not_a_product(desc)
    if name == "sparse":
        return "" if desc.groups == 1 else f"groups={desc.groups}, which must be 1"
    axes = {"stride": (desc.h.s, desc.w.s), "dilation": (desc.h.d, desc.w.d)}
    for what, pair in axes.items():
        if pair != (1, 1):
            return f"{what} {pair}, which must be (1, 1)"
    f = desc.h.f, desc.w.f
    if name == "winograd":
        if desc.groups > 1 and name not in grouped:
            return f"groups={desc.groups}, which must be 1"
        if f not in ((3, 3), (5, 5)):
            return f"filters of {f} taps, which must be (3, 3) or (5, 5)"
    else:
        if desc.groups > 1 and not (desc.groups == desc.ic == desc.oc):
            return f"groups={desc.groups} of {desc.ic} to {desc.oc} channels, which must be 1 or depthwise"
        if max(f) > MOST_TAPS:
            return f"filters of {f} taps, of which {MOST_TAPS} are the most"
    if any(axis.p >= axis.f for axis in (desc.h, desc.w)):
        return f"padding {desc.h.p, desc.w.p}, which must be less than the filter, {f}"
    return ""


def _not_a_product(desc: ConvDesc) -> str:
    f, stride, padding = ((getattr(desc.h, key), getattr(desc.w, key)) for key in "fsp")
    if f != (1, 1):
        return f"filters of {f} taps, which must be (1, 1)"
    if stride != (1, 1) or padding != (0, 0):
        return f"stride {stride} and padding {padding}, which must be (1, 1) and (0, 0)"
    if desc.groups > 1:
        return f"groups={desc.groups}, which must be 1"
    sizes = desc.n * desc.h.i * desc.w.i, desc.ic, desc.oc
    return f"a product of {sizes} rows, terms and columns, which must be 2 each" if min(sizes) < 2 else ""


def ways(name: str, desc: ConvDesc) -> tuple[Way, ...]:
    """Returns an algorithm with each of its tiles.  For one that can compute the convolution."""
    if name == "winograd":
        return tuple(Way(name, tile.m) for tile in winograd_tiles(desc.h.f))
    if name == "fft":
        longest = max(max(axis.i, axis.o) for axis in (desc.h, desc.w))
        return tuple(Way(name, edge) for edge in fft_edges(max(desc.h.f, desc.w.f), longest))
    return (Way(name),)


class Tiles(NamedTuple):
    """How a pass is cut: tiles of one image, channels that are summed over and written, spectral points."""

    images: int
    per_image: int
    inner: int
    outer: int
    points: int

    @property
    def count(self) -> int:
        return self.images * self.per_image


def tiles_of(way: Way, pass_name: str, desc: ConvDesc) -> Tiles:
    """Returns the tiles of a transformed algorithm: over y for fprop and wgrad, over dx for dgrad."""
    per_image = 1
    for axis in (desc.h, desc.w):
        m = way.tile if way.name == "winograd" else way.tile - axis.f + 1
        per_image *= ceil_div(axis.i if pass_name == "dgrad" else axis.o, m)
    points = (way.tile + desc.h.f - 1) ** 2 if way.name == "winograd" else way.tile * (way.tile // 2 + 1)
    inner, outer = (desc.oc, desc.ic) if pass_name == "dgrad" else (desc.ic, desc.oc)
    return Tiles(desc.n, per_image, inner, outer, points)


def images_at_a_time(way: Way, t: Tiles) -> int:
    """Returns how many images are transformed at a time, so that their tiles stay in cache."""
    number = 4 if way.name == "winograd" else 8
    each = number * t.points * (t.inner + t.outer) * t.per_image
    return min(t.images, max(1, CHUNK_BYTES // each, ceil_div(LEAST_TILES, t.per_image)))


def outer_at_a_time(way: Way, t: Tiles, depthwise: bool) -> int:
    """Returns how many of the channels that are written have their transformed filters at a time."""
    each = 16 * t.points * t.inner
    return t.outer if depthwise or way.name == "winograd" else min(t.outer, max(1, FILTER_BYTES // each))


def _stage(name: str, work: float, unit: str, nbytes: float, level: str, depth: int, launches: int = 1) -> Stage:
    return Stage(work, unit, nbytes, level, depth, launches, name=name)


@lru_cache(maxsize=512)   # many for a choice, which is kept
def cost_of(way: Way, pass_name: str, desc: ConvDesc) -> Cost:
    """Returns what a way to compute a pass takes.  For one that can compute it."""
    if way.name == "winograd" and desc.groups > 1:
        one = cost_of(way, pass_name, one_group(desc))
        return one._replace(stages=tuple([stage._replace(work=desc.groups * stage.work,
                                                         nbytes=desc.groups * stage.nbytes) for stage in one.stages]))
    if way.name in ("winograd", "fft"):
        return _transformed(way, pass_name, desc)
    x, y, w = (4 * n for n in _sizes(desc))
    terms = {"fprop": desc.ic // desc.groups * desc.h.f * desc.w.f,
             "dgrad": desc.oc // desc.groups * ceil_div(desc.h.f, desc.h.s) * ceil_div(desc.w.f, desc.w.s),
             "wgrad": desc.n * desc.h.o * desc.w.o}[pass_name]
    if way.name == "direct":
        unit = "depthwise" if desc.groups == desc.ic > 1 else "direct"
        stages = (_stage("direct", desc.useful_flops, unit, x + y + w, "dram", tree(terms)),
                  _stage("weights for few pixels", 0, unit, _weights_for_few_pixels(pass_name, desc), "panels", 0, 0))
        return Cost(stages, ERRORS["direct"])
    if way.name == "sparse":
        return sparse_cost(pass_name, desc, 0.0)
    if way.name == "im2col":
        columns = 4 * desc.n * desc.h.o * desc.w.o * desc.h.f * desc.w.f * desc.ic
        stages = (_stage("columns", 0, "transform", x + columns, "dram", 0),
                  _stage("product", desc.nominal_flops, "product", columns + y + w, "dram", tree(terms)))
        return Cost(stages, ERRORS["im2col"], columns // desc.n * images_of_columns(desc))
    rows, depth, columns = desc.n * desc.h.o * desc.w.o, desc.ic, desc.oc
    return strassen_cost(*{"fprop": (rows, depth, columns), "dgrad": (rows, columns, depth),
                           "wgrad": (columns, rows, depth)}[pass_name])


def _weights_for_few_pixels(pass_name: str, desc: ConvDesc) -> float:
    """Returns bytes of weights that tiles read with fewer pixels than they need to be busy meanwhile.

    Pixels with one list of taps make tiles together. Large filters on small maps leave few to a list.
    """
    if pass_name == "wgrad" or desc.groups > 1:
        return 0
    rows, cols = (axis.dgrad_classes if pass_name == "dgrad" else axis.fprop_classes for axis in (desc.h, desc.w))
    missing = 0
    for row in rows:
        for col in cols:
            pixels = desc.n * len(row.positions) * len(col.positions)
            missing += row.count * col.count * max(0, FEW_PIXELS * ceil_div(pixels, TILE_PIXELS) - pixels)
    return 4 * missing / FEW_PIXELS * desc.ic * desc.oc


def sparse_cost(pass_name: str, desc: ConvDesc, zeros: float) -> Cost:
    """Returns the cost of the sparse loops, of whose input, g for dgrad, a share is zero: lists, filters, products."""
    x, y, w = (4 * n for n in _sizes(desc))
    source, inner, outer = (y, desc.oc, desc.ic) if pass_name == "dgrad" else (x, desc.ic, desc.oc)
    pixels = desc.n * (desc.h.i * desc.w.i if pass_name == "dgrad" else desc.h.o * desc.w.o)
    visits = pixels * desc.h.f * ceil_div(inner, SPARSE_CHUNK) * ceil_div(outer, SPARSE_BLOCK)
    terms = inner * desc.h.f * desc.w.f if pass_name != "wgrad" else desc.n * desc.h.o * desc.w.o
    stages = (_stage("lists", 0, "transform", (1 + 2 * (1 - zeros)) * source, "dram", 0),
              _stage("filters", 0, "transform", 3 * w, "dram", 0),
              _stage("visits", VISIT_FLOPS * visits, "transform", 0, "l2", 0),
              _stage("products", (1 - zeros) * desc.useful_flops, "sparse", x + y + w, "dram", tree(terms)))
    return Cost(stages, ERRORS["sparse"], 2 * source + w)


def counts_zeros(desc: ConvDesc) -> bool:
    """Tells whether the zeros of a convolution's input are worth counting: one pass of a few percent of its time."""
    return (desc.h.f, desc.w.f) == (3, 3) and desc.groups == 1 and min(desc.ic, desc.oc) >= COUNTED_FROM


def images_of_columns(desc: ConvDesc) -> int:
    """Returns how many images have their columns written out at a time."""
    each = 4 * desc.h.o * desc.w.o * desc.h.f * desc.w.f * desc.ic
    return min(desc.n, max(1, FILTER_BYTES // each))


def strassen_cost(m: int, k: int, n: int) -> Cost:
    """Returns the cost of one level of Strassen's product (M, K) x (K, N), with 15 additions of quarters."""
    additions = 4 * (m * k + k * n) // 4 + 7 * m * n // 4
    quarters = (m * k + k * n) // 4 * 2 + m * n // 4 * 3
    stages = (_stage("product", 7 / 8 * 2 * m * k * n, "product", 4 * (m * k + k * n + m * n), "dram", tree(k // 2)),
              _stage("additions", additions, "transform", 12 * additions, "dram", 4))
    return Cost(stages, ERRORS["strassen"], 4 * quarters)


def _sizes(desc: ConvDesc) -> tuple[int, int, int]:
    """Elements of x, y and w."""
    x, y, w = desc.n * desc.h.i * desc.w.i * desc.ic, desc.n * desc.h.o * desc.w.o * desc.oc, desc.oc * desc.h.f
    return x, y, w * desc.w.f * (desc.ic // desc.groups)


def _transformed(way: Way, pass_name: str, desc: ConvDesc) -> Cost:
    """The pipeline of transformed tiles: inputs, filters, products per spectral point, outputs."""
    t = tiles_of(way, pass_name, desc)
    fft, depthwise = way.name == "fft", desc.groups > 1
    number = 8 if fft else 4
    pairs = t.inner if depthwise else t.inner * t.outer
    if fft:
        edge = way.tile
        flops_in = flops_filter = flops_out = 5 * edge * edge * tree(edge)  # 2.5 n log n of a real transform, n = E^2
        depth_in, error = 4 * tree(edge), ERRORS["fft"]
    else:
        tile = Winograd(way.tile, desc.h.f)
        flops_in, flops_filter, flops_out = tile.flops
        depth_in, error = 4 * tree(tile.n), WINOGRAD_ERRORS[tile.m, tile.r]
    x, y, w = (4 * n for n in _sizes(desc))
    read, written = (y, x) if pass_name == "dgrad" else (x, y)
    inner_bytes, outer_bytes = (number * t.points * n for n in (t.count * t.inner, t.count * t.outer))
    u = (16 if fft else 4) * t.points * pairs       # a complex filter is a matrix of 2 x 2
    images = images_at_a_time(way, t)
    chunks, blocks = ceil_div(t.images, images), ceil_div(t.outer, outer_at_a_time(way, t, depthwise))
    tiles = number * t.points * images * t.per_image * (t.inner + ceil_div(t.outer, blocks))
    level = "l2" if tiles <= 2 * CHUNK_BYTES else "dram"
    if pass_name == "wgrad":
        chunks *= 2                                                         # sums are read and written
    sums = t.count if pass_name == "wgrad" else t.inner
    work = (8 if fft else 2) * t.points * t.count * pairs
    unit = ("fft depthwise" if depthwise else "fft") if fft else "transform"
    filters = "dram" if u > CHUNK_BYTES else "l2"
    if fft or pass_name != "wgrad":     # read or written in an order of their own, far apart
        filters = f"{way.name} filters, {filters}"
    stages = (_stage("in", blocks * flops_in * t.count * t.inner, unit, blocks * (read + inner_bytes), level, depth_in),
              _stage("filter", flops_filter * pairs, unit, w + u, filters, 0),
              _stage("product", work, "spectral" if fft else "product", blocks * inner_bytes + outer_bytes + chunks * u,
                    level, tree(sums)),
              _stage("out", flops_out * t.count * t.outer, unit, outer_bytes + written, level, depth_in))
    workspace = tiles + u // blocks * (2 if pass_name == "wgrad" else 1)
    return Cost(stages, error, workspace)


def limits(cost: Cost, promise: float, limit: int) -> str:
    """Returns why an algorithm must not be taken, "" if it may: its error, or the memory that it needs."""
    if reason := broken(cost, promise):
        return reason
    if cost.workspace > limit:
        return f"needs {cost.workspace / MIB:,.0f} MiB of workspace, the limit is {limit / MIB:,.0f}"
    return ""


def too_small(way: Way, pass_name: str, desc: ConvDesc, least_channels: int, least_tiles: int) -> str:
    """Returns why a transformed algorithm is not taken where the choice is free, "" if it may be."""
    if way.name not in ("winograd", "fft"):
        return ""
    t = tiles_of(way, pass_name, one_group(desc) if way.name == "winograd" else desc)
    if min(t.inner, t.outer) < least_channels:
        return f"is not taken below {least_channels} channels"
    least_tiles //= 2 if pass_name == "wgrad" else 1    # filters are not read for tiles there, but written, once
    if way.name == "winograd" and t.count < least_tiles:
        return f"is not taken below {least_tiles} tiles"
    return ""


def refuse(pass_name: str, desc: ConvDesc, request: Request, why: str) -> NoReturn:
    """Raises ConfigError: a strict request cannot be served; with the reason, and what to write instead."""
    fix = 'write algorithm="auto", which takes what serves'
    if "MiB" in why:
        fix = f"raise ALPHA_CONV_WORKSPACE_MIB, use a smaller batch, or {fix}"
    elif "promised" in why:
        fix = f'compute in alpha.precision("tf32"), or {fix}'
    elif "CUDA" in why:
        fix = f'{fix}, or move the tensors: x.to("cpu")'
    raise ConfigError(message(OPS[pass_name], f"{request.name} {why}", fix, x=f"{desc.x_shape} NHWC",
                              w=f"{desc.w_shape} OHWI"))
