"""alpha compare FILE.py:Net: conversion, agreement, times, and reports that need nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from alpha import __main__ as command
from alpha.errors import ConfigError

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch,
              pytest.mark.same_without_kernels("calls no kernel, or calls it from a program")]
MINE = """
import torch
from torch import nn

class Net(nn.Sequential):
    def __init__(self, channels=4):
        super().__init__(nn.Conv2d(3, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Flatten(), nn.Linear(channels * 16, 5))

class Needy(nn.Module):
    def __init__(self, size):
        super().__init__()

wide = lambda: Net(8)
number = lambda: 3
odd = type("Odd", (nn.Module,), {"forward": lambda self, x: torch.digamma(x)})
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "my_models.py"
    path.write_text(MINE)
    return path


def fails(capsys: pytest.CaptureFixture[str], *args: Any) -> str:
    """Returns what the command says when it is refused."""
    assert command.main(["compare", *map(str, args)]) == 2
    return capsys.readouterr().err


@pytest.mark.large
def test_a_model_of_a_file_is_compared_and_reported(mine: Path, tmp_path: Path,
                                                    capsys: pytest.CaptureFixture[str]) -> None:
    args = [f"{mine}:Net", "--input", "3,8,8", "--batch", "4", "--steps", "3", "--out", str(tmp_path)]
    assert command.main(["compare", *args]) == 0
    text = capsys.readouterr().out
    assert "0 permutes left" in text and "torch eager" in text and "BatchNorm2d" in text
    report = json.loads((tmp_path / "compare_Net.json").read_text())
    ours, theirs = report["sides"]["alpha"], report["sides"]["torch eager"]
    assert len(ours["times_ms"]) == len(theirs["times_ms"]) == 3 and ours["step_ms"] > 0
    np.testing.assert_allclose(ours["losses"], theirs["losses"], rtol=1e-4)
    layers = {row["path"]: row for row in report["layers"]}
    assert all(layers[path]["alpha"] < 1e-6 for path in ("0", "1", "2", "3", "5", "output"))
    assert report["command"] == "alpha compare " + " ".join(args) and report["versions"]["torch"]
    page = (tmp_path / "compare_Net.html").read_text()
    assert "<svg" in page and "Run again" in page and "http" not in page and "src=" not in page


@pytest.mark.large
def test_a_shipped_network_is_compared_by_its_name(tmp_path: Path) -> None:
    from alpha.programs import compare

    assert compare.main(["lenet5", "--batch", "2", "--steps", "1", "--out", str(tmp_path)]) == 0
    assert json.loads((tmp_path / "compare_lenet5.json").read_text())["parameters"] > 60_000


def test_bad_requests_are_refused_before_anything_runs(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no FILE.py:Name" in fails(capsys, "models.txt:Net")
    assert "there is no file none.py" in fails(capsys, "none.py:Net")
    assert "has no Other" in fails(capsys, f"{mine}:Other")
    assert "Needy() fails" in fails(capsys, f"{mine}:Needy")
    assert "is int, a torch.nn.Module is needed" in fails(capsys, f"{mine}:number")
    assert "does not take an input of shape" in fails(capsys, f"{mine}:Net", "--input", "3,9,40")
    assert "is no shape such as 3,32,32" in fails(capsys, f"{mine}:Net", "--input", "3,x")
    assert "--batch is 1, at least 2" in fails(capsys, f"{mine}:Net", "--batch", 1)
    assert "--steps is 0, at least 1" in fails(capsys, f"{mine}:Net", "--steps", 0)
    assert "--out: there is no folder" in fails(capsys, f"{mine}:Net", "--out", mine.parent / "none")
    assert "cpu or cuda is needed" in fails(capsys, f"{mine}:Net", "--device", "tpu")
    assert "digamma at" in fails(capsys, f"{mine}:odd")
    mine.write_text("1 / 0")
    assert "cannot be imported: ZeroDivisionError" in fails(capsys, f"{mine}:Net")
    assert "no model is called 'resnet17'" in fails(capsys, "resnet17")


def test_a_report_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    from alpha.programs import compare_report

    side = {"step_ms": 1.0, "times_ms": [1.0], "peak_mib": None, "losses": [1.0], "permutes": ["a place"],
            "convert_s": 1.0}
    row = {"path": "output", "kind": "Net", "shape": [2], "alpha": None, "torch": 1e-7}
    report = {"class": "Net<T>", "parameters": 3, "input": [3], "batch": 2, "precision": "fp32", "device_name": "d",
              "time": "t", "command": "c", "versions": {}, "layers": [row],
              "sides": {"alpha": side, "torch eager": side}}
    assert "Net&lt;T&gt;" in compare_report.page(report) and "a place" in compare_report.table(report)
    with pytest.raises(ConfigError, match=r"compare_a.json cannot be written.*\nhelp: make the folder first"):
        compare_report.write(report, tmp_path / "none", "compare_a")


def test_disagreement_is_noticed() -> None:
    from alpha.programs.compare import agrees

    def report(error: float | None, losses: list[float], precision: str = "fp32") -> dict[str, Any]:
        return {"layers": [{"alpha": error, "torch": 1e-7}], "precision": precision,
                "sides": {"alpha": {"losses": losses}, "torch eager": {"losses": [1.0, 0.5]}}}

    assert agrees(report(1e-7, [1.0, 0.5])) and agrees(report(1e-7, [1.05, 0.5], "bf16"))
    assert not agrees(report(1e-3, [1.0, 0.5])) and not agrees(report(None, [1.0, 0.5]))
    assert not agrees(report(1e-7, [1.05, 0.5])) and not agrees(report(1e-7, [1.0, float("nan")]))
