"""alpha.testing: what a user's project gets from a clone and from a wheel, the emulated driver with it."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path
from shutil import copy, copytree, ignore_patterns

import pytest

from alpha import testing
from alpha.testing import agree, assert_equal_at, conv_cases, floats, gradcheck, ints
from tests.cuda import agree as ours

pytestmark = pytest.mark.same_without_kernels("it calls no compiled kernel")
ROOT = Path(__file__).resolve().parent.parent


def test_they_are_the_tools_of_our_own_tests() -> None:
    assert ours.agree is agree and ours.Case is testing.Case
    assert floats(2, 3).shape == (2, 3) and ints(4).dtype == "float32" and callable(gradcheck)
    assert len(conv_cases.CASES) > 60 and conv_cases.square("x", 1, 4, 3, 4, 3).desc.h.o == 2
    assert_equal_at(floats(3), floats(3))


def test_the_emulated_driver_is_found_beside_the_clone(tmp_path: Path) -> None:
    code = (f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
            "from alpha.testing.emulator import emulation, plugin, toolchain\n"
            "assert (toolchain.HOME / 'include').is_dir() and (toolchain.HERE / 'driver.cpp').exists()\n"
            "from alpha.testing import emulator; import alpha.testing\n"
            "assert alpha.testing.emulator is emulator and alpha.testing.emulator.toolchain is toolchain")
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_wheel_brings_them_along(tmp_path: Path) -> None:
    pytest.importorskip("setuptools", "70.1")  # the first that makes wheels by itself
    tree = tmp_path / "tree"
    for name in ("alpha", "models", "train", "emulator"):
        copytree(ROOT / name, tree / name, ignore=ignore_patterns("__pycache__"))
    for name in ("setup.py", "pyproject.toml", "README.md"):
        copy(ROOT / name, tree)
    done = subprocess.run([sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", "wheel", "--no-deps",
                           "--no-build-isolation", "-w", str(tmp_path), str(tree)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    wheel, = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        archive.extractall(tmp_path / "site")
    for name in ("agree.py", "conv_cases.py", "emulator/emulation.py", "emulator/plugin.py", "emulator/driver.cpp",
                 "emulator/emu.hpp", "emulator/abi.h"):
        assert f"alpha/testing/{name}" in names, name
    code = ("import alpha.testing, alpha.testing.emulator.toolchain as t\nfrom pathlib import Path\n"
            "assert (t.HERE / 'engine.cpp').exists() and t.HERE.parent == Path(alpha.testing.__file__).parent")
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path / "site", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
