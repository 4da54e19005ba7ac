"""Which modules of a PyTorch model are layers of alpha, and how their making is written."""

from __future__ import annotations

import keyword
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from alpha.interop.pytorch.graph import Node
from alpha.interop.pytorch.layout import Order, moved, plain


def _short(value: Any) -> Any:
    """Returns a pair of equal numbers as one."""
    return value[0] if isinstance(value, (tuple, list)) and len(set(value)) == 1 else value


def _call(name: str, *args: Any, **options: tuple[Any, Any]) -> str:
    """Returns `name(args, option=value)`, with the options (value, default) that differ from their defaults."""
    given = [f"{key}={_short(value)!r}" for key, (value, default) in options.items() if _short(value) != default]
    return f"nn.{name}({', '.join([*[repr(_short(a)) for a in args], *given])})"


def _conv(m: Any) -> str | None:
    padding = 0 if m.padding == "valid" else m.padding
    line = type(m).__name__ == "Conv1d"
    size = [_short(v) if line else v for v in (m.kernel_size, m.stride, m.dilation)]
    return _call(type(m).__name__, m.in_channels, m.out_channels, size[0], stride=(size[1], 1), padding=(padding, 0),
                 dilation=(size[2], 1), groups=(m.groups, 1), bias=(m.bias is not None, True),
                 padding_mode=(m.padding_mode, "zeros"))


def _transposed(m: Any) -> str | None:
    return _call("ConvTranspose2d", m.in_channels, m.out_channels, m.kernel_size, stride=(m.stride, 1),
                 padding=(m.padding, 0), output_padding=(m.output_padding, 0), groups=(m.groups, 1),
                 bias=(m.bias is not None, True), dilation=(m.dilation, 1))


def _batch_norm(m: Any) -> str | None:
    if m.momentum is None:
        return None
    return _call(type(m).__name__, m.num_features, eps=(m.eps, 1e-5), momentum=(m.momentum, 0.1),
                 affine=(m.affine, True), track_running_stats=(m.track_running_stats, True))


def _layer_norm(m: Any) -> str | None:
    sizes = tuple(m.normalized_shape)
    if len(sizes) == 3:
        sizes = (*sizes[1:], sizes[0])
    return _call("LayerNorm", sizes[0] if len(sizes) == 1 else list(sizes), eps=(m.eps, 1e-5),
                 affine=(m.elementwise_affine, True), bias=(m.bias is not None or m.weight is None, True)
                 ).replace("[", "(").replace("]", ")")


def _group_norm(m: Any) -> str | None:
    return _call("GroupNorm", m.num_groups, m.num_channels, eps=(m.eps, 1e-5), affine=(m.affine, True))


def _instance_norm(m: Any) -> str | None:
    if m.track_running_stats or m.momentum != 0.1:
        return None
    return _call("InstanceNorm2d", m.num_features, eps=(m.eps, 1e-5), affine=(m.affine, False))


def _embedding(m: Any) -> str | None:
    if m.max_norm is not None or m.scale_grad_by_freq or m.sparse:
        return None
    return _call("Embedding", m.num_embeddings, m.embedding_dim, padding_idx=(m.padding_idx, None))


def _pool(m: Any) -> str | None:
    if getattr(m, "return_indices", False):
        return None
    stride = m.kernel_size if m.stride is None else m.stride
    options = {name: (getattr(m, name), default) for name, default in (
        ("padding", 0), ("dilation", 1), ("ceil_mode", False), ("count_include_pad", True), ("divisor_override", None))
        if hasattr(m, name)}
    return _call(type(m).__name__, m.kernel_size, stride=(stride, _short(m.kernel_size)), **options)


def _attention(m: Any) -> str | None:
    if m.bias_k is not None or m.add_zero_attn or not m._qkv_same_embed_dim:
        return None
    return _call("MultiheadAttention", m.embed_dim, m.num_heads, dropout=(m.dropout, 0.0),
                 bias=(m.in_proj_bias is not None, True), batch_first=(m.batch_first, False))


def _plain(*names: str, **defaults: Any) -> Callable[[Any], str | None]:
    """Returns the maker of a layer whose arguments are attributes: names without, and defaults with a default."""
    def make(m: Any) -> str | None:
        return _call(type(m).__name__, *[getattr(m, name) for name in names],
                     **{name: (getattr(m, name), default) for name, default in defaults.items()})
    return make


def _softplus(m: Any) -> str | None:
    return "nn.Softplus()" if (m.beta, m.threshold) == (1, 20) else None


