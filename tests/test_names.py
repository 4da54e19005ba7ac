"""The lists of public names are those of the definitions, and a new definition needs no other edit than its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tools.names import __main__, definitions, lists, regions, signatures
from tools.names.definitions import Definition
from tools.names.regions import NamesError

pytestmark = pytest.mark.same_without_kernels("it calls no compiled kernel")
ROOT = Path(__file__).resolve().parent.parent
LISTS = list(dict.fromkeys([path for path, _, _ in lists.LISTS]))


def run(root: Path, *args: str) -> str:
    """Returns what a Python program prints, which must succeed.  Its bytecode is kept for the next one in a copy."""
    keeps = {"PYTHONDONTWRITEBYTECODE": ""} if root != ROOT else {}
    done = subprocess.run([sys.executable, *args], cwd=root, capture_output=True, text=True,
                          env={**os.environ, "ALPHA_CPU_KERNELS": "0", **keeps})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_lists_are_those_of_the_definitions() -> None:
    assert run(ROOT, "-m", "tools.names", "--check") == "8 files have the lists of their definitions\n"


def test_a_stale_list_fails_the_check_and_is_written_without_it(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    monkeypatch.setattr(__main__, "collect", lambda root: [])
    monkeypatch.setattr(__main__, "written", lambda root, found: {root / "a.py": "x = 2\n"})
    args = ["--root", str(tmp_path)]
    assert __main__.main([*args, "--check"]) == 1 and (tmp_path / "a.py").read_text() == "x = 1\n"
    assert capsys.readouterr().out == "a.py is stale: run python -m tools.names\n@@ -1 +1 @@\n-x = 1\n+x = 2\n"
    assert __main__.main(args) == 0 and (tmp_path / "a.py").read_text() == "x = 2\n"
    assert __main__.main([*args, "--check"]) == 0


# ---- a new activation, in a copy of the tree -------------------------------------------------------------------------


SIGNATURE = ("def", "x", "self", "Tensor", "TensorT", "ops", "nn", "from", "import")


def with_new_activation(root: Path) -> None:
    """Makes a copy of the tree with the two edits of the page add_a_layer.md, and a merge's two versions of lists."""
    for room in ("alpha", "tools"):
        shutil.copytree(ROOT / room, root / room, ignore=shutil.ignore_patterns(
            "__pycache__", "kernels", "include", "packed", "*.cu", "*.cuh"))
    page = next((ROOT / "docs").rglob("add_a_layer.md")).read_text().split("## An activation that alpha itself has")[1]
    _, function, _, layer, _ = page.split("\n## ")[0].split("```\n")
    for path, code in (("alpha/ops/activation/functions.py", function), ("alpha/nn/activation.py", layer)):
        (root / path).write_text(f"{(root / path).read_text()}\n\n{code}")
    for path in ("alpha/ops/__init__.py", "alpha/core/methods.py", "alpha/nn/__init__.py"):
        first, mark, rest = (root / path).read_text().partition("written by python -m tools.names\n")
        (root / path).write_text(f"{first}{mark}<<<<<<< ours\nimport gone\n=======\n>>>>>>> theirs\n{rest}")


CALLS = """
import alpha, alpha.nn.functional as F
from alpha import nn, ops
from alpha.checkpoint import layouts
x = alpha.tensor([-1.0, 3.0])
ways = [alpha.squared_relu(x), ops.squared_relu(x), x.squared_relu(), F.squared_relu(x, inplace=True)]
ways.append(nn.SquaredReLU()(x))
assert [y.tolist() for y in ways] == [[0.0, 9.0]] * 5
for space in (alpha, ops, F): assert "squared_relu" in space.__all__
assert "SquaredReLU" in nn.__all__ and nn.SquaredReLU in layouts._SAME_CHANNELS
assert alpha.Tensor.squared_relu.__doc__ == ops.squared_relu.__doc__
print(alpha.__file__)
"""


def test_a_new_activation_takes_the_edits_that_the_page_tells(tmp_path: Path) -> None:
    with_new_activation(tmp_path)
    told = run(tmp_path, "-m", "tools.names").split("\n")
    assert told == [f"{path} is written" for path in LISTS if "onnx" not in path] + [""]
    assert "files have the lists" in run(tmp_path, "-m", "tools.names", "--check")
    assert run(tmp_path, "-c", CALLS).strip() == str(tmp_path / "alpha" / "__init__.py")
    for path in LISTS:      # no other name has come or gone
        old, new = (Counter(re.findall(r"\w+", (root / path).read_text())) for root in (ROOT, tmp_path))
        assert not old - new and {*(new - old)} <= {"squared_relu", "SquaredReLU", *SIGNATURE}, path
    assert "def squared_relu(x: Tensor) -> Tensor: ..." in (tmp_path / "alpha/ops/__init__.pyi").read_text()
    assert "def squared_relu(self) -> TensorT: ..." in (tmp_path / "alpha/core/methods.py").read_text()


