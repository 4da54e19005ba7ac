"""Functions composed of ops, on the GPU and on the CPU: values and gradients of floats of 32 and 16 bits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import alpha
from alpha import ops
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
