"""fetch: arrays on their way to the host, beside later work."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import alpha
from alpha import ops
from alpha.core.device import get_backend
from alpha.training.steps import fetch

pytestmark = pytest.mark.cuda


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int64", "bool"])
@pytest.mark.parametrize("shape", [(), (3, 5), (0, 2)], ids=str)
def test_what_comes_is_what_was_there(dtype: str, shape: tuple[int, ...]) -> None:
    x = alpha.tensor(np.random.default_rng(0).integers(0, 2, shape)).to("cuda").astype("float32").astype(dtype)
    (found,) = fetch([x])()
    assert found.shape == shape and found.dtype == (np.float32 if dtype == "bfloat16" else dtype)
    assert np.array_equal(found, x.numpy())


def test_what_comes_later_changes_nothing() -> None:
    """Blocks that are freed, and page-locked memory too, serve others while copies may be on their way."""
    waiting = []
    for k in range(40):
        x = ops.ones((1000,), device="cuda") * float(k)
        waiting.append(fetch([x.sum(), x, alpha.tensor(np.full(3, k))]))
        del x
        if k % 9 == 0:
            gc.collect()
    for k, get in enumerate(waiting):
        total, x, host = get()
        assert total == 1000 * k and (x == k).all() and (host == k).all()


def test_a_sum_that_waits_is_written() -> None:
    x = ops.ones((300, 1000), device="cuda").astype("bfloat16")
    y = ops.relu(x + 1) * 2
    (found,) = get_backend("cuda").fetch([y.array])()
    assert (found == 4).all()
