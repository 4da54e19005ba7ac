"""Pages that messages name are there, in a checkout and in an installation; what needs no PyTorch runs without it."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import alpha
from alpha import errors
from tests.test_true_words import ROOT, help_of


def test_pages_that_messages_name_exist() -> None:
    found = set()
    for room in ("alpha", "train", "models"):
        for file in (ROOT / room).rglob("*.py"):
            texts = [n.value for n in ast.walk(ast.parse(file.read_text()))
                     if isinstance(n, ast.Constant) and isinstance(n.value, str)]
            found |= {page for text in texts for page in re.findall(r"docs/(\w+/\w+\.(?:md|ipynb))", text)}
    assert len(found) > 5
    for page in found:
        assert errors.docs_page(page).is_file(), page
    assert str(errors.docs_page("how_to/add_a_layer.md")) in help_of(lambda: alpha.xyzzy)


def test_an_installation_has_the_pages_and_tells_its_own_way_to_install(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "setup.py", "-q", "build", "-b", str(tmp_path / "build")], cwd=ROOT, check=True,
                   capture_output=True)
    (place,) = (tmp_path / "build").glob("lib*")
    program = """if True:
        import sys, alpha
        from pathlib import Path
        sys.modules["onnx"] = None
        import alpha.onnx
        try:
            alpha.xyzzy
        except AttributeError as error:
            page = Path(str(error).rpartition(": ")[2])
        assert page.is_file() and page.is_relative_to(Path(alpha.__file__).parent), page
        try:
            alpha.onnx.load("x")
        except ValueError as error:
            print(error)"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(place)})
    assert done.stdout.endswith('\nhelp: pip install "alpha-cks[onnx]"\n'), done.stderr
    pages = {page.relative_to(ROOT / "docs") for page in (ROOT / "docs").rglob("*") if page.is_file()}
    there = place / "alpha" / "docs"
    assert len(pages) > 25 and pages <= {page.relative_to(there) for page in there.rglob("*")}


def test_twins_are_drawn_where_pytorch_is_not_installed() -> None:
    """The GPU is compared with the CPU by them, on machines without PyTorch too."""
    program = """if True:
        import sys
        class Nowhere:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] == "torch":
                    raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        sys.meta_path.insert(0, Nowhere())
        from tests.op_orders import orders
        from tests.op_twins import drawn
        from tests.op_twins_linalg import TWINS
        for name in TWINS:
            drawn(name, 1, lambda case: orders(case.ours, case.arrays))
        print(len(TWINS))"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert int(done.stdout or 0) > 100, done.stderr
