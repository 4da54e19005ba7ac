"""Cases of a benchmark, one after the other, each recorded and printed when it is there."""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence

from alpha.errors import AlphaError
from benchmarks import checks, cpu_timing, cuda_timing, results
from benchmarks.environment import torch_facts
from benchmarks.results import Row


def record_each(name: str, heading: str, precisions: Sequence[str], cases: Iterable[tuple[Row, Callable[[], Row]]],
                line: Callable[[Row], str], args: argparse.Namespace, argv: Sequence[str] | None) -> int:
    """Measures cases until the time is up, and returns the exit status: 1 if one failed, or where nothing may run.

    Args:
        name: of the module in benchmarks/ and of its file of results.
        heading: of the table whose lines `line` makes.
        precisions: that are measured.
        cases: fields that name each, and the function that returns the rest of its row.
        args: with device, busy, budget_s and output (benchmarks.environment.add_common).
        argv: the arguments of the command; None: sys.argv.
    """
    try:
        checks.admit(precisions, args.device, name, args.busy)
    except AlphaError as error:
        print(error, file=sys.stderr)
        return 1
    deadline, failed = time.monotonic() + args.budget_s, False
    command = f"python -m benchmarks.{name} {' '.join(sys.argv[1:] if argv is None else argv)}".strip()
    facts = {**(cuda_timing if args.device == "cuda" else cpu_timing).start(command), **torch_facts(),
             "busy_allowed": args.busy}
    print("; ".join(f"{k}: {v}" for k, v in facts.items()) + f"\n{heading}")
    for known, measured in cases:
        if time.monotonic() > deadline:
            break
        row = dict(known)
        try:
            row |= measured()
        except Exception as error:  # the others are of use without this one
            traceback.print_exc()
            row["failed"], failed = (str(error) or repr(error)).partition("\n")[0][:200], True
        results.record(args.output / f"{name}.jsonl", facts, row)
        print(line(row), flush=True)
    return int(failed)
