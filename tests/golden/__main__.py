"""The command: compares the records with the code, or writes them anew; `--steps` adds the hashes of training steps."""

from __future__ import annotations

import argparse
import difflib
import json
import sys
from pathlib import Path
from typing import Any

from tests.golden import api, calls, choices, steps

HERE = Path(__file__).parent


def differences(name: str, now: str) -> list[str]:
    """Returns the lines of a diff from a record to what the code gives now."""
    path = HERE / name
    before = path.read_text() if path.is_file() else ""
    return [*difflib.unified_diff(before.splitlines(), now.splitlines(), f"{name} (kept)", f"{name} (now)", "", "", 1)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description="compare or write the kept records")
    parser.add_argument("--write", action="store_true", help="write the records anew")
    parser.add_argument("--steps", action="store_true", help="also hash training steps of this machine (minutes)")
    args = parser.parse_args()
    made = {"api.txt": api.text(), "wrong_calls.txt": calls.text(), "choices.txt": choices.text()}
    kept: dict[str, Any] = steps.kept()
    kept["every machine"] = steps.exact()
    if args.steps:
        kept[steps.machine()] = steps.rounded()
    made["steps.json"] = json.dumps(kept, indent=1, sort_keys=True) + "\n"
    different = False
    for name, now in made.items():
        lines = differences(name, now)
        different |= bool(lines)
        print("\n".join(lines) if lines else f"{name}: the same")
        if args.write:
            (HERE / name).write_text(now)
    return int(different and not args.write)


if __name__ == "__main__":
    sys.exit(main())
