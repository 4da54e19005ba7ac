"""Ops that people bring from PyTorch: values and gradients, first and second, against it, over shapes drawn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import alpha
from alpha import ops
from alpha.errors import AlphaError, ArgumentError, ConfigError, DTypeError, GraphError, ShapeError
from alpha.gradcheck import assert_equal_at, gradcheck
from tests.op_checks import floats, integers, leaf, like_torch, refused

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

filled = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple)


def agree(ours, theirs, *shapes: tuple, low: float = -2.0, high: float = 2.0) -> None:
    """Values and gradients as PyTorch's, and the second derivative against differences."""
    like_torch(ours, theirs, [floats(shape, k, low, high) for k, shape in enumerate(shapes)], 1e-9, 1e-9)
    assert gradcheck(ours, [leaf(shape, k, low, high) for k, shape in enumerate(shapes)], second_order=True)


@given(data=st.data(), shape=filled)
def test_reductions_by_pytorchs_names(data, shape: tuple) -> None:
    dim = data.draw(st.integers(-len(shape), len(shape) - 1))
    keep = data.draw(st.booleans())
    for name in ("sum", "mean", "logsumexp", "softmax", "log_softmax", "cumsum", "amax"):
        named = {"dim": dim} if "softmax" in name or name == "cumsum" else {"dim": dim, "keepdim": keep}
        agree(lambda x: getattr(x, name)(**named), lambda t: getattr(t, name)(**named), shape)  # noqa: B023
    if shape[dim] > 1:
        agree(lambda x: x.std(dim=dim, keepdim=keep), lambda t: t.std(dim=dim, keepdim=keep), shape)
        agree(lambda x: x.var(dim=dim, unbiased=True), lambda t: t.var(dim=dim, unbiased=True), shape)
    for p in (2, 1, 3):
        agree(lambda x: x.norm(p, dim=dim), lambda t: t.norm(p, dim=dim), shape, low=0.5)  # noqa: B023
    assert_equal_at(alpha.tensor(np.zeros((2, 3)), requires_grad=True).norm().detach(), 0.0)
    a = integers(shape, 1)
    for name in ("any", "all", "argmin"):
        expected = getattr(torch.tensor(a), name)(dim=dim).numpy()
        assert (getattr(alpha.tensor(a), name)(dim=dim).numpy() == expected).all()


def test_the_norm_of_zero_has_a_gradient_of_zero() -> None:
    x = alpha.zeros((2, 3), requires_grad=True)
    x.norm().backward()
    assert x.grad.tolist() == [[0.0] * 3] * 2


@given(data=st.data(), shape=filled)
def test_gather_scatter_sort_and_topk(data, shape: tuple) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    picked = tuple(data.draw(st.integers(1, 6)) if k == axis else data.draw(st.integers(1, n))
                   for k, n in enumerate(shape))
    index = integers(picked, 3, 0, shape[axis])
    i, ti = alpha.tensor(index), torch.tensor(index)
    agree(lambda x: x.gather(axis, i), lambda t: t.gather(axis, ti), shape)
    agree(lambda x, s: x.scatter_add(axis, i, s), lambda t, s: t.scatter_add(axis, ti, s), shape, picked)
    agree(lambda x: x.scatter(axis, i, 2.5), lambda t: t.scatter(axis, ti, 2.5), shape)
    whole = alpha.tensor(integers(shape, 4))
    assert (whole.gather(axis, i).numpy() == torch.tensor(whole.numpy()).gather(axis, ti).numpy()).all()
    order = np.argsort(floats(shape, 9), axis)
    agree(lambda x, s: x.scatter(axis, alpha.tensor(order), s), lambda t, s: t.scatter(axis, torch.tensor(order), s),
          shape, shape)
    rows = integers((7,), 5, 0, shape[axis])
    agree(lambda x: x.index_select(axis, rows), lambda t: t.index_select(axis, torch.tensor(rows)), shape)
    descending, k = data.draw(st.booleans()), data.draw(st.integers(1, shape[axis]))
    agree(lambda x: x.sort(axis, descending)[0], lambda t: t.sort(axis, descending)[0], shape)
    agree(lambda x: x.topk(k, dim=axis, largest=descending).values,
          lambda t: t.topk(k, dim=axis, largest=descending).values, shape)
    ties = integers(shape, 6)
    assert (alpha.tensor(ties).argsort(axis, descending).numpy()
            == torch.tensor(ties).argsort(dim=axis, descending=descending, stable=True).numpy()).all()


