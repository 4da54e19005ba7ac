"""From the op to the launch: docs/how_to/add_a_conv_kernel.md names the files that a reader meets: few."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.same_without_kernels("it calls no compiled kernel")
ROOT = Path(__file__).resolve().parent.parent
MOST_FILES, MOST_BESIDE = 8, 12  # those of the walk; what a debugger steps into besides: checks, memory, tensor maps

WALK = """
import sys
from alpha.cuda import families
from alpha.cuda.runtime import rehearsal

def program():
    import alpha
    x, w = alpha.zeros((512, 32, 32, 64), device="cuda"), alpha.zeros((64, 3, 3, 64), device="cuda")
    alpha.ops.conv2d(x, w, stride=1, padding=1)
    found = set()
    sys.setprofile(lambda frame, event, value: found.add(frame.f_code.co_filename) if event == "call" else None)
    alpha.ops.conv2d(x, w, stride=1, padding=1)
    sys.setprofile(None)
    print(*sorted(found), sep="\\n")

rehearsal.rehearse(program, "sm_90a")
"""


def test_conv2d_in_fp32_on_hopper_meets_few_files() -> None:
    text = (ROOT / "docs" / "how_to" / "add_a_conv_kernel.md").read_text()
    table = text.partition("## How a convolution gets to its kernel")[2].partition("\n## ")[0]
    named = set(re.findall(r"^\| `(alpha/[\w/]+\.py)` \|", table, re.MULTILINE))
    out = subprocess.run([sys.executable, "-c", WALK], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    met = {Path(line).relative_to(ROOT).as_posix() for line in out.splitlines() if line.startswith(f"{ROOT}/alpha/")}
    met -= {"alpha/cuda/runtime/rehearsal.py"}  # it stands for the driver
    assert len(named) <= MOST_FILES and named <= met, named - met
    assert len(met - named) <= MOST_BESIDE, sorted(met - named)
