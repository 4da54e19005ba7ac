"""Gradients from before a captured call: where the function drops them unread, the call is recorded."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import alpha
from alpha import nn, ops, optim
from tests.cuda.runtime.test_capture import batches

pytestmark = [pytest.mark.cuda, pytest.mark.long]

STEPS = 7


class Run:
    """A network with a frozen and an unused parameter, and a step that is put together of its parts."""

    def __init__(self, captured: bool, begin: Callable[[Run], None], end: Callable[[Run], None] = lambda run: None,
                 with_update: bool = True) -> None:
        alpha.manual_seed(3)
        self.model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10))
        self.model.unused = nn.Parameter(alpha.ones((3,)))
        self.model[0].bias.requires_grad_(False)
        self.model.to("cuda")
        self.optimizer = optim.SGD(self.model.named_parameters(), lr=lambda step: 0.05 / (1 + step), momentum=0.9)
        self.begin, self.end, self.with_update, self.calls = begin, end, with_update, 0
        self.step = alpha.capture(self._step, self.model, self.optimizer) if captured else self._step

    def _step(self, x: alpha.Tensor, y: alpha.Tensor) -> alpha.Tensor:
        self.calls += 1
        self.begin(self)
        loss = ops.cross_entropy(self.model(x), y)
        loss.backward()
        if self.with_update:
            self.optimizer.step()
        self.end(self)
        return loss.detach()

    def seen(self) -> list[Any]:
        grads = {name: p.grad for name, p in self.model.named_parameters()}
        return [{name: None if g is None else g.numpy().tobytes() for name, g in grads.items()},
                [t.numpy().tobytes() for t in self.model.state_dict().values()], self.optimizer.step_count]


def compared(*parts: Any, between: Callable[[Run, int], None] = lambda run, k: None, calls: int = 3, **settings: Any
             ) -> Run:
    """Compares losses and all that steps leave, after each of them, and returns the captured run."""
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for captured in (False, True):
            run, seen = Run(captured, *parts, **settings), []
            for k, (x, y) in enumerate(batches(STEPS)):
                between(run, k)
                seen += [run.step(x, y).numpy().tobytes(), run.seen()]
            found.append(seen)
    assert found[0] == found[1]
    assert run.calls == calls
    return run


def drop_by_optimizer(run: Run) -> None:
    run.optimizer.zero_grad()


def drop_by_module(run: Run) -> None:
    run.model.zero_grad()


def drop_one_by_one(run: Run) -> None:
    for p in run.model.parameters():
        p.grad = None


@pytest.mark.parametrize("drop", [drop_by_optimizer, drop_by_module, drop_one_by_one])
def test_a_step_that_begins_with_zero_grad_is_recorded(drop: Callable[[Run], None]) -> None:
    run = compared(drop)
    assert run.step.status == "recorded"
    assert run.model[0].weight.grad is not None and run.model.unused.grad is None


def test_a_step_that_overwrites_gradients_with_zero_is_recorded() -> None:
    compared(lambda run: run.optimizer.zero_grad(set_to_none=False))


def test_gradients_may_be_there_or_not_before_a_repetition_that_drops_them() -> None:
    def sometimes(run: Run, k: int) -> None:
        if k in (4, 6):
            run.optimizer.zero_grad()
        if k == 5:
            run.model.unused.grad = alpha.ones((3,), device="cuda")

    compared(drop_by_optimizer, between=sometimes)


def test_a_gradient_that_the_function_does_not_touch_stays() -> None:
    def leave(run: Run, k: int) -> None:
        if k == 0:
            run.model.unused.grad = alpha.ones((3,), device="cuda")

    def drop_others(run: Run) -> None:
        for p in run.model.parameters():
            if p is not run.model.unused:
                p.grad = None

    run = compared(drop_others, between=leave, with_update=False)
    assert run.model.unused.grad.tolist() == [1, 1, 1]


def test_a_gradient_that_only_the_optimizer_reads_is_an_input() -> None:
    """The function drops the others; the step reads this one, which the caller may change."""
    def give(run: Run, k: int) -> None:
        run.model.unused.grad = alpha.full((3,), k + 1.0, device="cuda")

    def drop_others(run: Run) -> None:
        for p in run.model.parameters():
            if p is not run.model.unused:
                p.grad = None

    found = []
    for captured in (False, True):
        run = Run(captured, drop_others)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for k, (x, y) in enumerate(batches(STEPS)):
                give(run, k)
                run.step(x, y)
        found.append(run.seen())
    assert found[0] == found[1] and len(caught) == 1
    assert "parameter unused has a gradient from before the call" in str(caught[0].message)


def test_gradients_that_are_added_up_are_warned_of_once() -> None:
    plain, run = Run(False, lambda run: None, with_update=False), Run(True, lambda run: None, with_update=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for k, (x, y) in enumerate([*batches(6), *batches(6)]):
            assert run.step(x, y).item() == plain.step(x, y).item() and run.seen()[0] == plain.seen()[0]
            assert len(caught) == (k >= 4), "the fifth plain call in a row"
    text = str(caught[0].message)
    assert text.startswith("capture: _step is called op by op, not recorded: parameter 4.weight has a gradient from")
    assert "\nhelp: begin the function with optimizer.zero_grad()" in text and caught[0].filename == __file__
    assert run.step.status.startswith("called op by op: parameter 4.weight has a gradient")


def test_every_other_call_that_adds_leaves_the_recording() -> None:
    def every_other(run: Run, k: int) -> None:
        if k % 2 == 0:
            run.optimizer.zero_grad()

    run = compared(lambda run: None, with_update=False, between=every_other, calls=5)  # plain, plain, recorded, plain
    assert run.step.status == "recorded"


def test_gradients_are_as_before_where_the_step_is_refused() -> None:
    run = Run(True, drop_by_optimizer)
    steps = batches(5)
    for x, y in steps[:4]:
        run.step(x, y)
    before = run.seen()
    run.optimizer.param_groups[0]["lr"] = float("nan")
    with pytest.raises(alpha.errors.ConfigError, match="SGD: lr is nan"):
        run.step(*steps[4])
    assert run.seen() == before


def test_a_gradient_of_a_tensor_outside_of_the_state_is_refused() -> None:
    w = alpha.tensor(np.ones(4, np.float32), device="cuda", requires_grad=True)

    def step(x: alpha.Tensor) -> alpha.Tensor:
        loss = (x * w).sum()
        loss.backward()
        return loss.detach()

    captured, x = alpha.capture(step), alpha.tensor(np.ones(4, np.float32), device="cuda")
    captured(x)
    w.grad = None
    captured(x)
    w.grad = None
    with pytest.warns(UserWarning, match=r"backward gives a gradient to a tensor of shape \(4,\) that is not in the"):
        captured(x)
    captured(x)
    assert w.grad.tolist() == [2.0] * 4


def test_a_leaf_that_the_function_makes_may_get_a_gradient() -> None:
    def slope(x: alpha.Tensor) -> alpha.Tensor:
        leaf = (x * 1.0).requires_grad_()
        (leaf * leaf).sum().backward()
        x.requires_grad_()
        (x * x * x).sum().backward()
        g = x.grad.detach()
        x.grad = None
        x.requires_grad_(False)
        return leaf.grad + g

    captured = alpha.capture(slope)
    for k in range(5):
        assert captured(alpha.full((3,), k, device="cuda")).tolist() == [2.0 * k + 3.0 * k * k] * 3
    assert captured.status == "recorded"
