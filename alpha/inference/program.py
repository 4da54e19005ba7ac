"""What a forward pass did, as data: calls of ops between values, which passes rewrite and a device replays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from alpha.core.call import recorders
from alpha.core.device import device_type
from alpha.core.op import Op, registry
from alpha.core.tensor import Tensor

VIEWS = ("reshape",)    # ops whose result is another look at the elements of their argument


class Value:
    """A tensor of a program: an input, a constant, or a call's result.  Compared by identity.

    Attributes:
        shape, dtype: of the tensor.
        constant: its elements, where they are known before the program runs; else None.
        name: of the model's tensor that it is: "conv1.weight"; "" for others.
    """

    __slots__ = ("constant", "dtype", "name", "shape")

    def __init__(self, shape: tuple[int, ...], dtype: str, constant: Tensor | None = None, name: str = "") -> None:
        self.shape, self.dtype, self.constant, self.name = shape, dtype, constant, name


class Piece(NamedTuple):
    """What a function of several ops was called with, and made: max_pool_windows, which files have one operator for."""

    name: str
    x: Value
    settings: dict[str, Any]
    outs: list[Value]


@dataclass(eq=False)
class Call:
    """One call of an op.

    Attributes:
        args: per argument a Value, a list of Values, a number or None.
        attrs: canonical attributes.
        outs: all outputs, also the ones that nothing reads.
        residual: a Value that is added before the activation; passes set it.
        in_place: whether the result may have the memory of the residual; passes set it.
        piece: the function of several ops that the call stands for.
    """

    op: Op
    args: list[Any]
    attrs: dict[str, Any]
    outs: list[Value]
    residual: Value | None = None
    in_place: bool = False
    piece: Piece | None = None

    def reads(self) -> Iterator[Value]:
        """Yields the values that it reads, one that is read twice twice."""
        for arg in (*self.args, self.residual):
            if isinstance(arg, Value):
                yield arg
            elif isinstance(arg, list):
                yield from arg

    def arg(self, name: str) -> Any:
        """Returns what was given for an argument."""
        return self.args[[a.name for a in self.op.args].index(name)]


@dataclass
class Program:
    """Calls in order, from inputs to outputs.

    Attributes:
        outputs: what the model returns; `single` where that is one tensor.
        owned: the tensors of the model that are read.
        notes: what passes have done, for the report.
        pieces: which values functions of several ops have made.
    """

    device: str
    inputs: list[Value]
    calls: list[Call]
    outputs: list[Value]
    single: bool
    owned: list[Tensor] = field(default_factory=list)
    notes: list[tuple[str, str]] = field(default_factory=list)
    pieces: dict[Value, Piece] = field(default_factory=dict)

    def readers(self) -> dict[Value, list[Call | None]]:
        """Returns who reads each value, once for each time; None stands for the caller."""
        found: dict[Value, list[Call | None]] = {}
        for call in self.calls:
            for value in call.reads():
                found.setdefault(value, []).append(call)
        for value in self.outputs:
            found.setdefault(value, []).append(None)
        return found

    def makers(self) -> dict[Value, Call]:
        """Returns the call that makes each value."""
        return {out: call for call in self.calls for out in call.outs}

    def replace(self, old: Value, new: Value) -> None:
        """Makes everybody who reads a value read another one."""
        for call in self.calls:
            call.args = [new if a is old else [new if v is old else v for v in a] if isinstance(a, list) else a
                         for a in call.args]
            call.residual = new if call.residual is old else call.residual
        self.outputs = [new if v is old else v for v in self.outputs]


def evaluate(call: Call, arrays: dict[Value, Any], device: str) -> None:
    """Runs the implementation of one call, and adds what it makes to the arrays."""
    def of(value: Any) -> Any:
        if isinstance(value, Value):
            return arrays[value] if value.constant is None else value.constant.array
        return [of(v) for v in value] if isinstance(value, list) else value

    attrs = call.attrs if call.residual is None else {**call.attrs, "residual": of(call.residual)}
    if call.in_place:
        attrs["in_place"] = True
    run = call.op.impls.get(device_type(device)) or call.op._find(device)
    if recorders:
        run = recorders[-1](call.op, run, [(v.shape, v.dtype) for v in call.outs])
    result = run(*[of(a) for a in call.args], **attrs)
    for value, array in zip(call.outs, (result,) if call.op.single else result):
        arrays[value] = array


def op_named(name: str) -> Op:
    """Returns a registered op."""
    return registry[name]
