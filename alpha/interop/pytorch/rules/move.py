"""Operators that join tensors, cut them and pick from them."""

from __future__ import annotations

from typing import Any

from alpha.interop.pytorch.build import END, Builder, Unsupported, Value
from alpha.interop.pytorch.graph import Node, Write
from alpha.interop.pytorch.layout import Order, plain, without
from alpha.interop.pytorch.rules.elementwise import common
from alpha.interop.pytorch.rules.registry import rule


@rule("cat", "concat", "concatenate")
def cat(b: Builder, node: Node) -> Value:
    values = [b.raw(x) for x in node.args["tensors"]]
    values = [v for v in values if not (v.ndim == 1 and v.shape[0] == 0)]
    order = common(b, values, node.ndim)
    texts = [b.cast(v, b.to(v, order), node.dtype) for v in values]
    axis = order.index(node.args["dim"] % node.ndim)
    return b.emit(f"ops.concat([{', '.join(texts)}], {-1 if axis == node.ndim - 1 else axis})", node.shape, order,
                  node.dtype)


@rule("stack")
def stack(b: Builder, node: Node) -> Value:
    values = [b.raw(x) for x in node.args["tensors"]]
    order = common(b, values, node.ndim - 1)
    texts = [b.cast(v, b.to(v, order), node.dtype) for v in values]
    dim = node.args["dim"] % node.ndim
    made, axis = put_in(order, dim)
    return b.emit(f"ops.stack([{', '.join(texts)}], {axis})", node.shape, made, node.dtype)


def put_in(order: Order, dim: int) -> tuple[Order, int]:
    """Returns the order with a new axis `dim` of PyTorch's, and where that lies."""
    shifted = [k + (k >= dim) for k in order]
    axis = shifted.index(dim + 1) if dim + 1 in shifted else len(shifted)
    shifted.insert(axis, dim)
    return tuple(shifted), axis


def parts(node: Node, value: Value, sizes: list[Any]) -> list[tuple[tuple[Any, ...], Order, str]]:
    """Returns shape, order and dtype of the pieces of a value."""
    dim = node.args["dim"] % value.ndim
    return [((*value.shape[:dim], size, *value.shape[dim + 1:]), value.order, value.dtype) for size in sizes]


