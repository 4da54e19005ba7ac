"""The site: pages of docs/, the reference, and the files that pages link to, in one folder; every link is checked."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Mapping
from pathlib import Path

from tools.docs import commands, reference
from tools.docs.names import NAMESPACES

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "build" / "docs"
LINK = re.compile(r"(\]\()([^)\s]+)(\))")
FENCE = re.compile(r"^(```.*?^```)$", re.MULTILINE | re.DOTALL)
ANCHOR = re.compile(r"\{#([^}\s]+)\}|<a id=\"([^\"]+)\">")
HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)
ABROAD = ("https://", "http://", "mailto:")
FOLDERS = {"tutorial": "Tutorial", "how_to": "How to", "explanation": "Explanation", "reference": "Reference"}


def pages() -> tuple[dict[str, str], dict[str, Path]]:
    """Returns the text of every page by its path on the site, and the other files that pages link to."""
    written = {"README.md": "index.md", "CHANGELOG.md": "changelog.md"}
    written |= {path.relative_to(ROOT).as_posix(): path.relative_to(ROOT / "docs").with_suffix(".md").as_posix()
                for path in sorted((ROOT / "docs").glob("*/*")) if path.suffix in (".md", ".ipynb")}
    made = {**reference.pages(), f"{reference.FOLDER}/commands.md": commands.page()}
    files: dict[str, Path] = {}
    waiting = list(written)
    while waiting:
        name = waiting.pop()
        text = _text(ROOT / name)
        for target in _targets(text):
            path = posixpath.normpath(posixpath.join(posixpath.dirname(name), target))
            if path in written or path in files or not (ROOT / path).is_file():
                continue
            place = path.removeprefix("docs/") if path.startswith("docs/") else f"files/{path}"
            if path.endswith(".md"):
                written[path] = place
                waiting.append(path)
            else:
                files[path] = Path(place)
    places = {**written, **{path: place.as_posix() for path, place in files.items()}}
    for name, place in written.items():
        made[place] = _moved(_text(ROOT / name), name, place, places)
    return made, {place.as_posix(): ROOT / path for path, place in files.items()}


def _text(path: Path) -> str:
    if path.suffix != ".ipynb":
        return path.read_text(encoding="utf-8")
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    texts = ["".join(cell["source"]) for cell in cells]
    return "\n\n".join(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```"
                       for cell, text in zip(cells, texts)) + "\n"


def _prose(text: str) -> str:
    return FENCE.sub("", text)


def _targets(text: str) -> list[str]:
    return [found[2].partition("#")[0] for found in LINK.finditer(_prose(text))
            if not found[2].startswith((*ABROAD, "#"))]


def _moved(text: str, name: str, place: str, places: Mapping[str, str]) -> str:
    """Returns a page of the repository with its links as they are on the site."""
    def moved(found: re.Match[str]) -> str:
        target, mark, anchor = found[2].partition("#")
        path = posixpath.normpath(posixpath.join(posixpath.dirname(name), target))
        if found[2].startswith(ABROAD) or not target or path not in places:
            return found[0]
        return found[1] + posixpath.relpath(places[path], posixpath.dirname(place) or ".") + mark + anchor + found[3]

    return "".join(part if i % 2 else LINK.sub(moved, part) for i, part in enumerate(FENCE.split(text)))


def anchors_of(text: str) -> set[str]:
    """Returns the anchors of a page: named ones, and its headings'."""
    found = {first or second for first, second in ANCHOR.findall(text)}
    for heading in HEADING.findall(_prose(text)):
        found.add(re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading.partition(" {#")[0]).strip().lower()))
    return found


def broken(texts: Mapping[str, str], files: Mapping[str, Path]) -> list[str]:
    """Returns the links that lead nowhere, each as "page: target"."""
    wrong, marks = [], {name: anchors_of(text) for name, text in texts.items()}
    for name, text in texts.items():
        for found in LINK.finditer(_prose(text)):
            target, _, anchor = found[2].partition("#")
            if found[2].startswith(ABROAD):
                continue
            path = posixpath.normpath(posixpath.join(posixpath.dirname(name), target)) if target else name
            if not (path in files or (path in texts and (not anchor or anchor in marks[path]))):
                wrong.append(f"{name}: {found[2]}")
    return wrong


def settings(texts: Mapping[str, str]) -> str:
    """Returns the text of mkdocs.yml: its pages by folder, the built-in theme, and its search."""
    lines = ["site_name: alpha", "site_description: A small tensor and autograd framework", "docs_dir: pages",
             "site_dir: site", "use_directory_urls: false", "strict: true",
             "theme: {name: readthedocs, highlightjs: false, navigation_depth: 3}", "plugins: [search]",
             "markdown_extensions: [attr_list, tables, fenced_code, {toc: {permalink: true}}]", "nav:", "  - index.md"]
    for folder, title in FOLDERS.items():
        lines.append(f"  - {title}:")
        for name in sorted(name for name in texts if posixpath.dirname(name) == folder):
            lines.append(f"    - {name}")
        if folder == "reference":
            order = ["index", "commands", *NAMESPACES]
            lines += [f"    - {name}: {reference.FOLDER}/{name}.md" if name in NAMESPACES
                      else f"    - {reference.FOLDER}/{name}.md" for name in order]
    return "\n".join([*lines, "  - changelog.md", "not_in_nav: /files/", ""])


def write(out: Path = OUT) -> list[str]:
    """Writes the pages and mkdocs.yml into a folder, and returns the links that lead nowhere."""
    texts, files = pages()
    for name, text in texts.items():
        path = out / "pages" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for name, file in files.items():
        path = out / "pages" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.read_bytes())
    (out / "mkdocs.yml").write_text(settings(texts), encoding="utf-8")
    return broken(texts, files)
