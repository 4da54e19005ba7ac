"""capture: a computation that is recorded once and then repeated, so that Python runs once, not in each call.

    def step(x, y):
        optimizer.zero_grad()
        loss = ops.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = alpha.capture(step, model, optimizer)
    for x, y in batches:
        loss = step(x, y)             # two calls run op by op, the third is recorded, and repeated from then on
    print(step.status)                # "recorded", or why it is called op by op

Results, gradients, running statistics, parameters and the optimizer's state have the bits that the function by itself
would give. A GPU repeats it as one launch; the CPU calls the kernels one after the other, without the ops around them.
Wherever a call cannot be a repetition, the function is simply called.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any
from weakref import WeakSet

from alpha.capture.attempt import Attempt, Recorded
from alpha.capture.reasons import (
    Part,
    State,
    Why,
    as_warned,
    difference,
    gradient_added,
    gradient_missing,
    key_of,
    obstacle,
)
from alpha.core import versions
from alpha.core.config import config
from alpha.core.device import get_backend
from alpha.core.errors import AlphaError, ArgumentError, DTypeError, message, shown, warn
from alpha.core.graph import grad_enabled
from alpha.core.inplace import kin
from alpha.core.inputs.arguments import bound
from alpha.core.leftover import LeftoverUsed
from alpha.core.table import settle
from alpha.core.tensor import Tensor
from alpha.core.trace import watchers
from alpha.nn import Module
from alpha.optim import Lookahead, Optimizer
from alpha.optim.recorded import can_record, captured, form_of

WARM_UP = 2   # plain calls in a row before one is recorded: kernels are compiled and chosen, caches filled
PATIENCE = 5  # plain calls in a row before a warning says why

Function = Callable[..., Any]


@bound
def capture(function: Function, *state: Module | Tensor | Optimizer) -> Captured:
    """Returns a function that does what `function` does by repeating its recorded launches, or calls of CPU kernels.

    Args:
        function: takes tensors, and returns a tensor, None, or a tuple or list of tensors, without a graph
            (`loss.detach()`). What it does must depend on the shapes and dtypes of its arguments alone, on the modes of
            the modules and on `alpha.precision`, not on values: it may call backward, but not read a tensor back. What
            it does on the host (printing, counting, `list.append`) is not repeated, but for the steps of the
            optimizers in the state.
        state: modules, on their device already, tensors that it reads or changes, and the optimizers whose `step` it
            calls; the parameters among them may get gradients. A gradient is what the function by itself leaves, and
            holds its values until the next call: None where the function ends with zero_grad. A gradient from before
            the call is no input where the function drops it, as with zero_grad as its first line. Each call asks a
            schedule for its rate, and reads the groups of parameters, so lr and the other settings may change in
            between.
    Returns:
        a function of the same arguments, with a `status`: "recorded", "warming up: ...", or "called op by op: <why>".
        It calls `function` plainly where a call is not the third in a row with the same shapes, where an argument needs
        a gradient, where the function reads or adds to a gradient from before the call, where modules or tensors have
        hooks, in alpha.profiler, and with ALPHA_CHECK_NAN, ALPHA_SYNC, ALPHA_DEBUG above 1 or ALPHA_CAPTURE=0. The
        fifth plain call in a row gives a warning with the reason, once per function. What cannot be recorded is called
        plainly for good, after a warning that says why.
        The call that is recorded may call `function` twice: then each array lies where the whole takes least.
    Notes:
        A recording holds the memory that the function takes at its peak, until one of other shapes is made, memory runs
        out, or the returned function is dropped. On the CPU what NumPy computes is one call of the host in each
        repetition, and a change of num_threads, cpu_kernels or a setting of convolutions has the next call recorded
        anew. A call of other shapes in between, as of an epoch's last batch, is a
        plain one and leaves it. Other threads must leave the device alone during the third call.
    Raises:
        ArgumentError: `function` cannot be called; or an optimizer has parameters of other modules, or its steps cannot
            be recorded (Lookahead's; those of a class without `numbers`).
        DTypeError: `state` has something else than modules, tensors and optimizers.
    """
    if not callable(function):
        raise ArgumentError(message("capture", f"{shown(function)} cannot be called", "pass a function of tensors"))
    return Captured(function, state)


class Captured:
    """See `capture`."""

    found: Recorded | None = None
    found_key: Any = None
    contents_version = -1   # Module.contents_version when the contents were last looked at
    running = False         # while it is called
    plain = 0               # plain calls in a row
    called = warned = False
    why: Why | None = None  # of the last call, if it was a plain one and not a warm-up
    last_why: Why | None = None     # the latest since the last repetition

    def __init__(self, function: Function, state: Iterable[Any]) -> None:
        items = [*state]
        self.function = function
        self.optimizers: list[Any] = [item for item in items if isinstance(item, (Optimizer, Lookahead))]
        self.state = [item for item in items if not isinstance(item, (Optimizer, Lookahead))]
        self.names = State(self.state, self.optimizers)
        self.modules, self.tensors = self._contents()
        for optimizer in self.optimizers:
            self._check_optimizer(optimizer)
        self.key: Any = None        # of the last call
        self.calls = 0              # in a row with this key
        self.refused: dict[Hashable, str] = {}      # keys -> why they cannot be recorded
        self.adding: dict[Hashable, Tensor] = {}    # keys -> the tensor whose gradient from before such a call uses
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        self.__doc__ = getattr(function, "__doc__", None)
        self.__wrapped__ = function

    def __repr__(self) -> str:
        state = ", ".join([type(item).__name__ for item in (*self.state, *self.optimizers)])
        return f"<captured {self.__name__}({state}): {self.status}>"

    @property
    def status(self) -> str:
        """How the last call was made: "not called yet", "warming up: ...", "recorded", "called op by op: <why>"."""
        if not self.called:
            return "not called yet"
        if self.why is not None:
            return f"called op by op: {self.why.told()[0]}"
        return "recorded" if self.plain == 0 else (
            f"warming up: {min(self.calls, WARM_UP)} of {WARM_UP} plain calls, then one is recorded")

    def __call__(self, *inputs: Tensor, **named: Any) -> Any:
        """Calls the function, or repeats what was recorded.  Raises ArgumentError for arguments by name."""
        if named:
            raise ArgumentError(message("capture", f"the argument {next(iter(named))} is given by name",
                                        "pass the tensors by position"))
        self.running = self.called = True
        try:
            return self._called(inputs)
        finally:
            self.running = False

    def _called(self, inputs: tuple[Tensor, ...]) -> Any:
        settle()
        why = obstacle(inputs, self.modules, self.tensors, self.names)
        if why is not None:
            return self._plainly(inputs, why)
        key = key_of(inputs, grad_enabled(), self.modules, self.tensors, [form_of(o) for o in self.optimizers])
        if self.found and self._is_stale(self.found):
            self.close()
            self.key = None
        if key != self.key:
            if self.key is not None:
                why = Why(difference, (self.key, key, self.names, self.modules, self.tensors))
            self.key, self.calls = key, 0
        if (self.found is None or key != self.found_key) and self.calls >= WARM_UP and not self._why_refused(key):
            self.close()
            self.found, self.found_key = self._record(inputs, key), key
        self.calls += 1
        for t in inputs:    # a recording reads copies: whatever the call, nothing of how they were made goes into it
            get_backend(t.device).write_as(t.array, "elements")
        if self.found is None or key != self.found_key:
            return self._plainly(inputs, self._why_refused(key) or why)
        for t, had in self.found.asked:
            if (t._grad is not None) != had:
                return self._plainly(inputs, Why(gradient_missing if had else gradient_added, (self.names, t)))
        self.plain, self.why, self.last_why = 0, None, None
        return self._repeat(self.found, inputs)

    def _plainly(self, inputs: tuple[Any, ...], why: Why | None) -> Any:
        """Calls the function itself, and says why where that happens again and again."""
        self.plain += 1
        self.why, self.last_why = why, why or self.last_why
        if self.plain >= PATIENCE and not self.warned and self.last_why:
            self.warned = True
            what, fix = self.last_why.told()
            warn(message("capture", f"{self.__name__} is called op by op, not recorded: {what}", fix))
        return self.function(*inputs)

    def _why_refused(self, key: Hashable) -> Why | None:
        """Returns why calls with this key cannot be recorded, with the gradients that there are now."""
        if key in self.refused:
            return Why(as_warned, (self.refused[key],))
        if key in self.adding:
            for t in (self.adding[key], *self.tensors):
                if t._grad is not None:
                    return Why(gradient_added, (self.names, t))
        return None

    def repeated(self, arrays: list[Any]) -> list[Any] | None:
        """Returns the arrays of a repetition, for whoever calls a function without state, with inputs of one kind and
        in one precision, under no_grad; None where there is none yet, or a setting has changed: then it is called.
        """
        found = self.found
        if (found is None or found.recording.closed or not config.capture or config.watch or watchers
                or self.found_key[Part.TENSOR_CORES:Part.TRAINING] != (config.tensor_cores, config.recompute)):
            return None
        return found.recording.replay(arrays)

    def _contents(self) -> tuple[list[Module], list[Tensor]]:
        """Returns the modules and the tensors of the state."""
        modules: list[Module] = []
        tensors: list[Tensor] = []
        for item in self.state:
            if isinstance(item, Module):
                modules += item.modules()
                tensors += [*item.parameters(), *(b for _, b in item.named_buffers())]
            elif isinstance(item, Tensor):
                tensors.append(item)
            else:
                raise DTypeError(message("capture", f"the state has a {type(item).__name__}", "pass the modules and "
                                         "tensors that the function reads or changes, and its optimizers"))
        known = {id(t) for t in tensors}
        tensors += [p for o in self.optimizers for g in o.param_groups for p in g["params"] if id(p) not in known]
        return modules, tensors

    def _check_optimizer(self, optimizer: Any) -> None:
        """Raises ArgumentError for one that does not fit the rest of the state, or cannot be recorded."""
        name = type(optimizer).__name__
        if not can_record(optimizer):
            raise ArgumentError(message("capture", f"steps of {name} cannot be recorded: they differ in more than "
                                        "`numbers` would say, or it has none", "capture the rest without it, and call "
                                        "its step behind the captured function"))
        known = {id(p) for item in self.state for p in (item.parameters() if isinstance(item, Module) else [item])}
        for group in optimizer.param_groups:
            for key, p in zip(group["names"], group["params"]):
                if id(p) not in known:
                    raise ArgumentError(message("capture", f"the {name} has the parameter {key}, shape {p.shape}, "
                                                "which is not in the state", "pass the module that the optimizer was "
                                                "made for, or the tensor too"))
        captured.setdefault(optimizer, WeakSet()).add(self)

    def contains_others(self) -> bool:
        """Tells whether the state has other modules or tensors than when it was last looked at."""
        return [[id(v) for v in found] for found in self._contents()] != [
            [id(v) for v in found] for found in (self.modules, self.tensors)]

    def close(self) -> None:
        """Gives the recording's memory back."""
        if self.found:
            self.found.recording.close()
            self.found = None

    __del__ = close

    def _is_stale(self, found: Recorded) -> bool:
        """Tells whether a recording is gone, or is about memory where the state is no more."""
        if self.contents_version != Module.contents_version:
            self.contents_version = Module.contents_version
            if self.contains_others():
                return True
        return found.recording.closed or any(t.array is not a for t, a in zip(self.tensors, found.arrays)) or any(
            steps.is_stale() for steps in found.steps)

    def _record(self, inputs: tuple[Tensor, ...], key: Hashable) -> Recorded | None:
        """Returns the recording of a call; None where there can be none, after a warning, or with these gradients."""
        self.modules, self.tensors = self._contents()   # layers may have been replaced since
        call = Attempt(self, inputs)
        try:
            return call.made()
        except LeftoverUsed:
            self.adding[key] = call.used()
        except AlphaError as error:
            self.warned = True
            self.refused[key] = str(error).split("\nhelp:")[0].removeprefix("capture: ")
            warn(f"{error}\nnote: {self.__name__} is called op by op")
        return None

    def _repeat(self, found: Recorded, inputs: tuple[Tensor, ...]) -> Any:
        followers = []
        if found.changed:
            followers = [(t, kin.prepare("capture", t)) for t in self.tensors if t._kin is not None]
            versions.about_to_change(inputs[0].device, found.changed)
            get_backend(inputs[0].device).forget(found.changed)
        numbers = [pair for steps in found.steps for pair in steps.next()]
        arrays = found.recording.replay([x.array for x in inputs], numbers)
        for t, g in found.grads:
            t._grad = g
        if found.written:
            versions.note(found.written)
        for t, others in followers:
            if others:
                kin.follow(t, others)
        results = [Tensor(a, y.shape, y.dtype, y.device) for a, y in zip(arrays, found.outputs)]
        return results[0] if found.kind is Tensor else results if found.kind is list else found.kind and (
            found.kind(results) if found.kind is tuple else found.kind(*results))
