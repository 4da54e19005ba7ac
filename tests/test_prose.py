"""Pages and comments: lines that fit a screen, no blanks at their ends, no path of the machine they were written on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.same_without_kernels("it calls no compiled kernel")
ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*/*.md")])
SOURCES = [path for folder in ("alpha", "benchmarks", "emulator", "examples", "models", "tests", "tools", "train")
           for suffix in ("py", "cu", "cuh", "cpp", "hpp") for path in sorted(ROOT.glob(f"{folder}/**/*.{suffix}"))]
WIDTH = 140     # Python has 120, by ruff
LONG = re.compile(r"^\s*(\||!\[|<)|https?://|\]\(")     # not to be broken: tables, links
HOME = re.compile(r"/(work|home|root|Users)/[a-z]")


def faults(text: str) -> list[str]:
    """Returns what is wrong with a text, a line of it each."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > WIDTH and not LONG.search(line):
            found.append(f"{number}: {len(line)} characters, {WIDTH} are the most")
        if line != line.rstrip():
            found.append(f"{number}: ends in blanks")
        if HOME.search(line):
            found.append(f"{number}: names a path of a machine")
    return found


def test_there_are_pages_and_sources():
    assert len(PAGES) > 15 and len(SOURCES) > 300


@pytest.mark.parametrize("text, what", [("x" * 141, "141 characters"), ("a \n", "ends in blanks"),
                                        ("see /" + "work/x", "a path of a machine")])
def test_a_fault_is_noticed(text, what):
    assert what in faults(text)[0]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_pages_are_easy_to_read(path):
    assert not faults(path.read_text())


def test_the_changelog_is_short():
    assert len((ROOT / "CHANGELOG.md").read_bytes()) <= 8000


DIARY = re.compile(r"\b(wished|stale|outdated|out of date|(?:an )?earlier state)\b", re.IGNORECASE)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_pages_tell_what_is_and_not_what_was_wished(path):
    assert not DIARY.findall(path.read_text())


def test_sources_are_easy_to_read():
    wrong = {str(path.relative_to(ROOT)): found for path in SOURCES if (found := faults(path.read_text()))}
    assert not wrong
