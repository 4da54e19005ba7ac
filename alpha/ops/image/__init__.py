"""Maps: resizing, padding by modes, shuffled channels.

Maps are (N, H, W, C), or (N, L, C) where one axis is meant: the axes between the first and the last are those of space.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import floor, prod
from typing import Any

import numpy as np

from alpha.core.device import FLOAT_DTYPES
from alpha.core.errors import ArgumentError, ConfigError, DTypeError, ShapeError, message, shown
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.ints import as_int, is_real
from alpha.core.inputs.kinds import Channels, PadMode, ResizeMode
from alpha.core.inputs.sizes import check_host
from alpha.core.table import public
from alpha.core.tensor import Tensor, tensor
from alpha.ops import shape as moves
from alpha.ops.index import index_select, mix_rows
from alpha.ops.pool import adaptive_avg_pool2d
from alpha.ops.reduce import Shape, widened
from alpha.ops.shape import permute, reshape

# ---- borders ---------------------------------------------------------------------------------------------------------


def torch_widths(where: str, flat: Sequence[int], ndim: int) -> tuple[tuple[int, int], ...]:
    """Returns pairs for each axis of PyTorch's form: (left, right, top, bottom, ...), of a map from its last axis back.

    PyTorch counts the axes of (N, C, H, W) from the last; the same map has (N, H, W, C) here, so that W comes first,
    then H, then C. Tensors of one or two axes are counted from the last.
    """
    order = [*range(ndim - 2, 0, -1), ndim - 1, 0] if ndim > 2 else list(range(ndim - 1, -1, -1))
    if len(flat) % 2 or len(flat) > 2 * ndim:
        raise ShapeError(message(where, f"widths {tuple(flat)} do not fit {ndim} axes", "pass (left, right, top, "
                                 "bottom) for W and H of a map, or one pair (before, after) for each axis"))
    widths = [(0, 0)] * ndim
    for k in range(len(flat) // 2):
        widths[order[k]] = (flat[2 * k], flat[2 * k + 1])
    return tuple(widths)


def _cropped(x: Tensor, widths: Any) -> tuple[Tensor, Any]:
    """Returns x without what negative widths cut off, and the others.  Raises ShapeError where nothing is left."""
    pairs = list(widths) if isinstance(widths, (tuple, list)) else []
    if len(pairs) != x.ndim or not all(isinstance(w, (tuple, list)) and len(w) == 2 and as_int(w[0]) is not None
                                       and as_int(w[1]) is not None for w in pairs) or min([0, *map(min, pairs)]) == 0:
        return x, widths    # which pad looks at
    kept = [(max(0, -before), n + min(0, before) + min(0, after)) for n, (before, after) in zip(x.shape, pairs)]
    if min([count for _, count in kept]) < 0:
        raise ShapeError(message("pad", f"widths {tuple(map(tuple, pairs))} cut more than x of shape {x.shape} has",
                                 "cut less: negative widths take elements away"))
    x = moves.slice_axes(x, tuple([(first, count, 1) for first, count in kept]))
    return x, tuple([(max(0, before), max(0, after)) for before, after in pairs])


@public(functional=True)
@checked
def pad(x: Tensor, widths: Any, mode: PadMode = "constant", value: Any = 0) -> Tensor:
    """y = x with a border.

    Args:
        x: any shape, any dtype.
        widths: (before, after) for each axis; or, in PyTorch's form, (left, right, top, bottom) for W and H of a map.
            A negative one cuts off as many elements, before any border is made.
        mode: "constant"; "reflect": mirrored, without the edge; "replicate": the edge again; "circular": the far side;
            or, in the place of both, the value of a constant border: pad(x, widths, 1.0).
        value: of a constant border.
    Raises:
        ShapeError: widths do not fit the axes, cut more than x has, or a mirrored or circular border is wider than x.
        ConfigError: the mode is unknown.
    """
    if not isinstance(mode, str):
        if isinstance(value, str) or value != 0:
            raise ArgumentError(message("pad", f"mode is {shown(mode)} and value {shown(value)}, one is a mode",
                                        'pass pad(x, widths, "constant", 1.0), say'))
        value, mode = mode, "constant"
    if isinstance(widths, (tuple, list)) and widths and all(as_int(w) is not None for w in widths):
        widths = torch_widths("pad", widths, x.ndim)
    x, widths = _cropped(x, widths)
    if mode == "constant":
        return moves.pad(x, widths, value)
    if mode not in MODES:
        raise ConfigError(message("pad", f"mode is {shown(mode)}", f"choose one of constant, {', '.join(MODES)}"))
    # looks at them
    y_shape = moves.pad.shape(x, widths=moves.pad.kinds["widths"].take("pad", "widths", widths), value=0)
    check_host("pad", y_shape, "int64")
    for axis, (before, after) in enumerate(widths):
        n = x.shape[axis]
        widest = n - 1 if mode == "reflect" else n if mode == "circular" or not n else max(before, after)
        if max(before, after) > max(0, widest):
            raise ShapeError(message("pad", f"a {mode} border of {before, after} is wider than axis {axis} of "
                                     f"length {n}", "use a narrower border, or another mode", x=x.shape))
        if before or after:
            x = index_select(x, axis, MODES[mode](np.arange(-before, n + after), n))
    return x


MODES = {
    "reflect": lambda k, n: n - 1 - np.abs(n - 1 - np.abs(k)),
    "replicate": lambda k, n: np.clip(k, 0, n - 1),
    "circular": lambda k, n: k % n,
}


# ---- sizes -----------------------------------------------------------------------------------------------------------


def _targets(x: Tensor, size: Any, scale_factor: Any) -> list[tuple[int, float]]:
    """Returns for each axis of space its new length, and how far apart in x neighbours of y are."""
    space = x.shape[1:-1]
    if x.ndim not in (3, 4) or (size is None) == (scale_factor is None):
        raise ShapeError(message("interpolate", f"x has {x.ndim} axes, size is {shown(size)}, scale_factor "
                                 f"{shown(scale_factor)}", "pass maps (N, H, W, C), and one of size and scale_factor"))
    given = size if scale_factor is None else scale_factor
    each = list(given) if isinstance(given, (tuple, list)) else [given] * len(space)
    fits = is_real if size is None else lambda v: as_int(v) is not None
    if len(each) != len(space) or not all(fits(v) and 0 < v < float("inf") for v in each):
        raise ShapeError(message("interpolate", f"size is {shown(size)}, scale_factor {shown(scale_factor)}, a number "
                                 f"above 0 or {len(space)} are needed", "pass size=(OH, OW) or scale_factor=2, say"))
    if scale_factor is None:
        return [(int(o), n / o) for n, o in zip(space, each)]
    lengths = [(floor(n * s), 1 / s) for n, s in zip(space, each)]
    if any(o < 1 for o, _ in lengths):
        raise ShapeError(message("interpolate", f"a map of {space} times {scale_factor} is empty",
                                 "choose a larger scale_factor", x=x.shape))
    return lengths


@public(functional=True)
@checked
def interpolate(x: Tensor, size: Any = None, scale_factor: Any = None, mode: ResizeMode = "nearest",
                align_corners: bool | None = None) -> Tensor:
    """y = maps in another size, as PyTorch's interpolate, without its antialiasing.

    Args:
        x: shape (N, H, W, C) or (N, L, C); float, or any dtype for "nearest".
        size: (OH, OW), or an int for all axes of space; or
        scale_factor: number or numbers above 0; y then has floor(H * scale_factor) rows, 1 / scale_factor apart.
            An axis whose length stays is copied, but for "bicubic" and "nearest-exact".
        mode: "nearest", "nearest-exact", "bilinear" (also "linear"), "bicubic", or "area": means of windows.
        align_corners: whether the outermost pixels of x and y lie on each other; for "bilinear" and "bicubic".
            None counts as False; the other modes take None alone.
    Raises:
        ShapeError: x is no batch of maps, or size or scale_factor does not fit.  ConfigError: the mode is unknown, or
            align_corners is given to a mode that has no use for it.
        DTypeError: x has no floats, and the mode weighs neighbours.
    """
    if align_corners is not None and mode not in ("linear", "bilinear", "bicubic"):
        raise ConfigError(message("interpolate", f"align_corners={align_corners} has no effect with mode=\"{mode}\"",
                                  'leave align_corners out, or pass mode="bilinear" or "bicubic"'))
    targets = _targets(x, size, scale_factor)
    if 0 in x.shape[1:]:
        raise ShapeError(message("interpolate", f"a map of shape {x.shape} is empty", "pass maps with elements"))
    for length, _ in targets:
        check_host("interpolate", (length,), "float32")  # where each pixel comes from is worked out on the host
    if x.dtype not in FLOAT_DTYPES and not mode.startswith("nearest"):
        raise DTypeError(message("interpolate", f"x has dtype {x.dtype}, a float dtype is needed for mode \"{mode}\"",
                                 'convert it: x.astype("float32")'))
    if mode == "area":
        maps = x if x.ndim == 4 else reshape(x, (x.shape[0], 1, *x.shape[1:]))
        hw = tuple([o for o, _ in targets])
        y = adaptive_avg_pool2d(maps, (1, *hw) if x.ndim == 3 else hw)
        return y if x.ndim == 4 else reshape(y, (x.shape[0], *hw, x.shape[-1]))
    wide = x if mode.startswith("nearest") else widened(x)
    for axis, (length, apart) in enumerate(targets, 1):
        n = x.shape[axis]
        if mode.startswith("nearest"):
            places = _nearest(n, length, apart, mode)
            if not (length == n and (places == np.arange(n)).all()):
                wide = _repeated(wide, axis, length, places)
        elif length != n or mode == "bicubic" or align_corners:
            wide = _mixed(wide, axis, length, apart, mode, align_corners)
    return wide.astype(x.dtype)


def _nearest(n: int, length: int, apart: float, mode: str) -> np.ndarray:
    """Returns the row of n that each of `length` rows is.

    As in PyTorch, "nearest" leaves an axis as it is, or doubles it, whichever factor led to that length.
    """
    k = np.arange(length)
    if mode == "nearest" and length in (n, 2 * n):
        return k * n // length
    offset = np.float32(0.5 if mode == "nearest-exact" else 0)
    return np.minimum(np.floor((k.astype(np.float32) + offset) * np.float32(apart)).astype(np.int64), n - 1)


def _repeated(x: Tensor, axis: int, length: int, places: np.ndarray) -> Tensor:
    """Returns the slices of x at `places`; where each comes equally often by broadcasting, whose gradient is a sum."""
    n = x.shape[axis]
    times = length // n
    if length == n * times and (places == np.arange(length) // max(1, times)).all():
        head, tail = x.shape[:axis + 1], x.shape[axis + 1:]
        return reshape(reshape(x, (*head, 1, *tail)).expand((*head, times, *tail)), (*x.shape[:axis], length, *tail))
    return index_select(x, axis, places)


def _mixed(x: Tensor, axis: int, length: int, apart: float, mode: str, align_corners: bool) -> Tensor:
    """Returns weighted sums of neighbours along an axis: two, or four with the cubic of a = -0.75."""
    n = x.shape[axis]
    if x.device == "cpu":
        tables = [tensor(t, "int64" if t.dtype == np.int64 else x.dtype)
                  for t in _both_ways(n, length, apart, mode, align_corners)]
        y = mix_rows(reshape(x, (prod(x.shape[:axis]), n, prod(x.shape[axis + 1:]))), *tables)
        return reshape(y, (*x.shape[:axis], length, *x.shape[axis + 1:]))
    places, weights = _neighbours(n, length, apart, mode, align_corners)
    column = [length if j == axis else 1 for j in range(x.ndim)]
    y = None
    for place, weight in zip(places.T, weights.T):
        part = index_select(x, axis, place) * tensor(weight.reshape(column), x.dtype, x.device)
        y = part if y is None else y + part
    return y


def _neighbours(n: int, length: int, apart: float, mode: str, align_corners: bool) -> tuple[np.ndarray, np.ndarray]:
    """Returns which rows of n each of `length` rows is made of, and with what weights: (length, terms)."""
    k = np.arange(length)
    at = k * ((n - 1) / (length - 1) if length > 1 else 0.0) if align_corners else (k + 0.5) * apart - 0.5
    if mode != "bicubic":
        at = np.maximum(at, 0.0)
    low = np.floor(at)
    t = at - low
    if mode == "bicubic":
        weights = [_cubic(t + 1, True), _cubic(t, False), _cubic(1 - t, False), _cubic(2 - t, True)]
        steps = range(-1, 3)
    else:
        weights, steps = [1 - t, t], range(2)
    taken = [j for j, weight in enumerate(weights) if weight.any()]
    return (np.stack([np.clip(low + steps[j], 0, n - 1).astype(np.int64) for j in taken], 1),
            np.stack([weights[j] for j in taken], 1))


@lru_cache(maxsize=64)
def _both_ways(n: int, *settings: Any) -> tuple[np.ndarray, ...]:
    """Returns _neighbours, and the same for the gradient of x: which of y's rows each of n goes into."""
    places, weights = _neighbours(n, *settings)
    order = places.ravel().argsort(kind="stable")   # by the row that is read
    rows = places.ravel()[order]
    counts = np.bincount(rows, minlength=n)
    slots = np.arange(rows.size) - (counts.cumsum() - counts)[rows]
    back, back_weights = np.full((n, counts.max()), -1), np.zeros((n, counts.max()))
    back[rows, slots], back_weights[rows, slots] = order // places.shape[1], weights.ravel()[order]
    return places, weights, back, back_weights


