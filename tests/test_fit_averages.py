"""SAM, SWA and schedule-free optimizers by name: fit has the bits of a loop by hand, the command goes on with them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import alpha
import train.report
from alpha import Tensor, checkpoint, nn, ops, optim
from alpha.core.config import config
from alpha.data import DataLoader
from alpha.errors import ConfigError
from alpha.training import Trainer, accuracy, fit, load_run
from alpha.training.averages import EpochAverage
from tests.op_checks import refused
from tests.test_resume import assert_same
from tests.tiny_run import flags
from train.__main__ import main

pytestmark = pytest.mark.same_without_kernels("the same ops with and without compiled kernels")
RNG = np.random.default_rng(5)
IMAGES = RNG.standard_normal((24, 6)).astype(np.float32)
LABELS = (IMAGES[:, 0] > 0).astype(np.int64)
BATCHES = DataLoader((IMAGES, LABELS), 8)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(train.report, "can_plot", lambda: False)
    with config(num_threads=1):
        yield


def network() -> nn.Module:
    alpha.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))


def bits(tensors: Any) -> list[bytes]:
    return [t.numpy().tobytes() for t in tensors]


@pytest.mark.parametrize("clip", [0.0, 0.1])
def test_sam_in_fit_has_the_bits_of_a_loop_by_hand(clip: float) -> None:
    net, by_hand = network(), network()
    fit(net, BATCHES, epochs=2, optimizer="sgd", lr=0.1, momentum=0.9, sam=0.5, clip=clip, progress=False)
    sam = optim.SAM(optim.SGD(by_hand.parameters(), lr=0.1, momentum=0.9), rho=0.5)

    def loss(x: Tensor, y: Tensor) -> None:
        ops.cross_entropy(by_hand(x), y).backward()
    for x, y in [*BATCHES, *BATCHES]:
        loss(x, y)
        sam.first_step()
        loss(x, y)
        if clip:
            optim.clip_grad_norm(by_hand.parameters(), clip)
        sam.second_step()
        sam.zero_grad()
    assert bits(net.parameters()) == bits(by_hand.parameters())
    plain = network()
    fit(plain, BATCHES, epochs=2, optimizer="sgd", lr=0.1, momentum=0.9, clip=clip, progress=False)
    assert bits(plain.parameters()) != bits(net.parameters())


@pytest.mark.parametrize(("name", "make"), [("schedule_free_sgd", optim.ScheduleFreeSGD),
                                            ("schedule_free_adamw", optim.ScheduleFreeAdamW)])
def test_a_schedule_free_optimizer_is_validated_by_its_average_and_keeps_its_bits(name: str, make: Any) -> None:
    net, by_hand = network(), network()
    history = fit(net, BATCHES, BATCHES, epochs=2, optimizer=name, lr=0.1, progress=False)
    optimizer = make(by_hand.parameters(), lr=0.1)
    for x, y in [*BATCHES, *BATCHES]:
        ops.cross_entropy(by_hand(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert bits(net.parameters()) == bits(by_hand.parameters())
    run = Trainer(by_hand, optimizer, ops.cross_entropy, {"accuracy": accuracy}, epochs=1, steps_per_epoch=3)
    at_y = run.evaluate(BATCHES)["loss"]
    optimizer.eval()
    at_x = run.evaluate(BATCHES)["loss"]
    assert history["val_loss"][-1] == round(at_y, 6) != round(at_x, 6)
    assert history["ema_val_loss"][-1] == round(at_x, 6)
    assert history.ema is not None
    with history.ema.applied():
        assert bits(net.parameters()) == bits(by_hand.parameters())
    assert bits(history.ema.state_dict().values()) == bits(by_hand.parameters())


def test_swa_is_the_mean_of_the_last_epochs_with_batch_norms_of_its_own() -> None:
    alpha.manual_seed(3)
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2))
    behind: list[list[np.ndarray]] = []
    history = fit(net, BATCHES, BATCHES, epochs=5, lr=0.1, swa=0.5, progress=False,
                  callbacks=[lambda run, row: behind.append([p.numpy().copy() for p in run.model.parameters()])])
    assert history.ema is not None
    averages = history.ema.state_dict()
    for k, (name, _) in enumerate(net.named_parameters()):
        want = np.mean([epoch[k] for epoch in behind[2:]], axis=0, dtype=np.float64)
        np.testing.assert_allclose(averages[name].numpy(), want, rtol=1e-5, atol=1e-7)
    first = [IMAGES[k:k + 8] @ averages["0.weight"].numpy().T + averages["0.bias"].numpy() for k in (0, 8, 16)]
    np.testing.assert_allclose(averages["1.running_mean"].numpy(), np.mean([a.mean(0) for a in first], axis=0),
                               rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(averages["1.running_var"].numpy(), np.mean([a.var(0, ddof=1) for a in first], axis=0),
                               rtol=1e-4, atol=1e-5)
    assert history["ema_val_loss"][:3] == history["val_loss"][:3]
    assert history["ema_val_loss"][4] != history["val_loss"][4]
    assert net[1].momentum == 0.1 and net[1].training
    with history.ema.applied():
        run = Trainer(net, optim.SGD(net.parameters(), lr=0.1), ops.cross_entropy, {}, epochs=1, steps_per_epoch=3)
        assert history["ema_val_loss"][4] == round(run.evaluate(BATCHES)["loss"], 6)


def test_a_run_that_ends_while_its_average_is_validated_does_not_take_the_epoch_twice() -> None:
    net = network()
    calls = iter(range(1, 100))
    run = Trainer(net, optim.SGD(net.parameters(), lr=0.1), ops.cross_entropy, {}, epochs=3, steps_per_epoch=3,
                  ema=EpochAverage(net, 0))
    assert run.ema is not None

    def validate() -> dict[str, float]:
        if next(calls) == 4:    # of the average, behind the second epoch
            raise KeyboardInterrupt
        return {"loss": 1.0}
    with pytest.raises(KeyboardInterrupt):
        run.run(lambda epoch, step: BATCHES.batches(epoch, step), validate)
    assert run.progress.step == 6
    before = [p.numpy().copy() for p in net.parameters()]
    one = [t.numpy().copy() for t in run.ema.state_dict().values()]
    run.run(lambda epoch, step: BATCHES.batches(epoch, step), validate)
    three = [p.numpy() for p in net.parameters()]
    for a, b, c, mean in zip(one, before, three, run.ema.state_dict().values()):
        np.testing.assert_allclose(mean.numpy(), (a + b + c) / 3, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("settings", [{"optimizer": "schedule_free_adamw"}, {"sam": 0.1, "optimizer": "adamw"},
                                      {"swa": 0.25}])
def test_a_resumed_run_has_the_bits_of_a_whole_one(settings: dict[str, Any], tmp_path: Path) -> None:
    whole, torn = tmp_path / "whole", tmp_path / "torn"
    assert main(flags(whole, **settings)) == 0
    assert main(flags(torn, max_steps=7, **settings)) == 0
    assert main(flags(torn, resume="auto", **settings)) == 0
    assert_same(whole, torn)
    tensors = checkpoint.load(whole / "last.safetensors")[0]
    averaged = any(name.startswith("ema/") for name in tensors)
    assert averaged == ("sam" not in settings)
    part = "ema/" if averaged else "model/"
    assert (load_run(whole).model.fc.weight.numpy() == tensors[f"{part}fc.weight"].numpy()).all()
    constant = 'schedule = "constant"' in (whole / "config.toml").read_text()
    assert constant == ("schedule_free_adamw" in settings.values())


@pytest.mark.parametrize(("settings", "text"), [
    ({"sam": 0.1, "accumulate": 2}, "Trainer: sam=0.1 beside accumulate=2: the second gradient of a step is of the"),
    ({"sam": 0.1, "precision": "fp16"}, "Trainer: sam=0.1 beside a loss scaler, of fp16"),
    ({"optimizer": "schedule_free_sgd", "ema": 0.9}, "ema: it is 0.9 beside the optimizer ScheduleFreeSGD, which"),
    ({"optimizer": "schedule_free_sgd", "swa": 0.9}, "swa: it is 0.9 beside the optimizer ScheduleFreeSGD, which"),
    ({"swa": 0.5, "ema": 0.9}, "swa: it is 0.5 beside ema 0.9: both are averages of the weights"),
])
def test_settings_that_do_not_go_together_are_refused_by_fit(settings: dict[str, Any], text: str) -> None:
    with refused(ConfigError, "swa: it is 1.0, a share of the epochs in [0, 1) is needed", "pass swa=0.75"):
        fit(network(), BATCHES, progress=False, swa=1.0)
    with refused(ConfigError, text, "leave "):
        fit(network(), BATCHES, progress=False, **settings)


@pytest.mark.parametrize(("settings", "text"), [
    ({"sam": 0.1, "accumulate": 2}, "sam: --sam 0.1 beside --accumulate: the second gradient of a step is of the same"),
    ({"sam": 0.1, "precision": "fp16"}, "sam: --sam 0.1 beside --precision fp16"),
    ({"optimizer": "schedule_free_sgd", "ema": 0.9}, "ema: it is 0.9 beside the optimizer schedule_free_sgd"),
    ({"swa": 0.5, "ema": 0.9}, "swa: it is 0.5 beside ema 0.9: both are averages of the weights"),
    ({"swa": 0.5, "exact_over": 2}, "train: --swa 0.5 on 1 ranks: statistics of its batch norms are made on one"),
    ({"sam": 0.1, "exact_over": 2}, "train: --sam 0.1 on 1 ranks: a step has one gradient there"),
])
def test_settings_that_do_not_go_together_are_refused_by_the_command(settings: dict[str, Any], text: str,
                                                                     tmp_path: Path, capsys: Any) -> None:
    assert main(flags(tmp_path, **settings)) == 2
    error = capsys.readouterr().err
    assert error.startswith(text) and "\nhelp: leave " in error
