"""What is given to fit has an effect or is refused: modes, averages, settings beside others, callbacks, optimizers."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import alpha
from alpha import nn, ops, optim
from alpha.core.config import config
from alpha.core.device import get_backend
from alpha.data import DataLoader
from alpha.errors import ConfigError, ShapeError
from alpha.nn.module import evaluating
from alpha.training import Callback, Plateau, Profile, accuracy, fit
from tests.op_checks import refused

RNG = np.random.default_rng(0)
DATA = RNG.standard_normal((16, 4)).astype(np.float32), np.arange(16) % 2


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    with config(num_threads=1):
        yield


def net() -> nn.Sequential:
    alpha.manual_seed(1)
    return nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)), nn.Linear(4, 2))


def run(model: nn.Module | None = None, **settings: Any) -> Any:
    return fit(net() if model is None else model, **{"train_data": DATA, "batch_size": 4, "progress": False,
                                                     **settings})


# ---- modes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("val", [None, DATA])
def test_frozen_batch_norm_keeps_its_statistics(val: Any) -> None:
    model = net()
    model[0].eval()
    before = [t.numpy() for t in model[0].buffers()]
    run(model, val_data=val, epochs=2)
    assert all(np.array_equal(a, b.numpy()) for a, b in zip(before, model[0].buffers()))
    assert [m.training for m in model.modules()] == [True, False, False, False, False, True]


def test_a_model_in_inference_mode_is_trained_as_a_whole_and_left_as_it_was() -> None:
    model = net().eval()
    before = model[0][1].running_mean.numpy()
    run(model, val_data=DATA)
    assert not np.array_equal(before, model[0][1].running_mean.numpy())
    assert not any(m.training for m in model.modules())


def test_a_callback_that_evaluates_does_not_freeze_the_epochs_behind_it() -> None:
    model, seen = net(), []
    model[0].eval()

    class Looks(Callback):
        def on_step(self, run: Any, loss: Any) -> None:
            seen.append([m.training for m in run.model.modules()])

        def on_epoch(self, run: Any, row: Any) -> None:
            run.model.eval()

    run(model, epochs=2, callbacks=Looks())
    assert len(seen) == 8 and seen[0] == seen[-1] == [True, False, False, False, False, True]


def test_a_train_method_of_a_part_is_asked() -> None:
    class Frozen(nn.Module):
        def __init__(self) -> None:
            self.norm = nn.BatchNorm1d(4)

        def train(self, mode: bool = True) -> nn.Module:
            super().train(mode)
            self.norm.eval()
            return self

        def forward(self, x: alpha.Tensor) -> alpha.Tensor:
            return self.norm(x)

    model = nn.Sequential(Frozen(), nn.Linear(4, 2)).train()
    assert [m.training for m in model.modules()] == [True, True, False, True]
    with evaluating(model):
        assert not any(m.training for m in model.modules())
    assert [m.training for m in model.modules()] == [True, True, False, True]


# ---- the moving average ----------------------------------------------------------------------------------------------


def test_figures_say_whether_they_are_of_the_weights_or_of_the_average(capsys: pytest.CaptureFixture) -> None:
    model = net()
    history = run(model, val_data=DATA, epochs=3, lr=0.5, ema=0.9, progress=True)
    assert "val accuracy" in (out := capsys.readouterr().out) and "ema val accuracy" in out

    def measured() -> float:
        with evaluating(model), alpha.no_grad():
            return ops.cross_entropy(model(alpha.tensor(DATA[0])), alpha.tensor(DATA[1])).item()

    assert history["val_loss"][-1] == pytest.approx(measured(), abs=1e-5)
    assert history["val_loss"][-1] != pytest.approx(history["ema_val_loss"][-1], abs=1e-3)
    with history.ema.applied():
        assert history["ema_val_loss"][-1] == pytest.approx(measured(), abs=1e-5)
    model.load_state_dict(history.ema.state_dict())
    assert history["ema_val_loss"][-1] == pytest.approx(measured(), abs=1e-5)
    assert "ema_val_loss" not in run(val_data=DATA)[0] and run().ema is None


@pytest.mark.parametrize("change, text", [
    (lambda model: setattr(model, "1", nn.Linear(4, 3)), "1.weight of shape (2, 4) is averaged, the model has another"),
    (lambda model: setattr(model[1], "bias", None), "1.bias of shape (2,) is averaged, which the model no longer has"),
    (lambda model: setattr(model[1], "more", nn.Parameter(ops.ones((1,)))), "1.more of shape (1,), which is not"),
], ids=["replaced", "gone", "new"])
def test_an_average_of_other_parameters_than_the_model_has_is_refused(change: Callable, text: str) -> None:
    model = net()
    average = optim.ExponentialMovingAverage(model, 0.5)
    average.update()
    change(model)
    for use in (average.update, average.state_dict, average.applied().__enter__):
        with refused(ConfigError, "ExponentialMovingAverage: ", text, "make the average once the model has"):
            use()


# ---- optimizers that do not change the model -------------------------------------------------------------------------


def test_an_optimizer_of_a_replaced_head_is_refused() -> None:
    model = net()
    optimizer = optim.SGD(model.named_parameters(), lr=0.1)
    model[1] = nn.Linear(4, 2)
    with refused(ConfigError, "fit: the SGD has 1.weight of shape (2, 4), which the model does not have (any more), "
                 "and lacks 1.weight of the model", "make the optimizer once the model has all"):
        run(model, optimizer=optimizer)
    model = net()

    def replace(trainer: Any, row: Any) -> None:
        trainer.model[1] = nn.Linear(4, 2)
    with refused(ConfigError, "which the model does not have"):
        run(model, epochs=2, callbacks=replace)


def test_an_optimizer_may_have_parameters_of_a_loss_module_or_a_part_of_the_model() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            self.scale = nn.Parameter(ops.ones((1,)))

        def forward(self, outputs: alpha.Tensor, targets: alpha.Tensor) -> alpha.Tensor:
            return ops.cross_entropy(outputs * self.scale, targets)

    model, loss = net(), Scaled()
    run(model, loss=loss, optimizer=optim.SGD([*model[1].parameters(), *loss.parameters()], lr=0.1))
    assert loss.scale.item() != 1


class Rebinds(optim.Optimizer):
    """Makes new tensors, which nobody reads."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, lr=lr)

    def slots(self, group: Any) -> tuple[str, ...]:
        return ()

    def update(self, group: Any, params: Any, grads: Any, states: Any, lr: float, step: int, factor: Any) -> None:
        for p, g in zip(params, grads):
            p = p - g * lr


