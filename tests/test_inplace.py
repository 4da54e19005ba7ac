"""In-place arithmetic: whose elements change, what the graph makes of it, and what is refused."""

from __future__ import annotations

import gc
from collections.abc import Callable

import numpy as np
import pytest

import alpha
from alpha import nn, ops
from alpha.errors import AlphaError, DTypeError, GraphError, ShapeError
from tests.op_checks import refused

SIGNS: dict[str, Callable] = {}
for sign in ("+=", "-=", "*=", "/=", "**="):
    exec(f"def f(t, x):\n    t {sign} x\n    return t\nSIGNS['{sign}'] = f")
A = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], np.float32)


@pytest.mark.parametrize("sign", SIGNS)
@pytest.mark.parametrize("other", [2.0, np.array([1.0, 2.0, 4.0], np.float32)])
def test_the_elements_change_under_every_name(sign: str, other: object) -> None:
    t, expected = alpha.tensor(A), SIGNS[sign](A.copy(), other)
    view, other_view, data = t.reshape(6), t.detach(), t.array
    given = alpha.tensor(other) if isinstance(other, np.ndarray) else other
    assert SIGNS[sign](t, given) is t and t.array is data and t._version == view._version == 1
    np.testing.assert_allclose(t.numpy(), expected, rtol=1e-6)
    assert view.tolist() == t.flatten().tolist() and other_view.tolist() == t.tolist()
    with alpha.no_grad():
        view += 1.0
    assert t._version == 2 and t.tolist()[0][0] == view.tolist()[0]


def test_matrix_products_and_the_tensor_itself() -> None:
    t, m = alpha.tensor(A[:, :2]), alpha.tensor(A[:, :2])
    t @= m
    t *= t
    t -= t
    assert t.tolist() == [[0.0, 0.0], [0.0, 0.0]] and t._version == 3
    with refused(ShapeError, "@=: the tensor has shape (2, 2), the result (2, 3)", "y = t @ ..."):
        t @= alpha.tensor(A)


@pytest.mark.parametrize("line, values, other", [
    ("t //= x", [[5, 7]], 2), ("t %= x", [[5, 7]], 3), ("t //= x", [[5.0, -7.5]], 2.0), ("t %= x", [[5.0, -7.5]], 3.0),
    ("t &= x", [[True, False]], [True, True]), ("t |= x", [[True, False]], True),
    ("t ^= x", [[True, False]], [True, True])])
def test_quotients_remainders_and_masks(line: str, values: list, other: object) -> None:
    t, expected = alpha.tensor(values), np.array(values)
    whole, view = t, t.reshape(2)
    given = {"t": t, "x": alpha.tensor(other) if isinstance(other, list) else other}
    exec(line, given)
    exec(line, wanted := {"t": expected, "x": np.array(other)})
    assert given["t"] is whole and whole.tolist() == wanted["t"].tolist() and view.tolist() == whole.tolist()[0]


def test_an_update_by_hand() -> None:
    net = nn.Linear(3, 2)
    before = net.weight.numpy()
    net(alpha.tensor(A)).sum().backward()
    with alpha.no_grad():
        for p in net.parameters():
            p -= 0.5 * p.grad
    np.testing.assert_allclose(net.weight.numpy(), before - 0.5 * A.sum(0), rtol=1e-6)
    assert all(p.is_leaf and p.requires_grad for p in net.parameters())


def test_a_leaf_that_requires_a_gradient_is_refused_while_the_graph_is_recorded() -> None:
    t = alpha.tensor(A, requires_grad=True)
    for sign, f in SIGNS.items():
        with refused(GraphError, f"{sign}: a leaf of shape (2, 3) that requires a gradient cannot be changed in place",
                     "with alpha.no_grad()", f"y = t {sign[:-1]} ..."):
            f(t, 2.0)
    with refused(GraphError, "+=: a leaf of shape (2, 3)"):
        t += t
    assert t.tolist() == A.tolist() and t._version == 0
    t.requires_grad_(False)
    t += 1.0
    assert t.tolist() == (A + 1).tolist()


@pytest.mark.parametrize("sign", SIGNS)
def test_a_recorded_tensor_becomes_the_result_and_its_gradient_is_right(sign: str) -> None:
    torch = pytest.importorskip("torch")

    def run(x: object, w: object, exp: Callable) -> object:
        h = exp(x)  # whose gradient reads its result
        alias = h
        h = SIGNS[sign](h, w)
        h = SIGNS[sign](h, 0.5)
        return (alias * h).sum()

    x, w = (alpha.tensor(a, requires_grad=True) for a in (A / 6, A / 4))
    tx, tw = (torch.tensor(a, requires_grad=True) for a in (A / 6, A / 4))
    ours, theirs = run(x, w, ops.exp), run(tx, tw, lambda t: torch.exp(t).clone())
    ours.backward()
    torch.exp(tx)
    expected = run_out_of_place(torch, sign, tx, tw)
    expected.backward()
    assert theirs.item() == pytest.approx(ours.item(), rel=1e-5)
    for t, theirs_t in ((x, tx), (w, tw)):
        np.testing.assert_allclose(t.grad.numpy(), theirs_t.grad.numpy(), rtol=1e-4)


