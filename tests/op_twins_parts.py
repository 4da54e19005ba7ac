"""Parts of networks beside their twins: maps read at other places, losses of sequences and regions, sums by index."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

import alpha
from alpha import ops
from tests.op_twins import Draw, F, Twin, floats, nchw, shapes, some, torch, twin
from tests.op_twins_composed import TWINS

__all__ = ["TWINS"]


def on(x: Any, values: Any) -> Any:
    """A tensor of values, floats in the dtype of x, beside it."""
    a = np.asarray(values)
    return alpha.tensor(a.astype(x.dtype) if a.dtype.kind == "f" else a, device=x.device)


def there(t: Any, values: Any) -> Any:
    """The same of PyTorch."""
    a = torch().tensor(np.asarray(values))
    return a.to(t.dtype) if np.asarray(values).dtype.kind == "f" else a


# ---- maps ------------------------------------------------------------------------------------------------------------


@twin
def grid_sample(draw: Draw) -> Twin:
    mode = draw(st.sampled_from(["bilinear", "nearest"]))
    border = draw(st.sampled_from(["zeros", "border", "reflection"]))
    h, w, c, align = draw(some), draw(st.integers(2, 4)), draw(some), draw(st.booleans())
    return Twin(lambda x, grid: ops.grid_sample(x, grid, mode, border, align),
                nchw(lambda t, grid: _sampled(t, grid, mode, border, align)),
                [floats((2, h, w, c), 1), floats((2, 3, 2, 2), 2, -1.55, 1.55)])


def _sampled(t: Any, grid: Any, mode: str, border: str, align: bool) -> Any:
    """PyTorch's grid_sample for gradients of both orders, which it has of the first alone: its pixels, and weights.

    Each pixel comes from a grid_sample of the nearest one of a map that is made wider for it.
    """
    n, c, h, w = t.shape
    m = torch()

    def coordinate(at: Any, size: int) -> Any:
        at = (at + 1) * (size - 1) / 2 if align else ((at + 1) * size - 1) / 2
        if border == "zeros":
            return at
        if border == "reflection":
            low, span = (0.0, size - 1.0) if align else (-0.5, float(size))
            if not span:
                return at * 0.0
            far = (at - low).abs()
            turns = (far.detach() / span).floor()
            inside = far - turns * span
            at = m.where(turns % 2 > 0, span - inside, inside) + low
        return m.where((at > 0) & (at < size - 1), at, at.detach().clamp(0, size - 1))
    column, row = coordinate(grid[..., 0], w), coordinate(grid[..., 1], h)
    if mode == "nearest":
        corners = [(row.detach().round(), column.detach().round(), m.ones_like(row))]
    else:
        top, left = row.detach().floor(), column.detach().floor()
        down, right = row - top, column - left
        corners = [(top, left, (1 - down) * (1 - right)), (top, left + 1, (1 - down) * right),
                   (top + 1, left, down * (1 - right)), (top + 1, left + 1, down * right)]
    found = 0
    for i, j, weight in corners:
        inside = ((i >= 0) & (i < h) & (j >= 0) & (j < w)).to(t.dtype)
        flat = (i.clamp(0, h - 1) * w + j.clamp(0, w - 1)).long().reshape(n, 1, -1).expand(n, c, -1)
        pixels = t.reshape(n, c, -1).gather(2, flat).reshape(n, c, *i.shape[1:])
        found = found + pixels * (weight * inside)[:, None]
    return found


@twin
def affine_grid(draw: Draw) -> Twin:
    h, w, align = draw(some), draw(some), draw(st.booleans())
    return Twin(lambda x: ops.affine_grid(x, (2, h, w, 3), align), lambda t: F().affine_grid(t, (2, 3, h, w), align),
                [floats((2, 2, 3), 1)])


# ---- losses ----------------------------------------------------------------------------------------------------------


@twin
def focal_loss(draw: Draw) -> Twin:
    shape, share, gamma = draw(shapes), draw(st.sampled_from([None, 0.25])), draw(st.sampled_from([0.0, 1.5, 2.0]))
    reduction = draw(st.sampled_from(["mean", "sum", "none"]))
    target = np.arange(int(np.prod(shape))).reshape(shape) % 2 * 1.0

    def theirs(t: Any) -> Any:
        y, p = there(t, target), t.sigmoid()
        z = F().binary_cross_entropy_with_logits(t, y, reduction="none") * (1 - (p * y + (1 - p) * (1 - y))) ** gamma
        z = z if share is None else z * (share * y + (1 - share) * (1 - y))
        return z if reduction == "none" else getattr(z, reduction)()
    return Twin(lambda x: ops.focal_loss(x, on(x, target), share, gamma, reduction=reduction), theirs,
                [floats(shape, 1)])


@twin
def dice_loss(draw: Draw) -> Twin:
    c, kind, labelled = draw(some), draw(st.sampled_from(["sigmoid", "softmax", None])), draw(st.booleans())
    labels = np.arange(2 * 3 * 2).reshape(2, 3, 2) % c
    reduction = draw(st.sampled_from(["mean", "sum", "none"]))
    hot = np.eye(c)[labels]

    def theirs(t: Any) -> Any:
        p = t.sigmoid() if kind == "sigmoid" else t.softmax(-1) if kind else t
        y = there(t, hot)
        z = 1 - (2 * (p * y).sum((1, 2)) + 1) / (p.sum((1, 2)) + y.sum((1, 2)) + 1)
        return z if reduction == "none" else getattr(z, reduction)()
    return Twin(lambda x: ops.dice_loss(x, on(x, labels if labelled else hot), kind, reduction=reduction), theirs,
                [floats((2, 3, 2, c), 1, 0.1, 0.9)])


@twin
def ctc_loss(draw: Draw) -> Twin:
    steps, lengths = draw(st.integers(4, 6)), [draw(st.integers(0, 2)), draw(st.integers(1, 2))]
    inputs, blank = [steps, draw(st.integers(4, steps))], draw(st.sampled_from([0, 3]))
    reduction = draw(st.sampled_from(["mean", "sum", "none"]))
    targets = np.array([[1, 1], [2, 1]])
    paths = [[p for p in np.ndindex(*[4] * n) if _read(p, blank) == list(row[:m])]
             for n, row, m in zip(inputs, targets, lengths)]

    def theirs(t: Any) -> Any:
        """All paths that read as the labels, added up: PyTorch's loss has no second gradient."""
        m = torch()
        losses = []
        for k, (n, here) in enumerate(zip(inputs, paths)):
            index = m.tensor(np.array(here)).T      # (steps, paths)
            losses.append(-m.logsumexp(m.log_softmax(t, -1)[:n, k].gather(1, index).sum(0), 0))
        z = m.stack(losses)
        if reduction == "mean":
            z = z / m.tensor(np.maximum(lengths, 1), dtype=t.dtype)
        return z if reduction == "none" else getattr(z, reduction)()
    return Twin(lambda x: ops.ctc_loss(ops.log_softmax(x, -1), targets, inputs, lengths, blank, reduction), theirs,
                [floats((steps, 2, 4), 1)])


