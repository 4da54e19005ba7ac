"""The fuzzer: a short run of every target finds nothing, and what it is to find it reports."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.__main__ import targets

pytestmark = pytest.mark.same_without_kernels("kernels are called by programs that it starts")
ROOT = Path(__file__).resolve().parent.parent
ATTEMPTS = 60

PLANTED = {
    "hang": "while True: pass",
    "asleep": "import time; time.sleep(1000)",
    "crash": "import os; os.kill(os.getpid(), 11)",
    "leaves": "import os; os._exit(3)",
    "raw": "return {}['no such key']",
    "explosion": "return str(len(bytearray(8 << 30)))",
    "wrong": "assert 1 + 1 == 3, 'one and one'",
    "noisy": "print('{\"key\": 1}'); (folder / 'a').write_text('x'); return f'fine {rng.random()}'",
}


def run(*flags: str, path: str = "") -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), path])}
    return subprocess.run([sys.executable, "-m", "tests.fuzz", *flags], cwd=ROOT, env=env, capture_output=True,
                          text=True, timeout=500)


@pytest.mark.parametrize("name", targets("tests.fuzz"))
def test_a_short_run_finds_nothing(name):
    if name in ("graph", "networks", "views"):   # they compare with PyTorch
        pytest.importorskip("torch")
    attempts = ATTEMPTS // 3 if name == "networks" else ATTEMPTS     # half a second each
    done = run("--only", name, "--attempts", str(attempts), "--workers", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{name}: {attempts} attempts, 0 findings" in done.stdout


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """Targets that misbehave, in a package of their own."""
    folder = tmp_path_factory.mktemp("path") / "planted"
    folder.mkdir()
    (folder / "__init__.py").touch()
    for name, body in PLANTED.items():
        seconds = 0.5 if name in ("hang", "asleep") else 20
        (folder / f"{name}.py").write_text(f"SECONDS, MIB = {seconds}, 512\ndef attempt(rng, folder):\n    {body}\n")
    return str(folder.parent)


REPORTED = [
    ("hang", "no answer in 0.5 s"), ("asleep", "no answer in 0.5 s"), ("crash", "killed by SIGSEGV"),
    ("leaves", "ended with status 3"), ("raw", "KeyError at raw.py:3 in attempt"),
    ("explosion", "MemoryError at explosion.py:3"), ("wrong", "one and one")]


def test_what_is_planted_is_reported(planted):
    done = run("--package", "planted", "--only", *(name for name, _ in REPORTED), "--attempts", "1", "--seed", "7",
               "--workers", "1", path=planted)
    assert done.returncode == 1, done.stdout + done.stderr
    for name, shown in REPORTED:
        assert shown in done.stdout and (f"{name}.py" in done.stdout or name == "leaves"), name
        assert f"again: python -m tests.fuzz --only {name} --seed 7 --attempts 1" in done.stdout
        assert f"{name}: 1 attempts, 1 findings" in done.stdout


def test_findings_of_a_kind_are_shown_once_and_the_run_goes_on(planted):
    done = run("--package", "planted", "--only", "crash", "noisy", "--attempts", "3", "-v", path=planted)
    assert done.returncode == 1 and done.stdout.count("FINDING") == 1, done.stdout
    assert "crash: 3 attempts, 3 findings of 1 kinds" in done.stdout
    assert "noisy: 3 attempts, 0 findings" in done.stdout


def test_a_seed_gives_the_same_case_again(planted):
    lines = [re.findall(r"noisy 5: (.*)", run("--package", "planted", "--only", "noisy", "--attempts", n, "--seed", s,
                                              "-v", path=planted).stdout) for n, s in (("4", "2"), ("1", "5"))]
    assert lines[0] == lines[1] != []


def test_an_unknown_target_is_refused():
    done = run("--only", "nothing")
    assert done.returncode == 2 and "there is no target 'nothing'" in done.stderr