def test_order_of_odd_values() -> None:
    a = np.array([[1.0, np.nan, -np.inf, 0.0, -0.0, np.inf, np.nan]], np.float32)
    for descending in (False, True):
        expected = torch.tensor(a).argsort(dim=1, descending=descending, stable=True).numpy()
        assert (alpha.tensor(a).argsort(1, descending).numpy() == expected).all()
    assert alpha.tensor(3.0).argsort().tolist() == 0 and alpha.zeros((2, 0)).argsort().shape == (2, 0)
    for dtype in ("int32", "int64", "uint8", "float16"):
        assert alpha.tensor([2, 0, 1], dtype=dtype).argsort(descending=True).tolist() == [0, 2, 1]


@given(data=st.data(), shape=filled)
def test_keys(data, shape: tuple) -> None:
    mask = integers(shape, 7, 0, 2).astype(bool)
    agree(lambda x: x[alpha.tensor(mask)] * 2.0, lambda t: t[torch.tensor(mask)] * 2.0, shape)
    first = integers(shape[:1], 8, 0, 2).astype(bool)
    agree(lambda x: x[first], lambda t: t[torch.tensor(first)], shape)
    rows = [integers((4,), k, -n, n) for k, n in enumerate(shape[:2])]
    agree(lambda x: x[tuple(map(alpha.tensor, rows))], lambda t: t[tuple(map(torch.tensor, rows))], shape)
    if len(shape) > 1:
        agree(lambda x: x[:, rows[1]], lambda t: t[:, torch.tensor(rows[1])], shape)
        agree(lambda x: x[..., None, [0, 0]], lambda t: t[..., None, [0, 0]], shape)
    a = floats(shape, 11)
    for key, value in ((0, 2.0), (slice(None, None, 2), 3.0), (mask, 4.0), (tuple(rows), 5.0), (Ellipsis, a)):
        x, t = alpha.tensor(a), torch.tensor(a)
        as_torch = tuple(map(torch.tensor, key)) if key.__class__ is tuple else torch.tensor(key) if isinstance(
            key, np.ndarray) else key
        x[alpha.tensor(key) if isinstance(key, np.ndarray) else key] = value
        t[as_torch] = torch.tensor(value, dtype=torch.float64)
        assert_equal_at(x, t.numpy())


def test_assignment() -> None:
    x = alpha.ones((2, 3), requires_grad=True)
    with refused(GraphError, "a leaf of shape (2, 3) that requires a gradient cannot be changed", "alpha.no_grad()"):
        x[0] = 0
    y = x * x
    with alpha.no_grad():
        x[0] = alpha.tensor([1, 2, 3])
        x[1, 1:] = 7
    assert x.tolist() == [[1, 2, 3], [1, 7, 7]] and x.requires_grad
    with refused(GraphError, "changed in place"):
        y.sum().backward()
    z = alpha.zeros((3,))
    with refused(ShapeError, "setitem: value of shape (2,) does not fit x[key] of shape (3,)"):
        z[:] = [1.0, 2.0]
    with refused(ShapeError, "getitem: the key does not fit"):
        z[5] = 1
    z[z == 0] = alpha.tensor(2.0)
    assert z.tolist() == [2, 2, 2]
    z[[]] = 5
    assert z.tolist() == [2, 2, 2]


