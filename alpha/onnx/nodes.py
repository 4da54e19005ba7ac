"""The nodes of each op in ONNX: one rule (graph, call) per op."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt
from typing import Any

import numpy as np

from alpha.inference.program import Call, Value
from alpha.onnx.graph import FIRST, PLAIN, SAME, TO_FIRST, Graph, refuse
from alpha.ops.coconv_desc import level_channels

Rule = Callable[[Graph, Call], None]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Makes a function the rule of ops."""
    def bind(f: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, f))
        return f
    return bind


def array(value: Value | None, default: float, size: int) -> np.ndarray:
    """Returns the elements of a constant; `size` equal ones where there is none."""
    if value is None:
        return np.full(size, default, np.float32)
    if value.constant is None:
        raise refuse("a weight is computed from the input", "export a model whose weights are parameters")
    return value.constant.numpy()


def named(value: Value | None, stem: str) -> str:
    return value.name if value is not None and value.name else stem


def activated(g: Graph, call: Call, name: str) -> str:
    """Returns a result after the activation that the op has within."""
    return g.node("Relu", [name]) if call.attrs.get("activation") == "relu" else name


# ---- convolutions, norms, pools --------------------------------------------------------------------------------------


@rule("conv2d", "conv2d_bias_act")
def _conv(g: Graph, call: Call) -> None:
    a, w = call.attrs, call.arg("w")
    y = _convolved(g, g.get(call.args[0], FIRST), array(w, 0, 0), _bias(call), named(w, "filters"), stride=a["stride"],
                   padding=a["padding"], dilation=a["dilation"], groups=a["groups"])
    g.put(call.outs[0], activated(g, call, y), FIRST)


def _bias(call: Call) -> Value | None:
    return call.args[2] if len(call.args) > 2 else None


def _convolved(g: Graph, x: str, w: np.ndarray, bias: Value | None, name: str, *, stride: Sequence[int],
               padding: Sequence[int], dilation: Sequence[int], groups: int, part: slice = slice(None)) -> str:
    inputs = [x, g.weight(name, w[part].transpose(TO_FIRST))]
    if bias is not None:
        inputs.append(g.weight(named(bias, "bias"), array(bias, 0, 0)[part]))
    return g.node("Conv", inputs, kernel_shape=w.shape[1:3], strides=stride, pads=[*padding, *padding],
                  dilations=dilation, group=groups)


@rule("conv2d_dgrad")
def _deconv(g: Graph, call: Call) -> None:
    a, (x, w) = call.attrs, call.args[:2]
    size, old = ([g.size(v, k) for k in (1, 2)] for v in (call.outs[0], x))
    more = [n - ((i - 1) * s - 2 * p + d * (f - 1) + 1) for n, i, s, p, d, f in zip(
        size, old, a["stride"], a["padding"], a["dilation"], w.shape[1:3])]
    filters = g.weight(named(w, "filters"), array(w, 0, 0).transpose(TO_FIRST))
    g.put(call.outs[0], g.node("ConvTranspose", [g.get(x, FIRST), filters], kernel_shape=w.shape[1:3],
                               strides=a["stride"], pads=[*a["padding"], *a["padding"]], dilations=a["dilation"],
                               group=a["groups"], output_padding=more), FIRST)


