"""`alpha summary MODEL`: the table of a model's layers."""

from __future__ import annotations

from collections.abc import Sequence

import alpha
from alpha import models
from alpha.errors import ConfigError, message
from alpha.start import STATUSES, Parser
from train.sources import import_all

MOST = 1 << 20      # of a size on the command line


def main(argv: Sequence[str]) -> int:
    """Prints the table, and returns 0.  Raises ConfigError, ShapeError."""
    parser = Parser(prog="alpha summary", allow_abbrev=False, epilog=STATUSES,
                    description="Layers of a model: what each makes, holds and computes.")
    parser.add_argument("model", help="its name; alpha train --list-models shows all")
    parser.add_argument("--input-shape", metavar="H,W,C", default="32,32,3", help="of one sample (default: 32,32,3)")
    parser.add_argument("--num-classes", metavar="N", default="10", help="outputs (default: 10)")
    parser.add_argument("--batch-size", metavar="N", default="1", help="samples (default: 1)")
    parser.add_argument("--import", dest="imports", metavar="FILE", action="append", default=[],
                        help="a file or module that registers it, as of train")
    given = parser.parse_args(argv)
    import_all(given.imports)
    shape = _sizes("input-shape", given.input_shape)
    (classes,), (batch,) = (_sizes(name, getattr(given, name.replace("-", "_")), 1)
                            for name in ("num-classes", "batch-size"))
    model = models.create(given.model, classes)
    print(models.description(given.model).strip().splitlines()[0] if models.description(given.model) else given.model)
    print(alpha.summary(model, shape, batch))
    return 0


def _sizes(name: str, text: str, count: int | None = None) -> tuple[int, ...]:
    """Returns the whole numbers of a flag's text, with commas between."""
    parts = text.split(",")
    if count not in (None, len(parts)) or not all(p.isascii() and p.isdigit() and len(p) < 8 and 0 < int(p) <= MOST
                                                  for p in parts):
        raise ConfigError(message("summary", f"--{name} is {text[:40]!r}, "
                                  f"{'a whole number is' if count == 1 else 'whole numbers with commas between are'} "
                                  f"needed, each from 1 to {MOST}",
                                  f"write --{name} {'32,32,3' if count is None else 8}"))
    return tuple(map(int, parts))
