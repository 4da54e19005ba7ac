"""The reference: a page per namespace, with signature, docstring and source of every public name, and their index."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import Any

import models
from alpha.core.op import Op
from tools.docs.docstrings import SPECIAL, markdown
from tools.docs.names import NAMESPACES, Name, methods, plain, public, signature, source

FOLDER = "reference/api"
GENERATED = "<!-- written by python -m tools.docs from the docstrings -->"


def pages() -> dict[str, str]:
    """Returns the text of each page, by its path below the pages' folder."""
    return {f"{FOLDER}/{space}.md": _page(space) for space in NAMESPACES} | {f"{FOLDER}/index.md": _index()}


@cache
def places() -> dict[str, str]:
    """Returns the page and the anchor of every public name, such as "alpha.ops.md#alpha.ops.relu"."""
    found: dict[str, str] = {}
    for space in NAMESPACES:
        found.setdefault(space, f"{space}.md")
        for each in public(space):
            found[each.full] = f"{space}.md#{each.full}"
            if _is_class(each):
                found |= {f"{each.full}.{name}": f"{space}.md#{each.full}.{name}" for name, _ in methods(each.thing)}
    return found


def linked(word: str) -> str:
    """Returns the address of a name or of a page docs/..., from a page of this folder; "" where there is none."""
    if word.startswith("docs/"):
        return "../../" + word.removeprefix("docs/").replace(".ipynb", ".md")
    for name in (word, "alpha." + word):
        if name in places():
            return places()[name]
    return ""


def _is_class(each: Name) -> bool:
    return isinstance(each.thing, type) and each.space != "alpha.Tensor" and each.name != "Tensor"


def _shown(text: str) -> str:
    return SPECIAL.sub(r"\\\1", text)


def _index() -> str:
    lines = [GENERATED, "# Every public name", "", "A page per namespace, and the [command](commands.md).", ""]
    for space, heading in NAMESPACES.items():
        names = ", ".join(f"[{_shown(each.name)}]({places()[each.full]})" for each in public(space))
        lines += [f"## [{_shown(space)}]({space}.md): {heading}", "", names, ""]
    return "\n".join(lines)


def _page(space: str) -> str:
    parts = [f"{GENERATED}\n# {space}", NAMESPACES[space] + "."]
    short: list[str] = []
    for each in public(space):
        original = _original(each)
        if original:
            short.append(f'| <a id="{each.full}"></a>[{_shown(each.name)}]({places()[original]}) | `{original}` | '
                         f"{_first_line(each.thing)} |")
        else:
            parts += _entry(each)
    if short:
        parts.append("## Names of ops\n\n" + "\n".join(
            ["| here | defined as | |", "|---|---|---|", *short]))
    if space == "models":
        parts.append("## Names for create\n\n" + ", ".join(f"`{name}`" for name in models.list()))
    return "\n\n".join(parts) + "\n"


@cache
def _ops() -> dict[str, list[str]]:
    """Returns the names of the ops that have a docstring."""
    found: dict[str, list[str]] = {}
    for name in public("alpha.ops"):
        found.setdefault(name.thing.__doc__ or "", []).append(name.name)
    return found


def _original(each: Name) -> str:
    """Returns the op whose text a name of alpha, a method or a layer's function has; "" for none."""
    doc = getattr(plain(each.thing), "__doc__", None)
    if each.space not in ("alpha", "alpha.Tensor", "alpha.nn.functional") or not doc:
        return ""
    names = _ops().get(doc, [])
    return f"alpha.ops.{each.name if each.name in names else names[0]}" if names else ""


def _first_line(thing: Any) -> str:
    doc = inspect.cleandoc(getattr(plain(thing), "__doc__", None) or "")
    return markdown(doc.partition("\n\n")[0].partition("\n")[0])


def _entry(each: Name) -> Iterator[str]:
    yield f"## {_shown(each.name)} {{#{each.full}}}"
    thing = each.thing
    if isinstance(thing, property):
        yield "A property. " + markdown(thing.__doc__, linked)
    elif inspect.ismemberdescriptor(thing):
        yield "An attribute."
    elif isinstance(thing, type) and issubclass(thing, Exception):
        yield f"Derives from {', '.join(f'`{base.__name__}`' for base in thing.__bases__)}."
        yield markdown(thing.__doc__, linked)
    elif isinstance(thing, ModuleType):
        page = places().get(each.full, places().get(thing.__name__, "")).partition("#")[0]
        yield f"A module: [{_shown(thing.__name__)}]({page})." if thing.__name__ in NAMESPACES else (
            "A module. " + markdown(thing.__doc__, linked))
    elif callable(plain(thing)) or isinstance(thing, Op):
        yield _call(each.full if each.space != "alpha.Tensor" else f"x.{each.name}", thing)
        yield markdown(getattr(plain(thing), "__doc__", None), linked)
        if _is_class(each):
            yield from _methods(each)
        if source(thing):
            yield f"Defined in `{source(thing)}`."
    else:
        yield _value(thing)


def _value(thing: Any) -> str:
    if type(thing).__module__.startswith("alpha.") and not isinstance(thing, str):
        return f"An object of type `{type(thing).__name__}`.\n\n" + markdown(type(thing).__doc__, linked)
    return f"A value: `{thing!r}`." if len(repr(thing)) < 200 else f"A value of type `{type(thing).__name__}`."


def _call(name: str, thing: Any) -> str:
    text = signature(thing)
    if name.startswith("x.") and not isinstance(thing, staticmethod):
        text = "(" + text.partition("(")[2].removeprefix("self").removeprefix(", ")
    text = "(...)" if text.startswith("(: Any") else text     # a method that is made from an op
    return f"```python\n{name}{text}\n```"


def _methods(each: Name) -> Iterator[str]:
    for name, thing in methods(each.thing):
        yield f"### {_shown(name)} {{#{each.full}.{name}}}"
        if isinstance(thing, property):
            yield "A property. " + markdown(thing.__doc__, linked)
            continue
        yield f"```python\n{name}{signature(thing)}\n```"
        doc = inspect.getdoc(getattr(each.thing, name, None)) or ""
        if doc:
            yield markdown(doc, linked)
