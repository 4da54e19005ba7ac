"""benchmarks.cpu_memory: a row for each network, shares of PyTorch's least, and bits that must not differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import cpu_memory, results

pytestmark = pytest.mark.same_without_kernels("kernels are called by programs that it starts")


@pytest.mark.torch
def test_rows_and_differences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    pytest.importorskip("torch")    # whose version is in every row
    losses = {"none": [1.0, 0.5], "auto": [1.0, 0.5]}

    def side(library: str, start: dict[str, Any], setting: str | None = None) -> dict[str, Any]:
        mib = {"none": 80.0, "auto": 60.0}[setting] if setting else {"nchw": 240.0, "nhwc": 200.0}[start["layout"]]
        return {"losses": losses[setting] if setting else [1.0, 0.5], "process_mib": mib,
                "pool_mib": mib / 2 if setting else None}

    monkeypatch.setattr(cpu_memory, "of_side", side)
    flags = ["--models", "lenet5", "--settings", "none", "auto", "--output", str(tmp_path)]
    assert cpu_memory.main(flags) == 0
    row, = results.read(tmp_path / "memory.jsonl")
    assert row["model"] == "lenet5" and row["alpha"]["auto"]["share"] == 0.3 and row["torch"]["nchw"]["share"] == 1.2
    assert "auto 60 (0.30), pool 30" in capsys.readouterr().out
    losses["auto"] = [1.0, 0.25]
    with pytest.raises(RuntimeError, match="losses of lenet5 under auto are not those under none"):
        cpu_memory.main(flags)
