"""Whether a graph is right for any number of samples: the model is traced with other numbers, and compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from alpha import no_grad
from alpha.inference.program import Program
from alpha.inference.trace import trace
from alpha.nn import Module
from alpha.onnx.graph import Graph
from alpha.tensor import Tensor, tensor


class Closed(Exception):
    """The graph is right for one number of samples only: why."""


def sizes_for(examples: Sequence[Tensor]) -> tuple[int, int]:
    """Returns two other numbers of samples.  Raises Closed if the example has none to repeat, or several numbers."""
    numbers = {t.shape[0] for t in examples if t.ndim}
    if len(numbers) != 1 or 0 in numbers:
        raise Closed(f"the first axes of the example have lengths {sorted(numbers)}, one length from 1 on is open")
    (n,) = numbers
    return n + 1, 2 * n + 3     # apart from n and each other in parity or size, so halves and limits show


def traced_with(model: Module, examples: Sequence[Tensor], samples: int) -> Program:
    """Returns what the model does to another number of samples.  Raises Closed where it does not take them."""
    with no_grad():
        inputs = [_repeated(t, samples) for t in examples]
    try:
        return trace(model, inputs)[0]
    except Exception as error:      # the model's own code may raise anything
        first = (str(error).splitlines() or [""])[0]
        raise Closed(f"with {samples} the model raises {type(error).__name__}: {first}") from error


def _repeated(t: Tensor, samples: int) -> Tensor:
    if not t.ndim:
        return t.detach()
    return t.detach()[tensor(np.arange(samples, dtype=np.int64) % t.shape[0])]


def twins(mine: Program, other: Program) -> dict[Any, Any]:
    """Returns what each value and call is in another program.  Raises Closed where the calls are others."""
    if len(mine.calls) != len(other.calls):
        raise Closed(f"one number makes {len(mine.calls)} calls of ops, another one {len(other.calls)}")
    if len(mine.outputs) != len(other.outputs):
        raise Closed(f"one number makes {len(mine.outputs)} results, another one {len(other.outputs)}")
    found: dict[Any, Any] = dict(zip(mine.inputs, other.inputs))
    for k, (a, b) in enumerate(zip(mine.calls, other.calls)):
        if a.op is not b.op:
            raise Closed(f"call {k} is {a.op.name} with one number, and {b.op.name} with another one")
        found[a] = b
        found.update(zip(a.outs, b.outs))
    return found


def difference(first: Graph, program: Program, second: Graph, other: Program) -> None:
    """Raises Closed, with the call, unless two graphs are the same and their results have as many axes."""
    calls = zip(first.ends, second.ends)
    begin = 0
    for k, ((end, call), (its_end, _)) in enumerate(calls):
        where = f"call {k}, {call.op.name}, has another form with {other.inputs[0].shape[0]}"
        if end != its_end or first.nodes[begin:end] != second.nodes[begin:end]:
            raise Closed(where)
        for name in (name for node in first.nodes[begin:end] for name in node.input):
            if (name in first.weights) != (name in second.weights) or (name in first.weights and not _same(
                    first.weights[name], second.weights[name])):
                raise Closed(where)
        begin = end
    if first.nodes != second.nodes or first.weights.keys() != second.weights.keys() or not all(
            _same(a, second.weights[name]) for name, a in first.weights.items()):
        raise Closed(f"a result has another form with {other.inputs[0].shape[0]}")
    for a, b in zip(program.outputs, other.outputs):
        if len(a.shape) != len(b.shape) or a.dtype != b.dtype:
            raise Closed(f"a result has shape {a.shape} with {program.inputs[0].shape[0]}, {b.shape} with "
                         f"{other.inputs[0].shape[0]}")


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
