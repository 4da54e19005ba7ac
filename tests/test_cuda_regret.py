"""Choices beside committed measurements: how much longer the chosen kernel takes than the best of those measured.

Files in benchmarks/results say what candidates took, each by its name; which of them is chosen is up to the estimates.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from copy import copy
from math import log2
from typing import Any

import pytest

from alpha.cuda import families  # noqa: F401  registers the candidates
from alpha.cuda.conv import planner
from alpha.cuda.conv.costs import time_us
from alpha.cuda.runtime.context import context
from alpha.ops.conv_desc import ConvDesc
from benchmarks.environment import RESULTS
from benchmarks.results import Row, latest, read
from benchmarks.shapes import NARROW, SHAPES
from tests.conv_cases import square

pytestmark = pytest.mark.same_without_kernels("it calls no compiled kernel")
CANDIDATES = {(c.pass_name, c.name): c for p in planner.PASSES for c in planner.candidates(p)}


@pytest.fixture(autouse=True)
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in dict(arch="sm_90a", name="NVIDIA H100 80GB HBM3", sm_count=132, max_shared=232_448).items():
        monkeypatch.setattr(context, name, value)


def named(pass_name: str, name: str) -> Any:
    """Returns the candidate of a name, which may say into how many slices its sums were cut; None if it is gone."""
    if (pass_name, name) in CANDIDATES:
        return CANDIDATES[pass_name, name]
    name, _, split = name.partition(" split ")
    found = copy(CANDIDATES.get((pass_name, name)))
    if found and split:
        found.split = int(split)
    return found if split else None


def estimates(desc: ConvDesc, pass_name: str, names: Iterable[str]) -> dict[str, float]:
    """Returns what candidates take by estimate, of those that are there and serve desc."""
    found = {name: named(pass_name, name) for name in names}
    return {name: time_us(c.cost(desc)) for name, c in found.items() if c and not c.rejection(desc)}


def desc_of(row: Row) -> ConvDesc:
    return square("", *(row[key] for key in ("n", "hw", "ic", "oc", "f", "stride", "padding"))).desc


# ---- what was timed candidate by candidate ---------------------------------------------------------------------------

CHOICES = read(RESULTS / "h100" / "choices.jsonl")
# Rows that have timed several of the candidates that are there: of one alone, or none, nothing can be chosen.
SEVERAL = [row for row in CHOICES if sum(named(row["pass"], name) is not None for name in row.get("us", ())) > 1]
BOUND = {"conv_v2": 1.1, "ks_deconv": 1.1}  # times the best, of all that were timed, gone ones too; others 1.05


def label(row: Row) -> str:
    return f"{row['n']} {row['hw']}x{row['hw']} {row['ic']}-{row['oc']} {row['f']}x{row['f']} {row['pass']}"


@pytest.mark.parametrize("row", SEVERAL, ids=label)
def test_what_is_chosen_is_nearly_the_best_that_was_timed(row):
    by_estimate = estimates(desc_of(row), row["pass"], row["us"])
    chosen = min(by_estimate, key=by_estimate.__getitem__)
    bound = BOUND.get(chosen.split()[0], 1.05)
    assert row["us"][chosen] <= bound * min(row["us"].values()), by_estimate


@pytest.mark.parametrize("row", [row for row in CHOICES if "best" in row], ids=label)
def test_what_is_chosen_was_within_five_percent_of_the_best(row):
    """`best` has all of a pass that were within 5 % of the fastest, or the one that was faster than all others."""
    desc = desc_of(row)
    fitting = [c for c in planner.candidates(row["pass"]) if (c.reads, c.writes) == (row["reads"], row["writes"])
               and "padded" not in c.name and "wgmma" in c.name and not c.rejection(desc)]
    assert min(fitting, key=lambda c: time_us(c.cost(desc))).name in row["best"]


# ---- what cuda_conv_modes timed: the few cheapest by estimate --------------------------------------------------------

KEY = "shape", "pass", "mode", "side"
DESCS = {shape.name: shape.desc for shape in (*SHAPES, *NARROW)}
Case = tuple[str, str, str]


def timed(*files: str) -> dict[Case, dict[str, float]]:
    """Returns the microseconds of candidates that are still there by layer, pass and mode."""
    found: dict[Case, dict[str, float]] = {}
    for row in latest((row for file in files for row in read(RESULTS / file)), KEY):
        if (row["pass"], row["side"]) in CANDIDATES:
            found.setdefault((row["shape"], row["pass"], row["mode"]), {})[row["side"]] = row["us"]
    return found


TIMED = timed("h100/tiles.jsonl", "h100/conv_modes.jsonl")


def regrets() -> dict[Case, float]:
    """Returns how many times as long as the best the chosen one takes, where several were timed."""
    found = {}
    for (shape, pass_name, mode), us in TIMED.items():
        by_estimate = estimates(DESCS[shape], pass_name, us)
        if len(by_estimate) > 1:
            found[shape, pass_name, mode] = us[min(by_estimate, key=by_estimate.__getitem__)] / min(us.values())
    return found


def test_choices_take_little_longer_than_the_best():
    found = regrets()
    assert len(found) > 100
    worst = sorted(found.items(), key=lambda item: -item[1])
    assert worst[0][1] <= 1.14 and worst[len(found) // 20][1] <= 1.1, worst[:10]  # 19 of 20 are within a tenth
    assert statistics.mean(found.values()) <= 1.02


def test_estimates_are_near_what_was_timed():
    off = [abs(log2(us / taken[name])) for (shape, pass_name, _), taken in TIMED.items()
           for name, us in estimates(DESCS[shape], pass_name, taken).items()]
    assert len(off) > 300 and statistics.median(off) <= 0.15


def test_with_the_candidates_there_are_steps_take_at_most_a_hundredth_longer():
    rows = [row for row in read(RESULTS / "h200" / "pruning.jsonl") if "job" in row]
    assert len(rows) > 10 and all(row["pruned"] <= 1.01 for row in rows)


DEPTHWISE = [row for row in latest(read(RESULTS / "h200" / "depthwise.jsonl"), ("dtype", "hw", "c", "f", "stride",
                                                                                "pass"))
             if row["dtype"] == "bfloat16" and row["f"] == 3]   # what the constants are of


@pytest.mark.parametrize("pass_name", planner.PASSES)
def test_depthwise_strips_take_what_they_were_estimated_to(pass_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a factor of 1.6 each, and 1.1 on the whole."""
    monkeypatch.setattr(context, "name", "NVIDIA H200")
    ratios = []
    for row in DEPTHWISE:
        if row["pass"] != pass_name:
            continue
        desc = square("", row["n"], row["hw"], row["c"], row["c"], row["f"], row["stride"], row["f"] // 2,
                      groups=row["c"]).desc
        name = f"depthwise_strip_{pass_name} {row['dtype']}"
        ratios.append(row["us"]["alpha"] / estimates(desc, pass_name, [name])[name])
    assert len(ratios) >= 5 and all(1 / 1.6 < r < 1.6 for r in ratios), ratios
    assert 1 / 1.1 < statistics.geometric_mean(ratios) < 1.1, ratios
