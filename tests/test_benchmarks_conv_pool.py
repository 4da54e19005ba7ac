"""`python -m benchmarks.conv_pool` measures one pass beside two on a CPU, and writes rows."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
from benchmarks import conv_pool, results

pytestmark = [pytest.mark.torch, pytest.mark.same_without_kernels("kernels are called by programs that it starts")]


def test_a_layer_is_measured(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(conv_pool, "LAYERS", ((16, 16, 64),))
    assert conv_pool.main(["--device", "cpu", "--batch", "1", "--rounds", "1", "--window", "0.01", "--output",
                           str(tmp_path)]) == 0
    row, = results.read(tmp_path / "conv_pool.jsonl")
    assert row["gain"] > 0 and set(row["us"]) == {"op", "pair", "torch_nchw", "torch_nhwc"}
    assert "| 16x16 16-64 | 1 |" in capsys.readouterr().out