class RebindsInItsGroups(Rebinds):
    def step(self, factor: Any = None) -> None:
        for group in self.param_groups:
            group["params"] = [p - p.grad * 0.1 for p in group["params"]]


class RebindsInItsStep(Rebinds):
    def step(self, factor: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p = p - p.grad * 0.1


@pytest.mark.parametrize("kind, text", [(Rebinds, "a step of it has changed no parameter of the model"), (
    RebindsInItsStep, "4 steps of it has changed no"), (RebindsInItsGroups, "has put new tensors into its groups")])
def test_an_optimizer_that_makes_new_tensors_is_refused(kind: type, text: str) -> None:
    with refused(ConfigError, f"{kind.__name__}: ", text, "change them in place, p.copy_("):
        run(optimizer=kind)


def test_an_optimizer_that_writes_in_place_is_taken() -> None:
    class Copies(Rebinds):
        def update(self, group: Any, params: Any, grads: Any, states: Any, lr: float, step: int, factor: Any) -> None:
            for p, g in zip(params, grads):
                p.copy_(p - g * lr)

    class Arrays(Rebinds):
        def step(self, factor: Any = None) -> None:
            for group in self.param_groups:
                for p in group["params"]:
                    p.array[...] -= 0.1 * p.grad.array

    class EverySecond(Copies):
        calls = 0

        def step(self, factor: Any = None) -> None:
            object.__setattr__(self, "calls", self.calls + 1)
            if self.calls % 2 == 0:
                super().step(factor)
    for kind in (Copies, Arrays, EverySecond):
        run(optimizer=kind)


# ---- settings beside others ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", [
    dict(batch_size=32), dict(mean=0.5), dict(std=0.5), dict(augment="flip"), dict(seed=0), dict(workers=0),
    dict(processes=False), dict(drop_last=True)], ids=str)