@rule("coconv2d", "coconv2d_bias_act")
def _coconv(g: Graph, call: Call) -> None:
    a, x, w = call.attrs, call.args[0], call.arg("w")
    counts = level_channels("onnx", w.shape[0], a["dilations"], a["channels"], a["groups"])
    filters, first, parts = array(w, 0, 0), 0, []
    for count, dilation in zip(counts, a["dilations"]):
        padding = [dilation * (f - 1) // 2 for f in filters.shape[1:3]]
        parts.append(_convolved(g, g.get(x, FIRST), filters, _bias(call), named(w, "filters"), stride=a["stride"],
                                padding=padding, dilation=(dilation, dilation), groups=a["groups"],
                                part=slice(first, first + count)))
        first += count
    y = parts[0] if len(parts) == 1 else g.node("Concat", parts, axis=1)
    g.put(call.outs[0], activated(g, call, y), FIRST)


@rule("batch_norm_act", "batch_norm_add_act")
def _batch_norm(g: Graph, call: Call) -> None:
    x, *weights = call.args[:5]
    residual = call.args[5] if len(call.args) > 5 else None
    layout = FIRST if len(x.shape) == 4 else PLAIN
    if len(x.shape) not in (2, 4) or weights[2] is None or weights[3] is None:
        raise refuse("a batch norm has no running statistics, or is not of maps or rows")
    stems = ("gamma", "beta", "mean", "var")
    names = [g.weight(named(v, stem), array(v, d, g.size(x, -1))) for v, stem, d in zip(weights, stems, (1, 0, 0, 1))]
    y = g.node("BatchNormalization", [g.get(x, layout), *names], epsilon=call.attrs["eps"])
    if residual is not None:
        y = g.node("Add", [y, g.get(residual, layout)])
    g.put(call.outs[0], activated(g, call, y), layout)


@rule("layer_norm")
def _layer_norm(g: Graph, call: Call) -> None:
    x, gamma, beta = call.args
    shape = tuple([g.size(x, k) for k in range(-call.attrs["normalized_ndim"], 0)])
    names = [g.weight(named(v, stem), array(v, d, int(np.prod(shape))).reshape(shape))
             for v, stem, d in ((gamma, "gamma", 1), (beta, "beta", 0))]
    g.put(call.outs[0], g.node("LayerNormalization", [g.get(x), *names], axis=-len(shape), epsilon=call.attrs["eps"]))


@rule("group_norm")
def _group_norm(g: Graph, call: Call) -> None:
    (x, gamma, beta), groups = call.args, call.attrs["groups"]
    h, w, c = (g.size(x, k) for k in (1, 2, 3))
    rows = g.node("Reshape", [g.get(x, FIRST), g.integers((0, groups, -1))])
    ones, zeros = (g.weight(f"all_{v}_{groups}", np.full(groups, v, np.float32)) for v in (1, 0))
    y = g.node("InstanceNormalization", [rows, ones, zeros], epsilon=call.attrs["eps"])
    y = g.node("Reshape", [y, g.integers((0, c, h, w))])
    for kind, v, stem, default in (("Mul", gamma, "gamma", 1), ("Add", beta, "beta", 0)):
        y = g.node(kind, [y, g.weight(named(v, stem), array(v, default, c).reshape(c, 1, 1))])
    g.put(call.outs[0], y, FIRST)


@rule("max_pool2d", "avg_pool2d")
def _pool(g: Graph, call: Call) -> None:
    a = call.attrs
    more: dict[str, Any] = {}
    kind = "MaxPool"
    if call.op.name == "avg_pool2d":
        kind, more = "AveragePool", {"count_include_pad": int(a["count_include_pad"])}
    g.put(call.outs[0], g.node(kind, [g.get(call.args[0], FIRST)], kernel_shape=a["kernel_size"], strides=a["stride"],
                               pads=[*a["padding"], *a["padding"]], **more), FIRST)


@rule("adaptive_avg_pool2d", "adaptive_max_pool2d")
def _adaptive_pool(g: Graph, call: Call) -> None:
    x, size = call.args[0], call.outs[0].shape[1:3]
    old = tuple([g.size(x, k) for k in (1, 2)])
    kind = "Average" if call.op.name == "adaptive_avg_pool2d" else "Max"
    if any(i % o for i, o in zip(old, size)):
        raise refuse(f"{call.op.name} from {old} to {size} has windows of several sizes",
                     "choose an output that divides the input")
    window = [i // o for i, o in zip(old, size)]
    source = g.get(x, FIRST)
    y = g.node(f"Global{kind}Pool", [source]) if size == (1, 1) else g.node(
        f"{kind}Pool", [source], kernel_shape=window, strides=window)
    g.put(call.outs[0], y, FIRST)


# ---- products --------------------------------------------------------------------------------------------------------


@rule("linear")
def _linear(g: Graph, call: Call) -> None:
    x, w, b = call.args
    if not x.shape[:-1]:
        raise refuse("a linear layer is called with one sample that has no axis of samples", "pass a batch")
    weight, name = array(w, 0, 0), named(w, "weight")
    source = g.flat.get(x) if PLAIN not in g.places.get(x, {}) else None
    if source is not None:      # the rows of a map with channels first: the columns are turned instead
        h, width, c = source[1]
        weight = weight.reshape(-1, h, width, c).transpose(TO_FIRST).reshape(len(weight), -1)
    bias = [] if b is None else [g.weight(named(b, "bias"), array(b, 0, 0))]
    if len(x.shape) == 2:
        y = g.node("Gemm", [source[0] if source else g.get(x), g.weight(name, weight), *bias], transB=1)
    else:
        y = g.node("MatMul", [g.get(x), g.weight(f"{name}_t", weight.T)])
        y = g.node("Add", [y, *bias]) if bias else y
    g.put(call.outs[0], activated(g, call, y))


@rule("matmul")
def _matmul(g: Graph, call: Call) -> None:
    names = []
    for value, flag in zip(call.args, ("transpose_a", "transpose_b")):
        n, name = len(value.shape), g.get(value)
        perm = [*range(n - 2), n - 1, n - 2]
        names.append(g.node("Transpose", [name], perm=perm) if call.attrs[flag] else name)
    g.put(call.outs[0], g.node("MatMul", names))


# ---- pointwise -------------------------------------------------------------------------------------------------------

def operands(g: Graph, call: Call) -> tuple[list[str], str]:
    """Returns the names of the arguments of a pointwise op, all in one layout, and that layout."""
    values = [a for a in call.args if isinstance(a, Value)]
    maps = [v for v in values if len(v.shape) == 4 and v.constant is None]
    first = any(map(g.is_first, maps)) and all(len(v.shape) == 4 or v.constant is not None for v in values)
    dtype = call.outs[0].dtype if call.op.name == "where" else values[0].dtype     # of numbers
    names = []
    for arg in call.args:
        if not isinstance(arg, Value):
            names.append(g.scalar(arg, dtype))
        elif first and arg.constant is not None:
            a = arg.constant.numpy()
            turned = a.reshape((1,) * (4 - a.ndim) + a.shape).transpose(TO_FIRST)
            names.append(g.weight(named(arg, "constant"), turned))
        else:
            names.append(g.get(arg, FIRST if first else PLAIN))
    return names, FIRST if first else PLAIN


def pointwise(f: Callable[[Graph, Call, list[str]], str]) -> Rule:
    """Makes a rule of a function from the names of operands to the result's."""
    def apply(g: Graph, call: Call) -> None:
        names, layout = operands(g, call)
        g.put(call.outs[0], f(g, call, names), layout)
    return apply


def same(kind: str) -> Rule:
    """Returns the rule of an op that is one node."""
    return pointwise(lambda g, call, names: g.node(kind, names))


RULES |= {
    **{op: same(kind) for op, kind in SAME.items()},
    "square": pointwise(lambda g, call, x: g.node("Mul", [x[0], x[0]])),
    "where": pointwise(lambda g, call, x: _chosen(g, call, x)),
    "ne": pointwise(lambda g, call, x: g.node("Not", [g.node("Equal", x)])),
    "expm1": pointwise(lambda g, call, x: g.node("Sub", [g.node("Exp", x), g.scalar(1, call.outs[0].dtype)])),
    "log1p": pointwise(lambda g, call, x: g.node("Log", [g.node("Add", [*x, g.scalar(1, call.outs[0].dtype)])])),
    "erfc": pointwise(lambda g, call, x: g.node("Sub", [g.scalar(1, call.outs[0].dtype), g.node("Erf", x)])),
    "hypot": pointwise(lambda g, call, x: g.node("Sqrt", [g.node("Add", [g.node("Mul", [v, v]) for v in x])])),
    "cast": pointwise(lambda g, call, x: g.node("Cast", x, to=g.onnx.helper.np_dtype_to_tensor_dtype(
        np.dtype(call.attrs["dtype"])))),
    "silu": pointwise(lambda g, call, x: g.node("Mul", [x[0], g.node("Sigmoid", x)])),
    "leaky_relu": pointwise(lambda g, call, x: g.node("LeakyRelu", x, alpha=float(call.attrs["slope"]))),
    "elu": pointwise(lambda g, call, x: g.node("Elu", x, alpha=float(call.attrs["alpha"]))),
    "relu6": pointwise(lambda g, call, x: _limited(g, call, x, 0, 6)),
    "clip": pointwise(lambda g, call, x: _limited(g, call, x, call.attrs["low"], call.attrs["high"])),
    "gelu": pointwise(lambda g, call, x: _gelu(g, call, x)),
}


def _chosen(g: Graph, call: Call, x: list[str]) -> str:
    if call.outs[0].dtype != "bool":
        return g.node("Where", x)
    return g.node("Or", [g.node("And", x[:2]), g.node("And", [g.node("Not", x[:1]), x[2]])])  # no Where is of bools


def _limited(g: Graph, call: Call, x: list[str], low: float | None, high: float | None) -> str:
    return g.node("Clip", [*x, *["" if v is None else g.scalar(v, call.outs[0].dtype) for v in (low, high)]])


def _gelu(g: Graph, call: Call, x: list[str]) -> str:
    dtype = call.outs[0].dtype
    share = g.node("Erf", [g.node("Mul", [*x, g.scalar(sqrt(0.5), dtype)])])
    share = g.node("Add", [share, g.scalar(1, dtype)])
    return g.node("Mul", [g.node("Mul", [*x, share]), g.scalar(0.5, dtype)])
