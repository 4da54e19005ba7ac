"""Writes the lists of public names; with --check compares them, and fails where one is stale."""

from __future__ import annotations

import argparse
import difflib
import sys
from pathlib import Path

from tools.names.definitions import collect
from tools.names.lists import written
from tools.names.regions import NamesError


def main(args: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.names", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 where a list is stale")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[2], help="of the repository")
    given = parser.parse_args(args)
    try:
        texts = written(given.root, collect(given.root))
    except NamesError as error:
        print(error, file=sys.stderr)
        return 2
    stale = {path: (path.read_text(), text) for path, text in texts.items() if path.read_text() != text}
    for path, (old, new) in stale.items():
        name = path.relative_to(given.root)
        if given.check:
            changes = difflib.unified_diff(old.split("\n"), new.split("\n"), str(name), str(name), n=0, lineterm="")
            print(f"{name} is stale: run python -m tools.names", *list(changes)[2:22], sep="\n")
        else:
            path.write_text(new)
            print(f"{name} is written")
    if not stale:
        print(f"{len(texts)} files have the lists of their definitions")
    return 1 if given.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
