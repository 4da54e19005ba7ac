"""What a figure depends on: machine, versions, date, command."""

from __future__ import annotations

import datetime
import os
import platform
from importlib.metadata import version
from pathlib import Path

import alpha


def environment(command: str, *packages: str) -> dict[str, str]:
    """Returns the facts that go beside every figure, with the versions of the packages named."""
    info = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":")[1].strip() for line in info if "model name" in line]
    return {"date": datetime.date.today().isoformat(), "cpu": f"{names[0] if names else platform.processor()}, "
            f"{len(os.sched_getaffinity(0))} cores", "python": platform.python_version(), "alpha": alpha.__version__,
            **{package: version(package) for package in ("numpy", *packages)}, "command": command}
