"""One attempt to record a call of a captured function, and what the recording stands for in Python."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

from alpha.core import leftover, versions
from alpha.core.device import get_backend
from alpha.core.errors import GraphError, message, shown
from alpha.core.leftover import Leftover
from alpha.core.table import settle
from alpha.core.tensor import Tensor
from alpha.optim.recorded import RecordedSteps

if TYPE_CHECKING:
    from alpha.capture import Captured


class Recorded(NamedTuple):
    """A recording, and what it stands for in Python."""

    recording: Any                      # of the backend
    arrays: list[Any]                   # of the state, at the addresses that were recorded
    grads: list[tuple[Tensor, Tensor | None]]   # the tensors whose gradient it sets or drops, and these
    asked: list[tuple[Tensor, bool]]    # tensors, and whether they must have a gradient from before, or must not
    changed: list[Any]                  # arrays that it overwrites: running statistics, parameters, their states
    written: list[versions.History]     # of these, and of gradients
    outputs: list[Tensor]
    kind: Any                           # what the function returns: Tensor, tuple, list, a named tuple; None
    steps: list[RecordedSteps]          # per optimizer


class Attempt:
    """Records a call of a function.

    Raises what `made` says; then everything is as it was before, as nothing has been computed.
    """

    def __init__(self, owner: Captured, inputs: tuple[Tensor, ...]) -> None:
        self.owner, self.inputs, self.device = owner, inputs, inputs[0].device
        self.backend = get_backend(self.device)
        self.tensors, self.arrays = owner.tensors, [t.array for t in owner.tensors]
        self.states = [t for o in owner.optimizers for slots in o._states.values() for t in slots.values()]
        self.before = [t._version for t in (*self.tensors, *self.states)]
        self.attributes = [(m, dict(vars(m))) for m in owner.modules]
        self.leftovers = [Leftover(t._grad) for t in self.tensors]
        self.steps: list[RecordedSteps] = []
        self.outputs: list[Tensor] = []
        self.left: list[Any] = []       # what the function leaves in place of each gradient
        self.kind: Any = None

    def made(self) -> Recorded:
        """Returns the recording.

        Raises:
            LeftoverUsed: the function uses a gradient from before the call.
            AlphaError: it cannot be recorded.  What the function raises.
        """
        leftover.recorded = {id(t) for t in self.tensors} or {0}
        try:
            self.backend.forget(self.arrays)
            recording = self.backend.record(self._on_arrays, [x.array for x in self.inputs], self._forget)
        except BaseException:
            self._forget()
            raise
        finally:
            leftover.recorded = set()
            self._give_back()   # until a repetition has computed the new ones
        changed = [t.array for t, version in zip((*self.tensors, *self.states), self.before) if t._version != version]
        grads = [(t, g) for t, g in zip(self.tensors, self.left) if g.__class__ is not Leftover]
        histories = versions.histories(self.device, [*changed, *[g.array for _, g in grads if g is not None]])
        asked = [(t, old.grad is not None) for t, old in zip(self.tensors, self.leftovers) if old.asked]
        return Recorded(recording, self.arrays, grads, asked, changed, histories, self.outputs, self.kind, self.steps)

    def used(self) -> Tensor:
        """Returns the tensor whose gradient from before the call the function uses."""
        return next(t for t, old in zip(self.tensors, self.leftovers) if old.asked and old.grad is not None)

    def _on_arrays(self, copies: list[Any]) -> list[Any]:
        """Calls the function on arrays, as the backend asks for it once or twice."""
        owner = self.owner
        self.steps[:] = [RecordedSteps(o) for o in owner.optimizers]
        for t, old in zip(self.tensors, self.leftovers):
            t._grad, old.asked = old, False  # type: ignore[assignment]
        with ExitStack() as recording:
            for each in self.steps:
                recording.enter_context(each.recording())
            result = owner.function(*[Tensor(a, x.shape, x.dtype, x.device) for a, x in zip(copies, self.inputs)])
        settle()
        self.left = [t._grad for t in self.tensors]
        self._take(result)
        if owner.contains_others():
            raise GraphError(message("capture", "the function sets a parameter or a buffer of a module anew, which "
                                     "would not be repeated", "overwrite the elements: self.mean.copy_(...)"))
        stepped = {name for each in self.steps for name in each.changed}
        if any(t.requires_grad and t._version != version and id(t) not in stepped
               for t, version in zip(self.tensors, self.before)):
            raise GraphError(message("capture", "the function changes a parameter, with a learning rate and a count of "
                                     "steps that would not be repeated", "pass the optimizer that its step is of: "
                                     "alpha.capture(step, model, optimizer)"))
        return [y.array for y in self.outputs]

    def _take(self, result: Any) -> None:
        """Notes what the function returns.  Raises GraphError for what cannot be repeated."""
        several = type(result) is list or isinstance(result, tuple)
        self.kind = None if result is None else type(result) if several else Tensor
        self.outputs = [] if result is None else list(result) if several else [result]
        for y in self.outputs:
            if not isinstance(y, Tensor):
                text = f"{y!r:.60}" if isinstance(y, (str, int, float)) else shown(y)   # a repr may read tensors
                what = f"{text}, which is not a tensor"
            elif y.requires_grad:
                what = f"{shown(y)} with its graph, which a repetition does not make"
            elif y.device != self.device:
                what = f"{shown(y)} on {y.device}, and its arguments are on {self.device}"
            else:
                continue
            raise GraphError(message("capture", f"the function returns {what}", "return tensors on the device of the "
                                     "arguments without a graph: loss.detach()"))

    def _give_back(self) -> None:
        """Gives the tensors the gradients that they had."""
        for t, old in zip(self.tensors, self.leftovers):
            t._grad = old.grad

    def _forget(self) -> None:
        """Takes back what a call has left: nothing has been computed."""
        self.outputs, self.left = [], []
        for m, had in self.attributes:
            vars(m).clear()
            vars(m).update(had)
        self._give_back()
        self.backend.forget(self.arrays)  # what is derived of them must be made within the recording
