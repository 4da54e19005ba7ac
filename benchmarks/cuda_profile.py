"""The limits of convolutions of the networks on a GPU: the share of each unit's time, by Nsight Compute (ncu).

    python -m benchmarks.cuda_profile [--below 1.0] [--precision bf16] [--batch 512] [--sides alpha torch]
                                      [--passes fprop dgrad wgrad] [--shapes NAME] [--results FOLDER] [--output FILE]

Takes those passes of the set networks in conv_ops.jsonl whose `ratio` lies below a bar, and of the layers that --shapes
names (v1 to in3 in shapes.py) all that are asked for. It runs each once under ncu with caches that are cold, and says
of its kernels how long they took, in which share of that time tensor cores, FMA units, the L2 cache and device memory
were busy and multiprocessors had work, at which clock, and the bytes moved. Its times differ from a replayed graph's:
conv_ops.jsonl and conv_modes.jsonl have these.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import alpha
from benchmarks import results
from benchmarks.conv_sides import Operands, alpha_call, torch_call
from benchmarks.shapes import PASSES, SHAPES, ConvShape

METRICS = {  # of a kernel: ncu's name, and the factor
    "us": ("gpu__time_duration.sum", 1e-3),
    "tensor": ("sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed", 1.0),
    "fma": ("sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_elapsed", 1.0),
    "l2": ("lts__throughput.avg.pct_of_peak_sustained_elapsed", 1.0),
    "dram": ("dram__cycles_active.avg.pct_of_peak_sustained_elapsed", 1.0),
    "active": ("sm__cycles_active.avg", 1.0),   # becomes a share of `cycles`
    "cycles": ("gpc__cycles_elapsed.max", 1.0),
    "read_mb": ("dram__bytes_read.sum", 1e-6),
    "written_mb": ("dram__bytes_write.sum", 1e-6)}
UNITS = {"us": "ns", "read_mb": "byte", "written_mb": "byte"}  # ncu's, with --print-units base
SHOWN = ("us", "tensor", "fma", "l2", "dram", "active", "clock_ghz", "read_mb", "written_mb")
MARK = "sin"  # name of a kernel that stands before each pass
KEY = ("set", "shape", "pass", "precision", "n")
FIELDS = ConvShape._fields[1:]

Row = results.Row


def cases(rows: Iterable[Row], args: argparse.Namespace) -> list[Row]:
    """Returns the passes that are profiled: of those that are asked for, a network's with their latest row."""
    found = [row for row in results.latest(rows, KEY) if row["set"] == "networks" and "failed" not in row]
    asked = {"precision": [args.precision], "n": [args.batch], "pass": args.passes, "shape": args.shapes}
    behind = [row for row in found if row["ratio"] < args.below
              and all(row[name] in values for name, values in asked.items() if values)]
    return behind + [{"set": "layers", "shape": shape.name, "pass": pass_name, "precision": args.precision,
                      **{name: getattr(shape, name) for name in FIELDS}}
                     for shape in SHAPES if shape.name in (args.shapes or ()) for pass_name in args.passes]


def run_once(todo: Sequence[Row], sides: Sequence[str]) -> None:
    """Runs each pass for the profiler, behind a mark; arrays made at a first call are there."""
    import torch

    from alpha.cuda.conv.planner import PRECISIONS
    from benchmarks import cuda_timing as timing
    timing.start("cuda_profile")
    mark = torch.ones(32, device="cuda")
    for row in todo:
        shape = ConvShape(row["shape"], *(row[name] for name in FIELDS))
        operands = Operands(shape, timing, PRECISIONS[row["precision"]].dtype, sets=1)
        with alpha.precision(row["precision"]), alpha.no_grad():
            for side in sides:
                call = alpha_call(operands, row["pass"], "cuda") if side == "alpha" else torch_call(
                    operands, row["pass"], True)
                for _ in range(2):
                    call(0)
                timing.synchronize()
                torch.cuda.profiler.start()
                torch.sin(mark)
                torch.cuda.synchronize()
                call(0)
                timing.synchronize()
                torch.cuda.profiler.stop()


