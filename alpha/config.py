"""Every setting of alpha, in one table: environment variable, default, meaning.

    ALPHA_DEBUG=2 python -m train          for a process
    with alpha.config(debug=2): ...        for a block

docs/env_vars.md shows the same table; a test holds the two together.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from alpha.errors import ConfigError, message


@dataclass(frozen=True)
class Variable:
    """One setting: its attribute name, its default (whose type it has) and what it does."""

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
                raise ConfigError(message(self.env, f"{text!r} is not one of {', '.join(self.choices)}",
                                          f"set {self.env} to one of them"))
            return text
        try:
            value = int(text)
        except ValueError:
            value = -1
        if value < 0 or (isinstance(self.default, bool) and value > 1):
            allowed = "0 or 1" if isinstance(self.default, bool) else "an integer of at least 0"
            raise ConfigError(message(self.env, f"{text!r} is not {allowed}", f"set {self.env} to {allowed}"))
        return type(self.default)(value)


VARIABLES = (
    Variable("debug", 0, "1 which compiled kernels are loaded, and whether they were built; "
             "2 also one line per op and CUDA kernel; 3 also how a convolution kernel was chosen"),
    Variable("check_nan", False, "stop at the op that makes the first NaN, forward or backward"),
    Variable("cpu_kernels", True, "0 turns the compiled CPU kernels off; NumPy then does the work"),
    Variable("num_threads", 0, "threads of the compiled CPU kernels, up to 64 or one per core; 0 takes every core this "
             "process may use"),
    Variable("cache_dir", "", "where compiled kernels are kept; empty means the user's cache directory"),
    Variable("sync", False, "wait for every CUDA kernel, so that an error names the one that made it"),
    Variable("tensor_cores", True, "0 computes float32 convolutions and products on the FMA units of a GPU alone"),
    Variable("capture", True, "0 launches every kernel of a training step by itself, each time (alpha.capture)"),
    Variable("tune", False, "time the candidate kernels of each CUDA convolution once, and keep the fastest"),
    Variable("precision", "fp32", "fp32, tf32, bf16 or fp16: how layers store activations and make matrix products; "
             "see docs/numerics.md", ("fp32", "tf32", "bf16", "fp16")),
    Variable("cuda_memory_mib", 0, "MiB of GPU memory that this process may use; 0 sets no limit"),
    Variable("cpu_cache_mib", 4096, "MiB of freed CPU memory kept for reuse; beyond it memory returns to the system"),
)


class Config:
    """The values in force; read as attributes, changed for a block by calling it."""

    debug: int
    check_nan: bool
    cpu_kernels: bool
    num_threads: int
    cache_dir: str
    sync: bool
    tensor_cores: bool
    capture: bool
    tune: bool
    precision: str
    cuda_memory_mib: int
    cpu_cache_mib: int

    def __init__(self, environ: Mapping[str, str]) -> None:
        for v in VARIABLES:
            setattr(self, v.name, v.parse(environ[v.env]) if v.env in environ else v.default)

    @contextmanager
    def __call__(self, **changes: Any) -> Iterator[Config]:
        """Sets values for the block and restores them after it.  Raises ConfigError for an unknown name."""
        known = {v.name: v for v in VARIABLES}
        for name, value in changes.items():
            if name not in known:
                raise ConfigError(message("config", f"no setting is called {name!r}", f"use one of {sorted(known)}"))
            changes[name] = known[name].parse(str(int(value)) if isinstance(value, bool) else str(value))
        before = {name: getattr(self, name) for name in changes}
        vars(self).update(changes)
        try:
            yield self
        finally:
            vars(self).update(before)


config = Config(os.environ)
