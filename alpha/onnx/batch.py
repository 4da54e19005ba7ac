"""Which parts of a traced program depend on the number of samples, found by tracing it with other numbers.

A file may say that its number of samples is open if every difference between the traces is understood: a shape that
follows the number of samples, a slice that keeps its distance from an end, a constant of equal rows. Anything else
raises Baked, and the file then takes the number of samples of the example alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from alpha import no_grad
from alpha.core.errors import AlphaError
from alpha.core.tensor import Tensor, tensor
from alpha.inference.program import Call, Program, Value, op_named
from alpha.inference.trace import trace_once
from alpha.nn import Module
from alpha.onnx.constants import folded

# Ops with attributes that follow the number of samples, of which the rules of nodes.py make sense.
FOLLOWING = ("expand", "reshape", "slice_axes")
# Ops whose rules write weights from the elements of arguments: a computed value cannot stand there.
WEIGHTED = ("conv2d", "conv2d_bias_act", "conv2d_dgrad", "coconv2d", "coconv2d_bias_act", "batch_norm_act",
            "batch_norm_add_act", "layer_norm", "group_norm", "linear", "mix_rows")


class Baked(Exception):
    """Something in the program holds for one number of samples alone."""


@dataclass
class Batch:
    """The numbers of samples that were traced, and the sizes that follow them.  The first is the example's.

    Attributes:
        numbers: of samples, one per trace.
        shapes: of each value, one per trace; a value that is not here has one shape.
        ranges: of each call of slice_axes, one per trace.
    """

    numbers: tuple[int, ...]
    shapes: dict[Value, tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    ranges: dict[Call, tuple[Any, ...]] = field(default_factory=dict)

    @property
    def is_open(self) -> bool:
        """Whether other numbers than the example's were traced."""
        return len(self.numbers) > 1

    def lengths(self, value: Value, axis: int) -> tuple[int, ...]:
        """Returns how long an axis is in each trace."""
        return tuple([shape[axis] for shape in self.shapes.get(value, (value.shape,) * len(self.numbers))])

    def size(self, value: Value, axis: int) -> int:
        """Returns how long an axis is.  Raises Baked if that depends on the number of samples."""
        found = self.lengths(value, axis)
        if len(set(found)) > 1:
            raise Baked(f"axis {axis} of a value of shape {value.shape} has {self.told(found)}")
        return found[0]

    def told(self, found: Sequence[object]) -> str:
        """Returns two different values with their numbers of samples."""
        other = next(k for k, v in enumerate(found) if v != found[0])
        return " and ".join(f"{found[k]} with {self.numbers[k]} sample{'s' * (self.numbers[k] != 1)}"
                            for k in (0, other))


def closed(program: Program) -> Batch:
    """Returns the Batch where the number of samples is the example's alone."""
    return Batch((program.inputs[0].shape[0] if program.inputs[0].shape else 1,))


def opened(model: Module, examples: Sequence[Tensor], program: Program) -> tuple[Program, Batch]:
    """Returns the program for any number of samples, and the sizes that depend on it.

    Constants of equal rows, one for each sample, become one row that is expanded.
    Raises:
        Baked: an unknown difference between the traces, or a number of samples that the model does not take.
    """
    counts = {t.shape[0] for t in examples if t.ndim}
    if len(counts) != 1 or 0 in counts:
        raise Baked(f"the inputs have {' and '.join(map(str, sorted(counts))) or 'no'} samples")
    (n,) = counts
    numbers = (n, *[m for m in (1, n + 1, n + 2, n + 5) if m != n])
    others = []
    for m in numbers[1:]:
        rows = np.arange(m) % n
        try:
            with no_grad():
                others.append(folded(trace_once(model, [tensor(t.numpy()[rows]) if t.ndim else t for t in examples])))
        except Exception as error:  # of the model, too
            text = str(error).split("\n")[0] if isinstance(error, AlphaError) else f"{type(error).__name__}: {error}"
            raise Baked(f"with {m} sample{'s' * (m != 1)} the model stops: {text}") from error
    return _Comparison(program, others, Batch(numbers)).result()


