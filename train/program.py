"""The training program: a command line -> one run or several -> the test accuracy."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace

from alpha.start import attempt
from train import ranks, report
from train.config import Config, parse
from train.interrupt import Interrupted
from train.loop import Run


def run_all(config: Config) -> float:
    """Trains --runs models, each with a seed and a subdirectory of its own, and returns the mean test accuracy."""
    if config.runs == 1:
        return Run(config).run()
    output = report.prepare(config.output)
    found = {}
    with ranks.lock(output):
        for k in range(config.runs):
            seed = config.seed + k
            print(f"run {k + 1} of {config.runs}, seed {seed}", flush=True)
            found[f"seed-{seed}"] = Run(replace(config, runs=1, seed=seed,
                                                 output=str(output / f"seed-{seed}"))).run()
        mean, std = statistics.mean(found.values()), statistics.stdev(found.values())
        report.write_summary(output, {"test_accuracy": mean, "standard_deviation": std, "runs": found})
    print(f"{config.runs} runs: mean test accuracy {100 * mean:.2f} %, standard deviation {100 * std:.2f} %")
    return mean


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit status; an error is one message on stderr."""
    return attempt("train", lambda: _run(argv))


def _run(argv: Sequence[str] | None) -> int:
    try:
        config = parse(argv)
        with ranks.joined(config):
            accuracy = Run(config).evaluate() if config.evaluate else run_all(config)
    except Interrupted as interrupted:
        return 128 + interrupted.signum
    print(f"test accuracy {100 * accuracy:.2f} %")
    return 0
