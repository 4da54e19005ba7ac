"""Attention: products of queries and keys, softmax, and a product with values."""

from __future__ import annotations

from functools import lru_cache
from math import inf, sqrt

import numpy as np

from alpha.core.device import FLOAT_DTYPES
from alpha.core.errors import ConfigError, DTypeError, ShapeError, message
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import Finite, Share
from alpha.core.tensor import Tensor, tensor
from alpha.ops.activation import softmax
from alpha.ops.dropout import dropout
from alpha.ops.elementwise import broadcast_shape, eq, where
from alpha.ops.logic import any, logical_not, logical_or
from alpha.ops.matmul import matmul
from alpha.ops.reduce import max

MOST_TRIANGLES = 16     # of causal masks that are kept


@checked
def scaled_dot_product_attention(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None,
                                 dropout_p: Share = 0.0, is_causal: bool = False, scale: Finite | None = None
                                 ) -> Tensor:
    """y = dropout(softmax(scale * q @ k.mT + mask)) @ v: each query's mean of the values whose keys it fits.

    Args:
        q: queries.  Shape (..., L, E), of several heads (N, H, L, E); float.
        k: keys.  Shape (..., S, E).
        v: values.  Shape (..., S, EV).
        attn_mask: which keys a query sees: bool, True where it does; or what is added to the scores, in the dtype of q.
            A shape that broadcasts to (..., L, S); None: all. A query that sees no key has y = 0.
        dropout_p: probability with which a weight is 0, always: pass 0.0 in inference.
        is_causal: whether query l sees the keys 0 to l alone; without attn_mask.
        scale: of the scores; None: 1 / sqrt(E).
    Returns:
        y of shape (..., L, EV). With 16 bits scores and weights are rounded to them, sums are made in float32.
    Raises:
        ShapeError: the shapes do not fit.  DTypeError: attn_mask is neither of bools nor of the dtype of q.
        ConfigError: attn_mask and is_causal are both given.
    Source: Vaswani et al., arXiv 1706.03762.
    """
    weights, seen = attention_weights(q, k, attn_mask, is_causal, scale)
    if v.ndim < 2 or v.shape[-2] != k.shape[-2]:
        raise ShapeError(message("scaled_dot_product_attention", f"v has shape {v.shape}, k has {k.shape}",
                                 "pass as many values as keys", q=q.shape))
    y = matmul(dropout(weights, dropout_p), v)
    return y if seen is None else where(seen, y, 0.0)


def attention_weights(q: Tensor, k: Tensor, mask: Tensor | None, is_causal: bool, scale: float | None
                      ) -> tuple[Tensor, Tensor | None]:
    """Returns the weights (..., L, S), and which queries see a key (..., L, 1), or None where all do.

    Args: see scaled_dot_product_attention. The weights of a query that sees none are any.
    """
    where_ = "scaled_dot_product_attention"
    if q.ndim < 2 or k.ndim < 2 or q.shape[-1] != k.shape[-1]:
        raise ShapeError(message(where_, f"q has shape {q.shape}, k has {k.shape}",
                                 "pass (..., L, E) and (..., S, E)"))
    if mask is not None and is_causal:
        raise ConfigError(message(where_, f"is_causal is True, and there is an attn_mask of shape {mask.shape}",
                                  "pass one of them; both: attn_mask & alpha.ones((L, S)).tril().bool()"))
    scores = matmul(q * (1 / sqrt(q.shape[-1] or 1) if scale is None else scale), k, transpose_b=True)
    if is_causal:
        return softmax(where(_triangle(*scores.shape[-2:], q.device), scores, -inf)), None
    if mask is None:
        return softmax(scores), None
    if len(mask.shape) > scores.ndim or broadcast_shape(where_, scores=scores.shape, attn_mask=mask.shape
                                                        ) != scores.shape:
        raise ShapeError(message(where_, f"attn_mask has shape {mask.shape}, the scores {scores.shape}",
                                 "pass a mask that broadcasts to the scores"))
    if mask.dtype == "bool":
        seen = any(mask, -1, True)
        return softmax(where(logical_or(mask, logical_not(seen)), scores, -inf)), seen
    if mask.dtype not in FLOAT_DTYPES or mask.dtype != q.dtype:
        raise DTypeError(message(where_, f"attn_mask has dtype {mask.dtype}, q has {q.dtype}",
                                 "pass bools, True where a key is seen, or floats: mask.to(q.dtype)"))
    unseen = eq(max(mask.detach(), -1, True), -inf)
    return softmax(scores + where(unseen, 0.0, mask)), logical_not(unseen)


@lru_cache(maxsize=MOST_TRIANGLES)
def _triangle(rows: int, columns: int, device: str) -> Tensor:
    """Returns which keys a query sees that sees no later ones; it is kept, as every call needs it again."""
    return tensor(np.tri(rows, columns, dtype=bool), device=device)
