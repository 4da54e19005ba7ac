"""The training program says which weights a figure is of, and where it ends before a setting has its effect."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import train.loop
import train.report
import train.stored
from alpha.core.config import config
from tests.tiny_run import CLASSES, flags, tiny
from train.__main__ import main
from train.config import parse
from train.trainer import Trainer

Captured = pytest.CaptureFixture


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Pictures take longer than a run, and threads longer than a step."""
    monkeypatch.setattr(train.report, "can_plot", lambda: False)
    with config(num_threads=1):
        yield


def rows(output: Path) -> list[dict[str, str]]:
    with open(output / "metrics.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_a_run_with_an_average_names_which_weights_each_figure_is_of(tmp_path: Path, capsys: Captured) -> None:
    assert main(flags(tmp_path, epochs=2, ema=0.9)) == 0
    out, lines = capsys.readouterr().out, rows(tmp_path)
    assert out.count("  ema val loss ") == 2 and "last averaged weights, epoch 2" in out
    names = [*train.report.COLUMNS]
    names[6:6] = train.report.AVERAGED
    assert list(lines[0]) == names
    session = Trainer(parse(flags(tmp_path, ema=0.9)), CLASSES, 80)
    data = tiny(None, False, 0)
    split = train.loop.split_off(data, 8, 0)
    session.restore(train.stored.load(tmp_path / "last.safetensors"), tmp_path)
    weights = train.loop.validate(session, split, data, lambda: None)
    with session.averaged():
        average = train.loop.validate(session, split, data, lambda: None)
    assert [float(lines[1][name]) for name in ("val_loss", "ema_val_loss")] == pytest.approx(
        [weights.loss, average.loss], abs=1e-6)
    assert weights.loss != average.loss
    assert json.loads((tmp_path / "summary.json").read_text())["tested"] == "averaged weights"
    assert main([*flags(tmp_path, ema=0.9, resume="auto"), "--evaluate"]) == 0
    assert "last.safetensors, averaged weights: test loss" in capsys.readouterr().out


def test_figures_of_an_earlier_run_with_an_average_are_those_of_the_average() -> None:
    row = {"epoch": 1, "val_loss": 0.5, "val_accuracy": 0.75}
    stored = {"epoch": 1, "step": 5, "loss_sum": 0.0, "correct": 0, "images": 0, "seconds": 0.0, "history": [row]}
    found = train.stored.progress_of(stored, averaged=True).history[0]
    assert (found["val_loss"], found["ema_val_loss"], found["ema_val_accuracy"]) == (None, 0.5, 0.75)
    assert train.stored.progress_of(stored, averaged=False).history == [row]


def test_drop_last_leaves_out_a_batch_and_is_part_of_the_run(tmp_path: Path, capsys: Captured) -> None:
    assert main([*flags(tmp_path, epochs=1, batch_size=32), "--drop-last"]) == 0
    assert rows(tmp_path)[0]["step"] == "2"
    assert main(flags(tmp_path, epochs=2, batch_size=32, resume="auto")) == 1
    err = capsys.readouterr().err
    assert "drop_last is True there, False here" in err and "continue it with --drop-last" in err


def test_what_the_run_ends_before_is_said(tmp_path: Path, capsys: Captured) -> None:
    assert main(flags(tmp_path, epochs=3, max_steps=4, warmup=1, val_size=0)) == 0
    assert "notice: --max-steps 4 is within the 6 steps of --warmup 1: the learning" in capsys.readouterr().out
    assert main(flags(tmp_path, epochs=2, schedule="step", step_size=2)) == 0
    assert "notice: --step-size 2 is not below --epochs 2: --schedule step leaves" in capsys.readouterr().out
