"""Operators that make tensors of numbers."""

from __future__ import annotations

from typing import Any

from alpha.interop.pytorch.build import FLOATS, Builder, Unsupported, Value
from alpha.interop.pytorch.graph import Node
from alpha.interop.pytorch.layout import plain
from alpha.interop.pytorch.rules.registry import rule

VALUES = {"zeros": 0, "ones": 1, "empty": 0, "zeros_like": 0, "ones_like": 1, "empty_like": 0, "new_zeros": 0,
          "new_ones": 1, "new_empty": 0}


def filled(b: Builder, node: Node, value: Any) -> Value:
    """Writes a tensor of one number, in the order of the tensor that it is to be like."""
    like = node.args.get("self")
    order = b.get(like).order if isinstance(like, Node) and node.op.endswith("_like") else plain(node.ndim)
    number = {0: "zeros", 1: "ones"}.get(value) if not isinstance(value, bool) else None
    sizes = b.shape([node.shape[k] for k in order])
    rest = f"dtype={b.dtype(node.dtype)}, device={b.device()}"
    text = f"ops.{number}({sizes}, {rest})" if number else f"ops.full({sizes}, {b.setting(value)}, {rest})"
    return b.emit(text, node.shape, order, node.dtype)


@rule(*VALUES)
def numbers(b: Builder, node: Node) -> Value:
    return filled(b, node, VALUES[node.op])


@rule("full", "full_like", "new_full", "scalar_tensor", "fill")
def full(b: Builder, node: Node) -> Value:
    args = node.args
    value = next(args[name] for name in ("fill_value", "value", "s") if name in args)
    if isinstance(value, Node):
        found = b.raw(value)
        if found.ndim:
            raise Unsupported("its value is a tensor of several elements")
        text = b.cast(found, found.text, node.dtype)
        if not found.is_number:
            sizes = b.shape(node.shape)
            return b.result(node, f"ops.broadcast_to({text}, {sizes})" if node.ndim else text)
        value = b.graph.constants[source(value).path].item()
    return filled(b, node, value)


def source(node: Node) -> Node:
    """Returns the constant that a node is a copy of."""
    while node.op != "constant":
        node = next(node.inputs())
    return node


@rule("zero")
def zero(b: Builder, node: Node) -> Value:
    return filled(b, node, 0)


@rule("arange")
def arange(b: Builder, node: Node) -> Value:
    a = node.args
    start, end, step = a.get("start", 0), a["end"], a.get("step", 1)
    if start is None:
        start = 0
    given = f"{b.setting(start)}, {b.setting(end)}, {b.setting(step)}"
    return b.result(node, f"ops.arange({given}, dtype={b.dtype(node.dtype)}, device={b.device()})")


@rule("linspace")
def linspace(b: Builder, node: Node) -> Value:
    a = node.args
    return b.result(node, f"ops.linspace({b.setting(a['start'])}, {b.setting(a['end'])}, {a['steps']}, "
                          f"dtype={b.dtype(node.dtype)}, device={b.device()})")


@rule("eye")
def eye(b: Builder, node: Node) -> Value:
    sizes = ", ".join([b.size(size) for size in node.shape])
    return b.result(node, f"ops.eye({sizes}, dtype={b.dtype(node.dtype)}, device={b.device()})")


@rule("meshgrid.indexing", "meshgrid")
def meshgrid(b: Builder, node: Node) -> list[Value]:
    values = [b.raw(x) for x in node.args["tensors"]]
    if node.args.get("indexing", "ij") != "ij":
        raise Unsupported("its indexing is not ij")
    shape = tuple([v.shape[0] for v in values])
    made = []
    for k, v in enumerate(values):
        sizes = [v.shape[0] if j == k else 1 for j in range(len(values))]
        text = f"ops.broadcast_to({v.text}.reshape({b.sizes(sizes)}), {b.shape(shape)})"
        made.append(b.emit(text, shape, plain(len(shape)), v.dtype))
    return made


@rule("rand", "randn", "rand_like", "randn_like")
def random(b: Builder, node: Node) -> Value:
    like = node.args.get("self")
    order = b.get(like).order if isinstance(like, Node) else plain(node.ndim)
    name = node.op.partition("_")[0]
    return b.emit(f"ops.{name}({b.shape([node.shape[k] for k in order])}, dtype={b.dtype(node.dtype)}, "
                  f"device={b.device()})", node.shape, order, node.dtype)


@rule("bernoulli")
def bernoulli(b: Builder, node: Node) -> Value:
    like, p = b.get(node.args["self"]), node.args.get("p")
    if node.dtype not in FLOATS or isinstance(p, Node):
        raise Unsupported("its probabilities are a tensor")
    if p is None:
        limit, order = like.text, like.order
    else:
        limit, order = b.setting(p), like.order
    drawn = f"ops.rand({b.shape([node.shape[k] for k in order])}, dtype={b.dtype(node.dtype)}, device={b.device()})"
    return b.emit(f"({drawn} < {limit}).astype({b.dtype(node.dtype)})", node.shape, order, node.dtype)


@rule("constant")
def constant(b: Builder, node: Node) -> Value:
    array = b.graph.constants[node.path]
    if array.numel() == 1 and array.ndim == 0:
        return Value(b.setting(array.item()), (), (), node.dtype)
    if array.numel() > 64:
        return Value(f"self.{node.path}", node.shape, plain(node.ndim), node.dtype)
    dtype = b.dtype(node.dtype)
    return b.result(node, f"alpha.tensor({array.tolist()}, dtype={dtype}, device={b.device()})")
