"""The code of docs/add_a_kernel.md runs: its CUDA files beside its Python, all blocks in their order."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from alpha.op import registry

pytestmark = [pytest.mark.cuda, pytest.mark.torch]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "add_a_kernel.md"
CUDA = re.compile(r"`(\w+\.cu)`[^`]*:\n\n```cuda\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def no_new_ops():
    """Takes the ops of the page out of the registry again."""
    before = set(registry)
    yield
    for name in set(registry) - before:
        del registry[name]


def test_every_cuda_block_has_a_file_name() -> None:
    assert [name for name, _ in CUDA.findall(PAGE.read_text())] == ["mish.cu", "rms_norm.cu"]
    assert PAGE.read_text().count("```cuda\n") == 2


def test_the_code_of_the_page_runs(tmp_path: Path, no_new_ops: None, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    text = PAGE.read_text()
    for name, code in CUDA.findall(text):
        (tmp_path / name).write_text(code)
    code = "\n".join(PYTHON.findall(text))
    page = tmp_path / "page.py"
    exec(compile(code, str(page), "exec"), {"__name__": "page", "__file__": str(page)})
    row = capsys.readouterr().out
    assert re.fullmatch(r"\| rms_norm  \| float32 \|( [\d.]+ \|){3} \d+ % >= 0.85 \w+ \|( [\d.]+ \|){2}\n", row), row
