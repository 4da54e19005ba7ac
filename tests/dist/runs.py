"""Runs of the training program, one after another on the same ranks: mpirun -n 2 python -m tests.dist.runs FOLDER."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.dist.small import settings
from train import ranks, report
from train.loop import Run


def main(folder: str, size: str) -> None:
    root = Path(folder)
    report.can_plot = lambda: False     # pictures take longer than the runs
    with ranks.joined(settings(str(root))):
        Run(settings(str(root / f"plain-{size}"))).run()
        Run(settings(str(root / f"exact-{size}"), exact_over=8)).run()
        moved = str(root / "moved")     # begun on 2 ranks, ended on 4
        if size == "2":
            Run(settings(moved, exact_over=8, max_steps=10)).run()
        else:
            Run(settings(moved, exact_over=8, resume="auto")).run()
            Run(settings(str(root / "own-statistics"), sync_batch_norm=False, gradient_dtype="float16")).run()
            accuracy = Run(settings(str(root / "plain-2"), resume="auto", evaluate=True)).evaluate()
            print(f"evaluated: {accuracy!r}")


if __name__ == "__main__":
    main(*sys.argv[1:])
