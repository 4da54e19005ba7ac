"""The lists of names, each a part of a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.names.definitions import Definition, by_hand, check, hides_a_builtin, layers_of, natural
from tools.names.regions import aligned, filled, replaced
from tools.names.signatures import method, parameters, texts


@dataclass
class Names:
    """All that the lists are made of: the definitions, sorted by name, and the layers with their modules."""

    found: list[Definition]
    layers: dict[str, str]

    def of(self, key: str) -> list[tuple[str, str]]:
        """Returns pairs (name in a namespace, name in alpha.ops), sorted, of the field top, method or functional."""
        return sorted([(name, d.name) for d in self.found for name in d.names(key)], key=lambda pair: natural(pair[0]))


def quoted(names: Iterable[str]) -> list[str]:
    return [f'"{name}"' for name in names]


def listed(names: Iterable[str], target: str = "__all__ =") -> str:
    """Returns an assignment of `__all__`."""
    return filled(f"{target} [", quoted(sorted(names, key=natural)), "]")


def imported(module: str, names: Iterable[str], comment: str = "") -> str:
    """Returns an import of names from a module, in one line or several."""
    head, items = f"from {module} import ", sorted(names, key=lambda n: natural(n.split(" as ")[0]))
    one = filled(head, items, comment)
    if "\n" not in one:
        return one
    lines = filled(f"{head}({comment}", items, ")").split("\n")
    lines[-2] = lines[-2].rstrip()
    return "\n".join(lines)


def imports_of(homes: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yields imports of pairs (module, name), a module after the other."""
    by: dict[str, list[str]] = {}
    for module, name in homes:
        by.setdefault(module, []).append(name)
    for module in sorted(by):
        yield imported(module, by[module])


# ---- a function for each part ----------------------------------------------------------------------------------------


def ops(names: Names) -> str:
    """Returns imports and `__all__` of alpha.ops."""
    return "\n".join([*imports_of((d.module, d.name) for d in names.found), "", listed(d.name for d in names.found)])


def signatures(names: Names) -> str:
    """Returns a typed signature for each op; two where a shape's ints may be given one by one."""
    lines = []
    for d in names.found:
        if hasattr(d.thing, "attr_names") and d.thing.variadic and d.thing.mutates:
            lines.append(f"{d.name}: Op")
            continue
        found, result = parameters(d)
        items, head, tail = texts(found), f"def {d.name}(", f") -> {result}: ..."
        if d.facts.get("spread"):
            spread = [f"*{found[0].name}: int", *items[1:]]
            lines += ["@overload", aligned(head, items, tail), "@overload", aligned(head, spread, tail)]
        else:
            lines.append(aligned(head, items, tail))
    return "\n".join(lines)


def top_imports(names: Names) -> str:
    pairs = names.of("top")
    own = [name for name, op in pairs if name == op]
    others = [f"{op} as {name}" for name, op in pairs if name != op]
    return "\n".join([imported("alpha.ops", others), imported("alpha.ops", own, "  # noqa: F401")])


def top_all(names: Names) -> str:
    return listed((name for name, _ in names.of("top") if not hides_a_builtin(name)), "__all__ +=")


def calls(names: Names) -> str:
    """Returns the methods of Tensor that hand everything on, by the ops that they call."""
    pairs = names.of("method")
    own = " ".join(name for name, op in pairs if name == op)
    others = [f'"{name}": "{op}"' for name, op in pairs if name != op]
    words = filled("", own.split(), "").replace(",", "").strip("\n")
    return "\n".join(['CALLS = {name: name for name in """', words, '""".split()} | {  # noqa: SIM905',
                      *[line for line in filled("", others, "").split("\n") if line.strip()], "}"])


