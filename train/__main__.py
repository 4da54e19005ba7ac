"""`python -m train`: trains an image classifier; its last line is the test accuracy.

Exit status: 0 done, 1 failed, 2 bad flags, settings or data, 130 ended by SIGINT, 143 ended by SIGTERM.

Modules are imported where they are needed, so that an interrupt during the imports, which take a while, finds its
handler in place.
"""

from __future__ import annotations


def main(argv: list[str] | None = None) -> int:
    """Runs the command line and returns the exit status; an error is one message on stderr."""
    from train import program

    return program.main(argv)


def process(module: str = "train.program") -> int:
    """Runs the main function of a module as the work of this process, and returns the exit status."""
    import _signal  # built in: an interrupt finds no moment before it
    import os
    _signal.signal(_signal.SIGINT, lambda signum, frame: os._exit(128 + signum))

    import importlib
    import sys
    try:
        from alpha import start
    except ValueError as error:  # a bad ALPHA_ variable: a ConfigError, which cannot be imported either
        if type(error).__name__ != "ConfigError":
            raise
        if sys.stderr is not None:
            print(error, file=sys.stderr)
        return 2
    start.quiet()
    start.import_companions("train")
    return start.run(importlib.import_module(module).main)


def command() -> int:
    """The command `alpha` of an installation."""
    return process("alpha.__main__")


if __name__ == "__main__":
    import sys
    sys.exit(process())
