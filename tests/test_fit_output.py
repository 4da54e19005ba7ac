"""fit(output=): the model, with all that is needed to use it, in a folder."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import alpha
import models
from alpha import nn
from alpha.core.config import config
from alpha.data import DataLoader, Dataset
from alpha.errors import ArgumentError, ConfigError
from alpha.training import fit, load_run
from tests.op_checks import refused

pytestmark = pytest.mark.same_without_kernels("calls no kernel, or calls it from a program")

RNG = np.random.default_rng(0)
LABELS = np.arange(48) % 4
IMAGES = (RNG.integers(0, 100, (48, 8, 8, 3)) + 40 * LABELS[:, None, None, None]).astype(np.uint8)
TRAIN, VAL = (IMAGES[:32], LABELS[:32]), (IMAGES[32:], LABELS[32:])


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    with config(num_threads=1):
        yield


def net() -> nn.Module:
    alpha.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(8 * 8 * 3, 4))


def test_a_shipped_model_needs_nothing_but_the_folder(tmp_path: Path) -> None:
    alpha.manual_seed(1)
    model = models.create("resnet20", 4)
    history = fit(model, TRAIN, VAL, epochs=2, batch_size=16, lr=0.05, mean=(0.3, 0.4, 0.5), std=0.2, ema=0.5,
                  output=tmp_path / "run", progress=False)
    run = load_run(tmp_path / "run")
    assert run.classes == ("0", "1", "2", "3") and run.input_shape == (8, 8, 3) and run.dtype == "uint8"
    assert run.mean.tolist() == pytest.approx([0.3, 0.4, 0.5]) and run.std.tolist() == pytest.approx([0.2] * 3)
    assert run.metrics == dict(history[-1])
    x = (VAL[0].astype(np.float32) / 255 - np.float32([0.3, 0.4, 0.5])) / np.float32(0.2)
    with history.ema.applied(), alpha.no_grad():
        wanted = model.eval()(alpha.tensor(x)).numpy()
    assert np.allclose(run.outputs(VAL[0]), wanted, rtol=1e-4, atol=1e-4)
    with open(tmp_path / "run" / "metrics.csv", newline="") as file:
        assert [float(row["val_accuracy"]) for row in csv.DictReader(file)] == history["val_accuracy"]


def test_the_best_epoch_is_that_of_the_column_and_the_direction(tmp_path: Path) -> None:
    for name, given in (("a", {}), ("b", {"metric": "train_loss"}), ("c", {"metric": "val_loss", "mode": "max"})):
        history = fit(net(), TRAIN, VAL, epochs=4, batch_size=8, lr=0.3, output=tmp_path / name, progress=False,
                      **given)
        column = np.array(history[given.get("metric", "val_accuracy")])
        high = given.get("mode") == "max" or name == "a"
        best = max(k for k in range(4) if column[k] == (column.max() if high else column.min()))
        run = load_run(tmp_path / name, "best", model=net())
        assert run.metrics["epoch"] == best + 1
        assert load_run(tmp_path / name, model=net()).metrics["epoch"] == 4


def test_names_of_classes_come_from_the_data(tmp_path: Path) -> None:
    data = Dataset.of("mine", TRAIN, VAL, classes=("ant", "bee", "cow", "dog"))
    fit(net(), data, output=tmp_path, batch_size=16, progress=False)
    run = load_run(tmp_path, model=net())
    assert run.classes == data.classes and run.predict(IMAGES[0], top=4)[0][0].name in data.classes


def test_samples_that_are_no_pictures_and_outputs_that_are_no_classes(tmp_path: Path) -> None:
    x = RNG.standard_normal((16, 3)).astype(np.float32)
    loader = DataLoader((x, x[:, :1]), 4)
    fit(nn.Linear(3, 1), loader, loss="mse", output=tmp_path, progress=False)
    run = load_run(tmp_path, model=nn.Linear(3, 1))
    assert run.classes == () and run.dtype == "float32" and run.input_shape == (3,) and not run.mean.size
    with alpha.no_grad():
        assert np.allclose(run.outputs(x), run.model(alpha.tensor(x)).numpy(), atol=1e-6)
    with refused(ConfigError, "are no classes: its loss is mse", "run.outputs"):
        run.predict(x)
    with refused(alpha.errors.DataError, "this run takes float32 of shape (3,)"):
        run.outputs(np.ones((2, 4), np.float32))


def test_a_folder_with_an_earlier_run_keeps_it(tmp_path: Path) -> None:
    for lr in (0.1, 0.2):
        fit(net(), TRAIN, VAL, lr=lr, batch_size=16, output=tmp_path, progress=False)
    assert {p.name for p in (tmp_path / "earlier").iterdir()} == {"last.safetensors", "best.safetensors", "metrics.csv"}
    assert load_run(tmp_path / "earlier", model=net()).metrics["lr"] == 0.1
    assert load_run(tmp_path, model=net()).metrics["lr"] == 0.2


def test_wrong_settings_are_refused_before_anything_runs(tmp_path: Path) -> None:
    before = net()
    for given, said in (({"metric": "val_acc"}, "there is no column 'val_acc'; did you mean 'val_accuracy'"),
                        ({"mode": "up"}, 'mode is "up"'), ({"output": tmp_path / "a", "metric": "val_loss", "mode": 3},
                                                          "mode is")):
        with refused(alpha.errors.AlphaError, said):
            fit(before, TRAIN, VAL, **{"output": tmp_path / "x", **given})
    with refused(ConfigError, "metric='val_loss' says which epoch is the best, and nothing is kept"):
        fit(before, TRAIN, VAL, metric="val_loss")
    with refused(ConfigError, "there is no column 'val_loss'", "val_ needs val_data"):
        fit(before, TRAIN, output=tmp_path / "x", metric="val_loss")
    with refused(ConfigError, "metric is 'val_steepness', and mode is not given"):
        fit(before, TRAIN, VAL, output=tmp_path / "x", metric="val_steepness",
            metrics={"steepness": lambda y, t: y.mean()})
    (tmp_path / "file").write_text("")
    with refused(ConfigError, "cannot be written to"):
        fit(before, TRAIN, output=tmp_path / "file")
    with refused(ArgumentError, "model is"):
        load_run(tmp_path, model=3)     # type: ignore[arg-type]
    assert not (tmp_path / "x").exists()
    assert all(np.array_equal(a.numpy(), b.numpy()) for a, b in zip(before.parameters(), net().parameters()))