@pytest.mark.parametrize("equation, shapes", [
    ("ij,jk->ik", [(2, 3), (3, 4)]), ("ij,jk", [(2, 3), (3, 4)]), ("bij,bkj->bik", [(2, 3, 4), (2, 5, 4)]),
    ("ij->ji", [(2, 3)]), ("ij->", [(2, 3)]), ("i,j->ij", [(2,), (3,)]), ("ij,ij->i", [(2, 3), (2, 3)]),
    ("...ij,...jk->...ik", [(2, 1, 3, 4), (5, 4, 2)]), ("bhqd,bhkd->bhqk", [(2, 2, 3, 4), (2, 2, 5, 4)]),
    ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)]), ("i,i->", [(3,), (3,)]), ("nhwc,c->nhw", [(2, 3, 3, 4), (4,)]),
    ("...->...", [(2, 3)]), ("b...,b...->b", [(3, 2, 2), (3, 2, 2)]),
])
def test_einsum(equation: str, shapes: list) -> None:
    agree(lambda *xs: ops.einsum(equation, *xs), lambda *ts: torch.einsum(equation, *ts), *shapes)


def test_wrong_equations() -> None:
    x = alpha.ones((2, 3))
    for equation, what in (("ij,jk->ik", "2 operands are named, 1 given"), ("i->i", "'i' does not fit a tensor of 2"),
                           ("ii->i", "'ii' does not fit"), ("ij->k", "the result 'k' has a letter twice"),
                           (3, "an equation")):
        with refused(ShapeError, "einsum: ", what):
            ops.einsum(equation, x)
    with refused(ShapeError, "axis 'j' has sizes 3 and 2"):
        ops.einsum("ij,jk->ik", x, x)


