"""Every kernel file begins with a header that teaches: what, source, layout, GEMM, zeros, threads, measured."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.same_without_kernels("it calls no compiled kernel")
HOME = Path(__file__).resolve().parents[1] / "alpha" / "cuda"
SOURCES = sorted(HOME.rglob("*.cu"))
HEADERS = sorted(HOME.rglob("*.cuh"))
LABEL = re.compile(r"^// ([A-Z][A-Za-z ]*):", re.MULTILINE)
ALWAYS = ("What", "Layout", "Requires", "Threads", "Measured")
CONVOLUTION = ("What", "Source", "Layout", "GEMM", "Zeros", "Requires", "Threads", "Measured")
NO_CONVOLUTION = {"sum_slices.cu"}  # in that folder
DIARY = re.compile(r"\b\d+(\.\d+)? of \d+|tried|gained nothing|does not help", re.IGNORECASE)


def head(path: Path) -> str:
    """Returns the comment that a file begins with."""
    lines = path.read_text().splitlines()
    return "\n".join(lines[:next(i for i, line in enumerate(lines) if not line.startswith("//"))])


def in_order(labels: list[str], wanted: tuple[str, ...]) -> bool:
    found = [label for label in labels if label in wanted]
    return tuple(dict.fromkeys(found)) == wanted


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_a_kernel_file_says_what_it_is(path: Path) -> None:
    convolution = "conv" in path.relative_to(HOME).parts and path.name not in NO_CONVOLUTION
    wanted, labels = CONVOLUTION if convolution else ALWAYS, LABEL.findall(head(path))
    if path.parent.name in ("lazy", "runtime"):
        wanted = ("What", "Threads")
    assert in_order(labels, wanted), f"{path.name} has {labels}, wanted are {wanted} in this order"


@pytest.mark.parametrize("path", HEADERS, ids=lambda path: path.name)
def test_a_header_begins_with_what_it_has(path: Path) -> None:
    assert head(path)


@pytest.mark.parametrize("path", [*SOURCES, *HEADERS], ids=lambda path: path.name)
def test_no_header_is_a_diary(path: Path) -> None:
    """What was tried is in benchmarks/results/<device>/tried.md."""
    text = head(path)
    assert text.count("\n") < 45 and not DIARY.search(text.replace("tried.md", "")), DIARY.search(text)


@pytest.mark.parametrize("path", [path for path in SOURCES if re.search("__global__|ALPHA_GLOBAL", path.read_text())],
                         ids=lambda path: path.name)
def test_a_kernel_begins_with_its_wait(path: Path) -> None:
    """Else it may read what the kernel before it in a recording has not written yet (runtime/recording.py)."""
    bodies = re.findall(r'(?:extern "C" __global__|ALPHA_GLOBAL)[^{]*{([^;]*);', path.read_text())
    assert bodies and all(body.strip() == "ptx::follow()" for body in bodies)


def test_a_missing_line_is_noticed() -> None:
    labels = LABEL.findall(head(HOME / "conv" / "ffma" / "conv_slab.cu"))
    assert in_order(labels, CONVOLUTION) and not in_order([n for n in labels if n != "Zeros"], CONVOLUTION)
    assert not in_order(labels[::-1], CONVOLUTION)
