"""Matrix products and the linear layer: bit for bit on integers, against PyTorch, gradients, messages."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import alpha
from alpha import config, ops
from alpha.core.op import registry
from alpha.cpu import native
from alpha.cpu.matmul import WORTHWHILE_BATCH
from alpha.errors import DTypeError, ShapeError
from alpha.gradcheck import assert_equal_at, gradcheck
from tests.op_checks import floats, integers, is_contiguous, leaf, like_torch, refused

PAIRS = [((3, 4), (4, 5)), ((1, 4), (4, 1)), ((2, 3, 4), (4, 5)), ((3, 4), (2, 4, 5)), ((2, 1, 3, 4), (5, 4, 2)),
         ((4,), (4,)), ((4,), (4, 5)), ((3, 4), (4,)), ((2, 3, 4), (4,)), ((4,), (2, 4, 5)),
         ((0, 4), (4, 3)), ((3, 0), (0, 2))]


@pytest.mark.parametrize("pair", PAIRS, ids=str)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", "int64"])
def test_equals_numpy_on_integers(pair: tuple, dtype: str) -> None:
    a, b = (integers(shape, seed).astype(dtype) for seed, shape in enumerate(pair))
    y = alpha.tensor(a) @ alpha.tensor(b)
    assert y.dtype == dtype and is_contiguous(y)
    assert_equal_at(y, np.matmul(a, b))


@pytest.mark.torch
@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_matches_torch(pair: tuple) -> None:
    torch = pytest.importorskip("torch")
    like_torch(ops.matmul, torch.matmul, [floats(shape, seed) for seed, shape in enumerate(pair)])


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_gradients_to_second_order(pair: tuple) -> None:
    a, b = (leaf(shape, seed) for seed, shape in enumerate(pair))
    assert gradcheck(ops.matmul, [a, b], second_order=True)


@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("batch", [((), ()), ((2,), ()), ((2, 1), (3,))], ids=str)
def test_transposed_operands(transpose_a: bool, transpose_b: bool, batch: tuple) -> None:
    a = integers(batch[0] + ((4, 3) if transpose_a else (3, 4)), 0).astype(np.float64)
    b = integers(batch[1] + ((5, 4) if transpose_b else (4, 5)), 1).astype(np.float64)
    y = ops.matmul(alpha.tensor(a), alpha.tensor(b), transpose_a, transpose_b)
    assert is_contiguous(y)
    assert_equal_at(y, (a.swapaxes(-1, -2) if transpose_a else a) @ (b.swapaxes(-1, -2) if transpose_b else b))
    assert gradcheck(lambda a, b: ops.matmul(a, b, transpose_a, transpose_b), [leaf(a.shape, 0), leaf(b.shape, 1)],
                     second_order=True)


@pytest.mark.parametrize("sizes", [(1, 600, 500), (33, 165, 57), (128, 400, 120), (7, 9000, 10), (30000, 5, 3)],
                         ids=str)
def test_large_products(cpu_kernels: str, sizes: tuple) -> None:
    rows, inner, columns = sizes
    a, b = integers((rows, inner), 0).astype(np.float32), integers((inner, columns), 1).astype(np.float32)
    expected = a @ b
    for left, right, flags in ((a, b, (False, False)), (a.T, b, (True, False)), (a, b.T, (False, True)),
                               (a.T, b.T, (True, True))):
        y = ops.matmul(alpha.tensor(np.ascontiguousarray(left)), alpha.tensor(np.ascontiguousarray(right)), *flags)
        assert is_contiguous(y)
        assert_equal_at(y, expected, name=str(flags))


@pytest.mark.parametrize("batches", [((2, 3), (2, 3)), ((6,), ()), ((), (6,)), ((2, 1), (3,)), ((0,), (0,))], ids=str)
def test_large_products_of_batches(cpu_kernels: str, batches: tuple) -> None:
    a, b = (integers((*batch, *shape), k).astype(np.float32)
            for k, (batch, shape) in enumerate(zip(batches, ((65, 70), (70, 64)))))
    for flags in ((False, False), (True, False), (False, True), (True, True)):
        left, right = (np.ascontiguousarray(x.swapaxes(-1, -2)) if flag else x for x, flag in zip((a, b), flags))
        y = ops.matmul(alpha.tensor(left), alpha.tensor(right), *flags)
        assert is_contiguous(y)
        assert_equal_at(y, a @ b, name=str(flags))


# Sums of one panel and of several, columns of several panels, ends of vectors and of tiles, vectors, a matrix for all.
@pytest.mark.parametrize("count, sizes", [(40, (65, 64, 65)), (96, (9, 32, 100)), (3, (130, 500, 70)),
                                          (2, (7, 9, 1100)), (300, (1, 40, 90)), (300, (90, 40, 1)),
                                          (200, (3, 193, 17))], ids=str)
@pytest.mark.parametrize("alone", [None, 0, 1])
def test_products_of_many_matrices(monkeypatch: pytest.MonkeyPatch, count: int, sizes: tuple,
                                   alone: int | None) -> None:
    if native.library() is None:
        pytest.skip("there are no compiled CPU kernels here")
    m, inner, n = sizes
    a, b = (integers((1 if alone == k else count, *shape), k).astype(np.float32)
            for k, shape in enumerate(((m, inner), (inner, n))))
    expected, compiled = a @ b, []
    run = native.matrix_products
    monkeypatch.setattr(native, "matrix_products", lambda *args, **flags: (compiled.append(flags), run(*args, **flags)))
    for flags in ((False, False), (True, False), (False, True)):
        left, right = (np.ascontiguousarray(x.swapaxes(-1, -2)) if flag else x for x, flag in zip((a, b), flags))
        assert_equal_at(ops.matmul(alpha.tensor(left), alpha.tensor(right), *flags), expected, name=str(flags))
    assert len(compiled) == 3 * (count * m * n * inner >= WORTHWHILE_BATCH)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_bits_of_many_products_do_not_depend_on_threads(threads: int) -> None:
    if native.library() is None:
        pytest.skip("there are no compiled CPU kernels here")
    a, b = floats((3, 150, 400), 1).astype(np.float32), floats((3, 400, 90), 2).astype(np.float32)
    with config(num_threads=threads):
        y = ops.matmul(alpha.tensor(a), alpha.tensor(b)).numpy()
    with config(num_threads=2):
        assert (ops.matmul(alpha.tensor(a), alpha.tensor(b)).numpy() == y).all()
    np.testing.assert_allclose(y, a.astype(np.float64) @ b, rtol=0, atol=1e-3)


@pytest.mark.parametrize("activation", [None, "relu"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(6, 4), (4,), (2, 3, 4), (0, 4), (1, 4), (200, 300), (64, 3, 200)], ids=str)
def test_linear_equals_its_parts(cpu_kernels: str, shape: tuple, bias: bool, activation: str | None) -> None:
    arrays = [integers(shape, 0), integers((9, shape[-1]), 1), integers((9,), 2)][:2 + bias]
    g = alpha.tensor(integers((*shape[:-1], 9), 3).astype(np.float32))
    fused = [alpha.tensor(a.astype(np.float32), requires_grad=True) for a in arrays]
    parts = [alpha.tensor(a.astype(np.float32), requires_grad=True) for a in arrays]
    y = ops.linear(*fused, activation=activation)
    expected = parts[0] @ parts[1].T
    expected = expected + parts[2] if bias else expected
    expected = expected.relu() if activation else expected
    assert is_contiguous(y)
    assert_equal_at(y.detach(), expected.detach())
    y.backward(g)
    expected.backward(g)
    for name, ours, theirs in zip("xwb", fused, parts):
        assert is_contiguous(ours.grad)
        assert_equal_at(ours.grad, theirs.grad, name=f"gradient of {name}")


@pytest.mark.torch
@given(rows=st.integers(0, 4), inner=st.integers(1, 5), outer=st.integers(1, 4))
def test_linear_matches_torch(rows: int, inner: int, outer: int) -> None:
    functional = pytest.importorskip("torch").nn.functional
    w, b = floats((outer, inner), 1), floats((outer,), 2)
    like_torch(ops.linear, functional.linear, [floats((rows, inner)), w, b])
    like_torch(ops.linear, functional.linear, [floats((2, rows, inner)), w])


@pytest.mark.parametrize("activation", [None, "relu"])
def test_linear_gradients_to_second_order(activation: str | None) -> None:
    for shape in ((5, 3), (3,), (2, 4, 3)):
        inputs = [leaf(shape, 0), leaf((2, 3), 1), leaf((2,), 2)]
        assert gradcheck(lambda x, w, b: ops.linear(x, w, b, activation), inputs, second_order=True)
        assert gradcheck(lambda x, w: ops.linear(x, w, None, activation), inputs[:2], second_order=True)


def test_linear_computes_only_the_gradients_that_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = alpha.tensor(np.ones((5, 3))), alpha.tensor(np.ones((2, 3)), requires_grad=True)
    shapes = []
    run = ops.matmul.impls["cpu"]
    monkeypatch.setitem(ops.matmul.impls, "cpu", lambda a, b, **flags: shapes.append(a.shape) or run(a, b, **flags))
    ops.linear(x, w).sum().backward()
    assert shapes == [(5, 2)] and w.grad.tolist() == [[5.0] * 3] * 2


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4), (8, 64, 48), (0, 4), (4,)])
@pytest.mark.parametrize("activation", [None, "relu"])
def test_gradients_of_linear_in_one_op_have_the_bits_of_several(cpu_kernels: str, shape: tuple,
                                                                activation: str | None) -> None:
    x, w, b = (floats(s).astype("float32") for s in (shape, (40, shape[-1]), (40,)))
    for wanted in ([0], [1], [2], [0, 2], [0, 1, 2]):
        leaves = [alpha.tensor(a, requires_grad=k in wanted) for k, a in enumerate((x, w, b))]
        inputs = [leaves[k] for k in wanted]
        y = ops.linear(*leaves, activation=activation)
        g = alpha.tensor(floats(y.shape, seed=9), "float32")
        several = alpha.grad(y, inputs, g, create_graph=True)
        for one, of_several in zip(alpha.grad(y, inputs, g), several):
            assert np.array_equal(one.numpy(), of_several.numpy()) and is_contiguous(one)


def test_gradients_of_another_linear_are_refused() -> None:
    x, w = alpha.tensor(floats((2, 3))), alpha.tensor(floats((4, 3)))
    with refused(ShapeError, "linear_grad: g is not the gradient of linear(x, w)"):
        registry["linear_grad"](alpha.tensor(floats((2, 3))), x, w, for_x=True, for_w=True, for_b=True)


def test_shapes_that_do_not_fit_are_refused() -> None:
    def ones(*shape: int) -> alpha.Tensor:
        return alpha.tensor(np.ones(shape))
    with refused(ShapeError, "matmul: a has 3 columns, b has 2 rows", "a: (2, 3); b: (2, 3)", "b.transpose()"):
        ones(2, 3) @ ones(2, 3)
    with refused(ShapeError, "matmul: a has 2 columns, b has 4 rows", "a: (2, 3), transposed; b: (5, 4), transposed"):
        ops.matmul(ones(2, 3), ones(5, 4), True, True)
    with refused(ShapeError, "matmul: the shapes (2,) and (3,) do not broadcast"):
        ones(2, 3, 4) @ ones(3, 4, 5)
    with refused(ShapeError, "matmul: an operand has no axis"):
        ones(3) @ ones()
    with refused(ShapeError, "matmul: an operand of one axis cannot be transposed"):
        ops.matmul(ones(3), ones(3), True)
    with refused(ShapeError, "linear: x has 4 features, w expects 3", "in_features of the layer 4",
                 "w: (2, 3) (out, in)"):
        ops.linear(ones(5, 4), ones(2, 3))
    with refused(ShapeError, "linear: x has 2 axes and w 1"):
        ops.linear(ones(5, 3), ones(3))
    with refused(ShapeError, "linear: b has shape (3,), w has 2 outputs"):
        ops.linear(ones(5, 3), ones(2, 3), ones(3))
    with refused(ShapeError, 'linear: activation is "gelu" (str), None or "relu" is needed'):
        ops.linear(ones(5, 3), ones(2, 3), activation="gelu")
    with refused(DTypeError, "linear: x has dtype int64"):
        ops.linear(alpha.tensor([[1, 2]]), alpha.tensor([[1, 2]]))
