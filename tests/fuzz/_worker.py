"""The process in which cases run: python -m tests.fuzz._worker MODULE.  It reads seeds and answers with JSON lines."""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import random
import resource
import shutil
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

MIB = 1024  # of memory that a case may take beyond what the process has after its imports


def limit_memory(mib: int) -> None:
    """Bounds the address space: larger allocations fail."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + (mib << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def case(module: Any, seed: int, folder: Path) -> dict[str, str]:
    """Runs the case of a seed; returns {"text": its line}, or {"key": what and where, "text": the traceback}."""
    folder.mkdir()
    try:
        return {"text": module.attempt(random.Random(f"{module.__name__} {seed}"), folder)}
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        frames = traceback.extract_tb(error.__traceback__)
        where = next((f for f in reversed(frames) if "site-packages" not in f.filename and "/lib/" not in f.filename),
                     frames[-1])
        text = "".join(traceback.format_exception(error, limit=-12))
        return {"key": f"{type(error).__name__} at {Path(where.filename).name}:{where.lineno} in {where.name}",
                "text": text if len(text) < 4000 else text[:2000] + "\n...\n" + text[-2000:]}
    finally:
        os.chdir(folder.parent)
        shutil.rmtree(folder, ignore_errors=True)


def main(name: str) -> None:
    """Answers every seed on stdin with a line on the stdout of the start; what cases print goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    faulthandler.enable()
    module = importlib.import_module(name)
    from alpha.cpu import native
    native.library()  # compiling it takes longer than a case may
    limit_memory(getattr(module, "MIB", MIB))
    with tempfile.TemporaryDirectory(prefix="fuzz-") as root:
        print(json.dumps({"seconds": getattr(module, "SECONDS", 10)}), file=answers, flush=True)
        for line in sys.stdin:
            print(json.dumps(case(module, int(line), Path(root) / "case")), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
