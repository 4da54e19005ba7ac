"""benchmarks.first_use: a process of its own tells when its first step begins and ends."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from alpha.build import cache_dir
from alpha.errors import CompileError
from benchmarks import first_use, performance

pytestmark = pytest.mark.same_without_kernels("kernels are called by programs that it starts")


def test_a_first_step_is_timed_from_the_start_of_its_process() -> None:
    pytest.importorskip("sklearn")
    found = first_use.first_step("lenet5", "fp32", 32, "cpu", cache_dir(), cores=1)
    assert 0 < found["begins"] <= found["ends"] and found["modules"] == 0


def test_a_process_that_fails_is_told(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match=r"lenet6 failed: .*'lenet6' is not allowed"):
        first_use.first_step("lenet6", "fp32", 32, "cpu", tmp_path)


def test_rows_and_their_table(tmp_path: Path, monkeypatch, capsys):
    steps = iter([dict(begins=1.0, ends=9.0, modules=3), dict(begins=1.0, ends=1.5, modules=3)])
    monkeypatch.setattr(first_use, "first_step", lambda *arguments: next(steps))
    output = tmp_path / "rows.jsonl"
    first_use.main(["--networks", "lenet5", "--precision", "fp32", "--again", "1", "--device", "cpu", "--output",
                    str(output)])
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert [row["cache"] for row in rows] == ["empty", "full"]
    assert capsys.readouterr().out.count("lenet5") == 2
    cores = len(os.sched_getaffinity(0))
    assert performance.first_use(rows)[2:] == [f"| LeNet-5 | fp32 | {cores} cores | 3 | 9.0 s | 1.5 s |"]
