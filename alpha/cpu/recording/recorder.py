"""The calls of a function that is recorded: kernels are noted, and an op that NumPy computes is one call of the host.

See alpha.cpu.recording.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from threading import get_ident
from typing import Any

import numpy as np

from alpha import random
from alpha.core.errors import AlphaError, message
from alpha.core.tensor import Tensor
from alpha.cpu import memory, native
from alpha.cpu.library import OF_TABLES, SIGNATURES, gives, kinds, word
from alpha.cpu.recording.arena import Arena, Place
from alpha.cpu.recording.guard import Guarded, Looked, plain
from alpha.cpu.recording.guard import memory as memory_of
from alpha.cpu.recording.steps import HostCall, Launch

Array = np.ndarray


class Door:
    """Stands for the library while a function is recorded: kernels that the recording thread calls are noted."""

    def __init__(self, library: Any, recorder: Recorder) -> None:
        self._library, self._recorder = library, recorder

    def __getattr__(self, name: str) -> Any:
        real, recorder = getattr(self._library, name), self._recorder
        if name in OF_TABLES or name not in SIGNATURES or not recorder.is_here():
            return real
        return partial(recorder.launch, name)


class Recorder:
    """What the backend asks and tells while a function is recorded."""

    forks = False   # branches do not run side by side: each kernel has all cores

    def __init__(self, arena: Arena) -> None:
        self.arena, self.library = arena, native.library()
        self.steps: list[Any] = []
        self.lines: list[tuple[str, str]] = []  # per call: the op, and its kernels
        self.held: dict[int, Array] = {}        # arrays that were there before, by their ids
        self.constants = False                  # whether those stay as they are: of inference
        self.prepared_nbytes = 0
        self._kept: list[Any] = []              # tables that words point to
        self._known: dict[int, Array] = {}      # arrays that kernels may read, besides those that are guarded
        self._prepared: dict[Any, Array] = {}
        self._fresh: list[Array] = []           # arrays that the implementation has asked for
        self._guarding = False                  # while an implementation is tried
        self._thread, self._before = get_ident(), random.get_state()[1]
        self._step = self._whole = False        # within an update; whether that is one call of the host
        self.offsets: list[int] = []            # of random numbers that were given out,
        self.placed: set[int] = set()           # and of those that calls draw

    # ---- memory ------------------------------------------------------------------------------------------------------

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Takes the place of alpha.cpu.memory.empty."""
        made = self.arena.empty(shape, dtype)
        if not self._guarding:
            return made
        self._fresh.append(made)
        return made.view(Guarded)

    def is_outside(self, x: Array) -> bool:
        """Tells whether an array was there before the function."""
        return not isinstance(memory_of(x), Place)

    def alias(self, x: Any) -> Any:
        """Returns an array as a step holds it: without its piece of the arena, which serves others afterwards."""
        if isinstance(x, (list, tuple)):
            return [self.alias(a) for a in x]
        if not isinstance(x, Array):
            return x
        if not self.is_outside(x):
            return self.arena.alias(x)
        self.held[id(x)] = x
        return x

    # ---- calls of kernels --------------------------------------------------------------------------------------------

    def is_here(self) -> bool:
        """Tells whether the thread that asks is the one that records."""
        return get_ident() == self._thread

    def door(self, library: Any) -> Door:
        return Door(library, self)

    def note(self, x: Array) -> None:
        """Takes notice of an array whose address a kernel gets.  Raises Looked for one that NumPy has made."""
        if self._guarding and self.is_here() and x.__class__ is not Guarded and self._known.get(id(x)) is not x \
                and self.is_outside(x):
            raise Looked

    def keep(self, table: Any) -> None:
        """Keeps a table that a kernel reads besides arrays."""
        if self.is_here():
            self._kept.append(table)

    def launch(self, kernel: str, *args: Any) -> None:
        """Notes a call of a kernel.  Raises Looked for one whose result the host looks at."""
        if gives(kernel) or not self._guarding:
            raise Looked if self._guarding else self.refusal(f"a kernel, {kernel}, is called outside of an op")
        self._kept += [a for a in args if not isinstance(a, (int, float))]
        self.steps.append(Launch(kernel, tuple([word(kind, a) for kind, a in zip(kinds(kernel), args)])))

    def cell(self, x: Array) -> int:
        """Returns an address at which, native.DATA further, the address of an array's elements stands."""
        self.note(x)
        cell = np.array([native.ptr(x).value or 0], np.uintp)
        self._kept.append(cell)
        return int(cell.ctypes.data) - native.DATA

    # ---- constants ---------------------------------------------------------------------------------------------------

    def is_constant(self, w: Array) -> bool:
        """Tells whether weights stay as they are, and are known now."""
        return self.constants and self.is_here() and self.is_outside(w)

    def prepared(self, w: Array, key: tuple[Any, ...], make: Callable[[Array], Array]) -> Array | None:
        """See native.prepared."""
        if not self.is_constant(w):
            return None
        at = native.ptr(w).value, w.shape, key
        if at not in self._prepared:
            here, now = memory.here, self._guarding
            here.instead, here.recorder, self._guarding = None, None, False
            try:
                with native.recorded_by(None):
                    made = self._prepared[at] = make(plain(w))
            finally:
                here.instead, here.recorder, self._guarding = self.empty, self, now
            self._known[id(made)] = made
            self.prepared_nbytes += made.nbytes
        return self._prepared[at]

    # ---- calls of ops ------------------------------------------------------------------------------------------------

    def around(self, op: Any, implementation: Callable[..., Any], outs: Any) -> Callable[..., Any]:
        """Returns the function that takes an implementation's place.  outs: shapes and dtypes of the results."""
        if self._guarding or not self.is_here():
            return implementation
        return partial(self._call, op, implementation, outs)

    def _call(self, op: Any, implementation: Callable[..., Any], outs: Any, *arrays: Any, **attrs: Any) -> Any:
        if self._step and op.variadic and op.mutates:   # other attributes in each step
            self._whole = True
            return None
        draws = "seed" in attrs and attrs.get("offset") in self.offsets
        made = None
        if not draws and op.own and not op.foreign and self.library is not None:
            made = self._by_kernels(op, implementation, arrays, attrs)
        if made is None:
            made = self._by_host(op, implementation, outs, arrays, attrs, draws)
        return made[0] if op.single else tuple(made)

    def _by_kernels(self, op: Any, implementation: Callable[..., Any], arrays: Sequence[Any], attrs: dict[str, Any]
                    ) -> list[Array] | None:
        """Returns the results of an implementation that calls kernels alone; None for another one."""
        begin, pointwise = len(self.steps), getattr(implementation, "recorded", None)
        given = [a for value in (*arrays, *attrs.values()) for a in (value if isinstance(value, list) else [value])
                 if isinstance(a, Array)]
        self._guarding, self._fresh = True, []
        self._known.update({id(a): a for a in given})
        try:
            if pointwise:
                result = pointwise(*arrays, **attrs)
            else:
                result = implementation(*map(_guarded, arrays), **{name: _guarded(a) for name, a in attrs.items()})
            if result is NotImplemented:
                raise Looked
            results = [] if result is None else [result] if op.single else [*result]
            sources = [*self._fresh, *given]
            made = [_unguarded(r, sources) for r in results]
        except Looked:
            made = None
        except AlphaError:
            raise
        except Exception:   # of code that asks for the class of an array, say: the implementation is called as it is
            made = None
        finally:
            self._guarding, self._fresh = False, []
            for a in given:
                self._known.pop(id(a), None)
        if made is None or any(a is None for a in made):
            del self.steps[begin:]
            return None
        for a in given:
            self.alias(a)   # holds those from outside
        self.lines.append((op.name, ", ".join([step.kernel for step in self.steps[begin:]])))
        return made     # type: ignore[return-value]

    def _by_host(self, op: Any, implementation: Callable[..., Any], outs: Any, arrays: Sequence[Any],
                 attrs: dict[str, Any], draws: bool) -> list[Array]:
        """Notes the whole implementation as one call."""
        made = [self.empty(tuple(shape), dtype) for shape, dtype in outs]
        ahead = attrs["offset"] - self._before if draws else None
        if draws:
            self.placed.add(attrs["offset"])
        self.steps.append(HostCall(implementation, [self.alias(a) for a in arrays],
                                   {name: self.alias(a) if isinstance(a, Array) else a for name, a in attrs.items()},
                                   [self.alias(a) for a in made], ahead))
        self.lines.append((op.name, "NumPy"))
        return made

    def run(self, function: Callable[..., Any], *arrays: Any) -> None:
        """Notes a call of the host."""
        self.steps.append(partial(function, *map(self.alias, arrays)))

    # ---- steps of optimizers -----------------------------------------------------------------------------------------

    @contextmanager
    def step_numbers(self, numbers: tuple[float, ...], again: Any) -> Iterator[Array]:
        """For a block: an update finds its numbers in the array, and each repetition gives them anew.

        Where the update calls an op of alpha.ops.update, whose attributes they are, it is called again as a whole.
        """
        place, begin = np.array(numbers, np.float32), len(self.steps)
        self._step, self._whole = True, False
        try:
            yield place
        finally:
            self._step = False
        if self._whole:
            del self.steps[begin:]
            self.steps.append(again.on(lambda t: Tensor(self.alias(t.array), t.shape, t.dtype, t.device)))
            self.lines.append((type(again.optimizer).__name__, "update"))
        elif id(place) not in self.held:
            raise self.refusal("an update that does not read its numbers in memory")

    def refusal(self, what: str) -> AlphaError:
        """Returns the error of something that cannot be recorded."""
        return AlphaError(message("capture", f"{what} in the function that is recorded, which later calls would not "
                                  "repeat", "do it outside of the function"))


def _guarded(x: Any) -> Any:
    if isinstance(x, list):
        return [_guarded(a) for a in x]
    return x.view(Guarded) if isinstance(x, Array) else x


def _unguarded(r: Any, sources: Iterable[Array]) -> Array | None:
    """Returns a result as a plain array, that of its source where it is the same; None for one that NumPy has made."""
    if not isinstance(r, Guarded):
        return r if isinstance(r, Array) and not r.size else None
    whole = memory_of(r)
    source = next((a for a in sources if memory_of(a) is whole), None)
    if source is None or not r.flags.c_contiguous or r.dtype != source.dtype:
        return None
    skipped = (native.ptr(plain(r)).value or 0) - (native.ptr(source).value or 0)
    if not skipped and r.shape == source.shape:
        return source
    first = skipped // r.itemsize
    return source.reshape(-1)[first:first + r.size].reshape(r.shape)
