"""alpha.capture where nothing is recorded: on the CPU the function is called, every time."""

from __future__ import annotations

import pytest

import alpha
from alpha import nn
from alpha.errors import DTypeError


def test_on_the_cpu_every_call_is_a_plain_one():
    net, calls = nn.Linear(2, 1), []

    def losses(x):
        calls.append(x.shape)
        loss = net(x).sum()
        loss.backward()
        return loss.detach()

    compute = alpha.capture(losses, net)
    x = alpha.tensor([[1.0, 2.0]])
    for k in range(1, 5):
        assert compute(x).item() == net(x).item()
        assert net.weight.grad.tolist() == [[k * 1.0, k * 2.0]]  # nobody has dropped it: backward adds
    assert len(calls) == 4


def test_without_arguments():
    assert alpha.capture(lambda: 3)() == 3


def test_a_state_of_something_else_is_refused():
    with pytest.raises(DTypeError, match="capture: the state has a list\nhelp: pass the modules and tensors"):
        alpha.capture(lambda x: x, [nn.Linear(2, 2)])
