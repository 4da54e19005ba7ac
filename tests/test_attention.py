"""Attention against PyTorch: its weights, all masks, both orders of axes, gradients; and what is refused."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import alpha
import alpha.nn.functional as F
from alpha import nn, ops
from alpha.checkpoint import from_torch_state_dict, to_torch_state_dict
from alpha.errors import AlphaError
from alpha.gradcheck import assert_equal_at
from tests.op_checks import floats, refused

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::UserWarning:torch")]
NEAR = 1e-10    # of float64


def filled_twin(ours: nn.Module, theirs: Any) -> None:
    """Gives both the same random weights, through PyTorch's state_dict, in float64."""
    torch.manual_seed(0)
    for p in theirs.parameters():
        torch.nn.init.normal_(p, std=0.5)
    from_torch_state_dict(theirs.state_dict(), ours)
    back = to_torch_state_dict(ours)
    assert list(back) == list(ours.state_dict()) and set(back) == set(theirs.state_dict())
    for name, t in theirs.state_dict().items():
        assert (back[name] == t.numpy()).all()
    ours.double()
    theirs.double()


def compare(ours: nn.Module, theirs: Any, arrays: list[np.ndarray], **options: Any) -> None:
    """Asserts that outputs and gradients, of inputs and parameters, agree; arrays in options become tensors."""
    def call(layer: Any, made: Callable[..., Any]) -> tuple[Any, list[Any]]:
        xs = [made(a, requires_grad=True) for a in arrays]
        return layer(*xs, **{n: made(v) if isinstance(v, np.ndarray) else v for n, v in options.items()}), xs
    found, xs = call(ours, alpha.tensor)
    expected, ts = call(theirs, torch.tensor)
    found, expected = (r if isinstance(r, tuple) else (r,) for r in (found, expected))
    for a, b in zip(found, expected):
        assert (a is None) == (b is None)
        if a is not None:
            assert_equal_at(a.detach(), b.detach().numpy(), rtol=NEAR, atol=NEAR)
    g = floats(found[0].shape, 9)
    found[0].backward(alpha.tensor(g))
    expected[0].backward(torch.tensor(g))
    own = dict(ours.named_parameters())
    for name, a, b in [(str(k), x, t) for k, (x, t) in enumerate(zip(xs, ts))] + [
            (name, own[name], t) for name, t in theirs.named_parameters()]:
        assert_equal_at(a.grad, b.grad.numpy(), rtol=NEAR, atol=NEAR, name=f"gradient of {name}")
        a.grad = b.grad = None


