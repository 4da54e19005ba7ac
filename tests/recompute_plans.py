"""Plans of recomputation drawn at random, and what a plan is, for the tests of both devices."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

import alpha
from alpha.recompute import plan


def drawn(monkeypatch: pytest.MonkeyPatch, seed: int, levels: Sequence[str] = ("offer", "cheap")) -> None:
    """Has auto do with each call what a random generator says, and let go of what is held at random times."""
    rng = random.Random(seed)

    def take(tally: plan.Tally, level: str) -> None:
        ready = [found() for *_, found in tally.offers]
        tally.offers.clear()
        for recipe in ready:
            if recipe is not None and recipe.offered and recipe.data is not None and rng.random() < 0.5:
                for r in recipe.needed():
                    r.offered, r.data = 0, None

    monkeypatch.setattr(plan.Tally, "level", lambda *_: rng.choice(levels))
    monkeypatch.setattr(plan.Tally, "take", take)


def plan_of(loss: alpha.Tensor) -> list[tuple[str, str, str]]:
    """Returns of each call behind a tensor its op, its shapes, and what is done with its results."""
    found, waiting, seen = [], [loss._node], set()
    while waiting:
        edge = waiting.pop()
        if isinstance(edge, list):
            waiting += edge
        elif isinstance(edge, tuple) and id(edge[0]) not in seen:
            node = edge[0]
            seen.add(id(node))
            recipe = None if node.plan is None else node.plan.recipe
            fate = "kept" if recipe is None else "offered" if recipe.offered else "made again"
            found.append((node.order, (node.op.name, str(node.arg_meta), fate)))
            waiting += node.edges
    return [told for _, told in sorted(found)]
