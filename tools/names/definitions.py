"""The definitions: each op and function of alpha.ops with `@public`, and the layers of alpha.nn."""

from __future__ import annotations

import ast
import builtins
import difflib
import keyword
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from tools.names.regions import NamesError, without

FIELDS = {"top": (bool, str), "method": (bool, str), "functional": (bool, str), "inplace": (bool,), "layer": (str,),
          "keeps_channels": (bool,), "onnx": (str,), "spread": (bool,)}
SPACES = {"top": "alpha", "method": "alpha.Tensor", "functional": "alpha.nn.functional"}


@dataclass
class Definition:
    """One public op or function.

    Attributes:
        name: its name in alpha.ops.
        module: where it is defined.
        place: file and line, for messages.
        facts: the fields of its `@public`.
        thing: the op or function itself.
    """

    name: str
    module: str
    place: str
    facts: dict[str, Any] = field(default_factory=dict)
    thing: Any = None

    def names(self, key: str) -> list[str]:
        """Returns the names that it has in a namespace: of the fields top, method, functional or layer."""
        said = self.facts.get(key, False)
        return [self.name] if said is True else said.split() if said else []


def natural(name: str) -> tuple[int, list[tuple[str, int]]]:
    """Returns the key by which names are sorted: constants, classes, others; log2 before log10."""
    rank = 0 if name.isupper() and len(name) > 1 else 1 if name[:1].isupper() else 2
    parts = re.findall(r"(\D*)(\d*)", name)
    return rank, [(text, int(number or -1)) for text, number in parts]


# ---- reading ---------------------------------------------------------------------------------------------------------


def module_of(path: Path, root: Path) -> str:
    """Returns the name of the module of a file below root."""
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def collect(root: Path) -> list[Definition]:
    """Imports the files of alpha/ops below root, and returns their public definitions by name.

    The packages alpha and alpha.ops are entered without their __init__.py, whose lists may name things that are gone.
    """
    if "alpha" in sys.modules:
        raise NamesError("alpha is imported already: run python -m tools.names in a process of its own")
    root = root.resolve()
    sys.path.insert(0, str(root))
    for name in ("alpha", "alpha.ops"):
        package = ModuleType(name)
        package.__path__ = [str(root.joinpath(*name.split(".")))]
        sys.modules[name] = package
    _enter("alpha.core.methods", root / "alpha" / "core" / "methods.py")
    found: list[Definition] = []
    table = import_module("alpha.core.table")
    table.public = recorder(root, found)    # type: ignore[attr-defined]
    for path in sorted((root / "alpha" / "ops").rglob("*.py")):
        if path != root / "alpha" / "ops" / "__init__.py":
            import_module(module_of(path, root))
    for d in found:
        if getattr(sys.modules[d.module], d.name, None) is not d.thing:
            raise NamesError(f"{d.place}: {d.module}.{d.name} is not this one\nhelp: assign an op to its own name")
    return sorted(found, key=lambda d: natural(d.name))


def _enter(name: str, path: Path) -> None:
    """Imports a module without the lists in it, which may be stale, or two versions of a list in one."""
    import_module(name.rpartition(".")[0])
    module = sys.modules[name] = ModuleType(name)
    module.__file__ = str(path)
    exec(compile(without(path.read_text(), calls="CALLS = {}"), str(path), "exec"), vars(module))


def recorder(root: Path, found: list[Definition]) -> Any:
    """Returns the stand-in for alpha.core.table.public while the definitions are read."""
    def public(*args: Any, **facts: Any) -> Any:
        caller = sys._getframe(1)
        path = Path(caller.f_code.co_filename).relative_to(root)
        place, module = f"{path}:{caller.f_lineno}", caller.f_globals["__name__"]
        if args:
            raise NamesError(f"{place}: @public is called with its fields by name: @public(), @public(top=True)")
        check_facts(place, facts)

        def enter(thing: Any) -> Any:
            found.append(Definition(thing.__name__, module, place, facts, thing))
            return thing
        return enter
    return public


