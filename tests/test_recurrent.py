"""RNN, LSTM, GRU and their cells against PyTorch, and against their equations in NumPy."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

import alpha
from alpha import checkpoint, nn, ops, optim
from alpha.errors import AlphaError, ConfigError, ShapeError
from tests.op_checks import refused

pytestmark = pytest.mark.same_without_kernels("made of ops that have tests without kernels")

KINDS = ("RNN", "LSTM", "GRU")


def drawn(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, shape)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def by_hand(kind: str, p: dict[str, np.ndarray], x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One layer and direction over x (L, N, size), from a state of 0: y and the last h."""
    size = p["weight_hh_l0"].shape[1]
    h = c = np.zeros((x.shape[1], size))
    ys = []
    for row in x:
        a = row @ p["weight_ih_l0"].T + p["bias_ih_l0"]
        b = h @ p["weight_hh_l0"].T + p["bias_hh_l0"]
        if kind == "RNN":
            h = np.tanh(a + b)
        elif kind == "LSTM":
            i, f, g, o = np.split(a + b, 4, 1)
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(c)
        else:
            (ar, az, an), (br, bz, bn) = np.split(a, 3, 1), np.split(b, 3, 1)
            z = sigmoid(az + bz)
            h = (1 - z) * np.tanh(an + sigmoid(ar + br) * bn) + z * h
        ys.append(h)
    return np.stack(ys), h


@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_is_its_equation(kind: str) -> None:
    layer = getattr(nn, kind)(3, 4).double()
    x = drawn(5, 2, 3)
    right, last = by_hand(kind, {name: p.numpy() for name, p in layer.named_parameters()}, x)
    y, state = layer(alpha.tensor(x))
    np.testing.assert_allclose(y.detach().numpy(), right, atol=1e-12)
    h = state[0] if kind == "LSTM" else state
    np.testing.assert_allclose(h.detach().numpy(), last[None], atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_a_cell_is_a_step_of_the_layer(kind: str) -> None:
    layer, cell = getattr(nn, kind)(3, 4), getattr(nn, kind + "Cell")(3, 4)
    cell.load_state_dict({name.removesuffix("_l0"): t for name, t in layer.state_dict().items()})
    x, state = alpha.tensor(drawn(6, 2, 3).astype("float32")), None
    for row in x:
        state = cell(row, state)
    y, _ = layer(x)
    h = state[0] if kind == "LSTM" else state
    np.testing.assert_allclose(h.detach().numpy(), y[-1].detach().numpy(), rtol=1e-6)
    one = cell(x[0, 0])
    one = one[0] if kind == "LSTM" else one
    np.testing.assert_allclose(one.detach().numpy(), y[0, 0].detach().numpy(), rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_both_orders(kind: str) -> None:
    layer = getattr(nn, kind)(2, 2, bidirectional=True).double()
    assert alpha.gradcheck(lambda x: layer(x)[0], [alpha.tensor(drawn(3, 2, 2), requires_grad=True)], second_order=True)


@pytest.mark.torch
@pytest.mark.parametrize("kind", [*KINDS, "relu", "projected"])
def test_values_and_gradients_are_pytorchs(kind: str) -> None:
    torch = pytest.importorskip("torch")
    name = {"relu": "RNN", "projected": "LSTM"}.get(kind, kind)
    extra = {"relu": {"nonlinearity": "relu"}, "projected": {"proj_size": 2}}.get(kind, {})
    for layers, bias, first, both in product((1, 2), (True, False), (True, False), (True, False)):
        given = dict(num_layers=layers, bias=bias, batch_first=first, bidirectional=both, **extra)
        theirs = getattr(torch.nn, name)(3, 4, **given).double()
        ours = getattr(nn, name)(3, 4, **given).double()
        checkpoint.from_torch_state_dict(theirs.state_dict(), ours)
        x = drawn(5, 2, 3)
        lead, size = layers * (1 + both), 2 if kind == "projected" else 4
        start = [drawn(lead, 5 if first else 2, n, seed=k) for k, n in enumerate((size, 4))]
        start = start if name == "LSTM" else start[:1]
        t, s = torch.tensor(x, requires_grad=True), [torch.tensor(a, requires_grad=True) for a in start]
        u, v = alpha.tensor(x, requires_grad=True), [alpha.tensor(a, requires_grad=True) for a in start]
        right, last = theirs(t, tuple(s) if name == "LSTM" else s[0])
        y, end = ours(u, tuple(v) if name == "LSTM" else v[0])
        ends = zip(end, last) if name == "LSTM" else [(end, last)]
        for a, b in [(y, right), *ends]:
            np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), atol=1e-12)
        ((y * y).sum() + sum((e * e).sum() for e in (end if name == "LSTM" else [end]))).backward()
        ((right * right).sum() + sum((e * e).sum() for e in (last if name == "LSTM" else [last]))).backward()
        grads = {n: p.grad for n, p in theirs.named_parameters()}
        pairs = [(p.grad, grads[n]) for n, p in ours.named_parameters()]
        for a, b in [(u.grad, t.grad), *[(p.grad, q.grad) for p, q in zip(v, s)], *pairs]:
            np.testing.assert_allclose(a.numpy(), b.numpy(), atol=1e-11)
        assert [n for n, _ in ours.named_parameters()] == [n for n, _ in theirs.named_parameters()]
        one, _ = ours(u[0])
        np.testing.assert_allclose(one.detach().numpy(), theirs(t[0])[0].detach().numpy(), atol=1e-12)


