"""python -m alpha.testing.emulator [-c code | file.py] [arguments]: a program on the emulated driver."""

from __future__ import annotations

import os
import runpy
import sys

from alpha.errors import AlphaError

from . import emulation

if __name__ == "__main__":
    if len(sys.argv) < 2 or (sys.argv[1] == "-c" and len(sys.argv) < 3):
        sys.exit(__doc__)
    if sys.argv[1] != "-c" and not os.path.exists(sys.argv[1]):
        sys.exit(f"emulator: there is no file {sys.argv[1]}\nhelp: correct the path")
    try:
        emulation.install()
    except AlphaError as error:
        sys.exit(str(error))
    del sys.argv[0]
    if sys.argv[0] == "-c":
        code = sys.argv.pop(1)
        exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")
