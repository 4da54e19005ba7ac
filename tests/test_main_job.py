"""The main job as a newcomer runs it: `python -m train`, with no flag but where to put the results."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.same_without_kernels("kernels are called by programs that it starts")
ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.slow
def test_lenet5_learns_real_digits(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    pytest.importorskip("matplotlib")
    done = subprocess.run([sys.executable, "-m", "train", "--output", str(tmp_path / "run")], cwd=ROOT, text=True,
                          capture_output=True)
    assert done.returncode == 0, done.stderr
    last = re.fullmatch(r"test accuracy (\d+\.\d\d) %", done.stdout.splitlines()[-1])
    assert last and float(last[1]) >= 97.0, done.stdout
    assert {p.name for p in (tmp_path / "run").iterdir()} >= {
        "config.toml", "metrics.csv", "curves.png", "confusion.png", "last.safetensors", "best.safetensors"}
