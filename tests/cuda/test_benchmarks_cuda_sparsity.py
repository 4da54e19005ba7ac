"""`python -m benchmarks.cuda_sparsity` measures products of few rows and layers, and writes rows."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
from alpha.testing.conv_cases import square
from benchmarks import cuda_sparsity, results

pytestmark = [pytest.mark.cuda, pytest.mark.torch, pytest.mark.long]


def test_products_and_layers_are_measured(device, tmp_path, monkeypatch):
    monkeypatch.setattr(cuda_sparsity, "LINEAR", ((64, 16),))
    monkeypatch.setattr(cuda_sparsity, "SHARES", (0.75,))
    monkeypatch.setattr(cuda_sparsity, "CALLS", 1)
    monkeypatch.setattr(cuda_sparsity, "SETS", {"table1": [square("a", 1, 4, 16, 16, 3, 1, 1)]})
    assert cuda_sparsity.main(["--device", "cuda", "--busy", "--only", "linear", "table1", "--rounds", "1", "--window",
                               "0.01", "--output", str(tmp_path)]) == 0
    rows = results.read(tmp_path / "cuda_sparsity.jsonl")
    linear, layer = rows[0], rows[-1]
    assert {"auto", "sparse", "tf32", "strict"} == set(linear["us"]) and linear["zeros"] == 0.75
    assert {"fp32", "ffma", "winograd", "bf16", "fp32_there", "strict", "tf32", "cudnn_bf16"} == set(layer["us"])
