"""benchmarks.inference: every side computes the same, and a row has all of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from benchmarks import inference  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.same_without_kernels("kernels are called by programs that it starts")]


def test_a_row_has_all_sides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    output = tmp_path / "rows.jsonl"
    monkeypatch.setattr(sys, "argv", ["inference", "--model", "lenet5", "--batch", "2", "--rounds", "1", "--clock",
                                      "cpu", "--output", str(output)])
    inference.main()
    row = json.loads(output.read_text())
    assert row["batch"] == 2 and min(row[f"{side}_ms"] for side in ("alpha", "torch", "onnxruntime")) > 0
    assert "| lenet5 | 2 |" in capsys.readouterr().out


def test_sides_that_differ_are_refused(monkeypatch: pytest.MonkeyPatch):
    real = inference.onnx_session

    class Wrong:
        def __init__(self, net, x, threads):
            self.session = real(net, x, threads)

        def run(self, *args):
            return [y + 1 for y in self.session.run(*args)]
    monkeypatch.setattr(inference, "onnx_session", Wrong)
    with pytest.raises(RuntimeError, match="lenet5: alpha is off by"):
        inference.sides("lenet5", 1, 1)
