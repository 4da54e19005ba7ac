"""benchmarks.cpu_ops: every op agrees with PyTorch before it is timed, and a row has both passes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from alpha.core.config import config
from benchmarks import cpu_ops

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.same_without_kernels("kernels are called by programs that it starts")]


@pytest.mark.parametrize("name", cpu_ops.cases(torch))
def test_every_op_agrees_with_pytorch(cpu_kernels: str, name: str) -> None:
    calls = cpu_ops.sides(torch, cpu_ops.cases(torch)[name], (3, 6, 10, 24))
    assert {"alpha", "torch"} == set(calls["forward"])
    for pair in calls.values():
        pair["alpha"].call(0)


def test_rows_have_times_of_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                 capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "rows.jsonl"
    monkeypatch.setattr(sys, "argv", ["cpu_ops", "--shape", "1", "2", "2", "16", "--rounds", "1", "--window", "0.01",
                                      "--only", "gelu", "x > 0", "--output", str(output), "--threads", "1", "--clock",
                                      "cpu"])
    with config(num_threads=1):
        cpu_ops.main()
    gelu, greater = [json.loads(line) for line in output.read_text().splitlines()]
    assert gelu["both_ratio"] > 0 and "both_ratio" not in greater
    assert "| x > 0 |" in capsys.readouterr().out
