"""One forward pass of a converted model: a rule writes each node, and names are given at the end."""

from __future__ import annotations

import re
from typing import Any

from alpha.interop.pytorch import source
from alpha.interop.pytorch.build import FLOATS, Builder, Unsupported, Value
from alpha.interop.pytorch.graph import Graph, Node, Place
from alpha.interop.pytorch.layers import Layers, reached
from alpha.interop.pytorch.layout import Order, last, plain
from alpha.interop.pytorch.rules import rule_of


class Body:
    """One forward pass: the builder that wrote it, and the names of its inputs."""

    def __init__(self, graph: Graph, layers: Layers, stored: dict[str, Order], channels_first: bool) -> None:
        self.graph = graph
        self.builder = Builder(graph, layers, float_dtype(graph), stored)
        self.wrong: list[str] = []
        self.inputs: dict[int, str] = {}
        self.result = ""
        self._write(channels_first)

    def _write(self, channels_first: bool) -> None:
        b = self.builder
        for k, node in enumerate(self.graph.inputs):
            order = last(4) if node.ndim == 4 and not channels_first else plain(node.ndim)
            b.values[node] = Value(f"\x01{b.made}\x02", node.shape, order, node.dtype)
            self.inputs[b.made] = f"x{k}" if len(self.graph.inputs) > 1 else "x"
            b.made += 1
        for node in self.graph.nodes:
            b.place = node.place
            if node.op in ("parameter", "buffer"):
                b.values[node] = self._parameter(node)
            else:
                b.values[node] = self._call(node)
        b.place = Place("", "", "")
        if not self.wrong:
            self.result = self._output(self.graph.output, channels_first)

    def _parameter(self, node: Node) -> Value:
        b = self.builder
        order = b.layers.order(node.path, node.ndim)
        loose = order is None
        order = b.stored.get(node.path, plain(node.ndim)) if order is None else order
        return Value(reached(node.path), node.shape, order, node.dtype, node=node if loose else None)

    def _call(self, node: Node) -> Any:
        rule = rule_of(node)
        try:
            if rule is None:
                raise Unsupported("")
            return rule(self.builder, node)
        except Unsupported as reason:
            why = f", {reason}" if str(reason) else ""
            if all(n not in self.builder.values or self.builder.values[n] is not None for n in node.inputs()):
                self.wrong.append(f"{node.op} at {node.place}{why}")
        except (AttributeError, TypeError, KeyError):
            if not any(self.builder.values.get(n) is None for n in node.inputs()):
                raise       # operators behind a missing one are not looked at
        return None

    def _output(self, tree: Any, channels_first: bool) -> str:
        if isinstance(tree, Node):
            value = self.builder.raw(tree)
            order = last(4) if value.ndim == 4 and not channels_first else plain(value.ndim)
            return self.builder.to(value, order)
        if isinstance(tree, (tuple, list)):
            items = ", ".join([self._output(item, channels_first) for item in tree])
            end = "," if len(tree) == 1 and isinstance(tree, tuple) else ""
            return f"({items}{end})" if isinstance(tree, tuple) else f"[{items}]"
        if isinstance(tree, dict):
            items = ", ".join([f"{key!r}: {self._output(item, channels_first)}" for key, item in tree.items()])
            return f"{{{items}}}"
        return repr(tree)

    def lines(self, model: Any) -> tuple[list[str], list[str]]:
        """Returns the names of the inputs and the lines of the pass."""
        b = self.builder
        kept = {int(k) for k in source.TOKEN.findall(self.result)}
        statements = source.inlined(source.read_ones(b.statements, kept), kept)
        names = source.named(statements, self.inputs, kept, {*b.header, *self.inputs.values()})
        lines = source.lines_of(statements, names, model)
        result = f"return {source.with_names(self.result, names)}"
        used = set(re.findall(r"\w+", "\n".join([*lines, result])))
        header = [f"{name} = {source.with_names(text, names)}" for name, text in b.header.items() if name in used]
        return [names[k] for k in self.inputs], [*header, *lines, result]


def float_dtype(graph: Graph) -> str:
    nodes = [*graph.inputs, *[n for n in graph.nodes if n.op == "parameter"], *graph.nodes]
    return next((n.dtype for n in nodes if n.dtype in FLOATS), "float32")
