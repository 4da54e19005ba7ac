"""`python -m alpha`: says what is there, and what is missing with the fix."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

import alpha
from alpha import doctor
from alpha.__main__ import main
from alpha.build import compilers
from alpha.core.config import config
from alpha.cuda.runtime import doctor as cuda_doctor
from alpha.cuda.runtime import toolchain
from alpha.cuda.runtime.context import INSTALL, Context, check_capability
from alpha.cuda.runtime.kernel import Kernel
from alpha.errors import DeviceError, message
from tests.fake_nvcc import install

pytestmark = pytest.mark.same_without_kernels("it calls no compiled kernel")


def no_pycuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the CUDA device one that is not there, whatever this machine has."""
    def get_backend(device: str) -> None:
        if device == "cuda":
            raise DeviceError(message("cuda", "PyCUDA is not installed", INSTALL))

    monkeypatch.setattr(doctor, "get_backend", get_backend)
    monkeypatch.setattr(cuda_doctor, "get_backend", get_backend)
    monkeypatch.setattr(cuda_doctor.metadata, "version", lambda package: "1.2")
    monkeypatch.setattr(cuda_doctor, "context", SimpleNamespace(arch=""))


def test_a_gpu_that_is_too_old_is_refused_before_anything_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver is never asked for a context, let alone for a module."""
    device = SimpleNamespace(name=lambda: "Tesla V100", compute_capability=lambda: (7, 0))
    kind = type("Device", (), {"count": staticmethod(lambda: 1), "__new__": lambda cls, index: device})
    driver = SimpleNamespace(init=lambda: None, Error=OSError, device_attribute=None, Device=kind)
    monkeypatch.setattr(sys.modules[Context.__module__], "import_driver", lambda: driver)
    fresh = Context()
    with pytest.raises(DeviceError, match=r"^cuda: Tesla V100 has compute capability 7\.0, the kernels need 7\.5\n"
                                          r"help: use a GPU of the Turing generation \(2018\) or later, or device="):
        fresh.start(0)
    assert fresh.index is None and not fresh.arch and not fresh.open
    check_capability("Tesla T4", (7, 5))
    check_capability("B200", (10, 0))


@pytest.fixture
def fake_nvcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A toolkit that pretends to compile, and two kernels declared."""
    monkeypatch.setattr(toolchain, "_declared", {})
    for name in ("one", "two"):
        (tmp_path / f"{name}.cu").write_text("")
        Kernel(tmp_path / f"{name}.cu", name, "ptr x")
    with config(cache_dir=str(tmp_path / "cache")):
        yield install(tmp_path, monkeypatch)


def test_it_names_versions_devices_cache_and_settings(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with config(cache_dir=str(tmp_path), cpu_kernels=False, debug=1):
        assert doctor.main([]) == 0
    out = capsys.readouterr().out
    for part in (f"alpha {alpha.__version__}, Python 3.", "cpu: works", "CPU kernels: off, NumPy computes; ALPHA_CPU",
                 f"cache: {tmp_path}, 0 files, 0.0 MiB", "ALPHA_CPU_KERNELS=0: ", "ALPHA_DEBUG=1: "):
        assert part in out


def test_a_compiler_that_is_no_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "g++ 'open")
    with config(cpu_kernels=False):
        lines = list(doctor.kernels())
    assert lines[1].startswith('compilers: none; CXX: "g++ \'open" is not a command: No closing quotation; close its')


def test_a_missing_device_or_extra_is_named_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    no_pycuda(monkeypatch)
    assert list(doctor.devices())[1] == "cuda: PyCUDA is not installed"

    def missing(package: str) -> str:
        raise metadata.PackageNotFoundError(package)

    monkeypatch.setattr(doctor.metadata, "version", missing)
    assert 'matplotlib: not installed (pictures of a run); pip install ".[plot]"' in list(doctor.extras())


def test_each_missing_piece_of_cuda_is_named_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    no_pycuda(monkeypatch)
    monkeypatch.setattr(toolchain.shutil, "which", lambda name: None)
    pycuda, nvcc = doctor.cuda()
    assert pycuda.startswith('PyCUDA 1.2, CUDA device: PyCUDA is not installed; install PyCUDA (pip install ".[cuda]"')
    assert nvcc.startswith("nvcc: nvcc is not found, which compiles the CUDA kernels (CUDA_HOME: ")
    assert nvcc.endswith("; install the CUDA toolkit, and set CUDA_HOME to its directory")

    def missing(package: str) -> str:
        raise metadata.PackageNotFoundError(package)

    monkeypatch.setattr(cuda_doctor.metadata, "version", missing)
    assert next(doctor.cuda()).startswith('PyCUDA: not installed; install PyCUDA (pip install ".[cuda]"')


