"""A program on the CPU: calls of kernels with all arguments prepared, between buffers that are planned once.

Weights are packed, or transformed, as the kernels read them; a result lies where what it replaces lay; a call costs no
more than the kernel and the crossing into C++, which kernels in a row share. What no compiled kernel does, the op's
implementation does in NumPy, and the result is copied to its place.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from alpha.core.config import config
from alpha.cpu import native
from alpha.inference import cpu_steps
from alpha.inference.cpu_calls import joined
from alpha.inference.cpu_memory import ALIGNMENT, Life, lives, place, roots_of
from alpha.inference.program import Call, Program, Value

Array = np.ndarray
Step = Callable[[], Any]


class CpuPlan:
    """Runs a program.  Not for two threads at once."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.key = self._key_now()
        self.compiled = native.library() is not None
        self.roots = roots_of(program)
        self.read = {v for call in program.calls for v in call.reads()} | set(program.outputs)
        self.arrays: dict[Value, Array] = {}
        self.pointers: dict[Value, ctypes.c_void_p] = {}
        self.kept: list[Array] = []         # what pointers point to
        self.scratch: list[tuple[Life, ctypes.c_void_p, list[Array]]] = []
        self.packed_nbytes = 0
        self.lines: list[tuple[str, str]] = []     # per step: layer, what it is
        self.views = [(v, r) for v, r in self.roots.items() if r in program.inputs and v is not r]
        found = lives(program, self.roots)
        for value in {*found, *program.inputs}:
            self.pointers[value] = ctypes.c_void_p()
        self.steps: list[Step] = []
        for k, call in enumerate(program.calls):
            self.steps += cpu_steps.steps_of(self, call, k)
        self._allocate(found)
        self.joined = joined(self.steps, native.library(), self.keep)

    @staticmethod
    def _key_now() -> tuple[Any, ...]:
        return config.num_threads, config.cpu_kernels, config.conv_workspace_mib, config.conv_sparsity, os.getpid()

    def is_stale(self) -> bool:
        """Tells whether settings that it was made for have changed, or the process has."""
        return self.key != self._key_now()

    def _allocate(self, found: dict[Value, Life]) -> None:
        buffers = list(found.values()) + [life for life, _, _ in self.scratch]
        offsets, self.nbytes = place(buffers)
        self.unshared_nbytes = sum(b.nbytes for b in buffers)
        raw = np.zeros(self.nbytes + ALIGNMENT, np.uint8)
        start = -raw.__array_interface__["data"][0] % ALIGNMENT
        self.block = raw[start:start + self.nbytes]
        base = self.block.__array_interface__["data"][0]
        for value, offset in zip(found, offsets):
            self.pointers[value].value = base + offset
        for (life, pointer, view), offset in zip(self.scratch, offsets[len(found):]):
            pointer.value = base + offset
            view.append(self.block[offset:offset + life.nbytes])
        where = dict(zip(found, offsets))
        for value, root in self.roots.items():
            if root in where:
                size = prod(value.shape) * np.dtype(value.dtype).itemsize
                part = self.block[where[root]:where[root] + size]
                self.arrays[value] = part.view(value.dtype).reshape(value.shape)

    # ---- what steps are made of --------------------------------------------------------------------------------------

    def pointer(self, value: Value | None) -> ctypes.c_void_p | None:
        """Returns the address of a value's elements, which is set later: once for what is planned, inputs per call."""
        if value is None:
            return None
        root = self.roots.get(value, value)
        if root.constant is not None:
            return self.keep(root.constant.array)
        return self.pointers[root]

    def keep(self, a: Array) -> ctypes.c_void_p:
        """Returns the address of an array that the plan holds from now on."""
        a = np.ascontiguousarray(a)
        self.kept.append(a)
        return ctypes.c_void_p(a.__array_interface__["data"][0])

    def packed(self, floats: int) -> tuple[Array, ctypes.c_void_p]:
        """Returns memory for prepared weights."""
        raw = np.zeros(floats + 16, np.float32)
        skip = -raw.__array_interface__["data"][0] % ALIGNMENT // 4
        a = raw[skip:skip + floats]
        self.packed_nbytes += a.nbytes
        return a, self.keep(a)

    def workspace(self, size: int, k: int) -> ctypes.c_void_p:
        """Returns the address of scratch memory for call k."""
        pointer = ctypes.c_void_p()
        self.scratch.append((Life(size, k, k), pointer, []))
        return pointer

    def array(self, value: Any) -> Any:
        """Returns the elements of a value during a run."""
        if isinstance(value, list):
            return [self.array(v) for v in value]
        if not isinstance(value, Value):
            return value
        return self.arrays[value] if value.constant is None else value.constant.array

    def note(self, call: Call, what: str) -> None:
        from alpha.inference.passes import layer
        self.lines.append((layer(call), what))

    # ---- running -----------------------------------------------------------------------------------------------------

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """Returns new arrays with the results."""
        native.library()    # sets the number of threads
        for value, a in zip(self.program.inputs, inputs):
            self.arrays[value] = a
            self.pointers[value].value = native.ptr(a).value
        for value, root in self.views:
            self.arrays[value] = self.arrays[root].reshape(value.shape)
        for step in self.joined:
            step()
        return [self.array(v).copy() for v in self.program.outputs]
