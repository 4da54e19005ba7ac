"""However relu is written behind a layer, the same kernels are launched, forward and back: tests/spellings.py."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.same_without_kernels("it calls no compiled kernel")
ROOT = Path(__file__).resolve().parent.parent


def test_each_spelling_of_norm_and_relu_has_the_same_launches() -> None:
    done = subprocess.run([sys.executable, "-m", "tests.spellings"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found) == 48 and any("bf16, large, training" in case for case in found)
    for case, spellings in found.items():
        assert len(spellings) > 1
        for name, launches in spellings.items():
            assert launches and launches == spellings["activation"], f"{case}: {name}"
