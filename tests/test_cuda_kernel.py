"""Kernels without a GPU: declarations, compiling with a compiler that only pretends, and what is said when it fails."""
# ruff: noqa: F811  fixtures are named by their import and by who takes them

from __future__ import annotations

import io
import os
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from alpha.core.config import config
from alpha.cuda.runtime import backlog
from alpha.cuda.runtime import toolchain as chain
from alpha.cuda.runtime.context import ON_HOPPER, context
from alpha.cuda.runtime.kernel import Kernel, per_dtype
from alpha.cuda.runtime.memory import Array
from alpha.cuda.runtime.toolchain import NvccToolchain, compile_all, nvcc, units
from alpha.errors import AlphaError, CompileError, DeviceError
from tests.fake_cuda import DriverError, declared, toolchain  # noqa: F401  fixtures
from tests.fake_nvcc import install

pytestmark = pytest.mark.same_without_kernels("it calls no compiled kernel")
ROOT = Path(__file__).resolve().parent.parent


def launches(k: Kernel) -> list[tuple]:
    return k.function.launches


def test_arguments_are_laid_out_as_the_device_wants_them(toolchain):
    k = Kernel("a.cu", "relu", "ptr x, i32 n, block[16] tiles, f32 slope, i64 m, ptr none", threads=(32, 4), shared=64)
    x = Array(None, 0x7000, (2,), "float32", 2, 8)
    k((3, 2), x, -5, bytes(range(16)), 0.5, 1 << 40, None)
    (grid, block, buffer, shared, stream), = launches(k)
    assert (grid, block, shared, stream) == ((3, 2), (32, 4, 1), 64, "stream") and k.threads == 128
    expected = bytearray(56)
    struct.pack_into("P", expected, 0, 0x7000)
    struct.pack_into("i", expected, 8, -5)
    expected[16:32] = bytes(range(16))       # 8-byte aligned
    struct.pack_into("f", expected, 32, 0.5)
    struct.pack_into("q", expected, 40, 1 << 40)
    assert buffer == bytes(expected)


def test_an_empty_grid_launches_nothing_and_a_number_is_a_row(toolchain):
    k = Kernel("a.cu", "relu", "i32 n")
    k(0, 1)
    k((4, 0), 1)
    assert k.function is None and toolchain.asked == []
    k(7, 1)
    assert launches(k)[0][0] == (7, 1, 1)


@pytest.mark.parametrize("args, wrong", [("ptr x, double y", "'double y'"), ("ptr", "'ptr'"), ("block[12] b", "'block"),
                                         ("ptr x y", "'ptr x y'")])
def test_a_declaration_that_is_not_understood_is_refused(declared, args, wrong):
    with pytest.raises(AlphaError, match=rf"kernel relu: the argument {wrong}.* is not understood\nhelp: write"):
        Kernel("a.cu", "relu", args)


@pytest.mark.parametrize("values", [(), (1,), (1, 2, 3), (None, 1.5), ("x", 1), (1, None)])
def test_arguments_that_do_not_fit_are_refused(toolchain, values):
    k = Kernel("a.cu", "relu", "ptr x, i32 n")
    with pytest.raises(AlphaError, match=r"kernel relu: the arguments do not fit .*declared: ptr x, i32 n"):
        k(1, *values)


def test_one_module_serves_a_source_with_the_same_defines(declared):
    RELU = per_dtype("a.cu", "relu", "ptr x")
    Kernel("a.cu", "other", "ptr x", defines={"BM": 128, "BN": 64})
    Kernel("a.cu", "third", "ptr x", defines={"BN": 64, "BM": 128})
    assert [(u.source.name, u.defines) for u in units()] == [("a.cu", ()), ("a.cu", (("BM", 128), ("BN", 64)))]
    assert sorted(RELU) == ["bfloat16", "float16", "float32"] and RELU["float16"].entry == "relu_float16"
    assert units()[0].source == Path("a.cu")
    assert Kernel("pool.cu", "max", "ptr x").unit.source == chain.HOME / "ops" / "pool" / "pool.cu"
    assert Kernel("/abs/b.cu", "relu", "ptr x").unit.source == Path("/abs/b.cu")


def test_a_long_file_is_a_module_per_element_type(declared):
    kernels = [*per_dtype("reduce.cu", "sum_rows", "ptr x").values(), Kernel("reduce.cu", "sum_rows_int64", "ptr x"),
               Kernel("reduce.cu", "max_rows_uint8", "ptr x"), Kernel("pool.cu", "gather_int32_float32", "ptr x")]
    parts = [dict(k.unit.defines).get("ALPHA_PART", "") for k in kernels]
    assert parts == ["", "bfloat16", "16", "int", "int", ""] and len(units()) == 5
    losses = [k.unit.defines for k in per_dtype("loss.cu", "forward", "ptr x").values()]
    assert losses == [(), (("ALPHA_PART", "16"),), (("ALPHA_PART", "16"),)], "two parts: the 16-bit types in one"
    assert not Kernel("cast.cu", "cast_float32_bfloat16", "ptr x").unit.defines
    assert chain.macros(*kernels[0].unit[:1], {}) == ["-DALPHA_DECLARED=1", "-DALPHA_CODES_sum_rows_float32=P"]