def check_facts(place: str, facts: dict[str, Any]) -> None:
    """Raises NamesError for a field that there is not, for a value of another kind, and for one without effect."""
    for key, value in facts.items():
        if key not in FIELDS:
            near = difflib.get_close_matches(key, FIELDS, 1)
            raise NamesError(f"{place}: @public has no field {key}\nhelp: "
                             + (f"did you mean {near[0]}?" if near else f"its fields are {', '.join(FIELDS)}"))
        if type(value) not in FIELDS[key]:
            raise NamesError(f"{place}: {key} is {value!r}, {' or '.join(kind.__name__ for kind in FIELDS[key])} is "
                             f"needed\nhelp: {key}=True" + (', or names in one string: "cat concat"' if
                             str in FIELDS[key] else ""))
        for name in value.split() if isinstance(value, str) else ():
            if not name.isidentifier() or keyword.iskeyword(name) or name[0] == "_":
                raise NamesError(f"{place}: {key} has {name!r}, which is no public name\nhelp: names are separated by "
                                 "spaces")
    for key, needed in (("inplace", "functional"), ("layer", "keeps_channels")):
        if facts.get(key) and not facts.get(needed):
            raise NamesError(f"{place}: {key} has no effect without {needed}\nhelp: say {needed} too, or leave {key} "
                             "out")


def layers_of(root: Path) -> dict[str, str]:
    """Returns the public layers of alpha/nn, by name the module of each: classes that derive from Module.

    Classes whose names begin with "_" are bases; alpha.nn.functional and alpha.nn.utils have no layers.
    """
    bases: dict[str, list[str]] = {}
    homes: dict[str, str] = {}
    for path in sorted((root / "alpha" / "nn").rglob("*.py")):
        module = module_of(path, root)
        if module.startswith(("alpha.nn.utils", "alpha.nn.functional")):
            continue
        for node in ast.parse(without(path.read_text())).body:
            if isinstance(node, ast.ClassDef):
                if node.name[0] != "_" and node.name in homes:
                    raise NamesError(f"the class {node.name} is defined in {homes[node.name]} and in {module}\n"
                                     "help: rename one of them, or begin its name with _")
                plain = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
                bases[node.name] = [base.id for base in plain if isinstance(base, ast.Name)]
                homes[node.name] = module
    is_layer = {"Module"}
    while more := {name for name, of in bases.items() if name not in is_layer and is_layer & {*of}}:
        is_layer |= more
    return {name: homes[name] for name in sorted(is_layer & {*homes}, key=natural) if name[0] != "_"}


# ---- checks ----------------------------------------------------------------------------------------------------------


def by_hand(path: Path, inside: str = "") -> set[str]:
    """Returns the names that a file binds by itself, outside of the written parts; or that a class in it binds."""
    body: Sequence[ast.stmt] = ast.parse(without(path.read_text())).body
    if inside:
        body = next(node.body for node in body if isinstance(node, ast.ClassDef) and node.name == inside)
    return {name for node in body for name in _bound(node)}


def _bound(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from [(alias.asname or alias.name).split(".")[0] for alias in node.names]
    elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        yield node.name
    elif isinstance(node, (ast.Assign, ast.AnnAssign)):
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            yield from [n.id for n in ast.walk(target) if isinstance(n, ast.Name)]


def check(found: Sequence[Definition], layers: dict[str, str], taken: dict[str, set[str]]) -> None:
    """Raises NamesError where two things claim one name, or where a layer is none.

    taken: of alpha, alpha.Tensor and alpha.nn.functional, the names that stand there by hand.
    """
    claims: dict[tuple[str, str], Definition] = {}
    for d in found:
        wanted = [("alpha.ops", d.name), *[(space, n) for key, space in SPACES.items() for n in d.names(key)],
                  *[("the layers that keep channels", n) for n in d.names("layer")],
                  *[("the operators of ONNX", n) for n in [d.facts.get("onnx")] if n]]
        for space, name in wanted:
            other = claims.setdefault((space, name), d)
            if other is not d:
                raise NamesError(f"{d.place}: {name} is in {space} already, from {other.place}\nhelp: rename one of "
                                 "them, or take the name from one @public")
            if name in taken.get(space, ()):
                raise NamesError(f"{d.place}: {name} is in {space} already, written by hand\nhelp: choose another "
                                 "name, or leave the field out, and keep the one by hand")
        for name in d.names("layer"):
            if name not in layers:
                small = {layer.lower(): layer for layer in layers}
                near = difflib.get_close_matches(name.lower(), small, 1)
                raise NamesError(f"{d.place}: layer names {name}, and alpha.nn has no such layer\nhelp: " + (
                    f"did you mean {small[near[0]]}?" if near else "write the layer first, in alpha/nn"))


def hides_a_builtin(name: str) -> bool:
    """Tells whether Python has a function of that name, so that `from alpha import *` leaves it alone."""
    return hasattr(builtins, name)
