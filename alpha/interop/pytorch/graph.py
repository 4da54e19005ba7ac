"""The graph of a PyTorch model: one Node per call of an ATen operator, free of torch's own objects."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from alpha.core.errors import AlphaError, ConfigError, message

WHERE = "from_torch"
Size = Any      # of an axis: an int, or a sympy expression of the number of samples


class Place(NamedTuple):
    """Where in the user's model a node comes from: a line, and the module that is being called."""

    line: str       # "net.py:12", or ""
    layer: str      # "blocks.0.conv", or "" for the model itself
    kind: str       # "torch.nn.modules.conv.Conv2d"

    def __str__(self) -> str:
        layer = f"{self.layer} ({self.kind.rpartition('.')[2]})" if self.layer else ""
        return ", ".join([part for part in (self.line, layer) if part]) or "the model's forward"


@dataclass(frozen=True)
class Switch:
    """A setting that differs between training and inference."""

    training: Any
    inference: Any


@dataclass(frozen=True)
class Write:
    """A slice of an axis that an operator overwrites."""

    dim: int
    start: int
    stop: int
    keeps: bool     # whether the axis is there in the value that is written


@dataclass(eq=False)
class Node:
    """A call of an operator, an input, a parameter, a buffer or a constant.

    Attributes:
        op: the name of the operator in ATen; or input, parameter, buffer, constant, or item: one of several results.
        overload: which of its forms.
        args: by the names that ATen gives them; a Node stands for a tensor, a sympy expression for a size.
        shape, dtype: of the result, in PyTorch's order of axes; () and "" where there are several results.
        place: in the user's model.
        path: of a parameter or buffer.
    """

    op: str
    args: dict[str, Any]
    shape: tuple[Size, ...]
    dtype: str
    place: Place
    overload: str = ""
    path: str = ""

    def inputs(self) -> Iterator[Node]:
        """Yields the nodes among the arguments, in order."""
        for value in self.args.values():
            yield from nodes_in(value)

    @property
    def ndim(self) -> int:
        return len(self.shape)


def nodes_in(value: Any) -> Iterator[Node]:
    """Yields the nodes in an argument."""
    if isinstance(value, Node):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from nodes_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from nodes_in(item)


def replaced(value: Any, by: Callable[[Node], Any]) -> Any:
    """Returns an argument with another thing in the place of each node."""
    if isinstance(value, Node):
        return by(value)
    if isinstance(value, (list, tuple)):
        return type(value)([replaced(item, by) for item in value])
    if isinstance(value, dict):
        return {key: replaced(item, by) for key, item in value.items()}
    return value


@dataclass(eq=False)
class Graph:
    """The operators of a model in one mode.

    Attributes:
        inputs: nodes, in the order of the arguments of the call.
        nodes: in the order of execution, without the inputs.
        output: nodes in tuples, lists and dicts, as the model returns them.
        symbols: name of a size that is open -> (input, axis) that has it.
        constants: name -> array, of tensors that are no parameter and no buffer.
    """

    inputs: list[Node] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    output: Any = None
    symbols: dict[str, tuple[Node, int]] = field(default_factory=dict)
    constants: dict[str, Any] = field(default_factory=dict)

    def users(self) -> dict[Node, list[Node | None]]:
        """Returns which nodes read each node; None stands for the output."""
        found: dict[Node, list[Node | None]] = {node: [] for node in [*self.inputs, *self.nodes]}
        for node in self.nodes:
            for value in node.inputs():
                found.setdefault(value, []).append(node)
        for value in nodes_in(self.output):
            found.setdefault(value, []).append(None)
        return found

    def drop_unread(self) -> None:
        """Removes nodes that nothing reads."""
        read = {id(node) for node in nodes_in(self.output)}
        kept = []
        for node in reversed(self.nodes):
            if id(node) in read:
                kept.append(node)
                read |= {id(value) for value in node.inputs()}
        self.nodes = kept[::-1]


def merged(training: Graph, inference: Graph) -> Graph | None:
    """Returns one graph for both modes, whose settings are Switches where they differ; None where nodes differ."""
    if len(training.nodes) != len(inference.nodes):
        return None
    twins = dict(zip(training.inputs, inference.inputs))

    def both(a: Any, b: Any) -> Any:
        if isinstance(a, Node) or isinstance(b, Node):
            if not isinstance(a, Node) or twins.get(a) is not b:
                raise KeyError
            return a
        if isinstance(a, (list, tuple)) and type(a) is type(b) and len(a) == len(b):
            return type(a)([both(x, y) for x, y in zip(a, b)])
        if isinstance(a, dict) and isinstance(b, dict) and list(a) == list(b):
            return {key: both(a[key], b[key]) for key in a}
        same = type(a) is type(b) and (a == b or str(a) == str(b))     # symbols of two traces have names alike
        return a if same else Switch(a, b)

    args = []
    try:
        for a, b in zip(training.nodes, inference.nodes):
            if (a.op, a.overload, a.path, a.dtype, str(a.shape)) != (b.op, b.overload, b.path, b.dtype, str(b.shape)):
                return None
            args.append({name: both(a.args[name], b.args[name]) for name in a.args})
            twins[a] = b
        both(training.output, inference.output)
    except KeyError:
        return None
    for node, found in zip(training.nodes, args):
        node.args = found
    return training


def refuse(what: str, fix: str, error: type[AlphaError] = ConfigError) -> AlphaError:
    """Returns the error that from_torch raises."""
    return error(message(WHERE, what, fix))