def test_dropout_is_between_layers_in_training_alone() -> None:
    layer = nn.GRU(3, 4, num_layers=2, dropout=0.5)
    x = alpha.tensor(drawn(5, 2, 3).astype("float32"))
    alpha.manual_seed(1)
    first, again = layer(x)[0].detach().numpy(), layer(x)[0].detach().numpy()
    assert (first != again).any()
    layer.eval()
    assert (layer(x)[0].detach().numpy() == layer(x)[0].detach().numpy()).all()


def test_an_lstm_learns_which_of_two_numbers_came_first() -> None:
    alpha.manual_seed(4)
    x = drawn(64, 6, 1, seed=1)
    labels = (x[:, 0, 0] > x[:, 1, 0]).astype("int64")
    model, head = nn.LSTM(1, 8, batch_first=True), nn.Linear(8, 2)
    optimizer = optim.Adam([*model.parameters(), *head.parameters()], lr=0.03)
    losses = []
    for _ in range(60):
        loss = nn.functional.cross_entropy(head(model(alpha.tensor(x.astype("float32")))[0][:, -1]),
                                           alpha.tensor(labels))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.35 < losses[0]
    assert (copy.deepcopy(model)(alpha.tensor(x.astype("float32")))[0].detach().numpy() == model(
        alpha.tensor(x.astype("float32")))[0].detach().numpy()).all()


X = ops.zeros((5, 2, 3))
REFUSED: list[tuple[Callable[[], Any], type[AlphaError], str]] = [
    (lambda: nn.RNN(3, 4, dropout=0.5), ConfigError, "dropout=0.5 has no effect with num_layers=1"),
    (lambda: nn.RNN(3, 4, nonlinearity="sigmoid"), ConfigError, '"relu"'),
    (lambda: nn.LSTM(3, 4, proj_size=4), ConfigError, "not below hidden_size=4"),
    (lambda: nn.GRU(0, 4), ConfigError, "at least 1"),
    (lambda: nn.GRU(3, 4)(ops.zeros((5, 2, 4))), ShapeError, "(L, N, 3) or (L, 3)"),
    (lambda: nn.GRU(3, 4, batch_first=True)(ops.zeros((3,))), ShapeError, "(N, L, 3)"),
    (lambda: nn.GRU(3, 4)(ops.zeros((0, 2, 3))), ShapeError, "a step at least"),
    (lambda: nn.GRU(3, 4)(X, ops.zeros((2, 2, 4))), ShapeError, "(1, 2, 4) is needed"),
    (lambda: nn.LSTM(3, 4)(X, ops.zeros((1, 2, 4))), ShapeError, "a pair of (1, 2, 4)"),
    (lambda: nn.LSTMCell(3, 4)(X[0], X[0]), ShapeError, "a pair of (2, 4)"),
    (lambda: nn.GRUCell(3, 4)(X), ShapeError, "(N, 3) or (3,)"),
    (lambda: nn.RNNCell(3, 4)(X[0], ops.zeros((2, 3))), ShapeError, "(2, 4) is needed"),
]


@pytest.mark.parametrize("call, error, said", REFUSED, ids=[f"{k}" for k in range(len(REFUSED))])
def test_bad_input_is_refused(call: Callable[[], Any], error: type[AlphaError], said: str) -> None:
    with refused(error, said):
        call()


def test_a_habit_that_is_not_needed_is_answered() -> None:
    with refused(AttributeError, "leave it out"):
        nn.LSTM(3, 4).flatten_parameters()
