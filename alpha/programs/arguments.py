"""The arguments that the commands have in common: the run, which of its weights, files to import, the device."""

from __future__ import annotations

import importlib
from argparse import Namespace
from typing import Any

from alpha.core.errors import ConfigError, message
from alpha.start import STATUSES, Parser, import_companions
from alpha.training.runs import Run, load_run

MOST = 1 << 20      # of a size on the command line


def parser(command: str, text: str) -> Parser:
    """Returns the parser of a command, with the arguments that all share."""
    made = Parser(prog=f"alpha {command}", allow_abbrev=False, epilog=STATUSES, description=text)
    made.add_argument("run", metavar="RUN", help="folder of a run, the --output of alpha train or of fit, or one of "
                      "its checkpoints")
    made.add_argument("--which", choices=("last", "best"), help="weights of the folder: those at the end, or those "
                      "that did best in validation (default: last)")
    made.add_argument("--import", dest="imports", metavar="FILE", action="append", default=[],
                      help="a file or module that registers the run's model, as of alpha train")
    return made


def with_device(made: Parser) -> None:
    """Adds --device and --batch-size."""
    made.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (default: cpu)")
    made.add_argument("--batch-size", metavar="N", default="64", help="pictures per call of the model (default: 64)")


def whole(command: str, name: str, text: str) -> int:
    """Returns the number of a flag.  Raises ConfigError."""
    if not (text.isascii() and text.isdigit() and len(text) < 8 and 0 < int(text) <= MOST):
        raise ConfigError(message(command, f"--{name} is {text[:40]!r}, a whole number from 1 to {MOST} is needed",
                                  f"write --{name} 5"))
    return int(text)


def train(module: str) -> Any:
    """Returns a module of the training program, which lies beside alpha."""
    import_companions("train")
    return importlib.import_module(f"train.{module}")


def loaded(given: Namespace, device: str = "cpu") -> Run:
    """Returns the run that the arguments name, with the files that register its model imported.  Raises AlphaError."""
    if given.imports:
        train("sources").import_all(given.imports)
    return load_run(given.run, given.which, device=device)