def masks(n: int, heads: int, rows: int, columns: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(1)

    def hidden(*shape: int) -> np.ndarray:
        made = rng.random(shape) < 0.4
        made[..., 0] = False        # a row with no key at all is NaN in PyTorch where weights are wanted
        return made
    return [{}, {"attn_mask": hidden(rows, columns)}, {"key_padding_mask": hidden(n, columns)},
            {"attn_mask": hidden(n * heads, rows, columns), "key_padding_mask": hidden(n, columns)},
            {"attn_mask": floats((rows, columns), 3), "key_padding_mask": hidden(n, columns)},
            {"attn_mask": floats((rows, columns), 3), "key_padding_mask": floats((n, columns), 4)}]


@pytest.mark.parametrize("batch_first, bias, sizes", [*itertools.product((False, True), (False, True),
                                                                       ((6, 6), (5, 3)))])
def test_multihead_attention(batch_first: bool, bias: bool, sizes: tuple[int, int]) -> None:
    kdim, vdim = sizes
    layers = [m.MultiheadAttention(6, 2, bias=bias, kdim=kdim, vdim=vdim, batch_first=batch_first)
              for m in (nn, torch.nn)]
    filled_twin(*layers)
    n, rows, columns = 3, 4, 5

    def sequence(length: int, size: int, seed: int) -> np.ndarray:
        return floats((n, length, size) if batch_first else (length, n, size), seed)
    arrays = [sequence(rows, 6, 1), sequence(columns, kdim, 2), sequence(columns, vdim, 3)]
    for options in masks(n, 2, rows, columns):
        for needed, average in ((True, True), (True, False), (False, True)):
            compare(*layers, arrays, need_weights=needed, average_attn_weights=average, **options)
    single = [a[0] if batch_first else a[:, 0] for a in arrays]
    compare(*layers, single)
    compare(*layers, single, key_padding_mask=np.array([False, True, False, True, True]))


@pytest.mark.parametrize("batch_first", [False, True])
def test_one_tensor_for_queries_keys_and_values_is_one_product(batch_first: bool) -> None:
    ours, theirs = (m.MultiheadAttention(6, 3, batch_first=batch_first) for m in (nn, torch.nn))
    filled_twin(ours, theirs)

    def of(layer: Any, made: Callable[..., Any], same: int) -> tuple[np.ndarray, ...]:
        x, y = made(floats((4, 4, 6), 1), requires_grad=True), made(floats((4, 4, 6), 2), requires_grad=True)
        out = layer(x, *((x, x) if same == 3 else (y, y)), need_weights=False)[0]
        (out * out).sum().backward()
        weight = dict(layer.named_parameters())["in_proj_weight"]
        found = (out, x.grad, weight.grad)
        weight.grad = None
        return tuple(t.detach().numpy() for t in found)
    for same in (3, 2):
        for a, b in zip(of(ours, alpha.tensor, same), of(theirs, torch.tensor, same)):
            assert_equal_at(a, b, rtol=NEAR, atol=NEAR)


@pytest.mark.parametrize("norm_first, activation, bias, batch_first",
                         [*itertools.product((False, True), ("relu", "gelu"), (False, True), (False, True))])
def test_transformer_encoder(norm_first: bool, activation: str, bias: bool, batch_first: bool) -> None:
    made = [m.TransformerEncoder(m.TransformerEncoderLayer(8, 2, 12, 0.0, activation, norm_first=norm_first, bias=bias,
                                                           batch_first=batch_first), 2, m.LayerNorm(8),
                                 enable_nested_tensor=False) for m in (nn, torch.nn)]
    filled_twin(*made)
    rows, n = (4, 3) if batch_first else (3, 4)
    causal, hidden = np.triu(np.ones((rows, rows), bool), 1), floats((n, rows), 2) > 0.5
    hidden[:, 0] = False
    for training in (True, False):
        for layer in made:
            layer.train(training)
        for options in ({}, {"mask": causal}, {"mask": causal, "src_key_padding_mask": hidden}):
            compare(*made, [floats((3, 4, 8), 1)], **options)
    x = alpha.tensor(floats((3, 4, 8), 1))
    assert_equal_at(made[0](x, is_causal=True), made[0](x, alpha.tensor(causal)).detach().numpy(), atol=NEAR)


@settings(max_examples=20)
@given(n=st.integers(1, 3), rows=st.integers(1, 4), columns=st.integers(1, 4), data=st.data())
def test_rows_that_see_no_key_are_zero_and_have_no_gradient(n: int, rows: int, columns: int, data: Any) -> None:
    mask = np.random.default_rng(data.draw(st.integers(0, 99))).random((n, 1, rows, columns)) < 0.3
    mask[0, 0, 0] = False
    arrays = [floats((n, 2, rows, 3), 1), floats((n, 2, columns, 3), 2), floats((n, 2, columns, 4), 3)]
    for given_mask in (mask, np.where(mask, 0.5, -np.inf)):
        xs, ts = ([made(a, requires_grad=True) for a in arrays] for made in (alpha.tensor, torch.tensor))
        y = F.scaled_dot_product_attention(*xs, alpha.tensor(given_mask))
        t = torch.nn.functional.scaled_dot_product_attention(*ts, torch.tensor(given_mask))
        assert_equal_at(y.detach(), t.detach().numpy(), rtol=NEAR, atol=NEAR)
        assert (y[0, :, 0].detach().numpy() == 0).all()
        (y * y).sum().backward()
        (t * t).sum().backward()
        for x, t in zip(xs, ts):
            assert_equal_at(x.grad, t.grad.numpy(), rtol=NEAR, atol=NEAR)


def test_a_layer_whose_keys_are_all_hidden_gives_the_bias() -> None:
    layer = nn.MultiheadAttention(4, 2, batch_first=True)
    layer.out_proj.bias.copy_(alpha.tensor([1.0, 2, 3, 4]).detach())
    y, weights = layer(*[alpha.ones((1, 2, 4))] * 3, key_padding_mask=alpha.ones((1, 2)).bool())
    assert y.detach().numpy().tolist() == [[[1, 2, 3, 4]] * 2] and (weights.detach().numpy() == 0).all()


@pytest.mark.parametrize("norm_first", [False, True])
def test_16_bits(norm_first: bool) -> None:
    """Parameters stay float32, activations have 16 bits; gradients are near those of float32."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, "gelu", batch_first=True, norm_first=norm_first)
    x, mask = alpha.tensor(floats((2, 5, 8), 1).astype(np.float32)), alpha.tensor(floats((5, 5), 2).astype(np.float32))

    def grads() -> tuple[alpha.Tensor, dict[str, np.ndarray]]:
        layer.zero_grad()
        y = layer(x, mask)
        (y.float() * y.float()).mean().backward()
        return y, {name: p.grad.numpy() for name, p in layer.named_parameters()}
    exact, wanted = grads()
    with alpha.precision("fp16"):
        y, found = grads()
    assert y.dtype == "float16" and all(g.dtype == np.float32 for g in found.values())
    assert_equal_at(y.detach().numpy().astype(np.float32), exact.detach().numpy(), atol=1e-2)
    for name, g in wanted.items():
        assert_equal_at(found[name], g, atol=1e-2 * max(1e-2, np.abs(g).max()), name=name)


def test_dropout_is_of_weights_and_in_training_alone() -> None:
    layer = nn.MultiheadAttention(4, 2, dropout=0.5, batch_first=True)
    x = alpha.randn((2, 6, 4))
    assert (layer(x, x, x)[1].detach().numpy() == 0).any()
    alpha.manual_seed(1)
    first = layer(x, x, x, need_weights=False)[0]
    alpha.manual_seed(1)
    assert_equal_at(layer(x, x, x)[0].detach(), first.detach().numpy(), rtol=1e-5, atol=1e-6)
    layer.eval()
    weights = layer(x, x, x)[1]
    assert_equal_at(weights.sum(-1).detach(), np.ones((2, 6)), atol=1e-6)
    kept = F.scaled_dot_product_attention(alpha.zeros((1000, 4)), alpha.zeros((4, 4)), alpha.eye(4), dropout_p=0.25)
    assert set(np.unique(kept.numpy().round(5))) == {0.0, np.float32(1 / 3).round(5)}


def test_weights_start_as_pytorchs() -> None:
    layer = nn.MultiheadAttention(64, 4)
    bound = (6 / (64 + 192)) ** 0.5
    w = layer.in_proj_weight.detach().numpy()
    assert 0.98 * bound < np.abs(w).max() <= bound and (layer.in_proj_bias.detach().numpy() == 0).all()
    assert (layer.out_proj.bias.detach().numpy() == 0).all()
    assert np.abs(layer.out_proj.weight.detach().numpy()).max() <= 1 / 8


def test_an_encoder_starts_with_copies_and_trains_each_by_itself() -> None:
    first = nn.TransformerEncoderLayer(4, 2, 8)
    encoder = nn.TransformerEncoder(first, 2)
    a, b = (dict(layer.named_parameters()) for layer in encoder.layers)
    assert all((a[name].detach().numpy() == b[name].detach().numpy()).all() for name in a)
    assert len(list(encoder.parameters())) == 2 * len(list(first.parameters()))


X = alpha.ones((2, 3, 4))
REFUSED: list[tuple[Callable[[], Any], tuple[str, ...]]] = [
    (lambda: nn.MultiheadAttention(6, 4), ("num_heads=4 does not divide embed_dim=6",)),
    (lambda: nn.MultiheadAttention(6, 2, add_zero_attn=True), ("add_zero_attn=True", "append a key")),
    (lambda: nn.MultiheadAttention(4, 2)(X, X, alpha.ones((2, 3, 5))), ("value (2, 3, 5)", "E=4")),
    (lambda: nn.MultiheadAttention(4, 2)(X, X[:, :2], X[:, :2]), ("query has shape (2, 3, 4), key (2, 2, 4)",)),
    (lambda: nn.MultiheadAttention(4, 2)(X, X, X, attn_mask=alpha.ones((3, 3)).bool()),
     ("attn_mask has shape (3, 3), (2, 2) or (6, 2, 2) is needed",)),
    (lambda: nn.MultiheadAttention(4, 2)(X, X, X, key_padding_mask=alpha.ones((2, 3)).bool()),
     ("key_padding_mask has shape (2, 3), (3, 2)",)),
    (lambda: nn.MultiheadAttention(4, 2)(X, X, X, attn_mask=alpha.ones((2, 2), "int64")),
     ("attn_mask has dtype int64, bools or floats", "mask.bool()")),
    (lambda: nn.MultiheadAttention(4, 2)(X, X), ("value is missing",)),
    (lambda: nn.TransformerEncoderLayer(4, 2, activation="tanh"), ('activation is "tanh"', "gelu")),
    (lambda: nn.TransformerEncoder(3, 2), ("encoder_layer is 3",)),
    (lambda: F.scaled_dot_product_attention(X, alpha.ones((2, 3, 5)), X), ("q has shape (2, 3, 4), k has (2, 3, 5)",)),
    (lambda: F.scaled_dot_product_attention(X, X, X[:, :2]), ("v has shape (2, 2, 4), k has (2, 3, 4)",)),
    (lambda: F.scaled_dot_product_attention(X, X, X, X @ X.mT, is_causal=True), ("is_causal is True", "pass one")),
    (lambda: F.scaled_dot_product_attention(X, X, X, alpha.ones((4, 3)).bool()), ("(4, 3)", "do not broadcast")),
    (lambda: F.scaled_dot_product_attention(X, X, X, alpha.ones((5, 2, 3, 3)).bool()),
     ("(5, 2, 3, 3)", "broadcasts to")),
    (lambda: F.scaled_dot_product_attention(X, X, X, alpha.ones((3, 3), "int64")), ("dtype int64, q has float32",)),
    (lambda: F.scaled_dot_product_attention(X, X, X, dropout_p=1.5), ("dropout_p is 1.5",)),
]


@pytest.mark.parametrize("call, said", REFUSED)
def test_refusals_name_the_values_and_the_fix(call: Callable[[], Any], said: tuple[str, ...]) -> None:
    with refused(AlphaError, *said):
        call()


def test_recomputed_and_captured_attention_has_the_same_bits() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.1, batch_first=True)
    x = alpha.randn((2, 4, 8))

    def gradients(call: Callable[..., Any]) -> list[np.ndarray]:
        alpha.manual_seed(2)
        layer.zero_grad()
        ops.sum(call(x, is_causal=True)).backward()
        return [p.grad.numpy().copy() for p in layer.parameters()]
    plain = gradients(layer)
    for other in (gradients(layer), gradients(alpha.recompute(layer))):
        assert all((a == b).all() for a, b in zip(plain, other))
