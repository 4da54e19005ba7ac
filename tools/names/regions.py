"""The parts of files that are written: the lines between two comments."""

from __future__ import annotations

import re
from collections.abc import Iterable


class NamesError(Exception):
    """Definitions or files that no lists can be written from; the message names the place and the change."""


REGION = re.compile(r"^(?P<indent> *)# names: (?P<key>[a-z ]+), written by python -m tools\.names\n(?P<body>.*?)"
                    r"^ *# end of names\n", re.MULTILINE | re.DOTALL)
WIDTH = 120


def replaced(path: str, text: str, key: str, body: str) -> str:
    """Returns the text of a file with another body in one of its parts.  Raises NamesError where it has none."""
    parts = [m for m in REGION.finditer(text) if m["key"] == key]
    if len(parts) != 1:
        raise NamesError(f"{path} has {len(parts)} parts for the names '{key}', 1 is needed\nhelp: put two comments "
                         f'"# names: {key}, written by python -m tools.names" and "# end of names" where they belong')
    indent = parts[0]["indent"]
    lines = [indent + line if line else "" for line in body.rstrip("\n").split("\n")]
    return text[:parts[0].start("body")] + "\n".join(lines) + "\n" + text[parts[0].end("body"):]


def without(text: str, **instead: str) -> str:
    """Returns a text whose written parts are empty, or replaced by another text for their key."""
    return REGION.sub(lambda m: f"{m['indent']}{instead.get(m['key'], 'pass')}\n", text)


def filled(head: str, items: Iterable[str], tail: str, indent: str = "    ", width: int = WIDTH) -> str:
    """Returns "head items tail" in lines of at most `width`: one if they fit, else items line by line in between."""
    items = list(items)
    if len(one := f"{head}{', '.join(items)}{tail}") <= width:
        return one
    lines, line = [head], indent
    for item in items:
        if len(line) + len(item) + 1 > width:
            lines.append(line.rstrip())
            line = indent
        line += f"{item}, "
    return "\n".join([*lines, line.rstrip(), tail.lstrip()])


def aligned(head: str, items: Iterable[str], tail: str, width: int = WIDTH) -> str:
    """Returns a signature in lines of at most `width`, each further one below the first item."""
    lines, line = [], head
    items = list(items)
    for k, item in enumerate(items):
        last = k == len(items) - 1
        text = item + (tail if last else ",")
        if len(line) + len(text) + (line[-1] != "(") > width and line.strip():
            lines.append(line)
            line = " " * len(head)
        line += text if line[-1:] in ("(", " ") or not line else f" {text}"
    return "\n".join([*lines, line if items else line + tail])
