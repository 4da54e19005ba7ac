"""python -m tests.same_kernels: it says the same of what is the same, and something else of what is not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from alpha.cuda.runtime import toolchain
from tests import same_kernels

pytestmark = pytest.mark.same_without_kernels("it calls no compiled kernel")
ROOT = Path(__file__).resolve().parent.parent


def run(*arguments: str) -> list[str]:
    done = subprocess.run([sys.executable, "-m", "tests.same_kernels", *arguments], cwd=ROOT, capture_output=True,
                          text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_launches_are_those_of_the_steps_each_time_the_same() -> None:
    lines = run("launches", "sm_90a", "lenet5:bf16:16", "lenet5:fp32:16")
    assert [line for line in lines if line.startswith("--")] == ["-- lenet5:bf16:16", "-- lenet5:fp32:16"]
    of = lines.index("-- lenet5:fp32:16")
    assert any("conv_" in line for line in lines[:of]) and lines[1:of] != lines[of + 1:]
    assert any(line.startswith("rules") for line in lines[of:])
    assert run("launches", "sm_90a", "lenet5:bf16:16") == lines[:of]


def test_launches_of_nothing_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for names in ([], ["resnet18"]):
        with pytest.raises(SystemExit):
            same_kernels.main(["launches", "sm_90a", *names])
        assert "needs MODEL:PRECISION:BATCH" in capsys.readouterr().err


@pytest.mark.skipif(not toolchain.can_compile(), reason="nvcc is not installed")
def test_code_changes_with_what_a_kernel_does_and_not_with_its_comments(tmp_path: Path) -> None:
    def code(text: str) -> list[str]:
        source = tmp_path / "mine.cu"
        source.write_text(text)
        return same_kernels.code_of("sm_80", toolchain.Unit(source, ()))

    text = 'extern "C" __global__ void mine(float* x, int n) {\n  if (threadIdx.x < n) x[threadIdx.x] = 2;\n}\n'
    lines = code(text)
    assert any(".text.mine" in line for line in lines)
    assert code("// What it does\n" + text) == lines
    assert code(text.replace("= 2", "= 3")) != lines
