"""`python -m train`: trains an image classifier; its last line is the test accuracy.

Exit status: 0 done, 1 failed, 2 bad flags, settings or data, 130 ended by SIGINT, 143 ended by SIGTERM.
"""

from __future__ import annotations

import signal
import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace

from alpha.errors import AlphaError, ConfigError, DataError, message
from train import report
from train.config import Config, parse
from train.interrupt import Interrupted
from train.lock import OutputLock
from train.loop import evaluate_checkpoint, run


def run_all(config: Config) -> float:
    """Trains --runs models, each with a seed and a subdirectory of its own, and returns the mean test accuracy."""
    if config.runs == 1:
        return run(config)
    output = report.prepare(config.output)
    found = {}
    with OutputLock(output):
        for k in range(config.runs):
            seed = config.seed + k
            print(f"run {k + 1} of {config.runs}, seed {seed}", flush=True)
            found[f"seed-{seed}"] = run(replace(config, runs=1, seed=seed, output=str(output / f"seed-{seed}")))
        mean, std = statistics.mean(found.values()), statistics.stdev(found.values())
        report.write_summary(output, {"test_accuracy": mean, "standard_deviation": std, "runs": found})
    print(f"{config.runs} runs: mean test accuracy {100 * mean:.2f} %, standard deviation {100 * std:.2f} %")
    return mean


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit status; an error is one message on stderr."""
    try:
        config = parse(argv)
        accuracy = evaluate_checkpoint(config) if config.evaluate else run_all(config)
    except Interrupted as interrupted:
        return 128 + interrupted.signum
    except KeyboardInterrupt:  # before the first step, or the second one
        return 128 + signal.SIGINT
    except AlphaError as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, (ConfigError, DataError)) else 1
    except OSError as error:
        print(message("train", f"{error.filename or 'a file'}: {error.strerror}",
                      "free space or correct the path; --resume auto continues from the last checkpoint"),
              file=sys.stderr)
        return 1
    print(f"test accuracy {100 * accuracy:.2f} %")
    return 0


if __name__ == "__main__":
    sys.exit(main())
