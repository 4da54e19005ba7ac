"""How ops of alpha are written in a graph of PyTorch: maps lie (N, C, H, W) there, other tensors as they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from alpha.interop.pytorch.layout import Order, last, plain
from alpha.interop.pytorch.twins import refuse


@dataclass(eq=False)
class Maps:
    """A value of the graph.

    Attributes:
        shape: in alpha's order of axes, for the example's number of samples.
        order: axis k of alpha's tensor is axis order[k] of the node's; None: as of maps, or as it is.
        flat: (H, W, C) where the last axis is a flattened map, whose elements lie as PyTorch flattens it.
    """

    node: Any
    shape: tuple[int, ...]
    order: Order | None = None
    flat: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.order is None:
            self.order = last(4) if len(self.shape) == 4 else plain(len(self.shape))

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def axis(self, k: int) -> int:
        """Returns PyTorch's axis for one of alpha's."""
        assert self.order is not None
        return self.order[k % self.ndim]


class Writer:
    """Writes nodes, and brings values into another order."""

    def __init__(self, torch: Any, graph: Any, samples: int) -> None:
        self.torch, self.graph, self.samples = torch, graph, samples

    def moved(self, x: Maps, order: Order) -> Maps:
        """Returns a value whose axes lie in an order."""
        assert x.order is not None
        if x.order == order:
            return x
        axes = [0] * x.ndim
        for k in range(x.ndim):
            axes[order[k]] = x.order[k]
        return Maps(self.graph.call_method("permute", (x.node, *axes)), x.shape, order, x.flat)

    def in_order(self, x: Maps) -> Maps:
        """Returns a value in the usual order: maps (N, C, H, W), a flattened map as alpha has it."""
        if not x.flat:
            return self.moved(x, last(4) if x.ndim == 4 else plain(x.ndim))
        h, w, c = x.flat
        node = self.graph.call_method("reshape", (x.node, -1, c, h, w))
        node = self.graph.call_method("permute", (node, 0, 2, 3, 1))
        return Maps(self.graph.call_method("reshape", (node, -1, h * w * c)), x.shape)

    def flattened(self, x: Maps, sizes: tuple[int, ...]) -> Maps:
        """Returns a flattened map of sizes (H, W, C) whose elements lie as PyTorch flattens it."""
        if x.flat == sizes:
            return x
        h, w, c = sizes
        node = self.graph.call_method("reshape", (self.in_order(x).node, -1, h, w, c))
        node = self.graph.call_method("permute", (node, 0, 3, 1, 2))
        return Maps(self.graph.call_method("reshape", (node, -1, h * w * c)), x.shape, flat=sizes)

    def broadcast(self, x: Maps, ndim: int, order: Order) -> Any:
        """Returns the node of an operand that is combined with maps of an order."""
        if x.ndim == ndim:
            return self.moved(x, order).node
        if ndim != 4 or order == plain(ndim) or x.ndim == 0:
            return self.moved(x, plain(x.ndim)).node
        node, have = x.node, x.order
        if x.ndim == 3 and have == (1, 2, 0):
            return node
        node = self.moved(x, plain(x.ndim)).node
        if x.ndim == 1:
            return self.graph.call_method("reshape", (node, -1, 1, 1))
        if x.ndim == 2:     # (W, C)
            node = self.graph.call_method("permute", (node, 1, 0))
            return self.graph.call_method("unsqueeze", (node, 1))
        return self.graph.call_method("permute", (node, 2, 0, 1))

    def call(self, function: Any, args: Sequence[Any], shape: tuple[int, ...], *rest: Any, flat: tuple[int, ...] = (),
             **settings: Any) -> Maps:
        """Writes a function of one or more values that works element by element."""
        whole = [a for a in args if isinstance(a, Maps) and a.ndim == len(shape)]
        order = whole[0].order if whole else plain(len(shape))
        assert order is not None
        nodes = [self.broadcast(a, len(shape), order) if isinstance(a, Maps) else a for a in args]
        return Maps(self.graph.call_function(function, (*nodes, *rest), settings), shape, order, flat)


Rule = Callable[[Writer, list[Any], dict[str, Any], tuple[int, ...]], Maps]
OPS: dict[str, Rule] = {}


def _pointwise(function: Callable[[Any], Any], *names: str) -> Rule:
    """Returns the rule of an op that works element by element, whose attributes follow in an order."""
    def write(w: Writer, args: list[Any], a: dict[str, Any], shape: tuple[int, ...]) -> Maps:
        flats = {x.flat for x in args if isinstance(x, Maps)}
        flat = flats.pop() if len(flats) == 1 else ()
        values = args if flat else [w.in_order(x) if isinstance(x, Maps) and x.flat else x for x in args]
        return w.call(function(w.torch), values, shape, *[a[name] for name in names], flat=flat)
    return write


for _name in ("add", "sub", "mul", "div", "pow", "maximum", "minimum", "neg", "exp", "log", "sqrt", "abs", "relu",
              "sigmoid", "tanh"):
    OPS[_name] = _pointwise(lambda torch, name=_name: getattr(torch, name))     # type: ignore[misc]
for _name in ("relu6", "silu", "hardswish", "hardsigmoid", "gelu", "mish", "selu"):
    OPS[_name] = _pointwise(lambda torch, name=_name: getattr(torch.nn.functional, name))   # type: ignore[misc]
OPS["clip"] = _pointwise(lambda torch: torch.clamp, "low", "high")
OPS["leaky_relu"] = _pointwise(lambda torch: torch.nn.functional.leaky_relu, "slope")


def _rule(name: str) -> Callable[[Rule], Rule]:
    def register(f: Rule) -> Rule:
        OPS[name] = f
        return f
    return register


@_rule("concat")
def concat(w: Writer, args: list[Any], a: dict[str, Any], shape: tuple[int, ...]) -> Maps:
    values = [w.in_order(x) for x in (args[0] if isinstance(args[0], list) else args)]
    return Maps(w.graph.call_function(w.torch.cat, ([x.node for x in values], values[0].axis(a["axis"]))), shape)


@_rule("reshape")
def reshape(w: Writer, args: list[Any], a: dict[str, Any], shape: tuple[int, ...]) -> Maps:
    x: Maps = args[0]
    n = w.samples
    if x.ndim == 4 and len(shape) == 2 and x.shape[0] == shape[0] == n:     # a flattened map
        made = Maps(w.graph.call_function(w.torch.flatten, (w.in_order(x).node, 1)), shape)
        made.flat = x.shape[1:] if x.shape[1] * x.shape[2] > 1 else ()
        return made
    x = w.moved(w.in_order(x), plain(x.ndim))
    sizes = [-1 if size == n and x.shape[0] == n and not k else size for k, size in enumerate(shape)]
    if prod(shape) % n == 0 and -1 not in sizes:
        raise refuse(f"a reshape from {x.shape} to {shape} joins samples", "write the model in PyTorch, and pass it")
    made = Maps(w.graph.call_method("reshape", (x.node, *sizes)), shape, plain(len(shape)))
    return w.in_order(made)


def _pool(name: str, *names: str) -> Rule:
    def write(w: Writer, args: list[Any], a: dict[str, Any], shape: tuple[int, ...]) -> Maps:
        settings = {key: a[key] for key in names}
        function = getattr(w.torch.nn.functional, name)
        return Maps(w.graph.call_function(function, (w.in_order(args[0]).node,), settings), shape)
    return write


OPS["max_pool2d"] = _pool("max_pool2d", "kernel_size", "stride", "padding")
OPS["avg_pool2d"] = _pool("avg_pool2d", "kernel_size", "stride", "padding", "count_include_pad")
OPS["adaptive_avg_pool2d"] = _pool("adaptive_avg_pool2d", "output_size")


@_rule("slice_axes")
def slice_axes(w: Writer, args: list[Any], a: dict[str, Any], shape: tuple[int, ...]) -> Maps:
    x = w.in_order(args[0])
    keys = [slice(None)] * x.ndim
    for k, (start, count, step) in enumerate(a["ranges"]):
        if (start, count, step) != (0, x.shape[k], 1):
            end = start + (count - 1) * step + (1 if step > 0 else -1)
            keys[x.axis(k)] = slice(start, end, step)
    made = Maps(w.graph.call_function(_getitem, (x.node, tuple(keys))), shape, x.order)
    return made if len(shape) == x.ndim and tuple(c for _, c, _ in a["ranges"]) == shape else w.in_order(made)


def _getitem(x: Any, keys: Any) -> Any:
    return x[keys]


@_rule("pad")
def pad(w: Writer, args: list[Any], a: dict[str, Any], shape: tuple[int, ...]) -> Maps:
    x = w.in_order(args[0])
    widths: list[Any] = [(0, 0)] * x.ndim
    for k, pair in enumerate(a["widths"]):
        widths[x.axis(k)] = pair
    flat = [side for pair in widths[::-1] for side in pair]
    return Maps(w.graph.call_function(w.torch.nn.functional.pad, (x.node, flat), {"value": a["value"]}), shape)


def _reduction(name: str) -> Rule:
    def write(w: Writer, args: list[Any], a: dict[str, Any], shape: tuple[int, ...]) -> Maps:
        x = w.in_order(args[0])
        axis = a["axis"]
        axes = list(range(x.ndim)) if axis is None else [axis] if isinstance(axis, int) else list(axis)
        settings = {"dim": [x.axis(k) for k in axes], "keepdim": a["keepdims"]}
        node = w.graph.call_function(getattr(w.torch, name), (x.node,), settings)
        if a["keepdims"]:
            return Maps(node, shape, x.order)
        left = [x.axis(k) for k in range(x.ndim) if k not in [i % x.ndim for i in axes]]
        return Maps(node, shape, tuple([sorted(left).index(k) for k in left]))
    return write


OPS["mean"], OPS["sum"], OPS["max"] = _reduction("mean"), _reduction("sum"), _reduction("amax")
