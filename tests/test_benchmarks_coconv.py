"""Contextual convolutions beside PyTorch: values are looked at before they are timed, figures, the program."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from alpha.core.op import registry
from benchmarks import coconv, cpu_timing, results
from benchmarks.coconv import CoShape

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.same_without_kernels("kernels are called by programs that it starts")]

TINY = CoShape(32, 6, 8, 16, 4)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coconv, "SHAPES", (TINY,))
    monkeypatch.setattr(coconv, "TABLES", coconv.TABLES[:1])


def flags(output: Path, *more: str) -> list[str]:
    return ["--device", "cpu", "--rounds", "1", "--window", "0.01", "--output", str(output), *more]


def test_three_passes_are_measured_and_resumed(tiny: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert coconv.main(flags(tmp_path)) == 0
    rows = results.read(tmp_path / "coconv.jsonl")
    assert [row["pass"] for row in rows] == ["fprop", "dgrad", "wgrad"]
    for row in rows:
        assert row["ms"].keys() == {"alpha", "composed", "conv2d", "torch_nchw", "torch_nhwc"}
        assert max(row["error"].values()) < 1e-5 and row["n"] == 2
        assert row["ratio"] == pytest.approx(min(row["ms"]["torch_nchw"], row["ms"]["torch_nhwc"]) / row["ms"]["alpha"])
    assert "| layers | 6x8-16x4 | 2 | wgrad | fp32 |" in capsys.readouterr().out
    assert coconv.main(flags(tmp_path, "--resume")) == 0 and len(results.read(tmp_path / "coconv.jsonl")) == len(rows)


def test_the_papers_tables(tiny: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert coconv.main(flags(tmp_path, "--tables")) == 0
    row, = results.read(tmp_path / "coconv.jsonl")
    assert row["shape"] == "5x3-4x4" and row["paper_ms"] == [0.425, 208, 4511]
    assert "(0.425, 208, 4511)" in capsys.readouterr().out and len(coconv.PAPER_MS) == 11


def test_a_wrong_result_is_not_timed(tiny: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import alpha.cpu.coconv  # noqa: F401  registers what is replaced, whichever test comes first
    right = registry["coconv2d"].impls["cpu"]
    monkeypatch.setitem(registry["coconv2d"].impls, "cpu", lambda *a, **k: right(*a, **k) * np.float32(1.001))
    assert coconv.main(flags(tmp_path, "--passes", "fprop")) == 1
    row, = results.read(tmp_path / "coconv.jsonl")
    assert "coconv: 6x8-16x4 fprop: a result is wrong" in row["failed"] and "FAILED" in coconv.line(row)


def test_what_the_cpu_lacks_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert coconv.main(["--device", "cpu", "--precision", "bf16"]) == 1
    assert "coconv: precision bf16 on the CPU" in capsys.readouterr().err


def test_it_takes_the_clock_of_the_processor(tiny: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1})
    used: list[str] = []
    monkeypatch.setitem(cpu_timing.CLOCKS, "cpu", lambda: used.append("cpu") or float(len(used)))
    assert coconv.main(flags(tmp_path, "--clock", "cpu", "--passes", "fprop")) == 0
    assert used and results.read(tmp_path / "coconv.jsonl")[0]["clock"] == "cpu"
