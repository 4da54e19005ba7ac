"""Convolutions, norms, pools and resizing: their maps lie channels last."""

from __future__ import annotations

from typing import Any

from alpha.interop.pytorch.build import Builder, Unsupported, Value, pair
from alpha.interop.pytorch.graph import Node, Switch
from alpha.interop.pytorch.layout import Order, last, plain
from alpha.interop.pytorch.rules.registry import rule


def options(b: Builder, **given: tuple[Any, Any]) -> str:
    """Returns `, name=value` of the settings that differ from their defaults."""
    return "".join([f", {name}={b.setting(value) if not isinstance(value, (tuple, list)) else tuple(value)}"
                    for name, (value, default) in ((name, (pair(v), d)) for name, (v, d) in given.items())
                    if value != default])


def _activation(node: Node) -> str:
    return ', activation="relu"' if node.args.get("_relu") else ""


@rule("conv2d", "conv1d")
def conv(b: Builder, node: Node) -> Value:
    a = node.args
    x, order = b.maps(a["input"]), last(node.ndim)
    if node.ndim != b.get(a["input"]).ndim or node.ndim != (4 if node.op == "conv2d" else 3):
        raise Unsupported("its input has no axis of samples")
    layer = b.layers.called(node, "weight", "bias")
    if layer:
        counted = ", for_norm=self.training" if a.get("_for_norm") else ""
        return b.result(node, f"{layer}({x}{_activation(node)}{counted})", order)
    weight = b.filters(a["weight"]) if node.op == "conv2d" else b.to(b.raw(a["weight"]), (0, 2, 1))
    bias = options(b, bias=(a["bias"], None)) if a["bias"] is None else f", {b.weight(a['bias'])}"
    padding = a["padding"][0] if node.op == "conv1d" and not isinstance(a["padding"], str) else a["padding"]
    stride, dilation = ((a["stride"], a["dilation"]) if node.op == "conv2d" else
                        (pair(a["stride"]), pair(a["dilation"])))
    text = f"F.{node.op}({x}, {weight}{bias}" + options(b, stride=(stride, 1), padding=(padding, 0),
                                                         dilation=(dilation, 1), groups=(a["groups"], 1))
    return b.result(node, _with_relu(node, text + ")"), order)


def _with_relu(node: Node, text: str) -> str:
    return f"F.relu({text})" if node.args.get("_relu") else text


@rule("conv_transpose2d")
def conv_transpose2d(b: Builder, node: Node) -> Value:
    a = node.args
    x, order = b.maps(a["input"]), last(4)
    if node.ndim != 4:
        raise Unsupported("its input has no axis of samples")
    layer = b.layers.called(node, "weight", "bias")
    if layer and list(b.layers.model.get_submodule(node.place.layer).output_padding) == list(a["output_padding"]):
        return b.result(node, f"{layer}({x})", order)
    bias = "" if a["bias"] is None else f", {b.weight(a['bias'])}"
    return b.result(node, f"F.conv_transpose2d({x}, {b.filters(a['weight'])}{bias}" + options(
        b, stride=(a["stride"], 1), padding=(a["padding"], 0), output_padding=(a["output_padding"], 0),
        groups=(a["groups"], 1), dilation=(a["dilation"], 1)) + ")", order)


# ---- norms -----------------------------------------------------------------------------------------------------------


@rule("batch_norm")
def batch_norm(b: Builder, node: Node) -> Value:
    a = node.args
    value, order = b.raw(a["input"]), last(node.ndim)
    if node.ndim > 4:
        raise Unsupported("its input has more than four axes")
    x = b.to(value, order)
    residual = f", residual={b.to(b.raw(a['_residual']), order)}" if "_residual" in a else ""
    layer = b.layers.called(node, "weight", "bias", "running_mean", "running_var")
    tracked = a["running_mean"] is not None
    if layer and (a["training"] == Switch(True, False) if tracked else a["training"] is True):
        return b.result(node, f"{layer}({x}{residual}{_activation(node)})", order)
    if tracked and a["momentum"] is None:
        raise Unsupported("momentum is None")
    arguments = ", ".join([b.weight(a[name]) for name in ("running_mean", "running_var", "weight", "bias")])
    text = f"F.batch_norm({x}, {arguments}" + options(b, training=(a["training"], False), momentum=(a["momentum"], 0.1),
                                                      eps=(a["eps"], 1e-5)) + ")"
    if residual:
        text = f"{text} + {b.to(b.raw(a['_residual']), order)}"
    return b.result(node, _with_relu(node, text), order)


