"""One call of a module of alpha, written down as calls of its layers, and of ops between them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from alpha.core.graph import no_grad
from alpha.core.op import observers
from alpha.core.table import settle
from alpha.core.tensor import Tensor
from alpha.nn import Module


@dataclass(eq=False)
class Step:
    """A call: of a layer by its path, or of an op by its name.

    Attributes:
        args: values by number, and numbers; a list for a list of tensors.
        settings: keyword arguments of a layer, attributes of an op; tensors among them are values.
        results: numbers of the values that it makes, and their shapes.
    """

    name: str
    layer: Module | None
    args: list[Any]
    settings: dict[str, Any]
    results: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Ref:
    """A value by its number."""

    number: int


class Recorder:
    """Writes down one call of a module, which is copied: nothing of it changes.

    Attributes:
        steps: in the order of execution.
        shapes: of the values, in alpha's order of axes.
        owned: number of a value -> path of the parameter or buffer that it is.
        numbers: number of a value -> its element, of a tensor that was made of a number.
    """

    def __init__(self, model: Module, is_leaf: Callable[[Module], bool], training: bool) -> None:
        self.model = copy.deepcopy(model).train(training)
        self.steps: list[Step] = []
        self.shapes: list[tuple[int, ...]] = []
        self.owned: dict[int, str] = {}
        self.constants: dict[int, Any] = {}
        self._known: dict[int, int] = {}
        self._kept: list[Any] = []
        self._inside = 0
        self._paths = {id(t.array): path for path, t in (*self.model.named_parameters(), *self.model.named_buffers())}
        for path, module in self.model.named_modules():
            if is_leaf(module):
                object.__setattr__(module, "forward", self._called(path, module, type(module).forward))

    def _called(self, path: str, module: Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **settings: Any) -> Any:
            if self._inside:
                return forward(module, *args, **settings)
            step = Step(path, module, [self.value(a) for a in args], {k: self.value(v) for k, v in settings.items()})
            self._inside += 1
            try:
                result = forward(module, *args, **settings)
            finally:
                self._inside -= 1
            step.results = [self.new(t) for t in (result if isinstance(result, tuple) else (result,))
                            if isinstance(t, Tensor)]
            self.steps.append(step)
            return result
        return call

    def __call__(self, found: Any, args: Sequence[Any], attrs: dict[str, Any], outs: list[Tensor]) -> None:
        """Observes an op."""
        if not self._inside:
            self.steps.append(Step(found.name, None, [self.value(a) for a in args], dict(attrs),
                                   [self.new(t) for t in outs]))

    def new(self, t: Tensor) -> int:
        """Returns the number of a tensor that has just been made."""
        number = self._known[id(t.array)] = len(self.shapes)
        self.shapes.append(t.shape)
        self._kept.append(t.array)
        return number

    def value(self, x: Any) -> Any:
        """Returns an argument with a Ref in the place of each tensor."""
        if isinstance(x, (list, tuple)):
            return [self.value(item) for item in x]
        if not isinstance(x, Tensor):
            return x
        if id(x.array) not in self._known:
            number = self.new(x)
            if id(x.array) in self._paths:
                self.owned[number] = self._paths[id(x.array)]
            else:
                self.constants[number] = x.detach().numpy()
        return Ref(self._known[id(x.array)])

    def run(self, inputs: Sequence[Tensor]) -> tuple[list[Ref], Any]:
        """Calls the module and returns its inputs and outputs as values."""
        given = [Ref(self.new(t)) for t in inputs]
        with no_grad():
            settle()
            observers.append(self)
            try:
                result = self.model(*inputs)
            finally:
                observers.remove(self)
        return given, self.value(result)