class _Comparison:
    """Walks along the calls of several traces."""

    def __init__(self, program: Program, others: Sequence[Program], batch: Batch) -> None:
        self.program, self.others, self.batch = program, others, batch
        self.same: list[dict[Value, Value]] = [{} for _ in others]
        self.rows: dict[Value, Value] = {}      # constants of equal rows: their substitutes
        self.calls: list[Call] = []

    def result(self) -> tuple[Program, Batch]:
        for p in self.others:
            if len(p.calls) != len(self.program.calls):
                names = [[c.op.name for c in q.calls] for q in (self.program, p)]
                raise Baked(f"the model calls {len(names[0])} ops with {self.batch.numbers[0]} samples, and "
                            f"{len(names[1])} with {self.batch.numbers[1 + self.others.index(p)]}")
        for values in zip(self.program.inputs, *[p.inputs for p in self.others]):
            self._pair(*values)
        for calls in zip(self.program.calls, *[p.calls for p in self.others]):
            self._compare(*calls)
        outputs = [self._argument("the model", "returns", *values) for values in zip(
            self.program.outputs, *[p.outputs for p in self.others])]
        return replace(self.program, calls=self.calls, outputs=outputs), self.batch

    def _pair(self, mine: Value, *theirs: Value) -> None:
        shapes = (mine.shape, *[v.shape for v in theirs])
        if len({len(shape) for shape in shapes}) > 1:
            raise Baked(f"a value has shape {self.batch.told(shapes)}")
        self.batch.shapes[mine] = shapes
        for same, value in zip(self.same, theirs):
            same[mine] = value

    def _compare(self, mine: Call, *theirs: Call) -> None:
        name = mine.op.name
        for k, other in enumerate(theirs, 1):
            if other.op is not mine.op:
                raise Baked(f"the model calls {self.batch.told([name, *[name] * (k - 1), other.op.name])}")
        args = [self._argument(name, "reads", *values) for values in zip(mine.args, *[c.args for c in theirs])]
        for key, value in mine.attrs.items():
            found = (value, *[c.attrs[key] for c in theirs])
            if name not in FOLLOWING and any(v != value for v in found):
                raise Baked(f"{name} has {key} = {self.batch.told(found)}")
        call = replace(mine, args=args)
        if name == "slice_axes":
            self.batch.ranges[call] = tuple([c.attrs["ranges"] for c in (mine, *theirs)])
        self.calls.append(call)
        for values in zip(mine.outs, *[c.outs for c in theirs]):
            self._pair(*values)

    def _argument(self, name: str, does: str, mine: Any, *theirs: Any) -> Any:
        if isinstance(mine, list):
            if any(len(v) != len(mine) for v in theirs):
                raise Baked(f"{name} {does} {self.batch.told([len(v) for v in (mine, *theirs)])} values")
            return [self._argument(name, does, *values) for values in zip(mine, *theirs)]
        if not isinstance(mine, Value):
            if any(type(v) is not type(mine) or (v != mine and mine == mine) for v in theirs):
                raise Baked(f"{name} {does} the number {self.batch.told((mine, *theirs))}")
            return mine
        if mine.constant is None:
            if any(same.get(mine) is not v for same, v in zip(self.same, theirs)):
                raise Baked(f"{name} {does} the result of another call with another number of samples")
            return mine
        return self._constant(name, does, mine, *theirs)

    def _constant(self, name: str, does: str, mine: Value, *theirs: Value) -> Value:
        values = (mine, *theirs)
        if mine in self.rows:
            return self.rows[mine]
        if any(v.constant is None for v in theirs):
            raise Baked(f"{name} {does} a constant, which is computed with another number of samples")
        arrays = [v.constant.numpy() for v in values]  # type: ignore[union-attr]
        if all(v.constant.array is mine.constant.array or (  # type: ignore[union-attr]
                a.shape == arrays[0].shape and a.tobytes() == arrays[0].tobytes()) for a, v in zip(arrays, values)):
            return mine
        if not all(a.ndim == arrays[0].ndim > 0 and a.shape[0] == n and a.shape[1:] == arrays[0].shape[1:]
                   and all(row.tobytes() == arrays[0][0].tobytes() for row in a)
                   for a, n in zip(arrays, self.batch.numbers)) or name in WEIGHTED or name == "the model":
            raise Baked(f"{name} {does} a constant of shape {arrays[0].shape}, which differs with other numbers of "
                        "samples")
        row = Value((1, *mine.shape[1:]), mine.dtype, tensor(arrays[0][:1]), mine.name)
        made = self.rows[mine] = Value(mine.shape, mine.dtype)
        self.batch.shapes[made] = tuple([v.shape for v in values])
        self.calls.append(Call(op_named("expand"), [row], {"shape": mine.shape}, [made]))
        return made
