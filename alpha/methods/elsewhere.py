"""Where else alpha has a name: `alpha.SGD` is alpha.optim.SGD.  No module is imported to find that out."""

from __future__ import annotations

import ast
import sys
from functools import cache
from pathlib import Path

OPS = ("alpha", "alpha.ops", "alpha.nn.functional", "Tensor")   # where a name may be that of an op
HOMES = ("alpha", "alpha.nn", "alpha.optim", "alpha.nn.functional", "alpha.nn.init", "alpha.data", "alpha.training",
         "alpha.cuda", "alpha.checkpoint", "alpha.onnx", "alpha.testing", "alpha.ops", "alpha.optim.schedule")
MODULES = ("errors", "random", "data", "training", "onnx", "testing", "cuda", "checkpoint", "nn", "optim", "ops")


def written(where: str, name: str) -> str | None:
    """Returns how a function of another part of alpha is written, for a name that tensors or functions may have."""
    alpha = sys.modules["alpha"]
    if where in ("alpha", "alpha.ops", "alpha.nn.functional") and callable(getattr(alpha.Tensor, name, None)):
        return f"x.{name}(...)"
    if where in ("Tensor", "alpha.nn.functional") and name in alpha.__all__ and callable(vars(alpha)[name]):
        return f"alpha.{name}(x, ...)"
    if where == "Tensor" and name in public_names("alpha.nn.functional"):
        return f"alpha.nn.functional.{name}(x, ...)"
    layers = {layer.lower(): layer for layer in dir(alpha.nn)} if where == "alpha.nn.functional" else {}
    layer = layers.get(name.replace("_", ""))
    return layer and f"alpha.nn.{layer}(...)(x)"


def public(where: str, name: str) -> str | None:
    """Returns the full name of a public name that another module of alpha has; None for attributes of objects."""
    if not where.startswith("alpha"):
        return None
    for home in HOMES:
        schedules = home == "alpha.optim.schedule"  # whose names, "step" say, mean something else in other places
        if home != where and name in public_names(home) and (not schedules or where == "alpha.optim"):
            return f"{home}.{name}"
    return f"alpha.{name}" if where != "alpha" and name in MODULES else None


@cache
def public_names(home: str) -> frozenset[str]:
    """Returns the names in the `__all__` of a module, or those that it defines, read from its source."""
    path = Path(__file__).parent.parent.joinpath(*home.split(".")[1:])
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    try:
        tree = ast.parse(path.read_text("utf-8"))
    except (OSError, ValueError, SyntaxError):
        return frozenset()      # an installation without sources
    lists = [node.value for node in tree.body if isinstance(node, ast.Assign)
             and any(isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets)]
    if not lists:
        return frozenset(node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))
                         and not node.name.startswith("_"))
    return frozenset(item.value for names in lists for item in ast.walk(names)
                     if isinstance(item, ast.Constant) and isinstance(item.value, str))


def is_module(thing: object) -> bool:
    """Tells whether an object is an alpha.nn.Module."""
    return isinstance(thing, sys.modules["alpha.nn.module"].Module)
