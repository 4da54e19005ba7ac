"""The writer of a forward pass: values with the order of their axes, and one statement per operator."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from alpha.interop.pytorch.graph import Graph, Node, Place, Switch
from alpha.interop.pytorch.layers import Layers
from alpha.interop.pytorch.layout import Order, last, moved, plain, wide

TOKEN = re.compile("\x01(\\d+)\x02")    # stands for a variable until it has a name
FLOATS = ("float16", "bfloat16", "float32", "float64")
NOWHERE = Place("", "", "")
END = (1 << 63) - 1                     # of a slice without an end


class Unsupported(Exception):
    """An operator, or a setting of one, that has no counterpart."""


@dataclass(eq=False)
class Value:
    """A tensor of the forward pass.

    Attributes:
        text: how it is written: a token, or the name of a parameter.
        shape: in PyTorch's order; `order` says where its axes lie.
        flat: (H, W, C) where the last axis is a map that was flattened in this order; PyTorch's is (C, H, W).
        node: of a parameter or buffer, which may be stored in another order.
    """

    text: str
    shape: tuple[Any, ...]
    order: Order
    dtype: str
    flat: tuple[int, ...] = ()
    node: Node | None = None

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def is_number(self) -> bool:
        """Whether it is a constant that is written as a number."""
        return not self.ndim and "\x01" not in self.text and not self.text.startswith("self")

    def axis(self, dim: int) -> int:
        """Returns the axis here of one of PyTorch's."""
        return self.order.index(dim % max(self.ndim, 1))

    def sizes(self) -> list[Any]:
        """Returns the shape in the order here."""
        return [self.shape[k] for k in self.order]


@dataclass
class Statement:
    """A line of forward: targets = text."""

    targets: list[int]
    text: str
    place: Place
    inline: bool = True


