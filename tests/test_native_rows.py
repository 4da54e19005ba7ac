"""The CPU kernels of rows: norms, softmax and extremes, whose bits follow from the row alone, NaN included."""

from __future__ import annotations

import numpy as np
import pytest

from alpha.build import compilers
from alpha.core.config import config
from alpha.cpu import native
from tests.test_native import close, floats, nan

pytestmark = [pytest.mark.skipif(not compilers(), reason="there is no C++ compiler here"),
              pytest.mark.same_without_kernels("it tests the compiled kernels, which it turns on")]


@pytest.fixture(autouse=True)
def kernels():
    with config(cpu_kernels=True):
        assert native.library() is not None
        yield


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.mark.parametrize("n", [1, 7, 8, 16, 65, 96, 130, 768])
@pytest.mark.parametrize("threads", [1, 2])
def test_rows_have_the_bits_that_they_have_alone(rng, n, threads):
    """Kernels take rows in pairs; an odd one is by itself, and so is each of an array of one row."""
    rows, eps = 301, 1e-5
    x, g, gamma, beta = floats(rng, rows, n), floats(rng, rows, n), floats(rng, n), floats(rng, n)

    def of(x, g):
        count = len(x)
        y, log_y, dx, best = nan(count, n), nan(count, n), nan(count, n), nan(count)
        mean, istd, rest, normal, slope = nan(count), nan(count), nan(count), nan(count, n), nan(count, n)
        native.softmax_fwd(x, y, False)
        native.softmax_fwd(x, log_y, True)
        native.softmax_bwd(g, y, dx, False)
        native.extreme(x, best, count, n, 1, True)
        native.layer_norm_fwd(x, gamma, beta, normal, mean, istd, rest, eps)
        native.layer_norm_bwd(g, x, gamma, mean, istd, rest, slope, nan(n), nan(n))
        return y, log_y, dx, best, mean, istd, rest, normal, slope
    with config(num_threads=threads):
        together = of(x, g)
        for r in (0, 1, 150, 299, 300):
            for a, b in zip(together, of(x[r:r + 1].copy(), g[r:r + 1].copy())):
                assert np.array_equal(a[r:r + 1], b)


@pytest.mark.parametrize("rows, n", [(1, 40), (255, 40), (256, 40), (600, 96), (2048, 13), (300, 700)])
def test_layer_norm_backward_has_the_same_bits_for_each_count_of_threads(rng, rows, n):
    """Where rows are cut into parts for each thread, a part makes its rows' gradients and its sums in one pass."""
    x, g, gamma = floats(rng, rows, n), floats(rng, rows, n), floats(rng, n)
    mean, istd = x.mean(1), 1 / x.std(1)
    found = []
    for threads in (1, 2, 3, 8):
        with config(num_threads=threads):
            dx, dgamma, dbeta = nan(rows, n), nan(n), nan(n)
            native.layer_norm_bwd(g, x, gamma, mean, istd, None, dx, dgamma, dbeta)
            found.append((dx, dgamma, dbeta))
    for others in found[1:]:
        for a, b in zip(found[0], others):
            assert np.array_equal(a, b)
    xhat, v = (x - mean[:, None]) * istd[:, None].astype(np.float64), g * gamma.astype(np.float64)
    close(found[0][0], istd[:, None] * (v - v.mean(1, keepdims=True) - xhat * (v * xhat).mean(1, keepdims=True)), 1e-5)
    close(found[0][1], (g * xhat).sum(0), 1e-5)
    close(found[0][2], g.sum(0, dtype=np.float64), 1e-5)


@pytest.mark.parametrize("n", [1, 7, 8, 15, 16, 17, 31, 32, 40, 100])
@pytest.mark.parametrize("largest", [True, False])
def test_a_nan_anywhere_in_a_row_is_its_extreme(rng, n, largest):
    x = floats(rng, n + 1, n)
    x[range(n), range(n)] = np.nan
    best = nan(n + 1)
    native.extreme(x, best, n + 1, n, 1, largest)
    assert np.isnan(best[:n]).all() and best[n] == (x[n].max() if largest else x[n].min())
    x[n] = np.inf if largest else -np.inf
    native.extreme(x, best, n + 1, n, 1, not largest)
    assert best[n] == x[n, 0]
