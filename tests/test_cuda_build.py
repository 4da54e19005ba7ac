"""Every CUDA kernel compiles for every architecture that alpha serves: no warning, and no register spilled.

    make test-kernels                          # all of them: marker `kernels`, which pytest leaves out by default
    make test-kernels ARGS='-m "kernels and not rest"'     # each for the first architecture that it serves, float16 as
                                                           # bfloat16

The kernels that test the emulated driver do too. It needs nvcc and no GPU. What passed is in the cache of compiled
kernels, so that only what changed is compiled again.
"""

from __future__ import annotations

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
HOPPER = ("-gencode", "arch=compute_90a,code=sm_90a")
FIRST = ("-gencode", "arch=compute_80,code=sm_80")
REST = ("-gencode", "arch=compute_80,code=[sm_86,sm_89]", *HOPPER)


def compile_strictly(unit: toolchain.Unit, architectures: tuple[str, ...]) -> Path:
    """Compiles a unit for some architectures.  Raises CompileError, also for warnings and spilled registers."""
    flags = ["-std=c++17", "-O3", "-fatbin", *toolchain.includes(), *architectures,
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


def compilations() -> list:
    """Returns (unit, architectures) of alpha's declarations and of the emulator's tests.

    What has Hopper's own instructions is compiled for that alone, everything else for `first` and for the `rest`. To
    the rest belong kernels of float16 that are those of bfloat16 in all but the type.
    """
    units = [*toolchain.units(), *(toolchain.Unit(path, ()) for path in EMULATOR.glob("*.cu")),
             toolchain.Unit(EMULATOR / "tensor_core.cu", (("HOPPER", 1),))]
    found = []
    for unit in sorted(units, key=str):
        only_hopper = included(unit.source) & {"ptx_sm90.cuh", "ptx_wgmma.cuh", "ptx_more.cuh"}
        name = "-".join([unit.source.stem, *(f"{key}={value}" for key, value in unit.defines)])
        if in_bfloat16(unit) in set(units) - {unit}:
            parts = {"rest": HOPPER if only_hopper else (*FIRST, *REST)}
        else:
            parts = {"sm_90a": HOPPER} if only_hopper else {"sm_80": FIRST, "rest": REST}
        found += [pytest.param(unit, flags, id=f"{part}-{name}",
                               marks=[pytest.mark.kernels, *([pytest.mark.rest] if part == "rest" else [])])
                  for part, flags in parts.items()]
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
    parts = {unit.source.stem: (architectures == HOPPER) for unit, architectures in
             (param.values for param in compilations() if not param.id.startswith("rest"))}
    assert {"conv_wgmma", "sk_dilated_wgmma", "conv_coconv"} <= {n for n, hopper in parts.items() if hopper}
    assert not any(parts[name] for name in ("pool", "conv_slab", "sk_dilated", "softmax"))


def test_every_unit_is_compiled_for_every_architecture_that_it_serves() -> None:
    served: dict[toolchain.Unit, set[str]] = {}
    for unit, architectures in (param.values for param in compilations()):
        served.setdefault(unit, set()).update(re.findall(r"sm_\d+a?", " ".join(architectures)))
    assert served.keys() >= set(toolchain.units())
    assert all(found in ({"sm_90a"}, {"sm_80", "sm_86", "sm_89", "sm_90a"}) for found in served.values())
    first = [param.values[0] for param in compilations() if not param.id.startswith("rest")]
    assert all(unit in first or in_bfloat16(unit) in first for unit in toolchain.units())


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
        compile_strictly(toolchain.Unit(source, ()), FIRST)


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
    assert compile_strictly(declared.unit, FIRST).exists()
    toolchain._declared.clear()
    with pytest.raises(CompileError, match="the host declares other arguments for the kernel takes"):
        compile_strictly(Kernel(source, "takes", args).unit, FIRST)


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
    alone = compile_strictly(Kernel(source, "brief", "ptr x").unit, FIRST).stat().st_size
    assert compile_strictly(Kernel(source, "lengthy", "ptr x").unit, FIRST).stat().st_size > 2 * alone


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
