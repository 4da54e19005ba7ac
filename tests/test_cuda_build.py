"""Every CUDA kernel compiles for every architecture that alpha serves: no warning, and no register spilled.

    make test-kernels                          # all of them: marker `kernels`, which pytest leaves out by default
    make test-kernels ARCHES="sm_75 sm_120"    # for these architectures
    make test-kernels ARGS='-m "kernels and not rest"'     # each once, for sm_75 and sm_80 by turns; of two that are
                                                           # alike but for float16 and bfloat16, one

The kernels that test the emulated driver do too. It needs nvcc and no GPU. What passed is in the cache of compiled
kernels, so that only what changed is compiled again.
"""

from __future__ import annotations

import os
import re
import sys
from functools import cache
from pathlib import Path

import pytest

from alpha.build import build
from alpha.cuda.runtime import toolchain
from alpha.cuda.runtime.kernel import Kernel
from alpha.errors import CompileError

pytestmark = pytest.mark.same_without_kernels("it calls no compiled kernel")
EMULATOR = Path(__file__).parent / "emulator" / "kernels"
STRICT_NVCC = str(Path(__file__).with_name("strict_nvcc.py"))
ARCHES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100", "sm_120")  # those of the same code are compiled once
ASKED = tuple(os.environ.get("ARCHES", "").split())
HOPPER = ("sm_90a",)


def compile_strictly(unit: toolchain.Unit, architectures: tuple[str, ...]) -> Path:
    """Compiles a unit for some architectures.  Raises CompileError, also for warnings and spilled registers."""
    numbers = [arch.removeprefix("sm_") for arch in architectures]
    flags = ["-std=c++17", "-O3", "-fatbin", *toolchain.includes(),
             *[f"-gencode=arch=compute_{n},code=sm_{n}" for n in numbers],
             *toolchain.macros(unit.source, dict(unit.defines))]
    compiler = (sys.executable, STRICT_NVCC, toolchain.nvcc())
    return build(f"strict-{unit.source.stem}", [unit.source], compiler, flags, link=None, suffix=".fatbin",
                 include_dirs=toolchain.INCLUDE_DIRS)


@cache
def included(source: Path) -> set[str]:
    """Returns the names of the headers that a source includes, and of those that they include."""
    found = set()
    for name in re.findall(r'^#include "([^"]+)"', source.read_text(), re.MULTILINE):
        paths = (folder / name for folder in (source.parent, *toolchain.INCLUDE_DIRS))
        header = next((path for path in paths if path.exists()), None)
        if header is not None:
            found |= {header.name, *included(header)}
    return found


def in_bfloat16(unit: toolchain.Unit) -> toolchain.Unit:
    """Returns the unit with bfloat16 in the place of float16."""
    return unit._replace(defines=tuple((key, "bf16" if value == "f16" else value) for key, value in unit.defines))


def served_by(unit: toolchain.Unit) -> list[str]:
    """Returns the architectures that a unit is compiled for; the emulator's tests say by their headers which."""
    if unit.source.parent != EMULATOR:
        return [arch for arch in ARCHES if toolchain.serves(unit, arch)]
    only_hopper = included(unit.source) & {"ptx_sm90.cuh", "ptx_wgmma.cuh", "ptx_more.cuh"}
    return list(HOPPER) if only_hopper else list(ARCHES[1:])


def first_of(pair: list[toolchain.Unit], turn: int) -> tuple[toolchain.Unit, str]:
    """Returns which of two units that are alike but for float16, or of one, every change compiles, and for what."""
    for arch in (*(("sm_75", "sm_80") if turn % 2 == 0 else ("sm_80", "sm_75")), *HOPPER):
        for unit in pair:  # bfloat16 first
            if arch in served_by(unit):
                return unit, arch
    raise AssertionError(f"no architecture runs {pair}")


def compilations() -> list:
    """Returns (unit, architectures) of alpha's declarations and of the emulator's tests.

    Each is compiled for one architecture at every change (`first_of`), for all others that can run it in the rest.
    """
    units = [*toolchain.units(), *(toolchain.Unit(path, ()) for path in EMULATOR.glob("*.cu") if path.stem != "bounds"),
             toolchain.Unit(EMULATOR / "tensor_core.cu", (("HOPPER", 1),))]
    pairs: dict[toolchain.Unit, list[toolchain.Unit]] = {}
    for unit in sorted(units, key=str):
        pairs.setdefault(in_bfloat16(unit), []).append(unit)
    found = []
    for turn, pair in enumerate(pairs.values()):
        first = first_of(pair, turn)
        for unit in pair:
            name = "-".join([unit.source.stem, *(f"{key}={value}" for key, value in unit.defines)])
            parts = [("rest", [arch for arch in served_by(unit) if (unit, arch) != first])]
            if unit == first[0]:
                parts.insert(0, (first[1], [first[1]]))
            if ASKED:
                parts = [(arch, [arch]) for arch in ASKED if arch in served_by(unit) or arch not in ARCHES]
            found += [pytest.param(unit, tuple(arches), id=f"{part}-{name}",
                                   marks=[pytest.mark.kernels, *([pytest.mark.rest] if part == "rest" else [])])
                      for part, arches in parts if arches]
    return found


