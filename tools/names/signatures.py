"""Typed signatures of ops and functions, by their annotations: of alpha/ops/__init__.pyi, and of methods of Tensor."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tools.names.definitions import Definition
from tools.names.regions import NamesError

# The names that an annotation in __init__.pyi may have.
KNOWN = {"Any", "Axes", "IntOrPair", "IntOrTriple", "None", "Number", "Op", "Operand", "Sequence", "Shape", "Sorted",
         "Tensor", "bool", "float", "int", "list", "ndarray", "str", "tuple", "Callable"}
LONG = {"Operand": "TensorT | Number", "IntOrPair": "int | tuple[int, int]", "Shape": "Sequence[int]",
        "IntOrTriple": "int | tuple[int, int, int]", "Tensor": "TensorT", "Sorted": "Any"}     # as a method has it


@dataclass
class Parameter:
    """One parameter of a signature; `prefix` is "*" or "**", or "" of an ordinary one."""

    name: str
    kind: str
    default: str = ""
    by_name: bool = False
    prefix: str = ""

    def __str__(self) -> str:
        return f"{self.prefix}{self.name}: {self.kind}" + (f" = {self.default}" if self.default else "")


def texts(parameters: list[Parameter]) -> list[str]:
    """Returns the parameters as a signature has them, with the star in front of those that are given by name."""
    items = [str(p) for p in parameters]
    first = next((k for k, p in enumerate(parameters) if p.by_name), None)
    if first is not None and not any(p.prefix == "*" for p in parameters):
        items.insert(first, "*")
    return items


def parameters(d: Definition) -> tuple[list[Parameter], str]:
    """Returns the parameters of a definition and its result.  Raises NamesError for a type with no name here."""
    found, result = _of_op(d.thing) if hasattr(d.thing, "attr_names") else _of_function(d)
    for p in found:
        p.kind = _in_order(p.kind)
    for text in [p.kind for p in found] + [result]:
        names = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
        if names - KNOWN:
            raise NamesError(f"{d.place}: __init__.pyi does not know the type {', '.join(sorted(names - KNOWN))} of "
                             f"{d.name}\nhelp: annotate it with a kind of alpha.core.inputs.kinds, or add the type to "
                             "KNOWN in tools/names/signatures.py and to the imports of alpha/ops/__init__.pyi")
    return found, result


def _of_op(op: Any) -> tuple[list[Parameter], str]:
    args = [Parameter(a.name, "Sequence[Tensor]" if a.many else "Operand" if op.scalars and not a.mixed else
                      "Tensor | None" if a.optional else "Tensor", "None" if a.optional else "") for a in op.args]
    declared = inspect.signature(op.canon or op.shape).parameters
    attrs = [Parameter(name, op.kinds[name].stub if name in op.kinds else "Any", _default(declared[name]),
                       name not in op.by_position) for name in op.attr_names]
    for k, p in enumerate(attrs):   # one without a default behind one with it is given by name, as are all after it
        before = args + attrs[:k]
        p.by_name |= before[-1].by_name or (not p.default and any(earlier.default for earlier in before))
    return args + attrs, {0: "None", 1: "Tensor"}.get(op.returned, "Any")


def _of_function(d: Definition) -> tuple[list[Parameter], str]:
    from importlib import import_module
    f = inspect.unwrap(d.thing)
    kinds = import_module("alpha.core.inputs.arguments").kinds_of(f)
    stars: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    found = [Parameter(p.name, kinds[p.name].stub if p.name in kinds else str(p.annotation), _default(p),
                       p.kind is p.KEYWORD_ONLY, stars.get(p.kind, ""))
             for p in inspect.signature(f).parameters.values()]
    return found, str(inspect.signature(f).return_annotation)


def _default(p: inspect.Parameter) -> str:
    if p.default is p.empty:
        return ""
    return f'"{p.default}"' if isinstance(p.default, str) else repr(p.default)


# ---- methods ---------------------------------------------------------------------------------------------------------


def method(d: Definition) -> tuple[list[str], str] | None:
    """Returns parameters and result of a definition as a method of Tensor; None where a parameter has no default.

    A call may name its arguments as other libraries do. `**torch` takes such a name for a parameter with a default. For
    one without a default a type checker would miss it, so that the method stays without a type.
    """
    found, result = parameters(d)
    rest = found[1:]
    if any(not p.default or p.prefix for p in rest) or not found[0].kind.startswith(("Tensor", "Operand")):
        return None
    for p in rest:
        p.kind = _long(p.kind)
    return ["self", *texts(rest), *["**torch: Any"][:len(rest)]], _long(result)


def _long(text: str) -> str:
    tree = ast.parse(text, mode="eval")
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            node.id = LONG.get(node.id, node.id)
    return _in_order(ast.unparse(tree))


def _in_order(text: str) -> str:
    """Returns a type with each alternative once, None at the end."""
    return " | ".join(sorted(dict.fromkeys(_parts(text)), key=lambda part: part == "None"))


def _parts(text: str) -> Iterator[str]:
    """Yields the alternatives of a type: "int | tuple[int, int] | None" has three."""
    depth, start = 0, 0
    for k, c in enumerate(text):
        depth += (c == "[") - (c == "]")
        if c == "|" and not depth:
            yield text[start:k].strip()
            start = k + 1
    yield text[start:].strip()
