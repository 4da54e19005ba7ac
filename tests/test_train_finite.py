"""Losses and weights that are not finite end a run: after any step, its last one too, on the way to any result."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import train.loop
import train.report
from alpha import checkpoint
from alpha.core.config import config
from tests.tiny_run import flags
from train.__main__ import main
from train.trainer import Trainer

Captured = pytest.CaptureFixture


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Pictures take longer than a run, and threads longer than a step."""
    monkeypatch.setattr(train.report, "can_plot", lambda: False)
    with config(num_threads=1):
        yield


def change_weights_after(step: int, change: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Trainer.step

    def train_step(session: Any, x: Any, y: Any) -> Any:
        result = real(session, x, y)
        if session.progress.step + 1 == step:
            change(session)
        return result
    monkeypatch.setattr(Trainer, "step", train_step)


@pytest.mark.parametrize("val_size", [8, 0])
@pytest.mark.parametrize("more", [{"max_steps": 1}, {"epochs": 1}, {}])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_learning_rate_that_is_absurd_is_found(val_size: int, more: dict[str, Any], tmp_path: Path, capsys: Captured
                                                 ) -> None:
    assert main(flags(tmp_path, lr=1e20, val_size=val_size, **more)) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("train: ") and "\nhelp: lower --lr, now 1e+20" in captured.err
    assert "test accuracy" not in captured.out and not (tmp_path / "summary.json").exists()


@pytest.mark.parametrize("value, word", [(np.nan, "NaN"), (np.inf, "infinite"), (-np.inf, "infinite")])
@pytest.mark.parametrize("name", ["fc.weight", "bn.running_var", "average"])
def test_what_the_last_step_has_made_is_looked_at(value: float, word: str, name: str, tmp_path: Path,
                                                  monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    def change(session: Any) -> None:
        if name == "average":
            session.ema.state_dict()["fc.weight"].array[0, 0] = value
        else:
            session.model.state_dict()[name].array.reshape(-1)[0] = value
    change_weights_after(10, change, monkeypatch)
    assert main(flags(tmp_path, ema=0.5, max_steps=10)) == 1
    what = "the average of fc.weight" if name == "average" else name
    error = capsys.readouterr().err
    assert f"train: {what} has become {word} at step 10, in epoch 2; {tmp_path / 'last.safetensors'} is the" in error
    tensors, metadata = checkpoint.load(tmp_path / "last.safetensors")
    assert metadata["progress"]["step"] == 5 and all(np.isfinite(t.numpy()).all() for t in tensors.values())


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_validation_loss_that_is_not_finite_keeps_the_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                                   capsys: Captured) -> None:
    change_weights_after(10, lambda session: session.model.fc.weight.copy_(
        np.where(np.arange(256).reshape(4, 64) % 2, 3e38, -3e38).astype(np.float32)), monkeypatch)
    assert main(flags(tmp_path)) == 1
    error = capsys.readouterr().err
    assert "the validation loss is nan at step 10, in epoch 2" in error and "is the last good checkpoint" in error
    assert checkpoint.load(tmp_path / "last.safetensors")[1]["progress"]["step"] == 5


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_weights_that_were_saved_before_they_were_found_out_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                                      capsys: Captured) -> None:
    change_weights_after(10, lambda session: session.model.fc.weight.copy_(
        np.where(np.arange(256).reshape(4, 64) % 2, 3e38, -3e38).astype(np.float32)), monkeypatch)
    newest = tmp_path / "last.safetensors"
    made = f"the weights in {newest} make it, {newest}.prev has those before\nhelp: lower --lr"
    assert main(flags(tmp_path, val_size=0, batch_size=20)) == 1
    assert f"the loss is nan at step 11, in epoch 3; {made}" in capsys.readouterr().err
    assert main(flags(tmp_path, val_size=0, batch_size=20, max_steps=10)) == 1
    assert f"the test loss of the last weights is nan at step 10, in epoch 2; {made}" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_an_evaluation_that_is_not_finite_is_no_result(tmp_path: Path, capsys: Captured) -> None:
    assert main(flags(tmp_path, epochs=1)) == 0
    tensors, metadata = checkpoint.load(tmp_path / "last.safetensors")
    bad = {**tensors, "model/fc.bias": np.full(4, np.nan, np.float32)}
    checkpoint.save(tmp_path / "bad.safetensors", bad, metadata)
    capsys.readouterr()
    assert main([*flags(tmp_path, resume=tmp_path / "bad.safetensors"), "--evaluate"]) == 1
    captured = capsys.readouterr()
    assert f"evaluate: the test loss of {tmp_path / 'bad.safetensors'} is nan\nhelp: test another" in captured.err
    assert "test accuracy" not in captured.out


def test_a_summary_is_json_whatever_it_is_given(tmp_path: Path) -> None:
    train.report.write_summary(tmp_path, {"a": float("nan"), "b": {"c": float("inf"), "d": 0.5}, "e": "x"})

    def refuse(name: str) -> None:
        raise AssertionError(name)
    text = (tmp_path / "summary.json").read_text()
    assert json.loads(text, parse_constant=refuse) == {"a": None, "b": {"c": None, "d": 0.5}, "e": "x"}
