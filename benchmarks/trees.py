"""Training steps of this checkout beside another one's, in turn: the cost or gain of a change.

    git worktree add /tmp/before HEAD~1
    python -m benchmarks.trees /tmp/before --device cuda --jobs resnet18:512:bf16 vgg16:128:fp32
    python -m benchmarks.trees /tmp/before --device cuda --output runs/trees.jsonl

A job is network:batch:precision; without --jobs they are the four networks at batch 128 and 512 in fp32 and bf16, on
the CPU at 32 in fp32. Each checkout has a process of its own. Their windows of steps take turns, now the one first and
now the other, and the ratio of each pair counts: machines change their clock from second to second, less within a pair.
The table shows the median of the ratios and its 95 % interval, which assumes nothing but that pairs are independent.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from math import comb
from pathlib import Path
from statistics import median

from alpha.errors import ConfigError, message
from benchmarks.environment import environment, machine, smi
from benchmarks.process import ROOT, Worker
from benchmarks.results import Row, record

NETWORKS = ("lenet5", "vgg16", "resnet18", "googlenet")
JOBS = {"cuda": [f"{name}:{batch}:{precision}" for precision in ("fp32", "bf16") for batch in (128, 512)
                 for name in NETWORKS], "cpu": [f"{name}:32:fp32" for name in NETWORKS]}
WINDOW_MS = {"cuda": 120.0, "cpu": 700.0}  # of steps in a row
PAIRS = 15


def interval(values: list[float]) -> tuple[float, float]:
    """Returns the values between which the median of their distribution lies with 95 %, by their order alone."""
    values, n, below, k = sorted(values), len(values), 0.0, 0
    while below + comb(n, k) / 2 ** n <= 0.025:
        below += comb(n, k) / 2 ** n
        k += 1
    at = max(k - 1, 0)
    return values[at], values[n - 1 - at]


def commit(root: Path) -> str:
    """Returns git's name of a checkout; its path where git does not know."""
    done = subprocess.run(["git", "-C", str(root), "describe", "--always", "--dirty"], capture_output=True, text=True)
    return done.stdout.strip() or str(root)


def measure(before: Path, job: str, device: str, pairs: int = PAIRS, window_ms: float = 0.0) -> Row:
    """Returns milliseconds of each window by checkout, the ratios' median and interval, losses and peaks of memory."""
    model, batch, precision = job.split(":")
    start = dict(model=model, batch=int(batch), device=device, precision=precision)
    workers: dict[str, Worker] = {}
    with tempfile.TemporaryDirectory() as folder:
        try:
            for name, root in (("before", before), ("now", ROOT)):
                workers[name] = Worker("alpha", root=root)
            losses = {name: worker.ask(start={**start, "weights": f"{folder}/{name}.npz"})["losses"][-1]
                      for name, worker in workers.items()}
            each = max(worker.ask(steps=3)["ms"] for worker in workers.values())
            steps = max(1, round((window_ms or WINDOW_MS[device]) / each))
            times: dict[str, list[float]] = {name: [] for name in workers}
            for k in range(pairs):
                for name in (workers if k % 2 else reversed(workers)):
                    workers[name].ask(steps=1)  # as in compare.in_turn
                    times[name].append(workers[name].ask(steps=steps)["ms"])
            memory = {name: worker.ask(memory=True) for name, worker in workers.items()}
        finally:
            for worker in workers.values():
                worker.close()
    ratios = [now / then for now, then in zip(times["now"], times["before"])]
    return {"job": job, "ratio": median(ratios), "interval": interval(ratios), "ms": times, "loss": losses,
            "peak_mib": {name: found["peak_mib"] or found["process_mib"] for name, found in memory.items()}}


def line(row: Row) -> str:
    """Returns a row of the table."""
    ms, (low, high), peak = row["ms"], row["interval"], row["peak_mib"]
    before, now = median(ms["before"]), median(ms["now"])
    return (f"{row['job']:22} {before:9.3f} {now:9.3f} ms  {100 * (row['ratio'] - 1):+6.2f} % "
            f"[{100 * (low - 1):+.2f}, {100 * (high - 1):+.2f}]  {peak['before']:.0f} {peak['now']:.0f} MiB")


def rows(args: argparse.Namespace) -> Iterator[Row]:
    """Yields a row for each job, until the time is up."""
    end = time.monotonic() + args.seconds
    for job in args.jobs or JOBS[args.device]:
        if time.monotonic() < end:
            yield measure(args.before, job, args.device, args.pairs)


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trees", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("before", type=Path, help="the other checkout")
    parser.add_argument("--device", default="cpu", choices=JOBS)
    parser.add_argument("--jobs", nargs="+", metavar="NETWORK:BATCH:PRECISION")
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no job after so many")
    parser.add_argument("--output", type=Path, help="rows are added to this file")
    args = parser.parse_args(given)
    if not (args.before / "benchmarks" / "step_worker.py").exists():
        raise ConfigError(message("benchmarks.trees", f"{args.before} has no benchmarks/step_worker.py",
                                  "name a checkout: git worktree add /tmp/before COMMIT"))
    args.before = args.before.resolve()
    return args


def main(given: list[str] | None = None) -> None:
    args = arguments(given)
    on_gpu, command = args.device == "cuda", " ".join(sys.argv[1:] if given is None else given)
    facts = {**environment(f"python -m benchmarks.trees {command}", on_gpu=on_gpu), "device": machine(args.device),
             **(smi("driver_version") if on_gpu else {}), "before": commit(args.before), "now": commit(ROOT)}
    print(f"{'network:batch:precision':22} {'before':>9} {'now':>9}     {'change':>8}  95 %, peaks of memory")
    for row in rows(args):
        print(line(row), flush=True)
        record(args.output, facts, row)


if __name__ == "__main__":
    main()
