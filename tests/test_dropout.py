"""Dropout: its rate and scale, one mask for both directions, the same bits everywhere, and the refusals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import alpha
from alpha import ops, random
from alpha.core.config import config
from alpha.errors import ConfigError
from alpha.gradcheck import assert_equal_at, gradcheck
from alpha.ops.dropout import keyed_dropout
from alpha.random import STREAMS, uniform


def ones(*shape):
    return alpha.tensor(np.ones(shape, np.float32), requires_grad=True)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_share_of_zeros_is_p_and_the_mean_stays(cpu_kernels, p):
    y = ops.dropout(ones(200, 501), p).numpy()
    kept = y != 0
    assert abs(kept.mean() - (1 - p)) < 4 * np.sqrt(p * (1 - p) / y.size)
    assert_equal_at(y[kept], np.full(kept.sum(), 1 / (1 - p), np.float32))


def test_the_mask_is_the_streams_uniform_numbers(cpu_kernels):
    random.manual_seed(11)
    random.reserve(5)
    y = ops.dropout(ones(3, 7), 0.3)
    keep = uniform(11, STREAMS["dropout"], 8, 21).reshape(3, 7) >= np.float32(0.3)
    assert_equal_at(y.numpy() != 0, keep)


def test_a_number_equal_to_p_keeps_its_element(cpu_kernels):
    numbers = uniform(0, STREAMS["dropout"], 0, 64)
    p = float(np.sort(numbers)[32])
    assert_equal_at(keyed_dropout(ones(64), p=p, seed=0, offset=0).numpy() != 0, numbers >= p)


def test_the_gradient_has_the_same_mask(cpu_kernels):
    x = ones(41, 13)
    y = ops.dropout(x, 0.4)
    y.backward(alpha.tensor(np.ones(x.shape, np.float32)))
    assert_equal_at(x.grad, y)
    assert 0 < np.count_nonzero(y.numpy()) < x.size


@given(n=st.integers(0, 300), p=st.floats(0.01, 0.99), offset=st.integers(0, 9), seed=st.integers(0, 2 ** 64 - 1))
def test_compiled_and_numpy_give_the_same_bits(n, p, offset, seed):
    x = alpha.tensor(np.random.default_rng(0).standard_normal(n).astype(np.float32))
    with config(cpu_kernels=False):
        expected = keyed_dropout(x, p=p, seed=seed, offset=offset).numpy()
    assert_equal_at(keyed_dropout(x, p=p, seed=seed, offset=offset), expected)


def test_every_call_has_its_own_mask_and_a_seed_repeats_them():
    masks = [ops.dropout(ones(64)).numpy() for _ in range(2)]
    assert (masks[0] != masks[1]).any()
    random.manual_seed(0)
    again = [ops.dropout(ones(64)).numpy() for _ in range(2)]
    assert_equal_at(again, masks)


def test_the_mask_does_not_depend_on_how_a_batch_is_split(cpu_kernels):
    x = alpha.tensor(np.arange(1.0, 61.0, dtype=np.float32).reshape(6, 10))
    whole = keyed_dropout(x, p=0.5, seed=3, offset=4).numpy()
    parts = [keyed_dropout(x[k:k + 2], p=0.5, seed=3, offset=4 + 10 * k).numpy() for k in (0, 2, 4)]
    assert_equal_at(np.concatenate(parts), whole)


def test_the_ends_of_p_and_inference(cpu_kernels):
    x = ones(5)
    assert ops.dropout(x, 0.0) is x and ops.dropout(x, 0.7, training=False) is x
    assert random.get_state() == (0, 0)
    y = ops.dropout(alpha.tensor(np.array([1, np.inf, np.nan], np.float32), requires_grad=True), 1.0)
    assert_equal_at(y.detach(), [0, 0, 0])
    y.sum().backward()


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_other_dtypes_keep_theirs(dtype):
    y = ops.dropout(alpha.tensor(np.ones(100), dtype), 0.5)
    assert y.dtype == dtype and set(np.unique(y.numpy())) == {0, 2}


def test_gradients_of_both_orders():
    x = alpha.tensor(np.linspace(1, 2, 12), requires_grad=True)

    def f(x):
        return keyed_dropout(x * x, p=0.5, seed=1, offset=0)

    assert gradcheck(f, [x], second_order=True)


@pytest.mark.parametrize("p", [-0.1, 1.5, float("nan")])
def test_p_out_of_range_is_refused(p):
    with pytest.raises(ConfigError) as error:
        ops.dropout(ones(3), p)
    assert f"dropout: p is {p}, a number in [0, 1] is needed" in str(error.value) and "\nhelp: " in str(error.value)
