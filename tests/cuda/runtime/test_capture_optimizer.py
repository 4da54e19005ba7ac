"""A step of the optimizer in a captured function: the bits of the step by itself, with numbers that change."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import alpha
from alpha import nn, ops, optim
from alpha.cuda.runtime.kernel import Kernel
from tests.cuda.runtime.test_capture import batches

pytestmark = [pytest.mark.cuda, pytest.mark.long]

STEPS = 8   # of which six are repeated, or recorded


def network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(4),
                         nn.Flatten(), nn.Dropout(0.25), nn.Linear(16, 10))


def groups_of(model: nn.Module) -> list[dict[str, Any]]:
    """Two groups, of which the second has a weight decay and a schedule of its own."""
    first, *rest = model.named_parameters()
    return [{"params": rest}, {"params": [first], "weight_decay": 0.2, "lr": lambda step: 0.01 * (step % 3 + 1)}]


class Run:
    """A network, its optimizer, and a function that makes whole steps."""

    def __init__(self, make: Callable[..., optim.Optimizer], captured: bool, scaled: bool = False,
                 drops: bool = True) -> None:
        alpha.manual_seed(3)
        self.model = network().to("cuda")
        self.optimizer = make(groups_of(self.model), lr=lambda step: 0.02 / (1 + step))
        self.scaler = optim.LossScaler("cuda", growth_interval=2) if scaled else None
        self.drops, self.plain_calls = drops, 0
        self.step = alpha.capture(self._step, self.model, self.optimizer) if captured else self._step

    def _step(self, x: alpha.Tensor, y: alpha.Tensor) -> alpha.Tensor:
        self.plain_calls += 1
        loss = ops.cross_entropy(self.model(x), y)
        if self.scaler:
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer, max_norm=1.0)
        else:
            loss.backward()
            self.optimizer.step()
        if self.drops:
            self.optimizer.zero_grad()
        return loss.detach()

    def bits(self) -> list[Any]:
        """What a step leaves: parameters, statistics, the optimizer's state and counts, the scale."""
        state = self.optimizer.state_dict()
        scale = self.scaler.state_dict() if self.scaler else {}
        return [state["scalars"], *[(name, t.numpy().tobytes()) for part in (self.model.state_dict(), state["tensors"],
                                                                            scale) for name, t in part.items()]]


def compared(make: Callable[..., optim.Optimizer], between: Callable[[Run, int], None] = lambda run, k: None,
             repeated: bool = True, **settings: Any) -> None:
    """Makes the same steps plainly and captured, `between` before each, and compares all that they leave."""
    found = []
    for captured in (False, True):
        run, losses = Run(make, captured, **settings), []
        for k, (x, y) in enumerate(batches(STEPS)):
            between(run, k)
            losses.append(run.step(x, y).numpy().tobytes())
        found.append([losses, run.bits()])
        assert not captured or not repeated or run.plain_calls == 3
    assert found[0] == found[1]


OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "SGD": ("SGD", {}), "momentum": ("SGD", dict(momentum=0.9, dampening=0.1)),
    "nesterov": ("SGD", dict(momentum=0.9, nesterov=True, weight_decay=0.01)),
    "Adam": ("Adam", dict(weight_decay=0.01)), "amsgrad": ("Adam", dict(amsgrad=True)), "AdamW": ("AdamW", {}),
    "Adamax": ("Adamax", {}), "RAdam": ("RAdam", dict(betas=(0.9, 0.9))), "AdaMod": ("AdaMod", {}),
    "RMSprop": ("RMSprop", {}), "centered": ("RMSprop", dict(centered=True, momentum=0.5, weight_decay=0.01)),
    "Lion": ("Lion", {}), "NAdam": ("NAdam", {}), "Adagrad": ("Adagrad", dict(lr_decay=0.1)),
    "Adadelta": ("Adadelta", {}), "LAMB": ("LAMB", {}), "LARS": ("LARS", {}), "Adan": ("Adan", {}),
    "Adafactor": ("Adafactor", {}), "ScheduleFree": ("ScheduleFreeAdamW", dict(warmup_steps=3)),
    "ScheduleFreeSGD": ("ScheduleFreeSGD", dict(warmup_steps=3, weight_decay=0.01)),
    "MuonAdamW": ("MuonAdamW", {})}


