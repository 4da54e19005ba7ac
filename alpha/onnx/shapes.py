"""Rules of nodes.py for ops that move elements, and for reductions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from alpha.inference.program import Call
from alpha.onnx.batch import Baked
from alpha.onnx.graph import FIRST, PLAIN, TO_FIRST, Graph
from alpha.onnx.nodes import RULES, array, rule

__all__ = ["RULES"]     # with the rules of this file

END = 1 << 62       # of Slice: the end of the axis, however long it is; its negative is the place before the first


def _moved(axis: int, ndim: int, first: bool) -> int:
    """Returns where an axis of a value is, with channels first or as in alpha."""
    axis %= ndim
    return TO_FIRST.index(axis) if first else axis


@rule("softmax", "log_softmax")
def _softmax(g: Graph, call: Call) -> None:
    kind = "Softmax" if call.op.name == "softmax" else "LogSoftmax"
    g.put(call.outs[0], g.node(kind, [g.get(call.args[0])], axis=call.attrs["axis"]))


@rule("reshape")
def _reshape(g: Graph, call: Call) -> None:
    x, y = call.args[0], call.outs[0]
    old = [g.batch.lengths(x, k) for k in range(len(x.shape))]
    if len(x.shape) == 4 and len(y.shape) == 2 and old[0] == g.batch.lengths(y, 0) and g.is_first(x):
        h, w, c = (g.size(x, k) for k in (1, 2, 3))
        flat = g.node("Flatten", [g.get(x, FIRST)], axis=1)
        if h * w == 1:
            g.put(y, flat)
        else:
            g.flat[y] = flat, (h, w, c)
        return
    g.put(y, g.node("Reshape", [g.get(x), g.shape(y, old)]))


@rule("expand")
def _expand(g: Graph, call: Call) -> None:
    x, y = call.args[0], call.outs[0]
    lengths, new = [g.batch.lengths(y, k) for k in range(len(y.shape))], len(y.shape) - len(x.shape)
    for k in range(len(x.shape)):
        if g.batch.lengths(x, k) == lengths[new + k]:
            lengths[new + k] = (1,) * len(g.batch.numbers)     # stays
    g.put(y, g.node("Expand", [g.get(x), g.following(lengths)]))


@rule("take")
def _take(g: Graph, call: Call) -> None:
    g.put(call.outs[0], g.node("Gather", [g.get(v) for v in call.args], axis=0))


@rule("mix_rows")
def _mix_rows(g: Graph, call: Call) -> None:
    x, (index, weights) = g.get(call.args[0]), [array(v, 0, 0) for v in call.args[1:3]]
    terms = []
    for rows, share in zip(index.T, np.where(index < 0, 0, weights).T):
        part = g.node("Gather", [x, g.integers(np.maximum(rows, 0).tolist())], axis=1)
        terms.append(g.node("Mul", [part, g.weight("shares", share.astype(weights.dtype)[:, None])]))
    g.put(call.outs[0], terms[0] if len(terms) == 1 else g.node("Sum", terms))


@rule("permute")
def _permute(g: Graph, call: Call) -> None:
    g.put(call.outs[0], g.node("Transpose", [g.get(call.args[0])], perm=call.attrs["axes"]))


@rule("concat")
def _concat(g: Graph, call: Call) -> None:
    values, ndim = call.args[0], len(call.outs[0].shape)
    first = ndim == 4 and any(map(g.is_first, values))
    layout = FIRST if first else PLAIN
    g.put(call.outs[0], g.node("Concat", [g.get(v, layout) for v in values],
                               axis=_moved(call.attrs["axis"], ndim, first)), layout)


@rule("slice_axes")
def _slice(g: Graph, call: Call) -> None:
    x, y = call.args[0], call.outs[0]
    ranges = g.batch.ranges.get(call, (call.attrs["ranges"],))      # in each trace
    kept = [tuple([r[k][1] for r in ranges]) for k in range(len(x.shape))]
    whole = len(y.shape) == len(kept) and all(g.batch.lengths(y, k) == n for k, n in enumerate(kept))
    first = g.is_first(x) and whole
    cut = []
    for k in range(len(x.shape)):
        found = _cuts(g, g.batch.lengths(x, k), [r[k] for r in ranges])
        if found != (0, END, 1):
            cut.append((_moved(k, len(x.shape), first), *found))
    name = g.get(x, FIRST if first else PLAIN)
    if cut:
        axes, begins, ends, steps = zip(*cut)
        name = g.node("Slice", [name, *map(g.integers, (begins, ends, axes, steps))])
    if not whole:
        name = g.node("Reshape", [name, g.shape(y, kept)])
    g.put(y, name, FIRST if first else PLAIN)


def _cuts(g: Graph, sizes: Sequence[int], ranges: Sequence[tuple[int, int, int]]) -> tuple[int, int, int]:
    """Returns begin, end and step of Slice along an axis, from (begin, count, step) and the size in each trace.

    A limit is a place from the front or from the back, which Slice clips to the axis as Python does.
    Raises Baked if neither holds for all traces.
    """
    step = ranges[0][2]
    begins, ends = [b for b, _, _ in ranges], [b + count * s for b, count, s in ranges]
    if any(s != step for _, _, s in ranges):
        raise Baked(f"the step of a slice is {g.batch.told([s for _, _, s in ranges])}")
    if step < 0:
        last = [n - 1 for n in sizes]
        begin = END if begins == last and len(set(begins)) > 1 else _place(g, begins, sizes)
        return begin, -END if max(ends) < 0 else _place(g, ends, sizes), step
    ends = [min(e, n) for e, n in zip(ends, sizes)]
    return _place(g, begins, sizes), END if ends == [*sizes] else _place(g, ends, sizes), step


def _place(g: Graph, places: Sequence[int], sizes: Sequence[int]) -> int:
    """Returns a place along an axis as it stands in Slice: from the front, or below 0 from the back."""
    front, back = max(places), max(n - p for n, p in zip(sizes, places))
    if len(set(places)) == 1 or all(p == min(front, n) for p, n in zip(places, sizes)):
        return front
    if back > 0 and all(p == max(0, n - back) for p, n in zip(places, sizes)):
        return -back
    raise Baked(f"a limit of a slice is {g.batch.told(places)}")


@rule("pad")
def _pad(g: Graph, call: Call) -> None:
    x, widths = call.args[0], list(call.attrs["widths"])
    first = g.is_first(x)
    if first:
        widths = [widths[k] for k in TO_FIRST]
    sides = g.integers([before for before, _ in widths] + [after for _, after in widths])
    layout = FIRST if first else PLAIN
    g.put(call.outs[0], g.node("Pad", [g.get(x, layout), sides, g.scalar(call.attrs["value"], x.dtype)]), layout)


@rule("flip")
def _flip(g: Graph, call: Call) -> None:
    axis = call.attrs["axis"]
    axes = range(len(call.args[0].shape)) if axis is None else axis if isinstance(axis, (tuple, list)) else [axis]
    minus = [-1] * len(axes)
    g.put(call.outs[0], g.node("Slice", [g.get(call.args[0]), g.integers(minus), g.integers([-(1 << 62)] * len(axes)),
                                         g.integers(list(axes)), g.integers(minus)]))


@rule("mean", "max", "min", "sum")
def _reduced(g: Graph, call: Call) -> None:
    x, axis, keep = call.args[0], call.attrs["axis"], call.attrs["keepdims"]
    axes = range(len(x.shape)) if axis is None else axis if isinstance(axis, (tuple, list)) else [axis]
    axes = sorted(a % len(x.shape) for a in axes)
    first = g.is_first(x) and (keep or axes == [1, 2])
    places = [_moved(a, len(x.shape), first) for a in axes]
    kind, source = f"Reduce{call.op.name.capitalize()}", g.get(x, FIRST if first else PLAIN)
    y = g.node(kind, [source, g.integers(places)], keepdims=int(keep)) if kind == "ReduceSum" else g.node(
        kind, [source], axes=places, keepdims=int(keep))
    g.put(call.outs[0], y, FIRST if first and keep else PLAIN)
