"""benchmarks.sparsity: shares of zeros of a network, and rows of times that agree."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import models
from alpha import nn

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")

from benchmarks import sparsity  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.same_without_kernels("kernels are called by programs that it starts")]


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["sparsity", *arguments])
    sparsity.main()


def test_networks_have_shares_and_accuracy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                           capsys: pytest.CaptureFixture[str]):
    output = tmp_path / "rows.jsonl"
    run(monkeypatch, "networks", "--model", "lenet5", "--epochs", "1", "--images", "200", "--prune", "0.5", "--export",
        str(tmp_path), "--output", str(output))
    whole, pruned = [json.loads(line) for line in output.read_text().splitlines()]
    assert whole["zeros"]["conv1"] < 0.1 < whole["zeros"]["fc2"] < 1
    assert 0 <= pruned["accuracy"] <= 1 and "50% of the weights cut" in pruned["network"]
    with np.load(tmp_path / "lenet5.npz") as kept:
        assert kept["conv1"].shape == (8, 32, 32, 3) and set(kept) == {"conv1", "conv2"}
    assert "| conv2 |" in capsys.readouterr().out


def test_pruning_cuts_the_smallest_weights():
    model = models.create("lenet5")
    sparsity.prune(model, 0.75)
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            assert abs((layer.weight.numpy() == 0).mean() - 0.75) < 0.01


def test_a_sweep_has_a_row_for_each_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                          capsys: pytest.CaptureFixture[str]):
    output = tmp_path / "rows.jsonl"
    small = [sparsity.square("a", 1, 6, 16, 16, 3, 1, 1), sparsity.square("b", 1, 6, 16, 16, 3, 2, 1)]
    monkeypatch.setitem(sparsity.SETS, "strides", small)
    run(monkeypatch, "sweep", "--only", "strides", "--zeros", "0", "0.9", "--batch", "2", "--rounds", "1", "--clock",
        "cpu", "--packed", "--output", str(output))
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert [(r["layer"], r["zeros"]) for r in rows] == [("a", 0), ("a", 0.9), ("b", 0), ("b", 0.9)]
    assert "winograd_ms" in rows[0] and "winograd_ms" not in rows[2] and rows[0]["torch_ms"] > 0
    assert all(row["direct_packed_ms"] > 0 and row["sparse_packed_ms"] > 0 for row in rows)
    assert "| a | 2 | 0.9 |" in capsys.readouterr().out


def test_crossovers():
    assert sparsity.crossover([0.0, 0.5, 1.0], [0.5, 0.75, 1.25]) == 0.75
    assert sparsity.crossover([0.2, 0.5], [1.5, 2.0]) == 0.2
    assert sparsity.crossover([0.2, 0.5], [0.5, 0.6]) is None
