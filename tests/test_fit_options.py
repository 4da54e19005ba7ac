"""fit: accumulation, early stopping, frozen parts, rates by layer, fine-tuning, balance; the command has the same."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import alpha
import models
from alpha import nn, ops, optim
from alpha.core.config import config
from alpha.data import DataLoader, Dataset, Images, balanced_weights
from alpha.errors import AlphaError, CheckpointError, ConfigError, DataError
from alpha.training import EarlyStopping, Trainer, fit, load_run
from alpha.training.options import AROUND, OPTIONS, OTHERWISE, values_of
from alpha.training.registries import find_loss
from tests.op_checks import refused
from train.config import Config

pytestmark = pytest.mark.same_without_kernels("calls no kernel, or calls it from a program")

RNG = np.random.default_rng(0)
LABELS = np.arange(88) % 4
IMAGES = (RNG.integers(0, 100, (88, 8, 8, 3)) + 40 * LABELS[:, None, None, None]).astype(np.uint8)
TRAIN, VAL = (IMAGES[:72], LABELS[:72]), (IMAGES[72:], LABELS[72:])


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    with config(num_threads=1):
        yield


def net(outputs: int = 4, norm: bool = False) -> nn.Module:
    alpha.manual_seed(1)
    body = [nn.Conv2d(3, 4, 4, stride=4), *([nn.BatchNorm2d(4)] if norm else []), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(nn.Sequential(*body), nn.Linear(16, outputs))


def weights(model: nn.Module) -> dict[str, np.ndarray]:
    return {name: t.numpy().copy() for name, t in model.state_dict().items()}


# ---- one registry ----------------------------------------------------------------------------------------------------


def test_the_command_and_fit_have_the_same_settings() -> None:
    ours = dict(inspect.signature(inspect.unwrap(fit)).parameters)
    theirs = {f.name: f for f in dataclasses.fields(Config)}
    for name, option in OPTIONS.items():
        assert name in ours and name in theirs, name
        assert ours[name].default == option.default or name == "epochs", name
        assert theirs[name].default == option.default or name == "epochs", name
        assert theirs[name].metadata["help"].startswith(option.help.split(" (default")[0][:40]), name
    both = {*ours} & {*theirs}
    assert {*ours} - both <= {*OTHERWISE}, {*ours} - both - {*OTHERWISE}
    flags = {word.strip(",") for text in OTHERWISE.values() for word in text.split()}
    assert {*theirs} - both <= {*AROUND} | flags, {*theirs} - both - {*AROUND} - flags
    assert {*OTHERWISE} & both == {"model"} and not {*AROUND} & both
    assert {*OTHERWISE} <= {*ours} and {*AROUND} <= {*theirs}
    assert "{shared}" not in (fit.__doc__ or "") and "accumulate: batches whose gradients" in (fit.__doc__ or "")


def test_options_are_read_as_values() -> None:
    assert values_of("model_option", ["width=2", "stem=imagenet", "flag=true", "none=none", "betas=0.9,0.95"]) == {
        "width": 2, "stem": "imagenet", "flag": True, "none": None, "betas": (0.9, 0.95)}
    for texts, said in ((["width"], "'width' is no name=value"), (["a=1", "a=2"], "'a=2' names a twice"),
                        (["=3"], "'=3' is no name=value")):
        with refused(ConfigError, said, "--model-option width=2"):
            values_of("model_option", texts)


# ---- accumulation ----------------------------------------------------------------------------------------------------


def whole_numbers(model: nn.Module) -> nn.Module:
    """Gives a model small integers for weights, so that every sum is exact."""
    rng = np.random.default_rng(3)
    for p in model.parameters():
        p.copy_(alpha.tensor(rng.integers(-2, 3, p.shape).astype(np.float32)))
    return model


@pytest.mark.parametrize(("last", "exact"), [   # samples; whether every share is a power of two, and every sum exact
    (32, True), (16, True), (24, False), (64, False), (61, False), (41, False)])
def test_accumulated_gradients_are_those_of_the_large_batch(last: int, exact: bool) -> None:
    rng = np.random.default_rng(1)
    x = rng.integers(-3, 4, (last, 4, 4, 2)).astype(np.float32)
    y = rng.integers(-3, 4, (last, 2)).astype(np.float32)
    found = []
    for size, accumulate in ((32, 1), (8, 4), (16, 2)):
        model = whole_numbers(nn.Sequential(nn.Conv2d(2, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(18, 2)))
        loss = nn.MSELoss()
        history = fit(model, DataLoader((x, y), size), optimizer=optim.SGD(model.parameters(), lr=2.0 ** -8), loss=loss,
                      accumulate=accumulate, progress=False)
        found.append((weights(model), history[0]["step"], history[0]["train_loss"]))
    for other, step, loss_ in found[1:]:
        assert step == found[0][1] == -(-last // 32) and loss_ == pytest.approx(found[0][2], rel=1e-6)
        for name, a in found[0][0].items():
            assert np.array_equal(a, other[name]) if exact else np.allclose(a, other[name], rtol=1e-5, atol=1e-7), name


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_accumulation_with_clipping_and_an_average_follows_the_large_batch(optimizer: str) -> None:
    found = []
    for size, accumulate in ((24, 1), (8, 3)):
        model = net()
        history = fit(model, TRAIN, VAL, epochs=2, batch_size=size, accumulate=accumulate, optimizer=optimizer,
                      clip=0.5, ema=0.5, schedule="cosine", lr=0.01, progress=False)
        found.append((weights(model), history))
    (a, first), (b, second) = found
    assert first["step"] == second["step"] == [3, 6] and first["lr"] == second["lr"]
    assert first["ema_val_loss"] == pytest.approx(second["ema_val_loss"], rel=1e-4)
    for name in a:
        assert np.allclose(a[name], b[name], rtol=1e-3, atol=2e-5), name


def test_callbacks_and_max_steps_count_steps_of_several_batches() -> None:
    seen: list[float] = []

    class Watch(alpha.training.Callback):
        def on_step(self, run: Trainer, loss: Any) -> None:
            seen.append(loss.item())

    model = net()
    history = fit(model, TRAIN, batch_size=10, accumulate=3, epochs=2, max_steps=4, lr=1e-30, callbacks=[Watch()],
                  progress=False)
    assert history["step"] == [3, 4] and len(seen) == 4
    assert np.dot(seen[:3], [30, 30, 12]) / 72 == pytest.approx(history["train_loss"][0], rel=1e-4)
    run = Trainer(model, optim.SGD(model.parameters(), lr=0.1), ops.cross_entropy, {}, epochs=1, steps_per_epoch=3)
    with refused(DataError, "the batches of epoch 1 end after 2 steps, steps_per_epoch is 3"):
        run.run(lambda epoch, step: DataLoader(TRAIN, 36).batches(epoch, step), lambda: None)
    with refused(ConfigError, "accumulate=0, it counts the batches of a step"):
        Trainer(model, optim.SGD(model.parameters(), lr=0.1), ops.cross_entropy, {}, epochs=1, steps_per_epoch=1,
                accumulate=0)


# ---- early stopping --------------------------------------------------------------------------------------------------


class Fake:
    """A run with a history."""

    def __init__(self, values: list[float], name: str) -> None:
        self.progress = alpha.training.Progress(history=[{"epoch": k + 1, name: v} for k, v in enumerate(values)])
        self.why: str | None = None

    def stop(self, why: str = "") -> None:
        self.why = why


@pytest.mark.parametrize(("values", "given", "ends"), [
    ([1.0, 0.9, 0.95, 0.91], {"metric": "val_loss"}, True), ([1.0, 0.9, 0.95, 0.89], {"metric": "val_loss"}, False),
    ([0.1, 0.2, 0.2, 0.2], {"metric": "val_accuracy"}, True), ([0.1, 0.2, 0.2], {"metric": "val_accuracy"}, False),
    ([1.0, 2.0, 3.0], {"metric": "val_x", "mode": "min"}, True),
    ([1.0, 2.0, 3.0], {"metric": "val_x", "mode": "max"}, False),
    ([1.0, 0.99, 0.98, 0.97], {"metric": "val_loss", "min_delta": 0.1}, True)])
def test_a_run_ends_when_nothing_gets_better(values: list[float], given: dict[str, Any], ends: bool) -> None:
    run = Fake(values, given["metric"])
    EarlyStopping(2, **given).on_epoch(run, run.progress.history[-1])   # type: ignore[arg-type]
    assert (run.why is not None) == ends
    again = Fake(values, given["metric"])       # a run that is continued ends before another epoch
    EarlyStopping(2, **given).on_start(again)   # type: ignore[arg-type]
    assert again.why == run.why


def test_fit_stops_early_and_says_so(capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    history = fit(net(), TRAIN, VAL, epochs=9, lr=1e-30, patience=2, metric="val_loss", output=tmp_path)
    assert len(history) == 3
    assert "the run ends: val_loss has not become better for 2 epochs, since epoch 1" in capsys.readouterr().out
    assert load_run(tmp_path, "best", model=net()).metrics["epoch"] == 3   # the later one of equals
    assert len(fit(net(), TRAIN, epochs=5, lr=1e-30, patience=1, progress=False)) == 2     # by the training loss
    with refused(ConfigError, "there is no column 'val_loss'"):
        fit(net(), TRAIN, patience=1, metric="val_loss")
    with refused(ConfigError, "EarlyStopping: the column 'val_acc' has no value; did you mean 'val_accuracy'"):
        fit(net(), TRAIN, VAL, callbacks=EarlyStopping(1, "val_acc", "max"), progress=False)
    with refused(ConfigError, "metric is 'val_x', and mode is not given"):
        EarlyStopping(1, "val_x")


# ---- metrics of a whole epoch ----------------------------------------------------------------------------------------


def test_a_metric_of_all_samples_is_no_mean_of_batches(tmp_path: Path) -> None:
    def macro_f1(outputs: np.ndarray, targets: np.ndarray) -> float:
        assert outputs.shape == (16, 4) and targets.shape == (16,)
        return float(np.mean([f.f1 for f in alpha.training.per_class(outputs.argmax(1), targets, "abcd")]))

    metrics = {"accuracy": alpha.training.accuracy, "f1": alpha.training.over_epoch(macro_f1)}
    model = net()
    history = fit(model, TRAIN, VAL, epochs=3, lr=0.02, batch_size=7, metrics=metrics, ema=0.5, metric="val_f1",
                  mode="max", output=tmp_path, progress=False)
    x = alpha.tensor(VAL[0].astype(np.float32) / 255)
    with alpha.no_grad():
        assert history["val_f1"][-1] == pytest.approx(macro_f1(model(x).numpy(), VAL[1]), abs=1e-6)
        with history.ema.applied():
            assert history["ema_val_f1"][-1] == pytest.approx(macro_f1(model(x).numpy(), VAL[1]), abs=1e-6)
    assert history["train_f1"] == [None] * 3 and history["train_accuracy"][-1] is not None
    best = load_run(tmp_path, "best", model=net()).metrics["val_f1"]
    assert best == max(history["val_f1"])


def test_metrics_of_all_samples_are_looked_at() -> None:
    one = alpha.training.over_epoch(lambda outputs, targets: 1.0)
    for given, said in (({"val_data": None}, "the metric 'f1' is of all samples of a validation"),
                        ({"metric": "train_f1", "mode": "max", "patience": 1}, "there is no column 'train_f1'")):
        with refused(ConfigError, said):
            fit(net(), TRAIN, **{"val_data": VAL, "metrics": {"f1": one}, **given})
    with refused(ConfigError, "returned", "a number is needed"):
        fit(net(), TRAIN, VAL, metrics={"f1": alpha.training.over_epoch(lambda outputs, targets: outputs)},
            progress=False)
    with refused(ConfigError, "does not take (outputs, targets)"):
        alpha.training.over_epoch(lambda outputs: 1.0)
    with refused(ConfigError, "is no function"):
        alpha.training.over_epoch(3)    # type: ignore[arg-type]


# ---- parts of a model ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("patterns", ["0", ["0.0.*", "0.1"], ["0.?.*"]])
def test_frozen_parts_stay_as_they_are_with_their_statistics(patterns: Any) -> None:
    model = net(norm=True)
    before = weights(model)
    fit(model, TRAIN, VAL, epochs=2, lr=0.1, freeze=patterns, progress=False)
    after = weights(model)
    for name in before:
        assert np.array_equal(before[name], after[name]) == name.startswith("0."), name
    assert all(p.requires_grad for p in model.parameters()) and all(m.training for m in model.modules())


def test_frozen_parts_of_a_model_in_inference_mode() -> None:
    model = net(norm=True).eval()
    before = weights(model)
    fit(model, TRAIN, lr=0.1, freeze="0", progress=False)
    assert np.array_equal(before["0.1.running_mean"], weights(model)["0.1.running_mean"])
    assert not any(m.training for m in model.modules())
    assert not np.array_equal(before["1.weight"], weights(model)["1.weight"])


def test_rates_of_parts_are_those_of_groups_made_by_hand() -> None:
    ours, theirs = net(), net()
    fit(ours, TRAIN, epochs=2, lr=0.1, schedule="cosine", momentum=0.9, lr_scale={"0": 0.5, "0.0.bias": 0.25},
        progress=False)
    lr = optim.schedule.cosine(0.1, 6)
    named = dict(theirs.named_parameters())
    groups = [{"params": [named["1.weight"], named["1.bias"]], "lr": lr},
              {"params": [named["0.0.weight"]], "lr": lambda t: 0.5 * lr(t)},
              {"params": [named["0.0.bias"]], "lr": lambda t: 0.25 * lr(t)}]
    fit(theirs, TRAIN, epochs=2, optimizer=optim.SGD(groups, lr=0.1, momentum=0.9), progress=False)
    for name, a in weights(ours).items():
        assert np.array_equal(a, weights(theirs)[name]), name


def test_a_run_is_fine_tuned_with_another_head(tmp_path: Path) -> None:
    data = (IMAGES, LABELS % 3)
    alpha.manual_seed(2)
    fit(models.create("lenet5", 4), (IMAGES.repeat(4, 1).repeat(4, 2), LABELS), batch_size=16, mean=0.3, std=0.2,
        output=tmp_path, progress=False)
    before = load_run(tmp_path)
    model = models.create("lenet5", 3)
    head = model.state_dict()["fc3.weight"].numpy().copy()
    fit(model, (data[0].repeat(4, 1).repeat(4, 2), data[1]), finetune=tmp_path, lr=1e-30, output=tmp_path / "b",
        progress=False)
    for name, t in before.model.state_dict().items():
        if name.startswith("fc3"):
            assert model.state_dict()[name].shape[0] == 3
        else:
            assert np.array_equal(model.state_dict()[name].numpy(), t.numpy()), name
    assert np.allclose(model.state_dict()["fc3.weight"].numpy(), head)
    after = load_run(tmp_path / "b")
    assert after.mean.tolist() == before.mean.tolist() == pytest.approx([0.3] * 3)
    with refused(CheckpointError, "is of another network: "):
        fit(models.create("resnet20", 3), data, finetune=tmp_path)
    with refused(CheckpointError, "there is no "):
        fit(model, data, finetune=tmp_path / "none")


# ---- samples ---------------------------------------------------------------------------------------------------------


def test_balanced_classes_come_equally_often() -> None:
    labels = np.array([0] * 900 + [1] * 90 + [2] * 10)
    assert balanced_weights(labels)[[0, 900, 990]] == pytest.approx([1 / 900, 1 / 90, 1 / 10])
    data = Dataset("skewed", ("a", "b", "c"), np.zeros(3, np.float32), np.ones(3, np.float32),
                   np.zeros((1000, 2, 2, 3), np.uint8), labels, np.zeros((1, 2, 2, 3), np.uint8), labels[:1])
    loader = DataLoader(data, 50, shuffle=True, seed=3, weights=balanced_weights(labels))
    images = Images(data.train_images, labels, data, "cpu")
    for epoch in range(2):
        drawn = np.concatenate([y.numpy() for _, y in loader.batches(epoch)])
        also = np.concatenate([y.numpy() for _, y in images.batches(50, seed=3, epoch=epoch, balance=True)])
        assert len(drawn) == 1000 and np.array_equal(drawn, also)
        counts = np.bincount(drawn, minlength=3)    # 333 each, a deviation of 15
        assert (abs(counts - 1000 / 3) < 75).all(), counts
    assert np.array_equal(drawn[250:], np.concatenate([y.numpy() for _, y in loader.batches(1, 5)]))
    other = np.concatenate([y.numpy() for _, y in DataLoader(data, 50, shuffle=True, seed=4, weights=1 / labels.clip(
        1)).batches(0)])
    assert not np.array_equal(other, drawn)


def test_weights_are_looked_at() -> None:
    for weights_, said in (([1.0] * 3, "72 finite numbers"), (np.full(72, -1.0), "at least 0"),
                           (np.zeros(72), "not all 0"), ("abc", "72 finite numbers")):
        with refused(DataError, said):
            DataLoader(TRAIN, shuffle=True, weights=weights_)
    with refused(ConfigError, "weights are given, and shuffle=False"):
        DataLoader(TRAIN, weights=np.ones(72))
    with refused(DataError, "labels are"):
        balanced_weights(np.ones((3, 2)))
    with refused(ConfigError, "balance=True, and shuffle=False"):
        data = Dataset.of("a", TRAIN, VAL)
        Images(*TRAIN, data, "cpu").batches(4, balance=True, shuffle=False)
    with refused(ConfigError, "balance=True, and the labels of train_data"):
        fit(net(), DataLoader(TRAIN, 8), balance=True)


@pytest.mark.parametrize(("given", "said"), [
    ({"freeze": "2"}, "freeze: no parameter matches '2'"), ({"freeze": 3}, "freeze: it is"),
    ({"freeze": [""]}, "a pattern is"), ({"freeze": "*"}, "all 4 parameters of the model are frozen"),
    ({"lr_scale": {"1.wieght": 0.1}}, "no parameter matches '1.wieght'; did you mean '1.weight'"),
    ({"lr_scale": {"1": 0}}, "lr_scale: 1=0, a finite number above 0"), ({"lr_scale": 0.5}, "lr_scale is"),
    ({"loss_options": {"smooth": 0.1}}, "the loss 'cross_entropy' has no option 'smooth'"),
    ({"accumulate": 0}, "accumulate"), ({"patience": -1}, "patience"), ({"optimizer": "sdg"}, "there is no optimizer"),
    ({"lr_scale": {"1": 0.1}, "optimizer": optim.SGD([ops.zeros((1,))], lr=0.1)}, "lr_scale")])
def test_wrong_settings_are_refused_and_the_model_stays_as_it_was(given: dict[str, Any], said: str) -> None:
    model = net()
    before = weights(model)
    with refused(AlphaError, said):
        fit(model, TRAIN, VAL, **given)
    assert all(np.array_equal(a, before[name]) for name, a in weights(model).items())
    assert all(p.requires_grad for p in model.parameters())


def test_options_of_a_loss_reach_it() -> None:
    found = [fit(net(), TRAIN, lr=0.1, progress=False, **given)["train_loss"][0]
             for given in ({}, {"loss_options": {"label_smoothing": 0.5}},
                           {"loss": lambda y, t: ops.cross_entropy(y, t, label_smoothing=0.5)})]
    assert found[0] != found[1] == pytest.approx(found[2])


def test_options_of_a_loss_are_a_dict() -> None:
    with refused(ConfigError, "fit: loss_options is 3, a dict of settings by name is needed", "label_smoothing"):
        find_loss("fit", "cross_entropy", options=3)    # type: ignore[arg-type]
