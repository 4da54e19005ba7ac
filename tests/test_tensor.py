"""Tensor: how it is made, what it tells, its operators and methods, and who may change it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import alpha
from alpha.errors import AlphaError, ArgumentError, DeviceError, DTypeError, GraphError, ShapeError
from alpha.gradcheck import assert_equal_at
from tests.op_checks import is_contiguous, refused

DTYPES = ("float16", "float32", "float64", "int32", "int64", "uint8", "bool")


@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_keep_their_dtype(dtype: str) -> None:
    a = np.array([[0, 1], [2, 3]]).astype(dtype)
    for x in (alpha.tensor(a), alpha.tensor(a.tolist(), dtype), alpha.tensor(alpha.tensor(a)), alpha.tensor(a.T).T,
              alpha.tensor(a, dtype=np.dtype(dtype))):
        assert (x.dtype, x.shape, x.device, x.ndim, x.size, len(x)) == (dtype, (2, 2), "cpu", 2, 4, 2)
        assert is_contiguous(x)
        assert_equal_at(x, a)


def test_python_numbers_have_a_default_dtype() -> None:
    for value, dtype in ((1.5, "float32"), (2, "int64"), (True, "bool"), ([1, 2.0], "float32"), ([[1], [2]], "int64"),
                         (np.float64(1.5), "float64"), ([], "float32")):
        assert alpha.tensor(value).dtype == dtype
    assert alpha.tensor(1.5).shape == () and alpha.tensor([[]]).shape == (1, 0)


def test_a_tensor_owns_its_elements() -> None:
    a = np.zeros(3, np.float32)
    x = alpha.tensor(a)
    a[:] = 1
    y = alpha.tensor(x)
    y.copy_(np.ones(3))
    b = x.numpy()
    b[:] = 2
    assert x.tolist() == [0.0, 0.0, 0.0]


def test_what_cannot_be_a_tensor_is_refused() -> None:
    with refused(DTypeError, "'complex128' is not a dtype of alpha", "float32"):
        alpha.tensor(np.ones(2, complex))
    with refused(ShapeError, "tensor: the nested lists are no array of one shape", "equally long"):
        alpha.tensor([[1, 2], [3]])
    with refused(DTypeError, "tensor: the cpu backend has no bfloat16"):
        alpha.tensor([1.0], "bfloat16")
    for device in ("tpu", "cpu:0", "cuda:x"):
        with refused(DeviceError, f"{device!r} is not a device"):
            alpha.tensor([1.0], device=device)
    with refused(DTypeError, "requires_grad_: dtype int64 has no gradients"):
        alpha.tensor([1], requires_grad=True)


def test_one_element_becomes_a_number() -> None:
    for x in (alpha.tensor(2.5), alpha.tensor([2.5]), alpha.tensor([[2.5]])):
        assert x.item() == 2.5 and float(x) == 2.5 and int(x) == 2 and bool(x)
    assert not alpha.tensor(0.0) and isinstance(alpha.tensor(3).item(), int)
    for f in (alpha.Tensor.item, float, bool):
        with refused(ShapeError, "item: a tensor of shape (2,) has 2 elements, not 1"):
            f(alpha.tensor([1.0, 2.0]))


def test_length_and_iteration() -> None:
    x = alpha.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    rows = list(x)
    assert [row.tolist() for row in rows] == [[1.0, 2.0], [3.0, 4.0]] and len(x) == 2
    (rows[1] * rows[1]).sum().backward()
    assert x.grad.tolist() == [[0.0, 0.0], [6.0, 8.0]]
    with pytest.raises(TypeError, match="without axes has no length"):
        len(alpha.tensor(1.0))
    with pytest.raises(TypeError, match="without axes has no length"):
        iter(alpha.tensor(1.0))


def test_repr_shows_a_corner_only() -> None:
    assert repr(alpha.tensor([1.0, 2.5])) == "tensor([1. , 2.5], shape=(2,), dtype=float32)"
    x = alpha.tensor(np.arange(10_000.0).reshape(100, 100), requires_grad=True)
    text = repr(x)
    assert "corner of (100, 100)" in text and "303." in text and "304." not in text and len(text) < 300
    assert "requires_grad=True" in text and "grad_fn=mul" in repr(x * 2.0)
    assert "shape=()" in repr(alpha.tensor(1)) and "shape=(0, 3)" in repr(alpha.tensor(np.ones((0, 3))))


def test_operators_and_their_reflections() -> None:
    x, a = alpha.tensor([1.0, 2.0, 4.0]), np.array([1.0, 2.0, 4.0], np.float32)
    y, b = alpha.tensor([4.0, 2.0, 1.0]), np.array([4.0, 2.0, 1.0], np.float32)
    for f in (lambda p, q: p + q, lambda p, q: p - q, lambda p, q: p * q, lambda p, q: p / q, lambda p, q: p ** q,
              lambda p, q: p == q, lambda p, q: p != q, lambda p, q: p < q, lambda p, q: p <= q, lambda p, q: p > q,
              lambda p, q: p >= q):
        for ours, theirs in ((f(x, y), f(a, b)), (f(x, 2), f(a, 2)), (f(2, x), f(2, a)), (f(0.5, x), f(0.5, a))):
            assert ours.dtype == theirs.dtype.name
            assert_equal_at(ours, theirs)
    assert_equal_at(-x, -a)
    assert_equal_at(abs(-x), a)
    assert (x @ y).item() == 12.0 and (np.float64(2) * x).dtype == "float32"


def test_methods_are_the_ops_of_that_name() -> None:
    x = alpha.tensor([[0.5, 1.0], [2.0, 4.0]])
    a = x.numpy()
    for ours, theirs in ((x.exp(), np.exp(a)), (x.log(), np.log(a)), (x.sqrt(), np.sqrt(a)), (x.sign(), np.sign(a)),
                         (x.abs(), np.abs(a)), (x.tanh(), np.tanh(a)), (x.sigmoid(), 1 / (1 + np.exp(-a))),
                         (x.relu(), np.maximum(a, 0)), (x.clip(1, 2), a.clip(1, 2)), (x.sum(0), a.sum(0)),
                         (x.mean(1, True), a.mean(1, keepdims=True)), (x.var(correction=1), a.var(ddof=1)),
                         (x.max(0), a.max(0)), (x.min(), a.min()), (x.argmax(1), a.argmax(1)),
                         (x.reshape(4), a.reshape(4)), (x.reshape((4, 1)), a.reshape(4, 1)), (x.flatten(), a.ravel()),
                         (x.permute(1, 0), a.T), (x.T, a.T), (x.transpose(0, 1), a.T),
                         (x.expand(3, 2, 2), np.stack([a] * 3)), (x.flip(0), a[::-1]), (x[0, 1:], a[0, 1:]),
                         (x.astype("int32"), a.astype("int32"))):
        assert_equal_at(ours, theirs, rtol=1e-6)
    assert_equal_at(x.softmax(0), np.exp(a) / np.exp(a).sum(0), rtol=1e-6)
    assert_equal_at(x.log_softmax(), np.log(np.exp(a) / np.exp(a).sum(1, keepdims=True)), rtol=1e-6)
    assert x.astype(np.float32) is x and x.to("cpu") is x and x.cpu() is x


def test_numpy_reads_a_tensor() -> None:
    x = alpha.tensor([1.0, 2.0])
    assert np.asarray(x).dtype == np.float32 and np.asarray(x, np.float64).tolist() == [1.0, 2.0]
    assert np.stack([x, x]).shape == (2, 2)


def test_tensors_are_keys_by_identity() -> None:
    x, y = alpha.tensor([1.0]), alpha.tensor([1.0])
    assert len({x, y, x}) == 2


def test_copy_overwrites_and_casts() -> None:
    x = alpha.tensor([1.0, 2.0])
    assert x.copy_(np.array([3, 4])) is x and x.tolist() == [3.0, 4.0] and x.dtype == "float32"
    assert x.copy_(alpha.tensor([5.0, 6.0])).tolist() == [5.0, 6.0]
    assert x.copy_(alpha.tensor([7, 8])).tolist() == [7.0, 8.0]
    with refused(ShapeError, "copy_: the source has shape (3,), the tensor (2,)"):
        x.copy_(np.ones(3))


def test_parts_are_changed_in_place() -> None:
    x = alpha.tensor([1.0, 2.0])
    x[:1] += 1.0
    assert x.tolist() == [2.0, 2.0]


def test_requires_grad_spreads_through_floating_results() -> None:
    x, y = alpha.tensor([1.0, 2.0], requires_grad=True), alpha.tensor([1.0, 2.0])
    z = x * y
    assert z.requires_grad and not z.is_leaf and x.is_leaf and y.is_leaf and not (y * y).requires_grad
    assert not (x > 0).requires_grad and not x.argmax().requires_grad and not z.detach().requires_grad
    assert np.shares_memory(z.detach().array, z.array)
    assert y.requires_grad_() is y and (y * 2).requires_grad and not y.requires_grad_(False).requires_grad
    with refused(GraphError, "requires_grad_: only a leaf can be changed, this tensor was made by mul"):
        z.requires_grad_(False)
    with refused(DTypeError, "requires_grad_: dtype bool has no gradients"):
        (x > 0).requires_grad_()


def test_backward_needs_a_scalar_or_a_gradient_like_the_tensor() -> None:
    x = alpha.tensor([1.0, 2.0], requires_grad=True)
    with refused(ShapeError, "backward: a tensor of shape (2,) is not a scalar"):
        (x * 2).backward()
    with refused(ShapeError, "backward: the gradient and the tensor differ", "gradient: ((3,), 'float32', 'cpu')"):
        (x * 2).backward(alpha.tensor([1.0, 1.0, 1.0]))
    with refused(GraphError, "depends on nothing that requires a gradient", "requires_grad=True"):
        alpha.tensor(1.0).backward()
    (x * 2).backward(alpha.tensor([1.0, 10.0]))
    assert x.grad.tolist() == [2.0, 20.0]
    (x * 2).sum().backward()
    assert x.grad.tolist() == [4.0, 22.0]


@pytest.mark.parametrize("wrong, error, said", [
    (3, ArgumentError, ("grad: it is set to 3, a Tensor or None is needed", "alpha.tensor(gradient)")),
    (np.ones((2, 3), np.float32), ArgumentError, ("a float32 NumPy array of shape (2, 3)",)),
    (alpha.ones((3,)), ShapeError, ("grad: the gradient and the tensor differ", "(3,)", "(2, 3)")),
    (alpha.ones((2, 3), dtype="float16"), ShapeError, ("float16", "float32"))])
def test_a_gradient_that_is_set_fits_the_tensor(wrong: Any, error: type[AlphaError], said: tuple[str, ...]) -> None:
    """Else an optimizer that is composed of ops would broadcast it."""
    p = alpha.ones((2, 3), requires_grad=True)
    p.grad = alpha.zeros((2, 3))
    with refused(error, *said):
        p.grad = wrong
    assert p.grad.tolist() == [[0.0] * 3] * 2
    p.grad = None
    assert p.grad is None


def test_requires_grad_is_looked_at_when_it_is_set() -> None:
    p = alpha.ones((2,))
    p.requires_grad = True
    assert p.requires_grad and (p * 2).requires_grad
    with refused(AlphaError, "requires_grad"):
        p.requires_grad = "False"  # type: ignore[assignment]
    with refused(DTypeError, "dtype int64 has no gradients"):
        alpha.tensor([1]).requires_grad = True
    with refused(GraphError, "only a leaf can be changed"):
        (p * 2).requires_grad = False
