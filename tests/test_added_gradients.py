"""Gradients of a map that several ops read are added up by the convolution that comes later, in place, on the CPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import alpha
from alpha import nn, ops
from alpha.core.device import get_backend
from alpha.core.op import observers
from alpha.cpu import native
from tests.conv_cases import Case, square

compiled = pytest.mark.skipif(native.library() is None, reason="there are no compiled CPU kernels here")
BRANCHES = (1, 1, 3)    # sides of the filters that read one map


@pytest.fixture
def seen() -> Iterator[Counter[str]]:
    """How often each op is called."""
    names: Counter[str] = Counter()

    def observe(op: Any, *_: Any) -> None:
        names[op.name] += 1
    observers.append(observe)
    yield names
    observers.remove(observe)


def gradients() -> list[np.ndarray]:
    """Returns the gradients of a map that three convolutions and a pool read, and of what made it."""
    alpha.manual_seed(0)
    x = ops.randn((4, 12, 12, 20)).requires_grad_()
    stem, branches = nn.Conv2d(20, 40, 1), [nn.Conv2d(40, 24, f, padding=f // 2) for f in BRANCHES]
    h = ops.relu(stem(x))
    y = ops.concat([branch(h) for branch in branches] + [ops.max_pool2d(h, 3, 1, 1)], axis=-1)
    ops.tanh(y).sum().backward()
    return [t.grad.numpy() for t in (x, *stem.parameters(), *(p for b in branches for p in b.parameters()))]


def test_sums_have_the_bits_of_single_ops(seen: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    added = gradients()
    assert seen["conv2d_dgrad_add"] == 3 and seen["add"] == 0
    monkeypatch.setattr(type(get_backend("cpu")), "is_sole", lambda self, t: False)
    for a, b in zip(added, gradients()):
        np.testing.assert_array_equal(a, b)
    assert seen["conv2d_dgrad_add"] == 3 and seen["add"] == 3


@pytest.mark.parametrize("size", [6, 60])   # of memory from malloc, and from the pool
@pytest.mark.parametrize("take", [None, lambda g: g, lambda g: g.detach(), lambda g: g.array, lambda g: g.array[1:],
                                  lambda g: g.reshape(-1)])
def test_a_gradient_that_somebody_holds_is_not_overwritten(size: int, take: Callable[[alpha.Tensor], Any] | None,
                                                           seen: Counter[str]) -> None:
    held: list[Any] = []

    def hold(g: alpha.Tensor) -> None:
        if take:
            held.append((take(g), np.array(take(g))))
    h = ops.relu(ops.randn((2, size, size, 16)).requires_grad_() * 2.0)
    later = ops.conv2d(h, ops.randn((8, 1, 1, 16)))
    same = h + 1.0          # hands its gradient down as it is
    same.register_hook(hold)
    (ops.tanh(same).sum() + later.sum()).backward()
    assert seen["conv2d_dgrad_add"] == (take is None)
    for now, before in held:
        np.testing.assert_array_equal(np.array(now), before)


@pytest.mark.parametrize("size", [6, 60])
@pytest.mark.parametrize("take", [None, lambda g: g, lambda g: g.detach(), lambda g: g.array, lambda g: g.array[1:],
                                  lambda g: g.reshape(-1)])
def test_sums_of_plain_gradients_are_made_in_place_where_nobody_holds_the_first(
        size: int, take: Callable[[alpha.Tensor], Any] | None, seen: Counter[str]) -> None:
    held: list[Any] = []

    def hold(g: alpha.Tensor) -> None:
        if take:
            held.append((take(g), np.array(take(g))))
    x = ops.randn((2, size, size, 16)).requires_grad_()

    def f() -> alpha.Tensor:
        h = ops.tanh(x)
        first = (h * 3.0).sum()
        same = h + 1.0      # hands its gradient down as it is, before the one of `first` arrives
        same.register_hook(hold)
        return first + ops.exp(same).sum()
    f().backward()
    assert (seen["add_onto"], seen["add"]) == ((1, 2) if take is None else (0, 3))
    for now, before in held:
        np.testing.assert_array_equal(np.array(now), before)
    (expected,) = alpha.grad(f(), [x], create_graph=True)
    np.testing.assert_array_equal(x.grad.numpy(), expected.numpy())
    before = x.grad.numpy()
    f().backward()          # onto what backward left on a leaf, which the user may hold
    np.testing.assert_array_equal(x.grad.numpy(), before + expected.numpy())


@compiled
@pytest.mark.parametrize("case", [square("1x1", 3, 7, 40, 24, 1), square("pairs", 2, 5, 5, 24, 1),
                                  square("3x3", 2, 9, 16, 20, 3, 1, 1), square("stride", 2, 9, 24, 8, 1, 2),
                                  square("pixels", 2, 40, 6, 3, 3, 1, 1),
                                  Case("groups", 2, (6, 7), 16, 32, (3, 2), (2, 1), (1, 0), (1, 2), 4),
                                  square("stretches", 8, 32, 200, 40, 1)], ids=lambda c: c.name)
@pytest.mark.parametrize("threads", [1, 2])
def test_the_kernel_adds_behind_the_sum(case: Case, threads: int) -> None:
    rng = np.random.default_rng(0)
    g, w, onto = (rng.standard_normal(s, np.float32) for s in (case.desc.y_shape, case.w_shape, case.x_shape))
    dx = np.empty_like(onto)
    with alpha.config(num_threads=threads):
        native.library()
        native.conv_dgrad(case.desc, g, w, dx)
        expected = onto + dx
        assert native.conv_dgrad_adds(case.desc)
        native.conv_dgrad_add(case.desc, g, w, onto)
    np.testing.assert_array_equal(onto, expected)


@compiled
def test_sums_of_several_chains_and_depthwise_ones_are_left_to_two_passes() -> None:
    for case in (square("long", 1, 3, 8, 2100, 1), square("depthwise", 2, 5, 16, 16, 3, 1, 1, groups=16)):
        native.library()
        assert not native.conv_dgrad_adds(case.desc)
