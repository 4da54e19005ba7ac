"""The frame of every program of the project: python -m alpha, python -m train and the command alpha.

Whatever goes wrong is one message of two lines on stderr, as in alpha.errors, and a status:

    0 done, 1 failed, 2 bad flags, settings or data, 130 ended by SIGINT (Ctrl-C), 143 ended by SIGTERM
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, TracebackType
from typing import NoReturn

STATUSES = "Exit status: 0 done, 1 failed, 2 bad flags, settings or data, 130 ended by SIGINT, 143 ended by SIGTERM."
INTERRUPTED = b"alpha: interrupted by SIGINT\nhelp: start it again; python -m train --resume auto continues a run\n"


def quiet() -> None:
    """For a program that is starting: an interrupt and a refused setting end it without a traceback."""
    signal.signal(signal.SIGINT, _end)
    sys.excepthook = _excepthook


def loud() -> None:
    """Undoes the part of `quiet` about interrupts: they raise KeyboardInterrupt again."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def run(main: Callable[[], int]) -> int:
    """Runs the work of a program whose process this is, and returns its exit status.

    Until a training run takes SIGINT over, and after it, SIGINT ends the process at once: an exception would come up
    anywhere, in a destructor or an import too, and be lost there or change its kind.
    """
    open_streams()
    quiet()
    status = attempt("alpha", main)
    return _lost_output() or status


def attempt(name: str, work: Callable[[], int]) -> int:
    """Returns the status of a piece of work; an error that is not a defect of ours is told, and gives its status."""
    from alpha.core.errors import AlphaError, ConfigError, DataError, message, remedy

    try:
        return work()
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except AlphaError as error:
        tell(str(error))
        return 2 if isinstance(error, (ConfigError, DataError)) else 1
    except OSError as error:
        if lost := _lost_output():
            return lost
        if isinstance(error, BrokenPipeError):
            return _gone(error)
        what = f"{error.filename or 'standard output or a file'}: {error.strerror or error}"
        fix = remedy(error.errno, error.filename) if error.filename else "free space, or correct the path"
        tell(message(name, what, f"{fix}; python -m train --resume auto continues a run from its last checkpoint"))
        return 1


def tell(text: str) -> None:
    """Writes a message to stderr, where there is one."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def open_streams() -> None:
    """Puts /dev/null where a standard stream is closed, and lets every name be printed, UTF-8 or not.

    Otherwise the next file to be opened would take the stream's place, and get the output.
    """
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(fd)
        except OSError:
            while os.open(os.devnull, os.O_RDWR) < fd:
                pass
        if getattr(sys, name) is None:
            setattr(sys, name, open(fd, "r" if fd == 0 else "w", closefd=False))  # noqa: SIM115
        if fd and hasattr(getattr(sys, name), "reconfigure"):
            getattr(sys, name).reconfigure(errors="backslashreplace")


def import_companions(*names: str) -> None:
    """Imports top-level packages of ours from where alpha lies: the user's folder may have a train.py of its own.

    Raises ImportError where there is none.
    """
    root = Path(__file__).parent.parent
    for name in names:
        found = sys.modules.get(name)
        if found is None or Path(getattr(found, "__file__", None) or "/").parent != root / name:
            companion(name, name)


def companion(folder: str, name: str) -> ModuleType:
    """Imports the package in a folder beside alpha under a name, and returns it.  Raises ImportError."""
    path = Path(__file__).parent.parent / folder / "__init__.py"
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=[str(path.parent)])
    if spec is None or spec.loader is None or not path.is_file():
        raise ImportError(f"there is no {path}", name=folder)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


class Parser(argparse.ArgumentParser):
    """A parser that raises ConfigError, which has two lines, where argparse would print its usage and exit."""

    def format_help(self) -> str:
        from alpha.core.errors import true_here

        return true_here(super().format_help())

    def error(self, text: str) -> NoReturn:
        from alpha.core.errors import ConfigError, message

        raise ConfigError(message(self.prog.rpartition(" ")[2], text[:200], f"run {self.prog} --help"))


def _lost_output() -> int:
    """Returns 1, and says why, if the output cannot be written; 0 otherwise."""
    try:
        sys.stdout.flush()
        return 0
    except OSError as error:
        _gone(error)
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python would say it again at its end
    return 1


def _gone(error: OSError) -> int:
    tell(f"alpha: standard output is gone: {error.strerror}\nhelp: give it a file, or a program that reads to the end")
    return 1


def _end(signum: int, frame: object) -> None:
    with contextlib.suppress(Exception):  # the interrupt may have come in the middle of a write
        sys.stdout.flush()
    with contextlib.suppress(OSError):
        os.write(2, INTERRUPTED)
    os._exit(128 + signum)


def _excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """A bad ALPHA_ variable is refused while alpha is imported, before anything could catch it."""
    if any(base.__name__ == "ConfigError" for base in kind.__mro__):
        tell(str(error))
        os._exit(2)
    sys.__excepthook__(kind, error, trace)
