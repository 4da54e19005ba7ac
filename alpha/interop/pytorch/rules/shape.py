"""Operators that give axes other sizes and places; a transpose moves nothing, it changes the order of the axes."""

from __future__ import annotations

from typing import Any

from alpha.interop.pytorch import layout
from alpha.interop.pytorch.build import Builder, Unsupported, Value
from alpha.interop.pytorch.graph import Node
from alpha.interop.pytorch.rules.registry import rule


def reshaped(b: Builder, value: Value, shape: tuple[Any, ...], dtype: str, keep_flat: bool = False) -> Value:
    """Returns a value of another shape, in PyTorch's sense."""
    try:
        how = layout.reshape(value.order, value.shape, shape)
    except ValueError as error:
        raise Unsupported(f"from {value.shape} to {shape}: {error}") from None
    sizes = [shape[k] for k in how.after]
    if how.permutes and how.flat and keep_flat:
        text = f"{value.text}.reshape({b.sizes(sizes)})"
        made = b.emit(text, shape, how.after, dtype)
        made.flat = tuple([value.shape[k] for k in how.flat])
        return made
    text = b.to(value, how.before) if how.permutes else value.text
    if not how.permutes and [str(s) for s in sizes] == [str(s) for s in value.sizes()]:
        return Value(text, shape, how.after, dtype)
    return b.emit(f"{text}.reshape({b.sizes(sizes)})", shape, how.after, dtype)


@rule("view.default", "reshape", "flatten", "unflatten", "_unsafe_view", "view_as", "reshape_as", "ravel")
def reshape(b: Builder, node: Node) -> Value:
    source = node.args["self"]
    value = b.get(source)
    if value.flat:
        if str(node.shape) == str(value.shape):
            return value
        value = b.raw(source)
    flat_ok = bool(node.args.get("_to_linear")) and value.ndim == 4 and value.order == layout.last(4) and all(
        isinstance(size, int) for size in value.shape[1:])
    return reshaped(b, value, node.shape, node.dtype, flat_ok)


@rule("permute", "transpose", "t", "numpy_T", "movedim", "mT", "swapaxes", "adjoint", "T")
def permute(b: Builder, node: Node) -> Value:
    a = node.args
    value = b.raw(a["self"])
    r = value.ndim
    axes = list(range(r))
    if node.op == "permute":
        axes = [k % r for k in a["dims"]]
    elif node.op in ("transpose", "swapaxes"):
        names = ("dim0", "dim1") if "dim0" in a else ("axis0", "axis1")
        i, j = (a[name] % r for name in names)
        axes[i], axes[j] = axes[j], axes[i]
    elif node.op == "movedim":
        i, j = ([k] if isinstance(k, int) else list(k) for k in (a["source"], a["destination"]))
        rest = [k for k in axes if k not in [n % r for n in i]]
        for place, k in sorted(zip([n % r for n in j], [n % r for n in i])):
            rest.insert(place, k)
        axes = rest
    elif node.op in ("mT", "adjoint"):
        axes[-2:] = axes[-1], axes[-2]
    else:
        axes = axes[::-1]
    return Value(value.text, node.shape, tuple([axes.index(k) for k in value.order]), node.dtype)


@rule("unsqueeze")
def unsqueeze(b: Builder, node: Node) -> Value:
    value = b.raw(node.args["self"])
    dim = node.args["dim"] % node.ndim
    shifted = [k + (k >= dim) for k in value.order]
    order = layout.with_ones([k for k in shifted if k in layout.wide(node.shape)], node.ndim)
    kept = [k for k in order if k != dim]
    if kept == shifted:     # an axis is put in, and no other one moves
        keys = ["None" if k == dim else ":" for k in order]
        while keys[-1] == ":":
            keys.pop()
        text = f"{value.text}[{', '.join(keys)}]" if len(keys) < 3 or keys[-1] != "None" else (
            f"{value.text}[..., None]" if order[-1] == dim else f"{value.text}[{', '.join(keys)}]")
        return b.emit(text, node.shape, order, node.dtype)
    return b.emit(f"{value.text}.reshape({b.sizes([node.shape[k] for k in order])})", node.shape, order, node.dtype)


@rule("squeeze")
def squeeze(b: Builder, node: Node) -> Value:
    value = b.raw(node.args["self"])
    dims = node.args.get("dim")
    dims = list(range(value.ndim)) if dims is None else [dims] if isinstance(dims, int) else list(dims)
    gone = [k % value.ndim for k in dims if value.ndim and isinstance(value.shape[k], int) and value.shape[k] == 1]
    if not gone:
        return value
    order = layout.without(value.order, gone)
    return b.emit(f"{value.text}.reshape({b.sizes([node.shape[k] for k in order])})" if node.ndim else
                  f"{value.text}.reshape(())", node.shape, order, node.dtype)


@rule("expand", "expand_as", "broadcast_to")
def expand(b: Builder, node: Node) -> Value:
    value = b.raw(node.args["self"])
    new = node.ndim - value.ndim
    order = (*range(new), *[k + new for k in value.order])
    if str(node.shape[new:]) == str(value.shape) and not new:
        return value
    return b.emit(f"ops.broadcast_to({value.text}, {b.shape([node.shape[k] for k in order])})", node.shape, order,
                  node.dtype)


@rule("repeat", "tile")
def repeat(b: Builder, node: Node) -> Value:
    value = b.raw(node.args["self"])
    counts: list[Any] = list(node.args["repeats"] if "repeats" in node.args else node.args["dims"])
    counts = [1] * (value.ndim - len(counts)) + counts
    new = node.ndim - value.ndim
    order = (*range(new), *[k + new for k in value.order])
    each = [counts[k] for k in order]
    if all(isinstance(count, int) and count == 1 for count in each) and not new:
        return value
    return b.emit(f"ops.tile({value.text}, {b.shape(each)})", node.shape, order, node.dtype)


@rule("repeat_interleave.self_int")
def repeat_interleave(b: Builder, node: Node) -> Value:
    a = node.args
    value = b.raw(a["self"])
    if a["dim"] is None:
        raise Unsupported("it has no axis")
    return b.emit(f"ops.repeat_interleave({value.text}, {b.setting(a['repeats'])}, {value.axis(a['dim'])})", node.shape,
                  value.order, node.dtype)


@rule("diagonal", "tril", "triu")
def triangle(b: Builder, node: Node) -> Value:
    if node.op == "diagonal":
        raise Unsupported("take it by an index")
    return b.result(node, f"ops.{node.op}({b.plain(node.args['self'])}, {node.args['diagonal']})")
