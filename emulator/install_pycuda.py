"""Installs PyCUDA where there is no NVIDIA driver: python -m alpha.testing.emulator.install_pycuda

PyCUDA comes as source and links with libcuda.so; the emulated driver stands in for it. The wheel is kept beside the
compiled kernels, so that this takes two minutes once.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from alpha.build import cache_dir

from . import toolchain

VERSION = "2026.1"


def main() -> None:
    if importlib.util.find_spec("pycuda"):
        return
    found = _wheels()
    if not found:
        print(f"building PyCUDA {VERSION} against the emulated driver, two minutes, once", file=sys.stderr)
        _build_wheel()
        found = _wheels()
    _run("pip", "install", "-q", str(found[0]))


def _folder() -> Path:
    """Returns where the wheel for this interpreter and this toolkit is kept."""
    toolkit = hashlib.sha256((toolchain.cuda_include() / "cuda.h").read_bytes()).hexdigest()[:8]
    return cache_dir() / f"pycuda-{VERSION}-{sys.implementation.cache_tag}-{toolkit}"


def _wheels() -> list[Path]:
    return sorted(_folder().glob("*.whl"))


def _build_wheel() -> None:
    with tempfile.TemporaryDirectory() as work:
        libraries = Path(work) / "lib"
        libraries.mkdir()
        (libraries / "libcuda.so").symlink_to(toolchain.driver())
        _run("pip", "download", "-q", "--no-deps", "--no-binary", "pycuda", "-d", work, f"pycuda=={VERSION}")
        with tarfile.open(next(Path(work).glob("pycuda-*.tar.gz"))) as sdist:
            sdist.extractall(work, filter="data")
        source = Path(work) / f"pycuda-{VERSION}"
        home = str(toolchain.cuda_include().parent)
        (source / "siteconf.py").unlink(missing_ok=True)
        subprocess.run([sys.executable, "configure.py", f"--cuda-root={home}", "--no-cuda-enable-curand"], cwd=source,
                       check=True)
        built = Path(work) / "wheel"
        _run("pip", "wheel", "-q", "--no-deps", "-w", str(built), str(source),
             LIBRARY_PATH=str(libraries), CUDA_HOME=home)
        _folder().mkdir(exist_ok=True)
        for wheel in built.glob("*.whl"):  # into place in one step, also from another file system
            staged = _folder() / f".{os.getpid()}-{wheel.name}"
            staged.write_bytes(wheel.read_bytes())
            staged.replace(_folder() / wheel.name)


def _run(*arguments: str, **environment: str) -> None:
    subprocess.run([sys.executable, "-m", *arguments], env={**os.environ, **environment}, check=True)


if __name__ == "__main__":
    main()