def test_an_entry_that_is_declared_late_has_its_module_compiled_again(toolchain):
    for entry, asked in (("relu", 1), ("relu", 1), ("big", 2)):
        Kernel("pool.cu", entry, "i32 n")(1, 1)
        backlog.run()
        assert len(toolchain.asked) == asked
    assert toolchain.asked == ["pool.cu", "pool.cu"], "the first module has no body for it"


def test_a_kernel_that_fails_to_compile_leaves_the_others(toolchain):
    good, bad = Kernel("a.cu", "relu", "i32 n"), Kernel("bad.cu", "relu", "i32 n")
    for _ in range(2):
        with pytest.raises(CompileError, match=r"compiling bad\.cu"):
            bad(1, 1)
    good(1, 1)
    assert len(launches(good)) == 1
    assert toolchain.asked.count("bad.cu") == 1, "a failure is kept, not repeated"
    late = Kernel("late.cu", "relu", "i32 n")     # declared after the first launch
    late(1, 1)
    assert len(launches(late)) == 1


def test_what_the_driver_refuses_is_explained(toolchain):
    with pytest.raises(CompileError, match=r"the driver does not load .*foreign\.cu: no kernel image.*\nhelp: update"):
        Kernel("foreign.cu", "relu", "i32 n")(1, 1)
    with pytest.raises(CompileError, match=r"kernel absent: a\.cu does not serve it: named symbol .*\nhelp: .*extern"):
        Kernel("a.cu", "absent", "i32 n")(1, 1)
    big = Kernel("a.cu", "big", "i32 n", shared=100_000)
    big(1, 1)
    assert big.function.attributes == [("max_shared", 130_048)], "as much as a kernel of the same entry may want"
    with pytest.raises(CompileError, match=r"invalid argument \(shared: 220000; device_has: 131072\)"):
        Kernel("a.cu", "big", "i32 n", shared=220_000)(1, 1)


def test_a_launch_that_fails_names_the_kernel(toolchain):
    k = Kernel("a.cu", "relu", "i32 n")
    k(1, 1)
    k.function.error = DriverError("an illegal memory access was encountered")
    with pytest.raises(DeviceError, match=r"relu of a\.cu failed: an illegal .*grid: \(5, 1, 1\).*\n.*ALPHA_SYNC=1"):
        k(5, 1)
    event = SimpleNamespace()
    event.record = lambda stream: event
    context.driver.Event = lambda: event
    with config(sync=True), pytest.raises(DeviceError, match=r"\nhelp: compute-sanitizer shows the line"):
        k(5, 1)


def test_each_process_has_an_order_of_its_own(toolchain, monkeypatch):
    for name in "abcdefgh":
        Kernel(f"{name}.cu", "relu", "i32 n")
    monkeypatch.setattr(chain, "cores", lambda: 1)
    orders = []
    for pid in (1, 2):
        monkeypatch.setattr(os, "getpid", lambda pid=pid: pid)
        toolchain.asked.clear()
        assert compile_all("sm_90a") == {}
        orders.append(list(toolchain.asked))
    assert orders[0] != orders[1] and sorted(orders[0]) == sorted(orders[1]) == [f"{name}.cu" for name in "abcdefgh"]


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_shown_on_a_terminal_only(toolchain, monkeypatch, terminal):
    screen = io.StringIO()
    screen.isatty = lambda: terminal
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(chain, "PROGRESS_AFTER", 0)
    Kernel("a.cu", "relu", "i32 n")
    compile_all("sm_90a")
    assert ("compiling CUDA kernels, once" in screen.getvalue()) is terminal
    assert terminal or screen.getvalue() == ""


# ---- nvcc ------------------------------------------------------------------------------------------------------------

@pytest.fixture
def fake_nvcc(tmp_path, monkeypatch):
    with config(cache_dir=str(tmp_path / "cache")):
        yield install(tmp_path, monkeypatch, seconds=0.2)


def write(path: Path, text: str = "") -> Path:
    path.write_text(text)
    return path


def test_nvcc_comes_from_the_toolkit_that_cuda_home_names(fake_nvcc):
    assert nvcc() == str(fake_nvcc)


def test_a_missing_nvcc_says_where_it_was_looked_for(monkeypatch):
    monkeypatch.setattr(chain.shutil, "which", lambda name: None)
    monkeypatch.setenv("CUDA_HOME", "/absent")
    with pytest.raises(CompileError, match=r"cuda: nvcc is not found.*CUDA_HOME: \['/absent'.*PATH: .*\n"
                                           "help: install the CUDA toolkit, and set CUDA_HOME"):
        NvccToolchain().compile(Path("a.cu"), {}, "sm_90a")


