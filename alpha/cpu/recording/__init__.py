"""The work of a function on the CPU, noted once and then repeated: alpha.capture and alpha.inference.

    recording = Recording(function, [x, y])     # function(arrays) -> arrays; nothing has been computed yet
    loss, classes = recording.replay([x, y])    # kernels in a row are one call into C++

While the function is called, `native.loaded` and `native.library` return a Door: a call of a kernel is noted with the
addresses and numbers of the time, and not made. Arrays come from the recording's own memory (arena.py). What an op's
implementation does by NumPy cannot be noted bit by bit: the whole implementation becomes one call of the host, which a
repetition makes between the kernels. It is found out by trying: guard.py.

Steps of optimizers are calls of the host, too, with the settings of the time; an op that draws random numbers gets its
place in the stream anew.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from alpha import random
from alpha.core.call import recorders
from alpha.core.config import config
from alpha.cpu import memory, native
from alpha.cpu.recording.arena import Arena
from alpha.cpu.recording.recorder import Recorder
from alpha.cpu.recording.steps import HostCall, joined

Array = np.ndarray
Arrays = Sequence[Array]

_forks = 0  # how often this process is another one: threads of kernels, and so their memory, are fewer


def _after_fork() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def settings() -> tuple[Any, ...]:
    """Returns the settings that recorded calls depend on, besides those that alpha.capture looks at."""
    return (config.num_threads, config.cpu_kernels, config.conv_algorithm, config.conv_workspace_mib,
            config.conv_sparsity, _forks)


class Recording:
    """A function's work on the CPU, and the memory that it uses.

    Args:
        function: gets arrays like `inputs` and returns those of its results.
        inputs: arrays whose elements differ from replay to replay.
        forget: drops the function's leftovers; where its arrays would take less memory in other places, it is
            called again then. None: it is called once.
    Raises:
        AlphaError: it reads elements back, makes arrays from host data, or draws random numbers on the host.
        What the function raises. In each case nothing has been computed, and nothing is recorded.
    """

    nbytes = 0  # that the pool counts as live

    def __init__(self, function: Callable[[list[Array]], list[Array]], inputs: Arrays,
                 forget: Callable[[], None] | None = None) -> None:
        gc.collect()
        memory.pool.free_cached()
        self._settings: tuple[Any, ...] | None = settings()
        self._record(function, inputs, Arena())
        if forget and (plan := self._arena.plan()):
            self.inputs, self.outputs, self._steps, self._recorder = [], [], [], None
            forget()
            gc.collect()
            self._record(function, inputs, Arena(plan))
        self._arena.shrink()
        self.nbytes = self._arena.managed_bytes
        memory.pool.reserve(self.nbytes)

    def _record(self, function: Callable[[list[Array]], list[Array]], inputs: Arrays, arena: Arena) -> None:
        self._arena, state, collects = arena, random.get_state(), gc.isenabled()
        recorder = self._recorder = Recorder(arena)
        gc.disable()    # the order in which arrays are freed decides about their places
        here = memory.here
        before = here.instead, here.recorder
        here.instead, here.recorder = recorder.empty, recorder
        recorders.append(recorder.around)
        try:
            with native.recorded_by(recorder), random.told() as recorder.offsets:
                self.inputs = [recorder.empty(x.shape, x.dtype) for x in inputs]
                self.outputs = function(self.inputs)
                if not recorder.placed >= {*recorder.offsets}:
                    raise recorder.refusal("random numbers are drawn on the host")
        finally:
            recorders.remove(recorder.around)
            here.instead, here.recorder = before
            if collects:
                gc.enable()
            self._drawn = random.get_state()[1] - state[1]
            random.set_state(*state)
        self.steps = recorder.steps
        self._steps, self._tables = joined(recorder.steps, recorder.library)
        self._drawing = [step for step in recorder.steps if isinstance(step, HostCall) and step.ahead is not None]

    @property
    def lines(self) -> list[tuple[str, str]]:
        """For each call of an op, its name and its kernels: "NumPy" for a call of the host, "" for a view."""
        return self._recorder.lines if self._recorder else []

    @property
    def prepared_nbytes(self) -> int:
        """Bytes of weights in the form in which kernels read them."""
        return self._recorder.prepared_nbytes if self._recorder else 0

    @property
    def unshared_nbytes(self) -> int:
        """Bytes that its arrays would take if none shared memory."""
        return self._arena.all_bytes

    def replay(self, inputs: Arrays, numbers: Iterable[tuple[Array, tuple[float, ...]]] = ()) -> list[Array]:
        """Repeats the recorded work on other inputs of the same shapes and dtypes.

        Args:
            numbers: those of steps, for the arrays that `step_numbers` has given.
        Returns new arrays; other arrays that the function has written are written again.
        """
        native.library()    # sets the number of threads
        for to, x in zip(self.inputs, inputs):
            np.copyto(to, x)
        for at, values in numbers:
            at[...] = values
        if self._drawn:
            seed, counter = random.get_state()
            for step in self._drawing:
                step.attrs.update(seed=seed, offset=counter + (step.ahead or 0))
            random.set_state(seed, counter + self._drawn)
        for run in self._steps:
            run()
        found = []
        for y in self.outputs:
            found.append(memory.empty(y.shape, y.dtype))
            np.copyto(found[-1], y)
        return found

    @property
    def closed(self) -> bool:
        """Whether it cannot be repeated: its memory was given back, or settings are others."""
        return self._settings != settings()

    def close(self) -> None:
        """Gives the memory back; arrays that the function has left elsewhere, gradients say, keep theirs."""
        if self._settings is not None:
            self._settings = None
            memory.pool.reserve(-self.nbytes)
            self.inputs, self.outputs, self._steps, self._drawing, self._recorder = [], [], [], [], None
            self.steps = []
            self._arena.close()
