"""Most memory of a process that trains, and of alpha's pool, by setting of recompute, beside PyTorch's.

    python -m benchmarks.cpu_memory [--models resnet18 vgg16 googlenet lenet5] [--batch-size 32] [--settings none auto]

Each side is a process of its own, which makes ten updates; counted is its largest resident size, the library itself
included. Losses are checked against PyTorch's, and between alpha's settings bit by bit. PyTorch's best is the eager
layout that takes less. Results go to benchmarks/results/<device>/memory.jsonl.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import checks, results
from benchmarks.environment import RESULTS, environment, machine
from benchmarks.process import Worker

SETTINGS = ("none", "cheap", "auto", "full")
LAYOUTS = ("nchw", "nhwc")


def of_side(library: str, start: dict[str, Any], setting: str | None = None) -> dict[str, Any]:
    """Returns losses and MiB of a process of one library."""
    worker = Worker(library, settings={"ALPHA_RECOMPUTE": setting} if setting else {})
    try:
        found = worker.ask(start=start)
        memory = worker.ask(memory=True)
    finally:
        worker.close()
    return {"losses": found["losses"], "process_mib": memory["process_mib"], "pool_mib": memory["peak_mib"]}


def network(model: str, batch: int, settings: list[str]) -> dict[str, Any]:
    """Returns the row of a network."""
    with tempfile.TemporaryDirectory() as folder:
        start = {"model": model, "batch": batch, "weights": str(Path(folder) / "weights.npz"), "device": "cpu",
                 "precision": "fp32", "kind": "eager", "layout": "nhwc"}
        ours = {setting: of_side("alpha", start, setting) for setting in settings}
        theirs = {layout: of_side("torch", {**start, "layout": layout}) for layout in LAYOUTS}
    first = ours[settings[0]]["losses"]
    for setting, side in ours.items():
        if side["losses"] != first:
            raise RuntimeError(f"cpu_memory: losses of {model} under {setting} are not those under {settings[0]}")
    for side in theirs.values():
        checks.same_values(first, side["losses"], "fp32")
    best = min(side["process_mib"] for side in theirs.values())
    for side in (*ours.values(), *theirs.values()):
        side.pop("losses")
        side["share"] = side["process_mib"] / best
    return {"kind": "process_memory", "model": model, "batch": batch, "alpha": ours, "torch": theirs}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["lenet5", "vgg16", "resnet18", "googlenet"])
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--output", type=Path, help="folder (default: benchmarks/results/<device>)")
    args = parser.parse_args(argv)
    output = (args.output or RESULTS / machine("cpu")) / "memory.jsonl"
    facts = environment(f"python -m benchmarks.cpu_memory {' '.join(sys.argv[1:] if argv is None else argv)}".strip(),
                        "torch")
    for model in args.models:
        row = network(model, args.batch_size, args.settings)
        results.record(output, facts, row)
        told = [f"{name} {side['process_mib']:,.0f} ({side['share']:.2f}), pool {side['pool_mib']:,.0f}"
                for name, side in row["alpha"].items()]
        told += [f"PyTorch {name} {side['process_mib']:,.0f}" for name, side in row["torch"].items()]
        print(f"{model} batch {args.batch_size}, MiB: {'; '.join(told)}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
