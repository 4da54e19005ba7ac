"""Builds the emulated driver, and compiles .cu files for it with the host's C++ compiler, as nvcc does for a device."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import alpha
from alpha.build import build
from alpha.errors import CompileError, message

HERE = Path(__file__).resolve().parent
HOME = Path(alpha.__file__).resolve().parent / "cuda"
INCLUDE_DIRS = (HOME / "include", HOME)
COMPILER = ("g++",)
# Each module keeps its symbols, and with them its shared memory, to itself; x86-64-v3 has fused multiply-add.
FLAGS = ("-std=c++17", "-fPIC", "-fvisibility=hidden", "-fno-gnu-unique",
         *(("-march=x86-64-v3",) if platform.machine() == "x86_64" else ()))
# Kernels read arrays of one type as packets of another, which nvcc takes in its stride. Products and sums that are not
# written as fmaf stay apart: g++ joins them here and not there, and kernels that ought to agree to the bit would not.
# -O1 compiles in 0.6 of the time of -O2, and keeps loads that are wider than what is used of them: they are checked.
MODULE_FLAGS = ("-O1", "-ffp-contract=off", "-fno-strict-aliasing", "-g1", "-w")
# Of the thread sanitizer only the hooks at loads and stores: check.cpp takes the place of its runtime, so that the
# link must not bring it in.
CHECKS = ("-fsanitize=thread", "--param", "tsan-instrument-func-entry-exit=0",
          "-fsanitize=bounds,alignment", "-fsanitize-undefined-trap-on-error")
NO_SANITIZER_RUNTIME = "-fno-sanitize=all"


def cuda_include() -> Path:
    """Returns the directory of the CUDA toolkit's headers.  Raises CompileError if it is not there."""
    include = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include"
    if not (include / "cuda_fp16.h").exists():
        raise CompileError(message("emulator", f"there is no cuda_fp16.h in {include}",
                                   "install the CUDA toolkit's headers and point CUDA_HOME at the toolkit"))
    return include


def require_compiler() -> None:
    """Raises CompileError if the compiler is not there."""
    if not shutil.which(COMPILER[0]):
        raise CompileError(message("emulator", f"there is no {COMPILER[0]} on the PATH",
                                   "install it; no other compiler has the hooks of the checked build"))


def driver() -> Path:
    """Returns libcuda.so.1, built if need be."""
    sources = [HERE / f"{name}.cpp" for name in ("driver", "stream", "memory", "module", "unsupported")]
    return build("emulated-driver", sources, COMPILER, ("-std=c++17", "-O2", "-Wall", "-fPIC"),
                 link=("-shared", "-Wl,-soname,libcuda.so.1", "-Wl,--no-as-needed", "-ldl"))


@cache
def load_driver() -> ctypes.CDLL:
    """Loads the driver into this process. PyCUDA, imported afterwards, finds its libcuda.so.1 loaded already."""
    library = ctypes.CDLL(str(driver()))
    library.emuClaim.argtypes = [ctypes.c_uint64, ctypes.c_size_t]
    library.emuSetMemory.argtypes = [ctypes.c_size_t]
    return library


@cache
def engine() -> Path:
    """Returns the engine, one object file that is linked into every module; built if need be."""
    names = ("engine", "launch", "cluster", "check", "copy", "tensor", "arithmetic")
    sources = [HERE / f"{name}.cpp" for name in names]
    flags = (*FLAGS, "-O3", "-isystem", str(cuda_include()))
    return build("emulated-engine", sources, COMPILER, flags, link=("-r", "-nostdlib"), suffix=".o")


@cache
def _header(flags: tuple[str, ...]) -> Path:
    """Returns what to include first: emu.hpp, which g++ finds compiled ahead, as most of a small module's time is its.

    The text is for a module whose macros g++ does not let pass beside a header that was compiled without them.
    """
    compiled = build("emulated-header", [HERE / "emu.hpp"], COMPILER, (*flags, "-x", "c++-header"), link=None,
                     suffix=".gch")
    text = compiled.with_suffix("")
    text.write_text(f'#include "{HERE}/emu.hpp"\n')
    return text


class EmulatedToolchain:
    """Turns a .cu file into a module of the emulated driver; takes the place of alpha.cuda.runtime.kernel.toolchain.

    Args:
        checked: with hooks that check every load and store; slower by up to ten times.
    """

    name = "emulated"

    def __init__(self, checked: bool = False) -> None:
        self.checked = checked

    def compile(self, source: Path, defines: Mapping[str, str | int], arch: str) -> Path:
        """Returns the path of the module: one for every `arch` from sm_80 on, as no source tells these apart."""
        require_compiler()
        flags = (*FLAGS, *MODULE_FLAGS, *(CHECKS if self.checked else ()), f"-I{HERE}",
                 *(f"-I{folder}" for folder in INCLUDE_DIRS), "-isystem", str(cuda_include()))
        macros = [f"-D{name}={value}" for name, value in sorted(defines.items()) if name != "ALPHA_PART"]  # one of all
        number = int("".join(filter(str.isdigit, arch)))
        macros += [f"-DALPHA_ARCH={number}"] if number < 80 else []
        first = ("-x", "c++", "-include", str(_header(flags)))
        link = ("-x", "none", "-shared", NO_SANITIZER_RUNTIME, "-Wl,-Bsymbolic", str(engine()))
        return build(f"emulated-{source.stem}", [source], COMPILER, (*flags, *macros, *first), link=link,
                     include_dirs=(*INCLUDE_DIRS, HERE))

    def find(self, source: Path, defines: Mapping[str, str | int], arch: str) -> Path | None:
        """Returns None: `compile` looks in the cache."""
        return None