def run_out_of_place(torch: object, sign: str, x: object, w: object) -> object:
    f = {"+=": torch.add, "-=": torch.sub, "*=": torch.mul, "/=": torch.div, "**=": torch.pow}[sign]
    h = f(f(torch.exp(x), w), 0.5)
    return (h * h).sum()


def test_a_sum_of_losses() -> None:
    x = alpha.tensor(A, requires_grad=True)
    total, empty = 0, ops.zeros(())
    for k in range(3):
        total += (x * float(k)).sum()
        empty += (x * float(k)).sum()
    assert total.item() == empty.item() == 63.0 and empty.requires_grad
    total.backward()
    empty.backward()
    assert (x.grad.numpy() == 6.0).all()


def test_what_saved_the_elements_before_a_recorded_change_is_refused() -> None:
    x = alpha.tensor(A, requires_grad=True)
    h = x * 2.0
    square = h * h
    h += 100.0
    with refused(GraphError, "of mul got other elements after the forward pass"):
        square.sum().backward()


@pytest.mark.parametrize("other", [lambda h: h.reshape(6), lambda h: h[:, :2], lambda h: h[:1], lambda h: h.detach()])
def test_a_recorded_change_is_refused_as_long_as_a_view_would_keep_the_old_elements(other: Callable) -> None:
    x = alpha.tensor(A, requires_grad=True)
    h = x * 2.0
    view = other(h)
    with refused(GraphError, "+=: the tensor of shape (2, 3) shares its elements with another", "clone() it"):
        h += 100.0
    if view.requires_grad:
        with refused(GraphError, f"+=: the tensor of shape {view.shape} shares its elements with another"):
            view += 100.0
    del view
    gc.collect()    # the errors hold it
    h += 100.0
    h.sum().backward()
    assert (x.grad.numpy() == 2.0).all() and h.tolist() == (2 * A + 100).tolist()


def test_a_view_whose_whole_is_gone_takes_a_recorded_change() -> None:
    x = alpha.tensor(A, requires_grad=True)
    view = (x * 2.0).reshape(6)
    view *= 3.0
    view.sum().backward()
    assert (x.grad.numpy() == 6.0).all()


def test_a_result_of_another_shape_or_dtype_is_refused() -> None:
    t, k = alpha.tensor(A[0]), alpha.tensor([1, 2])
    with refused(ShapeError, "+=: the tensor has shape (3,), the result (2, 3)", "y = t + ..."):
        t += alpha.tensor(A)
    for f in (lambda: SIGNS["/="](k, 2), lambda: SIGNS["+="](k, 0.5), lambda: SIGNS["+="](t, k)):
        with pytest.raises(DTypeError):
            f()
    with pytest.raises(TypeError, match=r'b is "one" \(str\)'):
        t += "one"
    assert t.tolist() == A[0].tolist() and k.tolist() == [1, 2]


def test_copy_refuses_to_lose_a_gradient() -> None:
    x, t = alpha.tensor(A, requires_grad=True), alpha.tensor(A)
    with refused(GraphError, "copy_: the source of shape (2, 3) requires a gradient", "source.detach()"):
        t.copy_(x * 2.0)
    with alpha.no_grad():
        t.copy_(x)
    assert t.copy_([[0, 0, 0]] * 2).tolist() == np.zeros((2, 3)).tolist()
    with pytest.raises(AlphaError):
        t.copy_(None)


def test_the_largest_elements_do_not_unpack_into_values_and_indices() -> None:
    x = alpha.tensor(A, requires_grad=True)
    for f in (lambda: x.max(1), lambda: x.min(1), lambda: ops.max(x, 1), lambda: ops.min(x, 1, True), lambda: x.max(),
              lambda: x.detach().max(1)):
        y = f()
        with refused(GraphError, "max or min: the result of shape", "x.argmax(axis) the indices"):
            _, _ = y
        with refused(GraphError, "the result is no pair", "x.argmax(axis) the indices"):
            y[1]
    y = x.max(1)
    assert isinstance(y, alpha.Tensor) and y.tolist() == [3.0, 6.0] and [y[k, ...].item() for k in (0, 1)] == [3, 6]
    assert (y + 0.0).tolist() == list((y + 0.0).numpy()) and np.asarray(y).tolist() == [3.0, 6.0]
    with alpha.no_grad():
        y += 1.0
    assert y.tolist() == [4.0, 7.0]
