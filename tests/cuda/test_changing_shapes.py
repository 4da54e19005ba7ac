"""A loop whose batches have other sizes each time keeps little of them, on the device and on the host."""

from __future__ import annotations

import gc

import pytest

from alpha.cuda.conv import planner
from alpha.cuda.runtime import memory
from tests.cuda.process import COUNTS_LIVE
from tests.test_caches import network, objects, step

pytestmark = pytest.mark.cuda


@COUNTS_LIVE
def test_sizes_that_were_seen_leave_nothing_on_host_and_device() -> None:
    net, optimizer = network("cuda")
    counted = []
    for _ in range(3):
        for n in range(1, 9):
            step(net, optimizer, n, "cuda")
        counted.append((objects(), memory.pool.live))
    assert counted[2][0] - counted[1][0] < 20 and counted[2][1] == counted[1][1]


@COUNTS_LIVE
def test_plans_that_make_room_give_their_tables_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "_plans", {})
    monkeypatch.setattr(planner, "PLANS", 4)
    net, optimizer = network("cuda")
    for n in range(1, 9):
        step(net, optimizer, n, "cuda")
    held = len(planner._plans)
    planner._plans.clear()
    gc.collect()
    before = objects()
    for n in range(1, 9):   # the plans are made anew, and are the same
        step(net, optimizer, n, "cuda")
    assert held == len(planner._plans) == 4 and objects() - before < 400
