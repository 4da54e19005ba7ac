"""alpha.capture: its arguments, its status, and calls that are plain ones; tests/test_capture_cpu.py has recordings."""

from __future__ import annotations

import warnings

import pytest

import alpha
from alpha import nn, ops, optim
from alpha.errors import ArgumentError, DTypeError, GraphError


def test_a_gradient_from_before_the_call_is_added_to_by_a_plain_call():
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
    assert len(calls) == 5 and "has a gradient from before the call" in compute.status   # one call was tried


def test_without_arguments():
    assert alpha.capture(lambda: 3)() == 3


def test_a_state_of_something_else_is_refused():
    with pytest.raises(DTypeError, match="capture: the state has a list\nhelp: pass the modules and tensors"):
        alpha.capture(lambda x: x, [nn.Linear(2, 2)])


def whole_step(net, optimizer):
    def step(x):
        loss = net(x).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()
    return step


def test_with_an_optimizer():
    found = []
    for wrap in (lambda step, *state: step, alpha.capture):
        alpha.manual_seed(0)
        net = nn.Linear(2, 1)
        optimizer = optim.SGD(net.parameters(), lr=lambda step: 0.1 / (1 + step), momentum=0.9)
        step = wrap(whole_step(net, optimizer), net, optimizer)
        found.append([*[step(alpha.tensor([[1.0, 2.0]])).item() for _ in range(5)], net.weight.tolist()])
        assert optimizer.step_count == 5
    assert found[0] == found[1]


def test_a_step_outside_of_the_function_that_makes_it():
    net = nn.Linear(2, 1)
    optimizer = optim.SGD(net.parameters(), lr=0.1)
    step, x = alpha.capture(whole_step(net, optimizer), net, optimizer), alpha.tensor([[1.0, 2.0]])
    step(x)
    with pytest.raises(GraphError, match="SGD: no parameter has a gradient, and a captured function makes the step\n"
                                         "help: drop this call"):
        optimizer.step()
    assert optimizer.step_count == 1
    net(x).sum().backward()     # a step of one's own, of a gradient of one's own
    optimizer.step()
    optimizer.zero_grad()
    del step
    optimizer.step()
    assert optimizer.step_count == 3


def test_an_optimizer_of_another_module_is_refused():
    net, other = nn.Linear(2, 2), nn.Linear(2, 2)
    with pytest.raises(ArgumentError, match=r"the SGD has the parameter weight, shape \(2, 2\), which is not in"):
        alpha.capture(lambda x: x, net, optim.SGD(other.named_parameters(), lr=0.1))
    alpha.capture(lambda x: x, other.weight, other.bias, optim.SGD(other.named_parameters(), lr=0.1))


class Own(optim.Optimizer):
    def __init__(self, params, lr=0.1):
        super().__init__(params, lr=lr)


class Tenth(optim.SGD):
    def update(self, group, params, grads, states, lr, step, factor):
        super().update(group, params, grads, states, lr if step % 10 else 0.0, step, factor)


@pytest.mark.parametrize("make", [Own, Tenth, lambda params, lr: optim.Lookahead(optim.SGD(params, lr=lr))])
def test_an_optimizer_whose_steps_cannot_be_recorded_is_refused(make):
    net = nn.Linear(2, 2)
    with pytest.raises(ArgumentError, match=r"capture: steps of (Own|Tenth|Lookahead) cannot be recorded"):
        alpha.capture(lambda x: x, net, make(net.parameters(), lr=0.1))


class Signs(optim.Composed):
    """w = w - rate * sign(g), in form of a formula and its numbers."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, lr=lr)

    def slots(self, group):
        return ()

    def formula(self, group, w, g, state, lr, step):
        rate, = self.taken(group, lr, step)
        return w - ops.sign(g) * rate, {}

    def numbers(self, group, lr, step):
        return (lr / step,)


def test_an_optimizer_of_ones_own_that_says_its_numbers():
    net = nn.Linear(2, 1)
    before = net.bias.tolist()[0]
    step = alpha.capture(whole_step(net, optimizer := Signs(net.parameters(), lr=0.5)), net, optimizer)
    for _ in range(2):
        step(alpha.tensor([[1.0, 2.0]]))
    assert net.bias.tolist()[0] == pytest.approx(before - 0.5 - 0.25)


def test_status_and_repr_follow_the_calls():
    net = nn.Linear(2, 1)
    optimizer = optim.SGD(net.parameters(), lr=0.1)
    step = alpha.capture(whole_step(net, optimizer), net, optimizer)
    assert step.status == "not called yet" and repr(step) == "<captured step(Linear, SGD): not called yet>"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for k in range(7):
            step(alpha.tensor([[1.0, 2.0]]))
            assert step.status == ("recorded" if k > 1 else
                                   f"warming up: {k + 1} of 2 plain calls, then one is recorded")
    assert step.__name__ == "step" and repr(step) == f"<captured step(Linear, SGD): {step.status}>"


def test_arguments_by_name_are_refused():
    step = alpha.capture(lambda x: x)
    with pytest.raises(ArgumentError, match="capture: the argument x is given by name\nhelp: pass the tensors by"):
        step(x=alpha.ones((2,)))
