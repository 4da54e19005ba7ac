"""The operators of an ONNX file: one function (model, node, values) -> value.

Values of four axes are maps with channels first in the file. Here they stay channels last: operators that make or take
maps (convolutions, norms, pools) do so as they are, and other operators see them turned where it matters.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from alpha import ops
from alpha.core.errors import ConfigError, message
from alpha.core.tensor import Tensor, tensor
from alpha.onnx.graph import SAME, TO_FIRST, TO_LAST, WHERE, package

if TYPE_CHECKING:
    from alpha.onnx.loader import OnnxModel

PAD_MODES = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}
CONVOLUTIONS = ("Conv", "ConvTranspose")
# Resize: attributes with their defaults, and which of their values are a mode of `interpolate`, with align_corners.
RESIZED = {"mode": "nearest", "coordinate_transformation_mode": "half_pixel", "nearest_mode": "round_prefer_floor"}
RESIZE_MODES = {
    ("nearest", "asymmetric", "floor"): ("nearest", False),
    ("linear", "half_pixel", ""): ("bilinear", False), ("linear", "align_corners", ""): ("bilinear", True),
    ("cubic", "half_pixel", ""): ("bicubic", False), ("cubic", "align_corners", ""): ("bicubic", True)}


class Held(NamedTuple):
    """A value while the graph runs: a tensor, and whether it lies channels last although the file has them first."""

    tensor: Tensor
    last: bool = False

    def as_file(self) -> Tensor:
        """Returns it with the axes that the file says."""
        return ops.permute(self.tensor, TO_FIRST) if self.last else self.tensor

    def as_map(self) -> Tensor:
        """Returns a map channels last."""
        return self.tensor if self.last else ops.permute(self.tensor, TO_LAST)


class Node(NamedTuple):
    """An operator of the file."""

    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any]


Operator = Callable[["OnnxModel", Node, dict[str, Held]], Any]


def _even(node: Node, name: str = "pads") -> tuple[int, int]:
    pads = list(node.attributes.get(name, [0, 0, 0, 0]))
    if pads[:2] != pads[2:] or node.attributes.get("auto_pad", b"NOTSET") not in (b"NOTSET", "NOTSET") or (
            node.attributes.get("ceil_mode", 0) and node.kind != "MaxPool"):
        raise ConfigError(message(WHERE, f"{node.kind} {node.outputs[0]} pads {pads}, or rounds up",
                                  "equal pads on both sides are known"))
    return pads[0], pads[1]


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _pair(node: Node, name: str) -> tuple[int, int]:
    a, b = node.attributes.get(name, [1, 1])
    return a, b


def _map(node: Node, held: dict[str, Held]) -> Tensor:
    """Returns the first input, which has to be a map, channels last."""
    x = held[node.inputs[0]]
    if x.tensor.ndim != 4:
        raise ConfigError(message(WHERE, f"{node.kind} {node.outputs[0]} is of lines or volumes: {x.tensor.shape}",
                                  "maps of shape (N, C, H, W) are known"))
    return x.as_map()


def _conv(model: OnnxModel, node: Node, held: dict[str, Held]) -> Held:
    x, w = _map(node, held), held[node.inputs[1]].as_map()
    geometry = dict(stride=_pair(node, "strides"), padding=_even(node), dilation=_pair(node, "dilations"),
                    groups=node.attributes.get("group", 1))
    if len(node.inputs) > 2:
        return Held(ops.conv2d_bias_act(x, w, held[node.inputs[2]].tensor, **geometry), True)
    return Held(ops.conv2d(x, w, **geometry), True)


def _deconv(model: OnnxModel, node: Node, held: dict[str, Held]) -> Held:
    if node.attributes.get("output_shape"):
        raise ConfigError(message(WHERE, f"{node.kind} {node.outputs[0]} has an output_shape", "pads are known"))
    more = node.attributes.get("output_padding", [0, 0])
    y = ops.conv_transpose2d(_map(node, held), held[node.inputs[1]].as_map(), _pair(node, "strides"), _even(node),
                             (more[0], more[1]), _pair(node, "dilations"), node.attributes.get("group", 1))
    return Held(y + held[node.inputs[2]].tensor if len(node.inputs) > 2 else y, True)


def _batch_norm(model: OnnxModel, node: Node, held: dict[str, Held]) -> Held:
    x, weights = held[node.inputs[0]], [held[name].tensor for name in node.inputs[1:]]
    maps, turned = x.tensor.ndim == 4, x.tensor.ndim not in (2, 4)
    last = x.as_map() if maps else ops.moveaxis(x.tensor, 1, -1) if turned else x.tensor
    y = ops.batch_norm(last, *weights, training=model.training, eps=node.attributes.get("epsilon", 1e-5))
    return Held(ops.moveaxis(y, -1, 1) if turned else y, maps)


def _layer_norm(model: OnnxModel, node: Node, held: dict[str, Held]) -> Tensor:
    x, gamma, *rest = (held[name].as_file() for name in node.inputs)
    axis = node.attributes.get("axis", -1)
    if axis % max(1, x.ndim) != x.ndim - gamma.ndim:
        raise ConfigError(message(WHERE, f"{node.kind} {node.outputs[0]} has axis {axis} of {x.ndim}, and a scale of "
                                  f"shape {gamma.shape}", "a scale of all axes from that one on is known"))
    return ops.layer_norm(x, gamma, rest[0] if rest else None, normalized_ndim=gamma.ndim,
                          eps=node.attributes.get("epsilon", 1e-5))


def _instance_norm(model: OnnxModel, node: Node, held: dict[str, Held]) -> Tensor:
    x, gamma, beta = (held[name].as_file() for name in node.inputs)
    axes = tuple(range(2, x.ndim))
    centred = x - ops.mean(x, axis=axes, keepdims=True)
    y = centred / ops.sqrt(ops.mean(centred * centred, axis=axes, keepdims=True) + node.attributes.get("epsilon", 1e-5))
    shape = (-1, *[1] * len(axes))
    return y * ops.reshape(gamma, shape) + ops.reshape(beta, shape)


def _pool(model: OnnxModel, node: Node, held: dict[str, Held]) -> Held:
    x = _map(node, held)
    window: dict[str, Any] = dict(kernel_size=_pair(node, "kernel_shape"), padding=_even(node),
                                  stride=_pair(node, "strides"))
    dilation = _pair(node, "dilations")
    if node.kind == "MaxPool":
        ceil = bool(node.attributes.get("ceil_mode", 0))
        return Held(ops.max_pool2d(x, **window) if dilation == (1, 1) and not ceil else ops.max_pool_windows(
            x, dilation=dilation, ceil_mode=ceil, **window)[0], True)
    if dilation != (1, 1):
        raise ConfigError(message(WHERE, f"{node.kind} {node.outputs[0]} has dilations {dilation}", "1 is known"))
    return Held(ops.avg_pool2d(x, count_include_pad=bool(node.attributes.get("count_include_pad", 0)), **window), True)


def _global_pool(model: OnnxModel, node: Node, held: dict[str, Held]) -> Held:
    pool = ops.adaptive_avg_pool2d if "Average" in node.kind else ops.adaptive_max_pool2d
    return Held(pool(_map(node, held), output_size=1), True)


def _gemm(model: OnnxModel, node: Node, held: dict[str, Held]) -> Tensor:
    a = node.attributes
    if a.get("transA", 0) or a.get("alpha", 1.0) != 1.0 or a.get("beta", 1.0) != 1.0:
        raise ConfigError(message(WHERE, f"Gemm {node.outputs[0]} scales or transposes its input",
                                  "y = x * w + b is known"))
    x, w, *rest = (held[name].as_file() for name in node.inputs)
    return ops.linear(x, w if a.get("transB", 0) else ops.permute(w, (1, 0)), rest[0] if rest else None)


def _pointwise(f: Callable[..., Any]) -> Operator:
    def apply(model: OnnxModel, node: Node, held: dict[str, Held]) -> Held:
        values = [held[name] for name in node.inputs]
        ndim = max(v.tensor.ndim for v in values)
        if not any(v.last for v in values) or ndim != 4:
            return Held(f(node, *[v.as_file() for v in values]))
        turned = [v.tensor if v.last or not v.tensor.ndim else ops.permute(
            ops.reshape(v.tensor, (1,) * (4 - v.tensor.ndim) + v.tensor.shape), TO_LAST) for v in values]
        return Held(f(node, *turned), True)
    return apply


def _clip(model: OnnxModel, node: Node, held: dict[str, Held]) -> Held:
    x, given = held[node.inputs[0]], node.attributes    # where files of up to opset 10 have the limits
    low, high = (given.get(name, model.constant(node, k)) for k, name in enumerate(("min", "max"), 1))
    if low is None and high is None:
        return x
    return Held(ops.clip(x.tensor, None if low is None else float(low), None if high is None else float(high)), x.last)


def _flatten(model: OnnxModel, node: Node, held: dict[str, Held]) -> Tensor:
    x, axis = held[node.inputs[0]].as_file(), node.attributes.get("axis", 1)
    return ops.reshape(x, (prod(x.shape[:axis]), prod(x.shape[axis:])))


def _reshape(model: OnnxModel, node: Node, held: dict[str, Held]) -> Tensor:
    x = held[node.inputs[0]].as_file()
    keeps = not node.attributes.get("allowzero", 0)     # meaning of 0: the length of the input, or none
    return ops.reshape(x, tuple(x.shape[k] if n == 0 and keeps else n for k, n in enumerate(
        model.constant(node, 1).tolist())))


def _transpose(model: OnnxModel, node: Node, held: dict[str, Held]) -> Held:
    x = held[node.inputs[0]]
    perm = tuple(node.attributes.get("perm", range(x.tensor.ndim)[::-1]))
    if x.last and perm == TO_LAST:
        return Held(x.tensor)
    if not x.last and perm == TO_FIRST:
        return Held(x.tensor, True)
    return Held(ops.permute(x.as_file(), perm))


def _concat(model: OnnxModel, node: Node, held: dict[str, Held]) -> Held:
    values, axis = [held[name] for name in node.inputs], node.attributes["axis"]
    if any(v.last for v in values):
        return Held(ops.concat([v.as_map() for v in values], axis=TO_FIRST[axis % 4]), True)
    return Held(ops.concat([v.tensor for v in values], axis=axis))


def _slice(model: OnnxModel, node: Node, held: dict[str, Held]) -> Tensor:
    x = held[node.inputs[0]].as_file()
    found = [model.constant(node, k) for k in range(1, 5)]
    begins, ends = found[0].tolist(), found[1].tolist()
    axes = range(len(begins)) if found[2] is None else found[2].tolist()
    steps = [1] * len(begins) if found[3] is None else found[3].tolist()
    index = [slice(None)] * x.ndim
    for axis, begin, end, step in zip(axes, begins, ends, steps):
        index[axis] = slice(begin, None if step < 0 and end < -x.shape[axis] else end, step)
    return x[tuple(index)]


def _pad(model: OnnxModel, node: Node, held: dict[str, Held]) -> Tensor:
    x, (sides, value, axes) = held[node.inputs[0]].as_file(), [model.constant(node, k) for k in (1, 2, 3)]
    widths, n = [(0, 0)] * x.ndim, len(sides) // 2
    for k, before, after in zip(range(n) if axes is None else axes.tolist(), sides[:n].tolist(), sides[n:].tolist()):
        widths[k] = before, after
    mode = PAD_MODES[_text(node.attributes.get("mode", "constant"))]
    return ops.pad(x, widths, mode, 0 if value is None or not value.size else value.item())


def _resize(model: OnnxModel, node: Node, held: dict[str, Held]) -> Held:
    x, (scales, sizes) = _map(node, held), [model.constant(node, k) for k in (2, 3)]
    way = [_text(node.attributes.get(name, default)) for name, default in RESIZED.items()]
    mode, corners = RESIZE_MODES.get((way[0], way[1], way[2] if way[0] == "nearest" else ""), ("", False))
    by = scales if sizes is None or not sizes.size else sizes
    if not mode or by is None or len(by) != 4 or by[1] != (1 if by is scales else x.shape[3]):
        raise ConfigError(message(WHERE, f"{node.kind} {node.outputs[0]} is {', '.join(way)}, by {by}",
                                  "height and width may change, as PyTorch's interpolate changes them"))
    size, factor = (None, tuple(by[2:].tolist())) if by is scales else (tuple(by[2:].tolist()), None)
    return Held(ops.interpolate(x, size, factor, mode, corners or None), True)


def _gather(model: OnnxModel, node: Node, held: dict[str, Held]) -> Tensor:
    x, index = held[node.inputs[0]].as_file(), held[node.inputs[1]].as_file()
    return x[(slice(None),) * (node.attributes.get("axis", 0) % x.ndim) + (index,)]


def _expand(model: OnnxModel, node: Node, held: dict[str, Held]) -> Tensor:
    x = held[node.inputs[0]].as_file()
    return ops.expand(x, np.broadcast_shapes(x.shape, tuple(held[node.inputs[1]].tensor.tolist())))


def _shape(model: OnnxModel, node: Node, held: dict[str, Held]) -> Tensor:
    x = held[node.inputs[0]]
    return tensor(np.array([x.tensor.shape[k] for k in TO_FIRST] if x.last else x.tensor.shape, np.int64))


def _reduced(model: OnnxModel, node: Node, held: dict[str, Held]) -> Tensor:
    given = model.constant(node, 1)
    axes = node.attributes.get("axes") or (None if given is None else given.tolist())
    if not axes and node.attributes.get("noop_with_empty_axes", 0):
        return held[node.inputs[0]].as_file()
    f = {"ReduceMean": ops.mean, "ReduceSum": ops.sum, "ReduceMax": ops.max, "ReduceMin": ops.min}[node.kind]
    keep = bool(node.attributes.get("keepdims", 1))
    return f(held[node.inputs[0]].as_file(), axis=tuple(axes) if axes else None, keepdims=keep)


def _softmax(model: OnnxModel, node: Node, held: dict[str, Held]) -> Tensor:
    f, x = ops.log_softmax if "Log" in node.kind else ops.softmax, held[node.inputs[0]].as_file()
    if "old" not in node.kind:
        return f(x, axis=node.attributes.get("axis", -1))
    axis = node.attributes.get("axis", 1)   # up to opset 12, of all axes from that one on as if they were one
    return ops.reshape(f(ops.reshape(x, (prod(x.shape[:axis]), prod(x.shape[axis:])))), x.shape)


def _matmul(model: OnnxModel, node: Node, held: dict[str, Held]) -> Tensor:
    a, b = (held[name].as_file() for name in node.inputs)
    return ops.matmul(a, b)


def _cast(model: OnnxModel, node: Node, held: dict[str, Held]) -> Held:
    x, dtype = held[node.inputs[0]], package().helper.tensor_dtype_to_np_dtype(node.attributes["to"])
    return Held(x.tensor.astype(np.dtype(dtype).name), x.last)


# The attributes that operators look at, or that say no more than the shapes of the inputs; and values of others.
_CONV = "auto_pad dilations group kernel_shape pads strides"
_POOL = "auto_pad ceil_mode dilations kernel_shape pads strides"
READ = {
    "Conv": _CONV, "ConvTranspose": f"{_CONV} output_padding output_shape", "Gather": "axis",
    "Resize": " ".join(RESIZED), "MaxPool": _POOL, "Clip": "min max", "Concat": "axis",
    "AveragePool": f"{_POOL} count_include_pad", "BatchNormalization": "epsilon momentum", "Pad": "mode",
    "InstanceNormalization": "epsilon", "LayerNormalization": "axis epsilon stash_type", "Flatten": "axis",
    "Gemm": "alpha beta transA transB", "Reshape": "allowzero", "Transpose": "perm", "Cast": "to saturate round_mode",
    "LeakyRelu": "alpha", "Elu": "alpha", **dict.fromkeys(("Softmax", "LogSoftmax", "Softmax, old", "LogSoftmax, old"),
                                                          "axis"),
    **dict.fromkeys(("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin"), "axes keepdims noop_with_empty_axes"),
}
HARMLESS = {"training_mode": (0,), "is_test": (1,), "spatial": (1,), "storage_order": (0,), "broadcast": (0, 1),
            "cubic_coeff_a": (-0.75,), "exclude_outside": (0,), "antialias": (0,), "extrapolation_value": (0.0,),
            "keep_aspect_ratio_policy": ("stretch", b"stretch")}

OPERATORS: dict[str, Operator] = {
    "Conv": _conv, "ConvTranspose": _deconv, "Gather": _gather, "Expand": _expand, "Shape": _shape, "Resize": _resize,
    "BatchNormalization": _batch_norm, "LayerNormalization": _layer_norm, "MaxPool": _pool,
    "InstanceNormalization": _instance_norm, "AveragePool": _pool, "GlobalAveragePool": _global_pool,
    "GlobalMaxPool": _global_pool, "Gemm": _gemm, "MatMul": _matmul, "Clip": _clip, "Flatten": _flatten,
    "Reshape": _reshape, "Transpose": _transpose, "Concat": _concat, "Slice": _slice, "Pad": _pad, "Cast": _cast,
    **dict.fromkeys(("Softmax", "LogSoftmax", "Softmax, old", "LogSoftmax, old"), _softmax),
    **dict.fromkeys(("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin"), _reduced),
    **{kind: _pointwise(lambda node, *x, name=name: getattr(ops, name)(*x)) for name, kind in SAME.items()},
    "Identity": _pointwise(lambda node, x: x), "Sum": _pointwise(lambda node, *x: reduce(ops.add, x)),
    "LeakyRelu": _pointwise(lambda node, x: ops.leaky_relu(x, node.attributes.get("alpha", 0.01))),
    "Elu": _pointwise(lambda node, x: ops.elu(x, node.attributes.get("alpha", 1.0))),
}
