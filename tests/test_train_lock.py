"""Two runs never share an output directory, and what a killed one leaves of its lock is in nobody's way."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import multiprocessing.connection
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import train.lock
import train.loop
import train.report
from alpha import checkpoint
from alpha.core.config import config
from alpha.errors import ConfigError
from tests import tiny_run
from tests.tiny_run import flags
from train.__main__ import main
from train.lock import OutputLock

pytestmark = pytest.mark.same_without_kernels("it calls no compiled kernel")
HOST = socket.gethostname()
Patch = pytest.MonkeyPatch


@pytest.fixture(autouse=True)
def quick(monkeypatch: Patch) -> Iterator[None]:
    """Pictures take longer than a run, threads longer than a step, and waiting longer than both."""
    monkeypatch.setattr(train.report, "can_plot", lambda: False)
    monkeypatch.setattr(train.lock, "WATCH", 0.5)
    monkeypatch.setattr(train.lock, "BEAT", 0.05)
    monkeypatch.setattr(train.lock, "PATIENCE", 0.1)
    with config(num_threads=1):
        yield


@pytest.fixture
def no_locks(monkeypatch: Patch) -> None:
    """A file system that knows no locks."""
    def flock(*args: Any) -> None:
        raise OSError(37, "No locks available")
    monkeypatch.setattr(fcntl, "flock", flock)


@pytest.fixture(scope="module")
def context() -> Any:
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(["tests.tiny_run"])
    return found


@pytest.fixture
def hold(tmp_path: Path) -> Path:
    """A file: runs that know of it make no step until it is removed."""
    path = tmp_path / "hold"
    path.touch()
    return path


def held_run(context: Any, output: Path, log: Path, hold: Path, **changes: Any) -> Any:
    """Starts a run, and waits until it has the directory."""
    process = context.Process(target=tiny_run.child, args=(flags(output, **changes), False, 0, 0.0, str(log),
                                                           str(hold)))
    process.start()
    end = time.monotonic() + 60
    while not (output / ".lock").exists() or not (output / ".lock").read_bytes():
        assert process.is_alive() and time.monotonic() < end, log.read_text()
        time.sleep(0.02)
    return process


@pytest.mark.parametrize("runs", [1, 2])
def test_the_second_of_two_runs_is_refused_with_the_process_and_the_host_of_the_first(
        runs: int, context: Any, hold: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    output, log = tmp_path / "out", tmp_path / "log"
    first = held_run(context, output, log, hold, epochs=2, runs=runs)
    for more in ({}, {"resume": "auto"}, {"runs": 2}):
        assert main(flags(output, seed=5, **more)) == 2
        error = capsys.readouterr().err
        assert error == (f"output: {output} is in use by another run, process {first.pid} on {HOST}\nhelp: wait until "
                         "it has ended, or choose another directory: --output DIR\n")
    hold.unlink()
    first.join()
    assert first.exitcode == 0, log.read_text()
    last = output / "last.safetensors" if runs == 1 else output / "seed-0" / "last.safetensors"
    assert checkpoint.load(last)[1]["identity"]["seed"] == 0
    assert not list(output.rglob(".*"))
    assert main(flags(output, epochs=1)) == 0


def test_of_many_that_start_at_once_one_runs(context: Any, hold: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    processes = [context.Process(target=tiny_run.child, args=(
        flags(output, seed=k, epochs=2), False, 0, 0.0, str(tmp_path / f"log{k}"), str(hold))) for k in range(4)]
    for process in processes:
        process.start()
    running = {process.sentinel for process in processes}
    while len(running) > 1 and (ended := multiprocessing.connection.wait(running, timeout=60)):
        running -= set(ended)
    hold.unlink()
    for process in processes:
        process.join()
    codes = [process.exitcode for process in processes]
    assert sorted(codes) == [0, 2, 2, 2], [(tmp_path / f"log{k}").read_text() for k in range(4)]
    winner = codes.index(0)
    for name in ("last", "best"):
        assert checkpoint.load(output / f"{name}.safetensors")[1]["identity"]["seed"] == winner
    for k, process in enumerate(processes):
        if k != winner:
            assert f"process {processes[winner].pid} on {HOST}" in (tmp_path / f"log{k}").read_text(), process
    assert not (output / "earlier").exists()


def test_a_run_that_was_killed_leaves_the_directory_free(context: Any, hold: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    first = held_run(context, output, tmp_path / "log", hold)
    first.kill()
    first.join()
    assert (output / ".lock").exists()
    (output / ".last.safetensors.1-0123abcd.tmp").touch()
    (output / ".summary.json.tmp").touch()
    assert main(flags(output, epochs=1, resume="auto")) == 0
    assert not list(output.glob(".*"))


def test_an_evaluation_needs_no_lock(context: Any, tmp_path: Path) -> None:
    assert main(flags(tmp_path / "out", epochs=1)) == 0
    with OutputLock(tmp_path / "out"):
        assert main([*flags(tmp_path / "out"), "--evaluate", "--resume"]) == 0
        assert main(flags(tmp_path / "other", epochs=2, resume=tmp_path / "out")) == 0


def stale(path: Path, age: float = 0.0, **changes: Any) -> Path:
    """Writes the lock file of a process that ended without removing it."""
    (path / ".lock").write_text(json.dumps({"pid": 1, "host": "elsewhere", "token": "x", **changes}))
    os.utime(path / ".lock", (time.time() - age,) * 2)
    return path


def test_a_lock_of_a_host_that_went_down_is_taken_over_after_a_while(tmp_path: Path, capsys: pytest.CaptureFixture
                                                                     ) -> None:
    with OutputLock(stale(tmp_path)):
        pass
    assert "waiting up to 0 s to see whether process 1 on elsewhere still runs" in capsys.readouterr().out
    with OutputLock(stale(tmp_path, age=7200.0)):
        assert capsys.readouterr().out == ""
        assert json.loads((tmp_path / ".lock").read_text())["pid"] == os.getpid()
    assert not (tmp_path / ".lock").exists()


def test_a_lock_that_another_host_keeps_touching_is_respected(tmp_path: Path, monkeypatch: Patch) -> None:
    """As on a network file system whose locks end at the host."""
    holder = OutputLock(tmp_path)
    monkeypatch.setitem(holder._me, "host", "elsewhere")
    with holder:
        fcntl.flock(holder._file, fcntl.LOCK_UN)
        with pytest.raises(ConfigError, match=f"another run, process {os.getpid()} on elsewhere\nhelp: wait"), \
                OutputLock(tmp_path):
            pass
        assert (tmp_path / ".lock").exists()


def test_without_locks_the_file_and_its_beat_count(no_locks: None, tmp_path: Path) -> None:
    with OutputLock(tmp_path):
        with pytest.raises(ConfigError, match=f"another run, process {os.getpid()} on "), OutputLock(tmp_path):
            pass
        assert (tmp_path / ".lock").exists()
    assert not (tmp_path / ".lock").exists()
    with OutputLock(stale(tmp_path, host=HOST, pid=2 ** 22 + 1)):        # no process has that number
        pass
    with OutputLock(stale(tmp_path)):
        pass


def test_without_locks_of_two_that_write_at_once_one_goes_on(no_locks: None, tmp_path: Path, monkeypatch: Patch
                                                             ) -> None:
    monkeypatch.setattr(train.lock.time, "sleep", lambda seconds: stale(tmp_path))
    with pytest.raises(ConfigError, match="is in use by another run, process 1 on elsewhere"), OutputLock(tmp_path):
        pass


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"[" * 4096,
                                     b'{"pid": -1, "host": "h", "token": "x"}'])
def test_a_lock_file_of_anything_else_is_in_nobodys_way(content: bytes, tmp_path: Path, monkeypatch: Patch) -> None:
    (tmp_path / ".lock").write_bytes(content)
    with OutputLock(tmp_path):
        (tmp_path / ".lock").write_bytes(content)
        with pytest.raises(ConfigError, match="in use by another run, whose file does not name it"), \
                OutputLock(tmp_path):
            pass
    assert not (tmp_path / ".lock").exists()


def test_a_lock_that_cannot_be_written_is_a_message(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / ".lock").mkdir()
    assert main(flags(tmp_path)) == 2
    assert f"output: cannot write {tmp_path / '.lock'}: Is a directory\nhelp: choose another" in capsys.readouterr().err
