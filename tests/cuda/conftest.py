"""The GPU suite: every test here is skipped, with the reason, where no context can be created."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from alpha.core.config import config
from alpha.core.device import get_backend
from alpha.cuda.conv import planner, wgmma
from alpha.cuda.conv.wgmma import Wgmma
from alpha.cuda.conv.wgmma.wgrad import WgmmaWgrad
from alpha.cuda.runtime.context import context, lacks
from alpha.cuda.runtime.kernel import Kernel
from alpha.errors import AlphaError
from alpha.plan import Cost, Stage

PRODUCTS = ("conv_v2", "ks_deconv", "sk_dilated", "conv_wgmma_slices")  # how the entries of convolutions begin


@pytest.fixture(autouse=True, scope="session")
def device():
    """The CUDA backend, warmed up by nothing: a test sees exactly what a program would."""
    try:
        return get_backend("cuda")
    except AlphaError as error:
        pytest.skip(str(error).partition("\n")[0])


@pytest.fixture(autouse=True)
def served(request: pytest.FixtureRequest, device) -> None:
    """Skips a test of a candidate, kernel or mode, among its parameters, that this device cannot run."""
    given = getattr(request.node, "callspec", None)
    for value in given.params.values() if given else ():
        for each in (value, getattr(value, "kernel", None), getattr(value, "mode", None)):
            if lacking := lacks(getattr(each, "needs", (0, 0))):
                pytest.skip(lacking)


@pytest.fixture
def launches(monkeypatch) -> Iterator[list[str]]:
    """The entries of the kernels that are launched, where backward keeps what it needs."""
    seen: list[str] = []
    launch = Kernel.__call__

    def counted(self: Kernel, grid: object, *values: object) -> None:
        launch(self, grid, *values)
        seen.append(self.entry)

    monkeypatch.setattr(Kernel, "__call__", counted)
    with config(recompute="none"):
        yield seen


@pytest.fixture
def no_products(monkeypatch) -> None:
    """Convolutions write nothing: where values do not matter, and time does."""
    launch = Kernel.__call__

    def skipping(self: Kernel, grid: object, *values: object) -> None:
        if self.entry.startswith(PRODUCTS):
            self._pack(*[getattr(v, "ptr", 0 if v is None else v) for v in values])  # has written what waits
        else:
            launch(self, grid, *values)

    monkeypatch.setattr(Kernel, "__call__", skipping)


@pytest.fixture
def fresh_schedules() -> Iterator[None]:
    """Schedules are made with the constants that a test sets, and forgotten with them."""
    wgmma._estimate.cache_clear()
    yield
    wgmma._estimate.cache_clear()


@pytest.fixture
def as_h100(monkeypatch) -> None:
    """Estimates are those for an H100, whatever device of its class this one is."""
    monkeypatch.setattr(context, "name", "NVIDIA H100 80GB HBM3")
    monkeypatch.setattr(context, "sm_count", 132)


@pytest.fixture
def tensor_cores_first(monkeypatch) -> None:
    """Convolutions take tensor cores wherever they can, however small they are."""
    for kind in (Wgmma, WgmmaWgrad):
        monkeypatch.setattr(kind, "least_us", lambda self, desc: self.tile.columns - 1e6)
        monkeypatch.setattr(kind, "cost", lambda self, desc: Cost((Stage(0.0, launches=self.tile.columns - 1e6),)))
    monkeypatch.setattr(planner, "_plans", {})
