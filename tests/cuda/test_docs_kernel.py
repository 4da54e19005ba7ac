"""The code of the pages about kernels runs: their CUDA files beside their Python, all blocks in their order."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from alpha.core.op import registry
from alpha.cuda.conv import planner

pytestmark = [pytest.mark.cuda, pytest.mark.torch, pytest.mark.long]

DOCS = Path(__file__).resolve().parents[2] / "docs"
FILES = {"how_to/add_a_kernel.md": ["rms_norm.cu"], "how_to/add_a_conv_kernel.md": ["conv_rows.cu"],
         "explanation/fusion.md": []}
CUDA = re.compile(r"`(\w+\.cu)`[^`]*:\n\n```cuda\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Takes the ops of a page out of the registry again, and its candidates from the planner."""
    before = set(registry)
    monkeypatch.setattr(planner, "_candidates", {name: list(found) for name, found in planner._candidates.items()})
    monkeypatch.setattr(planner, "_plans", {})
    yield
    for name in set(registry) - before:
        del registry[name]


@pytest.mark.parametrize("page", FILES)
def test_every_cuda_block_has_a_file_name(page: str) -> None:
    text = (DOCS / page).read_text()
    assert [name for name, _ in CUDA.findall(text)] == FILES[page]
    assert text.count("```cuda\n") == len(FILES[page])


def output_of(page: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Runs the code of a page in a folder, and returns what it has printed."""
    pytest.importorskip("torch")
    text = (DOCS / page).read_text()
    for name, code in CUDA.findall(text):
        (folder / name).write_text(code)
    code, path = "\n".join(PYTHON.findall(text)), folder / "page.py"
    exec(compile(code, str(path), "exec"), {"__name__": "page", "__file__": str(path)})
    return capsys.readouterr().out


def test_a_kernel(tmp_path: Path, as_before: None, capsys: pytest.CaptureFixture[str]) -> None:
    row = output_of("how_to/add_a_kernel.md", tmp_path, capsys)
    assert re.fullmatch(r"\| rms_norm  \| float32 \|( [\d.]+ \|){3} \d+ % >= 0.85 \w+ \|( [\d.]+ \|){2}\n", row), row


def test_chains(tmp_path: Path, as_before: None, capsys: pytest.CaptureFixture[str], launches: list[str]) -> None:
    output_of("explanation/fusion.md", tmp_path, capsys)
    for entry in ("chain_mul_add_gelu_add", "chain_mul_softclip_add"):     # as the page says
        assert entry in launches and entry in (DOCS / "explanation" / "fusion.md").read_text()


def test_a_convolution_kernel(tmp_path: Path, as_before: None, capsys: pytest.CaptureFixture[str]) -> None:
    lines = output_of("how_to/add_a_conv_kernel.md", tmp_path, capsys).splitlines()
    assert lines[0].startswith("plan of fprop 1 x (4->4 f3 s1 p1 d1, ") and lines[0].endswith("in fma, estimated:")
    assert sum(re.fullmatch(r"\* conv_rows 8x8 +[\d.]+ us", text) is not None for text in lines) == 1
    assert sum(re.fullmatch(r"conv_rows 8x8 +[\d.]+ us, estimated +[\d.]+", text) is not None for text in lines) == 1
    assert lines[-1].startswith("| layers | late1 | fprop | fp32 |") and lines[-1].endswith("| conv_rows 8x8 |")
