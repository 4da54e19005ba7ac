"""Values whose squares float32 does not hold, -inf beside padding, and arguments at the edge of their range."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from typing import Any

import numpy as np
import pytest

import alpha
import alpha.nn.functional as F
from alpha import nn, ops
from alpha.errors import AlphaError
from alpha.ops.pool import adaptive_max_pool2d, max_pool2d, max_pool2d_backward

NORMS: dict[str, Callable[..., Any]] = {
    "layer": lambda x, w: F.layer_norm(x, (8,), w), "rms": lambda x, w: F.rms_norm(x, (8,), w, 1e-5),
    "group": lambda x, w: F.group_norm(x, 2, w), "instance": lambda x, w: F.instance_norm(x, weight=w),
    "batch": lambda x, w: F.batch_norm(x, weight=w, training=True),
    "std": lambda x, w: ops.std(x, -1, keepdims=True) + w,
}


@pytest.mark.parametrize("scale", [1e19, 1e30, 1e37])
@pytest.mark.parametrize("name", NORMS)
def test_norms_of_huge_values_are_those_of_float64(name: str, scale: float, cpu_kernels: Any) -> None:
    rng = np.random.default_rng(0)
    x, w, g = (rng.standard_normal(shape).astype(np.float32) for shape in ((3, 4, 5, 8), (8,), (3, 4, 5, 8)))
    x *= np.float32(scale)
    found = []
    for dtype in ("float32", "float64"):
        leaves = [alpha.tensor(v.astype(dtype), requires_grad=True) for v in (x, w)]
        y = NORMS[name](*leaves)
        y.backward(alpha.tensor(g.astype(dtype)))
        found.append([t.numpy().astype(np.float64) for t in (y.detach(), *[leaf.grad for leaf in leaves])])
    for got, wanted in zip(*found):
        assert np.abs(got - wanted).max() <= 1e-6 * np.abs(wanted).max()


@pytest.mark.parametrize("norm", [lambda t, w: F.instance_norm(t, weight=w),
                                  lambda t, w: F.batch_norm(t, weight=w, training=True)])
def test_norms_of_equal_rows_have_no_gradient(norm: Callable[..., Any], cpu_kernels: Any) -> None:
    """A rest of rounding would come back a hundred thousand times as large from two such norms."""
    rng = np.random.default_rng(0)
    x, g = (np.broadcast_to(rng.standard_normal(8).astype(np.float32), (2, 4, 4, 8)).copy() for _ in range(2))
    leaf = alpha.tensor(x, requires_grad=True)
    norm(leaf, alpha.tensor(rng.standard_normal(8).astype(np.float32))).backward(alpha.tensor(g))
    assert not leaf.grad.numpy().any()


def test_std_of_tiny_values_is_not_zero() -> None:
    x = np.random.default_rng(1).standard_normal((3, 7)).astype(np.float32)
    tiny = x * np.float32(2.0**-90)
    assert np.allclose(alpha.tensor(tiny).std(1).numpy(), x.std(1, ddof=1) * 2.0**-90, rtol=1e-6)
    assert alpha.zeros((3, 4)).std(1).tolist() == [0, 0, 0]


@pytest.mark.parametrize("axis", [None, 0, 1, -1, (0, 1), (1, 2)])
def test_var_and_std_of_huge_values_along_every_axis(axis: Any, cpu_kernels: Any) -> None:
    for shape in ((2, 300, 5), (3, 4, 1), (2, 1, 700)):
        x = np.random.default_rng(1).standard_normal(shape).astype(np.float32) * np.float32(1e19)
        t, exact = alpha.tensor(x), x.astype(np.float64)
        assert np.allclose(t.std(axis, correction=0).numpy(), exact.std(axis), rtol=1e-5)
        held = (x / np.float32(16)).astype(np.float64)      # float32 holds this variance
        assert np.allclose(alpha.tensor(x / 16).var(axis).numpy(), held.var(axis), rtol=1e-5)


# ---- windows without a number that is larger than padding ------------------------------------------------------------


def pooled_by_hand(x: np.ndarray, kernel: int, stride: int, padding: int, dilation: int, shape: tuple[int, ...]
                   ) -> tuple[np.ndarray, np.ndarray]:
    """Returns the first largest element inside of each window, and its position, element by element."""
    y, index = np.empty(shape, x.dtype), np.empty(shape, np.int64)
    for n, oh, ow, c in np.ndindex(*shape):
        places = [(h, w) for h in range(oh * stride - padding, oh * stride - padding + kernel * dilation, dilation)
                  for w in range(ow * stride - padding, ow * stride - padding + kernel * dilation, dilation)
                  if 0 <= h < x.shape[1] and 0 <= w < x.shape[2]]
        h, w = max(places, key=lambda p: x[n, p[0], p[1], c])
        y[n, oh, ow, c], index[n, oh, ow, c] = x[n, h, w, c], h * x.shape[2] + w
    return y, index


@pytest.mark.parametrize("kernel, stride, padding, dilation, ceil_mode", [
    (2, 2, 1, 1, False), (2, 2, 1, 1, True), (3, 2, 1, 1, True), (2, 2, 1, 2, False), (3, 2, 1, 2, True),
    (2, 3, 0, 3, True)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_windows_of_infinity_name_an_element_of_their_own(
        kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool, dtype: str, cpu_kernels: Any) -> None:
    x = np.random.default_rng(3).choice([-inf, -inf, -inf, -2.0, 1.0], (2, 7, 6, 3)).astype(dtype)
    x[0, :, :, 0] = -inf
    leaf = alpha.tensor(x, requires_grad=True)
    y, index = F.max_pool2d(leaf, kernel, stride, padding, dilation, ceil_mode, return_indices=True)
    wanted, places = pooled_by_hand(x, kernel, stride, padding, dilation, y.shape)
    assert np.array_equal(y.detach().numpy(), wanted) and np.array_equal(index.numpy(), places)
    y.sum().backward()
    counts = np.zeros((2, 42, 3))
    np.add.at(counts, (np.arange(2)[:, None, None, None], places, np.arange(3)), 1)
    assert np.array_equal(leaf.grad.numpy().reshape(2, 42, 3), counts)


def test_negative_windows_see_no_padding() -> None:
    x = alpha.tensor(np.full((1, 3, 3, 1), -5.0, np.float32))
    assert F.max_pool2d(x, 2, 2, 1, 1, True).max().item() == -5.0


def test_the_last_nan_of_a_window_has_its_gradient() -> None:
    x = np.zeros((1, 2, 2, 1), np.float32)
    x[0, 0, 1], x[0, 1, 0] = nan, nan
    for _, index in (max_pool2d.full(alpha.tensor(x), kernel_size=2),
                     adaptive_max_pool2d.full(alpha.tensor(x), output_size=1)):
        assert index.item() == 2


@pytest.mark.parametrize("places, text", [([[0, 2], [8, 16]], "index 16 at position 3 is outside [0, 16)"),
                                          ([[-1, 2], [8, 10]], "index -1 at position 0 is outside [0, 16)"),
                                          ([[0, 2], [8, 4]], "index 4 at position 3 is outside of its window")])
def test_an_index_outside_of_its_window_is_refused(places: Any, text: str) -> None:
    index = alpha.tensor(np.array(places, np.int32).reshape(1, 2, 2, 1))
    with pytest.raises(AlphaError) as error:
        max_pool2d_backward(alpha.ones((1, 2, 2, 1)), index, (4, 4), 2)
    assert text in str(error.value)


# ---- other arguments at the edge -------------------------------------------------------------------------------------


@pytest.mark.torch
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic", "area"])
@pytest.mark.parametrize("factor", [1.0, 1.2, 2.05, 2.2, (1.1, 2.1), 0.6])
def test_interpolate_by_a_factor_that_leaves_or_doubles_the_length(mode: str, factor: Any) -> None:
    torch = pytest.importorskip("torch")
    for n in (1, 3, 4):
        x = np.random.default_rng(n).standard_normal((2, n, n + 1, 3)).astype(np.float32)
        t = torch.from_numpy(x.transpose(0, 3, 1, 2).copy())
        if min(np.floor(np.array((n, n + 1)) * factor)) < 1:
            continue
        wanted = torch.nn.functional.interpolate(t, scale_factor=factor, mode=mode).numpy().transpose(0, 2, 3, 1)
        got = F.interpolate(alpha.tensor(x), scale_factor=factor, mode=mode).numpy()
        assert got.shape == wanted.shape and np.allclose(got, wanted, atol=1e-5)


def test_the_share_of_a_quantile_has_a_gradient() -> None:
    x, q = alpha.tensor([1.0, 4.0, 9.0], requires_grad=True), alpha.tensor([0.25, 0.75], requires_grad=True)
    y = ops.quantile(x, q)
    assert y.tolist() == ops.quantile(x.detach(), [0.25, 0.75]).tolist() == [2.5, 6.5]
    y.sum().backward()
    assert q.grad.tolist() == [6.0, 10.0] and x.grad.tolist() == [0.5, 1.0, 0.5]


def test_no_difference_is_a_copy() -> None:
    x = alpha.tensor([1.0, 2.0])
    y = ops.diff(x, 0, prepend=x)
    y += 1
    assert x.tolist() == [1, 2] and y.tolist() == [2, 3]


def test_prelu_of_a_scalar_is_a_scalar() -> None:
    x = alpha.tensor(-2.0, requires_grad=True)
    layer = nn.PReLU()
    y = layer(x)
    y.backward()
    assert y.shape == () and y.item() == -0.5 and x.grad.item() == 0.25 and layer.weight.grad.tolist() == [-2.0]


@pytest.mark.parametrize("call, text", [
    (lambda: F.hardtanh(ops.ones((2,)), 1, -1), "hardtanh: min_val is 1.0, above max_val, which is -1.0"),
    (lambda: nn.Hardtanh(2, 1), "Hardtanh: min_val is 2.0, above max_val"),
    (lambda: alpha.isclose(ops.ones((2,)), ops.ones((2,)), rtol=-1e-5), "isclose: rtol is -1e-05"),
    (lambda: alpha.allclose(ops.ones((2,)), ops.ones((2,)), atol=-1), "allclose: atol is -1"),
    (lambda: F.embedding(alpha.tensor([0]), ops.ones((2, 2, 2))), "embedding: weight has 3 axes, 2 are needed"),
    (lambda: F.embedding(alpha.tensor([0]), ops.ones((2, 2)), 2), "embedding: padding_idx is 2, weight has 2 rows"),
])
def test_what_has_no_meaning_is_refused(call: Callable[[], Any], text: str) -> None:
    with pytest.raises(AlphaError) as error:
        call()
    assert text in str(error.value)
