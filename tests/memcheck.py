"""memcheck over the CUDA suite: python -m tests.memcheck [--workers N] [--minutes N] [--logs DIR] [pytest's arguments].

compute-sanitizer looks at each process of pytest, and at no program that they start: compilers touch no device, and
what a test runs apart goes wrong on purpose at times. Each process writes a log of its own. The exit status is 0 only
if every test passed, every process looked at the device, none found an error, and the time sufficed for all tests.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# Programs, comparisons with PyTorch, repetitions: what runs for long, or in another process.
LONG = ("interop or training or benchmarks or docs or tuning or calibrate or wheel or two_runs or repetitions or many_ "
        "or losses_are or lose_the_range")
UNTIL, LATE = "ALPHA_MEMCHECK_UNTIL", "ALPHA_MEMCHECK_LATE"  # seconds since 1970; the file of tests that came later


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Passes over what would begin too late: better a count of those than a run that is stopped without a word."""
    if time.time() > float(os.environ.get(UNTIL, "inf")):
        with open(os.environ[LATE], "a") as file:
            file.write(item.nodeid + "\n")
        pytest.skip("the time of memcheck is up")


def sanitizer(logs: Path) -> list[str]:
    """Returns the words before a program's own: memcheck of that process alone, with a log named after its id.

    Calls that the driver refuses are no errors: tests ask for too much memory, or for kernels that are not there.
    """
    found = shutil.which("compute-sanitizer")
    if found is None:
        raise SystemExit("memcheck: there is no compute-sanitizer on PATH\nhelp: add the bin folder of CUDA's toolkit")
    return [found, "--tool", "memcheck", "--target-processes", "application-only", "--report-api-errors", "no",
            "--error-exitcode", "9", "--log-file", str(logs / "%p.log"), sys.executable]


def reports(logs: Path) -> tuple[int, int, str]:
    """Returns the processes that were looked at, their errors, and the text of the logs that are not clean."""
    seen = errors = 0
    unclean = []
    for log in sorted(logs.glob("*.log")):
        text = log.read_text(errors="replace")
        counted = re.search(r"ERROR SUMMARY: (\d+) error", text)
        seen += 1
        if counted is None or counted[1] != "0":
            errors += int(counted[1]) if counted else 1
            unclean.append(f"== {log.name}\n{text}")
    return seen, errors, "\n".join(unclean)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser("python -m tests.memcheck", description=__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=int, default=max(1, len(os.sched_getaffinity(0)) - 1), help="processes")
    parser.add_argument("--minutes", type=float, default=9.0, help="after these no further test begins")
    parser.add_argument("--logs", type=Path, help="a new folder for the logs (default: a temporary one)")
    args, rest = parser.parse_known_args(argv)
    logs = args.logs or Path(tempfile.mkdtemp(prefix="memcheck-"))
    logs.mkdir(parents=True, exist_ok=True)
    if any(logs.iterdir()):
        raise SystemExit(f"memcheck: {logs} is not empty\nhelp: name a new folder after --logs")
    worker = shlex.join(sanitizer(logs))
    command = [sys.executable, "-m", "pytest", "-q", "-rfE", "-p", "tests.memcheck", "--ignore-glob=tests/test_*.py",
               "-m", "cuda and not slow", "-k", f"not ({LONG})", "--dist", "worksteal",
               "--tx", f"{args.workers}*popen//python={worker}", *rest]
    late = logs / "late.txt"
    environment = {**os.environ, UNTIL: str(time.time() + 60 * args.minutes), LATE: str(late)}
    status = subprocess.run(command, cwd=ROOT, env=environment).returncode
    seen, errors, text = reports(logs)
    missed = len(late.read_text().splitlines()) if late.exists() else 0
    print(text[:20_000])
    print(f"memcheck: {seen} processes, {errors} errors, {missed} tests not begun in time; logs in {logs}")
    return 1 if status or errors or missed or seen < args.workers else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
