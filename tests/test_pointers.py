"""Files that comments, docstrings and pages name are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.same_without_kernels("it calls no compiled kernel")
ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("alpha", "benchmarks", "models", "train", "docs", "emulator", "tests", "tools")
TEXTS = sorted(p for room in ROOMS for p in (ROOT / room).rglob("*")
               if p.suffix in (".py", ".cu", ".cuh", ".cpp", ".hpp", ".md") and "results" not in p.parts)
PATH = re.compile(rf"(?<![\w/.])(?:{'|'.join(ROOMS)})/[\w/-]+\.(?:py|cuh|cu|cpp|hpp|md|jsonl)\b")
SOURCE = re.compile(r"(?<![\w/.*<-])\w+\.(?:cuh|cu)\b")  # named without its folder
NAMES = {p.name for p in ROOT.rglob("*.cu*")}
OWN_EXAMPLES = {"docs/how_to/add_a_kernel.md", "docs/how_to/add_a_conv_kernel.md"}  # they make the sources


def missing(path: Path) -> list[str]:
    text, name = path.read_text(), path.relative_to(ROOT).as_posix()
    gone = [found for found in PATH.findall(text) if not (ROOT / found).exists()]
    if name not in OWN_EXAMPLES and not name.startswith("tests/"):
        gone += [found for found in SOURCE.findall(text) if found not in NAMES]
    return gone


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_named_files_are_there(path: Path) -> None:
    if path.parent.name != "fuzz" and path.name not in ("test_pointers.py", "test_layering.py"):
        assert missing(path) == []


def test_a_stale_pointer_is_noticed(tmp_path: Path) -> None:
    page = ROOT / "docs" / "reference" / "glossary.md"
    assert not missing(page) and PATH.findall("see alpha/ops/gone.py") == ["alpha/ops/gone.py"]
    assert SOURCE.findall("gone.cuh, and x/there.cu") == ["gone.cuh"]