def kernels(lines: Iterable[str]) -> Iterator[Row]:
    """Returns name and figures of each kernel in ncu's output (--csv --page raw)."""
    table = csv.reader(line for line in lines if not line.startswith("=="))
    head, units = next(table), next(table)
    for values in table:
        cells, unit = dict(zip(head, values)), dict(zip(head, units))
        for name, expected in UNITS.items():
            metric = METRICS[name][0]
            if unit[metric] != expected:
                raise ValueError(f"ncu gives {metric} in {unit[metric]}, {expected} is expected: run it with "
                                 "--print-units base")
        found: Row = {name: float(cells[metric].replace(",", "")) * by for name, (metric, by) in METRICS.items()}
        cycles = found.pop("cycles")
        found["active"] *= 100 / cycles
        found["clock_ghz"] = cycles / found["us"] / 1e3
        yield {"kernel": cells["Kernel Name"], **{name: round(found[name], 2) for name in SHOWN}}


def by_case(found: Iterable[Row]) -> list[list[Row]]:
    """Returns the kernels of each pass: those behind each mark."""
    groups: list[list[Row]] = []
    for row in found:
        if "elementwise" in row["kernel"] and MARK in row["kernel"]:
            groups.append([])
        else:
            groups[-1].append(row)
    return groups


def line(row: Row) -> str:
    """Returns a pass's rows of the table."""
    head = f"| {row['shape']} | {row['pass']} | {row['side']} |"
    return "\n".join(f"{head} {k['kernel'][:40]} | " + " | ".join(f"{k[name]:.4g}" for name in SHOWN) + " |"
                     for k in row["kernels"])


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--below", type=float, default=1.0, help="ratio in conv_ops.jsonl (default: %(default)s)")
    parser.add_argument("--precision", default="bf16", choices=("fp32", "tf32", "bf16"))
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--sides", nargs="+", default=["alpha"], choices=("alpha", "torch"))
    parser.add_argument("--passes", nargs="+", default=list(PASSES), choices=PASSES)
    parser.add_argument("--shapes", nargs="+", metavar="NAME", help="only these convolutions, or these layers")
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/h100"), help="with conv_ops.jsonl")
    parser.add_argument("--output", type=Path, help="a file that gets a row for each pass")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)  # a file with the passes, under ncu
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parsed(argv)
    if args.worker:
        run_once(json.loads(args.worker.read_text()), args.sides)
        return 0
    todo = cases(results.read(args.results / "conv_ops.jsonl"), args)
    if not todo:
        print(f"{args.results / 'conv_ops.jsonl'}: no pass at batch {args.batch} in {args.precision} is below "
              f"{args.below}", file=sys.stderr)
        return 1
    from benchmarks import cuda_timing as timing
    from benchmarks.environment import torch_facts
    command = f"python -m benchmarks.cuda_profile {' '.join(sys.argv[1:] if argv is None else argv)}".strip()
    facts: dict[str, Any] = {**timing.start(command), **torch_facts()}
    with tempfile.TemporaryDirectory() as folder:
        listed, log = Path(folder, "passes.json"), Path(folder, "ncu.csv")
        listed.write_text(json.dumps(todo))
        subprocess.run(["ncu", "--clock-control", "none", "--profile-from-start", "off", "--metrics",
                        ",".join(metric for metric, _ in METRICS.values()), "--print-units", "base", "--csv", "--page",
                        "raw", "--log-file", str(log), sys.executable, "-m", "benchmarks.cuda_profile", "--worker",
                        str(listed), "--sides", *args.sides], check=True)
        groups = by_case(kernels(log.read_text().splitlines()))
    expected = [(row, side) for row in todo for side in args.sides]
    if len(groups) != len(expected):
        raise RuntimeError(f"ncu has seen {len(groups)} passes of {len(expected)}")
    print(f"| convolution | pass | side | kernel | {' | '.join(SHOWN)} |\n|{'---|' * (4 + len(SHOWN))}")
    for (row, side), group in zip(expected, groups):
        made = {name: row[name] for name in (*KEY, *FIELDS[1:], "ratio", "ms", "of_roofline") if name in row}
        made |= {"side": side, "kernels": group}
        print(line(made))
        results.record(args.output, facts, made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
