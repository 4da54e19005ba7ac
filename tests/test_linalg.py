"""alpha.linalg against NumPy, and what it refuses; tests/op_twins_linalg.py has its gradients beside PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import alpha
from alpha import linalg
from alpha.errors import AlphaError, DataError, DTypeError, MissingError, ShapeError
from tests.op_checks import refused

pytestmark = pytest.mark.same_without_kernels("made of ops that have tests without kernels")

RNG = np.random.default_rng(0)
A = RNG.normal(size=(2, 4, 4)) + np.eye(4) * 3
B = RNG.normal(size=(2, 4, 2))
TALL, WIDE = RNG.normal(size=(5, 3)), RNG.normal(size=(3, 5))
POSITIVE = A @ A.swapaxes(-1, -2)


def t(a: Any, grad: bool = False) -> alpha.Tensor:
    return alpha.tensor(np.asarray(a), requires_grad=grad)


def test_inverses_solutions_and_determinants_are_numpys() -> None:
    np.testing.assert_allclose(linalg.inv(t(A)).numpy(), np.linalg.inv(A), rtol=1e-12)
    np.testing.assert_allclose(linalg.solve(t(A), t(B)).numpy(), np.linalg.solve(A, B), rtol=1e-12)
    np.testing.assert_allclose(linalg.solve(t(A[0]), t(B[0, :, 0])).numpy(), np.linalg.solve(A[0], B[0, :, 0]))
    np.testing.assert_allclose(linalg.det(t(A)).numpy(), np.linalg.det(A), rtol=1e-12)
    sign, value = linalg.slogdet(t(-A[:, :3, :3]))
    right = np.linalg.slogdet(-A[:, :3, :3])
    assert (sign.numpy() == right[0]).all() and (sign.numpy() == -1).any()
    np.testing.assert_allclose(value.numpy(), right[1], rtol=1e-12)
    assert linalg.slogdet(t(np.zeros((2, 2)))).logabsdet.item() == -np.inf
    assert linalg.det(t(np.zeros((0, 0)))).item() == 1.0
    assert linalg.norm(t(B)).item() == pytest.approx(np.linalg.norm(B))


@pytest.mark.parametrize("a", [A, TALL, WIDE, RNG.normal(size=(2, 1, 3))], ids=["square", "tall", "wide", "row"])
def test_factors_make_the_matrix_again(a: np.ndarray) -> None:
    q, r = linalg.qr(t(a))
    np.testing.assert_allclose((q @ r).numpy(), a, atol=1e-12)
    k = q.shape[-1]
    np.testing.assert_allclose((q.mT @ q).numpy(), np.broadcast_to(np.eye(k), (*a.shape[:-2], k, k)),
                               atol=1e-12)
    assert (np.tril(r.numpy(), -1) == 0).all()
    u, s, vh = linalg.svd(t(a))
    np.testing.assert_allclose((u * s.unsqueeze(-2) @ vh).numpy(), a, atol=1e-12)
    np.testing.assert_allclose(s.numpy(), np.linalg.svd(a, compute_uv=False), rtol=1e-12)


def test_symmetric_matrices_have_factors_and_vectors() -> None:
    lower = linalg.cholesky(t(POSITIVE))
    np.testing.assert_allclose((lower @ lower.mT).numpy(), POSITIVE, rtol=1e-10)
    found = linalg.eigh(t(POSITIVE))
    assert (np.diff(found.eigenvalues.numpy()) > 0).all()
    np.testing.assert_allclose((t(POSITIVE) @ found.eigenvectors).numpy(), (
        found.eigenvectors * found.eigenvalues.unsqueeze(-2)).numpy(), atol=1e-10)


@pytest.mark.parametrize("f", [
    lambda x: linalg.inv(x), lambda x: linalg.solve(x, x * x), lambda x: linalg.det(x),
    lambda x: linalg.slogdet(x).logabsdet, lambda x: linalg.cholesky(x @ x.mT), lambda x: linalg.svd(x).S,
    lambda x: linalg.eigh(x @ x.mT).eigenvalues, lambda x: linalg.qr(x).R ** 2],
    ids=["inv", "solve", "det", "slogdet", "cholesky", "svd", "eigh", "qr"])
def test_gradients_of_both_orders(f: Callable[..., Any]) -> None:
    assert alpha.gradcheck(f, [t(A[:, :3, :3], True)], second_order=True)


def test_results_have_the_dtype_and_need_no_gradient() -> None:
    x = alpha.tensor(A.astype(np.float32))
    for y in (linalg.inv(x), *linalg.svd(x), *linalg.qr(x), linalg.slogdet(x).sign):
        assert y.dtype == "float32" and not y.requires_grad
    assert not linalg.slogdet(t(A, True)).sign.requires_grad
    assert linalg.qr(t(WIDE, True).detach()).R.shape == (3, 5)


def test_a_line_is_fitted_by_least_squares_and_by_descent() -> None:
    """The normal equations solved, with a gradient that reaches the points."""
    x = t(np.stack([np.arange(5.0), np.ones(5)], 1), True)
    y = t([1.0, 3.0, 5.0, 7.0, 9.0])
    w = linalg.solve(x.mT @ x, x.mT @ y.unsqueeze(-1)).squeeze(-1)
    np.testing.assert_allclose(w.detach().numpy(), [2, 1], atol=1e-10)
    w.sum().backward()
    assert np.isfinite(x.grad.numpy()).all() and x.grad.numpy().any()


SINGULAR = np.array([[1.0, 2.0], [2.0, 4.0]])
REFUSED: list[tuple[Callable[[], Any], type[AlphaError], str]] = [
    (lambda: linalg.inv(t(SINGULAR)), DataError, "inv: a matrix of shape (2, 2) fails: Singular matrix"),
    (lambda: linalg.solve(t(SINGULAR), t(SINGULAR)), DataError, "eye(n)"),
    (lambda: linalg.cholesky(t(-np.eye(2))), DataError, "cholesky"),
    (lambda: linalg.det(t(SINGULAR, True)).backward(), DataError, "inv"),
    (lambda: linalg.inv(t(TALL)), ShapeError, "square matrices"),
    (lambda: linalg.svd(t([1.0])), ShapeError, "pass (..., m, n)"),
    (lambda: linalg.det(t([[1, 2], [3, 4]])), DTypeError, "int64"),
    (lambda: linalg.solve(t(A), t(B[:, :3])), ShapeError, "b (2, 3, 2)"),
    (lambda: linalg.solve(t(A), t(B[0])), ShapeError, "leading axes"),
    (lambda: linalg.solve(t(A), t(B).float()), ShapeError, "float32"),
    (lambda: linalg.qr(t(WIDE, True)), ShapeError, "fewer rows than columns"),
    (lambda: linalg.pinv, MissingError, "np.linalg.pinv"),
    (lambda: alpha.inverse, MissingError, "alpha.linalg.inv"),
]


@pytest.mark.parametrize("call, error, said", REFUSED, ids=[f"{k}" for k in range(len(REFUSED))])
def test_bad_input_is_refused(call: Callable[[], Any], error: type[AlphaError], said: str) -> None:
    with refused(error, said):
        call()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_matrices_that_are_not_finite_give_nan_alone(bad: float) -> None:
    """LAPACK's singular values of NaN may not end."""
    x = np.random.default_rng(0).standard_normal((3, 4, 4)).astype(np.float32)
    x = x @ x.transpose(0, 2, 1) + np.eye(4, dtype=np.float32)
    broken = x.copy()
    broken[1, 2, 3] = bad
    for f in (linalg.inv, linalg.det, linalg.cholesky, lambda t: linalg.svd(t)[0], lambda t: linalg.svd(t)[1],
              lambda t: linalg.qr(t)[1], lambda t: linalg.eigh(t)[0], lambda t: linalg.slogdet(t)[1],
              lambda t: linalg.solve(t, alpha.tensor(x))):
        found, right = f(alpha.tensor(broken)).numpy(), f(alpha.tensor(x)).numpy()
        assert np.isnan(found[1]).all() and np.array_equal(found[[0, 2]], right[[0, 2]])
