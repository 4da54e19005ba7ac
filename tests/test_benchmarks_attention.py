"""The benchmark of attention: values are looked at before they are timed, figures, and what is resumed."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import attention, results
from benchmarks.attention import Heads

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch,
              pytest.mark.same_without_kernels("calls no kernel, or calls it from a program")]

TINY = (Heads("tiny", 2, 2, 9, 8, True),)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "ATTENTION", TINY)
    monkeypatch.setattr(attention, "PRODUCTS", TINY)


def flags(output: Path, *more: str) -> list[str]:
    return ["--device", "cpu", "--rounds", "1", "--window", "0.01", "--output", str(output), *more]


def test_all_cases_are_measured_and_resumed(tiny: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert attention.main(flags(tmp_path)) == 0
    rows = results.read(tmp_path / "attention.jsonl")
    assert [row["pass"] for row in rows] == ["fwd", "both", "scores", "values", "keys"]
    for row in rows:
        least = min(t for name, t in row["ms"].items() if name != "alpha")
        assert row["error"] < 1e-5 and row["ratio"] == pytest.approx(least / row["ms"]["alpha"])
    assert {"alpha", "math"} <= rows[0]["ms"].keys() and rows[2]["ms"].keys() == {"alpha", "torch"}
    assert "| attention | tiny | 2 | both | fp32 |" in capsys.readouterr().out
    assert attention.main(flags(tmp_path, "--resume")) == 0
    assert len(results.read(tmp_path / "attention.jsonl")) == len(rows)
    assert attention.main(flags(tmp_path, "--sets", "products", "--batches", "1", "3", "--only", "in")) == 0
    assert {row["n"] for row in results.read(tmp_path / "attention.jsonl")} == {1, 2, 3}


def test_results_that_differ_are_not_timed(tiny: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(attention.BOUNDS, "fp32", 0.0)
    with pytest.raises(SystemExit, match="the results differ by"):
        attention.main(flags(tmp_path))