def _read(path: tuple[int, ...], blank: int) -> list[int]:
    """The labels of a path: repeats joined, blanks left out."""
    return [c for k, c in enumerate(path) if c != blank and (not k or path[k - 1] != c)]


# ---- by index --------------------------------------------------------------------------------------------------------


@twin
def index_add(draw: Draw) -> Twin:
    axis, n, count = draw(st.integers(0, 2)), draw(some), draw(some)
    index, factor = [draw(st.integers(0, n - 1)) for _ in range(count)], draw(st.sampled_from([1, 0.5]))
    shape, part = [2, 3, 2], [2, 3, 2]
    shape[axis], part[axis] = n, count
    return Twin(lambda x, y: ops.index_add(x, axis, index, y * y, alpha=factor),
                lambda t, y: t.index_add(axis, torch().tensor(index), y * y, alpha=factor),
                [floats(shape, 1), floats(part, 2)])


@twin
def scatter_reduce(draw: Draw) -> Twin:
    axis, n = draw(st.integers(0, 1)), draw(st.integers(2, 3))
    kind, itself = draw(st.sampled_from(["sum", "mean", "amax", "amin"])), draw(st.booleans())
    small = [n, n - 1]
    index = np.array([[draw(st.integers(0, n - 1)) for _ in range(small[1])] for _ in range(small[0])])
    arrays = [floats((n, n), 1), floats((n, n), 2)]

    def theirs(t: Any, y: Any) -> Any:
        """The elements that go to each place, one by one: PyTorch's has no second gradient of all kinds."""
        m = torch()
        rows = []
        for i, j in np.ndindex(n, n):
            mine = [y[p] for p in np.ndindex(*small) if ((index[p], p[1]) == (i, j) and axis == 0)
                    or ((p[0], index[p]) == (i, j) and axis == 1)]
            terms = m.stack([*([t[i, j]] if itself or not mine else []), *mine])
            rows.append(getattr(terms, kind)())
        return m.stack(rows).reshape(n, n)
    return Twin(lambda x, y: ops.scatter_reduce(x, axis, on(x, index), y, kind, include_self=itself) * x, lambda t, y:
                theirs(t, y) * t, arrays)


@twin
def meshgrid(draw: Draw) -> Twin:
    how = draw(st.sampled_from(["ij", "xy"]))

    def f(grids: Callable[..., Any]) -> Callable[..., Any]:
        def total(x: Any, y: Any) -> Any:
            a, b = grids(x, y, indexing=how)
            return a * b * b
        return total
    return Twin(f(ops.meshgrid), f(torch().meshgrid), [floats((draw(some),), 1), floats((draw(some),), 2)])


