"""Compiled softmax, layer and group norm, sums of rows and extremes against NumPy in float64, over drawn shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import alpha
from alpha import ops
from alpha.build import compilers
from alpha.core.config import config
from alpha.cpu import native
from alpha.gradcheck import assert_equal_at
from tests.op_checks import floats

pytestmark = [pytest.mark.skipif(not compilers(), reason="there is no C++ compiler here"),
              pytest.mark.same_without_kernels("it tests the compiled kernels, which it turns on")]
LENGTHS = st.sampled_from([1, 2, 7, 15, 16, 17, 33, 96, 130, 300])


@pytest.fixture(autouse=True)
def kernels() -> Any:
    with config(cpu_kernels=True):
        assert native.library() is not None
        yield


def agree(f: Callable[..., alpha.Tensor], shapes: Sequence[tuple[int, ...]], second_order: bool = False,
          shift: float = 0.0) -> None:
    """Values and gradients of f in float32, compiled, are those of float64, which NumPy computes."""
    found = []
    for dtype in ("float32", "float64"):
        xs = [alpha.tensor(np.asarray(floats(s, k, -3, 3) + shift, np.float32), dtype, requires_grad=True)
              for k, s in enumerate(shapes)]
        y = f(*xs)
        g = alpha.tensor(np.asarray(floats(y.shape, 9), np.float32), dtype)
        grads = alpha.grad(y, xs, g, create_graph=second_order)
        results = [y, *grads]
        if second_order:
            results += alpha.grad(sum([(v * v).sum() for v in grads[1:]], (grads[0] * grads[0]).sum()), xs)
        found.append([r.detach().numpy() for r in results if r is not None])
    for k, (narrow, wide) in enumerate(zip(*found)):
        assert narrow.dtype == np.float32 and narrow.flags.c_contiguous
        scale = max(1.0, float(np.abs(wide).max(initial=0)))
        assert_equal_at(narrow, wide, rtol=2e-4, atol=1e-5 * scale, name=f"result {k}")


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@settings(max_examples=15)
@given(rows=st.integers(1, 40), n=LENGTHS, inner=st.sampled_from([1, 1, 3, 20]))
def test_softmax(name: str, rows: int, n: int, inner: int) -> None:
    agree(lambda x: getattr(ops, name)(x, axis=1), [(rows, n, inner)[:3 if inner > 1 else 2]])


@settings(max_examples=15)
@given(rows=st.integers(1, 300), n=LENGTHS, axes=st.integers(1, 2), affine=st.booleans())
def test_layer_norm(rows: int, n: int, axes: int, affine: bool) -> None:
    shape = (rows, 3, n)
    agree(lambda x, *p: ops.layer_norm(x, *p, normalized_ndim=axes, eps=1e-2),
          [shape, *[shape[-axes:]] * (2 * affine)])


@settings(max_examples=15)
@given(n=st.integers(1, 4), pixels=st.sampled_from([1, 5, 64, 700]), groups=st.sampled_from([1, 2, 3, 8]),
       width=st.sampled_from([1, 3, 16, 70]), affine=st.booleans())
def test_group_norm(n: int, pixels: int, groups: int, width: int, affine: bool) -> None:
    channels = groups * width
    agree(lambda x, *p: ops.group_norm(x, *p, groups=groups, eps=1e-2),
          [(n, pixels, channels), *[(channels,)] * (2 * affine)])


def test_second_order() -> None:
    agree(lambda x: ops.softmax(x), [(5, 37)], second_order=True)
    agree(lambda x: ops.log_softmax(x), [(5, 37)], second_order=True)
    agree(lambda x, a, b: ops.layer_norm(x, a, b, eps=0.1), [(5, 37), (37,), (37,)], second_order=True)
    agree(lambda x, a, b: ops.group_norm(x, a, b, groups=2, eps=0.1), [(2, 9, 34), (34,), (34,)], second_order=True)


@pytest.mark.parametrize("name", ["max", "min", "sum", "mean"])
@settings(max_examples=15)
@given(outer=st.sampled_from([1, 3, 300]), n=LENGTHS, inner=st.sampled_from([1, 1, 3, 17, 40]))
def test_reductions(name: str, outer: int, n: int, inner: int) -> None:
    x = np.asarray(floats((outer, n, inner), 1), np.float32)
    for axis in (1, (0, 1), (0, 2), None):
        got = getattr(alpha.tensor(x), name)(axis).numpy()
        assert_equal_at(got, getattr(x.astype(np.float64), name)(axis), rtol=1e-6, atol=1e-4, name=f"{name} {axis}")


def test_a_large_mean_costs_no_digits() -> None:
    """Variances are of distances from the mean. The mean itself is rounded to float32."""
    for f in (lambda x: ops.layer_norm(x, eps=1e-5), lambda x: ops.group_norm(x, groups=4, eps=1e-5)):
        x = np.round(floats((3, 50, 64), 1) * 64).astype(np.float32) / 64
        assert_equal_at(f(alpha.tensor(x + 4096)), f(alpha.tensor(x)).numpy(), rtol=1e-4, atol=4e-4)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_nan_or_an_infinity_stays_in_its_row_or_sample(bad: float) -> None:
    x = np.asarray(floats((4, 6, 40), 1), np.float32)
    x[1, 2, 3] = bad
    layer, group, soft = [f(alpha.tensor(x)).numpy() for f in (
        ops.layer_norm, lambda x: ops.group_norm(x, groups=2), ops.softmax)]
    assert np.isnan(layer[1, 2]).all() and np.isnan(layer).sum() == 40
    assert np.isnan(group[1, :, :20]).all() and np.isnan(group).sum() == 120
    assert np.isnan(soft).sum() == (1 if bad == -np.inf else 40) * (bad != -np.inf)
    for name in ("max", "min"):
        assert_equal_at(getattr(alpha.tensor(x), name)(2), getattr(x, name)(2))
        assert_equal_at(getattr(alpha.tensor(x), name)(1), getattr(x, name)(1))
    y = np.resize(x, (200, 6, 40))
    assert_equal_at(alpha.tensor(y).max(2), y.max(2))
    assert_equal_at(alpha.tensor(y).min(0), y.min(0))


def test_threads_change_no_bit() -> None:
    x = alpha.tensor(np.asarray(floats((8, 300, 96), 1), np.float32), requires_grad=True)
    gamma = alpha.tensor(np.asarray(floats((96,), 3), np.float32), requires_grad=True)
    found = []
    for threads in (1, 2, 3):
        with config(num_threads=threads):
            results = []
            for f in (lambda x: ops.layer_norm(x, gamma), lambda x: ops.group_norm(x, gamma, groups=4),
                      lambda x: ops.softmax(x * gamma), lambda x: (x * gamma).sum(-1), lambda x: (x * gamma).max(1)):
                y = f(x)
                results += [y, *alpha.grad((y * y).sum(), [x, gamma])]
            found.append([t.detach().numpy().tobytes() for t in results])
    assert found[0] == found[1] == found[2]
