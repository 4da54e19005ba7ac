"""The library of compiled kernels: how it is built, and each kernel's arguments, for ctypes and in a run of calls.

A recorded call, a step, is WIDTH words of 8 bytes: the address of the kernel's entry in the source that `steps_source`
writes, then the arguments. The bits of a float are the lower ones of a word.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from alpha.build import build, compilers, written
from alpha.core.config import config
from alpha.core.errors import CompileError, message

WIDTH = 20  # words of a step
KERNELS = Path(__file__).parent / "kernels"
FLAGS = ("-O3", "-march=native", "-std=c++17", "-fPIC", "-fvisibility=hidden", "-fopenmp", "-fno-math-errno",
         "-fno-trapping-math", "-ffp-contract=fast")
# g++ tuned for AMD splits a*b + c in some chains into two roundings: the shape of a tile, and so the number of
# threads, would change sums.
X86_FLAGS = ("-mprefer-vector-width=512", "--param=avoid-fma-max-bits=0")

# Arguments of each kernel: p pointer, l int64, q uint64, i int, u uint32, f float, d double; after "->" its result.
SIGNATURES = {
    "set_threads": "i", "vector_lanes": "-> i", "made_by_intel": "-> i",
    "conv_fprop": "p pppp i",
    "conv_dgrad": "p ppp", "conv_dgrad_adds": "p -> i", "conv_dgrad_add": "p ppp",
    "conv_wgrad": "p ppp",
    "matrix_products": "ppp llllll i",
    "conv_panel_floats": "p -> l", "conv_pack": "p pp",
    "conv_run": "p ppppp ii",
    "sparse_floats": "p -> l", "sparse_filter_floats": "p -> l", "sparse_filters": "p pp i", "sparse_run": "p ppppp ii",
    "sparse_wgrad_floats": "p -> l", "sparse_wgrad": "p pppp", "count_nonzeros": "p lll -> l",
    "linear_sparse": "pppp lll i",
    "fft_tiles": "p pp", "fft_inverse": "p pp",
    "winograd_floats": "p -> l", "winograd_forward": "pp ppppp iii",
    "winograd_wgrad_floats": "pl -> l", "winograd_wgrad": "plpp pppp",
    "winograd_levels_floats": "pl -> l", "winograd_levels": "plpp ppppp ii",
    "winograd_filter_floats": "p -> l", "winograd_filters": "pp pp",
    "winograd_run": "pp ppppp ii", "winograd_pool": "pp ppppp",
    "bn_fwd": "pppp pp ppp ll dd i", "bn_apply": "pppp pp p ll i", "bn_bwd": "pp pp pp ppp ll i",
    "sum_middle": "ppp lll", "sum_rows": "ppp ll",
    "extreme": "pp lll i", "softmax_fwd": "pp ll i", "softmax_bwd": "ppp ll i",
    "layer_norm_fwd": "ppp pppp ll d", "layer_norm_bwd": "ppp ppp ppp ll",
    "group_norm_fwd": "ppp pppp llll d", "group_norm_bwd": "ppp ppp ppp llll",
    "max_pool_fwd": "p ppp", "max_pool_relu": "p pp", "max_pool_bwd": "p ppp", "pool_scatter": "ppp llll -> l",
    "avg_pool_fwd": "p pp i", "avg_pool_bwd": "p pp i",
    "cross_entropy_fwd": "pp pp ll dl -> l", "cross_entropy_bwd": "pl ppp p ll ddl -> l",
    "copy_box": "ppp i", "concat_rows": "pp l p l", "mix_rows": "ppppp lllll",
    "augment_images": "ppp ppp p llll lil", "transform_images": "pppp p lllll", "mix_images": "ppp llll",
    "pointwise": "pp pppp p",
    "sum_of_squares": "ppl -> d",
    "update_lists": "pp lll pf",
    "random_bits": "quq pl",
    "dropout": "ppl ff quq",
    "attention_fwd": "p ppp pp pp fff quq", "attention_bwd": "p pppp pp pp ppp fff quq",
}
# Those that look at tables alone: they are called while a function is recorded, too.
OF_TABLES = frozenset({"set_threads", "vector_lanes", "made_by_intel", "conv_dgrad_adds", "conv_panel_floats",
                       "sparse_floats", "sparse_filter_floats", "sparse_wgrad_floats", "winograd_floats",
                       "winograd_wgrad_floats", "winograd_levels_floats", "winograd_filter_floats"})
_CTYPES = {"p": ctypes.c_void_p, "l": ctypes.c_int64, "q": ctypes.c_uint64, "i": ctypes.c_int, "u": ctypes.c_uint32,
           "f": ctypes.c_float, "d": ctypes.c_double}
_CPP = {"p": "void*", "l": "int64_t", "q": "uint64_t", "i": "int", "u": "uint32_t", "f": "float", "d": "double"}


def kinds(name: str) -> str:
    """Returns the kinds of a kernel's arguments, a letter each."""
    return SIGNATURES[name].partition("->")[0].replace(" ", "")


