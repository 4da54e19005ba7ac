"""Docstrings of alpha as Markdown: paragraphs, equations as code, and sections such as Args, Raises and Source."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator

SECTION = re.compile(r"(Args|Returns|Yields|Raises|Shape|Parameters|Buffers|Attributes|Source|Examples?):(?: +(.*))?")
ENTRY = re.compile(r"((?:\*{1,2})?[\w.]+(?:, (?:\*{1,2})?[\w.]+)*): +(.*)")
CODE_SPAN = re.compile(r"(`+[^`]*`+)")
SPECIAL = re.compile(r"([\\*_\[\]<>#|])")

Linked = Callable[[str], str]


def escaped(text: str, linked: Linked = lambda word: "") -> str:
    """Returns a text whose characters Markdown does not read, with links to the names that `linked` knows.

    Args:
        text: one line.
        linked: gives the address of a dotted name or of a page docs/..., or "" where there is none.
    """
    parts = CODE_SPAN.split(text)
    return "".join(_code(part, linked) if i % 2 else _plain(part, linked) for i, part in enumerate(parts))


NAME = re.compile(r"(?<![\w./])(docs/\w+/\w+\.(?:md|ipynb)|(?:alpha|ops|nn|optim|data|training|models)(?:\.\w+)+)")


def _plain(text: str, linked: Linked) -> str:
    pieces = NAME.split(text)
    return "".join(_link(piece, linked) if i % 2 else SPECIAL.sub(r"\\\1", piece) for i, piece in enumerate(pieces))


def _link(name: str, linked: Linked) -> str:
    address, shown = linked(name), SPECIAL.sub(r"\\\1", name)
    return f"[{shown}]({address})" if address else shown


def _code(span: str, linked: Linked) -> str:
    address = linked(span.strip("`").partition("(")[0])
    return f"[{span}]({address})" if address else span


def markdown(doc: str | None, linked: Linked = lambda word: "") -> str:
    """Returns a docstring as Markdown; "" for none."""
    lines = inspect.cleandoc(doc or "").splitlines()
    return "\n\n".join(_blocks(lines, linked))


def _blocks(lines: list[str], linked: Linked) -> Iterator[str]:
    at = 0
    while at < len(lines):
        head = SECTION.fullmatch(lines[at])
        end = at + 1
        while end < len(lines) and (lines[end][:1] in ("", " ")) == (head is not None or lines[at][:1] in ("", " ")) \
                and not (head is None and SECTION.fullmatch(lines[end])):
            end += 1
        body = lines[at + (head is not None):end]
        if head:
            yield _section(head[1], head[2] or "", body, linked)
        elif lines[at][:1] in ("", " "):
            if any(line.strip() for line in body):
                yield _code_block(body)
        else:
            yield from _paragraphs(body, linked)
        at = end


def _code_block(lines: list[str]) -> str:
    return "```text\n" + inspect.cleandoc("\n" + "\n".join(lines)).strip("\n") + "\n```"


def _paragraphs(lines: list[str], linked: Linked) -> Iterator[str]:
    paragraph: list[str] = []
    for line in lines:
        if line.startswith("- ") and paragraph:
            yield _joined(paragraph, linked)
            paragraph = []
        paragraph.append(line)
    if paragraph:
        yield _joined(paragraph, linked)


def _joined(lines: list[str], linked: Linked) -> str:
    text = " ".join(line.strip() for line in lines)
    return "- " + escaped(text[2:], linked) if text.startswith("- ") else escaped(text, linked)


def _section(name: str, first: str, body: list[str], linked: Linked) -> str:
    body = inspect.cleandoc("\n" + "\n".join(body)).splitlines()
    if first or name in ("Returns", "Yields", "Source", "Shape"):
        return f"**{name}:** " + escaped(" ".join([first, *(line.strip() for line in body)]).strip(), linked)
    if name.startswith("Example"):
        return f"**{name}:**\n\n{_code_block(body)}"
    entries: list[list[str]] = []
    for line in body:
        if line[:1] != " " or not entries:
            entries.append([line])
        else:
            entries[-1].append(line.strip())
    return f"**{name}:**\n\n" + "\n".join(_entry(" ".join(lines), linked) for lines in entries if any(lines))


def _entry(text: str, linked: Linked) -> str:
    found = ENTRY.fullmatch(text)
    return f"- `{found[1]}`: {escaped(found[2], linked)}" if found else f"- {escaped(text, linked)}"
