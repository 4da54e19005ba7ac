"""benchmarks.speedrun: its figures and its table; the sides themselves train on a GPU."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
from benchmarks import results, speedrun

pytestmark = pytest.mark.same_without_kernels("kernels are called by programs that it starts")


def test_warm_up_and_training_are_told_apart() -> None:
    found = speedrun.figures({"epochs": [5.0, 1.0, 1.5, 1.0], "result": 12.0})
    assert (found["warm_up"], found["training"], found["result"]) == (4.0, 4.0, 12.0)


def test_each_side_is_a_process_and_a_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys) -> None:
    child = ("import json, sys; print('2 images to train'); print('last weights, '); "
             "open(sys.argv[1] + '/metrics.csv', 'w').write('seconds\\n3\\n1\\n'); "
             "open(sys.argv[1] + '/summary.json', 'w').write('{\"test_accuracy\": 0.5}')")
    real = speedrun.subprocess.Popen
    monkeypatch.setattr(speedrun.subprocess, "Popen", lambda words, **options: real(
        [sys.executable, "-c", child, words[words.index("--output") + 1]], **options))
    row = speedrun.figures(speedrun.alpha_side(["--epochs", "2"], {}))
    assert row["accuracy"] == 0.5 and row["epochs"] == [3.0, 1.0] and row["warm_up"] == 2.0
    assert 0 < row["ready"] <= row["result"]
    monkeypatch.undo()
    monkeypatch.setattr(speedrun, "alpha_side", lambda flags, env: {"accuracy": 0.5, "ready": 1, "epochs": [3, 1, 1],
                                                                   "result": 9.0})
    monkeypatch.setattr(speedrun, "torch_side", lambda flags, env, form: {
        "accuracy": 0.25, "ready": 1, "epochs": [3, 2, 2], "result": 18.0 + len(form)})
    pytest.importorskip("torch")
    assert speedrun.main(["--recipes", "airbench", "--rounds", "2", "--data-dir", str(tmp_path), "--device", "cpu",
                          "--output", str(tmp_path)]) == 0
    rows = results.read(tmp_path / "speedrun.jsonl")
    assert [(r["side"], r["seed"], r["training"]) for r in rows[:3]] == [("alpha", 0, 3), ("torch", 0, 6),
                                                                        ("graph", 0, 6)]
    out = capsys.readouterr().out
    assert "| airbench | alpha | filled | 2 | 9.00 | 2.00 | 3.000 | 50.00 % |" in out


def test_pytorch_crops_and_mirrors_like_us() -> None:
    torch = pytest.importorskip("torch")
    from benchmarks import torch_speedrun
    x = torch.arange(2 * 3 * 6 * 5.0).view(2, 3, 6, 5)
    torch.manual_seed(0)
    moved = torch_speedrun.cropped(x, 2).numpy()
    wide = np.pad(x.numpy(), ((0, 0), (0, 0), (2, 2), (2, 2)))
    for k in range(2):
        found = [(i, j) for i in range(5) for j in range(5) if np.array_equal(wide[k, :, i:i + 6, j:j + 5], moved[k])]
        assert len(found) == 1
    views = torch_speedrun.views(x, "mirror_shift")
    assert len(views) == 6 and torch.equal(views[3], x.flip(-1))
    assert torch.equal(views[1][:, :, 1:, 1:], x[:, :, :-1, :-1])
