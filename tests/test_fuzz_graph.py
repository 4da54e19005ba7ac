"""A short run of the fuzz target of graphs, and that it finds what it is for."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

pytest.importorskip("torch")

from alpha.core import versions
from tests.fuzz.graph import attempt

pytestmark = pytest.mark.same_without_kernels("kernels are called by programs that it starts")


def test_random_graphs_have_the_right_gradients_or_are_refused(tmp_path: Path) -> None:
    ends = [attempt(random.Random(seed), tmp_path).rpartition(": ")[2] for seed in range(150)]
    assert ends.count("equal") > 30 and sum(end.startswith("refused") or " of " in end for end in ends) > 30


@pytest.mark.parametrize("broken", ["changed_since", "note"])
def test_it_finds_a_change_that_goes_unnoticed(broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if broken == "note":
        monkeypatch.setattr(versions, "note", lambda histories: None)
    else:
        monkeypatch.setattr(versions, "changed_since", lambda device, x, number: False)
    with pytest.raises(AssertionError, match="PyTorch has"):
        for seed in range(20):
            attempt(random.Random(seed), tmp_path)
