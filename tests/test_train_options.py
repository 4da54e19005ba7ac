"""The settings that the command has as fit has them: in a run, through a resume, and refused where they do not fit."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import train.report
from alpha import checkpoint
from alpha.core.config import config
from alpha.training import load_run
from tests.test_resume import assert_same
from tests.tiny_run import flags
from train.__main__ import main
from train.config import parse

pytestmark = pytest.mark.same_without_kernels("calls no kernel, or calls it from a program")

Captured = pytest.CaptureFixture


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Pictures take longer than a run, and threads longer than a step."""
    monkeypatch.setattr(train.report, "can_plot", lambda: False)
    with config(num_threads=1):
        yield


def weights(output: Path) -> dict[str, np.ndarray]:
    return {name: t.numpy() for name, t in checkpoint.load(output / "last.safetensors")[0].items()
            if name.startswith("model/")}


def rows(output: Path) -> list[dict[str, str]]:
    with open(output / "metrics.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_a_run_with_all_of_them_resumes_to_the_same_bits(tmp_path: Path, capsys: Captured) -> None:
    more = ["--accumulate", "2", "--balance", "--freeze", "conv", "--lr-scale", "fc=0.5", "--lr-scale", "bn.*=0.1",
            "--optimizer-option", "nesterov=true", "--metric", "val_loss"]
    assert main([*flags(tmp_path / "whole"), *more]) == 0
    assert main([*flags(tmp_path / "part", max_steps=5), *more]) == 0
    assert [row["step"] for row in rows(tmp_path / "part")] == ["3", "5"]     # 80 images, 16 a batch, 2 a step
    capsys.readouterr()
    assert main(["--resume", str(tmp_path / "part")]) == 0
    assert "1 epochs and 2 steps are done" in capsys.readouterr().out
    assert_same(tmp_path / "whole", tmp_path / "part")
    assert json.loads((tmp_path / "whole" / "summary.json").read_text())["best"]["epoch"] == min(
        range(4), key=lambda k: (float(rows(tmp_path / "whole")[k]["val_loss"]), -k)) + 1
    for flag, said in (("--accumulate=1", "accumulate is 2 there, 1 here"), ("--no-balance", "balance is True there"),
                       ("--freeze=fc", "freeze is 'conv' there, 'fc' here")):
        assert main(["--resume", str(tmp_path / "part"), flag]) == 1
        assert said in capsys.readouterr().err


def test_frozen_layers_stay_and_rates_are_scaled(tmp_path: Path) -> None:
    for name, more in (("plain", []), ("frozen", ["--freeze", "conv", "--freeze", "bn"]),
                       ("scaled", ["--lr-scale", "fc=1e-20"])):
        assert main([*flags(tmp_path / name, epochs=1), *more]) == 0
    start = {name: t.numpy() for name, t in _begun().items()}
    plain, frozen, scaled = (weights(tmp_path / name) for name in ("plain", "frozen", "scaled"))
    for name, a in start.items():
        fixed = name.startswith(("model/conv", "model/bn"))
        assert np.array_equal(a, frozen[name]) == fixed and not np.array_equal(a, plain[name]), name
        assert np.allclose(a, scaled[name], atol=1e-12) == name.startswith("model/fc"), name


def _begun() -> Any:
    import alpha
    from tests.tiny_run import TinyNet
    alpha.manual_seed(0)
    return {f"model/{name}": t for name, t in TinyNet(4).state_dict().items()}


def test_a_run_ends_early_and_stays_ended(tmp_path: Path, capsys: Captured) -> None:
    line = [*flags(tmp_path, epochs=9), "--patience", "2", "--metric", "train_loss", "--mode", "max"]
    assert main(line) == 0
    out = capsys.readouterr().out
    ended = len(rows(tmp_path))
    assert f"the run ends: train_loss has not become better for 2 epochs, since epoch {ended - 2}" in out and ended < 9
    assert main(["--resume", str(tmp_path)]) == 0
    assert len(rows(tmp_path)) == ended and "the run ends: " in capsys.readouterr().out


def test_a_run_is_fine_tuned_on_other_classes(tmp_path: Path, capsys: Captured) -> None:
    assert main(["--model", "lenet5", "--dataset", "tiny", "--epochs", "1", "--batch-size", "16", "--device", "cpu",
                 "--output", str(tmp_path / "a")]) == 0
    before = load_run(tmp_path / "a")
    line = ["--finetune", str(tmp_path / "a"), "--dataset", "synthetic", "--max-steps", "2", "--device", "cpu",
            "--freeze", "conv1", "--output", str(tmp_path / "b"), "--ema", "0.5"]
    assert main(line) == 0
    assert "new are fc3.weight, fc3.bias" in capsys.readouterr().out
    after = load_run(tmp_path / "b")
    assert after.model_name == "lenet5" and len(after.classes) == 10 and after.mean.tolist() == before.mean.tolist()
    a, b = before.model.state_dict(), after.model.state_dict()
    assert np.array_equal(a["conv1.weight"].numpy(), b["conv1.weight"].numpy())
    assert np.abs(a["conv2.weight"].numpy() - b["conv2.weight"].numpy()).max() < 0.05
    assert main(["--resume", str(tmp_path / "b"), "--max-steps", "3"]) == 0
    assert "fine-tuning" not in capsys.readouterr().out
    assert load_run(tmp_path / "b").mean.tolist() == before.mean.tolist()
    assert main([*line, "--model", "resnet20"]) == 2
    assert "is of 'lenet5', and --model is resnet20" in capsys.readouterr().err
    assert main(["--finetune", str(tmp_path / "none")]) == 1
    assert "finetune: there is no " in capsys.readouterr().err


def test_options_of_a_model_are_kept_by_the_run(tmp_path: Path) -> None:
    found = parse(["--model", "resnet18", "--model-option", "stem=imagenet"])
    assert found.model_option == ("stem=imagenet",) and 'model_option = ["stem=imagenet"]' in found.to_toml()
    assert "model_option" not in parse([]).to_toml()
    assert main(["--model", "densenet121", "--model-option", "stem=small", "--dataset", "tiny", "--max-steps", "1",
                 "--batch-size", "4", "--device", "cpu", "--val-size", "80", "--output", str(tmp_path)]) == 0
    run = load_run(tmp_path)
    assert run.model_options == {"stem": "small"} and run.model_name == "densenet121"


@pytest.mark.parametrize(("argv", "said"), [
    (["--model-option", "width=2"], "model_option: model lenet5 has no option 'width'\nhelp: it has none"),
    (["--model", "resnet18", "--model-option", "sten=small"], "did you mean 'stem'"),
    (["--model", "resnet18", "--model-option", "stem"], "'stem' is no name=value"),
    (["--optimizer-option", "nesterof=true"], "did you mean 'nesterov'"),
    (["--optimizer-option", "momentum=0.5"], "momentum=0.5 has a flag of its own\nhelp: use --momentum"),
    (["--optimizer-option", "nesterov=maybe"], "nesterov"),
    (["--schedule-option", "power=2"], "schedule cosine has no option 'power'"),
    (["--loss-option", "beta=2"], "loss cross_entropy has no option 'beta'"),
    (["--loss-option", "label_smoothing=0.1"], "has a flag of its own\nhelp: use --label-smoothing"),
    (["--lr-scale", "fc=much"], "fc='much', a finite number above 0 is needed"),
    (["--lr-scale", "fcc=0.1"], "no parameter matches 'fcc'"), (["--freeze", "nothing"], "no parameter matches"),
    (["--freeze", "*"], "are frozen: nothing is trained"),
    (["--metric", "val_acc"], "there is no column 'val_acc'; did you mean 'val_accuracy'"),
    (["--metric", "ema_val_loss"], "there is no column 'ema_val_loss'"),
    (["--val-size", "0", "--patience", "2"], "with --val-size 0 nothing is validated"),
    (["--mode", "up"], "mode: 'up' is not allowed"), (["--accumulate", "0"], "accumulate: 0 is not allowed")])
def test_what_does_not_fit_is_refused(tmp_path: Path, capsys: Captured, argv: list[str], said: str) -> None:
    line = ["--dataset", "synthetic", "--max-steps", "1", "--output", str(tmp_path), "--device", "cpu", *argv]
    assert main(line) in (1, 2)
    error = capsys.readouterr().err
    assert said in error and "\nhelp: " in error and not (tmp_path / "last.safetensors").exists()
