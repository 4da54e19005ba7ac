"""`python -m alpha`: says what is there, and what is missing with the fix."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest

import alpha
from alpha import __main__ as doctor
from alpha.build import compilers
from alpha.config import config


def test_it_names_versions_devices_cache_and_settings(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with config(cache_dir=str(tmp_path), cpu_kernels=False, debug=1):
        assert doctor.main([]) == 0
    out = capsys.readouterr().out
    for part in (f"alpha {alpha.__version__}, Python 3.", "cpu: works", "CPU kernels: off, NumPy computes; ALPHA_CPU",
                 f"cache: {tmp_path}, 0 files, 0.0 MiB", "ALPHA_CPU_KERNELS=0: ", "ALPHA_DEBUG=1: "):
        assert part in out


def test_a_missing_device_or_extra_is_named_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(doctor.devices())[1] == "cuda: this build of alpha has no 'cuda' backend, asked for 'cuda'"

    def missing(package: str) -> str:
        raise metadata.PackageNotFoundError(package)

    monkeypatch.setattr(doctor.metadata, "version", missing)
    assert 'matplotlib: not installed (pictures of a run); pip install ".[plot]"' in list(doctor.extras())


def test_kernels_are_built_ahead(capsys: pytest.CaptureFixture[str]) -> None:
    if not compilers():
        pytest.skip("there is no C++ compiler here")
    with config(num_threads=1, cpu_kernels=True):
        assert doctor.main(["build-kernels"]) == 0
    assert capsys.readouterr().out.startswith("CPU kernels: compiled and tested, 1 threads\n")


def test_building_ahead_fails_where_numpy_is_left_alone(monkeypatch: pytest.MonkeyPatch,
                                                        capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(doctor, "has_kernels", lambda: False)
    with config(cpu_kernels=True):
        assert doctor.main(["build-kernels"]) == 1
    assert "CPU kernels: none, NumPy computes; install g++" in capsys.readouterr().out
