"""`python -m benchmarks.conv_pool` measures one pass beside two, and writes rows."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
from benchmarks import conv_pool, cuda_sparsity, results

pytestmark = [pytest.mark.cuda, pytest.mark.torch, pytest.mark.long]


def test_a_layer_is_measured(device, tmp_path, monkeypatch):
    monkeypatch.setattr(conv_pool, "LAYERS", ((16, 16, 64),))
    monkeypatch.setattr(cuda_sparsity, "CALLS", 1)
    assert conv_pool.main(["--device", "cuda", "--busy", "--batch", "1", "--rounds", "1", "--window", "0.01",
                           "--output", str(tmp_path)]) == 0
    row, = results.read(tmp_path / "conv_pool.jsonl")
    assert row["gain"] > 0 and {"op", "pair", "128x64", "torch_nchw", "torch_nhwc"} <= set(row["us"])
