"""The rooms of the project and the doors between them: imports run one way, files stay small."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from alpha.cuda import lazy

ROOT = Path(__file__).resolve().parent.parent
MAX_LINES = {".py": 400, ".cpp": 400, ".hpp": 400, ".cu": 400, ".cuh": 400}
MAX_FUNCTION_LINES = 60
MAX_FILES = {"alpha": 24}  # of a folder in these, subfolders not counted

# Room -> the rooms that it may import; the longest matching name counts.
MAY_IMPORT = {
    "alpha.errors": set(),
    "alpha.openmp": {"alpha.errors"},
    "alpha.config": {"alpha.errors", "alpha.openmp"},
    "alpha.backend": {"alpha.config", "alpha.errors"},
    "alpha.inputs": {"alpha.inputs", "alpha.backend", "alpha.errors"},
    "alpha.random": {"alpha.inputs", "alpha.errors"},
    "alpha.build": {"alpha.config", "alpha.errors"},
    "alpha.packed": {"alpha.build", "alpha.errors"},
    "alpha.lifetimes": set(),
    "alpha.fuse": {"alpha.errors"},
    "alpha.fuse.places": {"alpha.fuse", "alpha.ops"},
    "alpha.fuse.follow": {"alpha.backend", "alpha.inputs.returned", "alpha.op", "alpha.precision", "alpha.tensor"},
    "alpha.trace": set(),
    "alpha.versions": {"alpha.backend"},
    "alpha.dlpack": {"alpha.backend", "alpha.errors", "alpha.inplace", "alpha.versions"},
    "alpha.copies": {"alpha.backend", "alpha.errors", "alpha.tensor"},  # the last as a type
    "alpha.graph": {"alpha.graph", "alpha.inputs", "alpha.backend", "alpha.config", "alpha.errors", "alpha.versions",
                    "alpha.op", "alpha.tensor", "alpha.trace"},
    "alpha.views": {"alpha.errors", "alpha.graph", "alpha.inputs", "alpha.tensor"},
    "alpha.inplace": {"alpha.inplace", "alpha.backend", "alpha.errors", "alpha.graph", "alpha.op", "alpha.tensor",
                      "alpha.versions"},  # alpha.op inside of functions: elements of a view are picked by ops
    "alpha.methods.twins": {"alpha.errors"},
    "alpha.methods.ufuncs": {"alpha.errors", "alpha.methods"},
    "alpha.methods.names": {"alpha.backend", "alpha.methods"},
    "alpha.methods": {"alpha.errors", "alpha.inplace", "alpha.inputs", "alpha.tensor"},  # the last as a type
    "alpha.methods.conversions": {"alpha.inputs", "alpha.backend", "alpha.errors", "alpha.inplace", "alpha.methods",
                                  "alpha.tensor"},
    "alpha.tensor": {"alpha.inputs", "alpha.backend", "alpha.copies", "alpha.dlpack",
                     "alpha.errors", "alpha.graph", "alpha.inplace", "alpha.methods", "alpha.versions"},
    "alpha.precision": {"alpha.inputs", "alpha.backend", "alpha.config", "alpha.errors", "alpha.tensor"},
    "alpha.recompute": {"alpha.recompute", "alpha.inputs", "alpha.backend", "alpha.config", "alpha.errors",
                        "alpha.graph", "alpha.op", "alpha.tensor", "alpha.versions"},  # alpha.op as a type
    "alpha.op": {"alpha.inputs", "alpha.backend", "alpha.config", "alpha.errors", "alpha.fuse", "alpha.graph",
                 "alpha.inplace", "alpha.inputs.returned", "alpha.methods", "alpha.recompute", "alpha.tensor",
                 "alpha.trace", "alpha.versions", "alpha.views"},
    "alpha.inputs.returned": {"alpha.backend", "alpha.errors", "alpha.op", "alpha.tensor"},  # alpha.op as a type
    "alpha.inputs.schema": {"alpha.errors", "alpha.tensor"},    # of stored state
    "alpha.gradcheck": {"alpha.inputs", "alpha.errors", "alpha.graph", "alpha.tensor"},
    "alpha.ops": {"alpha.ops", "alpha.op", "alpha.tensor", "alpha.graph", "alpha.backend", "alpha.config",
                  "alpha.errors", "alpha.random", "alpha.inplace", "alpha.inputs", "alpha.methods", "alpha.views",
                  "alpha.versions"},
    "alpha.cpu": {"alpha.cpu", "alpha.ops", "alpha.op", "alpha.openmp", "alpha.backend", "alpha.build", "alpha.config",
                  "alpha.fuse", "alpha.errors", "alpha.random", "alpha.inputs", "alpha.versions"},
    "alpha.cuda": {"alpha.cuda", "alpha.ops", "alpha.op", "alpha.backend", "alpha.build", "alpha.config",
                   "alpha.errors", "alpha.fuse", "alpha.lifetimes", "alpha.methods", "alpha.packed", "alpha.random",
                   "alpha.recompute", "alpha.tensor", "alpha.graph", "alpha.trace", "alpha.versions"},
    "alpha.cuda.runtime": {"alpha.cuda.runtime", "alpha.backend", "alpha.build", "alpha.config", "alpha.errors",
                           "alpha.graph", "alpha.lifetimes", "alpha.packed", "alpha.random", "alpha.recompute",
                           "alpha.tensor", "alpha.trace"},  # it knows no op
    "alpha.nn": {"alpha.nn", "alpha.ops", "alpha.op", "alpha.tensor", "alpha.graph", "alpha.errors",
                 "alpha.precision", "alpha.random", "alpha.inplace", "alpha.inputs", "alpha.backend",
                 "alpha.inputs.schema", "alpha.methods"},
    "alpha.optim": {"alpha.optim", "alpha.backend", "alpha.ops", "alpha.tensor", "alpha.graph", "alpha.errors",
                    "alpha.inputs", "alpha.inputs.schema", "alpha.methods", "alpha.versions"},
    "alpha.capture": {"alpha.capture", "alpha.inputs", "alpha.backend", "alpha.config", "alpha.errors", "alpha.graph",
                      "alpha.inplace",
                      "alpha.nn", "alpha.optim", "alpha.tensor", "alpha.trace", "alpha.versions"},
    "alpha.onnx": {"alpha.onnx", "alpha.inference", "alpha.inputs", "alpha.nn", "alpha.ops", "alpha.tensor",
                   "alpha.errors", "alpha.methods", "alpha.precision"},
    "alpha.profiler": {"alpha.profiler", "alpha.backend", "alpha.graph", "alpha.errors", "alpha.inputs", "alpha.trace"},
    "alpha.checkpoint": {"alpha.checkpoint", "alpha.backend", "alpha.nn", "alpha.ops", "alpha.tensor", "alpha.errors",
                         "alpha.inputs", "alpha.inputs.schema", "alpha.methods"},
    "alpha.data": {"alpha.data", "alpha.ops", "alpha.tensor", "alpha.backend", "alpha.random", "alpha.errors",
                   "alpha.inputs", "alpha.methods"},
    "alpha.training": {"alpha.training", "alpha.data", "alpha.nn", "alpha.optim", "alpha.ops", "alpha.tensor",
                       "alpha.capture", "alpha.graph", "alpha.precision", "alpha.profiler", "alpha.backend",
                       "alpha.config", "alpha.errors", "alpha.inputs", "alpha.methods"},
    "alpha.training.effects": {"alpha.errors", "alpha.nn", "alpha.optim", "alpha.tensor", "alpha.versions"},
    "alpha.testing": {"alpha.testing", "alpha.gradcheck", "alpha.methods", "alpha.op", "alpha.ops", "alpha.tensor"},
    "alpha": {"alpha"},
    "alpha.start": {"alpha.errors"},
    "alpha.doctor": {"alpha", "train"},      # the latter for build-kernels --model
    "alpha.__main__": {"alpha"},  # it finds train and benchmarks by name, where they are
    "models": {"models", "alpha"},
    "train": {"train", "models", "alpha"},
    "benchmarks": {"benchmarks", "train", "models", "alpha", "tests"},
}
# Room of alpha.cuda -> the rooms that it may import; the longest matching name counts.
CUDA_ROOMS = {
    "runtime": {"runtime"},
    "lazy": {"runtime", "lazy"},
    "ops": {"runtime", "lazy", "ops"},
    "ops.matmul": {"runtime", "lazy", "ops", "conv"},  # a product is planned as a convolution of 1x1 maps
    "ops.attention": {"runtime", "lazy", "ops", "conv"},  # its products have the modes of convolutions
    "conv": {"runtime", "lazy", "ops", "conv"},
}
# Kernels are launched in the same way whether or not a graph is recorded. This list only shrinks.
READS_THE_GRAPH = {
    "alpha.cuda.runtime.report": "names live tensors by the ops that made them",
}
# Arrays of other libraries, and versions, which are the memory's and no array's: nobody else reads Array.derived.
READS_DERIVED = ("alpha.cuda", "alpha.cuda.runtime.memory")
# Package -> the only files that may name it.
ONLY_IN = {
    "pycuda": ("alpha/cuda/", "tests/emulator/"),
    "torch": ("alpha/checkpoint/torch_state.py", "tests/", "benchmarks/"),
    "torchvision": ("train/data.py", "tests/"),
    "pickle": ("benchmarks/digits_archive.py", "tests/"),  # which only write: nothing is ever unpickled
    "matplotlib": ("train/report.py", "benchmarks/", "tests/"),
    "onnx": ("alpha/onnx/", "tests/"),
    "onnxruntime": ("benchmarks/inference.py", "tests/"),
    "tensorboard": ("alpha/training/callbacks.py", "tests/"),
    "PIL": ("alpha/data/pictures.py", "tests/"),
    "sklearn": ("tests/",),
}


def python_files() -> list[Path]:
    rooms = ("alpha", "models", "train", "benchmarks", "tests")
    return sorted(p for room in rooms for p in (ROOT / room).rglob("*.py"))


@cache
def inside(path: Path) -> tuple[set[str], list[tuple[str, int]]]:
    """Returns the modules that a file imports, and its functions with their lines.

    `from a import b` counts as a.b too.
    """
    found, functions = set(), []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{name.name}" for name in node.names}
            found |= {node.module} - {"alpha"}      # `from alpha import ops` is an import of alpha.ops alone
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            functions.append((node.name, (node.end_lineno or node.lineno) - node.lineno + 1))
    return found, functions


def imports(path: Path) -> set[str]:
    return inside(path)[0]


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
    for name, length in inside(path)[1] if path.suffix == ".py" else ():
        assert length <= MAX_FUNCTION_LINES, f"{path.name}: {name} has {length} lines"


@pytest.mark.parametrize("folder", sorted({p.parent for p in (ROOT / "alpha").rglob("*")
                                           if "__pycache__" not in p.parts}),
                         ids=lambda p: p.relative_to(ROOT).as_posix())
def test_folders_are_small(folder: Path) -> None:
    name = folder.relative_to(ROOT).as_posix()
    limit = next(files for room, files in MAX_FILES.items() if f"{name}/".startswith(f"{room}/"))
    files = [p.name for p in folder.iterdir() if p.is_file()]
    assert len(files) <= limit, f"{name} has {len(files)} files; {limit} are the limit"


# ---- the rooms of alpha.cuda -----------------------------------------------------------------------------------------

CUDA = {module_name(path): path for path in python_files() if path.is_relative_to(ROOT / "alpha" / "cuda")}


def imported(module: str) -> set[str]:
    """Returns the modules of alpha.cuda that one imports, in functions too, with the packages that these lie in.

    What contains the module itself is being loaded already, and does not count.
    """
    found = set()
    for name in imports(CUDA[module]):
        target = longest(name, CUDA)
        while target and target != "alpha.cuda" and not f"{module}.".startswith(f"{target}."):
            found.add(target)
            target = longest(target.rpartition(".")[0], CUDA)
    return found


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Returns the sets of modules that import one another."""
    reach: dict[str, set[str]] = {}
    for module in graph:
        seen, waiting = set(), [module]
        while waiting:
            new = graph[waiting.pop()] - seen
            seen |= new
            waiting += new
        reach[module] = seen
    found = {frozenset(n for n in reach[m] if m in reach[n]) for m in graph}
    return [set(circle) for circle in found if circle]


