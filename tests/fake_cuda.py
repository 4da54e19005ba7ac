"""A device and a compiler that only pretend: launches are noted, modules are lists of the names of their entries."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from alpha.cuda.runtime import backlog
from alpha.cuda.runtime import toolchain as chain
from alpha.cuda.runtime.context import context
from alpha.errors import CompileError


class DriverError(Exception):
    """Stands for pycuda.driver.Error."""


class Function:
    """Stands for a loaded kernel, and notes its launches."""

    shared_size_bytes = 1024  # of static arrays

    def __init__(self) -> None:
        self.launches: list[tuple] = []
        self.attributes: list[tuple] = []
        self.error: Exception | None = None

    def set_attribute(self, name: str, value: int) -> None:
        if value > 200_000:
            raise DriverError("invalid argument")
        self.attributes.append((name, value))

    def _launch_kernel(self, *args: object) -> None:
        if self.error:
            raise self.error
        self.launches.append(args)


class Module:
    def __init__(self, data: bytes) -> None:
        if data == b"not for this device":
            raise DriverError("no kernel image is available")
        self.functions = {name.decode(): Function() for name in data.split()}

    def get_function(self, name: str) -> Function:
        if name not in self.functions:
            raise DriverError("named symbol not found")
        return self.functions[name]


class Toolchain:
    """Turns a source into a module that names the entries; a source "bad..." fails."""

    name = "pretended"

    def __init__(self, folder: Path) -> None:
        self.folder, self.asked, self.cached, self.lock = folder, [], set(), threading.Lock()
        self.may_compile = threading.Event()
        self.may_compile.set()

    def find(self, source: Path, defines: dict, arch: str) -> Path | None:
        return self.folder / source.name if source.name in self.cached else None

    def compile(self, source: Path, defines: dict, arch: str) -> Path:
        self.may_compile.wait()
        with self.lock:
            self.asked.append(source.name)
        if source.name.startswith("bad"):
            raise CompileError(f"build: nvcc failed, compiling {source.name}")
        path = self.folder / source.name
        path.write_bytes(b"not for this device" if source.name == "foreign.cu" else b"relu relu_float32 big")
        return path


@pytest.fixture
def declared(monkeypatch):
    """An empty list of declarations, restored afterwards."""
    for name in ("_declared", "_modules", "_jobs"):
        monkeypatch.setattr(chain, name, {})


@pytest.fixture
def toolchain(monkeypatch, tmp_path, declared) -> Toolchain:
    """A device and a compiler that only pretend."""
    driver = SimpleNamespace(Error=DriverError, module_from_buffer=Module,
                             function_attribute=SimpleNamespace(MAX_DYNAMIC_SHARED_SIZE_BYTES="max_shared"))
    for name, value in dict(driver=driver, arch="sm_90a", stream="stream", max_shared=1 << 17).items():
        monkeypatch.setattr(context, name, value)
    monkeypatch.setattr(context.here, "entered", True)
    monkeypatch.setattr(backlog, "open", True)
    monkeypatch.setattr(chain, "current", Toolchain(tmp_path))
    return chain.current