def test_settings_of_a_loader_beside_a_loader_are_refused(setting: dict) -> None:
    (name,) = setting
    with refused(ConfigError, f"fit: {name}=", "beside train_data that is a DataLoader", f"give {name} to the DataL"):
        fit(net(), DataLoader(DATA, 4), progress=False, **setting)


def test_settings_of_a_loader_serve_the_data_that_are_no_loader() -> None:
    assert fit(net(), DataLoader(DATA, 4), DATA, batch_size=3, progress=False)["step"] == [4]


@pytest.mark.parametrize("settings, both", [
    (dict(lr=lambda t: 0.1, schedule="cosine"), ("schedule=", "an lr that is a function")),
    (dict(lr=lambda t: 0.1, schedule="constant"), ("schedule=", "an lr that is a function")),
    (dict(lr=lambda t: 0.1, warmup_steps=2), ("warmup_steps=2", "an lr that is a function")),
    (dict(lr=lambda t: 0.1, gamma=0.5, schedule=None, optimizer=lambda p, lr: optim.SGD(p, lr=lr)),
     ("there is no setting 'gamma'",)),
    (dict(warmup_steps=5), ("warmup_steps=5", "the run, which has 4 steps")),
    (dict(warmup_steps=3, max_steps=2), ("warmup_steps=3", "the run, which has 2 steps")),
    (dict(schedule="step", step_size=4), ("step_size=4", "the 4 steps of the run")),
    (dict(schedule="multistep", milestones=[2, 9]), ("milestones has 9", "the run has 4 steps")),
    (dict(optimizer=lambda p: optim.SGD(p, lr=0.1), lr=0.5), ("lr is given", "takes no lr")),
    (dict(optimizer=lambda p: optim.SGD(p, lr=0.1), schedule="cosine"), ("schedule is given", "takes no lr")),
    (dict(optimizer=lambda p, lr: optim.SGD(p, lr=lr), schedule="cosine"), ("schedule is given without lr",)),
    (dict(metrics=[lambda y, t: y.mean(), lambda y, t: y.sum()]), ("two of them are called '<lambda>'",)),
    (dict(schedule="plateau"), ("schedule is", "Plateau(patience=3)")),
    (dict(schedule=optim.ReduceLROnPlateau), ("schedule is", "Plateau(patience=3)")),
], ids=lambda v: " and ".join(v) if isinstance(v, dict) else "")
def test_a_setting_without_effect_is_refused(settings: dict, both: tuple) -> None:
    with refused(ConfigError, *both):
        run(**settings)


def test_an_optimizer_that_is_made_already_takes_no_warm_up() -> None:
    model = net()
    with refused(ConfigError, "fit: warmup_steps is given beside an optimizer that is made already", "it is SGD"):
        run(model, optimizer=optim.SGD(model.parameters(), lr=0.1), warmup_steps=2)


def test_the_schedule_of_a_class_begins_at_the_rate_of_its_signature() -> None:
    class Slow(optim.SGD):
        def __init__(self, params: Any, lr: Any = 0.25) -> None:
            super().__init__(params, lr=lr)
    assert run(optimizer=Slow, schedule="cosine", epochs=3)["lr"] == run(lr=0.25, schedule="cosine", epochs=3)["lr"]


