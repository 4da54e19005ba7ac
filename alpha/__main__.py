"""The doctor: what alpha has to work with here, and what is missing.

    python -m alpha                  versions, devices, compiled kernels, cache, extras, changed settings
    python -m alpha build-kernels    builds the compiled kernels ahead of their first use
"""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Iterator
from importlib import metadata

import numpy as np

import alpha
from alpha.backend import BACKENDS, get_backend
from alpha.build import cache_dir, compilers
from alpha.config import VARIABLES, config
from alpha.errors import AlphaError

EXTRAS = {"scikit-learn": ("data", "handwritten digits"), "torchvision": ("download", "fetching CIFAR"),
          "matplotlib": ("plot", "pictures of a run"), "torch": ("bench", "comparisons, reading .pth files")}


def versions() -> Iterator[str]:
    """Yields what runs."""
    yield (f"alpha {alpha.__version__}, Python {platform.python_version()}, NumPy {np.__version__}, "
           f"{platform.system()} {platform.machine()}")


def devices() -> Iterator[str]:
    """Yields for every kind of device whether it works, or why not."""
    for name in BACKENDS:
        try:
            get_backend(name)
            yield f"{name}: works"
        except AlphaError as error:
            yield f"{name}: " + str(error).partition("\n")[0].removeprefix("device: ")


def has_kernels() -> bool:
    """Tells whether the compiled CPU kernels are used, building them if need be."""
    from alpha.cpu import native

    return native.library() is not None


def kernels() -> Iterator[str]:
    """Yields which compiled CPU kernels are used, and where compiled files are kept."""
    if has_kernels():
        threads = f"{config.num_threads} threads" if config.num_threads else "a thread per core"
        yield f"CPU kernels: compiled and tested, {threads}"
    elif config.cpu_kernels:
        yield "CPU kernels: none, NumPy computes; install g++, or name a C++17 compiler with OpenMP in CXX"
    else:
        yield "CPU kernels: off, NumPy computes; ALPHA_CPU_KERNELS=1 turns them on"
    found = ", ".join(" ".join(command) for command in compilers())
    files = [path for path in cache_dir().glob("*") if path.is_file()]
    yield f"compilers: {found or 'none'}"
    yield f"cache: {cache_dir()}, {len(files)} files, {sum(path.stat().st_size for path in files) / 2 ** 20:.1f} MiB"


def extras() -> Iterator[str]:
    """Yields the optional packages, and the extra that installs one that is missing."""
    for package, (extra, use) in EXTRAS.items():
        try:
            yield f"{package} {metadata.version(package)}: {use}"
        except metadata.PackageNotFoundError:
            yield f'{package}: not installed ({use}); pip install ".[{extra}]"'


def settings() -> Iterator[str]:
    """Yields the settings that differ from their defaults."""
    for v in VARIABLES:
        value = getattr(config, v.name)
        if value != v.default:
            yield f"{v.env}={int(value) if isinstance(value, bool) else value}: {v.meaning}"


def main(argv: list[str] | None = None) -> int:
    """Runs a command and returns its exit code: 1 where build-kernels leaves NumPy alone."""
    parser = argparse.ArgumentParser(prog="python -m alpha", description="what alpha has to work with here")
    parser.add_argument("command", nargs="?", choices=["doctor", "build-kernels"], default="doctor")
    build_only = parser.parse_args(argv).command == "build-kernels"
    for part in (kernels,) if build_only else (versions, devices, kernels, extras, settings):
        for line in part():
            print(line)
    return 1 if build_only and not has_kernels() else 0


if __name__ == "__main__":
    sys.exit(main())
