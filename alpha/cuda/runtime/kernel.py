"""Kernels: a declaration, its compiled module, and the cheapest launch that PyCUDA allows.

    ARGSORT = per_dtype("shape.cu", "argsort", "ptr x, ptr y, i64 n, i64 columns, i32 descending")
    ARGSORT[x.dtype](blocks, x, y, x.size, x.shape[1], 0)

A declaration names the source, the entry and its arguments; the layout of the parameter buffer follows from the
latter, and a kernel whose arguments have other types does not compile (include/declared.cuh). All declarations of one
source with the same defines share a module, compiled to a cubin by alpha.build when a launch needs it: toolchain.py and
backlog.py. Importing compiles nothing.
"""

from __future__ import annotations

import re
import struct
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from alpha.core.config import config
from alpha.core.errors import AlphaError, CompileError, DeviceError, message
from alpha.core.trace import watchers
from alpha.cuda.runtime import backlog, memory, toolchain
from alpha.cuda.runtime.context import NEWEST, OLDEST, context, lacks
from alpha.cuda.runtime.memory import Array
from alpha.cuda.runtime.toolchain import Defines

C_TYPES = {"float32": "float", "bfloat16": "bf16", "float16": "f16"}  # a dtype's name in storage.cuh
FLOAT_DTYPES = tuple(C_TYPES)

# Argument types, as written in a declaration -> format of `struct`, whose native alignment is that of the device.
FORMATS = {"ptr": "P", "i32": "i", "u32": "I", "i64": "q", "u64": "Q", "f32": "f"}

_here, _waiting = context.here, backlog.waiting