@rule("split", "split_with_sizes", "chunk", "tensor_split")
def split(b: Builder, node: Node) -> list[Value]:
    a = node.args
    value = b.raw(a["self"])
    axis, length = value.axis(a["dim"]), value.shape[a["dim"]]
    if not isinstance(length, int):
        raise Unsupported("it cuts an axis whose size depends on the number of samples")
    if node.op == "chunk":
        size = -(-length // a["chunks"])
        sizes = [size] * (length // size) + [length % size] * (length % size > 0)
    elif node.op == "tensor_split":
        count = a.get("sections")
        if not isinstance(count, int):
            raise Unsupported("it is cut at indices")
        sizes = [length // count + (k < length % count) for k in range(count)]
    else:
        given: Any = a.get("split_size", a.get("split_sizes"))
        sizes = list(given) if isinstance(given, list) else [given] * (length // given) + [length % given] * (
            length % given > 0)
    how = sizes[0] if len(set(sizes)) == 1 or (sizes[:-1] == [sizes[0]] * (len(sizes) - 1)
                                               and sizes[-1] < sizes[0]) else sizes
    return b.emit_many(f"ops.split({value.text}, {how}, {-1 if axis == value.ndim - 1 else axis})",
                       parts(node, value, sizes))


@rule("unbind")
def unbind(b: Builder, node: Node) -> list[Value]:
    value = b.raw(node.args["self"])
    dim = node.args["dim"] % value.ndim
    order, shape = without(value.order, [dim]), (*value.shape[:dim], *value.shape[dim + 1:])
    if not isinstance(value.shape[dim], int):
        raise Unsupported("it takes apart an axis whose size depends on the number of samples")
    return b.emit_many(f"ops.unbind({value.text}, {value.axis(dim)})", [(shape, order, value.dtype)] * value.shape[dim])


@rule("item")
def item(b: Builder, node: Node) -> Value:
    found = b.values[node.args["input"]][node.args["index"]]
    if found is None:
        raise Unsupported("it has several results, and this one is not there")
    return found


# ---- one key per axis ------------------------------------------------------------------------------------------------


def keys(value: Value, given: dict[int, str]) -> str:
    """Returns an index with keys for some of PyTorch's axes: `[:, 2:]`."""
    each = [given.get(k, ":") for k in value.order]
    if len(each) > 2 and all(key == ":" for key in each[:-1]) and each[-1] != ":":
        return f"[..., {each[-1]}]"
    while len(each) > 1 and each[-1] == ":":
        each.pop()
    return f"[{', '.join(each)}]"


@rule("select")
def select(b: Builder, node: Node) -> Value:
    value, dim = b.raw(node.args["self"]), node.args["dim"] % (node.ndim + 1)
    return b.emit(f"{value.text}{keys(value, {dim: b.size(node.args['index'])})}", node.shape,
                  without(value.order, [dim]), node.dtype)


@rule("slice", "narrow")
def cut(b: Builder, node: Node) -> Value:
    a = node.args
    value, dim = b.raw(a["self"]), a["dim"] % node.ndim
    start, step = a.get("start") or 0, a.get("step", 1)
    stop = a["start"] + a["length"] if node.op == "narrow" else a.get("end")
    if isinstance(stop, int) and stop >= END:
        stop = None
    length = value.shape[dim]
    whole = stop is None or (isinstance(length, int) and isinstance(stop, int) and stop >= length) or (
        str(stop) == str(length))
    if whole and isinstance(start, int) and start == 0 and step == 1:
        return value
    text = f"{b.size(start) if start != 0 else ''}:{'' if whole else b.size(stop)}" + (f":{step}" if step != 1 else "")
    return b.emit(f"{value.text}{keys(value, {dim: text})}", node.shape, value.order, node.dtype)


@rule("put")
def put(b: Builder, node: Node) -> Value:
    base, value = b.raw(node.args["input"]), b.raw(node.args["value"])
    writes: tuple[Write, ...] = node.args["writes"]
    if any(not write.keeps for write in writes[:-1]):
        raise Unsupported("it is changed in place behind an index")
    removed = [write.dim for write in writes if not write.keeps]
    order = base.order
    if removed:
        dim = removed[0]
        text = b.to(value, without(order, [dim]))
        text = f"ops.unsqueeze({text}, {order.index(dim)})"
    else:
        text = b.to(value, order)
    if value.dtype != base.dtype:
        text = b.cast(value, text, base.dtype)
    return b.emit(_joined(b, base, base.text, writes, text), node.shape, order, node.dtype)


def _joined(b: Builder, base: Value, whole: str, writes: tuple[Write, ...], text: str) -> str:
    """Returns a tensor with one slice of it replaced, as a concatenation."""
    if not writes:
        return text
    write = writes[0]
    axis, length = base.order.index(write.dim), base.shape[write.dim]
    inner = f"{whole}{keys(base, {write.dim: f'{write.start}:{write.stop}'})}"
    pieces = [_joined(b, base, inner, writes[1:], text)]
    if write.start:
        pieces.insert(0, f"{whole}{keys(base, {write.dim: f':{write.start}'})}")
    if write.stop < length:
        pieces.append(f"{whole}{keys(base, {write.dim: f'{write.stop}:'})}")
    return f"ops.concat([{', '.join(pieces)}], {axis})" if len(pieces) > 1 else pieces[0]


# ---- by tensors of indices -------------------------------------------------------------------------------------------


@rule("index")
def index(b: Builder, node: Node) -> Value:
    value = b.raw(node.args["self"])
    given = {k: b.raw(i) for k, i in enumerate(node.args["indices"]) if i is not None}
    if any(i.dtype == "bool" for i in given.values()):
        raise Unsupported("a mask picks elements, whose number is not known")
    dims = sorted(given)
    if dims != list(range(dims[0], dims[0] + len(dims))):
        raise Unsupported("its indices are of axes that are not neighbours")
    if len(dims) == 1 and given[dims[0]].ndim == 1:     # in whatever order
        axis = value.order.index(dims[0])
        return b.emit(f"ops.index_select({value.text}, {axis}, {given[dims[0]].text})", node.shape, value.order,
                      node.dtype)
    texts = {k: b.to(i, plain(i.ndim)) for k, i in given.items()}
    text = b.to(value, plain(value.ndim))
    each = [texts.get(k, ":") for k in range(dims[-1] + 1)]
    return b.emit(f"{text}[{', '.join(each)}]", node.shape, plain(node.ndim), node.dtype)


@rule("index_select")
def index_select(b: Builder, node: Node) -> Value:
    value = b.raw(node.args["self"])
    return b.emit(f"ops.index_select({value.text}, {value.axis(node.args['dim'])}, {b.raw(node.args['index']).text})",
                  node.shape, value.order, node.dtype)


@rule("gather")
def gather(b: Builder, node: Node) -> Value:
    value, at = b.raw(node.args["self"]), b.raw(node.args["index"])
    return b.emit(f"ops.gather({value.text}, {value.axis(node.args['dim'])}, {b.to(at, value.order)})", node.shape,
                  value.order, node.dtype)


@rule("roll")
def roll(b: Builder, node: Node) -> Value:
    value = b.raw(node.args["self"])
    if not node.args["dims"]:
        raise Unsupported("it has no axes")
    axes = tuple([value.axis(k) for k in node.args["dims"]])
    return b.emit(f"ops.roll({value.text}, {tuple(node.args['shifts'])}, {axes})", node.shape, value.order, node.dtype)


@rule("flip")
def flip(b: Builder, node: Node) -> Value:
    value = b.raw(node.args["self"])
    axes = tuple([value.axis(k) for k in node.args["dims"]])
    return b.emit(f"ops.flip({value.text}, {axes})", node.shape, value.order, node.dtype)
