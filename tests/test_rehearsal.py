"""Kernels of one network, found out and built without a GPU; the compiler only pretends."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from alpha import doctor
from alpha.core.config import config
from alpha.cuda.runtime import toolchain
from alpha.cuda.runtime.doctor import launched
from alpha.errors import ConfigError, DeviceError
from tests.fake_nvcc import install
from train.config import Config
from train.loop import step_ahead

pytestmark = pytest.mark.same_without_kernels("it calls no compiled kernel")


def units(model: str, precision: str, arch: str, batch_size: int = 64) -> set[toolchain.Unit]:
    config = Config(model=model, precision=precision, batch_size=batch_size, device="cuda")
    return set(launched(partial(step_ahead, config), arch))


def test_a_network_needs_few_modules() -> None:
    found = units("lenet5", "fp32", "sm_90a")
    assert found < set(toolchain.units()) and 10 < len(found) < 40
    names = {unit.source.name for unit in found}
    assert {"loss.cu", "pool.cu", "update.cu", "augment.cu", "begin_random.cu"} & names == {"loss.cu", "pool.cu",
                                                                                              "augment.cu"}
    assert sum(name.startswith("rules-") for name in names) == 1


@pytest.mark.parametrize("precision, arch, wanted", [
    ("bf16", "sm_90a", "conv_wgmma.cu"), ("fp16", "sm_90a", "conv_wgmma.cu"), ("bf16", "sm_80", "conv_slab.cu"),
    ("fp32", "sm_75", "conv_slab.cu"), ("fp16", "sm_75", "conv_slab.cu"), ("fp16", "sm_120", "conv_slab.cu")])
def test_what_is_chosen_is_what_is_built(precision: str, arch: str, wanted: str) -> None:
    found = units("resnet20", precision, arch)
    assert wanted in {unit.source.name for unit in found if "ELEMENT" in dict(unit.defines)}


def test_build_kernels_for_one_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                       capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(doctor, "has_kernels", lambda: True)
    install(tmp_path, monkeypatch)
    with config(cache_dir=str(tmp_path / "cache")):
        assert doctor.main(["build-kernels", "--model", "lenet5", "--precision", "bf16", "--batch-size", "64",
                            "--arch", "sm_80", "sm_90a"]) == 0
    compiled = (tmp_path / "compiled").read_text().splitlines()
    lines = capsys.readouterr().out.splitlines()[-2:]
    counts = [len(units("lenet5", "bf16", arch)) for arch in ("sm_80", "sm_90a")]
    assert lines == [f"CUDA kernels: {count} of {count} modules are compiled for {arch}"
                     for count, arch in zip(counts, ("sm_80", "sm_90a"))]
    assert len(compiled) == sum(counts) < 80


def test_what_cannot_be_rehearsed_is_refused() -> None:
    with pytest.raises(DeviceError, match=r"no device of sm_87 is known, only of sm_75.*\nhelp: build on the machine"):
        units("lenet5", "fp32", "sm_87")
    with pytest.raises(ConfigError):
        doctor.training("lenet6", None, None)()
    with pytest.raises(ConfigError):
        doctor.training("lenet5", "fp64", None)


def test_kernels_of_a_model_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "my_rehearsed.py").write_text(
        "from alpha import nn\nfrom alpha.training import register_model\n\n@register_model\n"
        "def my_rehearsed(num_classes):\n    return nn.Sequential(nn.Flatten(), nn.Linear(3072, num_classes))\n")
    (tmp_path / "train.py").write_text("raise SystemExit('the wrong train')")
    code = ("import sys; sys.path.insert(0, '.'); sys.path.append(sys.argv[1])\nfrom alpha import doctor\n"
            "doctor.training('my_rehearsed', 'fp32', 8, ['my_rehearsed.py'])")
    done = subprocess.run([sys.executable, "-c", code, str(Path(doctor.__file__).parent.parent)], cwd=tmp_path,
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