@pytest.fixture(autouse=True)
def nvcc() -> None:
    try:
        toolchain.nvcc()
    except CompileError as error:
        pytest.skip(str(error).partition("\n")[0])


@pytest.mark.parametrize("unit, architectures", compilations())
def test_compiles_cleanly(unit: toolchain.Unit, architectures: tuple[str, ...]) -> None:
    assert compile_strictly(unit, architectures).exists()


def test_what_only_hopper_has_is_compiled_for_hopper() -> None:
    """Elsewhere its bodies are empty, and nothing would be checked."""
    served = {unit.source.stem: served_by(unit) for unit in toolchain.units()}
    only = {name for name, arches in served.items() if arches == list(HOPPER)}
    assert only == {path.stem for path in toolchain.SOURCES.values()
                    if included(path) & {"ptx_sm90.cuh", "ptx_wgmma.cuh"}} >= {"conv_wgmma", "conv_coconv"}
    assert all(set(ARCHES) <= set(served[name]) for name in ("pool", "softmax"))


@pytest.mark.skipif(bool(ASKED), reason="some architectures were asked for")
def test_every_unit_is_compiled_for_every_architecture_that_it_serves() -> None:
    served: dict[toolchain.Unit, set[str]] = {}
    for unit, architectures in (param.values for param in compilations()):
        served.setdefault(unit, set()).update(architectures)
    assert served.keys() >= set(toolchain.units())
    assert all(served[unit] == set(served_by(unit)) for unit in toolchain.units())
    first = [param.values for param in compilations() if not param.id.startswith("rest")]
    units = {unit for unit, _ in first}
    assert all(unit in units or in_bfloat16(unit) in map(in_bfloat16, units) for unit in toolchain.units())
    counts = [sum(arches == (arch,) for _, arches in first) for arch in ("sm_75", "sm_80")]
    assert min(counts) > 0.4 * max(counts)


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
        compile_strictly(toolchain.Unit(source, ()), ("sm_80",))


TAKES = """#include "ptx.cuh"
struct Both { const float* x; int n; };
extern "C" __global__ void takes(float* __restrict__ y, Both both, long long k, float f) { y[k] = both.x[both.n] * f; }
ALPHA_KERNEL(takes)
extern "C" __global__ void not_launched(unsigned) {}
ALPHA_KERNEL(not_launched)
"""


@pytest.mark.parametrize("args", ["i64 y, ptr x, i32 n, i64 k, f32 f", "ptr y, ptr x, i64 k, f32 f",
                                  "ptr y, ptr x, i32 n, u64 k, f32 f", "ptr y, ptr x, i32 n, i64 k, i32 f",
                                  "ptr y, ptr x, i32 n, i64 k", "ptr y, ptr x, i32 n, i64 k, f32 f, i32 more", ""])
def test_a_wrong_type_fails_when_the_kernel_is_built(args, tmp_path, monkeypatch):
    monkeypatch.setattr(toolchain, "_declared", {})
    source = tmp_path / "takes.cu"
    source.write_text(TAKES)
    declared = Kernel(source, "takes", "ptr y, ptr x, i32 n, i64 k, f32 f")
    assert compile_strictly(declared.unit, ("sm_80",)).exists()
    toolchain._declared.clear()
    with pytest.raises(CompileError, match="the host declares other arguments for the kernel takes"):
        compile_strictly(Kernel(source, "takes", args).unit, ("sm_80",))


TWO = """#include "ptx.cuh"
__device__ __forceinline__ void long_work(float* x) {
#pragma unroll
  for (int i = 0; i < 20; i++) x[i] = sinf(x[i + 1]);
}
ALPHA_ENTRY(brief, (32), (float* x), *x = 1)
ALPHA_ENTRY(lengthy, (32), (float* x), long_work(x))
"""


def test_what_is_not_declared_has_no_body(tmp_path, monkeypatch):
    monkeypatch.setattr(toolchain, "_declared", {})
    source = tmp_path / "two.cu"
    source.write_text(TWO)
    alone = compile_strictly(Kernel(source, "brief", "ptr x").unit, ("sm_80",)).stat().st_size
    assert compile_strictly(Kernel(source, "lengthy", "ptr x").unit, ("sm_80",)).stat().st_size > 2 * alone


def test_what_is_launched_is_checked() -> None:
    """Files with kernels have ALPHA_KERNEL, which compares their arguments with those that the host declares."""
    for path in {path for path in toolchain.HOME.rglob("*.cu*") if 'extern "C" __global__' in path.read_text()}:
        assert "ALPHA_KERNEL(" in path.read_text(), path


def test_every_kernel_file_is_declared() -> None:
    """A file that no declaration names would be compiled by nobody; elementwise ops, which have none, are written."""
    sources = {unit.source for unit in toolchain.units()}
    assert sources - toolchain.generated == set(toolchain.HOME.rglob("*.cu"))
    assert any(path.name.startswith("elementwise-") for path in sources & toolchain.generated)
    assert not any(map(toolchain.is_users, toolchain.units())), "it would be in no pack"
    assert len(list(toolchain.HOME.rglob("*.cu"))) == len(toolchain.SOURCES), "two files have one name"
