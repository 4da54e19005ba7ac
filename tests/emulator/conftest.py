"""The emulator's own tests run only where its plugin is: they load its driver, which must not happen beside a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return None if config.pluginmanager.hasplugin("emulator.plugin") else True