@dataclass
class Builder:
    """Writes statements; rules ask it for their arguments.

    Attributes:
        layers: which modules of the model are layers of alpha.
        stored: path -> order in which a parameter that belongs to no layer is stored.
        asked: path -> orders in which these were needed.
        permutes: moves of elements, and why.
        header: names that forward begins with, such as n, and their values.
    """

    graph: Graph
    layers: Layers
    float_dtype: str
    stored: dict[str, Order] = field(default_factory=dict)
    asked: dict[str, set[Order]] = field(default_factory=dict)
    values: dict[Node, Any] = field(default_factory=dict)
    statements: list[Statement] = field(default_factory=list)
    permutes: list[str] = field(default_factory=list)
    header: dict[str, str] = field(default_factory=dict)
    made: int = 0
    place: Place = NOWHERE
    cache: dict[tuple[str, str], str] = field(default_factory=dict)

    # ---- statements --------------------------------------------------------------------------------------------------

    def emit(self, text: str, shape: Sequence[Any], order: Order, dtype: str, flat: tuple[int, ...] = ()) -> Value:
        """Writes `variable = text` and returns the variable."""
        return self.emit_many(text, [(tuple(shape), order, dtype)], flat)[0]

    def emit_many(self, text: str, results: Sequence[tuple[tuple[Any, ...], Order, str]], flat: tuple[int, ...] = ()
                  ) -> list[Value]:
        """Writes `a, b = text` and returns the variables."""
        targets = list(range(self.made, self.made + len(results)))
        self.made += len(results)
        self.statements.append(Statement(targets, text, self.place))
        return [Value(f"\x01{k}\x02", shape, order, dtype, flat) for k, (shape, order, dtype) in zip(targets, results)]

    def result(self, node: Node, text: str, order: Order | None = None, dtype: str = "") -> Value:
        """Writes the result of a node."""
        return self.emit(text, node.shape, plain(node.ndim) if order is None else order, dtype or node.dtype)

    # ---- arguments ---------------------------------------------------------------------------------------------------

    def get(self, node: Any) -> Value:
        """Returns the value of an argument."""
        if not isinstance(node, Node):
            raise Unsupported(f"an argument is {type(node).__name__}, a tensor is needed")
        return self.values[node]

    def raw(self, node: Any) -> Value:
        """Returns the value of an argument whose flattened maps lie as PyTorch has them."""
        value = self.get(node)
        if not value.flat:
            return value
        key = (value.text, "flat")
        if key not in self.cache:
            self._count(f"a flattened map at {self.place}")
            h, w, c = value.flat
            text = f"{value.text}.reshape({self.sizes([-1, h, w, c])}).permute(0, 3, 1, 2)"
            self.cache[key] = self.emit(f"{text}.reshape({self.sizes([-1, h * w * c])})", value.shape, value.order,
                                        value.dtype).text
        return Value(self.cache[key], value.shape, value.order, value.dtype)

    def to(self, value: Value, order: Order, ndim: int | None = None) -> str:
        """Returns how a value is written in another order; with ndim so that it broadcasts against that many axes."""
        ndim = value.ndim if ndim is None else ndim
        start = ndim - value.ndim
        if value.node is not None and value.ndim > 2:
            own = tuple([k - start for k in order if k >= start])
            self.asked.setdefault(value.node.path, set()).add(own if len(own) == value.ndim else plain(value.ndim))
        wanted = [k - start if k >= start else None for k in order]
        while wanted and wanted[0] is None:
            wanted.pop(0)
        if tuple(wanted) == value.order:
            return value.text
        axes = wide(value.shape)
        now, then = ([k for k in sequence if k in axes] for sequence in (value.order, wanted))
        sizes = [1 if k is None else value.shape[k] for k in wanted]
        while start and sizes and sizes[0] is not None and isinstance(sizes[0], int) and sizes[0] == 1:
            sizes.pop(0)
        key = (value.text, f"{value.order} {wanted}")
        if key in self.cache:
            return self.cache[key]
        text = value.text
        if now != then:
            self._count(f"{_axes(value.order)} to {_axes(order)} at {self.place}")
            turned = [k for k in wanted if k is not None]
            text = f"{text}.permute({', '.join(str(value.order.index(k)) for k in turned)})"
            if len(turned) < len(sizes):
                text = f"{text}.reshape({self.sizes(sizes)})"
        else:
            text = f"{text}.reshape({self.sizes(sizes)})"
        self.cache[key] = self.emit(text, value.shape, value.order, value.dtype).text
        return self.cache[key]

    def maps(self, node: Any) -> str:
        """Returns how an argument is written with its channels, axis 1, last."""
        value = self.raw(node)
        return self.to(value, last(value.ndim))

    def plain(self, node: Any) -> str:
        """Returns how an argument is written in PyTorch's order."""
        value = self.raw(node)
        return self.to(value, plain(value.ndim))

    def weight(self, node: Any, order: Order | None = None) -> str:
        """Returns how an optional parameter is written."""
        if node is None:
            return "None"
        value = self.raw(node)
        return self.to(value, plain(value.ndim) if order is None else order)

    def filters(self, node: Any) -> str:
        """Returns how the filters of a convolution of maps are written: OHWI."""
        value = self.raw(node)
        return self.to(value, moved(value.ndim))

    def _count(self, why: str) -> None:
        self.permutes.append(why)

    # ---- numbers and names -------------------------------------------------------------------------------------------

    def size(self, size: Any) -> str:
        """Returns how a size is written: a number, or an expression of the number of samples."""
        if isinstance(size, Switch):
            return self.setting(size)
        if isinstance(size, int):
            return str(size)
        names = {}
        for symbol in size.free_symbols:
            node, axis = self.graph.symbols[str(symbol)]
            name = "n" if str(symbol) == min(self.graph.symbols, default="") else f"n_{symbol}"
            self.header[name] = f"{self.values[node].text}.shape[{self.values[node].axis(axis)}]"
            names[symbol] = name
        text = _printed(size)
        for symbol, name in names.items():
            text = re.sub(rf"\b{symbol}\b", name, text)
        return text

    def sizes(self, sizes: Sequence[Any]) -> str:
        """Returns how the new shape of a reshape is written; one axis that is no number is -1."""
        open_ones = [k for k, size in enumerate(sizes) if not isinstance(size, int)]
        if len(open_ones) == 1 and not any(isinstance(size, int) and size in (-1, 0) for size in sizes):
            sizes = [-1 if k == open_ones[0] else size for k, size in enumerate(sizes)]
        return ", ".join([self.size(size) for size in sizes])

    def shape(self, sizes: Sequence[Any]) -> str:
        """Returns how a shape is written as a tuple."""
        return f"({', '.join([self.size(size) for size in sizes])}{',' if len(sizes) == 1 else ''})"

    def setting(self, value: Any) -> str:
        """Returns how a setting is written; a setting that depends on the mode asks for it."""
        if isinstance(value, Switch):
            if value.training is True and value.inference is False:
                return "self.training"
            return f"({self.setting(value.training)} if self.training else {self.setting(value.inference)})"
        if isinstance(value, float) and value in (float("inf"), float("-inf")):
            return f'float("{value}")'
        return repr(value) if isinstance(value, (int, float, str, bool, type(None))) else self.size(value)

    def dtype(self, name: str) -> str:
        """Returns how a dtype is written; the model's is its input's."""
        if name == self.float_dtype:
            self.header["dtype"] = f"{self._first().text}.dtype"
            return "dtype"
        return f'"{name}"'

    def device(self) -> str:
        """Returns how the device of the input is written."""
        first = next(iter(self.graph.inputs), None)
        self.header["device"] = f"{self.values[first].text if first else self._first().text}.device"
        return "device"

    def _first(self) -> Value:
        """Returns the first input or parameter of the model's dtype."""
        nodes = [*self.graph.inputs, *[n for n in self.graph.nodes if n.op in ("parameter", "buffer")]]
        found = next((self.values[n] for n in nodes if n.dtype == self.float_dtype), None)
        if found is None:
            raise Unsupported("no input and no parameter has a floating dtype")
        return found

    def cast(self, value: Value, text: str, dtype: str) -> str:
        """Returns how a value is written in a dtype."""
        return text if value.dtype == dtype or value.is_number else f"{text}.astype({self.dtype(dtype)})"


def _axes(order: Order) -> str:
    names = {4: "NCHW", 3: "NLC"}.get(len(order))
    return "".join(names[k] for k in order) if names else str(order)


def _printed(size: Any) -> str:
    """Returns a sympy expression as Python."""
    try:
        from torch.utils._sympy.printers import PythonPrinter
    except ImportError:
        return str(size)
    return str(PythonPrinter().doprint(size))


def pair(value: Any) -> Any:
    """Returns a setting of two axes in short: one number where both are equal."""
    if not isinstance(value, (list, tuple)):
        return value
    return value[0] if len(set(value)) == 1 else tuple(value)
