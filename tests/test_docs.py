"""The Python code in README.md and docs/*.md runs, all blocks of a page in one process; what they link to is there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import compare_tables, results

ROOT = Path(__file__).resolve().parent.parent


def blocks(path):
    return re.findall(r"^```python\n(.*?)^```$", path.read_text(), re.MULTILINE | re.DOTALL)


ALL = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
ON_A_GPU = {"add_a_kernel.md"}  # tests/cuda/test_docs_kernel.py runs it
PAGES = [path for path in ALL if blocks(path) and path.name not in ON_A_GPU]


def test_pages_are_found():
    assert [path.name for path in PAGES] == ["README.md", "add_a_layer.md", "env_vars.md", "numerics.md"]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_code_of_a_page_runs(path, tmp_path):
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n" + "\n".join(blocks(path))
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.name)
def test_links_lead_to_files(path):
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text()):
        assert target.startswith("https://") or (path.parent / target).exists(), target


NAMES = {"LeNet-5": "lenet5", "VGG-16": "vgg16", "ResNet-18": "resnet18", "GoogLeNet": "googlenet"}


def quoted(line, row):
    """The figures that a line of a table should have, from a row with all libraries in it."""
    torch, peak = (min(v for k, v in row[key].items() if k.startswith("torch")) for key in ("ms", "peak_mib"))
    for figure in (f"| {row['ms']['alpha']:.1f} ms |", f"| {torch:.1f} ms", f"{row['ratio']:.2f} times",
                   f"{row['peak_mib']['alpha']:.0f} / {peak:.0f} MiB"):
        assert figure in line, figure


@pytest.mark.parametrize("title", ["| training step on one H100", "| training step on 2 CPU cores"])
def test_a_table_quotes_the_file_below_it(title):
    """Every line of the README's tables of training steps is the rounded row of the file that is named next."""
    text = (ROOT / "README.md").read_text().partition(title)[2]
    table, _, below = text.partition("\n\n")
    file = ROOT / re.search(r"\((benchmarks/results/\S+\.jsonl)\)", below)[1]
    lines = table.splitlines()[2:]
    assert len(lines) >= 3
    if file.name == "compare.jsonl":
        printed = compare_tables.headline(results.latest(results.read(file), compare_tables.KEY))
        assert set(lines) <= set(printed)
        return
    rows = {(row["model"], row["batch"]): row for row in results.read(file)}
    for line in lines:
        name, batch = re.match(r"\| ([\w-]+), batch (\d+) \|", line).groups()
        quoted(line, rows[NAMES[name], int(batch)])
