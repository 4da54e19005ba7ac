"""A training step of every network of the zoo beside the best of PyTorch: time, memory and the first loss.

    python -m benchmarks.zoo [--device cpu|cuda] [--only mobilenetv2 swin:64 ...] [--precision bf16 fp32-tf32]
                             [--configurations torch_graph torch_compile] [--compile-s 120] [--budget-s 600] [--resume]
    python -m benchmarks.zoo --kept                     alpha's rows anew, and ten of PyTorch's as a check
    taskset -c 0 python -m benchmarks.zoo --device cpu --clock cpu

The networks stand in members.py: the shipped ones and some that a user would write, each with a twin in PyTorch. Each
is measured as `python -m benchmarks.compare` does it: a process a side, the same weights and batches, in turn. On a GPU
PyTorch runs the whole step as a CUDA graph, and by torch.compile with reduce-overhead, which is given up after
--compile-s seconds; on a CPU eagerly in both layouts. `--clock cpu` counts the processor time of one thread, where
there is one core to work on: on a machine that others use, it leaves out the time in which they run.

Rows are appended to zoo.jsonl in benchmarks/results/<device>/; the table and the picture, zoo.png, are made of all that
are there. `--resume` leaves out what has a row already. `--kept` measures alpha alone beside PyTorch's rows of the
file, of which ten are measured again: the table then names the versions of both and how far the ten have moved.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Sequence

from alpha.errors import AlphaError, ConfigError, message
from benchmarks import checks, compare, compare_tables, results
from benchmarks.configurations import CONFIGURATIONS, PRECISIONS
from benchmarks.environment import add_clock, add_common, check_clock, settle
from benchmarks.process import Worker
from benchmarks.results import Row
from benchmarks.zoo import report
from benchmarks.zoo.members import MEMBERS

PRECISION = {"cuda": ["bf16", "fp32-tf32"], "cpu": ["fp32"]}
USUAL = {"cuda": ["torch_graph", "torch_compile"], "cpu": ["torch_nchw", "torch_nhwc"]}
CHECKED = 10    # networks of --kept whose PyTorch is measured again


def cases(only: Iterable[str], precisions: Iterable[str], device: str) -> list[compare.Case]:
    """Returns what is to be measured, from "name" or "name:batch".  Raises ConfigError for an unknown name."""
    made = []
    for item in only:
        name, _, batch = item.partition(":")
        if name not in MEMBERS:
            raise ConfigError(message("zoo", f"there is no network {name!r} here",
                                      f"use some of {', '.join(MEMBERS)}"))
        size = int(batch) if batch else getattr(MEMBERS[name], device)
        made += [compare.Case(name, size, precision, device) for precision in precisions]
    return made


def alone(case: compare.Case, effort: compare.Effort, deadline: float) -> Iterator[Row]:
    """Yields alpha's row by itself: kind "alpha"."""
    worker = None
    try:
        compare.in_time(deadline)
        worker = Worker("alpha")
        begun = compare.begin(worker, case, **case._asdict(), weights="", clock=effort.clock)
        times = compare.in_turn(case, effort, {"alpha": worker}, {"alpha": begun["ms"]})["alpha"]
        yield {"kind": "alpha", **case._asdict(), "ms": statistics.median(times), "ms_rounds": times,
               **{key: begun[key] for key in ("peak_mib", "steady_mib", "reserved_mib", "process_mib", "losses")},
               "parameters": begun["parameters"]}
    except (AlphaError, RuntimeError, OSError) as error:
        yield {**compare.failed(case, error), "kind": "alpha"}
    finally:
        if worker:
            worker.close()


def measured(case: compare.Case, position: int, args: argparse.Namespace, rows: Sequence[Row], settings: str,
             deadline: float) -> Iterator[Row]:
    """Yields the rows of a case, as the arguments ask for them.

    Args:
        position: of the case among all, by which --kept takes its ten.
        rows: of the file.
    """
    effort = compare.Effort(args.rounds, args.visit_ms, args.compile_s, args.clock)
    if args.kept and position not in args.checked:
        yield from alone(case, effort, deadline)
        return
    names, there = args.configurations, results.latest(compare.rows_of(case, rows, settings), compare_tables.KEY)
    if args.kept and there:
        names = [compare_tables.best(there)["configuration"]]
    elif args.resume:
        names = [name for name in names if name not in [row["configuration"] for row in there]]
    if names:
        yield from (row for row in compare.network(case, names, effort, {}, deadline, float64=True)
                    if row["kind"] == "step")


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.zoo", description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=list(MEMBERS), metavar="NAME[:BATCH]")
    parser.add_argument("--precision", nargs="+", choices=PRECISIONS)
    parser.add_argument("--configurations", nargs="+", choices=list(CONFIGURATIONS))
    parser.add_argument("--rounds", type=int, default=compare.Effort().rounds)
    parser.add_argument("--visit-ms", type=float, default=compare.Effort().visit_ms, help="time per visit of a process")
    parser.add_argument("--compile-s", type=float, default=120.0, help="after which torch.compile is given up")
    parser.add_argument("--kept", action="store_true", help="PyTorch's rows of the file, but for ten, are not measured")
    add_clock(parser)
    add_common(parser, "network")
    args = parser.parse_args(argv)
    if args.kept and args.resume:
        parser.error("--kept measures alpha's rows anew and --resume leaves them out: give one of the two")
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
        checks.admit(args.precision, args.device, "zoo", args.busy)
    except AlphaError as error:
        print(error, file=sys.stderr)
        return 1
    facts, file = compare.facts_of(args, argv, "zoo"), args.output / "zoo.jsonl"
    if args.clock == "cpu":
        facts["settings"] = f"{facts['settings']} one thread".strip()
    print("; ".join(f"{k}: {v}" for k, v in facts.items()))
    step = max(1, len(wanted) // CHECKED)
    args.checked = range(0, len(wanted), step)
    rows, failures, deadline = results.read(file), 0, time.monotonic() + args.budget_s
    for position, case in enumerate(wanted):
        for row in measured(case, position, args, rows, facts["settings"], deadline):
            results.record(file, facts, row)
            failures += "failed" in row
            print(report.progress(row), flush=True)
    rows = results.read(file)
    print("\n" + "\n".join(report.lines(rows)))
    report.draw(rows, args.output / "zoo.png")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
