"""benchmarks.trees: two checkouts in turn."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from alpha.errors import ConfigError
from benchmarks import trees
from benchmarks.process import ROOT

pytestmark = pytest.mark.same_without_kernels("kernels are called by programs that it starts")


def test_the_interval_is_that_of_the_order():
    values = [float(k) for k in range(15)]
    assert trees.interval(values[::-1]) == (3, 11), "of 15 pairs: 96.5 % between the fourth and the twelfth"
    assert trees.interval([2.0, 1.0]) == (1, 2) and trees.interval([1.0]) == (1, 1)


def test_this_checkout_beside_itself(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(trees.WINDOW_MS, "cpu", 1.0)
    output = tmp_path / "trees.jsonl"
    trees.main([str(ROOT), "--jobs", "lenet5:2:fp32", "--pairs", "3", "--output", str(output)])
    row, = map(json.loads, output.read_text().splitlines())
    assert row["loss"]["before"] == row["loss"]["now"] and len(row["ms"]["now"]) == len(row["ms"]["before"]) == 3
    assert row["interval"][0] <= row["ratio"] <= row["interval"][1] and row["before"] == row["now"]
    assert f"lenet5:2:fp32 {'':8}" in capsys.readouterr().out


def test_what_is_no_checkout_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no benchmarks/step_worker\.py\nhelp: name a checkout"):
        trees.main([str(tmp_path)])


def test_no_job_begins_after_its_time():
    args = trees.arguments([str(ROOT), "--seconds", "0"])
    assert not list(trees.rows(args))
