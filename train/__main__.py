"""`python -m train`: trains an image classifier; its last line is the test accuracy.

Exit status: 0 done, 1 failed, 2 bad flags, settings or data, 130 ended by SIGINT, 143 ended by SIGTERM.

Nothing but the standard library is imported above, so that an interrupt during the imports, which take a while, is no
traceback.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit status; an error is one message on stderr."""
    return int(importlib.import_module("train.program").main(argv))


def program(module: str = "train.program") -> int:
    """Runs the main function of a module as this process's work, and returns the exit status."""
    signal.signal(signal.SIGINT, lambda signum, frame: os._exit(128 + signum))
    try:
        from alpha import start
    except ValueError as error:  # a bad ALPHA_ variable: a ConfigError, which cannot be imported either
        if type(error).__name__ != "ConfigError":
            raise
        if sys.stderr is not None:
            print(error, file=sys.stderr)
        return 2
    start.quiet()
    start.beside("models", "train")
    return start.run(importlib.import_module(module).main)


def command() -> int:
    """The command `alpha` of an installation."""
    return program("alpha.__main__")


if __name__ == "__main__":
    sys.exit(program())
