"""The rooms of the project and the doors between them: imports run one way, files stay small."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from alpha.core import device
from alpha.cuda import lazy

pytestmark = pytest.mark.same_without_kernels("it calls no compiled kernel")
ROOT = Path(__file__).resolve().parent.parent
MAX_LINES = {".py": 400, ".cpp": 400, ".hpp": 400, ".cu": 400, ".cuh": 400}
MAX_FUNCTION_LINES = 60
MAX_FILES = {"alpha": 24}  # of a folder in these, subfolders not counted

# Room -> the rooms that it may import; the longest matching name counts.
MAY_IMPORT = {
    "alpha.core": {"alpha.core"},
    "alpha.errors": {"alpha.core"},
    "alpha.random": {"alpha.core"},
    "alpha.build": {"alpha.core"},
    "alpha.packed": {"alpha.core", "alpha.build"},
    "alpha.lifetimes": set(),
    "alpha.fuse": {"alpha.core"},
    "alpha.fuse.places": {"alpha.fuse", "alpha.ops"},
    "alpha.interop": {"alpha.core", "alpha.interop"},
    "alpha.recompute": {"alpha.core", "alpha.recompute"},
    "alpha.gradcheck": {"alpha.core"},
    "alpha.plan": {"alpha.core", "alpha.plan"},     # it knows neither devices nor ops
    "alpha.ops": {"alpha.core", "alpha.interop", "alpha.ops", "alpha.plan", "alpha.random"},
    "alpha.cpu": {"alpha.core", "alpha.cpu", "alpha.ops", "alpha.build", "alpha.fuse", "alpha.lifetimes", "alpha.plan",
                  "alpha.random"},
    "alpha.cuda": {"alpha.core", "alpha.interop", "alpha.cuda", "alpha.ops", "alpha.build", "alpha.fuse",
                   "alpha.lifetimes", "alpha.packed", "alpha.plan", "alpha.random", "alpha.recompute"},
    "alpha.cuda.runtime": {"alpha.core", "alpha.cuda.runtime", "alpha.build", "alpha.lifetimes", "alpha.packed",
                           "alpha.random", "alpha.recompute"},  # it knows no op
    "alpha.nn": {"alpha.core", "alpha.fuse", "alpha.interop", "alpha.nn", "alpha.ops", "alpha.random"},
    "alpha.optim": {"alpha.core", "alpha.interop", "alpha.optim", "alpha.ops"},
    "alpha.capture": {"alpha.core", "alpha.capture", "alpha.nn", "alpha.optim"},
    "alpha.onnx": {"alpha.core", "alpha.interop", "alpha.onnx", "alpha.inference", "alpha.nn", "alpha.ops"},
    "alpha.profiler": {"alpha.core", "alpha.profiler"},
    "alpha.checkpoint": {"alpha.core", "alpha.interop", "alpha.checkpoint", "alpha.nn", "alpha.ops"},
    "alpha.data": {"alpha.core", "alpha.interop", "alpha.data", "alpha.ops", "alpha.random"},
    "alpha.training": {"alpha.core", "alpha.interop", "alpha.training", "alpha.checkpoint", "alpha.data",
                       "alpha.models", "alpha.nn", "alpha.onnx", "alpha.optim", "alpha.ops", "alpha.capture",
                       "alpha.profiler", "alpha.random"},
    "alpha.models": {"alpha.start", "models"},      # the latter as types
    "alpha.training.effects": {"alpha.core", "alpha.nn", "alpha.optim"},
    "alpha.testing": {"alpha.core", "alpha.interop", "alpha.testing", "alpha.gradcheck", "alpha.ops"},
    "alpha.dist": {"alpha.core", "alpha.interop", "alpha.dist", "alpha.cuda.runtime", "alpha.fuse", "alpha.nn",
                   "alpha.ops", "alpha.random"},
    "alpha.linalg": {"alpha.core", "alpha.interop", "alpha.ops"},
    "alpha.func": {"alpha.core", "alpha.interop", "alpha.func", "alpha.nn", "alpha.ops"},
    "alpha.interop.pytorch": {"alpha.core", "alpha.interop", "alpha.checkpoint", "alpha.nn", "alpha.ops"},
    "alpha.programs": {"alpha", "train"},
    "alpha": {"alpha"},
    "alpha.start": {"alpha.core"},
    "alpha.doctor": {"alpha", "train"},  # the latter for build-kernels --model
    "alpha.__main__": {"alpha"},  # it finds train and benchmarks by name, where they are
    "emulator": {"emulator", "alpha.build", "alpha.errors", "alpha.cuda.runtime"},
    "models": {"models", "alpha"},
    "train": {"train", "models", "alpha"},
    "benchmarks": {"benchmarks", "train", "models", "alpha", "tests"},
    "tools": {"tools", "models", "alpha"},
    "tools.names": {"tools.names"},     # it imports alpha by itself, without the lists, which may be stale
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
    "pycuda": ("alpha/cuda/", "emulator/", "tests/emulator/"),
    "torch": ("alpha/checkpoint/torch_state.py", "alpha/interop/pytorch/", "alpha/programs/", "tests/",
              "benchmarks/"),
    "torchvision": ("tests/",),
    "scipy": ("alpha/data/public/archives.py", "benchmarks/", "tests/"),
    "pickle": ("alpha/data/public/pickles.py", "benchmarks/digits_archive.py", "tests/"),  # the first checks
    "matplotlib": ("train/report.py", "benchmarks/", "tests/"),
    "onnx": ("alpha/onnx/", "tests/"),
    "onnxruntime": ("benchmarks/inference.py", "tests/"),
    "tensorboard": ("alpha/training/callbacks.py", "tests/"),
    "PIL": ("alpha/data/pictures.py", "tests/"),
    "sklearn": ("tests/",),
}


def python_files() -> list[Path]:
    rooms = ("alpha", "models", "train", "benchmarks", "emulator", "tools", "tests")
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


# ---- the core, and circles -------------------------------------------------------------------------------------------

# Modules that import one another, in functions and for types too. This list only shrinks.
CIRCLES = [
    {"alpha.cpu.algorithms", "alpha.cpu.algorithms.fft", "alpha.cpu.algorithms.sparse",
     "alpha.cpu.algorithms.winograd", "alpha.cpu.attention", "alpha.cpu.attention.reference", "alpha.cpu.elementwise",
     "alpha.cpu.memory",
     "alpha.cpu.native", "alpha.cpu.native_check", "alpha.cpu.pointwise", "alpha.cpu.shape", "alpha.cpu.update"},
    {"alpha.nn.contents", "alpha.nn.module"},
    {"alpha.onnx.loader", "alpha.onnx.operators"}, {"alpha.optim.optimizer", "alpha.optim.recorded"},
    {"alpha.training.callback", "alpha.training.steps", "alpha.training.trainer"}]
EXPORTS = 20    # names of a module of the core that are imported by others than the core
WORDS = ("alpha.core.errors", "alpha.core.inputs.kinds")    # whose names are a vocabulary: no limit
ALPHA = {module_name(path): path for path in python_files() if path.is_relative_to(ROOT / "alpha")}


def reaches(module: str) -> set[str]:
    """Returns the modules of alpha that one imports, in functions and for types too, but for those that contain it."""
    found = {longest(name, ALPHA) for name in imports(ALPHA[module])} - {None, module}
    return {name for name in found if name and not f"{module}.".startswith(f"{name}.")}


def test_modules_import_in_no_circle() -> None:
    found = circles({module: reaches(module) for module in ALPHA})
    assert not [circle for circle in found if not any(circle <= known for known in CIRCLES)]
    assert all(any(circle <= known for circle in found) for known in CIRCLES), "shorten CIRCLES"


def test_the_core_exports_few_names() -> None:
    used: dict[str, set[str]] = {}
    for module, path in ALPHA.items():
        if longest(module, MAY_IMPORT) not in ("alpha.core", "alpha.errors"):
            for name in imports(path):
                home = longest(name, ALPHA) or ""
                if home.startswith("alpha.core.") and name != home and home not in WORDS:
                    used.setdefault(home, set()).add(name)
    assert len(used) > 15
    assert not {home: names for home, names in used.items() if len(names) > EXPORTS}


def test_the_planner_exports_few_names() -> None:
    used = {name for path in python_files() if not module_name(path).startswith(("alpha.plan", "tests"))
            for name in imports(path) if name.startswith("alpha.plan.")} - ALPHA.keys()
    names = {name.rpartition(".")[2] for name in used}
    assert 10 < len(names) <= EXPORTS, names


def test_a_device_has_few_methods_and_the_cpu_all_that_is_not_optional() -> None:
    most = {device.Device: 12, device.Memory: 8, device.Interop: 6, device.Lazy: 6, device.Recording: 2}
    for protocol, count in most.items():
        methods = {name for name, f in vars(protocol).items() if name[0] != "_" and callable(f)}
        assert 0 < len(methods) <= count, protocol.__name__
        missing = {*methods, *protocol.__annotations__} - {*dir(device.get_backend("cpu"))}
        assert not missing or protocol in (device.Lazy, device.Recording), missing


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
    assert room != "runtime" or not any(n.startswith("alpha.core.op") for n in imports(CUDA[module])), "it knows no op"
    reads = {n for n in imports(CUDA[module]) if n.startswith(("alpha.core.graph", "alpha.core.tensor"))}
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