def gives(name: str) -> str:
    """Returns the kind of a kernel's result; "" where there is none."""
    return SIGNATURES[name].partition("->")[2].strip()


def declare(library: Any) -> Any:
    """Tells ctypes the types of all kernels of a library, and returns the library."""
    for name in SIGNATURES:
        function = getattr(library, name)
        function.argtypes = [_CTYPES[kind] for kind in kinds(name)]
        function.restype = _CTYPES[gives(name)] if gives(name) else None
    library.run_steps.argtypes, library.run_steps.restype = [ctypes.c_void_p, ctypes.c_int64], None
    return library


def entry(name: str) -> str:
    """Returns the name of the function that calls a kernel with the words of a step."""
    return f"step_{name}"


def recordable() -> list[str]:
    """Returns the kernels that steps are made of: those that return nothing."""
    return [name for name in SIGNATURES if not gives(name) and name not in OF_TABLES]


def steps_source() -> Path:
    """Returns a C++ file with the entry of each kernel for steps, and run_steps(steps, count)."""
    lines = ["#include <cstdint>", "#include <cstring>", "",
             '#define EXPORT extern "C" __attribute__((visibility("default")))', "",
             "template <class T>", "static inline T argument(int64_t word) {",
             "  T value;", "  memcpy(&value, &word, sizeof value);  // a float and an int are the lower bytes",
             "  return value;", "}", ""]
    for name in recordable():
        types = [_CPP[kind] for kind in kinds(name)]
        arguments = ", ".join(f"argument<{kind}>(words[{k}])" for k, kind in enumerate(types))
        lines += [f'extern "C" void {name}({", ".join(types)});',
                  f"EXPORT void {entry(name)}(const int64_t* words) {{ {name}({arguments}); }}"]
    lines += ["", "EXPORT void run_steps(const int64_t* steps, int64_t count) {",
              f"  for (int64_t k = 0; k < count; k++, steps += {WIDTH})",
              "    argument<void (*)(const int64_t*)>(steps[0])(steps + 1);", "}", ""]
    return written("steps", "\n".join(lines), ".cpp")


def word(kind: str, value: Any) -> int:
    """Returns an argument of a kernel as a word of a step, int64."""
    if kind in "fd":
        bits = bytes(ctypes.c_float(value) if kind == "f" else ctypes.c_double(value))
        return int.from_bytes(bits, "little") if kind == "f" else int.from_bytes(bits, "little", signed=True)
    if kind == "p" and not isinstance(value, int):
        value = 0 if value is None else value.value or 0 if isinstance(value, ctypes.c_void_p) else ctypes.addressof(
            value)
    return ctypes.c_int64(int(value)).value


def load_library(name: str, sources: Sequence[Path]) -> ctypes.CDLL:
    """Builds sources with the first compiler that can, and loads the result.  Raises CompileError."""
    x86 = platform.machine() in ("x86_64", "AMD64")
    flags = FLAGS + (X86_FLAGS if x86 else ())
    if config.cpu_isa == "avx2" and x86:
        flags = tuple("-march=x86-64-v3" if flag == "-march=native" else flag for flag in flags)
    failed = CompileError(message("native", "no C++ compiler was found", "install g++, or name a compiler in CXX"))
    for compiler in compilers():
        try:
            path = build(name, sources, compiler, flags, told="the CPU kernels" if name == "cpu" else "")
        except CompileError as error:
            failed = error
            continue
        return ctypes.CDLL(str(path))
    raise failed
