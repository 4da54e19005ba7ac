"""The Python code in README.md and docs/*/*.md runs, all blocks of a page in one process; linked files are there."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import compare_tables, performance, results

pytestmark = pytest.mark.same_without_kernels("kernels are called by programs that it starts")
ROOT = Path(__file__).resolve().parent.parent


def blocks(path):
    return re.findall(r"^```python\n(.*?)^```$", path.read_text(), re.MULTILINE | re.DOTALL)


ALL = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*/*.md"))]
ON_A_GPU = {"add_a_conv_kernel.md", "add_a_kernel.md", "fusion.md"}  # tests/cuda/test_docs_kernel.py runs it
PAGES = [path for path in ALL if blocks(path) and path.name not in ON_A_GPU]


def test_pages_are_found():
    folders = {"explanation": {"algorithms", "contextual", "in_place", "memory", "numerics"},
               "how_to": {"add_a_layer", "add_a_model", "add_an_optimizer", "augmentation", "data_sets", "distributed",
                          "inference", "onnx", "see_what_happens"},
               "reference": {"env_vars"}, "tutorial": {"eager_loop", "from_pytorch", "runs", "train_your_own"}}
    assert {path.name for path in (ROOT / "docs").iterdir()} == {*folders, "images"}
    assert PAGES[0].name == "README.md"
    for name, pages in folders.items():
        assert {path.stem for path in PAGES if path.parent.name == name} == pages


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_code_of_a_page_runs(path, tmp_path):
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n" + "\n".join(blocks(path))
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_file_that_a_page_shows_stands_alone(tmp_path):
    text = (ROOT / "docs" / "tutorial" / "train_your_own.md").read_text()
    (code,) = re.findall(r"This is `my_file\.py`:\n\n```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "my_file.py").write_text(code)
    done = subprocess.run([sys.executable, "-m", "train", "--import", str(tmp_path / "my_file.py"), "--model", "my_net",
                           "--dataset", "my_data", "--loss", "squared_error", "--epochs", "1", "--device", "cpu",
                           "--output", str(tmp_path / "run")], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_notebook_runs(tmp_path):
    pytest.importorskip("matplotlib")
    cells = json.loads((ROOT / "docs" / "tutorial" / "tour.ipynb").read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert len(code) == 4 and not any(cell.get("outputs") for cell in cells)
    path = tmp_path / "tour.py"     # a file, as an op's text is looked up there
    path.write_text(f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n" + "\n".join(code)
                    + "\nassert history['val_accuracy'][-1] > 0.9\n")
    done = subprocess.run([sys.executable, str(path)], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "calls of ops in" in done.stdout


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.name)
def test_links_lead_to_files(path):
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text()):
        assert target.startswith("https://") or (path.parent / target).exists(), target


def test_the_map_names_every_room_and_nothing_that_is_not_there():
    text = (ROOT / "docs" / "explanation" / "map_of_the_code.md").read_text()
    named = {path for path in re.findall(r"`([\w./]+)`", text) if path.endswith("/") or path.startswith("alpha/")}
    assert len(named) > 40 and not [path for path in named if not (ROOT / path).exists()]
    rooms = {f"{path.parent.relative_to(ROOT).as_posix()}/" for folder in ("alpha", "alpha/cuda")
             for path in (ROOT / folder).glob("*/__init__.py")} - {"alpha/models/"}
    assert rooms <= named, rooms - named


@pytest.mark.parametrize("page", performance.PAGES, ids=lambda path: path.name)
def test_tables_are_those_of_the_result_files(page):
    text = page.read_text()
    assert performance.BLOCK.search(text)
    assert text == performance.filled(text), "run python -m benchmarks.performance"


def test_every_table_has_rows():
    for page in performance.PAGES:
        for block in performance.BLOCK.finditer(page.read_text()):
            assert block[0].count("\n") >= 5, block[1]


def test_the_page_of_performance_is_short_and_each_row_has_its_date_and_commit():
    lines = (ROOT / "docs" / "reference" / "performance.md").read_text().splitlines()
    rows = [line.split(" | ") for line in lines if line.startswith("| ") and not line.startswith("| network")]
    assert len(lines) <= 200 and len(rows) > 100
    assert all(re.fullmatch(r"2026-\d\d-\d\d [0-9a-f]{7,40}(-dirty)?", " ".join(row[-2:]).rstrip(" |")) for row in rows)


def test_the_readme_gives_the_cpu_ratios_of_the_rows():
    rows = performance._chosen(results.read(performance.RESULTS / "intel_xeon_2core" / "compare.jsonl"), ())
    ratios = {isa: [f"{compare_tables.best(group)['ratio']:.2f}" for group in compare_tables.networks(rows)
                    if ("avx2" in group[0]["settings"]) == (isa == "AVX2")] for isa in ("AVX-512", "AVX2")}
    text = " ".join((ROOT / "README.md").read_text().split())
    assert len(ratios["AVX2"]) == len(ratios["AVX-512"]) == 4
    for isa, found in ratios.items():
        assert re.search(rf"{min(found)} to {max(found)}( times as fast)? with {isa}", text), (isa, found)


def test_a_changed_figure_is_noticed():
    text = performance.PAGES[0].read_text()
    assert performance.filled(text.replace("times as fast**", "times faster**")) == text
