"""Pooling against brute force and torch, its gradients to second order, and what it refuses."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import alpha
from alpha.cpu import pool as cpu_pool
from alpha.errors import DTypeError, ShapeError
from alpha.gradcheck import adjoint_check, assert_equal_at
from alpha.ops.pool import (
    adaptive_avg_pool2d,
    adaptive_avg_pool2d_backward,
    adaptive_max_pool2d,
    adaptive_windows,
    avg_pool2d,
    avg_pool2d_backward,
    max_pool2d,
    max_pool2d_backward,
    pool_gather,
    pool_scatter,
)
from alpha.ops.pool.windows import max_unpool2d

# x shape NHWC, kernel_size, stride, padding
WINDOWS = [((2, 8, 8, 5), (2, 2), (2, 2), (0, 0)), ((2, 7, 9, 3), (3, 3), (2, 2), (1, 1)),
           ((1, 6, 5, 17), (3, 3), (1, 1), (1, 1)), ((2, 5, 5, 4), (2, 3), (1, 2), (1, 0)),
           ((3, 9, 8, 2), (2, 2), (3, 5), (0, 1)), ((2, 1, 1, 64), (1, 1), (1, 1), (0, 0)),
           ((2, 2, 3, 33), (4, 5), (2, 1), (2, 2)), ((2, 4, 4, 16), (4, 4), (4, 4), (0, 0))]


def integers(shape, dtype="float64"):
    return np.random.randint(-3, 4, shape).astype(dtype)


def windows(x, kernel_size, stride, padding):
    """Yields (oh, ow, rows, columns) of every window, trimmed to x: the independent oracle."""
    outs = [(i + 2 * p - k) // s + 1 for i, k, s, p in zip(x.shape[1:3], kernel_size, stride, padding)]
    for oh in range(outs[0]):
        for ow in range(outs[1]):
            ranges = [range(max(0, o * s - p), min(i, o * s - p + k))
                      for o, i, k, s, p in zip((oh, ow), x.shape[1:3], kernel_size, stride, padding)]
            yield oh, ow, *ranges


def brute_max(x, kernel_size, stride, padding):
    """Returns (y, index) with Python's own loops: the first of equal elements, row by row."""
    got = {}
    for oh, ow, rows, cols in windows(x, kernel_size, stride, padding):
        for n in range(x.shape[0]):
            for c in range(x.shape[3]):
                best = max((x[n, h, w, c], -(h * x.shape[2] + w)) for h in rows for w in cols)
                got[n, oh, ow, c] = best[0], -best[1]
    shape = tuple(np.max(list(got), axis=0) + 1)
    y, index = np.empty(shape, x.dtype), np.empty(shape, "int32")
    for at, (value, position) in got.items():
        y[at], index[at] = value, position
    return y, index


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("shape, kernel_size, stride, padding", WINDOWS)
def test_max_pool_takes_the_first_maximum(shape, kernel_size, stride, padding, dtype, cpu_kernels):
    x = integers(shape, dtype)
    y, index = max_pool2d.full(alpha.tensor(x), kernel_size, stride, padding)
    expected_y, expected_index = brute_max(x, kernel_size, stride, padding)
    assert (y.dtype, index.dtype) == (dtype, "int32")
    assert_equal_at(y.numpy(), expected_y)
    assert_equal_at(index.numpy(), expected_index)


def test_max_pool_of_nan_and_of_infinities(cpu_kernels):
    x = np.full((1, 4, 4, 19), -np.inf, "float32")
    x[0, 0, 1] = x[0, 2, 2] = np.nan
    x[0, 2, 3] = x[0, 3, 0] = np.inf
    y, index = max_pool2d.full(alpha.tensor(x), 2)
    expected = np.array([[np.nan, -np.inf], [np.inf, np.nan]], "float32")
    assert_equal_at(y.numpy(), np.broadcast_to(expected[None, :, :, None], y.shape))
    assert_equal_at(index.numpy(), np.broadcast_to(np.array([[1, 2], [12, 10]])[None, :, :, None], y.shape))
    y, index = adaptive_max_pool2d.full(alpha.tensor(x), 2)
    assert_equal_at(y.numpy(), np.broadcast_to(expected[None, :, :, None], y.shape))


