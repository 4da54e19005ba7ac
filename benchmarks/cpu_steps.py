"""Training steps on this machine's CPU, alpha beside PyTorch: time and peak process memory.

    python -m benchmarks.cpu_steps [--models lenet5:128 vgg16:32 resnet18:32] [--rounds 9] [--output FILE.jsonl]

One process per library (two thread pools in one process disturb each other), all of them asked in turn, so that a slow
spell of the machine meets each alike. The ratio of a network is the median over the rounds of (the better PyTorch
layout's time) / (alpha's time). Before anything is timed, the parameter counts must be equal and the first losses
agree.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.environment import environment

ROOT = Path(__file__).resolve().parent.parent
LOSS_BOUNDS = (1e-4, 1e-2)  # of the first loss and of the one after an update; rounding grows with every update
LIBRARIES = ("alpha", "torch_nchw", "torch_nhwc")


class Worker:
    """A library's process; `ask` sends one request and waits for the answer."""

    def __init__(self, library: str, module: str = "benchmarks.step_worker") -> None:
        self.library = library
        self.process = subprocess.Popen([sys.executable, "-m", module, library], cwd=ROOT, text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, **request: Any) -> dict[str, Any]:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the {self.library} process ended with code {self.process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


def check_same(started: dict[str, dict[str, Any]], bounds: tuple[float, float] = LOSS_BOUNDS) -> None:
    """Refuses to time networks that are not the same: parameter counts and first losses must agree."""
    ours = started["alpha"]
    for library, theirs in started.items():
        near = [abs(a - b) <= bound * abs(b) for a, b, bound in zip(ours["losses"], theirs["losses"], bounds)]
        if ours["parameters"] != theirs["parameters"] or not all(near):
            raise SystemExit(f"not the same network: alpha {ours}, {library} {theirs}")


def compare(model: str, batch: int, rounds: int, visit_ms: float) -> dict[str, Any]:
    """Returns medians, ratio and peak memory of one network."""
    with tempfile.TemporaryDirectory() as folder:
        workers = {library: Worker(library) for library in LIBRARIES}
        try:
            spec = {"model": model, "batch": batch, "weights": str(Path(folder) / "weights.npz")}
            check_same({library: worker.ask(start=spec) for library, worker in workers.items()})
            times: dict[str, list[float]] = {library: [] for library in LIBRARIES}
            for k in range(rounds + 1):
                for library, worker in workers.items():
                    ms = worker.ask(time_ms=visit_ms)["ms"]
                    if k:  # the first round warms up
                        times[library].append(ms)
            peaks = {library: worker.ask(peak=True)["peak_mib"] for library, worker in workers.items()}
        finally:
            for worker in workers.values():
                worker.close()
    ratios = sorted(min(a, b) / ours for ours, a, b in zip(*(times[library] for library in LIBRARIES)))
    return {"model": model, "batch": batch, "ratio": statistics.median(ratios), "ratio_min": ratios[0],
            "ratio_max": ratios[-1], "ms": {k: statistics.median(v) for k, v in times.items()}, "peak_mib": peaks,
            "rounds": rounds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["lenet5:128", "vgg16:32", "resnet18:32"])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--visit-ms", type=float, default=600.0, help="time per visit of a process")
    parser.add_argument("--output", type=Path, help="append the results to this file, a JSON object a line")
    args = parser.parse_args()
    facts = environment(f"python -m benchmarks.cpu_steps --models {' '.join(args.models)} --rounds {args.rounds} "
                        f"--visit-ms {args.visit_ms:g}", "torch")
    print("; ".join(f"{k}: {v}" for k, v in facts.items()))
    print("| network | batch | alpha ms | torch NCHW ms | torch NHWC ms | ratio (min..max) | "
          "peak MiB alpha / NCHW / NHWC |")
    print("|---|---|---|---|---|---|---|")
    for item in args.models:
        model, _, batch = item.partition(":")
        row = compare(model, int(batch), args.rounds, args.visit_ms)
        ms, peak = row["ms"], row["peak_mib"]
        print(f"| {model} | {batch} | {ms['alpha']:.2f} | {ms['torch_nchw']:.2f} | {ms['torch_nhwc']:.2f} | "
              f"{row['ratio']:.2f} ({row['ratio_min']:.2f}..{row['ratio_max']:.2f}) | "
              f"{peak['alpha']:.0f} / {peak['torch_nchw']:.0f} / {peak['torch_nhwc']:.0f} |", flush=True)
        if args.output:
            with args.output.open("a") as file:
                file.write(json.dumps({**facts, **row}) + "\n")


if __name__ == "__main__":
    main()
