"""The GPU suite: every test here is skipped, with the reason, where no context can be created."""

from __future__ import annotations

import pytest

from alpha.backend import get_backend
from alpha.errors import AlphaError


@pytest.fixture(autouse=True, scope="session")
def device():
    """The CUDA backend, warmed up by nothing: a test sees exactly what a program would."""
    try:
        return get_backend("cuda")
    except AlphaError as error:
        pytest.skip(str(error).partition("\n")[0])