# ---- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("facts", "told"), [
    ({"colour": 1}, "@public has no field colour\nhelp: its fields are top, method, functional, inplace"),
    ({"top": 1}, "top is 1, bool or str is needed\nhelp: top=True, or names in one string"),
    ({"inplace": "yes", "functional": True}, "inplace is 'yes', bool is needed\nhelp: inplace=True"),
    ({"method": "cat, concat"}, "method has 'cat,', which is no public name\nhelp: names are separated by spaces"),
    ({"top": "_cat"}, "top has '_cat', which is no public name"),
    ({"top": "lambda"}, "top has 'lambda', which is no public name"),
    ({"inplace": True}, "inplace has no effect without functional\nhelp: say functional too, or leave inplace out"),
    ({"layer": "ELU"}, "layer has no effect without keeps_channels"),
])
def test_fields_are_checked(facts: dict[str, Any], told: str) -> None:
    with pytest.raises(NamesError) as error:
        definitions.check_facts("ops/a.py:1", facts)
    assert str(error.value).startswith(f"ops/a.py:1: {told}")


def test_an_error_names_the_line_of_the_definition() -> None:
    public = definitions.recorder(ROOT, [])
    with pytest.raises(NamesError, match=r"^tests/test_names.py:\d+: @public has no field metod\nhelp: did you mean"):
        public(metod=True)
    with pytest.raises(NamesError, match=r"tests/test_names.py:\d+: @public is called with its fields by name: "):
        public(abs)


def defined(name: str, line: int, **facts: Any) -> Definition:
    return Definition(name, "alpha.ops.a", f"ops/a.py:{line}", facts)


@pytest.mark.parametrize(("second", "told"), [
    (defined("elu", 9), "elu is in alpha.ops already, from ops/a.py:1\nhelp: rename one of them"),
    (defined("b", 9, top="b elu"), "elu is in alpha already, from ops/a.py:1"),
    (defined("b", 9, method="elu"), "elu is in alpha.Tensor already, from ops/a.py:1"),
    (defined("b", 9, keeps_channels=True, layer="ELU"), "ELU is in the layers that keep channels already, from "),
    (defined("b", 9, onnx="Elu"), "Elu is in the operators of ONNX already, from ops/a.py:1"),
    (defined("tensor", 9, top=True), "tensor is in alpha already, written by hand\nhelp: choose another name"),
    (defined("b", 9, keeps_channels=True, layer="Elu"), "layer names Elu, and alpha.nn has no such layer\nhelp: did "
     "you mean ELU?"),
    (defined("b", 9, keeps_channels=True, layer="Sine"), "layer names Sine, and alpha.nn has no such layer\nhelp: "
     "write the layer first, in alpha/nn"),
])
def test_a_name_has_one_owner(second: Definition, told: str) -> None:
    first = defined("elu", 1, top=True, method=True, keeps_channels=True, layer="ELU", onnx="Elu")
    definitions.check([first], {"ELU": "alpha.nn.a"}, {"alpha": {"tensor"}})
    with pytest.raises(NamesError) as error:
        definitions.check([first, second], {"ELU": "alpha.nn.a"}, {"alpha": {"tensor"}})
    assert str(error.value).startswith(f"ops/a.py:9: {told}")


def test_two_layers_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "alpha" / "nn").mkdir(parents=True)
    for name in ("a", "b"):
        (tmp_path / "alpha" / "nn" / f"{name}.py").write_text("class Module: ...\nclass _Base(Module): ...\n"
                                                              "class Sine(_Base): ...\nclass Row: ...\n")
    with pytest.raises(NamesError, match=r"the class Module is defined in alpha.nn.a and in alpha.nn.b\nhelp: rename"):
        definitions.layers_of(tmp_path)
    (tmp_path / "alpha" / "nn" / "b.py").write_text("class Cosine(Sine): ...\n")
    assert definitions.layers_of(tmp_path) == {"Cosine": "alpha.nn.b", "Module": "alpha.nn.a", "Sine": "alpha.nn.a"}


def test_a_file_without_its_part_and_a_process_with_alpha_are_refused() -> None:
    with pytest.raises(NamesError, match=r"a\.py has 0 parts for the names 'ops', 1 is needed\nhelp: put two comments"):
        regions.replaced("a.py", "x = 1\n", "ops", "y = 2")
    with pytest.raises(NamesError, match=r"alpha is imported already: run python -m tools\.names in a process of its"):
        definitions.collect(ROOT)


def test_a_type_without_a_name_in_the_stub_is_refused() -> None:
    def sine(x: Any, way: complex) -> Any: ...
    with pytest.raises(NamesError, match=r"ops/a.py:1: __init__.pyi does not know the type complex of sine\nhelp: "):
        signatures.parameters(Definition("sine", "alpha.ops.a", "ops/a.py:1", {}, sine))


def test_names_are_sorted_with_constants_first_and_numbers_as_numbers() -> None:
    assert sorted(["log10", "log2", "relu", "ELU", "Conv3d", "Conv2d"], key=definitions.natural) == [
        "ELU", "Conv2d", "Conv3d", "log2", "log10", "relu"]
