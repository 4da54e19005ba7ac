"""What the CUDA backend has to work with here, and what is missing, with the fix; and building kernels ahead."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

from alpha.build import cache_dir, version_of
from alpha.core.config import config
from alpha.core.device import get_backend
from alpha.core.errors import AlphaError, CompileError
from alpha.cuda.runtime import rehearsal, toolchain
from alpha.cuda.runtime.context import INSTALL, context
from alpha.cuda.runtime.memory import mib


def report() -> Iterator[str]:
    """Yields a line each about PyCUDA, the device, nvcc and the compiled kernels."""
    yield from _device()
    yield from _compiled()


def _device() -> Iterator[str]:
    try:
        version = metadata.version("pycuda")
    except metadata.PackageNotFoundError:
        yield f"PyCUDA: not installed; {INSTALL}"
        return
    try:
        get_backend("cuda")
    except AlphaError as error:
        yield f"PyCUDA {version}, CUDA device: {one_line(error)}"
        return
    driver = context.driver
    api = driver.get_driver_version()
    free, total = driver.mem_get_info()
    yield f"PyCUDA {version}, driver for CUDA {api // 1000}.{api % 1000 // 10}"
    yield (f"CUDA device {context.index}: {context.name}, compute capability {'.'.join(map(str, context.capability))} "
           f"({context.arch}), {context.sm_count} SMs, {mib(free)} of {mib(total)} free")


def _compiled() -> Iterator[str]:
    if came := toolchain.pack().architectures():
        yield f"CUDA kernels that came compiled with alpha: {', '.join(came)}"
    try:
        path = toolchain.nvcc()
        release = [line.rpartition(", ")[2] for line in version_of((path,)).splitlines() if "release" in line]
        yield f"nvcc: {path}, {release[0] if release else 'of an unknown release'}"
    except CompileError as error:
        yield f"nvcc: {one_line(error)}"
        return
    units = toolchain.units(context.arch or None)
    if not context.arch:
        yield f"CUDA kernels: {len(units)} modules; python -m alpha build-kernels --arch sm_90a compiles without a GPU"
    else:
        nvcc = toolchain.NvccToolchain()
        found = sum(nvcc.find(unit.source, dict(unit.defines), context.arch) is not None for unit in units)
        rest = "" if found == len(units) else "; the rest is compiled at first use, or by python -m alpha build-kernels"
        yield f"CUDA kernels: {found} of {len(units)} modules are compiled for {context.arch}{rest}"
    yield (f"chains of pointwise ops: {len(list(cache_dir().glob('chain-*.cu')))} kernels were generated in the cache; "
           f"they are {'in use' if config.fuse else 'not in use (ALPHA_FUSE=0)'}")


def build_kernels(arches: list[str], program: Callable[[], None] | None = None, folder: Path | None = None
                  ) -> tuple[list[str], bool]:
    """Compiles kernels for some architectures, that of the device if none is named: all, or those of a program.

    Where a folder is given, each architecture's are packed into a file there, unless one of them failed.
    Returns what to print, and whether everything that could be asked for was built: no GPU and no nvcc are no failure
    unless an architecture was named.
    """
    try:
        if not arches:
            get_backend("cuda")
            arches = [context.arch]
        toolchain.nvcc()
    except AlphaError as error:
        named = bool(arches) and not context.arch
        return [f"CUDA kernels: none built: {one_line(error)}; --arch sm_90a builds without a GPU"], not named
    lines, good = [], True
    for arch in arches:
        units = launched(program, arch) if program else toolchain.units(arch)
        failed = toolchain.compile_all(arch, units)
        total = len(units)
        lines.append(f"CUDA kernels: {total - len(failed)} of {total} modules are compiled for {arch}")
        lines += [f"{Path(unit.source).name}: {error}" for unit, error in failed.items()]
        good = good and not failed
        if folder and not failed:
            path = toolchain.pack(folder).write(
                [(*unit, toolchain.current.compile(unit.source, dict(unit.defines), arch)) for unit in units], arch)
            lines.append(f"packed: {path}, {mib(path.stat().st_size)}")
    return lines, good


def launched(program: Callable[[], None], arch: str) -> list[toolchain.Unit]:
    """Returns the units that a program launches kernels of, found out in another process; it can be pickled."""
    device = None
    if context.arch == arch:
        device = rehearsal.Device(context.name, context.sm_count, context.max_shared, *context.rates())
    with multiprocessing.get_context("spawn").Pool(1) as process:
        return process.apply(rehearsal.rehearse, (program, arch, device))


def one_line(error: AlphaError) -> str:
    """Returns what is wrong and the fix, in a line."""
    what, _, fix = str(error).partition("\nhelp: ")
    return f"{what.partition(': ')[2]}; {fix}"
