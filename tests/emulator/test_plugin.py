"""The plugin says what is missing, takes nvcc's place, and is out of reach without being asked for."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from alpha.errors import CompileError
from emulator import toolchain
from tests.emulator import harness

pytestmark = pytest.mark.emulator
ROOT = Path(__file__).resolve().parent.parent.parent


def run_pytest(*arguments: str, **environment: str) -> str:
    """Returns what pytest prints."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    done = subprocess.run(command, cwd=ROOT, env={**env, **environment}, capture_output=True, text=True)
    return done.stdout + done.stderr


def test_what_is_missing(tmp_path: Path) -> None:
    told = run_pytest("-p", "emulator.plugin", "tests/emulator", CUDA_HOME=str(tmp_path))
    assert f"emulator: there is no cuda_fp16.h in {tmp_path}/include\nhelp: install the CUDA toolkit's headers" in told
    told = run_pytest("-p", "emulator.plugin", "tests/emulator", PATH=str(tmp_path))
    assert "emulator: there is no g++ on the PATH\nhelp: install it" in told
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['pycuda'] = None\n")
    told = run_pytest("-p", "emulator.plugin", "tests/emulator", PYTHONPATH=str(tmp_path))
    assert "emulator: PyCUDA is not installed\nhelp: python -m alpha.testing.emulator.install_pycuda builds it" in told


def test_nothing_of_it_is_collected_without_the_plugin() -> None:
    assert "no tests collected" in run_pytest("tests/emulator", "--co")


def test_nothing_in_alpha_refers_to_it() -> None:
    for path in (ROOT / "alpha").rglob("*.py"):
        assert not re.search(r"^\s*(import|from) (tests\.)?emulator\b", path.read_text(), re.MULTILINE), path


def test_it_takes_the_place_of_nvcc() -> None:
    from alpha.cuda.runtime import memory
    from alpha.cuda.runtime.toolchain import current

    assert isinstance(current, toolchain.EmulatedToolchain)
    block = harness.cuda.mem_alloc(100)
    memory.on_allocate(int(block), 60)
    with pytest.raises(harness.cuda.Error, match="copy of 61 bytes runs outside its device block"):
        harness.cuda.memcpy_dtoh(bytearray(61), block)
    with pytest.raises(AssertionError, match="longer than the block"):
        memory.on_allocate(int(block), 101)


def test_programs_of_their_own(tmp_path: Path) -> None:
    code = "import sys; from alpha.cuda.runtime import toolchain; print(toolchain.current.name, __name__, sys.argv)"
    program = tmp_path / "program.py"
    program.write_text(code)
    for arguments in (["-c", code, "7"], [str(program), "7"]):
        command = [sys.executable, "-m", "emulator", *arguments]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        first = "-c" if arguments[0] == "-c" else str(program)
        assert done.stdout == f"emulated __main__ ['{first}', '7']\n" and done.stderr == ""


def test_a_kernel_that_does_not_compile(tmp_path: Path) -> None:
    source = tmp_path / "bad.cu"
    source.write_text('#include "ptx.cuh"\nextern "C" __global__ void bad(float* x) { x[0] = y; }\nALPHA_KERNEL(bad)\n')
    with pytest.raises(CompileError, match=r"bad.cu:2:.*y.* was not declared"):
        toolchain.EmulatedToolchain().compile(source, {}, "sm_90a")


def test_defines_and_headers_make_another_module(tmp_path: Path) -> None:
    source, header = tmp_path / "one.cu", tmp_path / "value.cuh"
    source.write_text('#include "value.cuh"\n#include "ptx.cuh"\n'
                      'extern "C" __global__ void one(int* x) { x[0] = VALUE + MORE; }\nALPHA_KERNEL(one)\n')
    found = []
    for value, more in ((1, 10), (2, 10), (2, 20)):
        header.write_text(f"#define VALUE {value}\n")
        path = toolchain.EmulatedToolchain().compile(source, {"MORE": more}, "sm_90a")
        x = harness.empty(1, "int32")
        harness.cuda.module_from_file(str(path)).get_function("one")(x.gpudata, block=(1, 1, 1))
        found.append(int(x.get()[0]))
    assert found == [11, 12, 22]
