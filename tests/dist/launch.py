"""Starts ranks for tests: processes of this Python under mpirun."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BESIDE = Path(sys.executable).parent / "mpirun"     # where MPICH of the package index has put it
MPIRUN = str(BESIDE) if BESIDE.exists() else shutil.which("mpirun")
MISSING = ("there is no mpirun" if MPIRUN is None else
           "mpi4py is not installed" if importlib.util.find_spec("mpi4py") is None else "")
WHY = f'{MISSING}: pip install ".[dist]"'


def command(size: int, *arguments: str) -> list[str]:
    """Returns the command that starts `size` ranks of python -m ..."""
    assert MPIRUN is not None
    return [MPIRUN, "-n", str(size), sys.executable, "-m", *arguments]


def environment(**changes: str) -> dict[str, str]:
    """Returns the environment of ranks: one thread each, as there are few cores."""
    return {**os.environ, "ALPHA_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **changes}


def run(size: int, *arguments: str, timeout_s: float = 120.0, **changes: str) -> subprocess.CompletedProcess[str]:
    """Runs python -m ... on `size` ranks, and returns how it ended."""
    return subprocess.run(command(size, *arguments), cwd=ROOT, env=environment(**changes), capture_output=True,
                          text=True, timeout=timeout_s)