def _normalized(b: Builder, node: Node, name: str) -> tuple[str, Order, Order, tuple[int, ...], str]:
    """Returns x, its order, a weight's order, the sizes in it, and the layer."""
    sizes = tuple(node.args[name])
    value = b.raw(node.args["input"])
    rank, r = len(sizes), value.ndim
    tail: Order = (r - 2, r - 1, r - 3) if rank == 3 else tuple(range(r - rank, r))
    order = value.order if value.order[-rank:] == tail else (
        *[k for k in value.order if k < r - rank], *tail)
    own = tuple([k - (r - rank) for k in tail])
    return b.to(value, order), order, own, tuple([sizes[k] for k in own]), ""


@rule("layer_norm", "rms_norm")
def layer_norm(b: Builder, node: Node) -> Value:
    a = node.args
    x, order, own, sizes, _ = _normalized(b, node, "normalized_shape")
    layer = b.layers.called(node, "weight", "bias")
    if layer:
        return b.result(node, f"{layer}({x})", order)
    names = ("weight", "bias") if node.op == "layer_norm" else ("weight",)
    weights = ", ".join([b.weight(a[name], own) for name in names])
    eps = options(b, eps=(a["eps"], 1e-5 if node.op == "layer_norm" else None))
    return b.result(node, f"F.{node.op}({x}, {b.shape(sizes)}, {weights}{eps})", order)


@rule("group_norm")
def group_norm(b: Builder, node: Node) -> Value:
    a, order = node.args, last(node.ndim)
    x = b.maps(a["input"])
    layer = b.layers.called(node, "weight", "bias")
    if layer:
        return b.result(node, f"{layer}({x})", order)
    weights = f"{b.weight(a['weight'])}, {b.weight(a['bias'])}"
    return b.result(node, f"F.group_norm({x}, {a['num_groups']}, {weights}{options(b, eps=(a['eps'], 1e-5))})", order)


@rule("instance_norm")
def instance_norm(b: Builder, node: Node) -> Value:
    a, order = node.args, last(node.ndim)
    x = b.maps(a["input"])
    layer = b.layers.called(node, "weight", "bias")
    if layer:
        return b.result(node, f"{layer}({x})", order)
    if a["running_mean"] is not None or a["use_input_stats"] is not True:
        raise Unsupported("it keeps running statistics")
    return b.result(node, f"F.instance_norm({x}, None, None, {b.weight(a['weight'])}, {b.weight(a['bias'])}"
                          f"{options(b, eps=(a['eps'], 1e-5))})", order)


@rule("local_response_norm")
def local_response_norm(b: Builder, node: Node) -> Value:
    layer = b.layers.called(node)
    return b.result(node, f"{layer}({b.maps(node.args['input'])})", last(node.ndim))


# ---- pools and sizes -------------------------------------------------------------------------------------------------


