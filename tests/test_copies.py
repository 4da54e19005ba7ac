"""Compiled movement of elements against NumPy: any shape, strides and size of element; forward and backward."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import alpha
from alpha import ops
from alpha.build import compilers
from alpha.core.config import config
from alpha.cpu import native
from alpha.cpu.elementwise import FEW
from alpha.cpu.shape import copy_box
from tests.op_checks import floats

pytestmark = [pytest.mark.skipif(not compilers(), reason="there is no C++ compiler here"),
              pytest.mark.same_without_kernels("it tests the compiled kernels, which it turns on")]


@pytest.fixture(autouse=True)
def kernels() -> Any:
    with config(cpu_kernels=True):
        assert native.library() is not None
        yield


@st.composite
def views(draw: Any) -> tuple[np.ndarray, np.ndarray]:
    """A target and a source of one shape, each of them permuted, cut with a step, turned round."""
    shape = draw(st.lists(st.sampled_from([1, 2, 3, 7, 16, 33, 50]), min_size=1, max_size=4))
    while math.prod(shape) > 60_000:
        shape.pop()
    dtype = draw(st.sampled_from(["uint8", "float16", "float32", "int64"]))
    found = []
    for _ in range(2):
        order = draw(st.permutations(range(len(shape))))
        steps = [draw(st.sampled_from([1, 1, 1, 2, -1, -3])) for _ in shape]
        whole = np.zeros([shape[k] * abs(steps[k]) for k in order], dtype)
        view = whole.transpose(np.argsort(order))
        found.append(view[tuple(slice(None, None, step) for step in steps)])
    found[1][...] = np.random.default_rng(0).integers(0, 250, shape)
    return found[0], found[1]


@settings(max_examples=60)
@given(pair=views())
def test_copies_between_any_strides(pair: tuple[np.ndarray, np.ndarray]) -> None:
    y, x = pair
    copy_box(y, x)
    np.testing.assert_array_equal(y, x)
    base = y.base if y.base is not None else y
    assert np.count_nonzero(base) == np.count_nonzero(x), "nothing else is written"


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_large_moves(threads: int) -> None:
    with config(num_threads=threads):
        x = floats((6, 30, 35, 40), 1).astype(np.float32)
        t = alpha.tensor(x)
        np.testing.assert_array_equal(t.permute(0, 3, 1, 2).numpy(), x.transpose(0, 3, 1, 2))
        np.testing.assert_array_equal(t.permute(3, 2, 1, 0).numpy(), x.transpose(3, 2, 1, 0))
        np.testing.assert_array_equal(ops.flip(t, (1, 3)).numpy(), x[:, ::-1, :, ::-1])
        np.testing.assert_array_equal(t[:, ::2, 3:20, 5:].numpy(), x[:, ::2, 3:20, 5:])
        np.testing.assert_array_equal(t[..., ::-3].numpy(), x[..., ::-3])
        np.testing.assert_array_equal(ops.expand(t[:, :1], x.shape).numpy(), np.broadcast_to(x[:, :1], x.shape))
        shuffled = t.reshape(6, 30, 35, 4, 10).permute(0, 1, 2, 4, 3)
        np.testing.assert_array_equal(shuffled.numpy(), x.reshape(6, 30, 35, 4, 10).transpose(0, 1, 2, 4, 3))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bool", "int64"])
def test_concat_and_pad(dtype: str) -> None:
    a, b = (np.round(floats((9, 30, 20 + k), k) * 3).astype(dtype) for k in range(2))
    for axis in (2, -1):
        np.testing.assert_array_equal(ops.concat([alpha.tensor(v) for v in (a, b, a)], axis).numpy(),
                                      np.concatenate([a, b, a], axis))
    np.testing.assert_array_equal(ops.concat([alpha.tensor(a)] * 2, 0).numpy(), np.concatenate([a, a]))
    assert a.size * 2 > FEW
    for widths in (((0, 0), (1, 2), (3, 0)), ((2, 1), (0, 0), (0, 0)), ((1, 1), (1, 1), (1, 1)),
                   ((40, 0), (0, 0), (0, 9))):
        np.testing.assert_array_equal(ops.pad(alpha.tensor(a), widths, 1).numpy(), np.pad(a, widths, constant_values=1))
    np.testing.assert_array_equal(ops.pad(alpha.tensor(a[:, :0]), ((0, 0), (60, 0), (1, 1)), 1).numpy(),
                                  np.ones((9, 60, 22), dtype))


def test_gradients_of_moves() -> None:
    x = alpha.tensor(floats((6, 30, 35, 8), 1), "float32", requires_grad=True)
    moves = {"permute": lambda t: t.permute(0, 3, 1, 2), "flip": lambda t: ops.flip(t, 2),
             "pad": lambda t: ops.pad(t, ((0, 0), (1, 1), (2, 0), (0, 0))), "slice": lambda t: t[:, 1:, ::2],
             "concat": lambda t: ops.concat([t, t * 2.0], -1), "expand": lambda t: ops.expand(t[:, :, :1], x.shape)}
    for name, move in moves.items():
        y = move(x)
        g = alpha.tensor(floats(y.shape, 2), "float32")
        (dx,) = alpha.grad(y, [x], g)
        v = alpha.tensor(floats(x.shape, 3), "float32")
        left, right = float((move(v) * g).sum().item()), float((v * dx).sum().item())  # the move is linear
        assert abs(left - right) <= 1e-3 * max(1.0, abs(left)), name


@pytest.mark.parametrize("name", ops.__all__)
def test_ops_are_pickled_by_their_names(name: str) -> None:
    found = getattr(ops, name)
    assert pickle.loads(pickle.dumps(found)) is found
