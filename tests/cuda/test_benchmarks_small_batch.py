"""`python -m benchmarks.small_batch` finds its shapes, checks what it times, and writes rows."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
from benchmarks import results, small_batch

pytestmark = [pytest.mark.cuda, pytest.mark.torch, pytest.mark.long]


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_a_layer_is_measured(device, tmp_path, monkeypatch, capsys, precision):
    monkeypatch.setattr(small_batch, "shapes", lambda name, batch: iter([small_batch.shape(batch, 4, 16, 16, 3)]))
    monkeypatch.setattr(small_batch, "CALLS", 1)
    assert small_batch.main(["--busy", "--sets", "vgg", "--batch", "1", "--precision", precision, "--passes", "fprop",
                             "dgrad", "wgrad", "--best", "1", "--rounds", "1", "--window", "0.01", "--output",
                             str(tmp_path)]) == 0
    rows = results.read(tmp_path / "small_batch.jsonl")
    assert [row["pass"] for row in rows] == ["fprop", "dgrad", "wgrad"]
    assert all(row["ratio"] > 0 and len(row["estimates"]) == 1 and row["error"] < 2e-2 for row in rows)
    assert "geometric mean" in capsys.readouterr().out
