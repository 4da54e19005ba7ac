"""Training steps on this machine's GPU, alpha beside PyTorch eager: time and memory.

    python -m benchmarks.cuda_steps [--models resnet18:512 vgg16:512] [--precision fp32] [--output FILE.jsonl]

One fresh process per library and network, asked in turn; PyTorch in NCHW and channels_last, with fused SGD. In fp32
it uses no TF32, in tf32 it does, in bf16 it is under autocast. The networks have the same weights and see the same
batch: before anything is timed, the parameter counts must be equal and the first losses agree. Peaks are those that
each library counts itself, from the start of the process; "steady" is the peak of a later step; "process" is what the
driver counts, the library's code and context included.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from benchmarks import cuda_timing as timing
from benchmarks.cpu_steps import LIBRARIES, Worker, check_same

MODELS = [f"{model}:{batch}" for batch in (512, 128) for model in ("resnet18", "vgg16", "googlenet", "lenet5")]
BARRED = ("resnet18:512", "vgg16:512")  # where alpha must be faster, in at most half the memory
TIME_BAR, MEMORY_BAR = 1.0, 0.5
WARM_UP_STEPS = 5
LOSS_BOUNDS = {"fp32": (1e-4, 1e-2), "tf32": (2e-3, 3e-2), "bf16": (1e-2, 1e-1)}  # see cpu_steps.py
MODULE = "benchmarks.cuda_step_worker"


def used_mib() -> float | None:
    """Returns the MiB in use on the GPU by all processes; None where nvidia-smi cannot tell."""
    return next((float(text.split()[0]) for text in timing.smi("memory.used").values()), None)


def begin(library: str, spec: dict[str, Any], workers: dict[str, Worker]) -> dict[str, Any]:
    """Starts a library's process, and returns its first losses, memory and time of a step."""
    before = used_mib()
    worker = workers[library] = Worker(library, MODULE)
    found = worker.ask(start=spec)
    worker.ask(steps=WARM_UP_STEPS)
    found["ms"] = worker.ask(steps=WARM_UP_STEPS)["ms"]
    after = used_mib()
    found["process_mib"] = None if before is None or after is None else after - before
    return {**found, **worker.ask(memory=True)}


def compare(model: str, batch: int, precision: str, rounds: int, visit_ms: float) -> dict[str, Any]:
    """Returns times, ratios and memory of one network."""
    workers: dict[str, Worker] = {}
    with tempfile.TemporaryDirectory() as folder:
        try:
            weights = str(Path(folder) / "weights.npz")
            spec = {"model": model, "batch": batch, "weights": weights, "precision": precision}
            started = {library: begin(library, spec, workers) for library in LIBRARIES}
            check_same(started, LOSS_BOUNDS[precision])
            times: dict[str, list[float]] = {library: [] for library in LIBRARIES}
            for _ in range(rounds):
                for library, worker in workers.items():
                    steps = max(3, round(visit_ms / started[library]["ms"]))
                    times[library].append(worker.ask(steps=steps)["ms"])
        finally:
            for worker in workers.values():
                worker.close()
    return {"model": model, "batch": batch, "precision": precision, **judge(model, batch, times, started),
            "rounds": rounds}


def judge(model: str, batch: int, times: dict[str, list[float]], started: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Returns medians, ratio (the better PyTorch layout's time by alpha's), alpha's share of the lesser peak, bars."""
    ours, *theirs = LIBRARIES
    ratios = sorted(min(others) / mine for mine, *others in zip(*(times[library] for library in LIBRARIES)))
    ratio = statistics.median(ratios)
    memory = {key: {library: started[library][key] for library in LIBRARIES}
              for key in ("peak_mib", "steady_mib", "reserved_mib", "process_mib")}
    shares = {key: memory[key][ours] / least if (least := min(memory[key][t] or 0 for t in theirs)) else None
              for key in ("peak_mib", "steady_mib")}
    barred = f"{model}:{batch}" in BARRED
    met = ratio > TIME_BAR and shares["peak_mib"] is not None and shares["peak_mib"] <= MEMORY_BAR
    return {"ratio": ratio, "ratio_min": ratios[0], "ratio_max": ratios[-1], "ms": timing.medians(times),
            "ms_rounds": times, **memory, "peak_share": shares["peak_mib"], "steady_share": shares["steady_mib"],
            "met": met if barred else None, "losses": {k: v["losses"] for k, v in started.items()},
            "parameters": started[ours]["parameters"]}


def line(row: dict[str, Any]) -> str:
    """Returns a row of the table."""
    if "failed" in row:
        return f"| {row['model']} | {row['batch']} | FAILED: {row['failed']} |"

    def three(key: str, digits: int) -> str:
        return " / ".join("-" if row[key][k] is None else f"{row[key][k]:.{digits}f}" for k in LIBRARIES)
    share = "-" if row["peak_share"] is None else f"{row['peak_share']:.2f}, steady {row['steady_share']:.2f}"
    met = {None: "", True: "ok", False: "MISSED"}[row["met"]]
    return (f"| {row['model']} | {row['batch']} | {three('ms', 2)} | {row['ratio']:.2f} ({row['ratio_min']:.2f}.."
            f"{row['ratio_max']:.2f}) | {three('peak_mib', 0)} | {share} | {three('process_mib', 0)} | {met} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=MODELS, metavar="NAME:BATCH")
    parser.add_argument("--precision", choices=list(LOSS_BOUNDS), default="fp32")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--visit-ms", type=float, default=500.0, help="time per visit of a process")
    parser.add_argument("--budget-s", type=float, default=420.0, help="start no network later than this")
    parser.add_argument("--output", type=Path, help="append the results to this file, a JSON object a line")
    args = parser.parse_args()
    facts = timing.start(f"python -m benchmarks.cuda_steps --models {' '.join(args.models)} --precision "
                         f"{args.precision} --rounds {args.rounds} --visit-ms {args.visit_ms:g}") | timing.torch_facts()
    began, rows = time.perf_counter(), []
    for item in args.models:
        model, _, batch = item.partition(":")
        try:
            if time.perf_counter() - began > args.budget_s:
                raise TimeoutError("left out: the time is up (--budget-s)")
            row = compare(model, int(batch), args.precision, args.rounds, args.visit_ms)
        except (Exception, SystemExit) as error:  # the other networks are of use without this one
            traceback.print_exc()
            row = {"model": model, "batch": int(batch), "precision": args.precision,
                   "failed": (str(error) or repr(error))[:300]}
        rows.append(row)
        timing.record(args.output, facts, row)
        print(line(row), f"after {time.perf_counter() - began:.0f} s", flush=True)
    print("\n" + "; ".join(f"{k}: {v}" for k, v in facts.items()))
    print("| network | batch | ms alpha / torch NCHW / NHWC | ratio | peak MiB | alpha's share | process MiB | bar |\n|"
          + "---|" * 8)
    print("\n".join(map(line, rows)))


if __name__ == "__main__":
    main()
