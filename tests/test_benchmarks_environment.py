"""What is noted beside every figure."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from benchmarks import environment

pytestmark = pytest.mark.same_without_kernels("kernels are called by programs that it starts")


def test_a_row_tells_the_commit_of_the_code() -> None:
    root = Path(environment.__file__).resolve().parents[1]
    told = environment.environment("python -m x")["commit"]
    if not (root / ".git").exists():
        assert told == ""
    else:
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True).stdout
        assert len(told) >= 8 and head.startswith(told.removesuffix("-dirty"))


def test_the_gpu_that_programs_see_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text('#!/bin/sh\necho "GPU $2"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    for visible, index in (("2,3", "2"), ("", "0")):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert environment.smi("name") == {"name": f"GPU {index}"}