def test_modules_of_cuda_import_in_no_circle() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [{"b", "c"}]
    assert not circles({module: imported(module) for module in CUDA if module != "alpha.cuda"})


@pytest.mark.parametrize("module", [m for m in CUDA if longest(m.removeprefix("alpha.cuda."), CUDA_ROOMS)])
def test_rooms_of_cuda(module: str) -> None:
    room = longest(module.removeprefix("alpha.cuda."), CUDA_ROOMS)
    for name in imported(module):
        target = longest(name.removeprefix("alpha.cuda."), CUDA_ROOMS)
        if target:
            assert longest(target, CUDA_ROOMS[room]), f"{module} (room {room}) imports {name}"
    reads = {n for n in imports(CUDA[module]) if n.startswith(("alpha.graph", "alpha.tensor"))}
    assert bool(reads) == (module in READS_THE_GRAPH), f"{module} imports {sorted(reads) or 'no graph any more'}"


@pytest.mark.parametrize("module", [m for m in CUDA if not m.startswith("alpha.cuda.lazy")])
def test_nobody_outside_lazy_asks_what_class_an_array_is(module: str) -> None:
    """They call functions of alpha.cuda.lazy, its interface, and name neither its modules nor its classes."""
    modules = {name.rpartition(".")[2] for name in CUDA if name.startswith("alpha.cuda.lazy.")} - {"statistics"}
    tree = ast.parse(CUDA[module].read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("alpha.cuda.lazy"):
            names = {alias.name for alias in node.names}
            there = vars(lazy).keys() - modules
            assert node.module == "alpha.cuda.lazy" and names <= there, f"{module} imports {names}"
        assert not (isinstance(node, ast.Attribute) and node.attr in modules), f"{module} names lazy.{node.attr}"
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute) and node.value.attr == "derived":
            assert module in READS_DERIVED, f"{module} reads derived.{node.attr}"


def test_device_code_includes_headers_of_its_room_or_of_lower_ones() -> None:
    for path in (ROOT / "alpha" / "cuda").rglob("*.cu*"):
        room = path.parent.relative_to(ROOT / "alpha" / "cuda").parts[0]
        for name in re.findall(r'#include "(\w+)/.*\.cuh"', path.read_text()):
            assert name in CUDA_ROOMS.get(room, ()), f"{path.name} (room {room}) includes a header of {name}"


def test_importing_alpha_loads_no_backend_and_no_extra() -> None:
    code = ("import sys, alpha, alpha.nn, alpha.optim, models\n"
            "bad = [m for m in ('pycuda', 'torch', 'torchvision', 'matplotlib', 'sklearn', 'pickle5', 'alpha.cuda', "
            "'alpha.cpu.native') if m in sys.modules]\n"
            "assert not bad, bad")
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
