"""Attention: products of queries and keys, softmax, and a product with values, in one op that keeps no scores."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod, sqrt

from alpha import random
from alpha.core.config import config
from alpha.core.device import FLOAT_DTYPES
from alpha.core.errors import DTypeError, ShapeError, message
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import Finite, Seed, Share, Size
from alpha.core.op import Spec, grad_enabled, op
from alpha.core.table import public
from alpha.core.tensor import Tensor
from alpha.ops.attention.composed import attention_weights, check_operands, composed_attention, composed_gradients
from alpha.ops.attention.desc import describe
from alpha.ops.elementwise import broadcast_shape
from alpha.ops.reduce import accumulation_dtype

__all__ = ["MOST_WIDTH", "attention", "attention_grad", "attention_of_layer", "attention_weights",
           "composed_alone", "fits", "scaled_dot_product_attention"]

MOST_WIDTH = 256    # elements of a query or a value, beyond which attention is composed of products and softmax


@public(functional=True)
@checked
def scaled_dot_product_attention(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None,
                                 dropout_p: Share = 0.0, is_causal: bool = False, scale: Finite | None = None
                                 ) -> Tensor:
    """y = dropout(softmax(scale * q @ k.mT + mask)) @ v: each query's mean of the values whose keys it fits.

    The scores are never in memory as a whole, forward or backward. Where E or EV is beyond 256, or attn_mask requires
    a gradient, or the dtypes differ, the op is composed of matmul, softmax and dropout, which keep the weights.
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
        y of shape (..., L, EV), float32 sums rounded to the dtype of q. See docs/explanation/numerics.md for its error.
    Raises:
        ShapeError: the shapes do not fit.  DTypeError: attn_mask is neither of bools nor of the dtype of q.
        ConfigError: attn_mask and is_causal are both given.
    Source: Vaswani et al., arXiv 1706.03762; computed by blocks as in Dao et al., arXiv 2205.14135.
    """
    check_operands(q, k, v, attn_mask, is_causal)
    scale = 1 / sqrt(q.shape[-1] or 1) if scale is None else scale
    lead = broadcast_shape("scaled_dot_product_attention", q=q.shape[:-2], k=k.shape[:-2], v=v.shape[:-2])
    if 0 in lead or not fits((q, k, v), max(q.shape[-1], v.shape[-1]), attn_mask):
        return composed_attention(q, k, v, attn_mask, dropout_p, is_causal, scale)
    n = (prod(lead[:-1]), lead[-1]) if lead else (1, 1)
    heads = [(t if t.shape[:-2] == lead else t.expand((*lead, *t.shape[-2:]))).reshape(*n, *t.shape[-2:])
             for t in (q, k, v)]
    if attn_mask is not None and len(lead) > 2 and attn_mask.ndim > 2:
        attn_mask = attn_mask.expand((*lead, *attn_mask.shape[-2:])).reshape(*n, *attn_mask.shape[-2:])
    seed, offset = random.reserve(prod(lead) * q.shape[-2] * k.shape[-2]) if dropout_p else (0, 0)
    y = attention(*heads, attn_mask, causal=is_causal, scale=scale, p=dropout_p, seed=seed, offset=offset)
    return y.reshape(*lead, *y.shape[-2:])


def _shape(t: Tensor | None) -> tuple[int, ...] | None:
    return None if t is None else t.shape


class _Here(threading.local):
    """Of this thread: whether attention is composed of other ops wherever it is called."""

    composed = False


_here = _Here()


@contextmanager
def composed_alone() -> Iterator[None]:
    """For a block, such as the export of a file, in which attention is composed of ops that other programs have."""
    before, _here.composed = _here.composed, True
    try:
        yield
    finally:
        _here.composed = before


def fits(xs: Sequence[Tensor], width: int, mask: Tensor | None) -> bool:
    """Tells whether the op attention serves these queries, keys and values, which have an element at least."""
    by_fma = xs[0].device != "cpu" and xs[0].dtype == "float32" and not config.tensor_cores
    return (not by_fma and not _here.composed and width <= MOST_WIDTH and len({x.dtype for x in xs}) == 1
            and xs[0].dtype in FLOAT_DTYPES and all(0 not in x.shape for x in xs)
            and not (mask is not None and mask.requires_grad))


def attention_of_layer(parts: Sequence[Tensor], heads: int, batch_first: bool, mask: Tensor | None, p: float,
                       causal: bool) -> Tensor:
    """Returns attention of the queries, keys and values that a layer has made: in one tensor, in two or in three."""
    q, k, v = [*parts, None, None][:3]
    desc = describe(q.shape, _shape(k), _shape(v), heads, batch_first)
    seed, offset = random.reserve(prod(desc.scores)) if p else (0, 0)
    return attention(q, k, v, mask, heads=heads, batch_first=batch_first, causal=causal, scale=1 / sqrt(desc.width),
                     p=p, seed=seed, offset=offset)


@op
class attention:
    """y = dropout(softmax(scale * q @ k.mT + mask)) @ v, of heads that lie where their layer has put them.

    Args:
        q, k, v: float, of one dtype. heads=0: (N, H, L, E), (N, H, S, E) and (N, H, S, EV). Else (N, L, H * E),
            (N, S, H * E) and (N, S, H * EV); or q and, in one tensor (N, S, 2 * H * E), keys and behind them values, v
            None; or all three in one tensor (N, L, 3 * H * E), k and v None.
        mask: bool, True where a key is seen; or what is added to the scores, in the dtype of q. Its shape broadcasts to
            (N, H, L, S); or None. A query that sees no key has y = 0.
        heads: see q.
        batch_first: where heads are given, whether N comes first; else the tensors are (L, N, ...) and (S, N, ...).
        causal: whether query l sees the keys 0 to l alone.
        scale: of the scores.
        p, seed, offset: a weight is 0 where number offset + k of the stream "dropout" is below p, and divided by 1 - p
            elsewhere; k counts the scores (N, H, L, S).
    Returns:
        y, laid out as q is: (N, H, L, EV), (N, L, H * EV) or (L, N, H * EV).
    Raises:
        ShapeError: the shapes do not fit.  DTypeError: mask is neither of bools nor of the dtype of q.
    Source: arXiv 2205.14135.
    """

    args, saves, outs = "q k? v? mask?", "q k v mask y lse", "y lse"
    returns, mixed = "y", "mask"
    flops = lambda size, q, k, *others: 4.0 * size * (q if k is None else k).shape[-2]  # noqa: E731

    def shape(q, k, v, mask, *, heads: Size = 0, batch_first: bool = True, causal: bool = False, scale: Finite = 1.0,
              p: Share = 0.0, seed: Seed = 0, offset: Size = 0):
        desc = describe(q.shape, _shape(k), _shape(v), heads, batch_first)
        if mask is not None:
            if mask.ndim > 4 or broadcast_shape("attention", scores=desc.scores, mask=mask.shape) != desc.scores:
                raise ShapeError(message("attention", f"mask has shape {mask.shape}, the scores {desc.scores}",
                                         "pass a mask that broadcasts to the scores"))
            if mask.dtype not in ("bool", q.dtype):
                raise DTypeError(message("attention", f"mask has dtype {mask.dtype}, q has {q.dtype}",
                                         "pass bools, or floats: mask.to(q.dtype)"))
        return [desc.y_shape, Spec(desc.scores[:3], accumulation_dtype(q.dtype))]

    def vjp(g, s, needs, **attrs):
        if grad_enabled():
            found = [*composed_gradients(g, s.q, s.k, s.v, s.mask, **attrs), None, None][:3]
        else:
            found = attention_grad(g, s.q, s.k, s.v, s.mask, s.y, s.lse, **attrs)
        return [d if need and shape else None for d, need, shape in zip(
            found, needs, (s.q_shape, s.k_shape, s.v_shape))] + [None]


@op
class attention_grad:
    """Gradients of attention: weights are made again from q, k and lse, so that no scores are kept.

        P = exp(scale * q k^T + mask - lse);  dP = dropout(g v^T);  dS = P * (dP - sum(g * y))
        dv = dropout(P)^T g;  dk = scale * dS^T q;  dq = scale * dS k

    Args:
        g: gradient of y.
        q, k, v, mask: as in attention.
        y, lse: what attention made; lse (N, H, L) is the logarithm of the sum of exponentials of a row's scores,
            infinity for a query that sees no key.
        heads, batch_first, causal, scale, p, seed, offset: as in attention.
    Returns:
        Gradients laid out as q, k and v are; those of None have no elements.
    """

    args, outs, mixed = "g q k? v? mask? y lse", "dq dk dv", "mask lse"
    flops = lambda size, g, q, k, *others: 10.0 * prod(g.shape) * (q if k is None else k).shape[-2]  # noqa: E731

    def shape(g, q, k, v, mask, y, lse, *, heads: Size, batch_first: bool, causal: bool, scale: Finite, p: Share,
              seed: Seed, offset: Size):
        desc = describe(q.shape, _shape(k), _shape(v), heads, batch_first)
        if not g.shape == y.shape == desc.y_shape or lse.shape != desc.scores[:3]:
            raise ShapeError(message("attention_grad", "g, y and lse are not those of attention(q, k, v)",
                                     "pass the tensors of one call", g=g.shape, y=y.shape, lse=lse.shape))
        return [q.shape, k.shape if k is not None else (0,), v.shape if v is not None else (0,)]
