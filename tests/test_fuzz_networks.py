"""A short run of the fuzz target of networks, and that it finds what it is for."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

pytest.importorskip("torch")

import alpha
from alpha import config, ops
from alpha.core.graph import grad_enabled
from tests.fuzz import networks

pytestmark = pytest.mark.same_without_kernels("kernels are called by programs that it starts")


def test_random_networks_are_pytorchs(tmp_path: Path) -> None:
    seen = " ".join(networks.attempt(random.Random(seed), tmp_path) for seed in range(12))
    missing = [what for what in ("Conv2d", "ConvTranspose2d", "BatchNorm2d", "MaxPool2d", "concat", "sum", "gate")
               if what not in seen]
    assert not missing, missing


@pytest.mark.parametrize("broken, what", [("gradient", "off by"), ("setting", "other bits"),
                                          ("inference", "in inference mode")])
def test_it_finds_what_is_wrong(broken: str, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An activation that is wrong for PyTorch, under one setting alone, or without a graph."""

    def wrong(x: alpha.Tensor) -> alpha.Tensor:
        hit = {"gradient": grad_enabled(), "setting": config.recompute == "full", "inference": not grad_enabled()}
        return ops.relu(x) + (1e-3 if hit[broken] else 0.0)

    names = {name: (wrong, pair[1]) if name == "relu" else pair for name, pair in networks.ACTIVATIONS.items()}
    monkeypatch.setattr(networks, "ACTIVATIONS", names)
    with pytest.raises(AssertionError, match=what):
        for seed in range(60):
            networks.attempt(random.Random(seed), tmp_path)
