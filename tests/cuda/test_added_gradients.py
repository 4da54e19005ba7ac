"""Gradients of a map that several ops read are added up by the convolution that comes later, in place."""

from __future__ import annotations

import numpy as np
import pytest

import alpha
from alpha import nn, ops
from alpha.core.graph import no_grad
from alpha.core.op import observers
from tests.cuda.agree import ints
from tests.cuda.process import COUNTS_LIVE

pytestmark = pytest.mark.cuda


@pytest.fixture
def seen():
    """The names of the ops that are called."""
    names = []

    def observe(op, args, attrs, outs):
        names.append(op.name)
    observers.append(observe)
    yield names
    observers.remove(observe)


class Block(nn.Module):
    """Three readers of one map: two convolutions, one of them with bias and relu, and a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.Conv2d(8, 8, 1)

    def forward(self, h):
        return h + self.first(h) + ops.relu(self.second(h))


def gradients(dtype: str, hook=None):
    """Returns the gradients of a block on integers, where sums in any order are exact."""
    alpha.manual_seed(0)
    stem, block = nn.Conv2d(8, 8, 1, bias=False), Block()
    with no_grad():
        for k, p in enumerate((*stem.parameters(), *block.parameters())):
            p.copy_(ints(*p.shape, seed=k, low=-1, high=2))
    stem.to("cuda"), block.to("cuda")
    x = alpha.tensor(ints(2, 4, 4, 8, seed=9, low=-1, high=2), device="cuda").astype(dtype).requires_grad_()
    h = stem(x)
    if hook:
        h.register_hook(hook)
    block(h).backward(alpha.ones((2, 4, 4, 8), device="cuda").astype(dtype))
    return [x.grad, *(p.grad for p in (*stem.parameters(), *block.parameters()))]


@COUNTS_LIVE
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_sums_have_the_bits_of_single_ops(device, seen, monkeypatch, dtype):
    from alpha.core.device import get_backend
    ops_before: list[str] = []
    for _ in range(6):  # what waited for modules held its operands: the next time may choose otherwise, and wait again
        seen.clear()
        gradients(dtype)
        get_backend("cuda").synchronize()
        if seen == ops_before:
            break
        ops_before = list(seen)
    seen.clear()
    found = [g.astype("float32").numpy() for g in gradients(dtype)]
    added = seen.count("conv2d_dgrad_add")
    assert added == (0 if dtype == "float32" else 1)  # what the sum passes on is the gradient of its other term too
    monkeypatch.setattr(type(get_backend("cuda")), "is_sole", lambda self, t: False)
    expected = [g.astype("float32").numpy() for g in gradients(dtype)]
    assert seen.count("conv2d_dgrad_add") == added
    for a, b in zip(found, expected):
        np.testing.assert_array_equal(a, b)


def test_a_gradient_that_somebody_holds_is_not_overwritten(device):
    held = []
    gradients("bfloat16", held.append)
    expected = held[0].numpy().copy()
    g = alpha.ones((2, 4, 4, 8), device="cuda").astype("bfloat16")
    weights = alpha.tensor(ints(8, 1, 1, 8), device="cuda")
    h = alpha.tensor(ints(2, 4, 4, 8), device="cuda").astype("bfloat16").requires_grad_() * 1.0
    ((ops.conv2d(h, weights)) + h).backward(g)
    assert (g.astype("float32").numpy() == 1).all()
    np.testing.assert_array_equal(held[0].numpy(), expected)


@pytest.mark.long
def test_captured_steps_add_in_place_too(device):
    alpha.manual_seed(0)
    block = Block().to("cuda")
    x = alpha.tensor(ints(2, 4, 4, 8), device="cuda")

    def step(x):
        h = block.first(x.astype("bfloat16"))
        loss = ops.sum(block(h).astype("float32"))
        loss.backward()
        return loss.detach()
    step(x)
    expected = [p.grad.numpy() for p in block.parameters()]
    captured = alpha.capture(step, block)
    for _ in range(2):
        for p in block.parameters():
            p.grad = None
        captured(x)
    for p, right in zip(block.parameters(), expected):
        np.testing.assert_array_equal(p.grad.numpy(), right)
