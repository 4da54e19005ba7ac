"""Steps of shipped networks launch the kernels that the golden files say; python -m tests.golden_launches has all."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import models
from tests import golden_launches

pytestmark = pytest.mark.same_without_kernels("it calls no compiled kernel")
ROOT = Path(__file__).resolve().parent.parent
QUICK = ("lenet5", "resnet18")  # the others are compared by the command


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "tests.golden_launches", *arguments], cwd=ROOT, capture_output=True,
                          text=True)


def test_networks_launch_what_the_golden_files_say() -> None:
    done = run(*QUICK)
    assert done.returncode == 0, done.stdout + done.stderr


def test_another_launch_is_shown_and_written_if_asked(tmp_path: Path) -> None:
    folder = ("--folder", str(tmp_path))
    assert run("lenet5", "--write", *folder).returncode == 0
    file = tmp_path / "lenet5-bf16.txt"
    text = file.read_text()
    assert text == (golden_launches.FOLDER / file.name).read_text() and len(list(tmp_path.iterdir())) == 3
    first, _, others = text.partition("\n")
    file.write_text(f"{others}one_more\n")
    done = run("lenet5", *folder)
    assert done.returncode == 1 and f"+{first}\n" in done.stdout and "-one_more\n" in done.stdout
    assert "help: if that is meant, run python -m tests.golden_launches --write" in done.stdout


def test_each_network_has_a_file_for_each_precision() -> None:
    names = {f"{network}-{precision}.txt" for network in golden_launches.NETWORKS
             for precision in golden_launches.PRECISIONS}
    assert names == {path.name for path in golden_launches.FOLDER.iterdir()}
    assert set(QUICK) < set(golden_launches.NETWORKS) <= set(models.list())


def test_a_network_without_files_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        golden_launches.main(["lenet"])
    assert "there are no golden files of lenet, only of lenet5" in capsys.readouterr().err
