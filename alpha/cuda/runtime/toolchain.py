"""From .cu files to modules: what compiles them, which are needed, and those that are being compiled.

A module is compiled when a launch needs it; a few at a time, as many as there are cores. What has been compiled is in
the cache of alpha.build; what came compiled with alpha is taken from there (alpha.packed).
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import threading
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextvars import copy_context
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from alpha.build import build, cores, find
from alpha.core.errors import CompileError, DeviceError, message
from alpha.cuda.runtime.context import NEWEST, OLDEST, capability_of, context
from alpha.packed import Pack

HOME = Path(__file__).resolve().parent.parent
SOURCES = {path.name: path for path in HOME.rglob("*.cu")}  # the names are unique
INCLUDE_DIRS = (HOME / "include", HOME)
PACKED = HOME / "packed"  # what a wheel may bring
FLAGS = ("-std=c++17", "-O3", "-lineinfo")

# .cu files that are compiled in parts: what the last word of an entry's name has in it; and the rest, float32
PARTS = {"loss": ("16",), **dict.fromkeys(("batch_norm", "elementwise", "layer_norm", "pool", "reduce", "rules",
                                           "softmax", "update"), ("bfloat16", "16", "int"))}

PROGRESS_AFTER = 1.0  # seconds of compiling until a terminal shows a progress bar

Defines = Mapping[str, "str | int"]
Served = tuple[tuple[int, int], tuple[int, int]]  # capabilities: a unit serves from the first on, before the second


class Unit(NamedTuple):
    """What becomes one module: a source, and the macros defined for it."""

    source: Path
    defines: tuple[tuple[str, str | int], ...]


class NvccToolchain:
    """What turns sources into modules that the driver loads: nvcc from $CUDA_HOME, the PATH or /usr/local/cuda."""

    name = "nvcc"

    def compile(self, source: Path, defines: Defines, arch: str) -> Path:
        """Returns the path of the module, from the cache where it can.  Raises CompileError."""
        return build(**self._job(source, defines, arch))

    def find(self, source: Path, defines: Defines, arch: str) -> Path | None:
        """Returns the path of the module if the cache has it.  Raises CompileError where there is no compiler."""
        return find(**self._job(source, defines, arch))

    def _job(self, source: Path, defines: Defines, arch: str) -> dict[str, Any]:
        """Returns the arguments of build.  Raises DeviceError for an architecture that nvcc has nothing for."""
        target, suffix = target_of(arch, nvcc())
        flags = [*FLAGS, *target, *includes(), *macros(source, defines)]
        return dict(name=f"{source.stem}-{arch}", sources=[source], compiler=(nvcc(),), flags=flags, link=None,
                    suffix=suffix, include_dirs=INCLUDE_DIRS)


@cache
def _known_to(nvcc: str) -> tuple[int, ...]:
    """Returns the architectures that an nvcc compiles for, ascending; none, if it does not say."""
    said = subprocess.run([nvcc, "--list-gpu-arch"], capture_output=True, text=True).stdout
    return tuple(sorted(int(number) for number in re.findall(r"^compute_(\d+)$", said, re.MULTILINE)))


def target_of(arch: str, nvcc: str) -> tuple[tuple[str, ...], str]:
    """Returns the flags by which nvcc compiles for an architecture, and the suffix of what it writes.

    For a GPU that is newer than nvcc that is PTX of the newest class before it, which the driver translates.
    Raises DeviceError where nvcc knows none.
    """
    known, (major, minor), name = _known_to(nvcc), capability_of(arch), arch.removeprefix("sm_")
    number = 10 * major + minor
    if not known or number in known:
        return ("-cubin", f"-gencode=arch=compute_{name},code=sm_{name}"), ".cubin"
    older = [each for each in known if each < number]
    if not older:
        raise DeviceError(message("cuda", f"{nvcc} compiles for sm_{known[0]} and newer GPUs, this one is {arch}",
                                  f'install a CUDA toolkit that still has {arch}, or use device="cpu"'))
    return ("-ptx", f"-arch=compute_{older[-1]}"), ".ptx"


def includes() -> list[str]:
    """Returns the flags by which device code finds headers: those of include/ by name, of other rooms by their path."""
    return [f"-I{folder}" for folder in INCLUDE_DIRS]


def macros(source: Path, defines: Defines) -> list[str]:
    """Returns the flags of a unit's macros, with the arguments that its entries are declared with."""
    entries = _declared.get(Unit(source, tuple(sorted(defines.items()))), {})
    found = {**defines, "ALPHA_DECLARED": len(entries), **{f"ALPHA_CODES_{e}": entries[e] for e in sorted(entries)}}
    return [f"-D{name}={value}" for name, value in found.items()]