@pytest.mark.parametrize("count_include_pad", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("shape, kernel_size, stride, padding", WINDOWS)
def test_avg_pool_is_the_mean_of_each_window(shape, kernel_size, stride, padding, dtype, count_include_pad,
                                             cpu_kernels):
    x = integers(shape, dtype)
    got = avg_pool2d(alpha.tensor(x), kernel_size, stride, padding, count_include_pad=count_include_pad)
    expected = np.zeros(got.shape)
    for oh, ow, rows, cols in windows(x, kernel_size, stride, padding):
        count = kernel_size[0] * kernel_size[1] if count_include_pad else len(rows) * len(cols)
        expected[:, oh, ow] = x[:, rows][:, :, cols].sum(axis=(1, 2), dtype="float64") / count
    assert got.dtype == dtype
    assert_equal_at(got.numpy(), expected.astype(dtype), rtol=2 * np.finfo(dtype).eps)


@pytest.mark.parametrize("shape, kernel_size, stride, padding", WINDOWS)
def test_gradients_are_adjoint(shape, kernel_size, stride, padding, cpu_kernels):
    x = alpha.tensor(integers(shape, "float32"))
    y, index = max_pool2d.full(x, kernel_size, stride, padding)
    g = alpha.tensor(integers(y.shape, "float32"))
    adjoint_check(lambda t: pool_gather(t, index), lambda t: pool_scatter(t, index, hw=shape[1:3]), x, g)
    adjoint_check(lambda t: pool_gather(t, index),
                  lambda t: max_pool2d_backward(t, index, shape[1:3], kernel_size, stride, padding), x, g)
    count = kernel_size[0] * kernel_size[1]             # a multiple of the divisor keeps the means exact
    x, g = (alpha.tensor(integers(s, "float32") * count) for s in (shape, y.shape))
    adjoint_check(lambda t: avg_pool2d(t, kernel_size, stride, padding),
                  lambda t: avg_pool2d_backward(t, shape[1:3], kernel_size, stride, padding), x, g)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("shape, kernel_size, stride, padding", WINDOWS)
def test_scatter_and_gather_by_index(shape, kernel_size, stride, padding, dtype, cpu_kernels):
    x = integers(shape, dtype)
    y, index = max_pool2d.full(alpha.tensor(x), kernel_size, stride, padding)
    assert_equal_at(pool_gather(alpha.tensor(x), index).numpy(), y.numpy())
    g = integers(y.shape, dtype)
    expected = np.zeros(shape)
    for (n, oh, ow, c), position in np.ndenumerate(index.numpy()):
        expected[n, position // shape[2], position % shape[2], c] += g[n, oh, ow, c]
    assert_equal_at(pool_scatter(alpha.tensor(g), index, hw=shape[1:3]).numpy(), expected)
    got = max_pool2d_backward(alpha.tensor(g), index, shape[1:3], kernel_size, stride, padding)
    assert got.dtype == dtype
    assert_equal_at(got.numpy(), expected)
    assert_equal_at(max_unpool2d(alpha.tensor(g), alpha.tensor(index.numpy(), "int64"), output_hw=shape[1:3]).numpy(),
                    expected)


@pytest.mark.parametrize("hw, output_size", [
    ((8, 8), 1), ((4, 6), 2), ((7, 5), (3, 2)), ((4, 6), (4, 6)), ((2, 3), (5, 4))])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_adaptive_pools(hw, output_size, dtype, cpu_kernels):
    x = integers((2, *hw, 9), dtype)
    mean, (best, index) = (f(alpha.tensor(x), output_size) for f in (adaptive_avg_pool2d, adaptive_max_pool2d.full))
    assert (mean.dtype, best.dtype, index.dtype) == (dtype, dtype, "int32")
    oh, ow = mean.shape[1:3]
    for h in range(oh):
        for w in range(ow):
            rows = slice(h * hw[0] // oh, -(-(h + 1) * hw[0] // oh))
            cols = slice(w * hw[1] // ow, -(-(w + 1) * hw[1] // ow))
            window = x[:, rows, cols].astype("float64")
            assert_equal_at(mean.numpy()[:, h, w], window.mean(axis=(1, 2)), rtol=4 * np.finfo(dtype).eps,
                            atol=4 * np.finfo(dtype).eps)
            assert_equal_at(best.numpy()[:, h, w], window.max(axis=(1, 2)))
    flat = np.arange(hw[0] * hw[1]).reshape(1, *hw, 1)
    read = [np.broadcast_to(flat, x.shape)[n][np.unravel_index(index.numpy()[n], hw) + (np.arange(9),)] for n in (0, 1)]
    assert_equal_at(np.stack(read), index.numpy())
    assert_equal_at(pool_gather(alpha.tensor(x), index).numpy(), best.numpy())


def test_adaptive_windows_cover_the_input_and_overlap_where_they_must():
    assert adaptive_windows(6, 3) == [(0, 2), (2, 4), (4, 6)]
    assert adaptive_windows(7, 3) == [(0, 3), (2, 5), (4, 7)]
    assert adaptive_windows(2, 4) == [(0, 1), (0, 1), (1, 2), (1, 2)]


# ---- gradients -------------------------------------------------------------------------------------------------------


def leaf(shape):
    """Distinct elements, far apart: no maximum changes within a finite difference."""
    return alpha.tensor(np.random.permutation(np.arange(np.prod(shape)) / 7).reshape(shape), requires_grad=True)


@pytest.mark.parametrize("pool", [
    lambda x: max_pool2d(x, 2), lambda x: max_pool2d(x, 3, 2, 1), lambda x: max_pool2d(x, (3, 2), (1, 2), (1, 0)),
    lambda x: adaptive_max_pool2d(x, (2, 3)), lambda x: adaptive_avg_pool2d(x, (2, 3)),
    lambda x: adaptive_avg_pool2d(x, (5, 1)), lambda x: adaptive_avg_pool2d(x, 1),
    lambda x: avg_pool2d(x, 3, 2, 1), lambda x: avg_pool2d(x, 3, 2, 1, count_include_pad=False)])
def test_gradients_to_second_order(pool):
    assert alpha.gradcheck(lambda x: pool(x) * pool(x), (leaf((2, 5, 7, 3)),), second_order=True)


def test_gradients_of_the_gradients_ops_to_second_order():
    index = max_pool2d.full(leaf((2, 5, 7, 3)), 3, 2, 1)[1]
    g = leaf(index.shape)
    for f, x in ((lambda g: max_unpool2d(g, index, output_hw=(5, 7)), g),
                 (lambda g: max_pool2d_backward(g, index, (5, 7), 3, 2, 1), g),
                 (lambda x: pool_gather(x, index), leaf((2, 5, 7, 3))),
                 (lambda g: avg_pool2d_backward(g, (5, 7), 3, 2, 1), g),
                 (lambda g: adaptive_avg_pool2d_backward(g, hw=(5, 7)), g)):
        assert alpha.gradcheck(lambda t, f=f: f(t) * f(t), (x,), second_order=True)


# ---- torch as oracle -------------------------------------------------------------------------------------------------


@st.composite
def pools(draw):
    """Any pool that has an output: (x shape NHWC, kernel_size, stride, padding)."""
    axes = []
    for _ in range(2):
        k = draw(st.integers(1, 5))
        p = draw(st.integers(0, k // 2))
        axes.append((draw(st.integers(max(1, k - 2 * p), 11)), k, draw(st.integers(1, 4)), p))
    i, k, s, p = zip(*axes)
    return (draw(st.integers(1, 3)), *i, draw(st.sampled_from([1, 3, 16, 21]))), k, s, p


def nhwc(t):
    return t.detach().permute(0, 2, 3, 1).numpy()


def torch_gradient(torch, f, x, g=None):
    """Returns (outputs of f, gradient of x) as NHWC arrays."""
    t = torch.tensor(x).permute(0, 3, 1, 2).requires_grad_()
    ys = f(t)
    y = ys[0] if isinstance(ys, tuple) else ys
    y.backward(torch.ones_like(y) if g is None else torch.tensor(g).permute(0, 3, 1, 2))
    return [nhwc(o) for o in (ys if isinstance(ys, tuple) else (ys,))], nhwc(t.grad)


@pytest.mark.torch
@settings(max_examples=60)
@given(drawn=pools(), dtype=st.sampled_from(["float32", "float64"]), count_include_pad=st.booleans())
def test_pools_equal_torch(drawn, dtype, count_include_pad):
    torch = pytest.importorskip("torch")
    shape, k, s, p = drawn
    x = integers(shape, dtype)
    a = alpha.tensor(x, requires_grad=True)
    y, index = max_pool2d.full(a, k, s, p)
    g = integers(y.shape, dtype)
    outs, dx = torch_gradient(torch, lambda t: torch.nn.functional.max_pool2d(t, k, s, p, return_indices=True), x, g)
    y.backward(alpha.tensor(g))
    for got, expected in zip((y.detach().numpy(), index.numpy(), a.grad.numpy()), (*outs, dx), strict=True):
        assert_equal_at(got, expected, name=f"max_pool2d {drawn}")
    a = alpha.tensor(x, requires_grad=True)
    y = avg_pool2d(a, k, s, p, count_include_pad=count_include_pad)
    outs, dx = torch_gradient(
        torch, lambda t: torch.nn.functional.avg_pool2d(t, k, s, p, count_include_pad=count_include_pad), x, g)
    y.backward(alpha.tensor(g))
    tolerance = {"rtol": 8 * np.finfo(dtype).eps, "atol": 16 * np.finfo(dtype).eps}
    assert_equal_at(y.detach().numpy(), outs[0], name=f"avg_pool2d {drawn}", **tolerance)
    assert_equal_at(a.grad.numpy(), dx, name=f"gradient of avg_pool2d {drawn}", **tolerance)


@pytest.mark.torch
@settings(max_examples=60)
@given(hw=st.tuples(st.integers(1, 9), st.integers(1, 9)), size=st.tuples(st.integers(1, 6), st.integers(1, 6)))
def test_adaptive_pools_equal_torch(hw, size):
    torch = pytest.importorskip("torch")
    x = integers((2, *hw, 5))
    for f, peer in ((adaptive_avg_pool2d, torch.nn.functional.adaptive_avg_pool2d),
                    (adaptive_max_pool2d, torch.nn.functional.adaptive_max_pool2d)):
        a = alpha.tensor(x, requires_grad=True)
        y = f(a, size)
        g = integers(y.shape)
        outs, dx = torch_gradient(torch, partial(peer, output_size=size), x, g)
        y.backward(alpha.tensor(g))
        assert_equal_at(y.detach().numpy(), outs[0], rtol=1e-14, atol=1e-14, name=f"{f} {hw} {size}")
        assert_equal_at(a.grad.numpy(), dx, rtol=1e-14, atol=1e-14, name=f"gradient of {f} {hw} {size}")


# ---- errors ----------------------------------------------------------------------------------------------------------

X = alpha.tensor(np.zeros((2, 8, 8, 3)))
Y, INDEX = max_pool2d.full(X, 2)


@pytest.mark.parametrize("call, parts", [
    (lambda: max_pool2d(X, 3, 2, 2), ["max_pool2d: padding (2, 2) is not between 0 and half of kernel_size (3, 3)"]),
    (lambda: avg_pool2d(X, 2, 2, (0, -1)), ["avg_pool2d: padding is (0, -1), an int or a pair of ints of at least 0"]),
    (lambda: max_pool2d(X, 0), ["max_pool2d: kernel_size is 0, an int or a pair of ints of at least 1 is needed"]),
    (lambda: avg_pool2d(X, 2, (1, 0)), ["avg_pool2d: stride is (1, 0), an int or a pair of ints of at least 1"]),
    (lambda: avg_pool2d(X, 9), ["avg_pool2d: a window of 9 does not fit into 8 + 2*0 inputs along H", "(2, 8, 8, 3)"]),
    (lambda: max_pool2d(alpha.tensor(np.zeros((2, 1, 28, 28))), 2), ["a window of 2 does not fit", "if x is NCHW"]),
    (lambda: max_pool2d(alpha.tensor(np.zeros((8, 8, 3))), 2), ["max_pool2d: x has shape (8, 8, 3)", "leading axis"]),
    (lambda: max_pool2d(X, 2.5), ["max_pool2d: kernel_size is 2.5, an int or a pair"]),
    (lambda: avg_pool2d(X, 2, "2"), ['avg_pool2d: stride is "2" (str), an int or a pair']),
    (lambda: avg_pool2d_backward(X, (20, 20), 2), ["avg_pool2d_backward: g has shape (2, 8, 8, 3)", "(2, 10, 10, 3)"]),
    (lambda: max_pool2d_backward(Y, INDEX, (9, 8), 2, 1), ["max_pool2d_backward: g has shape (2, 4, 4, 3), this geom"]),
    (lambda: max_pool2d_backward(X, INDEX, (8, 8), 2), ["max_pool2d_backward: index has shape (2, 4, 4, 3)"]),
    (lambda: adaptive_avg_pool2d(X, 0), ["adaptive_avg_pool2d: output_size is 0, an int or a pair of ints"]),
    (lambda: adaptive_max_pool2d(X, (1, -1)), ["adaptive_max_pool2d: output_size is (1, -1)"]),
    (lambda: adaptive_max_pool2d(X, None), ["adaptive_max_pool2d: output_size is None, an int or a pair"]),
    (lambda: adaptive_avg_pool2d(alpha.tensor(np.zeros((8, 8))), 1), ["adaptive_avg_pool2d: x has shape (8, 8)"]),
    (lambda: adaptive_avg_pool2d_backward(alpha.tensor(np.zeros(8)), hw=(1, 1)), ["g has shape (8,), 4 non-empty"]),
    (lambda: max_unpool2d(Y, INDEX, output_hw=(6, 9)),
     ["max_unpool2d: index ranges from 0 to 54", "positions 0 to 53"]),
    (lambda: max_unpool2d(Y, alpha.tensor(INDEX.numpy() - 1), output_hw=8),
     ["max_unpool2d: index ranges from -1 to 53"]),
    (lambda: max_unpool2d(X, INDEX, output_hw=8),
     ["max_unpool2d: index has shape (2, 4, 4, 3), (2, 8, 8, 3) is needed"]),
    (lambda: pool_scatter(X, INDEX, hw=(8, 8)), ["pool_scatter: index has shape (2, 4, 4, 3), (2, 8, 8, 3)"]),
    (lambda: pool_gather(alpha.tensor(np.zeros((1, 8, 8, 3))), INDEX), ["pool_gather: index has shape (2, 4, 4, 3)"]),
])
def test_errors(call, parts):
    with pytest.raises(ShapeError) as error:
        call()
    assert all(part in str(error.value) for part in parts), str(error.value)
    assert "\nhelp: " in str(error.value)


def test_an_index_of_floats_is_refused():
    with pytest.raises(DTypeError) as error:
        max_unpool2d(Y, Y, output_hw=8)
    assert "max_unpool2d: index has dtype float64, int32 or int64 is needed" in str(error.value)
    assert "\nhelp: pass the index of max_pool2d.full" in str(error.value)


def test_no_pool_reads_padding(monkeypatch):
    """Every rectangle that is read lies inside of x, and the sum of their sizes is that of the trimmed windows."""
    shape, kernel_size, stride, padding = WINDOWS[1]
    read = []
    taps = cpu_pool._taps

    def counted(h, w):
        for out, inp in taps(h, w):
            read.append(len(range(h.i)[inp[1]]) * len(range(w.i)[inp[2]]))
            assert len(range(h.i)[inp[1]]) == len(range(h.o)[out[1]])
            yield out, inp

    monkeypatch.setattr(cpu_pool, "_taps", counted)
    x = integers(shape)
    avg_pool2d(alpha.tensor(x), kernel_size, stride, padding)
    assert sum(read) == sum(len(rows) * len(cols) for _, _, rows, cols in windows(x, kernel_size, stride, padding))
