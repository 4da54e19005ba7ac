"""The benchmark of whole steps: it runs, and it refuses to time networks that differ."""

from __future__ import annotations

import pytest

from benchmarks import cpu_steps


@pytest.mark.torch
def test_a_tiny_comparison_runs() -> None:
    pytest.importorskip("torch")
    row = cpu_steps.compare("lenet5", batch=4, rounds=1, visit_ms=5)
    assert row["ratio_min"] <= row["ratio"] <= row["ratio_max"]
    assert all(row["ms"][library] > 0 and row["peak_mib"][library] > 10 for library in cpu_steps.LIBRARIES)


@pytest.mark.parametrize("change", [{"parameters": 11}, {"losses": [2.3004, 2.2, 2.1]}, {"losses": [2.3, 2.3, 2.1]}])
def test_different_networks_are_not_timed(change: dict) -> None:
    started = {"alpha": {"parameters": 10, "losses": [2.3, 2.2, 2.1]}}
    cpu_steps.check_same({**started, "torch_nchw": {"parameters": 10, "losses": [2.3001, 2.21, 1.0]}})
    with pytest.raises(SystemExit, match=r"not the same network: alpha .*, torch_nchw "):
        cpu_steps.check_same({**started, "torch_nchw": {**started["alpha"], **change}})