def methods(names: Names) -> str:
    """Returns the same methods for type checkers: with their signatures, or as functions of anything."""
    lines, untyped = [], []
    by_name = {d.name: d for d in names.found}
    for name, op in names.of("method"):
        typed = method(by_name[op])
        if typed is None:
            untyped.append(name)
        else:
            lines.append(aligned(f"def {name}(", typed[0], f") -> {typed[1]}: ...", 112))
    chain = filled("", [f"{name} =" for name in untyped], "", "    ", 110).replace("=,", "=").split("\n")
    chain = [line.strip() for line in chain if line.strip()]
    return "\n".join([*lines, "_method: Callable[..., Any] = print",
                      *[("" if k == 0 else "    ") + line + (" _method" if k == len(chain) - 1 else " \\")
                        for k, line in enumerate(chain)]])


def layers(names: Names) -> str:
    """Returns imports and `__all__` of the layers in alpha.nn."""
    return "\n".join([*imports_of((module, name) for name, module in names.layers.items()), "",
                      listed(names.layers)])


def functions(names: Names) -> str:
    """Returns imports of alpha.nn.functional, and `__all__` of the functions that are not defined there."""
    pairs = names.of("functional")
    inplace = _inplace(names)
    own = [name for name, op in pairs if name == op and name not in inplace]
    others = [f"{op} as {name}" for name, op in pairs if name != op]
    return "\n".join([imported("alpha.ops", own), imported("alpha.ops", others), "",
                      listed([name for name, _ in pairs])])


def _inplace(names: Names) -> list[str]:
    return [d.name for d in names.found if d.facts.get("inplace")]


def inplace(names: Names) -> str:
    """Returns the functions of alpha.nn.functional that are ops with PyTorch's `inplace`."""
    found = _inplace(names)
    return filled(f"{', '.join(found)} = map(_with_inplace, (", [f"ops.{name}" for name in found], "))")


def same_channels(names: Names) -> str:
    """Returns the layers and ops behind which the channels of a map are those in front of them."""
    kept = [d for d in names.found if d.facts.get("keeps_channels")]
    layers = sorted([name for d in kept for name in d.names("layer")], key=natural)
    return "\n".join([filled("_SAME_CHANNELS = (", ["nn.Identity", *[f"nn.{name}" for name in layers]], ")"),
                      filled("_SAME_CHANNELS_OPS = (", [f"ops.{d.name}" for d in kept], ")")])


def onnx(names: Names) -> str:
    """Returns the operators of ONNX by the ops that do the same."""
    found = {d.name: d.facts["onnx"] for d in names.found if d.facts.get("onnx")}
    return filled("SAME = {", [f'"{name}": "{kind}"' for name, kind in found.items()], "}")


LISTS: list[tuple[str, str, Callable[[Names], str]]] = [
    ("alpha/ops/__init__.py", "ops", ops),
    ("alpha/ops/__init__.pyi", "ops", signatures),
    ("alpha/__init__.py", "imports", top_imports),
    ("alpha/__init__.py", "all", top_all),
    ("alpha/core/methods.py", "calls", calls),
    ("alpha/core/methods.py", "methods", methods),
    ("alpha/nn/__init__.py", "layers", layers),
    ("alpha/nn/functional.py", "functions", functions),
    ("alpha/nn/functional.py", "inplace", inplace),
    ("alpha/checkpoint/layouts.py", "same channels", same_channels),
    ("alpha/onnx/graph.py", "operators", onnx),
]


def written(root: Path, found: Sequence[Definition]) -> dict[Path, str]:
    """Returns the text that each file with lists should have.  Raises NamesError."""
    names = Names(list(found), layers_of(root))
    core = root / "alpha" / "core"
    methods = {*by_hand(core / "methods.py", "Methods"), *by_hand(core / "tensor.py", "Tensor"),
               *by_hand(core / "conversions.py", "Conversions"), *by_hand(core / "conversions.py", "Casts")}
    check(found, names.layers, {"alpha": by_hand(root / "alpha" / "__init__.py"), "alpha.Tensor": methods,
                                "alpha.nn.functional": by_hand(root / "alpha" / "nn" / "functional.py")})
    result: dict[Path, str] = {}
    for path, key, body in LISTS:
        text = result.get(root / path) or (root / path).read_text()
        result[root / path] = replaced(path, text, key, body(names))
    return result