def test_a_gpu_is_described(fake_nvcc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = SimpleNamespace(get_driver_version=lambda: 12080, mem_get_info=lambda: (3 << 30, 4 << 30))
    gpu = dict(driver=driver, index=0, name="Some GPU", capability=(8, 6), arch="sm_86", sm_count=28)
    monkeypatch.setattr(cuda_doctor, "get_backend", lambda device: None)
    monkeypatch.setattr(cuda_doctor, "context", SimpleNamespace(**gpu))
    monkeypatch.setattr(cuda_doctor.metadata, "version", lambda package: "2026.1")
    lines = list(doctor.cuda())
    assert lines == ["PyCUDA 2026.1, driver for CUDA 12.8",
                     "CUDA device 0: Some GPU, compute capability 8.6 (sm_86), 28 SMs, 3072.0 MiB of 4096.0 MiB free",
                     f"nvcc: {fake_nvcc}, V13.0.88",
                     "CUDA kernels: 0 of 2 modules are compiled for sm_86; the rest is compiled at first use, or by "
                     "python -m alpha build-kernels",
                     "chains of pointwise ops: 0 kernels were generated in the cache; they are in use"]
    toolchain.compile_all("sm_86")
    assert list(doctor.cuda())[-2] == "CUDA kernels: 2 of 2 modules are compiled for sm_86"
    with config(fuse=False):
        assert list(doctor.cuda())[-1].endswith("they are not in use (ALPHA_FUSE=0)")


def test_cuda_kernels_are_built_without_a_gpu(fake_nvcc: Path, monkeypatch: pytest.MonkeyPatch,
                                              capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(doctor, "has_kernels", lambda: True)
    assert doctor.main(["build-kernels", "--arch", "sm_80", "sm_90a"]) == 0
    out = capsys.readouterr().out
    assert out.endswith("CUDA kernels: 2 of 2 modules are compiled for sm_80\n"
                        "CUDA kernels: 2 of 2 modules are compiled for sm_90a\n")
    toolchain.units()[0].source.write_text("#error wrong\n")
    assert doctor.main(["build-kernels", "--arch", "sm_80"]) == 1
    out = capsys.readouterr().out
    assert "CUDA kernels: 1 of 2 modules are compiled for sm_80\none.cu: build: " in out and "#error wrong" in out


def test_no_gpu_is_no_failure_but_no_compiler_for_a_named_one_is(monkeypatch: pytest.MonkeyPatch,
                                                                 capsys: pytest.CaptureFixture[str]) -> None:
    no_pycuda(monkeypatch)
    monkeypatch.setattr(doctor, "has_kernels", lambda: True)
    assert doctor.main(["build-kernels"]) == 0
    assert "CUDA kernels: none built: PyCUDA is not installed; " in capsys.readouterr().out
    monkeypatch.setattr(toolchain.shutil, "which", lambda name: None)
    assert doctor.main(["build-kernels", "--arch", "sm_90a"]) == 1
    assert "CUDA kernels: none built: nvcc is not found" in capsys.readouterr().out


def test_a_name_that_is_no_architecture_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build-kernels", "--arch", "hopper"]) == 2
    assert "'hopper' is not an architecture such as sm_75, sm_80, sm_89 or sm_90a" in capsys.readouterr().err
    assert main(["build-kernels", "--arch", "sm_70"]) == 2
    assert "sm_70 is older than sm_75, which the kernels need\nhelp: " in capsys.readouterr().err


def test_kernels_are_built_ahead(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    no_pycuda(monkeypatch)
    if not compilers():
        pytest.skip("there is no C++ compiler here")
    with config(num_threads=1, cpu_kernels=True):
        assert doctor.main(["build-kernels"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("CPU kernels: compiled and tested, 1 threads\n") and "\nCUDA kernels: " in out


def test_building_ahead_fails_where_numpy_is_left_alone(monkeypatch: pytest.MonkeyPatch,
                                                        capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(doctor, "has_kernels", lambda: False)
    with config(cpu_kernels=True):
        assert doctor.main(["build-kernels"]) == 1
    assert "CPU kernels: none, NumPy computes; install g++" in capsys.readouterr().out