class Kernel:
    """One entry of a source, callable with a grid and its arguments.

    Args:
        source: name of a file in some folder of alpha/cuda, or an absolute path.
        entry: name of the `extern "C" __global__` function.
        args: as in "ptr x, ptr y, i64 n"; types are ptr, i32, u32, i64, u64, f32, and block[N], N bytes by value.
        threads: threads of a block; an int or a tuple of up to three.
        shared: bytes of dynamic shared memory.
        staged: bytes of it on GPUs where copies to it pass through registers (copies.cuh), `shared` if it is None.
        needs: the compute capability that the kernel needs, where that is more than alpha does.
        before: the one from which on another kernel takes its place.
        defines: macros for the source; kernels with different ones are different modules.
    """

    def __init__(self, source: str | Path, entry: str, args: str, *, threads: int | tuple[int, ...] = 256,
                 shared: int = 0, staged: int | None = None, needs: tuple[int, int] = OLDEST,
                 before: tuple[int, int] | None = None, defines: Defines | None = None) -> None:
        self.entry, self.args, self.needs = entry, args, needs
        self._shared = shared, shared if staged is None else staged
        self.block = (*((threads,) if isinstance(threads, int) else threads), 1, 1)[:3]
        self.threads = self.block[0] * self.block[1] * self.block[2]
        layout = _layout(entry, args)
        codes = "".join("b" if "s" in code else code for code in layout)
        self.unit = toolchain.declare(source, defines, entry, codes, (needs, before or NEWEST))
        self.follows = not toolchain.is_users(self.unit)  # ours begin with `follow` (ptx.cuh)
        self._pack = struct.Struct("@" + "".join(layout)).pack
        self._pointers = tuple(k for k, kind in enumerate(layout) if kind == FORMATS["ptr"])
        self._launch: Callable[..., None] | None = None
        self.function: Any = None

    @property
    def shared(self) -> int:
        """Bytes of dynamic shared memory of a block on this device."""
        return self._shared[context.staged]

    def __repr__(self) -> str:
        return f"<kernel {self.entry}({self.args}) of {self.unit.source.name}>"

    def __call__(self, grid: int | tuple[int, ...], *values: Any) -> None:
        """Launches on the compute stream.

        Args:
            grid: number of blocks, or a tuple of up to three; nothing is launched where one is 0.
            values: one per argument: Array (or None, the null pointer, or an address) for ptr, int, float, or bytes for
                block[N].
        """
        if grid.__class__ is int:
            grid = (grid, 1, 1)
        if 0 in grid:  # type: ignore[operator]
            return
        if not _here.entered:
            context.enter()
        arguments = list(values)
        try:
            for k in self._pointers:
                value = values[k]
                if value.__class__ is Array or isinstance(value, Array):
                    arguments[k] = value.ptr
                elif value is None:
                    arguments[k] = 0
            buffer = self._pack(*arguments)
        except (struct.error, IndexError) as error:
            raise AlphaError(message(f"kernel {self.entry}", f"the arguments do not fit the declaration: {error}",
                                     "pass one Array, None, int, float or bytes for each",
                                     declared=self.args, given=values)) from error
        if memory.recorder:
            memory.recorder.hold(values)
        if (self._launch is None or _waiting) and self._waits(grid, buffer):
            return
        try:
            if watchers or (config.watch and (config.sync or config.debug > 1)):
                self._watched(grid, buffer)
            else:
                self._launch(grid, self.block, buffer, self.shared, context.stream)
        except context.driver.Error as error:
            raise self._fault(grid, error) from error
        if not self.follows and memory.recorder:
            memory.recorder.stands_apart()

    def _waits(self, grid: Any, buffer: bytes) -> bool:
        """Tells whether a launch has been added to the backlog; if not, it can be made.

        Raises CompileError, and DeviceError for a kernel that the device cannot run.
        """
        if self._launch is None and (lacking := lacks(self.needs)):
            raise DeviceError(message(f"kernel {self.entry}", f"{self.unit.source.name} {lacking}",
                                      'take what alpha chooses itself, or device="cpu"'))
        may_wait = backlog.open and not (watchers or config.sync or config.debug > 1 or memory.recorder)
        if self._launch is None and (not may_wait or toolchain.is_at_hand(self.unit)):
            self._load()
        if self._launch is None or (may_wait and _waiting and not toolchain.is_idle()):
            backlog.add(partial(self._launch_late, grid, buffer))
            return True
        backlog.run()
        return False

    def _launch_late(self, grid: Any, buffer: bytes) -> None:
        """Launches from the backlog."""
        launch = self._launch or self._load()
        try:
            launch(grid, self.block, buffer, self.shared, context.stream)
        except context.driver.Error as error:
            raise self._fault(grid, error) from error

    def _load(self) -> Callable[..., None]:
        """Gets the function from its module, compiling it if need be.  Raises CompileError."""
        driver = context.driver
        found = toolchain.module(self.unit)
        try:
            self.function = found.get_function(self.entry)
            if self.shared:  # else static and dynamic arrays together are at most 48 KiB; kernels may share an entry
                most = context.max_shared - self.function.shared_size_bytes
                self.function.set_attribute(driver.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                            max(most, self.shared))
        except driver.Error as error:
            raise CompileError(message(
                f"kernel {self.entry}", f"{self.unit.source.name} does not serve it: {error}",
                'the source needs extern "C" __global__ void of this name, and the device the shared memory',
                shared=self.shared, device_has=context.max_shared)) from error
        self._launch = self.function._launch_kernel
        return self._launch

    def _watched(self, grid: Any, buffer: bytes) -> None:
        """Launches, waits, so that a failure is this kernel's, and says how long it took."""
        begin = context.driver.Event().record(context.stream)
        self._launch(grid, self.block, buffer, self.shared, context.stream)  # type: ignore[misc]
        end = context.driver.Event().record(context.stream)
        if watchers:
            watchers[-1].launched(self.entry, begin, end)
            return
        end.synchronize()
        if config.debug > 1:
            print(f"alpha:   {self.entry} grid {'x'.join(map(str, grid))} block {self.threads} shared {self.shared}: "
                  f"{end.time_since(begin) * 1e3:.1f} us", file=sys.stderr)

    def _fault(self, grid: Any, error: Exception) -> DeviceError:
        fix = "compute-sanitizer shows the line"
        if not (watchers or config.sync or config.debug > 1):
            fix = "run again with ALPHA_SYNC=1, which tells whether it is this kernel or one before; " + fix
        return DeviceError(message("cuda", f"the kernel {self.entry} of {self.unit.source.name} failed: {error}", fix,
                                   grid=grid, block=self.block, shared=self.shared, arguments=self.args))


def per_dtype(source: str | Path, entry: str, args: str, *, dtypes: Iterable[str] = FLOAT_DTYPES, **options: Any
              ) -> dict[str, Kernel]:
    """Returns a kernel for each dtype; its entry is `entry` with _<dtype> at the end."""
    return {dtype: Kernel(source, f"{entry}_{dtype}", args, **options) for dtype in dtypes}


def _layout(entry: str, args: str) -> list[str]:
    """Returns the `struct` format of each argument of a declaration."""
    formats = []
    for arg in filter(None, (part.strip() for part in args.split(","))):
        kind = arg.split()[0]
        block = re.fullmatch(r"block\[(\d+)\]", kind)
        if block and int(block[1]) % 8 == 0:
            formats.append(f"0q{block[1]}s")  # 0q: aligned to 8 bytes
        elif kind in FORMATS and len(arg.split()) == 2:
            formats.append(FORMATS[kind])
        else:
            raise AlphaError(message(f"kernel {entry}", f"the argument {arg!r} is not understood",
                                     f'write "<type> <name>"; types: {", ".join(FORMATS)} and block[N], N % 8 == 0'))
    return formats
