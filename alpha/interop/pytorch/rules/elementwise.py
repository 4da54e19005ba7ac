"""Arithmetic, comparisons and activations: element by element, in whatever order the axes lie."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from alpha.interop.pytorch.build import FLOATS, Builder, Unsupported, Value
from alpha.interop.pytorch.graph import Node
from alpha.interop.pytorch.layout import Order, numbers, plain
from alpha.interop.pytorch.rules.registry import rule

# operator -> how it is written; {0} is x, other names are arguments of the operator
UNARY = {
    "relu": "F.relu({0})", "relu6": "F.relu6({0})", "silu": "F.silu({0})", "mish": "F.mish({0})",
    "selu": "F.selu({0})", "hardswish": "F.hardswish({0})", "hardsigmoid": "F.hardsigmoid({0})",
    "sigmoid": "F.sigmoid({0})", "tanh": "F.tanh({0})", "log_sigmoid": "F.logsigmoid({0})",
    "exp": "ops.exp({0})", "log": "ops.log({0})", "sqrt": "ops.sqrt({0})", "rsqrt": "ops.rsqrt({0})",
    "abs": "ops.abs({0})", "neg": "-{0}", "sin": "ops.sin({0})", "cos": "ops.cos({0})", "tan": "ops.tan({0})",
    "erf": "ops.erf({0})", "square": "ops.square({0})", "reciprocal": "ops.reciprocal({0})",
    "floor": "ops.floor({0})", "ceil": "ops.ceil({0})", "round": "ops.round({0})", "trunc": "ops.trunc({0})",
    "sign": "ops.sign({0})", "log1p": "ops.log1p({0})", "expm1": "ops.expm1({0})", "exp2": "ops.exp2({0})",
    "log2": "ops.log2({0})", "log10": "ops.log10({0})", "atan": "ops.atan({0})", "asin": "ops.asin({0})",
    "acos": "ops.acos({0})", "sinh": "ops.sinh({0})", "cosh": "ops.cosh({0})", "isnan": "ops.isnan({0})",
    "isfinite": "ops.isfinite({0})", "isinf": "ops.isinf({0})", "logical_not": "ops.logical_not({0})",
    "gelu": "F.gelu({0}, approximate={approximate})", "celu": "F.celu({0}, {alpha})",
    "leaky_relu": "F.leaky_relu({0}, {negative_slope})", "hardtanh": "F.hardtanh({0}, {min_val}, {max_val})",
    "clamp": "ops.clip({0}, {min}, {max})", "clamp_min": "ops.clip({0}, {min}, None)",
    "clamp_max": "ops.clip({0}, None, {max})", "clip": "ops.clip({0}, {min}, {max})",
    "hardshrink": "F.hardshrink({0}, {lambd})", "softshrink": "F.softshrink({0}, {lambd})",
    "threshold": "F.threshold({0}, {threshold}, {value})", "detach": "{0}.detach()",
    "nan_to_num": "ops.nan_to_num({0})", "softsign": "F.softsign({0})",
}
SAME_AS_LAYER = ("relu", "relu6", "silu", "mish", "selu", "hardswish", "hardsigmoid", "sigmoid", "tanh", "gelu", "celu",
                 "leaky_relu", "hardtanh")
BINARY = {"add": "+", "sub": "-", "mul": "*", "div": "/", "pow": "**", "eq": "==", "ne": "!=", "lt": "<", "le": "<=",
          "gt": ">", "ge": ">=", "true_divide": "/", "multiply": "*"}
CALLS = {"maximum": "ops.maximum", "minimum": "ops.minimum", "atan2": "ops.atan2", "fmod": "ops.fmod",
         "remainder": "ops.remainder", "floor_divide": "ops.floor_divide", "logical_and": "ops.logical_and",
         "logical_or": "ops.logical_or", "logical_xor": "ops.logical_xor", "hypot": "ops.hypot"}
COMPARED = ("eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor")


def _key(node: Node) -> Any:
    return node.args.get("self", node.args.get("input"))


@rule(*UNARY)
def unary(b: Builder, node: Node) -> Value:
    value = b.get(_key(node))
    if node.op in ("clamp", "clamp_min", "clamp_max", "clip") and any(
            isinstance(node.args.get(k), Node) for k in ("min", "max")):
        raise Unsupported("its limits are tensors")
    layer = b.layers.called(node) if node.op in SAME_AS_LAYER else ""
    x = value.text
    if value.is_number:
        if node.op == "detach":
            return value
        x = f"alpha.tensor({x}, dtype={b.dtype(value.dtype)}, device={b.device()})"
    if node.dtype in FLOATS:
        x = b.cast(value, x, node.dtype)
    if layer:
        text = f"{layer}({x})"
    else:
        settings = {k: b.setting(v).replace("'", '"') for k, v in node.args.items() if not isinstance(v, Node)}
        text = UNARY[node.op].format(x, **settings)
    return b.emit(text, node.shape, value.order, node.dtype, value.flat)


@rule("elu")
def elu(b: Builder, node: Node) -> Value:
    if (node.args["scale"], node.args["input_scale"]) != (1, 1):
        raise Unsupported("it has scales")
    value, layer = b.get(_key(node)), b.layers.called(node)
    text = f"{layer}({value.text})" if layer else f"F.elu({value.text}, {b.setting(float(node.args['alpha']))})"
    return b.emit(text, node.shape, value.order, node.dtype, value.flat)


@rule("softplus")
def softplus(b: Builder, node: Node) -> Value:
    value, layer = b.get(_key(node)), b.layers.called(node)
    beta, threshold = node.args["beta"], node.args["threshold"]
    if layer:
        text = f"{layer}({value.text})"
    elif threshold < 20:
        raise Unsupported(f"threshold={threshold}")
    else:
        text = f"F.softplus({value.text})" if beta == 1 else f"F.softplus({value.text} * {beta}) / {beta}"
    return b.emit(text, node.shape, value.order, node.dtype, value.flat)


# ---- several tensors -------------------------------------------------------------------------------------------------


def common(b: Builder, values: Sequence[Value], ndim: int) -> Order:
    """Returns the order that most elements of some values lie in already."""
    weights: dict[Order, int] = {}
    for value in values:
        if value.ndim == ndim:
            count = prod([numbers(size)[0] for size in value.shape])
            weights[value.order] = weights.get(value.order, 0) + count
    return max(weights, key=lambda order: weights[order]) if weights else plain(ndim)


def together(b: Builder, arguments: Sequence[Any], ndim: int, dtype: str = "") -> tuple[list[str], Order, Any]:
    """Returns how arguments that broadcast are written, the order of the result, and its `flat`.

    Args:
        dtype: which tensors are cast to; "": none is.
    """
    nodes = [a for a in arguments if isinstance(a, Node)]
    values = [b.get(node) for node in nodes]
    flats = {value.flat for value in values if value.ndim == ndim}
    flat = flats.pop() if len(flats) == 1 and all(v.ndim in (0, ndim) for v in values) else ()
    if not flat:
        values = [b.raw(node) for node in nodes]
    order = common(b, values, ndim)
    texts, rest = [], iter(values)
    for a in arguments:
        if isinstance(a, Node):
            value = next(rest)
            text = b.to(value, order, ndim)
            texts.append(b.cast(value, text, dtype) if dtype else text)
        else:
            texts.append(b.setting(a))
    return texts, order, flat


def promoted(b: Builder, node: Node, arguments: Sequence[Any]) -> str:
    """Returns the dtype in which the operands of a comparison meet; "" where they have one."""
    found = {b.get(a).dtype for a in arguments if isinstance(a, Node)}
    floats = [name for name in FLOATS if name in found]
    if len(found) == 1:
        number = next((a for a in arguments if isinstance(a, float)), None)
        return b.float_dtype if number is not None and not floats else ""
    return floats[-1] if floats else "int64"


@rule(*BINARY, *CALLS, "rsub", "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not", "__and__", "__or__")
def binary(b: Builder, node: Node) -> Value:
    a = node.args
    if node.op == "bitwise_not":
        value = b.get(a["self"])
        if value.dtype != "bool":
            raise Unsupported("integers have no such operator here")
        return b.emit(f"~{value.text}", node.shape, value.order, node.dtype)
    x, y = a["self"], a.get("other", a.get("exponent"))
    scale = a.get("alpha", 1)
    if node.op == "rsub":
        x, y = y, x
    if node.op.startswith(("bitwise", "__")) and node.dtype != "bool":
        raise Unsupported("integers have no such operator here")
    dtype = promoted(b, node, (x, y)) if node.op in COMPARED else node.dtype
    if node.op in ("bitwise_and", "bitwise_or", "bitwise_xor", "__and__", "__or__"):
        dtype = ""
    (left, right), order, flat = together(b, (x, y), node.ndim, dtype)
    if scale != 1:
        right = f"{b.setting(scale)} * {right}"
    rounding = a.get("rounding_mode")
    if node.op in CALLS:
        text = f"{CALLS[node.op]}({left}, {right})"
    elif node.op == "div" and rounding:
        text = f"ops.{'floor' if rounding == 'floor' else 'trunc'}({left} / {right})"
    else:
        sign = {"rsub": "-", "bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^", "__and__": "&",
                "__or__": "|"}.get(node.op) or BINARY[node.op]
        text = f"{left} {sign} {right}"
        if not isinstance(x, Node) and node.op == "pow":
            text = f"ops.pow({left}, {right})"
    if node.args.get("_relu"):
        text = f"F.relu({text})"
    return b.emit(text, node.shape, order, node.dtype, flat)


@rule("where")
def where(b: Builder, node: Node) -> Value:
    a = node.args
    (cond, x, y), order, _ = together(b, (a["condition"], a["self"], a["other"]), node.ndim)
    x, y = (b.cast(b.get(v), t, node.dtype) if isinstance(v, Node) else t for v, t in ((a["self"], x), (a["other"], y)))
    return b.emit(f"ops.where({cond}, {x}, {y})", node.shape, order, node.dtype)


@rule("masked_fill")
def masked_fill(b: Builder, node: Node) -> Value:
    a = node.args
    value = a["value"]
    if isinstance(value, Node):
        raise Unsupported("its value is a tensor")
    (x, mask), order, _ = together(b, (a["self"], a["mask"]), node.ndim)
    return b.emit(f"ops.where({mask}, {b.setting(value)}, {x})", node.shape, order, node.dtype)


@rule("addcmul", "addcdiv")
def addcmul(b: Builder, node: Node) -> Value:
    a = node.args
    (x, y, z), order, _ = together(b, (a["self"], a["tensor1"], a["tensor2"]), node.ndim, node.dtype)
    scale = "" if a["value"] == 1 else f"{b.setting(a['value'])} * "
    return b.emit(f"{x} + {scale}{y} {'*' if node.op == 'addcmul' else '/'} {z}", node.shape, order, node.dtype)


@rule("lerp")
def lerp(b: Builder, node: Node) -> Value:
    a = node.args
    (x, y, w), order, _ = together(b, (a["self"], a["end"], a["weight"]), node.ndim, node.dtype)
    return b.emit(f"{x} + {w} * ({y} - {x})", node.shape, order, node.dtype)


@rule("glu")
def glu(b: Builder, node: Node) -> Value:
    value = b.raw(node.args["self"])
    return b.emit(f"F.glu({value.text}, {value.axis(node.args['dim'])})", node.shape, value.order, node.dtype)


@rule("softmax", "log_softmax", "cumsum", "cumprod")
def along(b: Builder, node: Node) -> Value:
    value = b.raw(_key(node))
    axis = value.axis(node.args["dim"])
    text = b.cast(value, value.text, node.dtype)
    last = axis == value.ndim - 1
    name = f"F.{node.op}" if "softmax" in node.op else f"ops.{node.op}"
    return b.emit(f"{name}({text}, {-1 if last else axis})", node.shape, value.order, node.dtype)


@rule("to", "_to_copy", "type_as", "float", "double", "long")
def to(b: Builder, node: Node) -> Value:
    value = b.get(node.args.get("self"))
    if value.dtype == node.dtype:
        return value
    return b.emit(b.cast(value, value.text, node.dtype), node.shape, value.order, node.dtype, value.flat)


@rule("contiguous", "clone", "alias", "lift_fresh_copy", "lift_fresh", "view_as_real_copy", "lift", "expand_copy")
def nothing(b: Builder, node: Node) -> Value:
    return b.get(_key(node))


@rule("copy")
def copy(b: Builder, node: Node) -> Value:
    value = b.raw(node.args["src"])
    if len(value.shape) != node.ndim:
        text = b.to(value, plain(node.ndim), node.ndim)
        return b.emit(f"ops.broadcast_to({text}, {b.shape(node.shape)})", node.shape, plain(node.ndim), node.dtype)
    if str(value.shape) != str(node.shape):
        text = b.to(value, plain(node.ndim))
        return b.emit(f"ops.broadcast_to({text}, {b.shape(node.shape)})", node.shape, plain(node.ndim), node.dtype)
    return value if value.dtype == node.dtype else b.emit(b.cast(value, value.text, node.dtype), node.shape,
                                                          value.order, node.dtype)
