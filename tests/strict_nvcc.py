"""nvcc that also fails where a kernel compiles badly: python tests/strict_nvcc.py <nvcc> <arguments of nvcc>

Any warning fails, registers that spill to memory do, and matrix instructions that the assembler had to serialise.
"""

from __future__ import annotations

import re
import subprocess
import sys

BAD = re.compile(r"warning|serializ|[1-9]\d* bytes spill", re.IGNORECASE)


def main(nvcc: list[str]) -> int:
    verbose = [] if "--version" in nvcc else ["-Xptxas", "-v"]
    done = subprocess.run([*nvcc, *verbose], capture_output=True, text=True)
    output = (done.stdout + done.stderr).splitlines()
    bad = [k for k, line in enumerate(output) if BAD.search(line)]
    if done.returncode or bad:
        # ptxas names the kernel in the lines before its figures
        shown = output if done.returncode else [line for k in bad for line in output[max(0, k - 2):k + 2]]
        print("\n".join(shown), file=sys.stderr)
        return 1
    if not verbose:
        print(done.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
