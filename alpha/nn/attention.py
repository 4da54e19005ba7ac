"""Attention of several heads, and encoders made of it; parameters have PyTorch's names, so that its weights load.

As in PyTorch, sequences are (L, N, E) unless batch_first=True makes them (N, L, E), the order of channels last.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Annotated, Any

from alpha import ops
from alpha.core.errors import ConfigError, DTypeError, ShapeError, message
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import Choice, Count, Either, Function, Positive, Share
from alpha.core.precision import to_storage_dtype
from alpha.core.tensor import Tensor
from alpha.nn import init
from alpha.nn.container import ModuleList
from alpha.nn.dropout import Dropout
from alpha.nn.linear import Linear
from alpha.nn.module import Module, Parameter
from alpha.nn.norm import LayerNorm
from alpha.ops.attention import attention_of_layer, attention_weights, fits

FeedForward = Annotated[Any, Either([Choice("relu", "gelu"), Function()], 'pass "relu", "gelu" or a function')]


class MultiheadAttention(Module):
    """Attention of several heads: y = out_proj(heads of scaled_dot_product_attention(q, k, v), joined).

    Args:
        embed_dim: size E of queries and of y.
        num_heads: heads H; they divide embed_dim.
        dropout: probability with which a weight is 0 in training.
        bias: whether the projections have biases.
        add_bias_kv, add_zero_attn: only False is there.
        kdim, vdim: sizes of keys and values; None: embed_dim.
        batch_first: whether sequences are (N, L, E); else (L, N, E), or (L, E) without a batch.
    Shape: query (L, N, E), key (S, N, kdim), value (S, N, vdim) -> (y (L, N, E), weights (N, L, S)).
    Parameters: in_proj_weight (3 * E, E), or, where kdim or vdim differ, q_proj_weight (E, E), k_proj_weight (E, kdim)
        and v_proj_weight (E, vdim); in_proj_bias (3 * E,); out_proj.weight (E, E), out_proj.bias (E,). Weights of the
        projections start as xavier_uniform_ makes them, out_proj.weight as of Linear, biases as 0.
    Raises:
        ConfigError: num_heads does not divide embed_dim, or a setting is not there.
    Source: Vaswani et al., arXiv 1706.03762.
    """

    q_proj_weight: Parameter | None
    k_proj_weight: Parameter | None
    v_proj_weight: Parameter | None

    @checked
    def __init__(self, embed_dim: Count, num_heads: Count, dropout: Share = 0.0, bias: bool = True,
                 add_bias_kv: bool = False, add_zero_attn: bool = False, kdim: Count | None = None,
                 vdim: Count | None = None, batch_first: bool = False) -> None:
        if embed_dim % num_heads:
            raise ConfigError(message("MultiheadAttention", f"num_heads={num_heads} does not divide "
                                      f"embed_dim={embed_dim}", "choose a number of heads that does"))
        if add_bias_kv or add_zero_attn:
            raise ConfigError(message("MultiheadAttention", f"add_bias_kv={add_bias_kv}, add_zero_attn="
                                      f"{add_zero_attn}: there is neither", "append a key and a value to "
                                      "those that you pass"))
        self.embed_dim, self.num_heads, self.dropout, self.batch_first = embed_dim, num_heads, dropout, batch_first
        self.kdim, self.vdim = embed_dim if kdim is None else kdim, embed_dim if vdim is None else vdim
        packed = self.kdim == self.vdim == embed_dim
        made = [init.xavier_uniform_(Parameter(ops.zeros((rows, columns)))) for rows, columns in (
            [(3 * embed_dim, embed_dim)] if packed else [(embed_dim, n) for n in (embed_dim, self.kdim, self.vdim)])]
        self.in_proj_weight = made[0] if packed else None
        self.q_proj_weight, self.k_proj_weight, self.v_proj_weight = [None] * 3 if packed else made
        self.in_proj_bias = Parameter(ops.zeros((3 * embed_dim,))) if bias else None
        self.out_proj = Linear(embed_dim, embed_dim, bias)
        if bias:
            self.out_proj.bias = Parameter(ops.zeros((embed_dim,)))

    @checked
    def forward(self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None = None,
                need_weights: bool = True, attn_mask: Tensor | None = None, average_attn_weights: bool = True,
                is_causal: bool = False) -> tuple[Tensor, Tensor | None]:
        """Returns y, and the weights of the keys or None.

        Args:
            query, key, value: see the class.
            key_padding_mask: which keys no query sees: bool (N, S), True where it does not; or numbers added to scores.
            need_weights: whether to return the weights, which takes their memory; else None is returned for them.
            attn_mask: which keys a query does not see: bool (L, S) or (N * H, L, S), True where it does not; or
                numbers added to scores.
            average_attn_weights: whether the weights are the mean over the heads, (N, L, S), or (N, H, L, S).
            is_causal: whether query l sees the keys 0 to l alone. Beside an attn_mask, which then says so, it is taken
                and not needed.
        A query that sees no key has weights of 0; PyTorch's are NaN with need_weights=True.
        Raises:
            ShapeError: the shapes do not fit.  DTypeError: a mask is neither of bools nor of floats.
        """
        single = query.ndim == 2
        self._check_shapes(query, key, value)
        parts = self._projected(*[to_storage_dtype(t) for t in (query, key, value)])
        mask = self._mask(parts[0], parts[-1], attn_mask, key_padding_mask)
        dropped, causal = self.dropout if self.training else 0.0, is_causal and mask is None
        weights: Tensor | None = None
        if need_weights or not fits(parts, self.embed_dim // self.num_heads, mask):
            q, k, v = self._heads(parts)
            weights, seen = attention_weights(q, k, mask, causal, None)
            weights = ops.dropout(weights if seen is None else ops.where(seen, weights, 0.0), dropped)
            y = ops.matmul(weights, v).permute((0, 2, 1, 3) if self.batch_first else (2, 0, 1, 3)).reshape(
                *parts[0].shape[:2], self.embed_dim)
        else:
            y = attention_of_layer(parts, self.num_heads, self.batch_first, mask, dropped, causal)
        if need_weights and weights is not None:
            weights = weights.mean(1) if average_attn_weights else weights
            weights = ops.squeeze(weights, 0) if single else weights
        return self.out_proj(y.reshape(query.shape)), weights if need_weights else None

    def _check_shapes(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        sizes = tuple([t.shape[-1:] for t in (query, key, value)])
        wanted = tuple([(n,) for n in (self.embed_dim, self.kdim, self.vdim)])
        batch = 0 if self.batch_first else 1
        if (query.ndim not in (2, 3) or not query.ndim == key.ndim == value.ndim or sizes != wanted
                or key.shape[:-1] != value.shape[:-1] or (query.ndim == 3 and query.shape[batch] != key.shape[batch])):
            order = "(N, L, E)" if self.batch_first else "(L, N, E)"
            raise ShapeError(message("MultiheadAttention", f"query has shape {query.shape}, key {key.shape}, value "
                                     f"{value.shape}", f"pass {order} with E={self.embed_dim}, and keys and values of "
                                     f"{self.kdim} and {self.vdim}; batch_first is {self.batch_first}"))

    def _projected(self, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        """Returns queries, keys and values (N, L, E), or (L, N, E), in as many tensors as there are different inputs.

        Without a batch N is 1. Where a tensor holds several of them, they lie one behind the other in its last axis.
        """
        e, b = self.embed_dim, self.in_proj_bias
        parts: list[tuple[Tensor, Any, Tensor | None]]
        if self.in_proj_weight is None:
            weights = [self.q_proj_weight, self.k_proj_weight, self.v_proj_weight]
            parts = [*zip((query, key, value), weights, [None] * 3 if b is None else ops.split(b, e))]
        else:
            cuts = [3] if query is key is value else [1, 2] if key is value else [1, 1, 1]
            inputs = [query] if len(cuts) == 1 else [query, key] if len(cuts) == 2 else [query, key, value]
            sizes = [n * e for n in cuts]
            whole = len(cuts) == 1
            parts = [*zip(inputs, [self.in_proj_weight] if whole else ops.split(self.in_proj_weight, sizes),
                          [b] if whole else [None] * len(cuts) if b is None else ops.split(b, sizes))]
        return [ops.linear(x if x.ndim == 3 else ops.unsqueeze(x, 0 if self.batch_first else 1), w, bias)
                for x, w, bias in parts]

    def _heads(self, parts: list[Tensor]) -> list[Tensor]:
        """Returns queries, keys and values of shape (N, H, L, E / H)."""
        e = self.embed_dim
        found: list[Tensor] = []
        for y in parts:
            y = y.reshape(*y.shape[:2], y.shape[2] // e, self.num_heads, e // self.num_heads)
            found += ops.unbind(y.permute((2, 0, 3, 1, 4) if self.batch_first else (2, 1, 3, 0, 4)))
        return found

    def _mask(self, q: Tensor, k: Tensor, attn_mask: Tensor | None, padding: Tensor | None) -> Tensor | None:
        """Returns the mask of scaled_dot_product_attention that the two make; its shape broadcasts to (N, H, L, S)."""
        (n, rows), columns = q.shape[:2] if self.batch_first else q.shape[1::-1], k.shape[1 if self.batch_first else 0]
        h = self.num_heads
        found = [_seen("attn_mask", attn_mask, q.dtype, {
                     (rows, columns): (rows, columns), (n * h, rows, columns): (n, h, rows, columns)}),
                 _seen("key_padding_mask", padding, q.dtype, {
                     (n, columns): (n, 1, 1, columns), (columns,): (1, 1, 1, columns)})]
        masks = [m for m in found if m is not None]
        if len(masks) < 2:
            return masks[0] if masks else None
        if masks[0].dtype == masks[1].dtype:
            return ops.logical_and(*masks) if masks[0].dtype == "bool" else masks[0] + masks[1]
        mask, added = masks if masks[0].dtype == "bool" else masks[::-1]
        return ops.where(mask, added, -math.inf)

    def extra_repr(self) -> str:
        return f"{self.embed_dim}, {self.num_heads}" + (", batch_first=True" if self.batch_first else "")


def _seen(name: str, mask: Tensor | None, dtype: str, shapes: dict[tuple[int, ...], tuple[int, ...]]) -> Tensor | None:
    """Returns a mask in the shape that goes with its own, bools as True where a key is seen, others in a dtype."""
    if mask is None:
        return None
    if mask.shape not in shapes:
        raise ShapeError(message("MultiheadAttention", f"{name} has shape {mask.shape}, "
                                 f"{' or '.join(map(str, shapes))} is needed", "pass a mask of such a shape"))
    if mask.dtype != "bool" and not mask.is_floating_point:
        raise DTypeError(message("MultiheadAttention", f"{name} has dtype {mask.dtype}, bools or floats are needed",
                                 "pass bools, True where a key is not seen: mask.bool(); or floats that are added"))
    made = mask.reshape(shapes[mask.shape])
    return ops.logical_not(made) if mask.dtype == "bool" else made.astype(dtype)


class TransformerEncoderLayer(Module):
    """Self-attention and two linear layers, each with a shortcut and a normalisation.

        x = norm1(x + attention(x));  y = norm2(x + linear2(activation(linear1(x))))
        norm_first: x = x + attention(norm1(x));  y = x + linear2(activation(linear1(norm2(x))))
    Args:
        d_model: size E of x.
        nhead: heads; they divide d_model.
        dim_feedforward: features between linear1 and linear2.
        dropout: probability of a zero: in the weights of attention, behind the activation and in front of each sum.
        activation: "relu", "gelu" or a function.
        layer_norm_eps: of the normalisations.
        batch_first: whether x is (N, L, E); else (L, N, E).
        norm_first: see above.
        bias: whether linear layers and normalisations have biases.
    Shape: x (L, N, E) or (L, E) -> y of the same shape.
    Parameters: of self_attn, linear1, linear2, norm1 and norm2.
    Source: Vaswani et al., arXiv 1706.03762; norm_first: Xiong et al., arXiv 2002.04745.
    """

    @checked
    def __init__(self, d_model: Count, nhead: Count, dim_feedforward: Count = 2048, dropout: Share = 0.1,
                 activation: FeedForward = "relu", layer_norm_eps: Positive = 1e-5, batch_first: bool = False,
                 norm_first: bool = False, bias: bool = True) -> None:
        self.self_attn = MultiheadAttention(d_model, nhead, dropout, bias, batch_first=batch_first)
        self.linear1, self.linear2 = Linear(d_model, dim_feedforward, bias), Linear(dim_feedforward, d_model, bias)
        self.norm1, self.norm2 = (LayerNorm(d_model, layer_norm_eps, bias=bias) for _ in range(2))
        self.dropout, self.dropout1, self.dropout2 = Dropout(dropout), Dropout(dropout), Dropout(dropout)
        self.activation: str | Callable[[Tensor], Tensor] = "relu" if activation is ops.relu else activation
        self.norm_first = norm_first

    @checked
    def forward(self, src: Tensor, src_mask: Tensor | None = None, src_key_padding_mask: Tensor | None = None,
                is_causal: bool = False) -> Tensor:
        """Returns y.  src_mask, src_key_padding_mask, is_causal: as in MultiheadAttention's forward."""
        masks = dict(attn_mask=src_mask, key_padding_mask=src_key_padding_mask, is_causal=is_causal)
        x = to_storage_dtype(src)
        if self.norm_first:
            x = x + self._attended(self.norm1(x), masks)
            return x + self._fed(self.norm2(x))
        x = self.norm1(x + self._attended(x, masks))
        return self.norm2(x + self._fed(x))

    def _attended(self, x: Tensor, masks: dict[str, Any]) -> Tensor:
        return self.dropout1(self.self_attn(x, x, x, need_weights=False, **masks)[0])

    def _fed(self, x: Tensor) -> Tensor:
        if self.activation == "relu":
            h = self.linear1(x, activation="relu")
        else:
            h = self.linear1(x)
            h = ops.gelu(h) if self.activation == "gelu" else self.activation(h)    # type: ignore[operator]
        return self.dropout2(self.linear2(self.dropout(h)))

    def extra_repr(self) -> str:
        return "norm_first=True" if self.norm_first else ""


class TransformerEncoder(Module):
    """Several layers, one behind the other, which start as copies of one.

    Args:
        encoder_layer: the layer that is copied.
        num_layers: how many there are.
        norm: a module that is called behind the last one; or None.
        enable_nested_tensor, mask_check: taken and not needed.
    Shape: as encoder_layer.
    Parameters: of layers.0, layers.1, ... and of norm.
    """

    @checked
    def __init__(self, encoder_layer: Module, num_layers: Count, norm: Module | None = None,
                 enable_nested_tensor: bool = True, mask_check: bool = True) -> None:
        self.layers = ModuleList([copy.deepcopy(encoder_layer) for _ in range(num_layers)])
        self.num_layers, self.norm = num_layers, norm

    @checked
    def forward(self, src: Tensor, mask: Tensor | None = None, src_key_padding_mask: Tensor | None = None,
                is_causal: bool | None = None) -> Tensor:
        """Returns y.  mask, src_key_padding_mask, is_causal: as in MultiheadAttention's forward; None is False."""
        for layer in self.layers:
            src = layer(src, mask, src_key_padding_mask, bool(is_causal))
        return src if self.norm is None else self.norm(src)