@given(shape=filled)
def test_arithmetic_and_shapes(shape: tuple) -> None:
    for ours, theirs in (
            (lambda x: x.square() + x.sin() * x.cos(), lambda t: t.square() + t.sin() * t.cos()),
            (lambda x: x % 0.7, lambda t: t % 0.7), (lambda x: x.repeat(2, *[1] * x.ndim),
                                                     lambda t: t.repeat(2, *[1] * t.ndim)),
            (lambda x: alpha.cat(x.chunk(2, dim=-1), dim=-1), lambda t: torch.cat(t.chunk(2, dim=-1), dim=-1)),
            (lambda x: alpha.stack(x.unbind(0), 0).unsqueeze(1).squeeze(1), lambda t: t),
            (lambda x: x.view(-1).unflatten(0, (1, -1)), lambda t: t.view(-1).unflatten(0, (1, -1))),
            (lambda x: x.clamp(min=-1).clamp(max=1), lambda t: t.clamp(min=-1).clamp(max=1)),
            (lambda x: x.flip(0).movedim(0, -1), lambda t: t.flip(0).movedim(0, -1)),
            (lambda x: x.masked_fill(x > 0, 3.0), lambda t: t.masked_fill(t > 0, 3.0)),
            (lambda x: x.where(x > 0, 2.0), lambda t: t.where(t > 0, 2.0))):
        agree(ours, theirs, shape)
    agree(lambda x: x.rsqrt() + x.reciprocal() + x.log2() + x.log10(), lambda t: t.rsqrt() + t.reciprocal() + t.log2()
          + t.log10(), shape, low=0.5)
    agree(lambda x: x.tril() + x.triu(1), lambda t: t.tril() + t.triu(1), (*shape, 3))


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "uint8", "float16"])
def test_quotients_and_rounding(dtype: str) -> None:
    rng = np.random.default_rng(0)
    a = rng.integers(0 if dtype == "uint8" else -9, 10, 200).astype(dtype)
    b = rng.integers(1, 6, 200).astype(dtype) * (1 if dtype == "uint8" else rng.choice([-1, 1], 200).astype(dtype))
    if dtype.startswith("f"):
        a, b = a / 4, b / 8
    x, y, t, u = alpha.tensor(a), alpha.tensor(b), torch.tensor(a), torch.tensor(b)
    assert (x // y).dtype == dtype
    assert_equal_at(x // y, torch.div(t, u, rounding_mode="floor").numpy())
    assert_equal_at(x % y, (t % u).numpy())
    assert_equal_at(7 // y, torch.div(7, u, rounding_mode="floor").numpy())
    for name in ("floor", "ceil", "round", "trunc"):
        assert_equal_at(getattr(x, name)(), getattr(t, name)().numpy())
    assert alpha.tensor([0.5, 1.5, 2.5, -0.5]).round().tolist() == [0, 2, 2, 0]
    assert alpha.tensor([1.26]).round(1).tolist() == pytest.approx([1.3])


def test_logic() -> None:
    a, b = alpha.tensor([True, True, False, False]), alpha.tensor([True, False, True, False])
    assert (a & b).tolist() == [True, False, False, False] and (a | b).tolist() == [True, True, True, False]
    assert (a ^ b).tolist() == [False, True, True, False] and (~a).tolist() == [False, False, True, True]
    assert (a & True).tolist() == a.tolist() and (a & False).any().item() is False
    assert (True | a).all().item() is True and (a | False).tolist() == a.tolist()
    with refused(DTypeError, "&: an operand is a tensor of dtype int64, bool tensors are needed", "compare first"):
        alpha.tensor([1]) & alpha.tensor([2])
    x = alpha.tensor([0.0, np.nan, np.inf, -np.inf])
    assert x.isnan().tolist() == [False, True, False, False] and x.isinf().tolist() == [False, False, True, True]
    assert x.isfinite().tolist() == [True, False, False, False] and alpha.tensor([1]).isfinite().all()
    assert alpha.allclose(x, x, equal_nan=True) and not alpha.allclose(x, x) and alpha.equal(a, a)
    assert bool((alpha.randn((3, 3)) > 5).any()) is False and bool(alpha.ones((2, 0)).all())


def test_making_tensors() -> None:
    assert alpha.eye(2, 3).tolist() == [[1, 0, 0], [0, 1, 0]]
    assert_equal_at(alpha.linspace(-1, 2, 7), torch.linspace(-1, 2, 7).numpy(), rtol=1e-6)
    assert alpha.from_numpy(np.arange(3, dtype=np.int32)).dtype == "int32"
    alpha.manual_seed(3)
    x = alpha.randint(10, (1000,))
    assert x.dtype == "int64" and set(x.tolist()) == set(range(10)) and alpha.randint(2, 4, (50,)).min().item() == 2
    assert alpha.randint(5, size=(2, 2)).shape == (2, 2)
    assert sorted(alpha.randperm(100).tolist()) == list(range(100)) != alpha.randperm(100).tolist()
    with refused(ConfigError, "randint: low 3 and high 3 leave 0 numbers"):
        alpha.randint(3, 3, (2,))
    with refused(ConfigError, "randint: high is (2,), an int is needed"):
        alpha.randint(3, (2,), (2,))
    assert alpha.one_hot(alpha.tensor([[0, 2]])).tolist() == [[[1, 0, 0], [0, 0, 1]]]
    assert alpha.one_hot(alpha.tensor([1]), num_classes=4).tolist() == [[0, 1, 0, 0]]
    assert alpha.nonzero(alpha.tensor([[0, 1], [2, 0]])).tolist() == [[0, 1], [1, 0]]
    assert [t.tolist() for t in alpha.tensor([0, 3]).nonzero(as_tuple=True)] == [[1]]


def test_products_by_name() -> None:
    agree(lambda a, b: a.mm(b), lambda a, b: a.mm(b), (2, 3), (3, 4))
    agree(lambda a, b: a.bmm(b), lambda a, b: a.bmm(b), (2, 2, 3), (2, 3, 4))
    agree(lambda a, b: a.mv(b) * a.t()[0].dot(b), lambda a, b: a.mv(b) * a.t()[0].dot(b), (3, 3), (3,))
    agree(lambda a, b: a.outer(b), lambda a, b: a.outer(b), (3,), (4,))
    with refused(ShapeError, "mm: a has 3 axes and b 2, 2 and 2 are needed"):
        alpha.mm(alpha.ones((1, 2, 2)), alpha.ones((2, 2)))
    with refused(ShapeError, "bmm: a has 2 matrices, b has 1"):
        alpha.bmm(alpha.ones((2, 2, 2)), alpha.ones((1, 2, 2)))


@pytest.mark.parametrize("call, error, text", [
    (lambda x: x.topk(4), ShapeError, "topk: k=4 exceeds the length of axis -1, 3"),
    (lambda x: x.gather(0, x), DTypeError, "gather: index has dtype float32, int32 or int64 is needed"),
    (lambda x: x.gather(0, alpha.tensor([0])), ShapeError, "gather: index has shape (1,), x has (2, 3)"),
    (lambda x: x.gather(0, alpha.tensor([[2]])), ShapeError, "index 2 is out of range for an axis of length 2"),
    (lambda x: x.scatter(0, alpha.tensor([[0], [0]]), alpha.ones((2, 1))), ShapeError,
     "scatter: two elements of src go to one place"),
    (lambda x: x.scatter_add(0, alpha.tensor([[0]]), x.astype("float64")), DTypeError, "src has dtype float64, x"),
    (lambda x: x.scatter_add(0, alpha.tensor([[0, 1]]), alpha.ones((1, 1))), ShapeError, "src has shape (1, 1), index"),
    (lambda x: x.index_select(0, [2]), ShapeError, "index_select: index 2 is out of range for an axis of length 2"),
    (lambda x: x.index_select(0, [0.5]), DTypeError, "index_select: index has dtype float64"),
    (lambda x: x.repeat(2), ShapeError, "repeat: the counts (2,) do not fit shape (2, 3)"),
    (lambda x: x[0].tril(), ShapeError, "tril: x has 1 axes, at least 2 are needed"),
    (lambda x: alpha.one_hot(alpha.tensor([0]), 0), ShapeError, "one_hot: there are 0 classes"),
    (lambda x: x.view("int32"), DTypeError, "view: the bits of float32 cannot be read as int32"),
    (lambda x: x.size(2), ArgumentError, "size: axis 2 does not exist in a tensor of 2 axes"),
    (lambda x: x.sum(dim=0, axis=1), ArgumentError, "sum: dim is unknown"),
    (lambda x: x.sum(0, dim=1), ArgumentError, "sum: dim is unknown"),
    (lambda x: x.sum(foo=1), ArgumentError, "sum: foo is unknown"),
    (lambda x: alpha.transpose(x, 0, dim0=1), ArgumentError, "transpose: dim0 is unknown"),
], ids=lambda v: v if isinstance(v, str) else "")
def test_messages(call, error: type, text: str) -> None:
    with refused(error, text):
        call(alpha.ones((2, 3)))


@settings(max_examples=20)
@given(n=st.integers(0, 40))
def test_cumsum_of_integers_and_bool(n: int) -> None:
    a = integers((n,), 1)
    assert alpha.tensor(a, "uint8" if n and a.min() >= 0 else "int32").cumsum(0).tolist() == np.cumsum(a).tolist()
    assert alpha.tensor(a > 0).cumsum(0).dtype == "int64" and alpha.tensor(2.0).cumsum(0).item() == 2


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64"])
def test_masks_of_bools_are_factors(dtype: str) -> None:
    x = alpha.tensor([1, 2, 3]).astype(dtype)
    mask = x > 1
    for y in (x * mask, mask * x):
        assert y.dtype == dtype and y.tolist() == [0, 2, 3]
    for y, expected in ((x + mask, [1, 3, 4]), (mask + x, [1, 3, 4]), (x - mask, [1, 1, 2]), (mask - x, [-1, -1, -2])):
        assert y.dtype == dtype and y.tolist() == expected
    for y, kind, numbers in ((1 + mask, "int64", [1, 2, 2]), (mask * 2, "int64", [0, 2, 2]),
                             (1 - mask, "int64", [1, 0, 0]), (mask - 1, "int64", [-1, 0, 0]),
                             (0.5 * mask, "float32", [0, 0.5, 0.5])):
        assert y.dtype == kind and y.tolist() == numbers
    with pytest.raises(AlphaError, match="bool"):
        mask + mask
    if dtype.startswith("float"):
        assert (mask / x).tolist() == pytest.approx([0, 1 / 2, 1 / 3], rel=1e-3)
        x += mask
        assert x.tolist() == [1, 3, 4]
        x -= mask
    if dtype == "float32":
        x.requires_grad_()
        (mask * x * x).sum().backward()
        assert x.grad.tolist() == [0, 4, 6]
