"""What a captured function tells of itself: whether it is recorded, and why it is called op by op."""

from __future__ import annotations

import warnings
from collections import namedtuple
from typing import Any

import pytest

import alpha
from alpha import nn

pytestmark = [pytest.mark.cuda, pytest.mark.long]


def ones(*shape: int) -> alpha.Tensor:
    return alpha.ones(shape, device="cuda")


def told(captured: Any, *calls: Any) -> str:
    """Returns the only warning of these calls, of which the first four give none."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for k, call in enumerate(calls):
            captured(*call) if isinstance(call, tuple) else captured(call)
            assert k >= 4 or not caught
    assert len(caught) == 1
    text = str(caught[0].message)
    assert "is called op by op, not recorded: " in text and "\nhelp: " in text
    reason = text.split("not recorded: ")[1].split(", from")[0].split("\nhelp")[0]
    assert captured.status.startswith(f"called op by op: {reason}")
    return text


def double(x: alpha.Tensor) -> alpha.Tensor:
    return x * 2.0


def test_status_and_repr_follow_the_calls() -> None:
    net = nn.Linear(3, 2).to("cuda")
    captured, seen = alpha.capture(lambda x: net(x).detach(), net), []
    seen.append(captured.status)
    for _ in range(4):
        captured(ones(2, 3))
        seen.append(captured.status)
    captured(ones(1, 3))
    seen.append(captured.status)
    assert seen == ["not called yet", "warming up: 1 of 2 plain calls, then one is recorded",
                    "warming up: 2 of 2 plain calls, then one is recorded", "recorded", "recorded",
                    "called op by op: shape of argument 1 changes, from (2, 3) to (1, 3)"]
    assert repr(captured) == f"<captured <lambda>(Linear): {seen[-1]}>"


def test_shapes_that_change() -> None:
    text = told(alpha.capture(double), *[ones(k) for k in range(2, 9)])
    assert "shape of argument 1 changes, from (5,) to (6,)" in text and "drop_last" in text


def test_shapes_that_take_turns() -> None:
    assert "shape of argument 1 changes" in told(alpha.capture(double), *[ones(2 + k // 2 % 2) for k in range(9)])


def test_an_argument_that_needs_a_gradient() -> None:
    x = ones(2).requires_grad_()
    assert "argument 1, a float32 tensor of shape (2,), requires a gradient\nhelp: pass x.detach()" in told(
        alpha.capture(double), *[x] * 7)


def test_an_argument_that_is_no_tensor() -> None:
    assert "argument 2 is 3, not a tensor" in told(alpha.capture(lambda x, k: x * k), *[(ones(2), 3)] * 7)


def test_no_argument() -> None:
    assert "without arguments" in told(alpha.capture(lambda: None, ones(2)), *[()] * 7)


def test_hooks_of_modules_and_of_tensors() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU()).to("cuda")
    handle = net[1].register_forward_hook(lambda module, args, y: None)
    assert "module 1 has a hook" in told(alpha.capture(lambda x: net(x).detach(), net), *[ones(1, 2)] * 7)
    handle.remove()
    net[0].bias.register_hook(lambda g: None)
    assert "parameter 0.bias has a hook" in told(alpha.capture(lambda x: net(x).detach(), net), *[ones(1, 2)] * 7)


@pytest.mark.parametrize(("setting", "name"), [
    (dict(check_nan=True), "ALPHA_CHECK_NAN"), (dict(sync=True), "ALPHA_SYNC"),
    (dict(capture=False), "ALPHA_CAPTURE is 0")], ids=str)
def test_settings(setting: dict[str, Any], name: str) -> None:
    with alpha.config(**setting):
        assert name in told(alpha.capture(double), *[ones(2)] * 7)


def test_the_profiler() -> None:
    with alpha.profiler():
        assert "alpha.profiler watches each op" in told(alpha.capture(double), *[ones(2)] * 7)


def test_modes_that_change() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.0)).to("cuda")

    def switched(x: alpha.Tensor) -> alpha.Tensor:
        y = net(x).detach()
        net[1].train(not net[1].training)
        return y

    with alpha.config(capture=True):
        captured = alpha.capture(switched, net)
        assert "module 1 is switched between training and evaluation" in told(captured, *[ones(1, 2)] * 7)


def test_calls_that_are_repeated_end_the_count() -> None:
    captured = alpha.capture(double)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            for size in (4, 4, 4, 4, 2, 3, 2):
                captured(ones(size))
    assert captured.status.startswith("called op by op: shape of argument 1")


class Both(namedtuple("Both", "loss logits")):
    pass


@pytest.mark.parametrize("pack", [lambda y: None, lambda y: [y, y + 1.0], lambda y: (y,), lambda y: Both(y, y * 3.0)])
def test_results_are_of_the_kind_that_the_function_returns(pack: Any) -> None:
    captured = alpha.capture(lambda x: pack(x * 2.0))
    for k in range(5):
        found, expected = captured(alpha.full((2,), k, device="cuda")), pack(alpha.full((2,), k, device="cuda") * 2.0)
        assert type(found) is type(expected)
        assert [y.tolist() for y in found or ()] == [y.tolist() for y in expected or ()]
    assert captured.status == "recorded"


@pytest.mark.parametrize(("result", "why"), [
    (lambda net, x: net(x).sum(), r"returns a float32 tensor of shape \(\) with its graph.*\nhelp: .*detach"),
    (lambda net, x: {"loss": net(x).detach()}, "the function returns .*not a tensor"),
    (lambda net, x: (net(x).detach(), alpha.ones((2,))), r"returns a float32 tensor of shape \(2,\) on cpu"),
])
def test_a_result_that_cannot_be_repeated_is_named(result: Any, why: str) -> None:
    net = nn.Linear(2, 2).to("cuda")
    captured, x = alpha.capture(lambda x: result(net, x), net), ones(1, 2)
    captured(x)
    captured(x)
    with pytest.warns(UserWarning, match=why) as caught:
        captured(x)
    assert len(caught) == 1 and "read back" not in str(caught[0].message)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(6):
            captured(x)
    assert captured.status.startswith("called op by op: the function returns")


def test_a_recording_goes_with_its_function() -> None:
    from alpha.cuda.runtime import memory
    captured = alpha.capture(double)
    for size in (2, 4, 4, 4, 4, 3):
        captured(ones(size))
    assert memory.pool.reserved
    del captured
    assert not memory.pool.reserved
