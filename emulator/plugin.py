"""pytest -p emulator.plugin -m cuda: the tests of the CUDA backend on the emulated driver (README.md)."""

from __future__ import annotations

import os

import pytest

from alpha.errors import AlphaError

from . import emulation


def pytest_configure() -> None:
    try:
        emulation.install()
    except AlphaError as error:
        raise pytest.UsageError(str(error)) from error


def pytest_report_header() -> str:
    seed = os.environ.get("ALPHA_EMULATED_SEED")
    return "cuda: emulated driver, no GPU is used" + (", checked" if emulation.checked() else "") + (
        f", threads in random order {seed}" if seed else "")
