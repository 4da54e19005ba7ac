"""Reductions: against NumPy bit for bit on integers, against PyTorch, accuracy in float32, gradients, messages."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import alpha
from alpha import ops
from alpha.errors import DTypeError, ShapeError
from alpha.gradcheck import adjoint_check, assert_equal_at, gradcheck
from tests.op_checks import broadcasting, floats, integers, is_contiguous, leaf, like_torch, refused, shapes


@st.composite
def reductions(draw):
    """A shape, axes to reduce, and whether to keep them."""
    shape = draw(shapes)
    axes = sorted(draw(st.sets(st.integers(0, len(shape) - 1)))) if shape else []
    axis = draw(st.sampled_from([None, tuple(axes), tuple(k - len(shape) for k in axes)]))
    if len(axes) == 1 and draw(st.booleans()):
        axis = axes[0]
    return shape, axis, draw(st.booleans())


@given(case=reductions(), dtype=st.sampled_from(["float16", "float32", "float64", "int32", "int64", "uint8"]))
def test_equals_numpy_on_integers(case: tuple, dtype: str) -> None:
    shape, axis, keepdims = case
    a = integers(shape, low=0).astype(dtype)
    x = alpha.tensor(a)
    for name in ("sum", "max", "min"):
        y = getattr(x, name)(axis, keepdims)
        expected = getattr(np, name)(a, axis=axis, keepdims=keepdims)
        assert is_contiguous(y)
        assert y.dtype == (dtype if name != "sum" or x.is_floating_point else "int64")
        assert_equal_at(y, expected, name=name)


@given(shape=shapes, keepdims=st.booleans())
def test_argmax_equals_numpy(shape: tuple, keepdims: bool) -> None:
    a = integers(shape)
    for axis in (None, *range(-len(shape), len(shape))):
        y = alpha.tensor(a).argmax(axis, keepdims)
        assert y.dtype == "int64" and is_contiguous(y)
        assert_equal_at(y, np.argmax(a, axis=axis, keepdims=keepdims))


@pytest.mark.torch
@pytest.mark.parametrize("name", ["sum", "mean", "amax", "amin"])
@given(case=reductions())
def test_matches_torch(name: str, case: tuple) -> None:
    torch = pytest.importorskip("torch")
    shape, axis, keepdims = case
    axis = tuple(range(len(shape))) if axis in (None, ()) else axis
    a = integers(shape, low=0, high=3).astype(np.float64)  # with ties
    like_torch(lambda x: getattr(ops, name.removeprefix("a"))(x, axis, keepdims),
               lambda t: getattr(torch, name)(t, dim=axis, keepdim=keepdims), [a])


@pytest.mark.torch
@given(case=reductions(), correction=st.integers(0, 1))
def test_var_matches_torch(case: tuple, correction: int) -> None:
    torch = pytest.importorskip("torch")
    shape, axis, keepdims = case
    axis = tuple(range(len(shape))) if axis in (None, ()) else axis
    a = floats(shape)
    if a.size == 0 or (np.ones(shape).sum(axis) <= correction).any():
        return
    like_torch(lambda x: x.var(axis, keepdims=keepdims, correction=correction),
               lambda t: torch.var(t, dim=axis, keepdim=keepdims, correction=correction), [a])


@pytest.mark.parametrize("name", ["sum", "mean", "var", "max", "min"])
@pytest.mark.parametrize("axis", [None, 0, -1, (0, 2), (), [1]])
@pytest.mark.parametrize("keepdims", [False, True])
def test_gradients_to_second_order(name: str, axis, keepdims: bool) -> None:
    assert gradcheck(lambda x: getattr(ops, name)(x, axis, keepdims=keepdims), [leaf((3, 2, 4))], second_order=True)


def test_ties_share_the_gradient() -> None:
    x = alpha.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]], "float64", requires_grad=True)
    x.max(1).sum().backward()
    assert_equal_at(x.grad, np.array([[0, 0.5, 0.5], [1 / 3] * 3]))


def test_nan_wins() -> None:
    x = alpha.tensor([1.0, math.nan, 3.0])
    assert all(math.isnan(y.item()) for y in (x.max(), x.min(), x.sum(), x.mean(), x.var()))
    assert x.argmax().item() == 1


@pytest.mark.parametrize("axis", [None, 0, 1, (0, 1)])
def test_float32_sums_are_as_exact_as_pairwise_ones(cpu_kernels: str, axis) -> None:
    a = floats((200_000, 2), 0, 0.0, 1.0).astype(np.float32)
    exact = a.sum(axis, dtype=np.float64)
    assert_equal_at(alpha.tensor(a).sum(axis), exact, rtol=4e-6)
    assert_equal_at(alpha.tensor(a).mean(axis), a.mean(axis, dtype=np.float64), rtol=4e-6)


@pytest.mark.parametrize("shape", [(1, 3), (255, 2), (256, 2), (257, 5), (1000, 7), (70_000, 1), (5, 20_000)])
def test_column_sums_of_every_height(cpu_kernels: str, shape: tuple) -> None:
    a = integers(shape).astype(np.float32)
    assert_equal_at(alpha.tensor(a).sum(0), a.sum(0))
    assert_equal_at(alpha.tensor(a.reshape(shape[0], 1, shape[1])).sum((0, 1)), a.sum(0))


def test_var_keeps_its_digits_with_a_large_mean() -> None:
    a = np.array([1e4 + 1, 1e4 + 2, 1e4 + 3], np.float32)
    assert alpha.tensor(a).var().item() == pytest.approx(2 / 3, rel=1e-6)
    assert alpha.tensor(a).var(correction=1).item() == pytest.approx(1.0, rel=1e-6)


def test_var_of_a_constant_has_gradient_0() -> None:
    x = alpha.tensor([5.0, 5.0, 5.0], requires_grad=True)
    y = x.var()
    y.backward()
    assert y.item() == 0.0 and x.grad.tolist() == [0.0, 0.0, 0.0]


def test_float16_sums_beyond_its_integers() -> None:
    x = alpha.tensor(np.ones((4096, 3), np.float16))
    assert x.sum(0).tolist() == [4096.0] * 3 and x.sum(0).dtype == "float16"
    assert x.mean().item() == 1.0 and x.var().item() == 0.0


def test_sums_are_the_same_bits_every_time(cpu_kernels: str) -> None:
    x = alpha.tensor(floats((3000, 70)).astype(np.float32))
    for axis in (None, 0, 1):
        assert x.sum(axis).numpy().tobytes() == x.sum(axis).numpy().tobytes()


SUMS = [lambda x: x.sum(), lambda x: x.mean((1, 2)).sum(), lambda x: (x * x).mean(), lambda x: (-x).sum(0).mean(),
        lambda x: ops.relu(x).sum(-1).mean(), lambda x: ops.clip(x, -1, 1).sum((0, 2), keepdims=True).mean(),
        lambda x: ops.where(x > 0, x, 0.0).sum(1).sum(), lambda x: x.reshape(5, -1).sum(0).mean(),
        lambda x: x[:, :2].sum(1).sum(), lambda x: ops.maximum(x, x.mean(1, True)).sum(),
        lambda x: x.sum(()).sum(0).sum()]


@pytest.mark.parametrize("f", SUMS)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_gradients_of_sums_are_written_when_they_are_read(cpu_kernels: str, f, dtype: str) -> None:
    x = alpha.tensor(floats((5, 6, 7)).astype(dtype), requires_grad=True)
    (expected,) = alpha.grad(f(x), [x], create_graph=True)      # which is written at once
    (found,) = alpha.grad(f(x), [x])
    assert np.array_equal(found.numpy(), expected.numpy()) and is_contiguous(found)
    f(x).backward()
    x.grad += x.detach()    # whose memory is nobody else's
    assert np.array_equal(x.grad.numpy(), expected.numpy() + x.numpy())


def test_pointwise_ops_read_the_few_elements_of_a_gradient_of_a_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    x = alpha.tensor(floats((64, 300)), "float32", requires_grad=True)
    monkeypatch.setitem(ops.expand.impls, "cpu", lambda *args, **attrs: pytest.fail("it was written"))
    (g,) = alpha.grad(ops.relu(x).mean(), [x])
    assert np.array_equal(g.numpy(), (x.numpy() > 0) * np.float32(1 / 19200))
    (g,) = alpha.grad(x.sum(), [x])
    assert g.shape == (64, 300) and (g * x.detach()).numpy().sum() == pytest.approx(float(x.sum()), rel=1e-4)


def test_bool_is_counted() -> None:
    y = alpha.tensor([[True, False], [True, True]]).sum(0)
    assert y.tolist() == [2, 1] and y.dtype == "int64"


def test_empty_tensors() -> None:
    x = alpha.tensor(np.ones((0, 3), np.float32))
    assert x.sum(0).tolist() == [0.0] * 3 and x.sum().item() == 0.0 and x.sum(1).shape == (0,)
    assert alpha.tensor(np.ones((1000, 0), np.float32)).sum(0).shape == (0,)
    assert np.isnan(x.mean(0).numpy()).all()
    assert x.max(1).shape == (0,)
    for name in ("max", "min", "argmax"):
        with refused(ShapeError, f"{name}: axis 0 of shape (0, 3) holds no element"):
            getattr(x, name)(0)


@given(pair=broadcasting())
def test_sum_to_is_the_transpose_of_expand(pair: tuple) -> None:
    shape, whole = pair[0], np.broadcast_shapes(*pair)
    x, g = (alpha.tensor(integers(s, k).astype(np.float64)) for k, s in enumerate((shape, whole)))
    assert adjoint_check(lambda x: x.expand(whole), lambda g: ops.sum_to(g, shape), x, g)
    assert is_contiguous(x.expand(whole), ops.sum_to(g, shape))
    assert gradcheck(lambda g: ops.sum_to(g, shape), [leaf(whole)], second_order=True)


def test_axes_that_are_not_there_are_refused() -> None:
    x = alpha.tensor(np.ones((2, 3)))
    for name in ("sum", "mean", "var", "max", "min", "argmax"):
        with refused(ShapeError, f"{name}: axis 2 does not exist in a tensor of 2 axes", "from -2 to 1"):
            getattr(x, name)(2)
    with refused(ShapeError, "sum: axis (0, -2) names an axis of 2 twice"):
        x.sum((0, -2))
    with refused(ShapeError, 'sum: axis is "0" (str), None, an int or a tuple of ints is needed'):
        x.sum("0")
    with refused(ShapeError, "sum: axis 0 does not exist in a tensor of 0 axes", "reshape"):
        alpha.tensor(1.0).sum(0)


def test_what_cannot_be_reduced_is_refused() -> None:
    with refused(ShapeError, "var: 1 elements per variance, correction 1 needs more", "x: (2, 1); axis: 1"):
        alpha.tensor(np.ones((2, 1))).var(1, correction=1)
    with refused(ShapeError, "sum_to: shape (2,) does not broadcast to (3, 3)"):
        ops.sum_to(alpha.tensor(np.ones((3, 3))), shape=(2,))
    with refused(DTypeError, "mean: x has dtype int64"):
        alpha.tensor([1, 2]).mean()
    with refused(DTypeError, "max: x has dtype bool"):
        alpha.tensor([True]).max()