@rule("max_pool2d", "avg_pool2d", "max_pool2d_with_indices", "max_pool1d", "avg_pool1d")
def pool(b: Builder, node: Node) -> Any:
    a = node.args
    value = b.raw(a.get("self", a.get("input")))
    order = last(value.ndim)
    x = b.to(value, order)
    if value.ndim != (3 if node.op.endswith("1d") else 4):
        raise Unsupported("its input has no axis of samples")
    layer = b.layers.called(node)
    if layer:
        return b.result(node, f"{layer}({x})", order)
    line = node.op.endswith("1d")
    stride = a["stride"] or a["kernel_size"]
    settings = {name: (a[name][0] if line and isinstance(a[name], list) else a[name], default) for name, default in (
        ("padding", 0), ("dilation", 1), ("ceil_mode", False), ("count_include_pad", True), ("divisor_override", None))
        if name in a}
    kernel = a["kernel_size"][0] if line else pair(a["kernel_size"])
    text = f"F.{node.op.partition('_with')[0]}({x}, {kernel}" + options(
        b, stride=(stride[0] if line else stride, kernel), **settings)
    if node.op != "max_pool2d_with_indices":
        return b.result(node, text + ")", order)
    raise Unsupported("its indices count rows of PyTorch's maps")


@rule("adaptive_avg_pool2d", "adaptive_max_pool2d", "adaptive_avg_pool1d", "adaptive_max_pool1d")
def adaptive_pool(b: Builder, node: Node) -> Any:
    value = b.raw(node.args["self"])
    order = last(value.ndim)
    several = node.op.startswith("adaptive_max")        # with indices, which nothing may read
    layer = "" if several else b.layers.called(node)
    size = node.args["output_size"]
    size = pair(size) if node.op.endswith("2d") else size[0]
    x = b.to(value, order)
    shape = (*value.shape[:2], *node.args["output_size"])
    made = b.emit(f"{layer}({x})" if layer else f"F.{node.op}({x}, {size})", shape, order, value.dtype)
    return [made, None] if several else made


_MODES = {"nearest": "nearest", "linear": "linear", "bilinear": "bilinear", "bicubic": "bicubic"}


@rule("upsample_nearest2d", "upsample_nearest1d", "upsample_bilinear2d", "upsample_bicubic2d", "upsample_linear1d",
      "_upsample_nearest_exact2d")
def upsample(b: Builder, node: Node) -> Value:
    a = node.args
    mode = "nearest-exact" if "exact" in node.op else node.op.removeprefix("upsample_")[:-2]
    order = last(node.ndim)
    size, scales = a.get("output_size"), a.get("scale_factors")
    if "scale_factors" not in a:
        scales = None
    align = options(b, align_corners=(a.get("align_corners") or None, None))
    to = (f"size={pair(list(size))}" if size is not None and all(isinstance(s, int) for s in size) else
          f"scale_factor={pair([float(s) if s != int(s) else int(s) for s in scales])}" if scales else
          f"size={b.shape(node.shape[2:])}")
    x = b.maps(a["input" if "input" in a else "self"])
    return b.result(node, f'F.interpolate({x}, {to}, mode="{mode}"{align})', order)


@rule("pixel_shuffle", "pixel_unshuffle")
def pixel_shuffle(b: Builder, node: Node) -> Value:
    layer = b.layers.called(node)
    x = b.maps(node.args["self"])
    factor = node.args.get("upscale_factor", node.args.get("downscale_factor"))
    return b.result(node, f"{layer}({x})" if layer else f"F.{node.op}({x}, {factor})", last(4))


@rule("channel_shuffle")
def channel_shuffle(b: Builder, node: Node) -> Value:
    return b.result(node, f"ops.channel_shuffle({b.maps(node.args['self'])}, {node.args['groups']})", last(node.ndim))


