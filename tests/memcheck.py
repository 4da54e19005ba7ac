"""memcheck over the CUDA suite: python -m tests.memcheck [--workers N] [--minutes N] [--logs DIR] [pytest's arguments].

compute-sanitizer looks at each process of pytest, and at no program that they start: compilers touch no device, and
what a test runs apart goes wrong on purpose at times. Each process writes a log of its own. Tests with the mark
no_memcheck are left out, for the reason that it gives, and those with the mark torch, whose kernels are others'. The
exit status tells what went wrong: 2 if there are errors of memory, or a process was not looked at to its end; else 1 if
tests failed, or the time did not suffice for all.
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
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
UNTIL, LOGS = "ALPHA_MEMCHECK_UNTIL", "ALPHA_MEMCHECK_LOGS"  # seconds since 1970; the folder
LATE, FAILED, FOUND = "late.txt", "failed.txt", "found.txt"  # tests not begun in time, failed, with words of the tool


# ---- within pytest: the plugin ---------------------------------------------------------------------------------------


def note(name: str, test: str) -> None:
    with open(Path(os.environ[LOGS]) / name, "a") as file:
        file.write(test + "\n")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Passes over what cannot run here, and what would begin too late: better a count than a run that is stopped."""
    mark = item.get_closest_marker("no_memcheck")
    if mark:
        pytest.skip(f"not under memcheck: {mark.args[0]}")
    if time.time() > float(os.environ[UNTIL]):
        note(LATE, item.nodeid)
        pytest.skip("the time of memcheck is up")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Notes in which test the tool had something to say."""
    log = Path(os.environ[LOGS]) / f"{os.getpid()}.log"
    before = log.stat().st_size if log.exists() else 0
    yield
    if log.exists() and log.stat().st_size > before:
        note(FOUND, item.nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        note(FAILED, f"{report.nodeid} ({report.when})")


# ---- the command -----------------------------------------------------------------------------------------------------


def sanitizer(logs: Path) -> list[str]:
    """Returns the words before a program's own: memcheck of that process alone, with a log named after its id.

    Calls that the driver refuses are no errors: tests ask for too much memory, or for kernels that are not there. The
    tool meets a process when that first calls the driver, long after its start: it waits for that.
    """
    found = shutil.which("compute-sanitizer")
    if found is None:
        raise SystemExit("memcheck: there is no compute-sanitizer on PATH\nhelp: add the bin folder of CUDA's toolkit")
    return [found, "--tool", "memcheck", "--target-processes", "application-only", "--report-api-errors", "no",
            "--launch-timeout", "900", "--error-exitcode", "9", "--log-file", str(logs / "%p.log"), sys.executable]


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


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser("python -m tests.memcheck", description=__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=int, default=max(1, len(os.sched_getaffinity(0)) - 1), help="processes")
    parser.add_argument("--minutes", type=float, default=9.0, help="after these no further test begins")
    parser.add_argument("--logs", type=Path, help="a new folder for the logs (default: a temporary one)")
    args, rest = parser.parse_known_args(argv)
    logs = (args.logs or Path(tempfile.mkdtemp(prefix="memcheck-"))).resolve()
    logs.mkdir(parents=True, exist_ok=True)
    if any(logs.iterdir()):
        raise SystemExit(f"memcheck: {logs} is not empty\nhelp: name a new folder after --logs")
    worker = shlex.join(sanitizer(logs))
    command = [sys.executable, "-m", "pytest", "-q", "-rfEs", "-p", "tests.memcheck", "-m",
               "cuda and not slow and not torch", "--dist", "worksteal", "--tx",
               f"{args.workers}*popen//python={worker}", *rest]
    outer = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_XDIST")}  # of a run around
    environment = {**outer, UNTIL: str(time.time() + 60 * args.minutes), LOGS: str(logs)}
    status = subprocess.run(command, cwd=ROOT, env=environment).returncode
    seen, errors, text = reports(logs)
    late, failed, found = (lines(logs / name) for name in (LATE, FAILED, FOUND))
    print(text[:20_000])
    for test in found:
        print(f"memcheck spoke in {test}")
    print(f"memcheck: {seen} processes, {errors} errors of memory; {len(failed)} tests failed, {len(late)} not begun "
          f"in time; logs in {logs}")
    if errors or seen < args.workers:
        return 2
    return 1 if status or failed or late else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
