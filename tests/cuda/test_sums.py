"""Whatever adds up on the GPU: sums of any length, over any axes, are off by 3e-7 of themselves, of equal terms too."""

from __future__ import annotations

import numpy as np
import pytest

import alpha
from alpha import ops
from alpha.cuda.runtime.memory import download
from tests.cuda.process import EMULATED
from tests.test_sums import near, terms

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


@pytest.mark.parametrize("columns", [1000, 1024, 70_000])
def test_layer_norm(columns: int) -> None:
    a = terms("drawn", (3, columns))
    wide = a.astype(np.float64)
    _, mean, istd = ops.layer_norm.impls["cuda"](tensor(a).data, None, None, normalized_ndim=1, eps=0.0)
    near(download(mean, np.float32)[:, 0], wide.mean(1))
    near(download(istd, np.float32)[:, 0], 1 / wide.std(1))


@pytest.mark.parametrize("size", [70_003, pytest.param(20_000_000, marks=LONG)])
def test_sums_of_squares(size: int) -> None:
    near(ops.sums_of_squares([tensor(terms("equal", (size,)))]), [size * np.float64(np.float32(0.1)) ** 2])
