"""The rooms of the project and the doors between them: imports run one way, files stay small."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MAX_LINES = {".py": 400, ".cpp": 400, ".hpp": 400, ".cu": 400, ".cuh": 400}
MAX_FUNCTION_LINES = 60

# Room -> the rooms that it may import; the longest matching name counts.
MAY_IMPORT = {
    "alpha.errors": set(),
    "alpha.config": {"alpha.errors"},
    "alpha.backend": {"alpha.config", "alpha.errors"},
    "alpha.random": {"alpha.errors"},
    "alpha.build": {"alpha.config", "alpha.errors"},
    "alpha.dlpack": {"alpha.backend", "alpha.errors"},
    "alpha.graph": {"alpha.backend", "alpha.config", "alpha.errors", "alpha.op", "alpha.tensor"},  # the latter as types
    "alpha.tensor": {"alpha.backend", "alpha.dlpack", "alpha.errors", "alpha.graph"},
    "alpha.precision": {"alpha.backend", "alpha.config", "alpha.errors", "alpha.tensor"},
    "alpha.op": {"alpha.backend", "alpha.config", "alpha.errors", "alpha.graph", "alpha.tensor"},
    "alpha.gradcheck": {"alpha.errors", "alpha.graph", "alpha.tensor"},
    "alpha.ops": {"alpha.ops", "alpha.op", "alpha.tensor", "alpha.graph", "alpha.backend", "alpha.config",
                  "alpha.errors", "alpha.random"},
    "alpha.cpu": {"alpha.cpu", "alpha.ops", "alpha.op", "alpha.backend", "alpha.build", "alpha.config", "alpha.errors",
                  "alpha.random"},
    "alpha.cuda": {"alpha.cuda", "alpha.ops", "alpha.op", "alpha.backend", "alpha.build", "alpha.config",
                   "alpha.errors", "alpha.random", "alpha.tensor", "alpha.graph"},
    "alpha.nn": {"alpha.nn", "alpha.ops", "alpha.op", "alpha.tensor", "alpha.graph", "alpha.errors", "alpha.precision",
                 "alpha.random"},
    "alpha.optim": {"alpha.optim", "alpha.ops", "alpha.tensor", "alpha.graph", "alpha.errors"},
    "alpha.capture": {"alpha.backend", "alpha.config", "alpha.errors", "alpha.graph", "alpha.nn", "alpha.tensor"},
    "alpha.checkpoint": {"alpha.backend", "alpha.nn", "alpha.tensor", "alpha.errors"},
    "alpha": {"alpha"},
    "alpha.start": {"alpha.errors"},
    "alpha.doctor": {"alpha"},
    "alpha.__main__": {"alpha"},  # it finds train and benchmarks by name, where they are
    "models": {"models", "alpha"},
    "train": {"train", "models", "alpha"},
    "benchmarks": {"benchmarks", "train", "models", "alpha", "tests"},
}
# Package -> the only files that may name it.
ONLY_IN = {
    "pycuda": ("alpha/cuda/", "tests/emulator/"),
    "torch": ("alpha/checkpoint.py", "tests/", "benchmarks/"),
    "torchvision": ("train/data.py", "tests/"),
    "pickle": ("benchmarks/digits_archive.py", "tests/"),  # which only write: nothing is ever unpickled
    "matplotlib": ("train/report.py", "benchmarks/", "tests/"),
    "sklearn": ("train/data.py", "tests/"),
}


def python_files() -> list[Path]:
    rooms = ("alpha", "models", "train", "benchmarks", "tests")
    return sorted(p for room in rooms for p in (ROOT / room).rglob("*.py"))


def imports(path: Path) -> set[str]:
    """Every module that a file names in an import; `from a import b` counts as a.b too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{name.name}" for name in node.names}
            found |= {node.module} - {"alpha"}      # `from alpha import ops` is an import of alpha.ops alone
    return found


def longest(name: str, names: set[str] | dict) -> str | None:
    matches = [n for n in names if name == n or name.startswith(n + ".")]
    return max(matches, key=len, default=None)


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@pytest.mark.parametrize("path", python_files(), ids=module_name)
def test_imports_run_one_way(path: Path) -> None:
    module = module_name(path)
    room = longest(module, MAY_IMPORT)
    for name in imports(path):
        top = name.split(".")[0]
        if top in ONLY_IN:
            relative = path.relative_to(ROOT).as_posix()
            assert relative.startswith(ONLY_IN[top]), f"{relative} imports {name}; only {ONLY_IN[top]} may"
        target = longest(name, MAY_IMPORT)
        if module.startswith("tests") or target is None or (target == "alpha" and name != "alpha"):
            continue
        if target == "alpha" and name == "alpha":
            allowed = module == "alpha.doctor" or not module.startswith("alpha.")
            assert allowed, f"{module} imports the top of the package, which imports everything"
            continue
        assert longest(target, MAY_IMPORT[room]) is not None, f"{module} (room {room}) imports {name}"


@pytest.mark.parametrize("path", [p for p in sorted(ROOT.rglob("*")) if p.suffix in MAX_LINES
                                  and not any(part.startswith(".") or part == "build" for part in
                                              p.relative_to(ROOT).parts)],
                         ids=lambda p: p.relative_to(ROOT).as_posix())
def test_files_and_functions_are_small(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= MAX_LINES[path.suffix], f"{path.name} has {text.count(chr(10))} lines"
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                assert length <= MAX_FUNCTION_LINES, f"{path.name}: {node.name} has {length} lines"


def test_importing_alpha_loads_no_backend_and_no_extra() -> None:
    code = ("import sys, alpha, alpha.nn, alpha.optim, models\n"
            "bad = [m for m in ('pycuda', 'torch', 'torchvision', 'matplotlib', 'sklearn', 'pickle5', 'alpha.cuda', "
            "'alpha.cpu.native') if m in sys.modules]\n"
            "assert not bad, bad")
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
