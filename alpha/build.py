"""Source, flags and compiler -> a cached binary; the one way in which alpha compiles anything (C++ and CUDA alike).

The key of an entry is a hash of the sources with everything they include in quotes, the flags, the compiler's version
and, under -march=native, the CPU's features. An entry is a binary and a file with its digest: a binary that does not
match its digest is built again. Entries are compiled to temporary names in the cache directory and renamed under a
lock, so that processes which start together build once, and one that is killed publishes nothing; its remains are
removed by a compilation a day later. A directory that can only be read serves the entries it has.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, lru_cache
from pathlib import Path

from alpha.core.config import config
from alpha.core.errors import CompileError, ConfigError, message

try:
    import fcntl
except ImportError:  # no advisory locks on this system: a cold start may then compile twice, to the same result
    fcntl = None  # type: ignore[assignment]

OUTPUT_LINES = 20
LEFT_SECONDS = 24 * 60 * 60  # after which the files of a compilation are abandoned
_said: set[str] = set()
_saying = threading.Lock()
_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)


def build(name: str, sources: Sequence[Path], compiler: Sequence[str], flags: Sequence[str],
          link: Sequence[str] | None = ("-shared",), suffix: str = ".so", include_dirs: Sequence[Path] = (),
          told: str = "") -> Path:
    """Returns the path of the binary made from `sources`, compiling it if the cache has no sound copy.

    Args:
        name: first part of the file's name.
        sources: files to compile; each becomes an object, all of them in parallel.
        compiler: the command, e.g. ("g++",) or ("nvcc",).
        flags: given to every compilation, and to the link.
        link: further flags of the link; None: there is one source, and the compiler turns it into the binary at once.
        suffix: last part of the file's name.
        include_dirs: where quoted includes are found besides the including file's directory; `flags` must say so too.
        told: the work in words, in a line on stderr that grows as it goes on; "": it takes too short a time for that.
    Raises:
        CompileError: if the compiler fails or is not there; nothing is published then.
    """
    sources = [Path(source) for source in sources]
    entry = _entry(name, sources, compiler, flags, link, suffix, include_dirs)
    if _sound(entry):
        _say(f"{entry} comes from the cache")
        return entry
    with _locked(entry, told):
        if not _sound(entry):
            _sweep(entry.parent)
            with tempfile.TemporaryDirectory(dir=entry.parent, prefix=f".{name}-") as work:
                binary = Path(work) / entry.name
                with _Told(told, compiler, len(sources)) as line:
                    _compile(sources, compiler, flags, link, binary, line.one_is_done)
                digest = Path(work) / "digest"
                digest.write_text(_digest(binary))
                os.replace(binary, entry)
                os.replace(digest, _digest_path(entry))
                _say(f"{entry} was built with {shlex.join(compiler)}")
    return entry


def find(name: str, sources: Sequence[Path], compiler: Sequence[str], flags: Sequence[str],
         link: Sequence[str] | None = ("-shared",), suffix: str = ".so",
         include_dirs: Sequence[Path] = ()) -> Path | None:
    """Returns the result of `build`, if the cache has it.  Raises CompileError if the compiler is not there."""
    entry = _entry(name, sources, compiler, flags, link, suffix, include_dirs)
    return entry if _sound(entry) else None


def _entry(name: str, sources: Sequence[Path], compiler: Sequence[str], flags: Sequence[str],
           link: Sequence[str] | None, suffix: str, include_dirs: Sequence[Path]) -> Path:
    """Returns where the binary belongs."""
    file = f"{name}-{_key(sources, compiler, flags, link, include_dirs)}{suffix}"
    if not _writable(_home()) and _sound(_home() / file):
        return _home() / file
    entry = cache_dir() / file
    if entry.exists() and not _own(entry):
        return _private_dir(f"{entry} belongs to another user") / entry.name
    return entry


def _say(text: str) -> None:
    if config.debug:
        print(f"alpha: {text}", file=sys.stderr)


def compilers() -> list[tuple[str, ...]]:
    """Returns the C++ compilers to try, best first: $CXX alone if it is set, else g++ and clang++ where installed.

    Raises ConfigError if CXX is no command: words as a shell splits them, quotes included.
    """
    text = os.environ.get("CXX", "").strip()
    if text:
        try:
            return [tuple(shlex.split(text))]
        except ValueError as error:
            raise ConfigError(message("CXX", f"{text!r} is not a command: {error}",
                                      "close its quotes, or unset CXX; g++ is then used")) from error
    return [(name,) for name in ("g++", "clang++") if shutil.which(name)]


def written(name: str, text: str, suffix: str) -> Path:
    """Returns a source of our own making, named by its content: in the cache directory, or one of this process."""
    entry = f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:20]}{suffix}"
    folder, fault = _folder()
    path = folder / entry
    if fault and not (os.path.exists(path) and _own(path)):  # Path.exists raises where looking is forbidden
        path = _temporary_dir() / entry
    if not path.exists():
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{name}-")
        with os.fdopen(handle, "w") as file:
            file.write(text)
        os.replace(temporary, path)
    return path


def cache_dir() -> Path:
    """Returns the directory of the entries, made if need be; a private temporary one where it cannot be written."""
    path, fault = _folder()
    return _private_dir(fault) if fault else path


def _folder() -> tuple[Path, str]:
    """Returns the directory that the settings name, made if need be, and why it cannot be written, if so."""
    path = _home()
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        return path, f"{path} cannot be made: {error.strerror}"
    return path, "" if _writable(path) else f"{path} cannot be written"


def _home() -> Path:
    """Returns the directory that the settings name, which may not be there."""
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # a user without a home
        home = Path(os.devnull)
    return Path(config.cache_dir or home / "alpha")


def _writable(path: Path) -> bool:
    return os.access(path, os.W_OK | os.X_OK)


def _sweep(folder: Path) -> None:
    """Removes the remains of compilations that were killed more than a day ago."""
    for path in folder.glob(".*-*"):
        try:
            if path.is_dir() and not path.is_symlink() and time.time() - path.stat().st_mtime > LEFT_SECONDS:
                shutil.rmtree(path, ignore_errors=True)
        except OSError:  # another process removed it
            pass


@lru_cache(maxsize=1)
def _temporary_dir() -> Path:
    path = tempfile.mkdtemp(prefix="alpha-")
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return Path(path)


def _private_dir(reason: str) -> Path:
    """Says why, once per reason, and returns a directory that only this process uses and that goes with it."""
    with _saying:  # several threads compile at once
        if reason not in _said:
            _said.add(reason)
            print("alpha: " + message("build", f"{reason}; compiled kernels are kept for this process only",
                                      "point ALPHA_CACHE_DIR at a directory of your own"), file=sys.stderr)
        return _temporary_dir()


def _own(path: Path) -> bool:
    """Whether a file is this user's, or the administrator's, who shares it."""
    return not hasattr(os, "getuid") or path.stat().st_uid in (os.getuid(), 0)


def _digest_path(entry: Path) -> Path:
    return entry.with_name(entry.name + ".sha256")


def _digest(binary: Path) -> str:
    return hashlib.sha256(binary.read_bytes()).hexdigest()


def _sound(entry: Path) -> bool:
    try:
        return _own(entry) and _digest_path(entry).read_text() == _digest(entry)
    except (OSError, UnicodeDecodeError):
        return False


@contextmanager
def _locked(entry: Path, told: str = "") -> Iterator[None]:
    with open(entry.with_name(entry.name + ".lock"), "w") as lock:
        if fcntl:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                if told:
                    print(f"alpha: another process compiles {told}: waiting for it", file=sys.stderr, flush=True)
                fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file is closed, also by the death of the process
        yield


class _Told:
    """For a block that compiles: a line on stderr that says so at its beginning, how far it is, and how long it took.
    """

    def __init__(self, what: str, compiler: Sequence[str], count: int) -> None:
        self.what, self.compiler, self.count = what, compiler, count
        self.done, self.start = 0, time.perf_counter()

    def __enter__(self) -> _Told:
        self._write(f"alpha: compiling {self.what} with {self.compiler[0]}, once on this machine, {self.count} files:")
        return self

    def one_is_done(self) -> None:
        """Notes that a file is compiled; each tenth of them is told."""
        with _saying:
            self.done += 1
            if self.done * 10 // self.count > (self.done - 1) * 10 // self.count:
                self._write(f" {self.done * 100 // self.count}%")

    def __exit__(self, kind: object, *_: object) -> None:
        self._write(f" {'done' if kind is None else 'failed'} after {time.perf_counter() - self.start:.0f} s\n")

    def _write(self, text: str) -> None:
        if self.what and sys.stderr is not None:
            sys.stderr.write(text)
            sys.stderr.flush()


def source_key(source: Path, include_dirs: Sequence[Path], more: Sequence[str]) -> str:
    """Returns a hash of a source, of everything that it includes in quotes, and of more: the same on every machine.

    Raises:
        CompileError: if the source is not there.
    """
    h = hashlib.sha256()
    for part in more:
        h.update(part.encode() + b"\0")
    _hash_source(source.resolve(), include_dirs, h, set())
    return h.hexdigest()[:20]


def _key(sources: Sequence[Path], compiler: Sequence[str], flags: Sequence[str], link: Sequence[str] | None,
         include_dirs: Sequence[Path]) -> str:
    h = hashlib.sha256()
    for part in (version_of(tuple(compiler)), *flags, "link", *(link or ("no",))):
        h.update(os.fsencode(part) + b"\0")
    if "-march=native" in flags:
        h.update(_cpu_features().encode())
    seen: set[Path] = set()
    for source in sources:
        _hash_source(source.resolve(), include_dirs, h, seen)
    return h.hexdigest()[:20]


def _hash_source(path: Path, include_dirs: Sequence[Path], h: hashlib._Hash, seen: set[Path]) -> None:
    if path in seen:
        return
    seen.add(path)
    try:
        text = path.read_bytes()
    except OSError as error:
        own = Path(__file__).resolve().parent in path.parents
        raise CompileError(message("build", f"cannot read {path}: {error.strerror}",
                                   "reinstall alpha" if own else "name a source by a path that exists, such as "
                                   f'Path(__file__).with_name("{path.name}")')) from error
    h.update(path.name.encode() + b"\0" + text + b"\0")
    for include in _INCLUDE.findall(text):
        for folder in (path.parent, *include_dirs):
            target = (folder / include.decode()).resolve()
            if target.exists():  # else the compiler finds it elsewhere, or says that it is missing
                _hash_source(target, include_dirs, h, seen)
                break


@cache
def version_of(compiler: tuple[str, ...]) -> str:
    """Returns a compiler's answer to --version.  Raises CompileError where it is not there."""
    return _run([*compiler, "--version"], "asking for the compiler's version")


