"""What is noted beside every figure."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks import environment

pytestmark = pytest.mark.same_without_kernels("kernels are called by programs that it starts")


def test_the_gpu_that_programs_see_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text('#!/bin/sh\necho "GPU $2"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    for visible, index in (("2,3", "2"), ("", "0")):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert environment.smi("name") == {"name": f"GPU {index}"}
