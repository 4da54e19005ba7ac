"""python -m tests.emulator [-c code | file.py] [arguments]: a program on the emulated driver."""

from __future__ import annotations

import runpy
import sys

from . import emulation

if __name__ == "__main__":
    if len(sys.argv) < 2 or (sys.argv[1] == "-c" and len(sys.argv) < 3):
        sys.exit(__doc__)
    emulation.install()
    del sys.argv[0]
    if sys.argv[0] == "-c":
        code = sys.argv.pop(1)
        exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")
