"""Parts of a model that may count on channels first: PyTorch's weights load, and the results are wrong.

Nothing here is certain, as a forward pass is code: there is a warning with the remedy, and the weights are loaded.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from math import isqrt
from typing import Any

from alpha import nn
from alpha.checkpoint.layouts import channels_of, paths
from alpha.core.errors import message, warn
from alpha.nn import Linear, Module

_LISTED = "docs/tutorial/from_pytorch.md lists what to search a model's code for"


def warn_of_order(where: str, model: Module) -> None:
    """Warns of every Linear that may read flattened maps, and of code that unpacks a shape as (n, c, h, w)."""
    for name, layer, channels in _behind_maps(model):
        warn(message(
            where, f"{name} has {layer.in_features} inputs behind maps of {channels} channels: if the model flattens "
            f"maps of {layer.in_features // channels} pixels, PyTorch has the columns in another order",
            "give the layer flattened=(height, width, channels), and its columns are turned; flattened=(1, 1, "
            f"{layer.in_features}) says that they are in order"))
    for place, names in _unpacked(model):
        warn(message(where, f"{place} takes a shape apart as {names}, and maps are (n, h, w, c) here",
                     f"write n, h, w, c = x.shape, and the axes behind it likewise; {_LISTED}"))


def _behind_maps(model: Module) -> Iterator[tuple[str, Linear, int]]:
    """Yields each Linear with as many inputs as square maps of the layer in front of it have elements."""
    channels: int | None = None
    for prefix, module in paths(model):
        if isinstance(module, Linear):
            side = isqrt(module.in_features // channels) if channels else 0
            if side > 1 and channels and module.in_features == channels * side * side and not module.flattened:
                yield prefix.removesuffix(".") or type(module).__name__, module, channels
            channels = None
        elif isinstance(module, (nn.Embedding, nn.LayerNorm)):
            channels = None
        else:
            channels = channels_of(module) or channels


def _unpacked(model: Module) -> Iterator[tuple[str, str]]:
    """Yields (function, names) where a shape of four axes is taken apart with the channels second."""
    seen: set[Any] = set()
    for module in model.modules():
        if type(module).__module__.partition(".")[0] == "alpha":
            continue
        forward = inspect.unwrap(type(module).forward)
        found = getattr(forward, "__globals__", {})
        names = getattr(getattr(forward, "__code__", None), "co_names", ())
        methods = [vars(type(module)).get(name) for name in names]
        for f in (forward, *methods, *[found.get(name) for name in names]):
            if not inspect.isfunction(f) or f in seen or f.__module__.partition(".")[0] == "alpha":
                continue
            seen.add(f)
            yield from ((f.__qualname__, text) for text in _channels_second(f))


def _channels_second(f: Any) -> Iterator[str]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(f)))
    except (OSError, TypeError, SyntaxError):       # typed in, or made
        return
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Tuple):
            continue
        names = [t.id for t in node.targets[0].elts if isinstance(t, ast.Name)]
        value = node.value.func if isinstance(node.value, ast.Call) else node.value
        if len(names) == 4 and isinstance(value, ast.Attribute) and value.attr in ("shape", "size") and (
                names[1].lower().startswith(("c", "num_c", "in_c", "n_c")) and names[3].lower().startswith("w")):
            yield ", ".join(names)
