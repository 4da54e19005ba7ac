"""Kernels that steps of shipped networks launch on an H100, a golden file per network and precision; without a GPU.

    python -m tests.golden_launches [NETWORK ...]             # compares, and shows where launches are others
    python -m tests.golden_launches [NETWORK ...] --write     # after a change that is meant: review the diff

A line is a launch: the kernel's entry and the macros that its module is compiled with; x3 stands for three in a row.
First comes a training step of a batch of 128 images, then its evaluation. The device is the one of
alpha/cuda/runtime/rehearsal.py. `python -m tests.same_kernels launches` shows the arguments, too.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

from alpha.cuda.runtime.kernel import Kernel
from tests import same_kernels

FOLDER = Path(__file__).parent / "golden" / "launches"
NETWORKS = ("lenet5", "vgg11", "resnet18", "googlenet", "mobilenetv2", "convnext_tiny", "coresnet18")
PRECISIONS = ("fp32", "tf32", "bf16")
BATCH = 128
ARCH = "sm_90a"


def named(kernel: Kernel, grid: Any, values: tuple[Any, ...]) -> str:
    """Returns the line of a launch.  ALPHA_PART is left out: it says how kernels share a module."""
    macros = [f"{name}={value}" for name, value in sorted(kernel.unit.defines) if name != "ALPHA_PART"]
    return " ".join([kernel.entry, *macros])


def now(networks: tuple[str, ...]) -> dict[str, str]:
    """Returns the text of each golden file as it ought to be.  The process is of no other use afterwards."""
    import alpha.cuda.families  # noqa: F401  declares all kernels

    cases = [f"{network}:{precision}:{BATCH}" for network in networks for precision in PRECISIONS]
    texts: dict[str, list[str]] = {}
    for line, run in groupby(same_kernels.launches(ARCH, cases, named)):
        count = len(list(run))
        if line.startswith("-- "):
            lines = texts.setdefault("-".join(line[3:].split(":")[:2]), [])
        else:
            lines.append(line + (f" x{count}" if count > 1 else ""))
    return {name: "\n".join(lines) + "\n" for name, lines in texts.items()}


def differences(texts: dict[str, str], folder: Path) -> list[str]:
    """Returns the lines of a diff between the files of a folder and what they ought to be; none if they are that."""
    found: list[str] = []
    for name, text in texts.items():
        path = folder / f"{name}.txt"
        before = path.read_text().splitlines() if path.exists() else []
        found += difflib.unified_diff(before, text.splitlines(), f"golden {name}", f"now {name}", lineterm="", n=2)
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.golden_launches", description=__doc__.partition("\n")[0])
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help=f"of {', '.join(NETWORKS)} (default: all)")
    parser.add_argument("--write", action="store_true", help="write the files, in place of comparing")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="of the files (default: tests/golden/launches)")
    args = parser.parse_args(argv)
    unknown = sorted(set(args.networks) - set(NETWORKS))
    if unknown:
        parser.error(f"there are no golden files of {', '.join(unknown)}, only of {', '.join(NETWORKS)}")
    texts = now(tuple(args.networks) or NETWORKS)
    if args.write:
        args.folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (args.folder / f"{name}.txt").write_text(text)
        return 0
    lines = differences(texts, args.folder)
    if lines:
        print("\n".join(lines))
        print("golden_launches: launches are others than the golden files say\n"
              "help: if that is meant, run python -m tests.golden_launches --write, and review the diff")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
