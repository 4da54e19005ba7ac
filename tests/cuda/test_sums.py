"""Whatever adds up on the GPU: sums of any length, over any axes, are off by 3e-7 of themselves, of equal terms too."""

from __future__ import annotations

import numpy as np
import pytest

import alpha
from alpha import ops
from alpha.cuda.ops.norm import sample_norm
from alpha.cuda.runtime.memory import download
from alpha.ops.pool import pool_scatter
from tests.cuda.process import EMULATED
from tests.test_sums import LIMIT, near, terms

pytestmark = pytest.mark.cuda

LONG = pytest.mark.skipif(EMULATED, reason="too many terms for the emulated driver")
SHAPES = [((300_000,), None), ((1, 100_000, 2), 1), ((40_000, 8), 0), ((2, 70_001), 1), ((1, 200, 300, 4), (1, 2)),
          ((20, 3, 800, 2), (0, 2)), ((3, 5001, 5), 1),
          *[pytest.param(*case, marks=LONG) for case in (
              ((20_000_000,), None), ((2, 10_000_001), 1), ((10_000_000, 2), 0), ((1, 4_000_000, 5), 1),
              ((1, 1024, 1024, 2), (1, 2)), ((2_500_000, 8), 0), ((2, 3_000_001, 3), (0, 1)))]]


def tensor(a: np.ndarray, dtype: str = "float32") -> alpha.Tensor:
    return alpha.tensor(a, device="cuda").astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["equal", "drawn"])
@pytest.mark.parametrize("shape, axis", SHAPES, ids=str)
def test_sums_means_and_variances(dtype: str, kind: str, shape: tuple, axis) -> None:
    x = tensor(terms(kind, shape), dtype)
    a = x.astype("float32").numpy()
    near(x.sum(axis, dtype="float32"), a.sum(axis, dtype=np.float64))
    if dtype == "float32":
        near(x.mean(axis), a.mean(axis, dtype=np.float64))
        if kind == "drawn":
            near(x.var(axis), a.var(axis, dtype=np.float64))
            a += np.float32(1e4)
            near(tensor(a).var(axis), a.var(axis, dtype=np.float64))


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("count", [3000, 60_000, pytest.param(5_000_000, marks=LONG)])
def test_denominators_of_softmax(axis: int, count: int) -> None:
    shape = [2, 2, 2]
    shape[axis] = count
    x = tensor(np.full(shape, -2.3, np.float32))
    near(ops.softmax(x, axis=axis), np.full(shape, 1 / count))
    near(ops.log_softmax(x, axis=axis), np.full(shape, -np.log(count)))
    a = np.full(shape, 0.1, np.float32)
    np.moveaxis(a, axis, 0)[1] = 0.9  # of one the weight is e^0.8 of the others'
    wide = np.exp(a.astype(np.float64) - 0.9)
    near(ops.softmax(tensor(a), axis=axis), wide / wide.sum(axis, keepdims=True), 1e-6)  # expf itself: 2 ulp


@pytest.mark.parametrize("classes", [10, 50_000, pytest.param(5_000_000, marks=LONG)])
def test_losses(classes: int) -> None:
    x = np.full((3, classes), 0.7, np.float32)
    for smoothing in (0.0, 0.1):
        loss = ops.cross_entropy(tensor(x), alpha.tensor([5, 6, 7], device="cuda"), label_smoothing=smoothing)
        near(loss, np.log(classes))


@pytest.mark.long
@pytest.mark.parametrize("rows", [40_000, pytest.param(5_000_000, marks=LONG)])
def test_mean_of_many_losses(rows: int) -> None:
    near(ops.cross_entropy(tensor(np.zeros((rows, 3), np.float32)), alpha.zeros((rows,), "int64", device="cuda")),
         np.log(3))


