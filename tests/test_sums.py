"""Whatever adds up: sums of any length, over any axes, are off by 3e-7 of themselves at most, where terms are positive.

Equal terms are the hardest ones: in a chain of float32 additions each is rounded in the same direction as the last.
"""

from __future__ import annotations

import numpy as np
import pytest

import alpha
from alpha import ops
from alpha.core.config import config
from alpha.gradcheck import assert_equal_at
from alpha.ops.conv import conv2d_bias_act
from alpha.ops.pool import pool_scatter

pytestmark = pytest.mark.same_without_kernels("it tests the compiled kernels, which it turns on")
LIMIT = 3e-7
# shape, axis: rows, columns, what lies between, axes apart
SHAPES = [((20_000_000,), None), ((1, 200_000, 2), 1), ((2_000_000, 3), 0), ((3, 300_000), 1),
          ((1, 1024, 1024, 2), (1, 2)), ((40, 3, 5000, 2), (0, 2)), ((2, 70_001, 5), (0, 1)), ((300, 200, 7), 1),
          ((5, 1000, 4, 9), (1, 3)), ((70_000, 1, 2), (0, 1)), ((9, 40, 33), (0, 1, 2))]


def terms(kind: str, shape: tuple[int, ...]) -> np.ndarray:
    if kind == "equal":
        return np.full(shape, 0.1, np.float32)
    return np.random.default_rng(0).random(shape, dtype=np.float32)


def near(y: alpha.Tensor | np.ndarray, exact: np.ndarray | float, limit: float = LIMIT) -> None:
    assert_equal_at(y, np.asarray(exact), rtol=limit, atol=0)


@pytest.mark.parametrize("kind", ["equal", "drawn"])
@pytest.mark.parametrize("shape, axis", SHAPES, ids=str)
def test_sums_and_means(cpu_kernels: str, kind: str, shape: tuple, axis) -> None:
    a = terms(kind, shape)
    x = alpha.tensor(a)
    exact = a.sum(axis, dtype=np.float64)
    near(x.sum(axis), exact)
    near(x.mean(axis), a.mean(axis, dtype=np.float64))
    if isinstance(axis, int) or axis is None or axis[0] == 0:
        kept = tuple(1 if axis is None or k in np.atleast_1d(axis) else n for k, n in enumerate(shape))
        near(ops.sum_to(x, shape=kept), exact.reshape(kept))


@pytest.mark.parametrize("seed", range(8))
def test_sums_of_drawn_shapes_have_the_same_bits_on_one_thread(cpu_kernels: str, seed: int) -> None:
    """One after another, large and small: what an earlier one has left in memory must not count."""
    rng = np.random.default_rng(seed)
    for _ in range(30):
        left, shape = int(2 ** rng.uniform(0, 19)), []
        for _ in range(int(rng.integers(1, 5))):
            shape.append(int(left ** rng.uniform(0, 1)) or 1)
            left //= shape[-1]
        a = rng.random([*shape, max(left, 1)], dtype=np.float32)
        axis = tuple(np.flatnonzero(rng.random(a.ndim) < 0.6).tolist())
        y = alpha.tensor(a).sum(axis)
        near(y, a.sum(axis, dtype=np.float64))
        with config(num_threads=1):
            assert alpha.tensor(a).sum(axis).numpy().tobytes() == y.numpy().tobytes()


@pytest.mark.parametrize("offset", [0.0, 1e4, -3e5])
@pytest.mark.parametrize("shape, axis", [s for s in SHAPES if np.prod(s[0]) < 1e7], ids=str)
def test_variances(cpu_kernels: str, offset: float, shape: tuple, axis) -> None:
    a = terms("drawn", shape) + np.float32(offset)
    near(alpha.tensor(a).var(axis), a.var(axis, dtype=np.float64))


def test_float16_is_summed_and_averaged_without_overflow(cpu_kernels: str) -> None:
    a = np.full((3, 70_000), 2.0, np.float16)
    x = alpha.tensor(a)
    near(x.sum(1, dtype="float32"), np.full(3, 140_000.0))
    near(x.mean(1), np.full(3, 2.0))
    near((x * 0.05).sum(1, dtype="float32"), (a * np.float16(0.05)).sum(1, dtype=np.float64))


@pytest.mark.parametrize("dtype", ["uint8", "int32", "bool"])
def test_sums_of_integers_are_int64(dtype: str) -> None:
    a = np.full((3, 100_000), 1 if dtype == "bool" else 200 if dtype == "uint8" else 2 ** 31 - 1).astype(dtype)
    y = alpha.tensor(a).sum(1)
    assert y.dtype == "int64" and y.tolist() == a.sum(1, dtype=np.int64).tolist()


@pytest.mark.parametrize("shape", [(300_000, 3), (2048, 300), (1000, 1)])
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_statistics_of_batch_norm(cpu_kernels: str, shape: tuple, offset: float) -> None:
    a = terms("drawn", shape) + np.float32(offset)
    mean, var = alpha.zeros(shape[1:]), alpha.zeros(shape[1:])
    ops.batch_norm(alpha.tensor(a), running_mean=mean, running_var=var, momentum=1.0)
    near(mean, a.mean(0, dtype=np.float64))
    near(var, a.var(0, dtype=np.float64, ddof=1), 4e-7 if cpu_kernels == "numpy" else LIMIT)