@twin
def cdist(draw: Draw) -> Twin:
    p, d, lead = draw(st.sampled_from([1.0, 2.0, 3.0, float("inf")])), draw(some), draw(st.sampled_from([(), (2,)]))

    def theirs(t: Any, y: Any) -> Any:
        d = (t[..., :, None, :] - y[..., None, :, :]).abs()
        return d.amax(-1) if p == float("inf") else (d ** p).sum(-1) ** (1 / p)
    return Twin(lambda x, y: ops.cdist(x, y, p), theirs, [floats((*lead, 3, d), 1), floats((*lead, 2, d), 2)])


# ---- volumes ---------------------------------------------------------------------------------------------------------


def deep(weight: Any) -> Any:
    """Filters (OC, FD, FH, FW, IC) as PyTorch has them."""
    return weight.movedim(-1, 1)


def _triple(draw: Draw, low: int, high: int) -> tuple[int, ...]:
    return tuple(draw(st.integers(low, high)) for _ in range(3))


@twin
def conv3d(draw: Draw) -> Twin:
    groups, oc, c = draw(st.integers(1, 2)), draw(some), draw(some)
    f, s, p, d = _triple(draw, 1, 2), _triple(draw, 1, 2), _triple(draw, 0, 2), _triple(draw, 1, 2)
    given = dict(stride=s, padding=p, dilation=d, groups=groups)
    return Twin(lambda x, w, b: ops.conv3d(x, w, b, **given),
                nchw(lambda t, w, b: F().conv3d(t, deep(w), b, **given)),
                [floats((2, 3, 4, 3, c * groups), 1), floats((oc * groups, *f, c), 2), floats((oc * groups,), 3)])


@twin
def conv_transpose3d(draw: Draw) -> Twin:
    groups, oc, c = draw(st.integers(1, 2)), draw(some), draw(some)
    f, s, d = _triple(draw, 1, 3), _triple(draw, 1, 2), _triple(draw, 1, 2)
    p = tuple(draw(st.integers(0, (n - 1) // 2)) for n in f)
    extra = tuple(draw(st.integers(0, max(m, n) - 1)) for m, n in zip(s, d))
    given = dict(stride=s, padding=p, output_padding=extra, dilation=d, groups=groups)
    return Twin(lambda x, w, b: ops.conv_transpose3d(x, w, b, **given),
                nchw(lambda t, w, b: F().conv_transpose3d(t, deep(w), b, **given)),
                [floats((2, 2, 3, 2, c * groups), 1), floats((c * groups, *f, oc), 2), floats((oc * groups,), 3)])


@twin
def conv_transpose1d(draw: Draw) -> Twin:
    f, s, c, oc = draw(some), draw(st.integers(1, 2)), draw(some), draw(some)
    given = dict(stride=s, padding=draw(st.integers(0, f - 1)), output_padding=draw(st.integers(0, s - 1)))
    return Twin(lambda x, w, b: ops.conv_transpose1d(x, w, b, **given),
                nchw(lambda t, w, b: F().conv_transpose1d(t, w.movedim(-1, 1), b, **given)),
                [floats((2, 4, c), 1), floats((c, f, oc), 2), floats((oc,), 3)])


@twin
def max_pool3d(draw: Draw) -> Twin:
    k, s, ceil = _triple(draw, 1, 3), _triple(draw, 1, 2), draw(st.booleans())
    p, d = tuple(draw(st.integers(0, n // 2)) for n in k), (draw(st.integers(1, 2)), 1, 1)
    return Twin(lambda x: ops.max_pool3d(x, k, s, p, d, ceil), nchw(lambda t: F().max_pool3d(t, k, s, p, d, ceil)),
                [floats((2, 5, 4, 3, 2), 1)])


@twin
def avg_pool3d(draw: Draw) -> Twin:
    k, s = _triple(draw, 1, 3), _triple(draw, 1, 2)
    p = tuple(draw(st.integers(0, n // 2)) for n in k)
    rest = draw(st.booleans()), draw(st.booleans()), draw(st.sampled_from([None, 5]))
    return Twin(lambda x: ops.avg_pool3d(x, k, s, p, *rest), nchw(lambda t: F().avg_pool3d(t, k, s, p, *rest)),
                [floats((2, 5, 4, 3, 2), 1)])


def _adaptive(name: str) -> Callable[[Draw], Twin]:
    def make(draw: Draw) -> Twin:
        size = _triple(draw, 1, 3)
        return Twin(lambda x: getattr(ops, name)(x, size), nchw(lambda t: getattr(F(), name)(t, size)),
                    [floats((2, 4, 3, 5, 2), 1)])
    return make


TWINS |= {name: _adaptive(name) for name in ("adaptive_avg_pool3d", "adaptive_max_pool3d")}
