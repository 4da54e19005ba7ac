"""How a result is made again: its op, the op's sources, and the readers that are left.

A node of the graph that would save a result may save a Part of a Recipe instead. The result is made when backward first
asks for it, once, and goes when its last reader is done: a node that was released, or another recipe that was followed.
The sources of a recipe are arrays, held, and parts of other recipes.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import nullcontext
from time import perf_counter
from typing import Any
from weakref import ref

from alpha.core import versions
from alpha.core.call import Settled, recorders
from alpha.core.config import config
from alpha.core.device import Array, get_backend
from alpha.core.errors import GraphError, message
from alpha.core.graph import no_grad, state
from alpha.core.op import Op
from alpha.core.saved import EARLY, Part, Values
from alpha.core.tensor import Tensor

SETTINGS = ("precision", "tensor_cores", "cpu_kernels")  # on which the bits of a result may depend


class Count:
    """The bytes made again since the count began, in the process.

    Attributes:
        kept: bytes that were saved as they are, while recomputation was on.
        planned: bytes that were not kept.
        made: bytes that were made again; times: how often; ms: the host's time for it, on the CPU the whole work.
    """

    def __init__(self) -> None:
        self.kept = self.planned = self.made = self.times = 0
        self.ms = 0.0


count = Count()
_lock = threading.RLock()


class Recipe:
    """How the outs of one call of an op are made again, those that `outs` names.

    Attributes:
        sources: per arg of the op an array, a Part, a number, None, or a list of such; None when no reader is left.
        kept: per out of the op the array that is not made again and `again` reads; None elsewhere.
        outs: indices of the outs that are made again.
        data: the results, while they are there.
        readers: how many nodes and recipes may still ask; asked: for which of the outs, by number.
        originals: weak references to the arrays that the call made.
        memories: keys of the memory of held arrays.
        order: number of the call's node.
        offered: bytes moved to make it again, as long as who saves a result holds it (in `data`), see plan.Tally; 0.
        price: those bytes per byte of the results.
        early: how many recipes may ask for a form that others follow, for which the results are made twice perhaps.
        passes: whether results that are made on the way to others' are dropped then, and made once more for nodes, if
            that takes one cheap call.
    """

    __slots__ = ("__weakref__", "asked", "attrs", "data", "device", "early", "forms", "kept", "memories", "nbytes",
                 "offered", "op", "order", "originals", "outs", "passes", "price", "readers", "settings", "sources")

    def __init__(self, op: Op, attrs: dict[str, Any], device: str, sources: list[Any] | None, arrays: Sequence[Array],
                 outs: tuple[int, ...], order: int, passes: bool = False) -> None:
        backend = get_backend(device)
        self.op, self.attrs, self.device, self.outs = op, attrs, device, outs
        self.sources: list[Any] | None = sources
        self.kept = [None if k in outs else a for k, a in enumerate(arrays)] if op.again else []
        self.data: dict[int, Array] | None = None
        self.readers, self.early, self.order, self.passes = 0, 0, order, passes
        self.offered, self.price = 0, 0.0
        self.asked = dict.fromkeys(outs, 0)
        self.originals = {k: ref(arrays[k]) for k in outs}
        self.forms = {k: backend.form(arrays[k]) for k in outs}
        self.nbytes = sum([arrays[k].nbytes for k in outs])
        self.settings = tuple([getattr(config, name) for name in SETTINGS])
        held = [a for a in _flat(sources or ()) if _is_array(a)] + [a for a in self.kept if a is not None]
        self.memories = frozenset(map(backend.memory_key, held))
        self.sources = [_held(backend, s) for s in sources or ()]
        for part in self._parts():
            part.recipe.read(part)
            part.recipe.early += part.is_early
        versions.remember(self)

    def result(self, k: int, form: str | None, passing: bool = False) -> Array:
        """Returns one of the outs, made if it is not there, in a form.  passing: on the way to another recipe's."""
        with _lock:
            if self.data is None or k not in self.data:
                self.data = self._make()
                self.passes = self.passes and passing and self._can_pass()
                if state.retained is not None:
                    state.retained.append(self)  # made once more in the next pass
                elif not self.early and not self.passes:
                    self._drop_sources()
            backend, found = get_backend(self.device), self.data[k]
            token = backend.form(found)
            if token is not None:
                if form is None:
                    form = (self.forms[k] or [""])[0]
                elif form in EARLY and token[0] not in ("", form) and self.sources is not None:
                    found = self._make()[k]  # it has come further than it had when it was read
                backend.write_as(found, form)
            return found

    def read(self, part: Part) -> None:
        """Says that a part of it may be asked for once more."""
        self.readers += 1
        self.asked[part.number] += 1

    def done(self, part: Part | None = None, early: bool = False) -> None:
        """Says that one reader has no need of a part any more; None: that no reader has.

        early: whether that was one of `early`.
        """
        if part is not None:
            self.readers -= 1
            self.early -= early
            self.asked[part.number] -= 1
            if self.data is not None and not self.asked[part.number]:
                self.data.pop(part.number, None)
        if self.readers <= 0:
            self.data = None
        # Results that were made, all of them, need no sources any more once no reader asks for an earlier form.
        made = early and not self.early and not self.offered and not self._is_missing()
        if self.readers <= 0 or (made and state.retained is None):
            self._drop_sources()

    def _can_pass(self) -> bool:
        """Tells whether results that are there may go: others hold the sources of the cheap call that makes them."""
        return self.readers == 2 and all(p.recipe.data is not None and p.recipe.readers > 1 and not p.is_early
                                         for p in self._parts())

    def _passed(self) -> None:
        """Drops the result that was made for the recipe that asked; the next one that asks holds it."""
        if self.passes and self.data is not None:
            self.data, self.passes = None, False

    def settle(self) -> None:
        """Makes the results now, to be kept: something that they are made of is about to change."""
        with _lock:
            if self.sources is not None:
                if self._is_missing():
                    self.data = self._make()
                self._drop_sources()

    def _is_missing(self) -> bool:
        """Tells whether something that may be asked for is not there."""
        return any(n and k not in (self.data or ()) for k, n in self.asked.items())

    def offer(self, moved: int) -> None:
        """Says that who saves a result is to hold it so far.  moved: bytes, to make it again."""
        self.offered, self.price = moved, moved / self.nbytes

    def needed(self) -> list[Recipe]:
        """Returns the recipes that are followed once this one's results are let go of, unheld ones too."""
        found, waiting = [], [self]
        while waiting:
            recipe = waiting.pop()
            if recipe not in found:
                found.append(recipe)
                waiting += [p.recipe for p in recipe._parts() if p.recipe.offered and p.recipe.data is None]
        return found

    def forget(self) -> None:
        """Drops the results, if they can be made again."""
        if self.sources is not None:
            self.data = None

    def _parts(self) -> list[Part]:
        return [s for s in _flat(self.sources or ()) if s.__class__ is Part]

    def _drop_sources(self) -> None:
        if self.sources is None:
            return
        parts, self.sources = self._parts(), None
        self.kept, self.memories, self.offered = [], frozenset(), 0
        versions.recipes.discard(self)
        for part in parts:
            part.recipe.done(part, part.is_early)

    def _make(self) -> dict[int, Array]:
        if versions.newest > self.order:
            self._refuse_changed()
        arrays = [_array(s) for s in self.sources or ()]
        begin = perf_counter()
        now = tuple([getattr(config, name) for name in SETTINGS])
        then = nullcontext() if now == self.settings else config(**dict(zip(SETTINGS, self.settings)))
        with then, get_backend(self.device).undisturbed():
            made = self._again(arrays) if self.op.again else self._called(arrays)
        count.made += self.nbytes
        count.times += 1
        count.ms += (perf_counter() - begin) * 1e3
        for part in self._parts():
            part.recipe._passed()
        return {k: made[k] for k in self.outs if self.asked[k]}

    def _refuse_changed(self) -> None:
        """Raises GraphError if a source was changed by a way that does not say so before."""
        for a in _flat(self.sources or ()):
            if _is_array(a) and versions.changed_since(self.device, a, self.order):
                raise GraphError(message(
                    "backward", f"what {self.op.name} has read was changed in place after the forward pass, and its "
                    f"result is to be made again ({versions.told_since(self.device, a, self.order)})",
                    'change it after backward, or keep results: with alpha.config(recompute="none"): ...',
                    shape=tuple(a.shape)))

    def _called(self, arrays: list[Any]) -> Sequence[Array]:
        """Returns the results of the op's implementation on the same arrays."""
        op = self.op
        implementation = op.impls.get(self.device) or op._find(self.device)
        if recorders:
            args = [self._tensor(x) for x in arrays]
            outs = Settled(op, args, self.attrs, self.device, op.check(args)[2]).outs
            implementation = recorders[-1](op, implementation, outs)
        made = implementation(*arrays, **self.attrs)
        results = [made] if op.single else list(made)
        return [get_backend(self.device).accept(a) for a in results] if op.checked else results

    def _again(self, arrays: list[Any]) -> Sequence[Array]:
        """Returns the results of the op's `again`, computed from its args and the outs that were kept."""
        values: dict[str, Any] = {a.name: self._tensor(x) for a, x in zip(self.op.args, arrays)}
        values["_op"] = self.op
        values.update({name: self._tensor(a) for name, a in zip(self.op.outs, self.kept) if a is not None})
        with no_grad():
            made = self.op.again(Values(values), **self.attrs)  # type: ignore[misc]
        found = made if isinstance(made, (tuple, list)) else [made]
        result: list[Any] = [None] * len(self.op.outs)
        for k, t in zip(self.outs, found):
            result[k] = t.array
        return result

    def _tensor(self, x: Any) -> Any:
        if isinstance(x, list):
            return [self._tensor(a) for a in x]
        return Tensor(x, tuple(x.shape), str(x.dtype), self.device) if _is_array(x) else x


def _is_array(x: Any) -> bool:
    return hasattr(x, "nbytes") and hasattr(x, "shape") and x.__class__ is not Part


def _held(backend: Any, source: Any) -> Any:
    if source.__class__ is list:
        return [_held(backend, s) for s in source]
    return backend.held(source) if _is_array(source) else source


def _array(source: Any) -> Any:
    if source.__class__ is Part:
        return source.array(passing=True)
    return [_array(s) for s in source] if source.__class__ is list else source


def _flat(sources: Sequence[Any]) -> list[Any]:
    found: list[Any] = []
    for s in sources:
        if s.__class__ is list:
            found += s
        elif s is not None:
            found.append(s)
    return found
