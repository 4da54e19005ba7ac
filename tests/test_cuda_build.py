"""Every CUDA kernel compiles for every architecture that alpha serves: no warning, and no register spilled.

The kernels that test the emulated driver do too. It needs nvcc and no GPU. What passed is in the cache of compiled
kernels, so that only what changed is compiled again.
"""

from __future__ import annotations

import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from alpha.build import build
from alpha.cuda.runtime import toolchain
from alpha.cuda.runtime.kernel import Kernel
from alpha.errors import CompileError

EMULATOR = Path(__file__).parent / "emulator" / "kernels"
STRICT_NVCC = str(Path(__file__).with_name("strict_nvcc.py"))
HOPPER = ("-gencode", "arch=compute_90a,code=sm_90a")
ARCHITECTURES = ("-gencode", "arch=compute_80,code=[sm_80,sm_86,sm_89]", *HOPPER)


def compile_strictly(unit: toolchain.Unit) -> Path:
    """Compiles a unit for all architectures, those of Hopper's own instructions for that one.  Raises CompileError."""
    only_hopper = re.search(r'"ptx_(sm90|wgmma).cuh"', unit.source.read_text())
    flags = ["-std=c++17", "-O3", "-fatbin", *toolchain.includes(), *(HOPPER if only_hopper else ARCHITECTURES),
             *toolchain.macros(unit.source, dict(unit.defines))]
    compiler = (sys.executable, STRICT_NVCC, toolchain.nvcc())
    return build(f"strict-{unit.source.stem}", [unit.source], compiler, flags, link=None, suffix=".fatbin",
                 include_dirs=toolchain.INCLUDE_DIRS)


def all_units() -> dict[Path, list[toolchain.Unit]]:
    """Returns the units of every source, those of alpha's declarations and those of the emulator's tests."""
    units = [*toolchain.units(), *(toolchain.Unit(path, ()) for path in EMULATOR.glob("*.cu")),
             toolchain.Unit(EMULATOR / "tensor_core.cu", (("HOPPER", 1),))]
    return {source: [unit for unit in units if unit.source == source] for source in sorted({u.source for u in units})}


UNITS = all_units()


@pytest.fixture(autouse=True)
def nvcc() -> None:
    try:
        toolchain.nvcc()
    except CompileError as error:
        pytest.skip(str(error).partition("\n")[0])


@pytest.mark.parametrize("source", UNITS, ids=lambda path: path.name)
def test_compiles_cleanly(source: Path) -> None:
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        assert all(path.exists() for path in pool.map(compile_strictly, UNITS[source]))


SPILLS = """extern "C" __global__ void __launch_bounds__(1024, 2) spills(volatile float* x) {
  float a[64];
  for (int i = 0; i < 64; i++) a[i] = x[i];
  for (int i = 0; i < 64; i++) x[64 + i] = a[i];
}"""


@pytest.mark.parametrize("code, complaint", [
    (SPILLS, "bytes spill stores"),
    ('extern "C" __global__ void unused(float* x) { int k; }', "warning .*declared but never referenced"),
    ('extern "C" __global__ void broken(float* x) { y = 1; }', 'identifier "y" is undefined'),
])
def test_bad_code_is_refused(code: str, complaint: str, tmp_path: Path) -> None:
    source = tmp_path / "bad.cu"
    source.write_text(code)
    with pytest.raises(CompileError, match=complaint):
        compile_strictly(toolchain.Unit(source, ()))


TAKES = """#include "ptx.cuh"
struct Both { const float* x; int n; };
extern "C" __global__ void takes(float* __restrict__ y, Both both, long long k, float f) { y[k] = both.x[both.n] * f; }
ALPHA_KERNEL(takes)
extern "C" __global__ void not_launched(unsigned) {}
ALPHA_KERNEL(not_launched)
"""


@pytest.mark.parametrize("args", ["ptr y, i64 x, i32 n, i64 k, f32 f", "ptr y, ptr x, i64 n, i64 k, f32 f",
                                  "ptr y, ptr x, i32 n, u64 k, f32 f", "ptr y, ptr x, i32 n, i64 k, i32 f",
                                  "ptr y, ptr x, i32 n, i64 k", "ptr y, ptr x, i32 n, i64 k, f32 f, i32 more", ""])
def test_a_wrong_type_fails_when_the_kernel_is_built(args, tmp_path, monkeypatch):
    monkeypatch.setattr(toolchain, "_declared", {})
    source = tmp_path / "takes.cu"
    source.write_text(TAKES)
    declared = Kernel(source, "takes", "ptr y, ptr x, i32 n, i64 k, f32 f")
    assert compile_strictly(declared.unit).exists()
    toolchain._declared.clear()
    with pytest.raises(CompileError, match="the host declares other arguments for the kernel takes"):
        compile_strictly(Kernel(source, "takes", args).unit)


def test_what_is_launched_is_checked() -> None:
    """Files with kernels have ALPHA_KERNEL, which compares their arguments with those that the host declares."""
    for path in {path for path in toolchain.HOME.rglob("*.cu*") if 'extern "C" __global__' in path.read_text()}:
        assert "ALPHA_KERNEL(" in path.read_text(), path


def test_every_kernel_file_is_declared() -> None:
    """A file that no declaration names would be compiled by nobody."""
    assert {unit.source for unit in toolchain.units()} == set(toolchain.HOME.rglob("*.cu"))
    assert len(list(toolchain.HOME.rglob("*.cu"))) == len(toolchain.SOURCES), "two files have one name"
