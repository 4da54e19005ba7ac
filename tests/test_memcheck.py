"""python -m tests.memcheck: what it starts, and when its exit status is red; a script stands for compute-sanitizer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import memcheck

pytestmark = [pytest.mark.skipif(os.name != "posix", reason="the script is for a POSIX shell"),
              pytest.mark.same_without_kernels("it calls no compiled kernel")]
SANITIZER = """#!/bin/sh
while [ "${1#--}" != "$1" ]; do
  [ "$1" = --log-file ] && log=$2
  shift 2
done
log="$(echo "$log" | sed "s/%p/$$/")"
echo "========= ERROR SUMMARY: ${ERRORS:-0} errors" > "$log"
LOG="$log" exec "$@"
"""
TESTS = """
import pytest

@pytest.mark.cuda
@pytest.mark.parametrize("n", range(3))
def test_it(n):
    import os
    if n == int(os.environ.get("SPOKEN_OF", 9)):
        open(os.environ["LOG"], "a").write("Invalid __global__ read")
    assert n != int(os.environ.get("FAILS", 9))

@pytest.mark.cuda
@pytest.mark.no_memcheck("it is for the test")
def test_left_out():
    assert False

@pytest.mark.cuda
@pytest.mark.torch
def test_torch():
    assert False

@pytest.mark.cuda
@pytest.mark.slow
def test_slow():
    assert False
"""


@pytest.mark.parametrize("settings, workers, minutes, status, line", [
    ({"ERRORS": "2"}, 2, 5, 2, "memcheck: 2 processes, 4 errors of memory; 0 tests failed, 0 not begun in time"),
    ({"SPOKEN_OF": "1"}, 1, 5, 0, "memcheck: 1 processes, 0 errors of memory; 0 tests failed, 0 not begun in time"),
    ({"FAILS": "1"}, 1, 5, 1, "memcheck: 1 processes, 0 errors of memory; 1 tests failed, 0 not begun in time"),
    ({}, 1, -1, 1, "memcheck: 1 processes, 0 errors of memory; 0 tests failed, 3 not begun in time")],
    ids=["errors", "named", "fails", "late"])
def test_the_status_tells(settings: dict[str, str], workers: int, minutes: int, status: int, line: str,
                          tmp_path: Path) -> None:
    pytest.importorskip("xdist")
    tool, tests = tmp_path / "compute-sanitizer", tmp_path / "test_few.py"
    tool.write_text(SANITIZER)
    tool.chmod(0o755)
    tests.write_text(TESTS)
    env = {**os.environ, **settings, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run([sys.executable, "-m", "tests.memcheck", "--workers", str(workers), "--minutes", str(minutes),
                           "--logs", str(tmp_path / "logs"), "-p", "no:cacheprovider", str(tests)],
                          cwd=memcheck.ROOT, env=env, capture_output=True, text=True)
    assert line in done.stdout and "not under memcheck: it is for the test" in done.stdout, done.stdout + done.stderr
    assert done.stdout.count("memcheck spoke in ") == ("SPOKEN_OF" in settings) and done.returncode == status


def test_a_log_without_a_summary_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "7.log").write_text("========= COMPUTE-SANITIZER\n")
    assert memcheck.reports(tmp_path)[:2] == (1, 1)
