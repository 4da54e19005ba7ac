"""Sums, means, largest elements and norms along axes."""

from __future__ import annotations

from typing import Any

from alpha.interop.pytorch.build import FLOATS, Builder, Unsupported, Value
from alpha.interop.pytorch.graph import Node
from alpha.interop.pytorch.layout import Order, without
from alpha.interop.pytorch.rules.registry import rule


def _axes(value: Value, dims: Any) -> list[int]:
    """Returns PyTorch's axes, all where none is given."""
    if dims is None or dims == []:
        return list(range(value.ndim))
    return [k % max(value.ndim, 1) for k in ([dims] if isinstance(dims, int) else dims)]


def _written(value: Value, dims: Any) -> str:
    """Returns axes as they are here: a number, a tuple, or None for all."""
    if value.ndim == 0 or (len(_axes(value, dims)) == value.ndim and value.ndim > 1):
        return "None"
    axes = sorted([value.order.index(k) for k in _axes(value, dims)])
    return str(axes[0]) if len(axes) == 1 else str(tuple(axes))


def _left(value: Value, dims: Any, keepdim: bool) -> Order:
    return value.order if keepdim else without(value.order, _axes(value, dims))


def _shape(value: Value, dims: Any, keepdim: bool) -> tuple[Any, ...]:
    gone = set(_axes(value, dims))
    return tuple([1 if k in gone else size for k, size in enumerate(value.shape) if keepdim or k not in gone])


NAMES = {"mean": "mean", "sum": "sum", "amax": "max", "amin": "min", "prod": "prod", "logsumexp": "logsumexp",
         "all": "all", "any": "any"}


@rule(*NAMES)
def reduction(b: Builder, node: Node) -> Value:
    value, dims = b.raw(node.args["self"]), node.args.get("dim")
    keep = node.args.get("keepdim", False)
    text = value.text
    if node.dtype in FLOATS or node.op == "sum":
        text = b.cast(value, text, node.dtype)
    return b.emit(f"ops.{NAMES[node.op]}({text}, {_written(value, dims)}{', keepdims=True' if keep else ''})",
                  node.shape, _left(value, dims, keep), node.dtype)


@rule("max.default", "min.default")
def extreme(b: Builder, node: Node) -> Value:
    return b.emit(f"ops.{node.op}({b.raw(node.args['self']).text})", (), (), node.dtype)


@rule("max.other", "min.other")
def larger(b: Builder, node: Node) -> Value:
    from alpha.interop.pytorch.rules.elementwise import together

    (x, y), order, flat = together(b, (node.args["self"], node.args["other"]), node.ndim, node.dtype)
    return b.emit(f"ops.{node.op}imum({x}, {y})", node.shape, order, node.dtype, flat)


@rule("max.dim", "min.dim")
def extreme_along(b: Builder, node: Node) -> list[Value]:
    a = node.args
    value, keep = b.raw(a["self"]), a["keepdim"]
    axis = _written(value, a["dim"])
    shape, order, end = _shape(value, a["dim"], keep), _left(value, a["dim"], keep), ", keepdims=True" if keep else ""
    wanted = a.get("_items", (0, 1))
    made: list[Any] = [None, None]
    if 0 in wanted:
        made[0] = b.emit(f"ops.{node.op}({value.text}, {axis}{end})", shape, order, value.dtype)
    if 1 in wanted:
        made[1] = b.emit(f"ops.arg{node.op}({value.text}, {axis}{end})", shape, order, "int64")
    return made


@rule("argmax", "argmin")
def argmax(b: Builder, node: Node) -> Value:
    a = node.args
    value = b.raw(a["self"])
    if a["dim"] is None:
        return b.emit(f"ops.{node.op}({b.plain(a['self'])})", node.shape, (), node.dtype)
    end = ", keepdims=True" if a["keepdim"] else ""
    return b.emit(f"ops.{node.op}({value.text}, {_written(value, a['dim'])}{end})", node.shape,
                  _left(value, a["dim"], a["keepdim"]), node.dtype)


def _spread(b: Builder, node: Node, name: str) -> Value:
    a = node.args
    value, dims, keep = b.raw(a["self"]), a.get("dim"), a.get("keepdim", False)
    correction = a.get("correction", 1 if a.get("unbiased", True) else 0)
    correction = 1 if correction is None else correction
    return b.emit(f"ops.{name}({value.text}, {_written(value, dims)}{', keepdims=True' if keep else ''}, "
                  f"correction={int(correction)})", _shape(value, dims, keep), _left(value, dims, keep), value.dtype)


@rule("var", "std")
def spread(b: Builder, node: Node) -> Value:
    return _spread(b, node, node.op)


@rule("var_mean", "std_mean")
def spread_and_mean(b: Builder, node: Node) -> list[Value]:
    a = node.args
    value, dims, keep = b.raw(a["self"]), a.get("dim"), a.get("keepdim", False)
    mean = b.emit(f"ops.mean({value.text}, {_written(value, dims)}{', keepdims=True' if keep else ''})",
                  _shape(value, dims, keep), _left(value, dims, keep), value.dtype)
    return [_spread(b, node, node.op.partition("_")[0]), mean]


@rule("linalg_vector_norm", "norm.ScalarOpt_dim", "norm.Scalar")
def norm(b: Builder, node: Node) -> Value:
    a = node.args
    value, dims, keep = b.raw(a["self"]), a.get("dim"), a.get("keepdim", False)
    order = a.get("ord", a.get("p"))
    order = 2 if order is None else order
    if order != order or order < 0 or order == 0:
        raise Unsupported(f"its order is {order}")
    return b.emit(f"ops.vector_norm({value.text}, {b.setting(float(order))}, {_written(value, dims)}"
                  f"{', keepdims=True' if keep else ''})", node.shape, _left(value, dims, keep), node.dtype)


@rule("topk", "sort")
def order(b: Builder, node: Node) -> list[Value]:
    a = node.args
    value = b.raw(a["self"])
    dim = a["dim"] % value.ndim
    shape = (*value.shape[:dim], a["k"], *value.shape[dim + 1:]) if node.op == "topk" else value.shape
    text = (f"ops.topk({value.text}, {a['k']}, {value.axis(dim)}, {a['largest']})" if node.op == "topk" else
            f"ops.sort({value.text}, {value.axis(dim)}, {a['descending']})")
    return b.emit_many(text, [(shape, value.order, value.dtype), (shape, value.order, "int64")])
