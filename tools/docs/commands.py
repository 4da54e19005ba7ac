"""The page of the command: every sub-command's help, and the settings that `fit` and `alpha train` have alike."""

from __future__ import annotations

import contextlib
import io
import os
from importlib import import_module
from unittest import mock

from alpha import __main__ as program
from alpha.training.options import AROUND, OPTIONS, OTHERWISE
from tools.docs.docstrings import escaped
from tools.docs.reference import GENERATED, linked

COLUMNS = "100"     # of a help text


def help_of(*args: str) -> str:
    """Returns the text that a command prints for --help."""
    main = program.main
    if args == ("compare",):    # the command asks for PyTorch first; the text of its help needs none
        main, args = import_module("alpha.programs.compare").main, ()
    out = io.StringIO()
    with mock.patch.dict(os.environ, COLUMNS=COLUMNS), contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        main([*args, "--help"])
    return out.getvalue().rstrip()


def page() -> str:
    """Returns the text of the page."""
    lines = [GENERATED, "# The command alpha", "", "`python -m alpha` is the same; so is `python -m train` for "
             "`alpha train`.", "", "```text", help_of(), "```", ""]
    for name in program.COMMANDS:
        lines += [f"## alpha {name}", "", "```text", help_of(name), "```", ""]
    return "\n".join(lines + _settings())


def _settings() -> list[str]:
    rows = ["## Settings that fit and alpha train share", "",
            "A setting is fit's argument and the command's flag: `ema` is `fit(ema=)` and `--ema`.", "",
            "| setting | default of fit | meaning |", "|---|---|---|"]
    rows += [f"| `{name}` | `{option.default!r}` | {escaped(option.help, linked)} |"
             for name, option in OPTIONS.items()]
    rows += ["", "Arguments of fit whose flag has another name:", "", "| argument of fit | flag of alpha train |",
             "|---|---|"]
    rows += [f"| `{name}` | {escaped(text, linked)} |" for name, text in OTHERWISE.items()]
    rows += ["", "Flags whose work is done around a call of fit:", "", "| flag of alpha train | in Python |",
             "|---|---|"]
    rows += [f"| `--{name.replace('_', '-')}` | {escaped(text, linked)} |" for name, text in AROUND.items()]
    return [*rows, ""]
