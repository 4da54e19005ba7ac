"""A wheel with compiled kernels trains on the device of a machine without a compiler."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from shutil import copy, copytree

import pytest

from tests.cuda.process import PRELUDE, ROOT, run

pytestmark = [pytest.mark.cuda, pytest.mark.no_memcheck("all is in other processes"), pytest.mark.long]

PACK = """
import sys
from pathlib import Path
from alpha.cuda.runtime import toolchain
from alpha.cuda.runtime.context import context
from train.loop import step_ahead
from train.config import Config
step_ahead(Config(model="lenet5", device="cuda", batch_size=8))
modules = [(*u, toolchain.current.compile(u.source, dict(u.defines), context.arch)) for u in toolchain._modules]
toolchain.pack(Path(sys.argv[1])).write(modules, context.arch)
"""
TRAIN = """
import sys
import alpha
from alpha.cuda.runtime import toolchain
from alpha.errors import CompileError
from train.loop import step_ahead
from train.config import Config
assert alpha.__file__.startswith(sys.argv[1]), alpha.__file__
def missing(*arguments):
    raise CompileError("cuda: nvcc is not found")
toolchain.current.compile = toolchain.current.find = missing
step_ahead(Config(model="lenet5", device="cuda", batch_size=8))
print("trained with", len(toolchain._modules), "modules from", *toolchain.pack().architectures())
step_ahead(Config(model="vgg11", device="cuda", batch_size=8))
"""


def test_training_with_an_installed_wheel_needs_no_compiler(tmp_path: Path) -> None:
    pytest.importorskip("setuptools")
    tree, site = tmp_path / "tree", tmp_path / "site"
    for name in ("alpha", "models", "train"):
        copytree(ROOT / name, tree / name)
    for name in ("setup.py", "pyproject.toml", "README.md"):
        copy(ROOT / name, tree)
    done = run(PACK, str(tree / "alpha" / "cuda" / "packed"))
    assert done.returncode == 0, done.stderr
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), str(tree)], check=True)
    wheel, = tmp_path.glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", str(site), str(wheel)], check=True)
    (site / "emulator").symlink_to(ROOT / "emulator")
    done = subprocess.run([sys.executable, "-c", PRELUDE + TRAIN, str(site)], cwd=site, capture_output=True, text=True)
    arch, = (path.stem.removeprefix("kernels-") for path in (site / "alpha" / "cuda" / "packed").iterdir())
    assert f"modules from {arch}" in done.stdout, done.stderr
    assert done.returncode == 1 and done.stderr.endswith("nvcc is not found\n")  # batch norm is not in it
