"""Programs that use the GPU in a process of their own: what a test does to its own process cannot be undone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from emulator import emulation

ROOT = Path(__file__).resolve().parent.parent.parent
EMULATED = "emulator.plugin" in sys.modules
CHECKED = EMULATED and emulation.checked()  # every access, which takes its time
COUNTS_LIVE = pytest.mark.no_memcheck("counts live memory: the tool keeps Python's frames, and what they hold")
QUIET = ("-W", "ignore:This process:DeprecationWarning")  # Python's own words on forking beside the driver's threads
PRELUDE = "from emulator import emulation; emulation.install()\n" if EMULATED else ""


def run(code: str, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs a program, on the emulated driver if that is what this process uses, and returns what came of it."""
    return start(code, *args, **env).finish()


class start:
    """A program that runs beside this one."""

    def __init__(self, code: str, *args: str, **env: str) -> None:
        self.process = subprocess.Popen([sys.executable, *QUIET, "-c", PRELUDE + code, *args], cwd=ROOT,
                                        env={**os.environ, **env}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        text=True)

    def finish(self) -> subprocess.CompletedProcess[str]:
        out, err = self.process.communicate(timeout=300)
        return subprocess.CompletedProcess([], self.process.returncode, out, err)
