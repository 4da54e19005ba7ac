"""The Python code in README.md and docs/*.md runs, all blocks of a page in one process; what they link to is there."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_the_gpu_table_quotes_its_file():
    """Every row of the README's GPU table is the rounded row of the file that it names."""
    names = {"LeNet-5": "lenet5", "VGG-16": "vgg16", "ResNet-18": "resnet18", "GoogLeNet": "googlenet"}
    file = ROOT / "benchmarks" / "results" / "cuda_steps_h100.jsonl"
    rows = {(row["model"], row["batch"]): row for row in map(json.loads, file.read_text().splitlines())}
    table = (ROOT / "README.md").read_text().partition("| training step on one H100")[2].partition("\n\n")[0]
    lines = table.splitlines()[2:]
    assert len(lines) >= 3
    for line in lines:
        name, batch = re.match(r"\| ([\w-]+), batch (\d+) \|", line).groups()
        row = rows[names[name], int(batch)]
        torch, peak = (min(v for k, v in row[key].items() if k.startswith("torch")) for key in ("ms", "peak_mib"))
        for figure in (f"| {row['ms']['alpha']:.1f} ms |", f"| {torch:.1f} ms", f"{row['ratio']:.2f} times",
                       f"{row['peak_mib']['alpha']:.0f} / {peak:.0f} MiB"):
            assert figure in line, figure


def test_the_headline_table_quotes_its_file():
    """Every row of the README's CPU table is the rounded row of the file that it names."""
    text = (ROOT / "README.md").read_text().partition("| training step on 2 CPU cores")[2]
    file = ROOT / "benchmarks" / "results" / "cpu_steps_amd_epyc_2core.jsonl"
    for row in map(json.loads, file.read_text().splitlines()):
        torch = min(row["ms"]["torch_nchw"], row["ms"]["torch_nhwc"])
        peak = min(row["peak_mib"]["torch_nchw"], row["peak_mib"]["torch_nhwc"])
        line = next(line for line in text.splitlines()
                    if line.lower().replace("-", "").startswith(f"| {row['model']}, batch {row['batch']} |"))
        for figure in (f"{row['ms']['alpha']:.1f} ms", f"{torch:.1f} ms", f"{row['ratio']:.2f} times",
                       f"{row['peak_mib']['alpha']:.0f} / {peak:.0f} MiB"):
            assert figure in line, figure
