"""Attention in NumPy, whole scores at a time: the oracle of every kernel, and float64's implementation."""

from __future__ import annotations

import numpy as np

from alpha.cpu.memory import empty
from alpha.ops.attention.desc import AttentionDesc, Place
from alpha.random import STREAMS, uniform

Array = np.ndarray
Results = tuple[Array, ...]


def _heads(a: Array, desc: AttentionDesc, place: Place, rows: int, width: int) -> Array:
    """Returns a view (N, H, rows, width) of the heads that lie at a place of an array."""
    steps = [step * a.itemsize for step in (*place[1:], 1)]
    return np.lib.stride_tricks.as_strided(a.reshape(-1)[place.first:], (desc.n, desc.heads, rows, width), steps)


def _operands(desc: AttentionDesc, q: Array, k: Array | None, v: Array | None) -> list[Array]:
    k = q if k is None else k
    v = k if v is None else v
    return [_heads(q, desc, desc.q, desc.rows, desc.width), _heads(k, desc, desc.k, desc.keys, desc.width),
            _heads(v, desc, desc.v, desc.keys, desc.value_width)]


def _scores(q: Array, k: Array, mask: Array | None, causal: bool, scale: float) -> Array:
    scores = np.matmul(q, k.swapaxes(-1, -2)) * q.dtype.type(scale)
    if mask is not None and mask.dtype != np.bool_:
        scores = scores + mask
    elif mask is not None:
        scores = np.where(mask, scores, -np.inf)
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    return scores.astype(q.dtype, copy=False)


def _kept(desc: AttentionDesc, dtype: np.dtype, p: float, seed: int, offset: int) -> Array | float:
    """Returns the factors of the weights: 0 of those that are dropped."""
    if not p:
        return 1
    numbers = uniform(seed, STREAMS["dropout"], offset, int(np.prod(desc.scores))).reshape(desc.scores)
    return np.where(numbers >= np.float32(p), 0 if p == 1 else 1 / (1 - p), 0).astype(dtype)


def forward(desc: AttentionDesc, q: Array, k: Array | None, v: Array | None, mask: Array | None, *, causal: bool,
            scale: float, p: float, seed: int, offset: int) -> Results:
    """Returns y and lse."""
    queries, keys, values = _operands(desc, q, k, v)
    scores = _scores(queries, keys, mask, causal, scale)
    most = np.fmax.reduce(scores, -1, keepdims=True)
    none = most == -np.inf
    weights = np.exp(scores - np.where(none, 0, most))
    total = weights.sum(-1, keepdims=True)
    y, lse = empty(desc.y_shape, q.dtype), empty(desc.scores[:3], q.dtype)
    none &= total == 0
    out = np.matmul(weights * _kept(desc, q.dtype, p, seed, offset), values) / np.where(none, 1, total)
    _heads(y, desc, desc.y, desc.rows, desc.value_width)[...] = np.where(none, 0, out)
    lse[...] = np.where(none, np.inf, most + np.log(total))[..., 0]
    return y, lse


def gradients(desc: AttentionDesc, g: Array, q: Array, k: Array | None, v: Array | None, mask: Array | None, y: Array,
              lse: Array, *, causal: bool, scale: float, p: float, seed: int, offset: int) -> Results:
    """Returns dq, dk and dv, without elements where k or v is None."""
    queries, keys, values = _operands(desc, q, k, v)
    gs, ys = (_heads(a, desc, desc.y, desc.rows, desc.value_width) for a in (g, y))
    kept = _kept(desc, g.dtype, p, seed, offset)
    weights = np.exp(_scores(queries, keys, mask, causal, scale) - lse[..., None])
    of_scores = weights * (np.matmul(gs, values.swapaxes(-1, -2)) * kept - (gs * ys).sum(-1, keepdims=True))
    of_scores *= g.dtype.type(scale)
    found = np.matmul(of_scores, keys), np.matmul(of_scores.swapaxes(-1, -2), queries), np.matmul(
        (weights * kept).swapaxes(-1, -2), gs)
    results = [empty((0,) if a is None else a.shape, g.dtype) for a in (q, k, v)]
    given = [None if a is None else d for a, d in zip((k, v), results[1:])]
    for view, d in zip(_operands(desc, results[0], *given), found):
        view[...] = d
    return tuple(results)
