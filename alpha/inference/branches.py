"""Calls that need not follow each other run side by side on a GPU: the branches of an inception block, a shortcut.

A program is cut where all that is read later was made by one call. Of a part between two cuts each call waits for those
alone whose results it reads, so that in the recording (alpha.capture) its branches share the device. One image fills a
small part of it. A part whose calls form one chain, and one of large results, which fill the device by themselves, is
launched call by call, and a value without further readers gives its memory to the calls behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

from alpha.core.device import ITEMSIZE, Backend, get_backend
from alpha.core.tensor import Tensor
from alpha.inference.program import VIEWS, Call, Program, Value, evaluate

MOST_BYTES = 64 << 20   # of the results of a part whose branches run side by side: these keep their memory to its end


class Part(NamedTuple):
    """Calls in order, and whether its branches run side by side."""

    calls: list[Call]
    forked: bool


def parts(program: Program) -> list[Part]:
    """Returns the parts of a program, in order."""
    last = _last_readers(program)
    found, part = [], list[Call]()
    open_until = max([last.get(v, 0) for v in program.inputs])  # the last reader of values made before the call
    for k, call in enumerate(program.calls):
        part.append(call)
        of_call = max([last.get(v, k) for v in call.outs])
        if open_until <= k:
            found.append(Part(part, _pays(part)))
            part = []
        open_until = max(open_until, of_call)
    return [*found, Part(part, _pays(part))] if part else found


def _last_readers(program: Program) -> dict[Value, int]:
    """Returns the place of the last call that reads each value; the caller comes behind all of them."""
    last = {v: k for k, call in enumerate(program.calls) for v in call.reads()}
    return last | dict.fromkeys(program.outputs, len(program.calls))


def _pays(calls: Sequence[Call]) -> bool:
    """Tells whether calls are more than one chain, and their results small."""
    depth: dict[Value, int] = {}
    for call in calls:
        longest = max([depth.get(v, 0) for v in call.reads()], default=0)
        depth.update(dict.fromkeys(call.outs, longest + (call.op.name not in VIEWS)))
    launched = sum(call.op.name not in VIEWS for call in calls)
    nbytes = sum(prod(v.shape) * ITEMSIZE[v.dtype] for call in calls for v in call.outs)
    return max(depth.values()) < launched and nbytes <= MOST_BYTES


class Replay:
    """A function that carries out a program, for alpha.capture."""

    def __init__(self, program: Program) -> None:
        self.program, self.parts, last = program, parts(program), _last_readers(program)
        self.unread: list[list[Value]] = [[] for _ in program.calls]    # by place: values without a reader behind it
        for k, call in enumerate(program.calls):
            for v in call.outs:
                if last.get(v, k) < len(program.calls):
                    self.unread[last.get(v, k)].append(v)

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        program, arrays = self.program, dict[Value, Any]()
        arrays.update(zip(program.inputs, [x.array for x in inputs]))
        backend, unread = get_backend(program.device), iter(self.unread)
        recorder = backend.recorder()
        with backend.inferring():
            for part in self.parts:
                forked = _Forked(backend, recorder, arrays) if part.forked and recorder and recorder.forks else None
                for call in part.calls:
                    if forked:
                        forked.evaluate(call, program.device)
                    else:
                        evaluate(call, arrays, program.device)
                    for v in next(unread):
                        del arrays[v]
                if forked:
                    recorder.join(forked.tokens.values())
        return tuple(Tensor(arrays[v] if v.constant is None else v.constant.array, v.shape, v.dtype, program.device)
                     for v in program.outputs)


class _Forked:
    """Calls of a part that wait for each other as they read each other's results."""

    def __init__(self, backend: Backend, recorder: Any, arrays: dict[Value, Any]) -> None:
        self.backend, self.recorder, self.arrays = backend, recorder, arrays
        self.tokens: dict[Value, Any] = {}      # the token that a value's readers wait for
        self.forms: dict[Value, str] = {}       # of values that may not be written yet: the first reader writes them
        self._look()
        recorder.fork()

    def evaluate(self, call: Call, device: str) -> None:
        """Runs a call behind those that it reads from."""
        self.recorder.after([self.tokens[v] for v in call.reads() if v in self.tokens])
        evaluate(call, self.arrays, device)
        token = self.recorder.done()
        for v in (*call.outs, *self._look()):
            self.tokens[v] = token

    def _look(self) -> list[Value]:
        """Returns the values that are in another form than at the last look."""
        found = {v: form for v, a in self.arrays.items() if (form := self.backend.progress(a)) is not None}
        changed = [v for v, form in found.items() if self.forms.get(v, form) != form]
        self.forms = found
        return changed