def test_an_outlier_in_the_first_row_costs_no_digits(cpu_kernels: str) -> None:
    a = terms("drawn", (100_000, 4))
    a[0] = [1e4, -1e5, 1e6, 1e7]
    mean, var = alpha.zeros((4,)), alpha.zeros((4,))
    ops.batch_norm(alpha.tensor(a), running_mean=mean, running_var=var, momentum=1.0)
    near(var, a.var(0, dtype=np.float64, ddof=1), 5e-7)


def test_gradients_of_batch_norm(cpu_kernels: str) -> None:
    a = terms("drawn", (300_000, 2))
    gamma, beta = (alpha.tensor(np.ones(2, np.float32), requires_grad=True) for _ in range(2))
    ops.batch_norm(alpha.tensor(a), gamma, beta).backward(alpha.tensor(np.full(a.shape, 0.1, np.float32)))
    near(beta.grad, np.full(2, a.shape[0] * np.float64(np.float32(0.1))))


@pytest.mark.parametrize("of", ["conv", "linear"])
def test_gradient_of_a_bias(cpu_kernels: str, of: str) -> None:
    b = alpha.zeros((2,), requires_grad=True)
    if of == "conv":
        y = conv2d_bias_act(alpha.zeros((2, 400, 500, 1)), alpha.zeros((2, 1, 1, 1)), b)
    else:
        y = ops.linear(alpha.zeros((400_000, 1)), alpha.zeros((2, 1)), b)
    y.backward(alpha.full(y.shape, 0.1))
    near(b.grad, np.full(2, 400_000 * np.float64(np.float32(0.1))))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_denominators_of_softmax(cpu_kernels: str, axis: int) -> None:
    shape = [2, 2, 2]
    shape[axis] = 300_000
    x = alpha.tensor(np.full(shape, -2.3, np.float32))
    near(ops.softmax(x, axis=axis), np.full(shape, 1 / 300_000))
    near(ops.log_softmax(x, axis=axis), np.full(shape, -np.log(300_000)))
    g = alpha.full(shape, 0.1)
    x = alpha.tensor(np.zeros(shape, np.float32), requires_grad=True)
    ops.log_softmax(x, axis=axis).backward(g)
    assert abs(x.grad.numpy()).max() <= LIMIT * 0.1  # 0.1 - sum(0.1) / n


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_losses(cpu_kernels: str, smoothing: float) -> None:
    x = np.zeros((3, 2_000_000), np.float32)
    x[:, 0] = 0.5
    x = np.float32(0.7) + x
    loss = ops.cross_entropy(alpha.tensor(x), alpha.tensor([5, 6, 7]), label_smoothing=smoothing)
    wide = x.astype(np.float64)
    lse = np.log(np.exp(wide - 0.7).sum(1)) + 0.7
    near(loss, (lse - (1 - smoothing) * wide[:, 5] - smoothing * wide.mean(1)).mean())
    a = terms("equal", (2_000_000, 2))
    near(ops.mse_loss(alpha.tensor(a), alpha.zeros(a.shape)), np.float64(np.float32(0.1) ** 2))
    rows = alpha.tensor(np.zeros((400_000, 3), np.float32))
    near(ops.cross_entropy(rows, alpha.zeros((400_000,), "int64")), np.log(3))


@pytest.mark.parametrize("shape", [(1, 1200, 700, 2), (1, 40, 40, 3)])
def test_average_pools(cpu_kernels: str, shape: tuple) -> None:
    a = terms("equal", shape)
    mean = np.broadcast_to(np.float64(np.float32(0.1)), (1, 1, 1, shape[3]))
    near(ops.avg_pool2d(alpha.tensor(a), kernel_size=shape[1:3]), mean)
    near(ops.adaptive_avg_pool2d(alpha.tensor(a), output_size=(1, 1)), mean)
    uneven = ops.adaptive_avg_pool2d(alpha.tensor(a), output_size=(7, 3))
    near(uneven, np.broadcast_to(mean, uneven.shape))


def test_gradients_of_pools_that_overlap(cpu_kernels: str) -> None:
    """The pixel in the middle is in every window."""
    a = np.zeros((1, 61, 61, 1), np.float32)
    a[0, 30, 30, 0] = 1
    count = 31 * 31
    for pool, share in ((ops.max_pool2d, 1.0), (ops.avg_pool2d, 1 / count)):
        x = alpha.tensor(a, requires_grad=True)
        pool(x, kernel_size=31, stride=1).backward(alpha.full((1, 31, 31, 1), 0.1))
        near(x.grad[0, 30, 30, 0], count * np.float64(np.float32(0.1)) * share)
    scattered = pool_scatter(alpha.full((1, 300, 300, 1), 0.1), alpha.zeros((1, 300, 300, 1), "int32"), hw=(2, 2))
    near(scattered[0, 0, 0, 0], 90_000 * np.float64(np.float32(0.1)))


def test_gradient_of_rows_taken_many_times(cpu_kernels: str) -> None:
    x = alpha.zeros((3, 2), requires_grad=True)
    x[alpha.tensor(np.arange(400_000) % 4 // 2 * 2)].backward(alpha.full((400_000, 2), 0.1))
    near(x.grad, np.float64(np.float32(0.1)) * 200_000 * np.array([[1, 1], [0, 0], [1, 1]]))


def test_sums_of_squares(cpu_kernels: str) -> None:
    a = terms("equal", (2_000_003,))
    y = ops.sums_of_squares([alpha.tensor(a), alpha.full((3,), 1e30)])
    near(y, np.array([np.square(a, dtype=np.float64).sum(), 3 * np.float64(np.float32(1e30)) ** 2]))
