"""One forward pass in inference mode, recorded as a Program; and two on other data, which must do the same."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from alpha.core import op as ops_seam
from alpha.core.device import FLOAT_DTYPES
from alpha.core.errors import ArgumentError, ConfigError, DeviceError, GraphError, message, shown
from alpha.core.graph import no_grad
from alpha.core.op import Op
from alpha.core.table import settle
from alpha.core.tensor import Tensor, tensor
from alpha.inference.program import Call, Piece, Program, Value
from alpha.nn import Module
from alpha.nn.module import evaluating

WHERE = "inference"


def examples_of(where: str, model: Module, example: Any) -> Sequence[Tensor]:
    """Returns the inputs of an example, one or several.  Raises ArgumentError if they or the model are none."""
    if not isinstance(model, Module):
        raise ArgumentError(message(where, f"model is {shown(model)}, a Module is needed", "pass an nn.Module"))
    examples = (example,) if isinstance(example, Tensor) else example
    if not isinstance(examples, (tuple, list)) or not examples or not all(isinstance(t, Tensor) for t in examples):
        raise ArgumentError(message(where, f"example is {shown(example)}, a Tensor or a tuple of them is needed",
                                    "pass an input as the model takes it: alpha.zeros((1, 32, 32, 3))"))
    return examples


class _Tracer:
    """Writes down the calls of one thread.  Values are told apart by their arrays, which it keeps alive."""

    def __init__(self, model: Module, inputs: Sequence[Tensor]) -> None:
        self.thread = threading.get_ident()
        self.device = inputs[0].device
        self.own = {id(t.array): (name, t) for name, t in (*model.named_parameters(), *model.named_buffers())}
        self.kept: list[Any] = [t.array for _, t in self.own.values()]
        self.values: dict[int, Value] = {}
        self.calls: list[Call] = []
        self.owned: dict[int, Tensor] = {}
        self.pieces: dict[Value, Piece] = {}
        self.inputs = [self._new(t) for t in inputs]

    def _new(self, t: Tensor) -> Value:
        value = self.values[id(t.array)] = Value(t.shape, t.dtype)
        self.kept.append(t.array)
        return value

    def value(self, t: Tensor) -> Value:
        """Returns the value that a tensor is: one made before, or a constant."""
        key = id(t.array)
        if key not in self.values:
            name, own = self.own.get(key, ("", None))
            if own is not None:
                self.owned[key] = own
            self._new(t)
            self.values[key].constant = Tensor(t.array, t.shape, t.dtype, t.device)
            self.values[key].name = name
        return self.values[key]

    def __call__(self, op: Op, args: Sequence[Any], attrs: dict[str, Any], outs: list[Tensor]) -> None:
        if threading.get_ident() != self.thread:
            return
        if op.moves or any(t.device != self.device for t in outs):
            raise DeviceError(message(WHERE, f"the model moves tensors off {self.device} ({op.name})",
                                      "let it compute on one device, and move results after the call"))
        if op.mutates and attrs.get("training", True):
            changed = " and ".join(sorted(op.mutates))
            raise ConfigError(message(WHERE, f"{op.name} changes {changed} in the forward pass",
                                      "pass training=self.training, which is False in inference; what changes a model "
                                      "from call to call cannot be repeated"))
        made = []
        for arg in args:
            made.append(self.value(arg) if isinstance(arg, Tensor) else
                        [self.value(t) for t in arg] if isinstance(arg, list) else arg)
        self.calls.append(Call(op, made, dict(attrs), [self._new(t) for t in outs]))

    def composed(self, name: str, x: Tensor, settings: dict[str, Any], results: tuple[Tensor, ...]) -> None:
        """Notes that a function of several ops made results of x."""
        if threading.get_ident() == self.thread:
            outs = [self.value(t) for t in results]
            self.pieces.update(dict.fromkeys(outs, Piece(name, self.value(x), settings, outs)))


def trace(model: Module, inputs: Sequence[Tensor]) -> tuple[Program, list[Tensor]]:
    """Returns what the model does to the inputs in inference mode, and its results.

    Raises:
        ConfigError: modules have hooks, something is changed or drawn in the forward pass, or the model does not return
            tensors.  DeviceError: it moves tensors.  GraphError: what it does depends on the data.
    """
    if any(m.hooked for m in model.modules()):
        raise ConfigError(message(WHERE, "the model has hooks, which would not be called", "remove them first"))
    with evaluating(model):
        program, results = _traced(model, inputs)
        for sign in (1, -1):
            _compare(program, _traced(model, [_other(t, sign) for t in inputs])[0])
    return program, results


def trace_once(model: Module, inputs: Sequence[Tensor]) -> Program:
    """Returns what the model does to inputs of other shapes, once `trace` has found that the data do not matter."""
    with evaluating(model):
        return _traced(model, inputs)[0]



def _traced(model: Module, inputs: Sequence[Tensor]) -> tuple[Program, list[Tensor]]:
    settle()
    tracer = _Tracer(model, inputs)
    with no_grad():
        ops_seam.observers.append(tracer)
        try:
            result = model(*inputs)
        finally:
            ops_seam.observers.remove(tracer)
    results = [result] if isinstance(result, Tensor) else result
    if not isinstance(results, (tuple, list)) or not results or not all(isinstance(t, Tensor) for t in results):
        raise ConfigError(message(WHERE, f"the model returns {shown(result)}",
                                  "return a tensor, or a tuple of tensors"))
    outputs = [tracer.value(t) for t in results]
    program = Program(tracer.device, tracer.inputs, tracer.calls, outputs, isinstance(result, Tensor),
                      list(tracer.owned.values()), pieces=tracer.pieces)
    return program, list(results)


def _other(t: Tensor, sign: int) -> Tensor:
    """Returns other data of the same shape and dtype: normal numbers times a sign; integers of the same range."""
    if t.dtype in FLOAT_DTYPES:
        drawn = np.random.default_rng(20).standard_normal(t.shape).astype(np.float32)
        return tensor(sign * drawn, device=t.device).astype(t.dtype)
    a = t.numpy()
    if a.size and a.dtype != bool:
        a = (int(a.min()) + int(a.max()) - a.astype(np.int64)).astype(a.dtype) if sign > 0 else a
    return tensor(np.ascontiguousarray(np.flip(a)), dtype=t.dtype, device=t.device)


def _compare(first: Program, second: Program) -> None:
    """Raises GraphError unless both programs are the same."""
    if len(first.calls) != len(second.calls):
        _refuse(f"one call makes {len(first.calls)} calls of ops, another one {len(second.calls)}")
    same = dict(zip(first.inputs, second.inputs))

    def alike(a: Any, b: Any) -> bool:
        if isinstance(a, list) and isinstance(b, list):
            return len(a) == len(b) and all(map(alike, a, b))
        if not isinstance(a, Value) or not isinstance(b, Value):
            return type(a) is type(b) and (a == b or a != a)
        if a.constant is None or b.constant is None:
            return same.get(a) is b
        return (a.shape, a.dtype) == (b.shape, b.dtype) and (a.constant.array is b.constant.array or np.array_equal(
            a.constant.numpy(), b.constant.numpy(), equal_nan=a.dtype in FLOAT_DTYPES))

    for k, (x, y) in enumerate(zip(first.calls, second.calls)):
        if x.op is not y.op:
            _refuse(f"call {k} is {x.op.name} for one input and {y.op.name} for another")
        if x.attrs != y.attrs:
            _refuse(f"call {k}, {x.op.name}, has other settings for another input")
        if not alike(x.args, y.args):
            _refuse(f"call {k}, {x.op.name}, reads other values for another input: what was read back or drawn")
        same.update(zip(x.outs, y.outs))
    if not alike(first.outputs, second.outputs):
        _refuse("the results come from other calls for another input")


def _refuse(what: str) -> NoReturn:
    raise GraphError(message(WHERE, f"the forward pass depends on its data: {what}", "compute with ops alone, without "
                             "branches on values, x.item(), x.numpy() or random numbers; or call the model itself"))