@lru_cache(maxsize=1)
def _cpu_features() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() + platform.machine()
    kinds = ("model name", "flags", "Features")
    return "\n".join(sorted({line for line in lines if line.startswith(kinds)}))


def cores() -> int:
    """Returns how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _compile(sources: Sequence[Path], compiler: Sequence[str], flags: Sequence[str], link: Sequence[str] | None,
             binary: Path, one_is_done: Callable[[], None] = lambda: None) -> None:
    """Compiles into the directory of `binary`, which is the only file that matters afterwards."""
    if link is None:
        _run([*compiler, *flags, str(sources[0]), "-o", str(binary)], f"compiling {sources[0].name}")
        return
    objects = [str(binary.with_name(f"{k}.o")) for k in range(len(sources))]

    def compile_one(source: Path, target: str) -> None:
        _run([*compiler, *flags, "-c", str(source), "-o", target], f"compiling {source.name}")
        one_is_done()

    with ThreadPoolExecutor(cores()) as pool:
        list(pool.map(compile_one, sources, objects))
    _run([*compiler, *flags, *link, *objects, "-o", str(binary)], f"linking {binary.name}")


def _named(compiler: str) -> str:
    """Returns where the compiler's name comes from."""
    return "CUDA_HOME names the CUDA toolkit" if Path(compiler).name == "nvcc" else "CXX can name another one"


def _run(command: list[str], doing: str) -> str:
    """Runs a command and returns its output.  Raises CompileError with the command and its first lines."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, errors="replace")
    except OSError as error:
        raise CompileError(message("build", f"{command[0]} cannot be run, {doing}: {error.strerror}",
                                   "install a compiler; " + _named(command[0]))) from error
    if result.returncode:
        output = (result.stderr + result.stdout).splitlines()
        shown = "\n".join(output[:OUTPUT_LINES]) or "(the compiler printed nothing)"
        raise CompileError(message("build", f"{command[0]} failed with status {result.returncode}, {doing}\n{shown}\n",
                                   "run the command by hand; " + _named(command[0]),
                                   command=shlex.join(command), python=sys.version.split()[0]))
    return result.stdout
