"""alpha.func: gradients of functions, Jacobians, products, vmap and functional_call; against PyTorch and by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import alpha
from alpha import func, nn, ops
from alpha.errors import AlphaError, ArgumentError, MissingError, NotFoundError, ShapeError
from tests.op_checks import refused

pytestmark = pytest.mark.same_without_kernels("made of ops that have tests without kernels")

X = np.array([[0.3, -1.2, 0.8], [1.1, 0.4, -0.5]])
V = np.array([[1.0, 2.0, -1.0], [0.5, -2.0, 3.0]])


def t(a: Any) -> alpha.Tensor:
    return alpha.tensor(np.asarray(a, np.float64))


def cubes(x: Any) -> Any:
    return (x ** 3).sum()


# ---- by hand ---------------------------------------------------------------------------------------------------------


def test_grad_is_a_function_and_leaves_no_graph() -> None:
    x = t(X)
    found = func.grad(cubes)(x)
    np.testing.assert_allclose(found.numpy(), 3 * X ** 2)
    assert not found.requires_grad and not x.requires_grad and x.grad is None
    both = func.grad(lambda a, b: (a * b * b).sum(), argnums=(0, 1))(t(X), t(V))
    np.testing.assert_allclose(both[0].numpy(), V * V)
    np.testing.assert_allclose(both[1].numpy(), 2 * X * V)
    assert (func.grad(lambda a, b: (a * b).sum(), argnums=-1)(t(X), t(V)).numpy() == X).all()


def test_values_and_what_comes_along() -> None:
    grads, value = func.grad_and_value(cubes)(t(X))
    assert abs(value.item() - (X ** 3).sum()) < 1e-12 and not value.requires_grad and grads.shape == X.shape
    grads, note = func.grad(lambda x: (cubes(x), {"mean": x.mean()}), has_aux=True)(t(X))
    assert abs(note["mean"].item() - X.mean()) < 1e-12
    grads, (value, note) = func.grad_and_value(lambda x: (cubes(x), "note"), has_aux=True)(t(X))
    assert note == "note" and value.shape == ()


def test_gradients_of_gradients_and_under_no_grad() -> None:
    second = func.grad(lambda x: func.grad(cubes)(x).sum())
    third = func.grad(lambda x: second(x).sum())
    with alpha.no_grad():
        np.testing.assert_allclose(second(t(X)).numpy(), 6 * X)
        assert (third(t(X)).numpy() == 6).all()


def test_an_inner_gradient_counts_its_own_argument_alone() -> None:
    """d/dx (x * d/dy (x + y) at y = x) = 1: what the inner function closes over is a constant to it."""
    found = func.grad(lambda x: x * func.grad(lambda y: x + y)(x))(t(2.0))
    assert found.item() == 1.0


def test_gradients_reach_tensors_that_the_function_closes_over() -> None:
    w = alpha.tensor(V, requires_grad=True)
    penalty = func.grad(lambda x: (x * w * x).sum())(t(X)).square().sum()
    penalty.backward()
    np.testing.assert_allclose(w.grad.numpy(), 2 * (2 * X) ** 2 * V)
    x = alpha.tensor(X, requires_grad=True)
    func.grad(cubes)(x).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 6 * X)


def test_trees_of_tensors() -> None:
    params = {"w": t(X), "more": [t(V)]}
    found = func.grad(lambda p: (p["w"] * p["more"][0]).sum())(params)
    assert (found["w"].numpy() == V).all() and (found["more"][0].numpy() == X).all()
    y, pull = func.vjp(lambda a: {"a": a * 2.0, "b": (a * a).sum()}, t(X))
    (back,) = pull({"a": t(V), "b": t(3.0)})
    np.testing.assert_allclose(back.numpy(), 2 * V + 6 * X)
    assert (y["a"].numpy() == 2 * X).all()


def test_what_does_not_depend_on_an_argument_has_a_gradient_of_0() -> None:
    assert not func.grad(lambda a, b: b.sum())(t(X), t(V)).numpy().any()
    assert not func.jvp(lambda a: ops.ones((2,), "float64"), (t(X),), (t(V),))[1].numpy().any()
    assert func.jacrev(lambda a: a[:0].sum(1))(t(X)).shape == (0, 2, 3)


# ---- against PyTorch -------------------------------------------------------------------------------------------------

FUNCTIONS: list[tuple[str, Callable[[Any, Any], Callable[..., Any]], int]] = [
    ("products", lambda m, n: lambda x, y: m.tanh(x @ y.T) * x.sum(), 2),
    ("a norm", lambda m, n: lambda x, y: n.layer_norm(x * y, (3,)), 2),
    ("softmax", lambda m, n: lambda x, y: m.softmax(x * y, -1) @ y.T, 2)]


@pytest.mark.torch
@pytest.mark.parametrize("name, make, count", FUNCTIONS, ids=[name for name, *_ in FUNCTIONS])
def test_products_and_jacobians_are_pytorchs(name: str, make: Any, count: int) -> None:
    torch = pytest.importorskip("torch")
    f, g = make(alpha, nn.functional), make(torch, torch.nn.functional)
    ours, theirs = [t(X), t(V)], [torch.tensor(X), torch.tensor(V)]

    def same(a: Any, b: Any) -> None:
        a, b = (list(v) if isinstance(v, tuple) else [v] for v in (a, b))
        for u, v in zip(a, b):
            np.testing.assert_allclose(u.detach().numpy(), v.numpy(), atol=1e-11)
            assert not u.requires_grad
    (y, pull), (z, back) = func.vjp(f, *ours), torch.func.vjp(g, *theirs)
    seed = np.random.default_rng(1).normal(size=tuple(y.shape))
    same(y, z)
    same(pull(t(seed)), back(torch.tensor(seed)))
    same(func.jvp(f, tuple(ours), (t(V), t(X))), torch.func.jvp(g, tuple(theirs), (torch.tensor(V), torch.tensor(X))))
    for argnums in (0, 1, (0, 1)):
        right = torch.func.jacrev(g, argnums)(*theirs)
        same(func.jacrev(f, argnums)(*ours), right)
        same(func.jacfwd(f, argnums)(*ours), right)
    same(func.hessian(lambda x: f(x, ours[1]).sum())(ours[0]), torch.func.hessian(
        lambda x: g(x, theirs[1]).sum())(theirs[0]))
    same(func.jvp(lambda x: func.grad(lambda u: f(u, ours[1]).sum())(x), (ours[0],), (t(V),)),
         torch.func.jvp(lambda x: torch.func.grad(lambda u: g(u, theirs[1]).sum())(x), (theirs[0],),
                        (torch.tensor(V),)))


@pytest.mark.torch
def test_gradients_of_each_sample_are_pytorchs() -> None:
    torch = pytest.importorskip("torch")
    x, y = np.random.default_rng(2).normal(size=(5, 3)), np.array([0, 1, 1, 0, 1])
    ours, theirs = nn.Linear(3, 2).double(), torch.nn.Linear(3, 2).double()
    theirs.load_state_dict({n: torch.tensor(p.numpy()) for n, p in ours.state_dict().items()})

    def loss(m: Any, call: Any, model: Any) -> Callable[..., Any]:
        return lambda p, a, b: m.nn.functional.cross_entropy(call(model, p, (a[None],)), b[None])
    found = func.vmap(func.grad(loss(alpha, func.functional_call, ours)), in_dims=(None, 0, 0))(
        dict(ours.named_parameters()), t(x), alpha.tensor(y))
    right = torch.func.vmap(torch.func.grad(loss(torch, torch.func.functional_call, theirs)), in_dims=(None, 0, 0))(
        dict(theirs.named_parameters()), torch.tensor(x), torch.tensor(y))
    for name, grads in right.items():
        np.testing.assert_allclose(found[name].detach().numpy(), grads.detach().numpy(), atol=1e-12)


# ---- vmap and functional_call ----------------------------------------------------------------------------------------


def test_vmap_calls_the_function_on_each_sample() -> None:
    f = func.vmap(lambda a, b: {"sum": (a * b).sum(), "first": a[0]}, in_dims=(1, None), out_dims=0)
    found = f(t(X), t([1.0, -1.0]))
    np.testing.assert_allclose(found["sum"].numpy(), X[0] - X[1])
    assert (found["first"].numpy() == X[0]).all()
    assert func.vmap(lambda a: a * 2.0, out_dims=-1)(t(X)).shape == (3, 2)
    x = alpha.tensor(X, requires_grad=True)
    func.vmap(cubes)(x).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 3 * X ** 2)


def test_functional_call_takes_other_parameters_and_gives_the_own_ones_back() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    before = dict(model.named_parameters())
    x = ops.rand((6, 3))
    scaled = {name: p * 2.0 for name, p in before.items()}
    y = func.functional_call(model, scaled, x)
    y.sum().backward()
    assert all(model_p is before[n] for n, model_p in model.named_parameters())
    assert before["2.bias"].grad.tolist() == [12.0, 12.0]
    other = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    other.load_state_dict({**model.state_dict(), **{n: p.detach() for n, p in scaled.items()}})
    np.testing.assert_allclose(y.detach().numpy(), other(x).detach().numpy(), atol=1e-6)
    moved = {"1.running_mean": ops.zeros((4,)), "1.running_var": ops.ones((4,))}
    func.functional_call(model, (scaled, moved), (x,))
    assert moved["1.running_mean"].numpy().any()
    with pytest.raises(ZeroDivisionError):
        func.functional_call(model, scaled, (_Broken(),))
    assert model[0].weight is before["0.weight"]


class _Broken:
    """What no layer takes."""

    def __getattr__(self, name: str) -> Any:
        raise ZeroDivisionError(name)


# ---- what is refused -------------------------------------------------------------------------------------------------

L = nn.Linear(2, 2)
REFUSED: list[tuple[Callable[[], Any], type[AlphaError], str]] = [
    (lambda: func.grad(3), ArgumentError, "a function"),
    (lambda: func.grad(cubes, argnums="x"), ShapeError, "an int"),
    (lambda: func.grad(cubes, argnums=1)(t(X)), ArgumentError, "argnums=1 does not fit 1 arguments"),
    (lambda: func.grad(cubes, argnums=(0, 0))(t(X)), ArgumentError, "does not fit"),
    (lambda: func.grad(cubes)(3.0), ArgumentError, "a Tensor of floats is needed"),
    (lambda: func.grad(cubes)(alpha.tensor([1, 2])), ArgumentError, "a Tensor of floats"),
    (lambda: func.grad(cubes)([]), ArgumentError, "no tensor"),
    (lambda: func.grad(lambda x: x)(t(X)), ShapeError, "a tensor of floats of shape ()"),
    (lambda: func.grad(cubes, has_aux=True)(t(X)), ArgumentError, "a pair is needed"),
    (lambda: func.vjp(cubes, t(X))[1](t(X)), ArgumentError, "[()] are needed"),
    (lambda: func.jvp(cubes, t(X), t(X)), ArgumentError, "a tuple is needed"),
    (lambda: func.jvp(cubes, (t(X),), (t(1.0),)), ArgumentError, "tangents has shapes [()]"),
    (lambda: func.jacrev(lambda x: 3.0)(t(X)), ArgumentError, "the result has 3.0"),
    (lambda: func.vmap(cubes, in_dims=2)(t(X)), ShapeError, "no axis 2"),
    (lambda: func.vmap(cubes, in_dims=None)(t(X)), ShapeError, "lengths []"),
    (lambda: func.vmap(cubes, in_dims=(0, 0))(t(X)), ArgumentError, "does not fit"),
    (lambda: func.vmap(lambda a, b: a)(t(X), t([1.0])), ShapeError, "lengths [1, 2]"),
    (lambda: func.vmap(lambda a: 1.0)(t(X)), ArgumentError, "tensors are needed"),
    (lambda: func.vmap(cubes)(3.0), ArgumentError, "in_dims 0"),
    (lambda: func.functional_call(cubes, {}), ArgumentError, "a Module is needed"),
    (lambda: func.functional_call(L, {"weight": 3}), ArgumentError, "a dict of tensors"),
    (lambda: func.functional_call(L, {"w": t(X)}, t(X)), NotFoundError, "w is no parameter"),
    (lambda: func.functional_call(L, {"bias": t([1.0, 2.0])}, t(X), strict=True), NotFoundError, "weight is missing"),
    (lambda: func.functional_call(L, {"bias": t(X)}, t(X)), ShapeError, "bias has shape (2,)"),
    (lambda: func.linearize, MissingError, "alpha.func.jvp"),
]


@pytest.mark.parametrize("call, error, said", REFUSED, ids=[f"{k}" for k in range(len(REFUSED))])
def test_bad_input_is_refused(call: Callable[[], Any], error: type[AlphaError], said: str) -> None:
    with refused(error, said):
        call()