def _cubic(t: np.ndarray, outer: bool) -> np.ndarray:
    a = -0.75
    return ((a * t - 5 * a) * t + 8 * a) * t - 4 * a if outer else ((a + 2) * t - (a + 3)) * t * t + 1


# ---- channels --------------------------------------------------------------------------------------------------------


def check_maps(where: str, x: Tensor) -> Shape:
    """Returns the shape of x.  Raises ShapeError in the name of `where` unless x has 4 axes."""
    if x.ndim != 4:
        raise ShapeError(message(where, f"x has {x.ndim} axes, 4 are needed (N H W C)", "reshape x", x=x.shape))
    return x.shape


@public(functional=True)
@checked
def pixel_shuffle(x: Tensor, upscale_factor: Channels) -> Tensor:
    """y[n, h*r + i, w*r + j, c] = x[n, h, w, c*r*r + i*r + j], r = upscale_factor: channels become pixels.

    Raises ShapeError unless x is (N, H, W, C) with C a multiple of r * r.
    """
    n, h, w, c = check_maps("pixel_shuffle", x)
    r = upscale_factor
    if c % (r * r):
        raise ShapeError(message("pixel_shuffle", f"{c} channels are no multiple of {r} * {r}",
                                 "choose another upscale_factor, or number of channels", x=x.shape))
    return reshape(permute(reshape(x, (n, h, w, c // (r * r), r, r)), (0, 1, 4, 2, 5, 3)), (n, h * r, w * r,
                                                                                          c // (r * r)))


@public(functional=True)
@checked
def pixel_unshuffle(x: Tensor, downscale_factor: Channels) -> Tensor:
    """The inverse of pixel_shuffle.  Raises ShapeError unless height and width are multiples of downscale_factor."""
    n, h, w, c = check_maps("pixel_unshuffle", x)
    r = downscale_factor
    if h % r or w % r:
        raise ShapeError(message("pixel_unshuffle", f"a map of {h} x {w} is no multiple of {r}",
                                 "choose another downscale_factor, or cut the map", x=x.shape))
    split = reshape(x, (n, h // r, r, w // r, r, c))
    return reshape(permute(split, (0, 1, 3, 5, 2, 4)), (n, h // r, w // r, c * r * r))


@public()
@checked
def channel_shuffle(x: Tensor, groups: Channels) -> Tensor:
    """y = x with its channels, `groups` groups one after the other, taken in turn from each.

    Raises ShapeError unless groups divides the channels, the last axis.
    """
    c = x.shape[-1] if x.ndim else 1
    if c % groups or not x.ndim:
        raise ShapeError(message("channel_shuffle", f"{groups} groups do not divide {c} channels",
                                 "choose a number of groups that divides the channels", x=x.shape))
    split = reshape(x, (*x.shape[:-1], groups, c // groups))
    return reshape(split.transpose(-2, -1), x.shape)
