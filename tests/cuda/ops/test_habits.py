"""Functions composed of ops, on the GPU and on the CPU: values and gradients of floats of 32 and 16 bits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import alpha
import alpha.nn.functional as F
from alpha import ops, optim
from alpha.errors import ShapeError
from tests.cuda.agree import floats, ints

pytestmark = pytest.mark.cuda

INDEX = ints(4, 3, seed=3, low=0, high=6, dtype="int64")


def on(f: Callable[..., alpha.Tensor], x: np.ndarray, device: str, dtype: str) -> list[np.ndarray]:
    """Returns f(x) and the gradient of x."""
    t = alpha.tensor(x, device=device).astype(dtype).requires_grad_()
    y = f(t)
    (y * y).sum().backward()
    return [y.detach().float().numpy(), t.grad.float().numpy()]


FUNCTIONS: dict[str, Callable[..., alpha.Tensor]] = {
    "gather": lambda x: x.gather(1, alpha.tensor(INDEX, device=x.device)),
    "scatter_add": lambda x: ops.zeros_like(x).scatter_add(1, alpha.tensor(INDEX, device=x.device), x[:, :3]),
    "scatter": lambda x: x.scatter(1, alpha.tensor(INDEX, device=x.device), 2.0),
    "sort": lambda x: x.sort(1, descending=True).values,
    "topk": lambda x: x.topk(2, dim=0).values,
    "cumsum": lambda x: x.cumsum(1),
    "mask": lambda x: x[x > 0],
    "mask of rows": lambda x: x[alpha.tensor([True, False, True, True], device=x.device)],
    "index arrays": lambda x: x[alpha.tensor([0, 1, 1], device=x.device), [5, 2, 2]],
    "einsum": lambda x: ops.einsum("ij,kj->ik", x, x),
    "norm": lambda x: x.norm(dim=1),
    "std": lambda x: x.std(dim=1),
    "remainder": lambda x: x % 0.75,
    "round": lambda x: x * x.round(),
    "masked_fill": lambda x: x.masked_fill(x > 0, 0.5),
    "triangle": lambda x: x.tril() + x.triu(2),
    "logsumexp": lambda x: x.logsumexp(1),
    "repeat": lambda x: x.repeat(2, 2),
}

MAPS: dict[str, Callable[..., alpha.Tensor]] = {
    "bilinear": lambda x: F.interpolate(x, (7, 3), mode="bilinear"),
    "bicubic": lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"),
    "nearest": lambda x: F.interpolate(x, scale_factor=2),
    "reflect": lambda x: F.pad(x, (1, 2, 1, 0), mode="reflect"),
    "ceil_mode": lambda x: F.max_pool2d(x, 2, 2, 0, 1, True),
    "dilation": lambda x: F.max_pool2d(x, 2, 1, 1, 2),
    "avg ceil_mode": lambda x: F.avg_pool2d(x, 2, 2, 0, True),
    "shuffles": lambda x: ops.channel_shuffle(ops.pixel_unshuffle(x[:, :4], 2), 4),
    "response": lambda x: F.local_response_norm(x, 2, 0.1),
    "gelu": lambda x: F.gelu(x, "tanh"),
    "weights": lambda x: F.cross_entropy(x, alpha.tensor(LABELS, device=x.device), alpha.linspace(1, 2, 4).to(x.device),
                                         ignore_index=-100, label_smoothing=0.1),
    "log": lambda x: F.nll_loss(x.log_softmax(-1), alpha.tensor(LABELS, device=x.device), ignore_index=-100),
}
LABELS = ints(2, 5, 4, seed=5, low=0, high=4, dtype="int64")
LABELS[0, 0] = -100


@pytest.mark.parametrize("name", MAPS)
def test_maps_as_on_the_cpu(name: str) -> None:
    x = floats(2, 5, 4, 4)
    for dtype, rtol in (("float32", 1e-5), ("float16", 1e-2)):
        expected = on(MAPS[name], x, "cpu", dtype)
        for found, wanted in zip(on(MAPS[name], x, "cuda", dtype), expected):
            np.testing.assert_allclose(found, wanted, rtol, rtol * 2)


@pytest.mark.parametrize("make", [optim.Lion, optim.LAMB, optim.NAdam, optim.Adagrad, optim.Adadelta],
                         ids=lambda make: make.__name__)
def test_optimizers_as_on_the_cpu(make: type) -> None:
    ends = []
    for device in ("cpu", "cuda"):
        w = alpha.tensor(floats(3, 4), device=device, requires_grad=True)
        optimizer = make([w], lr=0.1)
        for step in range(3):
            w.grad = alpha.tensor(floats(3, 4, seed=step + 1), device=device)
            optimizer.step(alpha.full((), float(step != 1), device=device))
        ends.append(w.detach().numpy())
    np.testing.assert_allclose(*ends, 1e-5, 1e-6)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_as_on_the_cpu(name: str) -> None:
    x = floats(4, 6)
    for dtype, rtol in (("float32", 1e-5), ("float16", 1e-2)):
        expected = on(FUNCTIONS[name], x, "cpu", dtype)
        for found, wanted in zip(on(FUNCTIONS[name], x, "cuda", dtype), expected):
            np.testing.assert_allclose(found, wanted, rtol, rtol * 2)


def test_integers_and_masks() -> None:
    a = ints(4, 6, low=0, dtype="int64")
    for f in (lambda x: x.gather(1, alpha.tensor(INDEX, device=x.device)), lambda x: x.cumsum(1), lambda x: x // 3,
              lambda x: x % 3, lambda x: x.argsort(1), lambda x: x[x > 1], lambda x: (x > 1) & ~(x == 3),
              lambda x: (x > 1).any(dim=1), lambda x: ops.one_hot(x), lambda x: x.argmin(0), lambda x: x[:, [1, 0]]):
        assert (f(alpha.tensor(a, device="cuda")).numpy() == f(alpha.tensor(a)).numpy()).all()


def test_assignment() -> None:
    x = alpha.zeros((3, 4), device="cuda")
    x[1] = 2.0
    x[x == 0] = -1.0
    x[[0, 2], [1, 3]] = alpha.tensor([5.0, 6.0], device="cuda")
    expected = np.full((3, 4), -1.0)
    expected[1], expected[0, 1], expected[2, 3] = 2, 5, 6
    assert (x.numpy() == expected).all() and x.is_cuda and alpha.cuda.is_available()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("dim", [1, 3, 8])
def test_a_row_out_of_range_of_a_table_is_nan(dim: int, dtype: str) -> None:
    table, index = ops.ones((4, dim), dtype, "cuda"), alpha.tensor([1, 4, -1, 10 ** 12, 3], device="cuda")
    assert np.isnan(ops.embedding(index, table).numpy()).all(1).tolist() == [False, True, True, True, False]
    numbers = alpha.tensor(np.arange(4 * dim).reshape(4, dim), "int64", "cuda")
    assert ops.embedding(index, numbers).numpy()[:, 0].tolist() == [dim, 3 * dim, 0, 3 * dim, 3 * dim], "the nearest"
    assert np.isnan(ops.index_select(table, 0, alpha.tensor([0, 7], device="cuda")).numpy()).all(1).tolist() == [
        False, True]


def test_indices_out_of_range_are_seen_in_what_scatter_and_gather_return() -> None:
    x, index = alpha.tensor([[1.0, 2, 3], [4, 5, 6]], device="cuda"), alpha.tensor([[5], [0]], device="cuda")
    y = ops.scatter(x, 1, index, 9.0).numpy()
    assert np.isnan(y[0]).all() and y[1].tolist() == [9, 5, 6]
    with pytest.raises(ShapeError, match="scatter: an index is out of range for axis 1 of length 3"):
        ops.scatter(x, 1, index, alpha.tensor([[9.0], [9.0]], device="cuda"))
    assert ops.gather(x.astype("int64"), 1, index).tolist() == [[3], [4]], "the nearest of its own line"
    assert ops.gather(x.astype("int32"), 0, alpha.tensor([[-7, 0, 9]], device="cuda")).tolist() == [[1, 2, 6]]
