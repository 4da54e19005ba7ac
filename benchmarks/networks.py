"""Networks that alpha was not tuned on: a training step beside the best of PyTorch, time and memory, a row a network.

    python -m benchmarks.networks [--device cpu|cuda] [--only mobilenetv2 convnext_tiny:64 ...] [--precision bf16 fp32]
                                  [--configurations torch_graph torch_compile] [--compile-s 120] [--budget-s 600]
    taskset -c 0 python -m benchmarks.networks --device cpu --clock cpu

Each network is measured as `python -m benchmarks.compare` does it: a process a side, the same weights and batches, in
turn. On a GPU PyTorch runs the whole step as a CUDA graph, and by torch.compile with reduce-overhead, which is given up
after --compile-s seconds; on a CPU eagerly in both layouts. `--clock cpu` counts the processor time of one thread,
where there is one core to work on: on a machine that others use, it leaves out the time in which they run. Rows are
appended to networks.jsonl in benchmarks/results/<device>/, and the table is made of all that are there.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from alpha.errors import AlphaError, ConfigError, message
from benchmarks import checks, compare, compare_tables, results
from benchmarks.configurations import CONFIGURATIONS, PRECISIONS
from benchmarks.environment import add_clock, add_common, check_clock, settle
from benchmarks.results import Row, latest

KEY = compare_tables.KEY


class Batches(NamedTuple):
    """Images in a step, by device."""

    cuda: int
    cpu: int


NETWORKS = {"resnet20": Batches(512, 64), "resnet56": Batches(512, 64), "resnet50": Batches(256, 8),
            "wrn28_10": Batches(128, 4), "resnext29_8x64d": Batches(128, 4), "densenet100_12": Batches(128, 16),
            "mobilenetv2": Batches(256, 16), "convnext_tiny": Batches(256, 8), "airbench94": Batches(1024, 64)}
PRECISION = {"cuda": ["bf16"], "cpu": ["fp32"]}
USUAL = {"cuda": ["torch_graph", "torch_compile"], "cpu": ["torch_nchw", "torch_nhwc"]}
HEAD = ("network", "batch", "precision", "alpha ms", "PyTorch ms", "alpha is", "peak MiB, alpha / PyTorch")


def cases(only: Iterable[str], precisions: Iterable[str], device: str) -> list[compare.Case]:
    """Returns the cases to measure, from "name" or "name:batch".  Raises ConfigError for an unknown name."""
    found = []
    for item in only:
        name, _, batch = item.partition(":")
        if name not in NETWORKS:
            raise ConfigError(message("networks", f"there is no network {name!r} here",
                                      f"use some of {', '.join(NETWORKS)}; benchmarks.compare takes any"))
        size = int(batch) if batch else getattr(NETWORKS[name], device)
        found += [compare.Case(name, size, precision, device) for precision in precisions]
    return found


def line(group: Sequence[Row]) -> str:
    """Returns a network's row: every configuration of PyTorch, and the ratio to the fastest one."""
    best = compare_tables.best(group)
    shown = ", ".join(f"{row['ms']['torch']:.2f} ({compare_tables.short(row)})" for row in group)
    memory = [row for row in group if row["peak_mib"]["torch"] is not None]
    key = "peak_mib" if memory else "process_mib"
    theirs = min((row[key]["torch"] for row in group if row[key]["torch"] is not None), default=float("nan"))
    return (f"| {best['model']} | {best['batch']} | {compare_tables.precision(best)} | {best['ms']['alpha']:.2f} "
            f"| {shown} | **{best['ratio']:.2f}** ({best['ratio_min']:.2f}..{best['ratio_max']:.2f}) "
            f"| {best[key]['alpha']:.0f} / {theirs:.0f} |")


def table(rows: Iterable[Row]) -> list[str]:
    """Returns the table; of several results of one configuration the last one counts."""
    order = [*NETWORKS]
    groups = sorted(compare_tables.networks(latest(rows, KEY)), key=lambda g: (order.index(g[0]["model"]),
                                                                               *compare_tables.order(g[0])[1:]))
    return compare_tables.table(HEAD, map(line, groups))


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=list(NETWORKS), metavar="NAME[:BATCH]")
    parser.add_argument("--precision", nargs="+", choices=PRECISIONS)
    parser.add_argument("--configurations", nargs="+", choices=list(CONFIGURATIONS))
    parser.add_argument("--rounds", type=int, default=compare.Effort().rounds)
    parser.add_argument("--visit-ms", type=float, default=compare.Effort().visit_ms, help="time per visit of a process")
    parser.add_argument("--compile-s", type=float, default=120.0, help="after which torch.compile is given up")
    add_clock(parser)
    add_common(parser, "network")
    args = parser.parse_args(argv)
    check_clock(parser, args)
    settle(args)
    args.precision = args.precision or PRECISION[args.device]
    args.configurations = args.configurations or USUAL[args.device]
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = parsed(argv)
    try:
        wanted = cases(args.only, args.precision, args.device)
        compare.check_names(args.configurations, args.precision, args.device)
        checks.admit(args.precision, args.device, "networks", args.busy)
    except AlphaError as error:
        print(error, file=sys.stderr)
        return 1
    facts, file = compare.facts_of(args, argv, "networks"), args.output / "networks.jsonl"
    if args.clock == "cpu":
        facts["settings"] = f"{facts['settings']} one thread".strip()
    print("; ".join(f"{k}: {v}" for k, v in facts.items()))
    deadline, missing = time.monotonic() + args.budget_s, 0
    effort = compare.Effort(args.rounds, args.visit_ms, args.compile_s, args.clock)
    for case in wanted:
        for row in compare.network(case, args.configurations, effort, {}, deadline):
            if row["kind"] != "step":
                continue
            results.record(file, facts, row)
            missing += "failed" in row
            print(compare_tables.line(row), flush=True)
    print("\n" + "\n".join(table(results.read(file))))
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