def test_a_last_batch_of_one_is_left_out_by_drop_last() -> None:
    data = DATA[0][:9], DATA[1][:9]
    with refused(ShapeError, "training needs more than 1 value per channel", "pass drop_last=True to fit or"):
        run(train_data=data)
    assert run(train_data=data, val_data=data, drop_last=True)["step"] == [2]


def test_a_label_to_ignore_beside_probabilities_is_refused() -> None:
    t = alpha.tensor(np.full((2, 3), 1 / 3, np.float32))
    for loss in (lambda **s: ops.cross_entropy(t, t, **s), lambda **s: nn.CrossEntropyLoss(**s)(t, t)):
        with refused(ConfigError, "ignore_index is 2, and target holds probabilities"):
            loss(ignore_index=2)
        assert loss().shape == ()


# ---- callbacks -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name, meant", [("on_epoch_end", "on_epoch"), ("on_train_begin", "on_start"), (
    "on_batch_end", "on_step"), ("on_stepp", "on_step"), ("on_train_end", "on_end")])
def test_a_method_that_nobody_would_call_is_refused(name: str, meant: str) -> None:
    calls: list = []
    kind = type("Mine", (Callback,), {name: lambda self, *args: calls.append(args)})
    with refused(ConfigError, f"Mine has a method '{name}'", f"did you mean '{meant}'?"):
        run(callbacks=kind())


def test_a_callback_that_cannot_be_called_is_refused_before_the_first_step() -> None:
    class Mine(Callback):
        def on_epoch(self, run: Any) -> None:  # type: ignore[override]
            pass

    class Duck:
        def __call__(self, run: Any, row: Any) -> None:
            pass

        def on_step(self, run: Any, loss: Any) -> None:
            pass
    for callback, text in ((Mine(), "Mine.on_epoch does not take (run, row)"), (lambda run: None, "a callback does"),
                           (Duck(), "a method on_step that nobody would call")):
        with refused(ConfigError, text):
            run(callbacks=[callback])


@pytest.mark.parametrize("epoch, steps, kept", [(16, 1, 1), (8, 1, 1), (4, 2, 2), (8, 2, 2)])
def test_the_steps_before_a_profile_leave_room_for_it(epoch: int, steps: int, kept: int, tmp_path: Path) -> None:
    import json
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(batch_size=epoch, epochs=2, callbacks=Profile(tmp_path, steps=steps))
    events = json.loads((tmp_path / "profile.json").read_text())["traceEvents"]
    assert sum(e["name"] == "sgd_step" for e in events) == kept


def test_a_profile_of_fewer_steps_says_so(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"Profile: 9 steps are to be profiled .* 4 were made in one epoch"):
        run(callbacks=Profile(tmp_path, steps=9))


def test_a_plateau_lowers_the_rate_that_fit_made_of_a_number() -> None:
    history = run(val_data=DATA, epochs=4, lr=0.1, callbacks=Plateau(patience=0, threshold=1e9, factor=0.5))
    assert history["lr"] == [0.1, 0.1, 0.05, 0.025]
    assert run(epochs=2, lr=0.1, callbacks=Plateau("train_accuracy", patience=5))["lr"] == [0.1, 0.1]
    for settings, made, text in (
            (dict(schedule="cosine"), Plateau, "lr is a function of the step, which a plateau cannot lower"),
            ({}, lambda: Plateau("eval_loss"), "the column 'eval_loss' has no value"),
            ({}, lambda: Plateau("val_error"), "mode is not given"),
            ({}, lambda: Plateau(patienc=3), "did you mean 'patience'?"),
            ({}, lambda: Plateau(factor=2), "factor is 2")):
        with refused(ConfigError, text):
            run(val_data=DATA, callbacks=made(), metrics=accuracy, **settings)


def test_what_the_first_op_waits_for_is_no_part_of_the_first_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    import time
    monkeypatch.setattr(get_backend("cpu"), "prepare", lambda: time.sleep(0.5), raising=True)
    assert run()["seconds"][0] < 0.5
