"""The driver: python -m tests.fuzz --minutes 10 [--only NAME ...] [--seed N] [--attempts N] [--workers N].

Case k of a run has the seed --seed + k. Processes take turns at a target; one that dies or hangs is a finding and is
replaced. Exit status: 0 nothing found, 1 findings, 2 bad flags.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

START_SECONDS = 300  # imports, and compiling kernels that are not in the cache
MAX_KINDS = 20  # of findings; then a target is left


class Worker:
    """One process that runs the cases of a module."""

    def __init__(self, module: str) -> None:
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115
        self.temp = tempfile.mkdtemp(prefix="fuzz-")  # TMPDIR of the process: nothing stays if it is killed
        env = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "ALPHA_NUM_THREADS": "1", **os.environ,
               "TMPDIR": self.temp}
        self.process = subprocess.Popen([sys.executable, "-m", "tests.fuzz._worker", module], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=self.errors, env=env, start_new_session=True)
        started = self._answer(START_SECONDS)
        if "seconds" not in started:
            self.close()
            raise SystemExit(f"{module} does not start: {started['key']}\n{started['text']}")
        self.seconds = started["seconds"]

    def run(self, seed: int) -> dict:
        """Returns the worker's answer; a `key` in it is a finding, `dead` says that the process is gone."""
        self.errors.seek(0)
        self.errors.truncate()
        assert self.process.stdin
        try:
            self.process.stdin.write(f"{seed}\n".encode())
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # the answer says so
        return self._answer(self.seconds)

    def _answer(self, seconds: float) -> dict:
        assert self.process.stdout
        ready, _, _ = select.select([self.process.stdout], [], [], seconds)
        line = self.process.stdout.readline() if ready else b""
        if line:
            return json.loads(line)
        if not ready:
            self.process.send_signal(signal.SIGABRT)  # faulthandler then writes where it hangs
        try:
            status = self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        self.errors.seek(0)
        lines = self.errors.read().decode(errors="replace").splitlines()
        frame = next((text.strip() for text in lines if text.startswith("  File")), "")
        what = f"no answer in {seconds} s" if not ready else (
            f"killed by {signal.Signals(-status).name}" if status < 0 else f"the process ended with status {status}")
        return {"key": f"{what} {frame}".rstrip(), "text": "\n".join(lines[:40]), "dead": True}

    def close(self) -> None:
        """Ends the process and whatever it started, and removes its files."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        self.errors.close()
        shutil.rmtree(self.temp, ignore_errors=True)


class Target:
    """Runs one module's cases until its time or its attempts are used up, and counts."""

    def __init__(self, package: str, name: str, args: argparse.Namespace, seconds: float) -> None:
        self.module, self.name, self.args, self.seconds = f"{package}.{name}", name, args, seconds
        self.seeds = iter(range(args.seed, args.seed + args.attempts)) if args.attempts else iter(
            range(args.seed, 1 << 62))
        self.attempts, self.kinds = 0, Counter()
        self._lock = threading.Lock()
        self._failed: list[BaseException] = []

    def run(self) -> int:
        """Returns how many cases were findings."""
        self.end = time.monotonic() + self.seconds
        threads = [threading.Thread(target=self._work) for _ in range(self.args.workers)]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except KeyboardInterrupt:
            self.end = 0.0  # the processes end after their cases
            raise
        if self._failed:
            raise self._failed[0]
        found = sum(self.kinds.values())
        print(f"{self.name}: {self.attempts} attempts, {found} findings"
              + (f" of {len(self.kinds)} kinds" if found else ""), flush=True)
        return found

    def _work(self) -> None:
        worker = None
        try:
            while time.monotonic() < self.end and len(self.kinds) < MAX_KINDS and not self._failed:
                with self._lock:
                    seed = next(self.seeds, None)
                if seed is None:
                    return
                if worker is None:
                    worker = Worker(self.module)
                answer = worker.run(seed)
                self._note(seed, answer)
                if answer.get("dead"):
                    worker.close()
                    worker = None
        except BaseException as error:
            self._failed.append(error)
        finally:
            if worker is not None:
                worker.close()

    def _note(self, seed: int, answer: dict) -> None:
        with self._lock:
            self.attempts += 1
            if "key" not in answer:
                if self.args.verbose:
                    print(f"{self.name} {seed}: {answer['text']}", flush=True)
                return
            self.kinds[answer["key"]] += 1
            if self.kinds[answer["key"]] > 1:
                return
            indented = "\n".join("    " + line for line in answer["text"].splitlines())
            print(f"FINDING in {self.name}: {answer['key']}\n{indented}\n  again: python -m tests.fuzz --only "
                  f"{self.name} --seed {seed} --attempts 1", flush=True)


def targets(package: str) -> list[str]:
    """Returns the names of all targets of a package."""
    spec = importlib.util.find_spec(package)
    assert spec is not None and spec.submodule_search_locations
    folder = Path(spec.submodule_search_locations[0])
    return sorted(path.stem for path in folder.glob("*.py") if not path.stem.startswith("_"))


def main(argv: list[str] | None = None) -> int:
    """Runs the command line and returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=None, help="of the whole run (default: 1, or no limit with "
                        "--attempts)")
    parser.add_argument("--attempts", type=int, default=0, help="cases of each target at most")
    parser.add_argument("--only", nargs="+", action="extend", metavar="NAME", help="targets to run; default: all")
    parser.add_argument("--seed", type=int, default=0, help="of the first case; case k has this seed + k")
    parser.add_argument("--workers", type=int, default=2, help="processes (default: 2)")
    parser.add_argument("--package", default="tests.fuzz", help=argparse.SUPPRESS)  # where a test plants targets
    parser.add_argument("-v", "--verbose", action="store_true", help="print the line of every case")
    args = parser.parse_args(argv)
    known = targets(args.package)
    names = args.only or known
    for name in names:
        if name not in known:
            parser.error(f"there is no target {name!r}; there are {', '.join(known)}")
    minutes = args.minutes if args.minutes is not None else (1e6 if args.attempts else 1)
    found = [Target(args.package, name, args, 60 * minutes / len(names)).run() for name in names]
    return 1 if any(found) else 0


if __name__ == "__main__":
    sys.exit(main())