@rule("pad", "constant_pad_nd")
def pad(b: Builder, node: Node) -> Value:
    value = b.raw(node.args["self"])
    widths = node.args["pad"]
    mode, fill = node.args.get("mode", "constant"), node.args.get("value") or 0
    pairs = {value.ndim - 1 - k: (widths[2 * k], widths[2 * k + 1]) for k in range(len(widths) // 2)}
    if not all(isinstance(w, int) for w in widths):
        raise Unsupported("its widths depend on the number of samples")
    if any(w < 0 for w in widths):
        if mode != "constant" or any(w > 0 for w in widths):
            raise Unsupported("it cuts on one side and pads on another")
        cuts = [f"{-pairs[k][0] or ''}:{pairs[k][1] or ''}" if k in pairs else ":" for k in value.order]
        return b.result(node, f"{value.text}[{', '.join(cuts)}]", value.order)
    each = ", ".join([str(pairs.get(k, (0, 0))) for k in value.order])
    how = options(b, mode=(mode, "constant")) if mode != "constant" else options(b, value=(fill, 0))
    return b.result(node, f"F.pad({value.text}, ({each}){how})", value.order)


# ---- dropout ---------------------------------------------------------------------------------------------------------


@rule("dropout", "feature_dropout")
def dropout(b: Builder, node: Node) -> Value:
    a = node.args
    whole = node.op == "feature_dropout"
    x = a.get("input", a.get("self"))
    value = b.raw(x) if whole else b.get(x)
    order = last(value.ndim) if whole else value.order
    if a["train"] is False or a["p"] == 0.0:
        return value
    layer = b.layers.called(node) if a["train"] == Switch(True, False) else ""
    written = b.to(value, order)
    name = "dropout2d" if whole else "dropout"
    text = f"{layer}({written})" if layer else (f"F.{name}({written}, {b.setting(a['p'])}, "
                                                f"training={b.setting(a['train'])})")
    return b.emit(text, node.shape, order, node.dtype, value.flat)


# ---- products --------------------------------------------------------------------------------------------------------


@rule("linear")
def linear(b: Builder, node: Node) -> Value:
    a = node.args
    value = b.get(a["input"])
    layer = b.layers.called(node, "weight", "bias")
    if value.flat and layer:
        kept = b.layers.flattened.setdefault(node.place.layer, value.flat)
        if kept != value.flat:
            layer = ""
    elif layer and node.place.layer in b.layers.flattened:
        raise Unsupported("the same layer reads a flattened map elsewhere")
    if not layer:
        value = b.raw(a["input"])
    r = value.ndim
    order = value.order if value.order[-1] == r - 1 else (*[k for k in value.order if k < r - 1], r - 1)
    x = b.to(value, order)
    if layer:
        return b.result(node, f"{layer}({x}{_activation(node)})", order)
    weight = b.weight(a["weight"])
    bias = "" if a["bias"] is None else f", {b.weight(a['bias'])}"
    return b.result(node, _with_relu(node, f"F.linear({x}, {weight}{bias})"), order)


@rule("embedding")
def embedding(b: Builder, node: Node) -> Value:
    a = node.args
    index = b.raw(a["indices"])
    order = (*index.order, index.ndim)
    layer = b.layers.called(node, "weight")
    if layer:
        return b.result(node, f"{layer}({index.text})", order)
    index_of = options(b, padding_idx=(a["padding_idx"], -1))
    return b.result(node, f"F.embedding({index.text}, {b.weight(a['weight'])}{index_of})", order)


@rule("prelu")
def prelu(b: Builder, node: Node) -> Value:
    value = b.raw(node.args["self"])
    layer, order = b.layers.called(node, "weight"), last(value.ndim)
    x = b.to(value, order)
    return b.result(node, f"{layer}({x})" if layer else f"F.prelu({x}, {b.weight(node.args['weight'])})", order)


@rule("im2col")
def unfold(b: Builder, node: Node) -> Value:
    a = node.args
    x = b.maps(a["self"])
    settings = options(b, dilation=(a["dilation"], 1), padding=(a["padding"], 0), stride=(a["stride"], 1))
    n, columns, places = node.shape
    kernel = list(a["kernel_size"])
    c = columns // (kernel[0] * kernel[1])
    made = b.emit(f"F.unfold({x}, {pair(kernel)}{settings})", (n, places, columns), plain(3), node.dtype)
    # the columns of PyTorch are (C, taps), those here (taps, C)
    b.permutes.append(f"columns of unfold at {b.place}")
    text = f"{made.text}.reshape({b.sizes([-1, places, kernel[0] * kernel[1], c])}).permute(0, 1, 3, 2)"
    return b.emit(f"{text}.reshape({b.sizes([-1, places, columns])})", node.shape, (0, 2, 1), node.dtype)
