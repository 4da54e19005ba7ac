"""Every setting of alpha, in one table: environment variable, default, meaning.

    ALPHA_DEBUG=2 python -m train          for a process
    with alpha.config(debug=2): ...        for a block, in this thread or asyncio task
    alpha.config.debug = 2                 for the process, from here on

docs/reference/env_vars.md shows the same table; a test holds the two together.
"""

from __future__ import annotations

import difflib
import os
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from operator import index
from typing import Any

from alpha.core import openmp
from alpha.core.errors import ConfigError, message, shown
from alpha.core.table import settle


@dataclass(frozen=True)
class Variable:
    """One setting: its attribute name, its default (whose type it has) and its meaning."""

    name: str
    default: bool | int | str
    meaning: str
    choices: tuple[str, ...] = ()  # the only values of a text, if there are any

    @property
    def env(self) -> str:
        return f"ALPHA_{self.name.upper()}"

    def parse(self, text: str) -> bool | int | str:
        """Returns the value that an environment variable's text stands for.  Raises ConfigError."""
        if isinstance(self.default, str):
            if self.choices and text not in self.choices:
                raise ConfigError(message(self.env, f"{text!r:.100} is not one of {', '.join(self.choices)}",
                                          f"set {self.env} to one of them"))
            return text
        try:
            value = int(text)
        except ValueError:
            value = -1
        if value < 0 or (isinstance(self.default, bool) and value > 1):
            allowed = "0 or 1" if isinstance(self.default, bool) else "an integer of at least 0"
            raise ConfigError(message(self.env, f"{text!r:.100} is not {allowed}", f"set {self.env} to {allowed}"))
        return type(self.default)(value)


VARIABLES = (
    Variable("debug", 0, "1 which compiled kernels are loaded, and whether they were built; "
             "2 also one line per op and CUDA kernel (work that an op leaves to the reader of its result has a line of "
             "its own: `later, for conv2d`); 3 also how a convolution kernel was chosen"),
    Variable("check_nan", False, "stop at the op that makes the first NaN, forward or backward; the same kernels run "
             "as without it"),
    Variable("cpu_kernels", True, "0 turns the compiled CPU kernels off; NumPy then does the work"),
    Variable("num_threads", 0, "threads of the compiled CPU kernels, up to 64 or one per core; 0 takes every core this "
             "process may use"),
    Variable("cache_dir", "", "where compiled kernels are kept; empty means the user's cache directory"),
    Variable("sync", False, "wait for every CUDA kernel, so that an error names the one that made it"),
    Variable("tensor_cores", True, "0 computes float32 convolutions and products on the FMA units of a GPU alone"),
    Variable("capture", True, "0 launches every kernel of a training step by itself, each time (alpha.capture)"),
    Variable("fuse", True, "0 runs each pointwise op as a pass of its own; see docs/explanation/fusion.md"),
    Variable("tune", False, "time the candidate kernels of each CUDA convolution once, and keep the fastest"),
    Variable("calibration", "", "a file of python -m benchmarks.calibrate: what a GPU was measured to reach, by which "
             "kernels are chosen; empty means what its driver and the tables say"),
    Variable("precision", "fp32", "fp32, tf32, bf16 or fp16: how layers store activations and make matrix products; "
             "see docs/explanation/numerics.md", ("fp32", "tf32", "bf16", "fp16")),
    Variable("conv_algorithm", "auto", "auto, direct, im2col, winograd, fft, strassen or sparse: how convolutions are "
             "computed that name no algorithm, where it serves; see docs/explanation/algorithms.md",
             ("auto", "direct", "im2col", "winograd", "fft", "strassen", "sparse")),
    Variable("conv_sparsity", False, "1 counts the zeros of the maps that a convolution of 3x3 with at least 128 "
             "channels reads on the CPU, and skips them where that is faster; see docs/explanation/algorithms.md"),
    Variable("conv_workspace_mib", 0, "MiB that a convolution's algorithm may take beside its operands; 0 is 256 on "
             "the CPU and 512 on a GPU"),
    Variable("recompute", "auto", "none, cheap, full or auto: which results backward makes again instead of keeping "
             "them; see docs/explanation/memory.md", ("none", "cheap", "full", "auto")),
    Variable("cpu_isa", "native", "native or avx2: the instruction set that the CPU kernels are compiled for",
             ("native", "avx2")),
    Variable("cuda_memory_mib", 0, "MiB of GPU memory that this process may use; 0 sets no limit"),
    Variable("cpu_cache_mib", 4096, "MiB of freed CPU memory kept for reuse; beyond it memory returns to the system"),
)


WATCHED = ("debug", "check_nan", "sync")