# class of torch.nn -> (the operators of ATen that a call of it is, how its making is written)
TABLE: dict[str, tuple[tuple[str, ...], Callable[[Any], str | None]]] = {
    "Conv2d": (("conv2d",), _conv),
    "Conv1d": (("conv1d",), _conv),
    "ConvTranspose2d": (("conv_transpose2d",), _transposed),
    "Linear": (("linear",), lambda m: _call("Linear", m.in_features, m.out_features,
                                            bias=(m.bias is not None, True))),
    "BatchNorm2d": (("batch_norm",), _batch_norm),
    "BatchNorm1d": (("batch_norm",), _batch_norm),
    "LayerNorm": (("layer_norm",), _layer_norm),
    "RMSNorm": (("rms_norm",), lambda m: _call("RMSNorm", m.normalized_shape, eps=(m.eps, None),
                                               affine=(m.elementwise_affine, True))),
    "GroupNorm": (("group_norm",), _group_norm),
    "InstanceNorm2d": (("instance_norm",), _instance_norm),
    "Embedding": (("embedding",), _embedding),
    "MultiheadAttention": (("multi_head_attention",), _attention),
    "PReLU": (("prelu",), lambda m: _call("PReLU", m.num_parameters)),
    "Dropout": (("dropout",), _plain("p")),
    "Dropout2d": (("feature_dropout",), _plain("p")),
    "MaxPool2d": (("max_pool2d",), _pool),
    "AvgPool2d": (("avg_pool2d",), _pool),
    "AdaptiveAvgPool2d": (("adaptive_avg_pool2d",), lambda m: None if None in _sides(m.output_size) else _call(
        "AdaptiveAvgPool2d", m.output_size)),
    "PixelShuffle": (("pixel_shuffle",), _plain("upscale_factor")),
    "PixelUnshuffle": (("pixel_unshuffle",), _plain("downscale_factor")),
    "LocalResponseNorm": (("local_response_norm",), _plain("size", alpha=1e-4, beta=0.75, k=1.0)),
    "ReLU": (("relu",), _plain()),
    "ReLU6": (("relu6", "hardtanh"), _plain()),
    "SiLU": (("silu",), _plain()),
    "Mish": (("mish",), _plain()),
    "SELU": (("selu",), _plain()),
    "Hardswish": (("hardswish",), _plain()),
    "Hardsigmoid": (("hardsigmoid",), _plain()),
    "Sigmoid": (("sigmoid",), _plain()),
    "Tanh": (("tanh",), _plain()),
    "GELU": (("gelu",), _plain(approximate="none")),
    "LeakyReLU": (("leaky_relu",), _plain(negative_slope=0.01)),
    "ELU": (("elu",), _plain(alpha=1.0)),
    "CELU": (("celu",), _plain(alpha=1.0)),
    "Softplus": (("softplus",), _softplus),
}
HELD = {"NonDynamicallyQuantizableLinear": "Linear"}    # whose weights others read
FIRST = ("Conv2d", "Conv1d", "ConvTranspose2d")         # whose weight has its channels last here


def _sides(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def reached(path: str) -> str:
    """Returns how a part of the model is written in forward: `self.blocks[0].conv`."""
    return "self" + "".join([f".{part}" if is_name(part) else f"[{part}]" if part.isdecimal() else f"[{part!r}]"
                             for part in path.split(".") if part])


def is_name(part: str) -> bool:
    """Tells whether a part of a path can be written as an attribute."""
    return part.isidentifier() and not keyword.iskeyword(part)


@dataclass
class Layers:
    """The modules of a model that are layers of alpha, by path.

    Attributes:
        makers: path -> how the layer is made.
        kinds: path -> its class.
        used: paths of those that the forward pass calls, and of those whose parameters it reads.
        flattened: path of a Linear -> (H, W, C) of the map that it reads.
    """

    model: Any
    makers: dict[str, str] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    flattened: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        whole = ""      # a layer that has layers
        for path, module in self.model.named_modules(remove_duplicate=False):
            if whole and path.startswith(whole):
                continue
            kind = HELD.get(type(module).__name__, type(module).__name__)
            if path and kind in TABLE and type(module).__module__.startswith("torch.nn."):
                text = TABLE[kind][1](module)
                if text is not None:
                    self.makers[path], self.kinds[path] = text, kind
                    whole = f"{path}." if kind == "MultiheadAttention" else whole

    def called(self, node: Node, *names: str) -> str:
        """Returns how a node is written as a call of a layer, `self.conv`; "" where it is none.

        Args:
            names: arguments that must be the layer's own parameters and buffers.
        """
        path = node.place.layer
        kind = self.kinds.get(path, "")
        if not kind or node.op not in TABLE[kind][0] or not node.place.kind.endswith(f".{kind}"):
            return ""
        for name in names:
            value = node.args.get(name)
            if isinstance(value, Node) and value.path.rpartition(".")[0] != path:
                return ""
        self.used.add(path)
        return reached(path)

    def order(self, path: str, ndim: int) -> Order | None:
        """Returns the order in which the parameter of a layer is stored; None where it belongs to none."""
        owner, _, name = path.rpartition(".")
        kind = self.kinds.get(owner)
        if kind is None:
            return None
        if kind in FIRST and name == "weight":
            return (0, 2, 1) if kind == "Conv1d" else moved(ndim)
        return moved(ndim) if kind == "LayerNorm" and ndim == 3 else plain(ndim)

    def read(self, paths: Iterable[str]) -> None:
        """Notes that the forward pass reads parameters by itself."""
        self.used |= {owner for path in paths if (owner := path.rpartition(".")[0]) in self.makers}

    def made(self, path: str) -> str:
        """Returns how a layer's making is written."""
        text = self.makers[path]
        if path in self.flattened:
            text = text[:-1] + f", flattened={tuple(self.flattened[path])})"
        return text