def test_a_cubin_is_kept_and_a_damaged_one_is_made_again(fake_nvcc, tmp_path):
    compiler, source = NvccToolchain(), write(tmp_path / "a.cu")
    assert not compiler.find(source, {}, "sm_90a")
    path = compiler.compile(source, {}, "sm_90a")
    assert path.name.startswith("a-sm_90a-") and path.suffix == ".cubin" and compiler.find(source, {}, "sm_90a")
    others = {compiler.compile(source, {"BM": 128}, "sm_90a"), compiler.compile(source, {}, "sm_80")}
    assert len(others | {path}) == 3 and compiler.compile(source, {}, "sm_90a") == path
    assert (tmp_path / "compiled").read_text().count("a.cu") == 3
    path.write_text("damaged")
    assert not compiler.find(source, {}, "sm_90a")
    assert compiler.compile(source, {}, "sm_90a").read_text().startswith("cubin of ")


def test_a_header_among_the_kernels_is_part_of_the_key(fake_nvcc, tmp_path, monkeypatch):
    folder = tmp_path / "kernels"
    folder.mkdir()
    monkeypatch.setattr(chain, "INCLUDE_DIRS", (tmp_path, folder))
    header, source = write(folder / "storage.cuh", "one"), write(tmp_path / "mine.cu", '#include "storage.cuh"\n')
    first = NvccToolchain().compile(source, {}, "sm_90a")
    write(header, "two")
    assert NvccToolchain().compile(source, {}, "sm_90a") != first


def test_nvcc_that_fails_shows_its_first_lines_and_the_command(fake_nvcc, tmp_path):
    source = write(tmp_path / "bad.cu", "#error no such thing\n" * 100)
    with pytest.raises(CompileError) as caught:
        NvccToolchain().compile(source, {"BM": 64}, "sm_90a")
    text = str(caught.value)
    assert text.startswith(f"build: {fake_nvcc} failed with status 2, compiling bad.cu\n1:#error no such thing")
    assert text.count("#error") == 20 and "-DBM=64" in text and "arch=compute_90a,code=sm_90a" in text
    assert text.endswith("help: run the command by hand; CUDA_HOME names the CUDA toolkit")


def test_processes_that_start_on_a_cold_cache_share_the_work(fake_nvcc, tmp_path):
    sources = [write(tmp_path / f"k{n}.cu") for n in range(8)]
    code = ("import os; os.sched_getaffinity = lambda pid: {0, 1}\n"
            "from alpha.cuda.runtime import kernel, toolchain; toolchain._declared.clear()\n"
            f"for n in range(8): kernel.Kernel(f'{tmp_path}/k{{n}}.cu', 'k', 'ptr x')\n"
            "assert toolchain.compile_all('sm_90a') == {}\n"
            "nvcc = toolchain.NvccToolchain()\n"
            "print(sum(nvcc.find(u.source, {}, 'sm_90a') is not None for u in toolchain.units()))")
    env = {**os.environ, "ALPHA_CACHE_DIR": str(tmp_path / "cold")}
    workers = [subprocess.Popen([sys.executable, "-c", code], env=env, cwd=ROOT, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True) for _ in range(4)]
    assert [worker.communicate() for worker in workers] == [("8\n", "")] * 4
    assert sorted((tmp_path / "compiled").read_text().split()) == sorted(map(str, sources)), "each is compiled once"


def test_a_gpu_newer_than_nvcc_runs_from_ptx_and_one_that_nvcc_dropped_is_refused(fake_nvcc, tmp_path):
    there, target = nvcc(), chain.target_of  # an nvcc that says sm_75 to sm_120
    assert target("sm_90a", there) == (("-cubin", "-gencode=arch=compute_90a,code=sm_90a"), ".cubin")
    assert target("sm_130", there) == (("-ptx", "-arch=compute_120"), ".ptx")
    assert target("sm_103", there) == (("-ptx", "-arch=compute_100"), ".ptx")
    with pytest.raises(DeviceError, match=r"for sm_75 and newer GPUs, this one is sm_70\nhelp: install a CUDA"):
        target("sm_70", there)
    source = tmp_path / "mine.cu"
    source.write_text("")
    assert NvccToolchain().compile(source, {}, "sm_130").suffix == ".ptx"


def test_a_unit_is_compiled_for_what_can_run_it(declared):
    always, hopper, old = (Kernel("pool.cu", "x", "", defines={"K": k}, **how) for k, how in enumerate((
        {}, ON_HOPPER, {"before": (8, 0)})))
    found = {arch: [k for k, kernel in enumerate((always, hopper, old)) if kernel.unit in units(arch)]
             for arch in ("sm_75", "sm_80", "sm_90a", "sm_120")}
    assert found == {"sm_75": [0, 2], "sm_80": [0], "sm_90a": [0, 1], "sm_120": [0]}


def test_a_kernel_that_the_device_cannot_run_is_refused_before_it_is_compiled(toolchain, monkeypatch):
    monkeypatch.setattr(context, "capability", (7, 5))
    with pytest.raises(DeviceError, match=r"x: pool.cu needs compute capability 9.0, the device has 7.5\nhelp: "):
        Kernel("pool.cu", "x", "", **ON_HOPPER)(1)