class _Setting:
    """Reads a setting where there is no plain value: a block has changed it, or the environment has a bad one.

    Config keeps the value of the process in its `__dict__`, which comes first and costs next to nothing, and takes it
    out of there while any thread or task is in a block that changes it.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, config: Config | None, owner: type) -> Any:
        return self if config is None else config._read(self.name)


_Block = tuple[object, Mapping[str, Any]]  # a block that was entered: its identity, its changes
_blocks: ContextVar[tuple[_Block, ...]] = ContextVar("alpha.config", default=())


class Config:
    """The values in force; read as attributes, changed for a block by calling it.

    A block counts in the thread or asyncio task that enters it; other threads see the values of the process, which
    assigning an attribute changes. Reading any value raises ConfigError where the environment has a wrong one.
    """

    debug: int
    check_nan: bool
    cpu_kernels: bool
    num_threads: int
    cache_dir: str
    sync: bool
    tensor_cores: bool
    capture: bool
    fuse: bool
    tune: bool
    calibration: str
    precision: str
    conv_algorithm: str
    conv_sparsity: bool
    conv_workspace_mib: int
    recompute: str
    cpu_isa: str
    cuda_memory_mib: int
    cpu_cache_mib: int

    watch: bool  # whether anything of WATCHED may be on here: one cheap look with every op and launch

    _values: dict[str, Any]    # of the process
    _wrong: list[str]          # messages about the environment
    _changing: dict[str, int]  # how many blocks change a setting
    _lock: threading.RLock

    def __init__(self, environ: Mapping[str, str]) -> None:
        values: dict[str, Any] = {}
        wrong: list[str] = []
        for v in VARIABLES:
            try:
                values[v.name] = v.parse(environ[v.env]) if v.env in environ else v.default
            except ConfigError as error:
                wrong.append(str(error))
                values[v.name] = v.default
        known = [v.env for v in VARIABLES]
        for name in environ:
            if name.startswith("ALPHA_") and name not in known:
                near = difflib.get_close_matches(name, known, 1, 0.85)
                if near:    # else it may be another program's
                    warnings.warn(f"{name} is set, which alpha does not know; did you mean {near[0]}?", stacklevel=2)
        vars(self).update(_values=values, _wrong=wrong, _changing=dict.fromkeys(values, 0), _lock=threading.RLock())
        for name in values:
            self._publish(name)

    def check(self) -> None:
        """Raises ConfigError if the environment has wrong values, with a line for each."""
        if self._wrong:
            raise ConfigError("\n".join(self._wrong))

    @contextmanager
    def __call__(self, **changes: Any) -> Iterator[Config]:
        """Sets values for the block, in this thread or task.  Raises ConfigError for an unknown name or a bad value."""
        changes = {name: _parsed(name, value) for name, value in changes.items()}
        block: _Block = object(), changes
        settle()
        with self._lock:
            for name in changes:
                self._changing[name] += 1
                self._publish(name)
        _blocks.set((*_blocks.get(), block))
        try:
            yield self
        finally:
            settle()
            # Blocks of generators may end in any order, and in another task or thread than they began in.
            _blocks.set(tuple(b for b in _blocks.get() if b is not block))
            with self._lock:
                for name in changes:
                    self._changing[name] -= 1
                    self._publish(name)
            changes.clear()

    def __setattr__(self, name: str, value: Any) -> None:
        """Changes a value of the process, for all that are in no block that sets it.  Raises ConfigError."""
        value = _parsed(name, value)
        settle()
        with self._lock:
            self._values[name] = value
            self._publish(name)

    def _publish(self, name: str) -> None:
        """Makes the value of the process a plain attribute where no block has another, else takes it away."""
        plain = vars(self)
        if self._changing[name] or self._wrong:
            plain.pop(name, None)
        else:
            plain[name] = self._values[name]
        plain["watch"] = any(name not in plain or plain[name] for name in WATCHED)

    def _read(self, name: str) -> Any:
        self.check()
        for _, changes in reversed(_blocks.get()):
            if name in changes:
                return changes[name]
        return self._values[name]


def _parsed(name: str, value: Any) -> bool | int | str:
    """Returns a value given in Python in the type of its setting.  Raises ConfigError."""
    known = {v.name: v for v in VARIABLES}
    if name not in known:
        raise ConfigError(message("config", f"no setting is called {name!r:.100}", f"use one of {sorted(known)}"))
    try:
        a_bool = isinstance(value, bool) and not isinstance(known[name].default, bool)  # True is no number
        text = value if isinstance(value, str) else str(value if a_bool else index(value))
    except (TypeError, ValueError):  # ValueError: an int of thousands of digits
        text = shown(value)
    return known[name].parse(text)


for _variable in VARIABLES:
    setattr(Config, _variable.name, _Setting(_variable.name))

config = Config(os.environ)
openmp.spin_briefly()    # before another library maps the runtime that the CPU kernels use
