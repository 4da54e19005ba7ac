"""The command line of alpha: `python -m alpha COMMAND`, or `alpha COMMAND` where it is installed.

    alpha [doctor]                        the doctor: which parts are here, and which are missing
    alpha build-kernels [--arch sm_90a]   builds the compiled kernels ahead of their first use
    alpha build-kernels --model resnet18 --precision bf16    those alone that training this network launches
    alpha summary resnet18                layers of a model; alpha summary --help
    alpha train ...                       trains an image classifier; alpha train --help
    alpha train --resume RUN              continues a run; RUN is its folder
    alpha predict RUN picture.png ...     the classes of pictures by a trained model
    alpha evaluate RUN [--dataset ...]    how well it does, class by class
    alpha export RUN out.onnx             the model for other programs
    alpha compare my_models.py:Net --input 3,32,32    any PyTorch model in alpha: agreement, time, memory, a report
    alpha compare --models resnet18 ...   the benchmark of shipped networks, in a clone of the repository
    alpha --version                       the version of alpha

alpha COMMAND --help tells more of each.

The command `alpha` works in any folder; `python -m train` finds a train.py in the user's folder first.
"""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Sequence

from alpha.core.errors import ConfigError, message
from alpha.start import STATUSES, attempt, import_companions, loud, run


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status; an error is one message on stderr."""
    args = list(sys.argv[1:] if argv is None else argv)
    return attempt("alpha", lambda: _command(args))


OF_RUNS = ("predict", "evaluate", "export")     # modules of alpha.programs
COMMANDS = ("doctor", "build-kernels", "summary", "train", *OF_RUNS, "compare")


def _command(args: list[str]) -> int:
    name, rest = (args[0], args[1:]) if args else ("doctor", [])
    if name in ("-h", "--help", "help"):
        print(f"{__doc__}\n{STATUSES}")
        return 0
    if name in ("-V", "--version"):
        from alpha import __version__

        print(f"alpha {__version__}")
        return 0
    if name not in COMMANDS:
        close = difflib.get_close_matches(name, COMMANDS, 1)
        what = f"{name} needs a command in front of it" if name.startswith("-") else f"there is no command {name!r}"
        raise ConfigError(message("alpha", what, f"did you mean alpha {close[0]}?" if close else
                                  f"the commands are {', '.join(COMMANDS)}; alpha COMMAND --help tells more"))
    if name == "train":
        import_companions("train")
        return int(importlib.import_module("train.program").main(rest))
    if name == "summary":
        import_companions("train")
        return int(importlib.import_module("train.summary").main(rest))
    if name in OF_RUNS:
        return int(importlib.import_module(f"alpha.programs.{name}").main(rest))
    if name == "compare":
        return _compare(rest)
    from alpha import doctor

    return doctor.main([name, *rest])


def _compare(args: list[str]) -> int:
    if args and not args[0].startswith("--"):       # a model; flags alone belong to the benchmark
        try:
            compare = importlib.import_module("torch") and importlib.import_module("alpha.programs.compare")
        except ImportError as error:
            raise ConfigError(message("compare", f"it needs {error.name}, which is not installed",
                                      "pip install torch")) from error
        loud()
        return int(compare.main(args))
    try:
        import_companions("train", "tests", "benchmarks")
        compare = importlib.import_module("benchmarks.compare")
    except ImportError as error:
        if (error.name or "").partition(".")[0] in ("benchmarks", "tests"):
            raise ConfigError(message("compare", "benchmarks/ is not here: it is not installed with alpha",
                                      "clone alpha's repository, and run make bench there")) from error
        raise ConfigError(message("compare", f"it needs {error.name}, which is not installed",
                                  'pip install ".[bench]"')) from error
    loud()  # it ends its processes in order
    return int(compare.main(args))


if __name__ == "__main__":
    sys.exit(run(main))
