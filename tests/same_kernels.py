"""What a change leaves as it was: machine code of kernels, and launches of training steps.  No GPU is needed.

    python -m tests.same_kernels code sm_90a pool softmax > a.txt     # of these .cu files; of all, in minutes, if none
    python -m tests.same_kernels launches sm_90a resnet18:bf16:128 > b.txt

Run it before and after a change, or in two checkouts, and compare the files. Where `code` says the same, instructions
are the same, one by one: there is nothing new to test or to measure. Where `launches` does, host code launches the same
kernels, in the same order, with the same numbers; what these read from device memory is not seen.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from alpha import doctor
from alpha.cuda.runtime import rehearsal, toolchain
from alpha.cuda.runtime.kernel import Kernel

KEPT = (".text.", ".nv.shared.", ".nv.constant", ".nv.global")  # sections: instructions, and memory they count on
ADDRESS = 1 << 35  # the first one of a rehearsal is larger, and no number is


def sections(elf: bytes) -> Iterator[tuple[str, int, bytes]]:
    """Yields name, size and contents of each section of a cubin, a 64-bit ELF file."""
    start, = struct.unpack_from("<Q", elf, 0x28)
    nbytes, count, of_names = struct.unpack_from("<HHH", elf, 0x3A)
    heads = [struct.unpack_from("<IIQQQQ", elf, start + k * nbytes) for k in range(count)]
    for name, kind, _, _, at, size in heads:
        name += heads[of_names][4]
        yield elf[name:elf.index(b"\0", name)].decode(), size, b"" if kind == 8 else elf[at:at + size]  # 8: no contents


def code_of(arch: str, unit: toolchain.Unit) -> list[str]:
    """Returns a line for each section of a module.  Line numbers are not kept: they would change with every comment."""
    target = arch.removeprefix("sm_")
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "out.cubin"
        subprocess.run([toolchain.nvcc(), *(flag for flag in toolchain.FLAGS if flag != "-lineinfo"), "-cubin",
                        f"-gencode=arch=compute_{target},code={arch}", *toolchain.includes(),
                        *toolchain.macros(unit.source, dict(unit.defines)), str(unit.source), "-o", str(cubin)],
                       check=True)
        found = sorted(sections(cubin.read_bytes()))
    return [f"{unit.source.name} {dict(unit.defines)} {name} {size} {hashlib.sha256(contents).hexdigest()[:16]}"
            for name, size, contents in found if name.startswith(KEPT)]


def code(arch: str, stems: list[str]) -> Iterator[str]:
    units = sorted((unit for unit in toolchain.units() if not stems or unit.source.stem in stems), key=str)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for lines in pool.map(partial(code_of, arch), units):
            yield from lines


def shown(value: Any) -> str:
    """An argument of a launch: a number, a digest of bytes, or P for what has an address."""
    if isinstance(value, bytes):
        return hashlib.sha256(value).hexdigest()[:16]
    if isinstance(value, float) or (isinstance(value, (int, np.integer)) and abs(value) < ADDRESS):
        return str(value)
    return "P" if value is not None else "null"


def in_full(kernel: Kernel, grid: Any, values: tuple[Any, ...]) -> str:
    """Returns the line of a launch: its kernel, its sizes and its arguments."""
    return (f"{kernel.unit.source.name} {kernel.entry} {dict(kernel.unit.defines)} {grid} {kernel.block} "
            f"{kernel.shared} {' '.join(map(shown, values))}")


def launches(arch: str, cases: list[str], line_of: Callable[[Kernel, Any, tuple[Any, ...]], str] = in_full
             ) -> list[str]:
    """Returns a line for each launch of a training step of MODEL:PRECISION:BATCH, and of an evaluation behind it."""
    lines: list[str] = []
    launch = Kernel.__call__

    def noted(kernel: Kernel, grid: Any, *values: Any) -> None:
        lines.append(line_of(kernel, grid, values))
        launch(kernel, grid, *values)

    def program() -> None:
        for case in cases:
            name, precision, batch = case.split(":")
            lines.append(f"-- {case}")
            doctor.training(name, precision, int(batch))()

    Kernel.__call__ = noted  # type: ignore[method-assign]
    try:
        rehearsal.rehearse(program, arch)
    finally:
        Kernel.__call__ = launch  # type: ignore[method-assign]
    return lines


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.same_kernels", description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=["code", "launches"])
    parser.add_argument("arch", help="sm_80, sm_86, sm_89 or sm_90a")
    parser.add_argument("names", nargs="*", help="of .cu files, without the ending; or MODEL:PRECISION:BATCH")
    args = parser.parse_args(argv)
    if args.what == "launches" and not (args.names and all(name.count(":") == 2 for name in args.names)):
        parser.error(f"launches needs MODEL:PRECISION:BATCH, as in resnet18:bf16:128; given: {args.names or 'nothing'}")
    import alpha.cuda.families  # noqa: F401  declares all kernels
    for line in (code if args.what == "code" else launches)(args.arch, args.names):
        print(line)


if __name__ == "__main__":
    main()