def maker(name: str) -> Callable[..., optim.Optimizer]:
    kind, settings = OPTIMIZERS[name]
    return lambda groups, lr: getattr(optim, kind)(groups, lr=lr, **settings)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_bits_are_those_of_the_step_by_itself(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compared(maker(name))


def test_muon_has_the_same_bits_recorded() -> None:
    def make(groups: list[dict[str, Any]], lr: Any) -> optim.Optimizer:
        for group in groups:
            group["params"] = [(name, p) for name, p in group["params"] if p.requires_grad_(p.ndim > 1).requires_grad]
        return optim.Muon(groups, lr=lr)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compared(make)


@pytest.mark.parametrize("name", ["momentum", "AdamW", "Lion"])
def test_a_step_that_overflows_is_skipped(name: str) -> None:
    def overflow(run: Run, k: int) -> None:
        if k > 3:   # among those that are repeated
            run.scaler._scale.copy_(3e38 if k % 2 == 0 else 64.0)

    with alpha.precision("fp16"):
        compared(maker(name), overflow, scaled=True)
        run = Run(maker(name), True, scaled=True)
        for k, (x, y) in enumerate(batches(STEPS)):
            overflow(run, k)
            run.step(x, y)
        assert run.scaler.skipped == 2, "nothing was skipped, so nothing was tested"


def test_settings_and_rates_set_between_steps_take_effect_at_once() -> None:
    def set_them(run: Run, k: int) -> None:
        first, second = run.optimizer.param_groups
        first.update(lr=0.03 / (k + 1), momentum=0.5 + 0.05 * k, weight_decay=0.01 * k)
        second.update(lr=np.float32(0.1) * k)   # NumPy's become Python's before anything is computed of them

    compared(maker("momentum"), set_them)


def test_a_setting_that_changes_the_launches_is_recorded_anew() -> None:
    compared(maker("SGD"), lambda run, k: run.optimizer.param_groups[0].update(momentum=0.9 * (k > 4)), repeated=False)
    compared(maker("Lion"), lambda run, k: run.optimizer.param_groups[0].update(weight_decay=0.1 * (k > 4)),
             repeated=False)


def test_a_step_launches_nothing_behind_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    run, (batch,) = Run(maker("AdamW"), True), batches(1)
    for _ in range(3):
        run.step(*batch)
    launches: list[str] = []
    launch = Kernel.__call__
    monkeypatch.setattr(Kernel, "__call__", lambda self, *args: (launches.append(self.entry), launch(self, *args)))
    run.step(*batch)
    assert launches == ["begin", "copies"]


def test_a_recording_holds_what_updates_find_in_tables() -> None:
    run, (batch,) = Run(maker("AdamW"), True), batches(1)
    for _ in range(3):
        run.step(*batch)
    held = {id(a) for a in run.step.found.recording._held}
    changed = [*run.model.parameters(), *[t for slots in run.optimizer._states.values() for t in slots.values()]]
    assert len(changed) == 15 and all(id(t.array) in held for t in changed)


def test_gradients_are_gone_or_hold_their_values_until_the_next_call() -> None:
    gone, kept, plain = Run(maker("SGD"), True), *(Run(maker("SGD"), c, drops=False) for c in (True, False))
    for k, (x, y) in enumerate(batches(STEPS)):
        gone.step(x, y)
        assert all(p.grad is None for p in gone.model.parameters())
        for run in (kept, plain):
            alpha.manual_seed(k)
            run.optimizer.zero_grad()
            run.step(x, y)
        for p, expected in zip(kept.model.parameters(), plain.model.parameters()):
            assert p.grad.numpy().tobytes() == expected.grad.numpy().tobytes()
    assert kept.plain_calls == gone.plain_calls == 3


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_call_of_other_shapes_and_an_evaluation_in_between(precision: str) -> None:
    """What was computed of the weights, and kept with them, is of the weights before the step: 16-bit operands, say."""
    found = []
    for captured in (False, True):
        run, steps, seen = Run(maker("AdamW"), captured), batches(9), []
        (small,), with_decay = batches(1, size=2), run.optimizer.param_groups[1]["params"][0]
        for k, (x, y) in enumerate(steps):
            with alpha.precision(precision), alpha.no_grad():
                waiting = ops.tanh(with_decay.detach() * 2.0)   # not computed yet
                with alpha.enable_grad():
                    run.step(*(small if k in (4, 6) else (x, y)))
                run.model.eval()
                seen += [waiting.numpy().tobytes(), run.model(x).numpy().tobytes()]
                run.model.train()
        found.append([seen, run.bits()])
        assert not captured or run.plain_calls == 3 + 2
    assert found[0] == found[1]


def test_a_state_that_is_loaded_is_gone_on_with() -> None:
    saved: list[Any] = []

    def go_back(run: Run, k: int) -> None:
        if k in (2, 5):
            copies = {name: t.numpy() for name, t in run.optimizer.state_dict()["tensors"].items()}
            saved[:] = saved or [{"tensors": copies, "scalars": run.optimizer.state_dict()["scalars"]}]
            run.optimizer.load_state_dict(saved[0])

    def forgetful(run: Run, k: int) -> None:
        saved[:] = saved if k else []
        go_back(run, k)

    compared(maker("AdamW"), forgetful, repeated=False)


def test_versions_are_raised_by_each_repetition() -> None:
    run, (batch,) = Run(maker("momentum"), True), batches(1)
    w = next(iter(run.model.parameters()))
    for _ in range(4):
        run.step(*batch)
    before = w._version
    loss = (w * w).sum()
    run.step(*batch)
    assert w._version == before + 1
    with pytest.raises(alpha.errors.GraphError, match="changed"):
        loss.backward()


def test_a_rate_out_of_range_is_refused_before_anything_changes() -> None:
    run, (batch,) = Run(maker("momentum"), True), batches(1)
    for _ in range(4):
        run.step(*batch)
    before = run.bits()
    run.optimizer.param_groups[0]["lr"] = float("nan")
    with pytest.raises(alpha.errors.ConfigError, match="SGD: lr is nan"):
        run.step(*batch)
    run.optimizer.param_groups[0].update(lr=0.1, momentum=2.0)
    with pytest.raises(alpha.errors.ConfigError, match=r"SGD: momentum is 2\.0"):
        run.step(*batch)
    assert run.bits() == before


def test_two_optimizers_and_two_steps_in_one_function() -> None:
    def run(captured: bool) -> list[bytes]:
        alpha.manual_seed(1)
        nets = [nn.Linear(4, 3).to("cuda") for _ in range(2)]
        first = optim.SGD(nets[0].named_parameters(), lr=lambda step: 0.1 / (1 + step), momentum=0.9)
        second = optim.Adam(nets[1].named_parameters(), lr=lambda step: 0.1 / (2 + step))

        def step(x: alpha.Tensor) -> alpha.Tensor:
            for optimizer in (first, second, first):
                (nets[1](x) - nets[0](x)).pow(2).mean().backward()
                optimizer.step()
                first.zero_grad()
                second.zero_grad()
            return nets[0].weight.detach().sum()

        whole = alpha.capture(step, *nets, first, second) if captured else step
        x = alpha.tensor(np.ones((2, 4), np.float32), device="cuda")
        losses = [whole(x).numpy().tobytes() for _ in range(STEPS)]
        assert (first.step_count, second.step_count) == (2 * STEPS, STEPS)
        return [*losses, *[t.numpy().tobytes() for net in nets for t in net.parameters()]]

    assert run(False) == run(True)


@contextmanager
def refusal(why: str) -> Iterator[None]:
    with pytest.warns(UserWarning, match=f"(?s){why}.*op by op"):
        yield


class Halved(optim.SGD):
    """Says of itself what is not so."""

    def update(self, group, params, grads, states, lr, step, factor):
        super().update(group, params, grads, states, lr / 2, step, factor)

    def numbers(self, group, lr, step):
        return super().numbers(group, lr, step)


class Plain(optim.Optimizer):
    """Says its numbers, and computes with others."""

    def __init__(self, params, lr=0.1, weight_decay=0.0):
        super().__init__(params, lr=lr, weight_decay=weight_decay)

    def slots(self, group):
        return ()

    def update(self, group, params, grads, states, lr, step, factor):
        for p, g in zip(params, grads):
            p.copy_(p - g * lr)

    def numbers(self, group, lr, step):
        return (lr,)


@pytest.mark.parametrize(("make", "why"), [(Halved, "other numbers than `numbers`"),
                                           (Plain, "an update that does not read its numbers")])
def test_an_update_that_its_numbers_do_not_tell_of_is_called_plainly(make: Any, why: str) -> None:
    with refusal(why):
        compared(make, repeated=False)


def test_more_groups_than_there_is_room_for_are_called_plainly() -> None:
    def run(count: int) -> list[bytes]:
        alpha.manual_seed(0)
        net = nn.Sequential(*[nn.Linear(2, 2) for _ in range(count)]).to("cuda")
        optimizer = optim.AdamW([{"params": [p]} for p in net.parameters()], lr=lambda step: 0.1 / (1 + step))
        x = alpha.tensor(np.ones((1, 2), np.float32), device="cuda")

        def step(x: alpha.Tensor) -> alpha.Tensor:
            loss = net(x).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        whole = alpha.capture(step, net, optimizer)
        return [whole(x).numpy().tobytes() for _ in range(4)]

    assert len(set(run(30))) > 1    # 60 groups
    with refusal("more groups of parameters than there is room for"):
        run(50)


def test_lookahead_is_not_recorded() -> None:
    alpha.manual_seed(0)
    net = nn.Linear(4, 3).to("cuda")
    inner = optim.SGD(net.named_parameters(), lr=0.1)
    outer = optim.Lookahead(inner, k=4)

    def step(x: alpha.Tensor) -> alpha.Tensor:
        loss = net(x).sum()
        loss.backward()
        outer.step()
        outer.zero_grad()
        return loss.detach()

    whole, x = alpha.capture(step, net, inner), alpha.tensor(np.ones((2, 4), np.float32), device="cuda")
    whole(x)
    whole(x)
    with refusal("Lookahead: its step is not the same each time"):
        whole(x)
    assert inner.step_count == 3
