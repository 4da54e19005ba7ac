"""`alpha predict RUN picture.png folder/`: the classes of pictures by a trained model."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from alpha.core.errors import DataError, message
from alpha.data.folder_set import listed, problems_of
from alpha.programs.arguments import loaded, parser, whole, with_device
from alpha.training.runs import Guess, files_of


def main(argv: Sequence[str]) -> int:
    """Prints a line for each picture, or JSON, and returns 0.  Raises AlphaError."""
    made = parser("predict", "What a trained model takes pictures for. Every file is looked at before anything is "
                  "printed.")
    made.add_argument("pictures", metavar="PICTURE", nargs="+", help="a picture, or a folder, whose pictures are taken")
    made.add_argument("--top", metavar="N", default="5", help="classes of each picture (default: 5)")
    made.add_argument("--json", action="store_true", help="print a list of objects with the file and its classes")
    made.add_argument("--skip-bad", action="store_true", help="leave pictures out that cannot be read")
    with_device(made)
    given = made.parse_args(argv)
    top, batch_size = (whole("predict", name, getattr(given, name.replace("-", "_"))) for name in ("top", "batch-size"))
    files = [file for path in given.pictures for file in files_of(path)]
    run = loaded(given, given.device)
    files = _readable(files, given.skip_bad)
    found = run.predict(files, top=top, batch_size=batch_size)
    print(_as_json(files, found) if given.json else _as_text(files, found))
    return 0


def _readable(files: list[Path], skip_bad: bool) -> list[Path]:
    """Returns the files that can be read.  Raises DataError where none can, or one cannot and is not to be skipped."""
    problems = problems_of("predict", files)
    bad = [text for text in problems if text]
    good = [file for file, text in zip(files, problems) if text is None]
    if bad and (not skip_bad or not good):
        raise DataError(message("predict", f"{len(bad)} of {len(files)} pictures cannot be used:{listed(bad)}",
                                "remove or replace them" + ("" if skip_bad else ", or leave them out: --skip-bad")))
    if bad:
        print(f"notice: {len(bad)} pictures are left out:{listed(bad)}", file=sys.stderr)
    return good


def _as_text(files: Sequence[Path], found: Sequence[Sequence[Guess]]) -> str:
    width = max(len(str(file)) for file in files)
    return "\n".join(f"{file!s:<{width}}  " + "  ".join(f"{g.name} {100 * g.probability:.1f} %" for g in guesses)
                     for file, guesses in zip(files, found))


def _as_json(files: Sequence[Path], found: Sequence[Sequence[Guess]]) -> str:
    return json.dumps([{"file": str(file), "classes": [{"name": g.name, "label": g.label, "probability": g.probability}
                                                       for g in guesses]}
                       for file, guesses in zip(files, found)], indent=2)
