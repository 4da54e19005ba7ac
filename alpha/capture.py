"""capture: a computation that is recorded once and then repeated, so that the host pays for one launch, not hundreds.

    def step(x, y):
        loss = ops.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    step = alpha.capture(step, model, optimizer)
    for x, y in batches:
        loss = step(x, y)             # two calls run op by op, the third is recorded, and repeated from then on

Results, gradients, running statistics, parameters and the optimizer's state have the bits that the function by itself
would give. On the CPU, and wherever a call cannot be a repetition, the function is simply called.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterable
from contextlib import ExitStack
from typing import Any, NamedTuple
from weakref import WeakSet

from alpha import versions
from alpha.backend import get_backend
from alpha.config import config
from alpha.errors import AlphaError, ArgumentError, DTypeError, GraphError, message, shown
from alpha.graph import grad_enabled
from alpha.inplace import kin
from alpha.inputs.arguments import bound
from alpha.nn import Module
from alpha.optim import Lookahead, Optimizer
from alpha.optim.recorded import RecordedSteps, can_record, captured, form_of
from alpha.tensor import Tensor
from alpha.trace import watchers

WARM_UP = 2  # plain calls in a row before one is recorded: kernels are compiled and chosen, caches filled

Function = Callable[..., Any]


class _Recorded(NamedTuple):
    """A recording, and what it stands for in Python."""

    recording: Any                      # of the backend
    arrays: list[Any]                   # of the state, at the addresses that were recorded
    grads: list[tuple[Tensor, Tensor]]  # the tensors of the state that get a gradient, and these
    changed: list[Any]                  # arrays that it overwrites: running statistics, parameters, their states
    written: list[versions.History]     # of these, and of gradients
    outputs: list[Tensor]
    single: bool                        # one output, not a tuple
    steps: list[RecordedSteps]          # per optimizer


@bound
def capture(function: Function, *state: Module | Tensor | Optimizer) -> Function:
    """Returns a function that does what `function` does, on a GPU by repeating its recorded launches.

    Args:
        function: takes tensors, and returns a tensor or a tuple of tensors without a graph (`loss.detach()`). What it
            does must depend on the shapes and dtypes of its arguments alone, on the modes of the modules and on
            `alpha.precision`, not on values: it may call backward, but not read a tensor back. What it does on the host
            (printing, counting) is not repeated, but for the steps of the optimizers in the state.
        state: modules, on their device already, tensors that it reads or changes, and the optimizers whose `step` it
            calls; the parameters among them may get gradients. A gradient holds its values until the next call, and is
            None where the function ends with zero_grad. Each call asks a schedule for its rate, and reads the groups of
            parameters, so lr and the other settings may change in between.
    Returns:
        a function of the same arguments. It calls `function` plainly where a call is not the third in a row with the
        same shapes, where an argument needs a gradient or a parameter has one already (backward then adds), where
        modules or tensors have hooks, in alpha.profiler, and with ALPHA_CHECK_NAN, ALPHA_SYNC, ALPHA_DEBUG above 1 or
        ALPHA_CAPTURE=0.
        What cannot be recorded is called plainly for good, after a warning that says why.
        The call that is recorded may call `function` twice: then each array lies where the whole takes least.
    Notes:
        A recording holds the memory that the function takes at its peak, until one of other shapes is made, memory runs
        out, or the returned function is dropped. A call of other shapes in between, as of an epoch's last batch, is a
        plain one and leaves it. Other threads must leave the device alone during the third call.
    Raises:
        ArgumentError: `function` cannot be called; or an optimizer has parameters of other modules, or its steps cannot
            be recorded (Lookahead's; those of a class without `numbers`).
        DTypeError: `state` has something else than modules, tensors and optimizers.
    """
    if not callable(function):
        raise ArgumentError(message("capture", f"{shown(function)} cannot be called", "pass a function of tensors"))
    return _Captured(function, state)


class _Captured:
    """See `capture`."""

    found: _Recorded | None = None
    found_key: Any = None
    contents_version = -1   # Module.contents_version when the contents were last looked at
    running = False         # while it is called

    def __init__(self, function: Function, state: Iterable[Any]) -> None:
        items = [*state]
        self.function = function
        self.optimizers: list[Any] = [item for item in items if isinstance(item, (Optimizer, Lookahead))]
        self.state = [item for item in items if not isinstance(item, (Optimizer, Lookahead))]
        self.modules, self.tensors = self._contents()
        for optimizer in self.optimizers:
            self._check_optimizer(optimizer)
        self.key: Hashable = None   # of the last call
        self.calls = 0              # in a row with this key
        self.refused: list[Hashable] = []

    def __call__(self, *inputs: Tensor) -> Any:
        self.running = True
        try:
            return self._called(inputs)
        finally:
            self.running = False

    def _called(self, inputs: tuple[Tensor, ...]) -> Any:
        if not self._may_repeat(inputs):
            return self.function(*inputs)
        key = self._key(inputs)
        if self.found and self._is_stale(self.found):
            self.close()
            self.key = None
        if key != self.key:
            self.key, self.calls = key, 0
        if (self.found is None or key != self.found_key) and self.calls >= WARM_UP and key not in self.refused:
            self.close()
            self.found, self.found_key = self._record(inputs), key
            if self.found is None:
                self.refused.append(key)
        self.calls += 1
        for t in inputs:    # a recording reads copies: whatever the call, nothing of how they were made goes into it
            get_backend(t.device).write_as(t.array, "elements")
        if self.found is None or key != self.found_key:
            return self.function(*inputs)
        return self._repeat(self.found, inputs)

    def repeated(self, arrays: list[Any]) -> list[Any] | None:
        """Returns the arrays of a repetition, for whoever calls a function without state, with inputs of one kind and
        in one precision, under no_grad; None where there is none yet, or a setting has changed: then it is called.
        """
        found = self.found
        if (found is None or found.recording.closed or not config.capture or config.watch or watchers
                or self.found_key[3:5] != (config.tensor_cores, config.recompute)):
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

    def _contains_others(self) -> bool:
        """Tells whether the state has other modules or tensors than when it was last looked at."""
        return [[id(v) for v in found] for found in self._contents()] != [
            [id(v) for v in found] for found in (self.modules, self.tensors)]

    def close(self) -> None:
        """Gives the recording's memory back."""
        if self.found:
            self.found.recording.close()
            self.found = None

    __del__ = close

    def _may_repeat(self, inputs: tuple[Any, ...]) -> bool:
        if not config.capture or config.check_nan or config.sync or config.debug > 1 or watchers or not inputs:
            return False
        if not all(isinstance(x, Tensor) and not x.requires_grad for x in inputs):
            return False
        return (get_backend(inputs[0].device).can_record and not any(m.hooked for m in self.modules)
                and not any(t._grad is not None or t._hooks for t in self.tensors))

    def _key(self, inputs: tuple[Tensor, ...]) -> Hashable:
        return (tuple([(x.shape, x.dtype, x.device) for x in inputs]), grad_enabled(), config.precision,
                config.tensor_cores, config.recompute, tuple([m.training for m in self.modules]),
                tuple([t.requires_grad for t in self.tensors]), tuple([form_of(o) for o in self.optimizers]))

    def _is_stale(self, found: _Recorded) -> bool:
        """Tells whether a recording is gone, or is about memory where the state is no more."""
        if self.contents_version != Module.contents_version:
            self.contents_version = Module.contents_version
            if self._contains_others():
                return True
        return found.recording.closed or any(t.array is not a for t, a in zip(self.tensors, found.arrays)) or any(
            steps.is_stale() for steps in found.steps)

    def _record(self, inputs: tuple[Tensor, ...]) -> _Recorded | None:
        """Returns the recording of a call, or None, after a warning, where there can be none."""
        device, outputs, single = inputs[0].device, [], False
        self.modules, self.tensors = self._contents()   # layers may have been replaced since
        backend, arrays = get_backend(device), [t.array for t in self.tensors]
        states = [t for o in self.optimizers for slots in o._states.values() for t in slots.values()]
        before = [t._version for t in (*self.tensors, *states)]
        steps: list[RecordedSteps] = []
        attributes = [(m, dict(vars(m))) for m in self.modules]

        def on_arrays(copies: list[Any]) -> list[Any]:
            nonlocal outputs, single
            steps[:] = [RecordedSteps(o) for o in self.optimizers]
            with ExitStack() as recording:
                for each in steps:
                    recording.enter_context(each.recording())
                result = self.function(*[Tensor(a, x.shape, x.dtype, x.device) for a, x in zip(copies, inputs)])
            single = isinstance(result, Tensor)
            outputs = [result] if single else list(result)
            self._check(device, outputs, before, {name for each in steps for name in each.changed})
            return [y.array for y in outputs]

        def forget() -> None:
            """Takes back what a call has left: nothing has been computed."""
            nonlocal outputs
            outputs = []
            for m, had in attributes:
                vars(m).clear()
                vars(m).update(had)
            for t in self.tensors:
                t._grad = None  # no gradient was there, see _may_repeat
            backend.forget(arrays)  # what is derived of them must be made within the recording

        try:
            backend.forget(arrays)
            recording = backend.record(on_arrays, [x.array for x in inputs], forget)
        except AlphaError as error:
            forget()
            warnings.warn(f"{error}\nnote: the function is called op by op", stacklevel=4)
            return None
        grads = [(t, t.grad) for t in self.tensors if t.grad is not None]
        changed = [t.array for t, version in zip((*self.tensors, *states), before) if t._version != version]
        histories = versions.histories(device, [*changed, *[g.array for _, g in grads]])
        return _Recorded(recording, arrays, grads, changed, histories, outputs, single, steps)

    def _check(self, device: str, outputs: list[Any], before: list[int], stepped: set[int]) -> None:
        """Raises GraphError for a function that cannot be repeated.  stepped: ids of what optimizers change."""
        for y in outputs:
            if not isinstance(y, Tensor) or y.requires_grad or y.device != device:
                raise GraphError(message("capture", f"the function returns {y!r:.60}", "return a tensor on the device "
                                         "of the arguments, or a tuple of them, without a graph: loss.detach()"))
        if self._contains_others():
            raise GraphError(message("capture", "the function sets a parameter or a buffer of a module anew, which "
                                     "would not be repeated", "overwrite the elements: self.mean.copy_(...)"))
        if any(t.requires_grad and t._version != version and id(t) not in stepped
               for t, version in zip(self.tensors, before)):
            raise GraphError(message("capture", "the function changes a parameter, with a learning rate and a count of "
                                     "steps that would not be repeated", "pass the optimizer that its step is of: "
                                     "alpha.capture(step, model, optimizer)"))

    def _repeat(self, found: _Recorded, inputs: tuple[Tensor, ...]) -> Any:
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
        return results[0] if found.single else tuple(results)
