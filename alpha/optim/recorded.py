"""Steps of an optimizer within a function that is recorded: what the host computes anew each time they are repeated.

A step launches the same kernels each time; what differs, the learning rate and what follows from the number of the
step, are a few numbers. `Optimizer.numbers` makes them, and a recorded step reads them in device memory. On the CPU an
update that is one op is called again as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from math import inf
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

from alpha.core.device import get_backend
from alpha.core.errors import GraphError, message
from alpha.core.graph import no_grad
from alpha.core.inputs.kinds import Real
from alpha.core.tensor import Tensor

if TYPE_CHECKING:
    from alpha.optim.optimizer import Optimizer

Numbers = tuple[float, ...]

RATE = Real("a finite number of at least 0", lambda v: 0 <= v < inf)    # a schedule may return anything

# Optimizer -> the functions of alpha.capture that were given it; one has `running` while it is called.
captured: WeakKeyDictionary[Any, WeakSet[Any]] = WeakKeyDictionary()


def can_record(optimizer: Any) -> bool:
    """Tells whether steps can be recorded: a class has a rule or its numbers, and no subclass changes what they are of.
    """
    kinds = type(optimizer).__mro__

    def depth(name: str) -> int:
        return next((k for k, kind in enumerate(kinds) if name in vars(kind)), len(kinds))
    said = depth("numbers") if optimizer.rule is None else min(depth("numbers"), depth("rule"))
    return said < min(depth("step"), depth("zero_grad")) and said <= min(
        depth("update"), depth("formula"), depth("slots"))


def refuse_second_step(optimizer: Optimizer) -> None:
    """Raises GraphError for a step without any gradient, behind a captured function that has made it already."""
    functions = [*captured[optimizer]]
    if functions and not any(f.running for f in functions) and not any(
            p.grad is not None for group in optimizer.param_groups for p in group["params"]):
        raise GraphError(message(optimizer._name, "no parameter has a gradient, and a captured function makes the step",
                                 "drop this call of step"))


def form_of(optimizer: Optimizer) -> Hashable:
    """Returns what decides about the launches of a step."""
    return id(optimizer._states), tuple([(len(group["params"]), optimizer.form(group))
                                         for group in optimizer.param_groups])


class _Part:
    """What one update changes: parameters of a group that have had as many steps.

    Attributes:
        place: where the update reads its numbers; again: the update itself.
        settings: of the group, when they were last looked at; ready: the same, as numbers are made of them.
    """

    def __init__(self, group: Mapping[str, Any], names: list[str]) -> None:
        self.group, self.names = group, names
        self.place: Any = None
        self.again: Any = None
        self.settings: list[Any] = []
        self.ready: Mapping[str, Any] = group


class Again:
    """An update, to be called again with the settings, the rate and the step of the time, where the host computes it.

    Attributes:
        args: parameters, gradients, states and factor, as Optimizer.update takes them.
        now: settings, lr and step of the next call.
    """

    def __init__(self, optimizer: Optimizer, *args: Any) -> None:
        self.optimizer, self.args = optimizer, args
        self.now: tuple[Any, ...] = ()

    def on(self, alias: Callable[[Tensor], Tensor]) -> Again:
        """Has it hold other tensors over the same elements, made by `alias`, of the gradients and the factor."""
        params, grads, states, factor = self.args
        self.args = params, [alias(g) for g in grads], states, factor if factor is None else alias(factor)
        return self

    def __call__(self) -> None:
        (settings, lr, step), (params, grads, states, factor) = self.now, self.args
        with no_grad():
            self.optimizer.update(settings, params, grads, states, lr, step, factor)


class RecordedSteps:
    """The steps that a recorded function makes with an optimizer.

    Attributes:
        steps: a list of parts per call of `step`.
        now: the numbers of the update that is being recorded, float32, shape (number of them,).
    """

    now: Tensor

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer, self.states = optimizer, optimizer._states
        self.steps: list[list[_Part]] = []
        self._unpacked: list[Tensor] | None = None

    @contextmanager
    def recording(self) -> Iterator[None]:
        """For a block: the optimizer's steps are recorded; they count when they are repeated, and not now."""
        o = self.optimizer
        had = o.step_count, dict(o._counts)
        o._recorded = self
        try:
            yield
        finally:
            o._recorded = None
            o.step_count, o._counts = had

    @contextmanager
    def part(self, group: Mapping[str, Any], names: list[str], step: int, device: str, *args: Any) -> Iterator[None]:
        """For a block: the update of these parameters is recorded; args: see Again."""
        part = _Part(group, names)
        part.again = Again(self.optimizer, *args)
        with get_backend(device).recorder().step_numbers(self._numbers(part, step), part.again) as part.place:
            self.now, self._unpacked = Tensor(part.place, part.place.shape, "float32", device), None
            yield
        self.steps[-1].append(part)

    def unpacked(self) -> list[Tensor]:
        """Returns the numbers of the update that is being recorded one by one, shape ()."""
        if self._unpacked is None:
            self._unpacked = [*self.now]
        return self._unpacked

    def _numbers(self, part: _Part, step: int) -> Numbers:
        """Returns the numbers of a part's next step.  Raises ConfigError for a setting that is out of range."""
        o, settings = self.optimizer, [value for name, value in part.group.items() if name != "lr"]
        if settings != part.settings:
            part.ready = {**part.group, **{name: o._kinds[name].take(o._name, name, part.group[name])
                                           for name in o._defaults if name != "lr" and name in o._kinds}}
            part.settings = settings
        rate = RATE.take(o._name, "lr", o._lr(part.group))
        part.again.now = part.ready, rate, step
        return o.numbers(part.ready, rate, step)

    def next(self) -> list[tuple[Any, Numbers]]:
        """Counts the steps, and returns the numbers of each of their parts, with its place."""
        o, found = self.optimizer, []
        for parts in self.steps:
            for part in parts:
                step = o._counts[part.names[0]] + 1
                found.append((part.place, self._numbers(part, step)))
                o._counts.update(dict.fromkeys(part.names, step))
            o.step_count += 1
        return found

    def is_stale(self) -> bool:
        """Tells whether the state has been loaded anew, or parameters have had steps without the others of a part."""
        counts = self.optimizer._counts
        return self.optimizer._states is not self.states or any(
            counts.get(name) != counts.get(part.names[0]) for parts in self.steps for part in parts
            for name in part.names)

    @property
    def changed(self) -> set[int]:
        """The ids of the parameters that the steps change."""
        names = {name for parts in self.steps for part in parts for name in part.names}
        return {id(p) for group in self.optimizer.param_groups for p, name in zip(group["params"], group["names"])
                if name in names}