@pytest.mark.parametrize("shape", [(1, 300, 200, 2), (2, 40, 40, 8), pytest.param((1, 3000, 2000, 4), marks=LONG)])
def test_average_pools(shape: tuple) -> None:
    x, mean = tensor(terms("equal", shape)), np.float64(np.float32(0.1))
    near(ops.avg_pool2d(x, kernel_size=shape[1:3]), np.full((shape[0], 1, 1, shape[3]), mean))
    near(ops.adaptive_avg_pool2d(x, output_size=(1, 1)), np.full((shape[0], 1, 1, shape[3]), mean))
    near(ops.adaptive_avg_pool2d(x, output_size=(3, 1)), np.full((shape[0], 3, 1, shape[3]), mean))


@pytest.mark.parametrize("rows, channels", [(30_000, 4), (2048, 12), pytest.param(5_000_000, 4, marks=LONG)])
def test_batch_norm(rows: int, channels: int) -> None:
    a = terms("drawn", (rows, channels))
    mean, var = (alpha.zeros((channels,), device="cuda") for _ in range(2))
    gamma, beta = (tensor(np.ones(channels, np.float32)) for _ in range(2))
    beta.requires_grad = gamma.requires_grad = True
    y = ops.batch_norm(tensor(a), gamma, beta, running_mean=mean, running_var=var, momentum=1.0)
    y.backward(tensor(terms("equal", a.shape)))
    near(mean, a.mean(0, dtype=np.float64))
    near(var, a.var(0, dtype=np.float64, ddof=1))
    near(beta.grad, np.full(channels, rows * np.float64(np.float32(0.1))))


@pytest.mark.parametrize("columns", [1000, 1024, 70_000, pytest.param(20_000_000, marks=LONG)])
def test_layer_norm(columns: int) -> None:
    a = terms("drawn", (3, columns))
    wide = a.astype(np.float64)
    _, mean, istd, _ = ops.layer_norm.impls["cuda"](tensor(a).array, None, None, normalized_ndim=1, eps=0.0)
    near(download(mean, np.float32)[:, 0], wide.mean(1))
    near(download(istd, np.float32)[:, 0], 1 / wide.std(1))


@pytest.mark.parametrize("rows, columns, blocks", [
    (9000, 7, 1), (3000, 4, 1), (700, 128, 1), (30, 1024, 132),
    *[pytest.param(*size, 132, marks=LONG) for size in ((5_000_000, 4), (20_000, 1025), (9000, 8200), (50_000, 1024))]])
def test_gradients_of_layer_norm(monkeypatch: pytest.MonkeyPatch, rows: int, columns: int, blocks: int) -> None:
    monkeypatch.setattr(sample_norm, "ROW_BLOCKS", blocks)  # few of them have long chains of rows
    sample_norm._rows.cache_clear()
    gamma, beta = (tensor(np.ones(columns, np.float32)) for _ in range(2))
    beta.requires_grad = gamma.requires_grad = True
    row = terms("drawn", (columns,))
    x = tensor(np.broadcast_to(row, (rows, columns)).copy())
    ops.layer_norm(x, gamma, beta).backward(tensor(terms("equal", (rows, columns))))
    share = rows * np.float64(np.float32(0.1))
    near(beta.grad, np.full(columns, share))
    away = row.astype(np.float64) - row.mean(dtype=np.float64)
    wanted = share * away / np.sqrt(np.mean(away ** 2) + 1e-5)
    assert abs(gamma.grad.numpy() - wanted).max() <= 6e-7 * abs(wanted).max()  # what each term has been rounded to
    sample_norm._rows.cache_clear()


@pytest.mark.parametrize("columns", [70_001, 70_000, pytest.param(20_000_000, marks=LONG)])
def test_gradient_of_a_long_row(columns: int) -> None:
    """The mean of equal gradients is taken out of them."""
    x = alpha.tensor(terms("drawn", (2, columns)), device="cuda", requires_grad=True)
    ops.layer_norm(x).backward(tensor(terms("equal", x.shape)))
    assert abs(x.grad.numpy()).max() <= LIMIT * 0.1 * 12 ** 0.5


