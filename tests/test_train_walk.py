"""From `python -m train` to its first step: the files that a reader meets on the way stay few."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.same_without_kernels("it counts files, with kernels and without")
ROOT = Path(__file__).resolve().parent.parent
MOST_FILES, MOST_OF_TRAIN = 74, 11     # of alpha, models and train; of train alone

WALK = """
import sys, threading
from alpha.core.device import get_backend
from alpha.training import Trainer
from train import program

class Reached(BaseException):
    pass

def step(*args):
    raise Reached

def look(frame, event, value):
    if event == "call" and frame.f_code.co_name != "<module>":
        found.add(frame.f_code.co_filename)

found = set()
Trainer.step = step
get_backend("cpu").prepare()
threading.setprofile(look)
sys.setprofile(look)
try:
    program.main(["--dataset", "synthetic", "--output", sys.argv[1], "--device", "auto"])
except Reached:
    sys.setprofile(None)
    print(*sorted(found), sep="\\n")
"""


def test_the_first_step_of_a_run_meets_few_files(tmp_path: Path) -> None:
    out = subprocess.run([sys.executable, "-c", WALK, str(tmp_path)], cwd=ROOT, capture_output=True, text=True,
                         check=True).stdout
    met = {line.removeprefix(f"{ROOT}/") for line in out.splitlines()
           if line.startswith(tuple(f"{ROOT}/{room}/" for room in ("alpha", "models", "train")))}
    assert {"train/program.py", "train/loop.py", "alpha/training/trainer.py", "alpha/data/public/small.py"} <= met
    assert len(met) <= MOST_FILES, sorted(met)
    assert len([path for path in met if path.startswith("train/")]) <= MOST_OF_TRAIN, sorted(met)
