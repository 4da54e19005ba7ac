"""The Python code in docs/*.md runs: all blocks of a page, one after the other, in a process of their own."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def blocks(path):
    return re.findall(r"^```python\n(.*?)^```$", path.read_text(), re.MULTILINE | re.DOTALL)


PAGES = [path for path in sorted((ROOT / "docs").glob("*.md")) if blocks(path)]


def test_pages_are_found():
    assert "add_a_layer.md" in [path.name for path in PAGES]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_code_of_a_page_runs(path, tmp_path):
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n" + "\n".join(blocks(path))
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