def nvcc() -> str:
    """Returns the path of nvcc.  Raises CompileError where there is none."""
    homes = [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    for candidate in [*(f"{home}/bin/nvcc" for home in homes), "nvcc", "/usr/local/cuda/bin/nvcc"]:
        found = shutil.which(candidate)
        if found:
            return found
    raise CompileError(message("cuda", "nvcc is not found, which compiles the CUDA kernels",
                               "install the CUDA toolkit, and set CUDA_HOME to its directory",
                               CUDA_HOME=homes or "not set", PATH=os.environ.get("PATH", "")))


current: Any = NvccToolchain()  # or what has its members


@cache
def _has_nvcc() -> bool:
    try:
        return bool(nvcc())
    except CompileError:
        return False


def can_compile() -> bool:
    """Tells whether sources that nobody has compiled ahead are of use here."""
    return current.name != "nvcc" or _has_nvcc()


_declared: dict[Unit, dict[str, str]] = {}  # the entries of each, and the codes of their arguments
_serves: dict[Unit, Served] = {}
generated: set[Path] = set()  # sources that were written by us, and are named by what they have
_modules: dict[Unit, Any] = {}
_jobs: dict[Unit, Future[bytes]] = {}  # of modules that are not loaded yet; those that do not compile stay
_lock = threading.Lock()


def declare(source: str | Path, defines: Defines | None, entry: str, codes: str,
            serves: Served = (OLDEST, NEWEST)) -> Unit:
    """Adds an entry to its unit, which is returned.

    Entries of files that take seconds are in several units, which have the bodies of others left out (declared.cuh). So
    has a module that is there already; and a user's source that is declared again has perhaps been edited. In both
    cases the next launch looks at the file again.

    Args:
        source: the name of a file in some folder of alpha/cuda, or a path.
        codes: of the arguments, as `struct` has them; b: a block of bytes.
        serves: the compute capability from which on it runs, and the one before which it does.
    """
    path = SOURCES.get(str(source), Path(source))
    parts = PARTS.get(path.stem.partition("-")[0], ())
    part = [("ALPHA_PART", part) for part in parts if part in entry.rpartition("_")[2]][:1]
    unit = Unit(path, tuple(sorted([*(defines or {}).items(), *part])))
    entries = _declared.setdefault(unit, {})
    if entry not in entries or is_users(unit):
        with _lock:
            _modules.pop(unit, None)
            _jobs.pop(unit, None)
    entries[entry] = codes
    _serves[unit] = serves
    return unit


def is_users(unit: Unit) -> bool:
    return not unit.source.is_relative_to(HOME) and unit.source not in generated


def units(arch: str | None = None) -> list[Unit]:
    """Returns every unit that has been declared, or those that an architecture can run, in the order of declaration."""
    return [unit for unit in _declared if arch is None or serves(unit, arch)]


def serves(unit: Unit, arch: str) -> bool:
    """Tells whether an architecture can run a unit, and has no other one for what that does."""
    least, end = _serves.get(unit, (OLDEST, NEWEST))
    return least <= capability_of(arch) < end


def is_at_hand(unit: Unit) -> bool:
    """Tells whether `module` answers at once, or should make its caller wait: a source of a user's own does.

    If neither is so, the unit is being compiled.  Raises CompileError where there is no compiler.
    """
    return unit in _modules or is_users(unit) or _job(unit).done()


def pack(folder: Path | None = None) -> Pack:
    """Returns the packs of a folder for the current toolchain: those that came with alpha, if none is named."""
    return _pack(folder or PACKED, current.name, INCLUDE_DIRS)


_pack = cache(Pack)


@cache
def _workers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(cores())


def _job(unit: Unit) -> Future[bytes]:
    """Returns what gives a module: done if it came with alpha or is in the cache, else compiled in the background."""
    job = _jobs.get(unit)
    if job is None:
        image = None if is_users(unit) else _found(unit)
        if image is None:
            job = _workers().submit(copy_context().run, _compiled, unit, context.arch)
        else:
            job = Future()
            job.set_result(image)
        _jobs[unit] = job
    return job


def _found(unit: Unit) -> bytes | None:
    image = pack().find(unit.source, unit.defines, context.arch)
    if image is None and (path := current.find(unit.source, dict(unit.defines), context.arch)):
        image = path.read_bytes()
    return image


def _compiled(unit: Unit, arch: str) -> bytes:
    return current.compile(unit.source, dict(unit.defines), arch).read_bytes()  # type: ignore[no-any-return]


def is_idle() -> bool:
    """Tells whether nothing is being compiled in the background."""
    return all(job.done() for job in list(_jobs.values()))


def module(unit: Unit) -> Any:
    """Returns the loaded module of a unit, compiled if need be.  Raises CompileError if it does not compile or load."""
    with _lock:
        if unit not in _modules:
            job = _job(unit)
            if not job.done():
                _show([each for each in list(_jobs.values()) if not each.done()])
            if not isinstance(job.exception(), CompileError):  # others may be gone by the next try: a disk was full
                _jobs.pop(unit, None)
            image = job.result()
            try:
                _modules[unit] = context.driver.module_from_buffer(image)
            except context.driver.Error as error:
                raise CompileError(message("cuda", f"the driver does not load {unit.source.name}: {error}",
                                           "update the NVIDIA driver, or use a CUDA toolkit that is not newer than it",
                                           arch=context.arch, source=unit.source)) from error
        return _modules[unit]


def _show(jobs: Collection[Future[Any]]) -> None:
    """Waits for jobs, with a progress bar on a terminal."""
    for _ in tqdm(as_completed(jobs), "compiling CUDA kernels, once", len(jobs), unit="file", leave=False,
                  delay=PROGRESS_AFTER, disable=None):  # None: only on a terminal
        pass


def compile_all(arch: str, chosen: Iterable[Unit] | None = None) -> dict[Unit, CompileError]:
    """Compiles units that the cache lacks, in parallel, and returns the errors of those that fail.

    Each process goes through the units in an order of its own, so that those which start together share the work
    instead of waiting for one another.

    Args:
        chosen: all that are declared and that the architecture can run, if it is None.
    """
    waiting = units(arch) if chosen is None else list(chosen)
    random.Random(os.getpid()).shuffle(waiting)
    with ThreadPoolExecutor(cores()) as workers:
        jobs = {unit: workers.submit(copy_context().run, current.compile, unit.source, dict(unit.defines), arch)
                for unit in waiting}  # in our context: settings are those of this thread
        _show(jobs.values())
    return {unit: error for unit, job in jobs.items() if (error := job.exception())}  # type: ignore[misc]