@pytest.mark.parametrize("shape, groups", [((2, 150, 150, 4), 2), ((2, 70, 80, 6), 3), ((3, 16, 16, 8), 2),
                                           pytest.param((2, 2000, 3000, 8), 2, marks=LONG)])
def test_group_norm(shape: tuple, groups: int) -> None:
    samples, height, width, channels = shape
    gamma, beta = (tensor(np.ones(channels, np.float32)) for _ in range(2))
    beta.requires_grad = gamma.requires_grad = True
    a = terms("drawn", shape)
    wide = a.astype(np.float64).reshape(samples, height * width, groups, channels // groups)
    _, mean, istd, _ = ops.group_norm.impls["cuda"](tensor(a).array, None, None, groups=groups, eps=0.0)
    near(download(mean, np.float32)[:, 0, :, 0], wide.mean((1, 3)))
    near(download(istd, np.float32)[:, 0, :, 0], 1 / wide.std((1, 3)))
    ops.group_norm(tensor(a), gamma, beta, groups=groups).backward(tensor(terms("equal", shape)))
    near(beta.grad, np.full(channels, samples * height * width * np.float64(np.float32(0.1))))


@pytest.mark.parametrize("channels", [1, 4])
def test_gradients_of_pools_that_overlap(channels: int) -> None:
    """The pixel in the middle is in every window."""
    a = np.zeros((1, 61, 61, channels), np.float32)
    a[0, 30, 30] = 1
    count, term = 31 * 31, np.float64(np.float32(0.1))
    for pool, share in ((ops.max_pool2d, 1.0), (ops.avg_pool2d, 1 / count)):
        x = alpha.tensor(a, device="cuda", requires_grad=True)
        pool(x, kernel_size=31, stride=1).backward(tensor(terms("equal", (1, 31, 31, channels))))
        near(x.grad[0, 30, 30], np.full(channels, count * term * share))
    x = alpha.zeros((1, 1, 2, channels), device="cuda", requires_grad=True)
    ops.adaptive_avg_pool2d(x, output_size=(200, 101)).backward(tensor(terms("equal", (1, 200, 101, channels))))
    near(x.grad, np.full(x.shape, 200 * 50.5 * term))


@pytest.mark.long
@pytest.mark.parametrize("index", ["int32", "int64"])
def test_many_terms_of_one_pixel(index: str) -> None:
    """Some columns have one term at each position, others all of them at one, or at some."""
    where = np.tile(np.arange(40 * 50).reshape(1, 40, 50, 1), (1, 1, 1, 5))
    where[..., 1] = 7
    where[..., 2] = where[..., 0] // 40 * 37
    where[..., 3] = np.minimum(where[..., 0], 31)
    x = terms("drawn", where.shape)
    y = pool_scatter(tensor(x), alpha.tensor(where.astype(index), device="cuda"), hw=(40, 50)).numpy()
    for c in range(5):
        near(y[..., c].reshape(-1), np.bincount(where[..., c].reshape(-1), x[..., c].reshape(-1), 2000))


@pytest.mark.long
@pytest.mark.parametrize("count", [40_000, pytest.param(20_000_000, marks=LONG)])
def test_gradient_of_rows_taken_many_times(count: int) -> None:
    x = alpha.zeros((3, 2), device="cuda", requires_grad=True)
    x[alpha.tensor(np.arange(count) % 4 // 2 * 2, device="cuda")].backward(tensor(terms("equal", (count, 2))))
    near(x.grad, np.float64(np.float32(0.1)) * count / 2 * np.array([[1, 1], [0, 0], [1, 1]]))


@pytest.mark.parametrize("size", [70_003, pytest.param(20_000_000, marks=LONG)])
def test_sums_of_squares(size: int) -> None:
    near(ops.sums_of_squares([tensor(terms("equal", (size,)))]), [size * np.float64(np.float32(0.1)) ** 2])
