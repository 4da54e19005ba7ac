"""Attention composed of products, softmax and dropout, which keep the weights: it has gradients of every order."""

from __future__ import annotations

from functools import lru_cache
from math import inf, sqrt

import numpy as np

from alpha.core.device import FLOAT_DTYPES
from alpha.core.errors import ConfigError, DTypeError, ShapeError, message
from alpha.core.tensor import Tensor, tensor
from alpha.ops.activation import softmax
from alpha.ops.dropout import dropout, keyed_dropout
from alpha.ops.elementwise import broadcast_shape, eq, where
from alpha.ops.index.pick import unbind
from alpha.ops.logic import any, logical_not, logical_or
from alpha.ops.matmul import matmul
from alpha.ops.reduce import max, sum
from alpha.ops.shape import stack

MOST_TRIANGLES = 16     # of causal masks that are kept


WHERE = "scaled_dot_product_attention"


def composed_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, p: float, is_causal: bool, scale: float
                       ) -> Tensor:
    """Returns y by products, softmax and dropout, which keep the weights.  Args: see scaled_dot_product_attention."""
    weights, seen = attention_weights(q, k, mask, is_causal, scale)
    y = matmul(dropout(weights, p), v)
    return y if seen is None else where(seen, y, 0.0)


def check_operands(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool) -> None:
    """Raises ShapeError, DTypeError or ConfigError for what scaled_dot_product_attention refuses."""
    _check_scores(q, k, mask, is_causal)
    if v.ndim < 2 or v.shape[-2] != k.shape[-2]:
        raise ShapeError(message(WHERE, f"v has shape {v.shape}, k has {k.shape}", "pass as many values as keys",
                                 q=q.shape))
    if mask is not None:
        lead = broadcast_shape(WHERE, q=q.shape[:-2], k=k.shape[:-2])
        _check_mask(mask, (*lead, q.shape[-2], k.shape[-2]), q.dtype)


def _check_scores(q: Tensor, k: Tensor, mask: Tensor | None, is_causal: bool) -> None:
    if q.ndim < 2 or k.ndim < 2 or q.shape[-1] != k.shape[-1]:
        raise ShapeError(message(WHERE, f"q has shape {q.shape}, k has {k.shape}", "pass (..., L, E) and (..., S, E)"))
    if mask is not None and is_causal:
        raise ConfigError(message(WHERE, f"is_causal is True, and there is an attn_mask of shape {mask.shape}",
                                  "pass one of them; both: attn_mask & alpha.ones((L, S)).tril().bool()"))


def _check_mask(mask: Tensor, scores: tuple[int, ...], dtype: str) -> None:
    if mask.ndim > len(scores) or broadcast_shape(WHERE, scores=scores, attn_mask=mask.shape) != scores:
        raise ShapeError(message(WHERE, f"attn_mask has shape {mask.shape}, the scores {scores}",
                                 "pass a mask that broadcasts to the scores"))
    if mask.dtype != "bool" and (mask.dtype not in FLOAT_DTYPES or mask.dtype != dtype):
        raise DTypeError(message(WHERE, f"attn_mask has dtype {mask.dtype}, q has {dtype}",
                                 "pass bools, True where a key is seen, or floats: mask.to(q.dtype)"))


def attention_weights(q: Tensor, k: Tensor, mask: Tensor | None, is_causal: bool, scale: float | None
                      ) -> tuple[Tensor, Tensor | None]:
    """Returns the weights (..., L, S), and which queries see a key (..., L, 1), or None where all do.

    Args: see scaled_dot_product_attention. The weights of a query that sees none are any.
    """
    _check_scores(q, k, mask, is_causal)
    scores = matmul(q * (1 / sqrt(q.shape[-1] or 1) if scale is None else scale), k, transpose_b=True)
    if is_causal:
        return softmax(where(_triangle(*scores.shape[-2:], q.device), scores, -inf)), None
    if mask is None:
        return softmax(scores), None
    _check_mask(mask, scores.shape, q.dtype)
    if mask.dtype == "bool":
        seen = any(mask, -1, True)
        return softmax(where(logical_or(mask, logical_not(seen)), scores, -inf)), seen
    unseen = eq(max(mask.detach(), -1, True), -inf)
    return softmax(scores + where(unseen, 0.0, mask)), logical_not(unseen)


@lru_cache(maxsize=MOST_TRIANGLES)
def _triangle(rows: int, columns: int, device: str) -> Tensor:
    """Returns which keys a query sees that sees no later ones; it is kept, as every call needs it again."""
    return tensor(np.tri(rows, columns, dtype=bool), device=device)


def composed_gradients(g: Tensor, q: Tensor, k: Tensor | None, v: Tensor | None, mask: Tensor | None, *, heads: int,
                       batch_first: bool, causal: bool, scale: float, p: float, seed: int, offset: int
                       ) -> list[Tensor]:
    """Returns the gradients of alpha.ops.attention.attention by ops that have gradients; those of None are left out."""
    given = [t for t in (q, k, v) if t is not None]
    to_heads = (2, 0, 3, 1, 4) if batch_first else (2, 1, 3, 0, 4)
    if heads:
        counts = {1: (3,), 2: (1, 2), 3: (1, 1, 1)}[len(given)]
        apart = [t.reshape(*t.shape[:2], n, heads, t.shape[2] // (n * heads)) for t, n in zip(given, counts)]
        q, k, v = [part for t in apart for part in unbind(t.permute(to_heads))]
        g = unbind(g.reshape(*g.shape[:2], 1, heads, g.shape[2] // heads).permute(to_heads))[0]
    assert k is not None and v is not None
    weights, seen = attention_weights(q, k, mask, causal, scale)
    if seen is not None:
        g = where(seen, g, 0.0)

    def dropped(t: Tensor) -> Tensor:
        return keyed_dropout(t, p=p, seed=seed, offset=offset) if p else t
    dv = matmul(dropped(weights), g, transpose_a=True)
    d = dropped(matmul(g, v, transpose_b=True))
    d = weights * (d - sum(weights * d, -1, True)) * scale
    found = [matmul(d, k), matmul(d, q, transpose_a=True), dv]
    if not heads:
        return found
    back = (1, 3, 0, 2, 4) if batch_first else (3, 1, 0, 2, 4)
    return [stack([found.pop(0) for _ in range(n)]).permute(back).reshape(t.shape) for t, n in zip(given, counts)]
