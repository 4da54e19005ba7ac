"""The free choice among algorithms on a GPU beside what they took there: benchmarks/results/h200/algorithms.jsonl."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from alpha.cuda import families  # noqa: F401  registers the candidates
from alpha.cuda.conv import planner
from alpha.cuda.runtime.context import context
from alpha.ops.conv_desc import ConvDesc
from benchmarks.environment import RESULTS
from benchmarks.results import Row, latest, read

pytestmark = pytest.mark.same_without_kernels("it calls no compiled kernel")
KEY = "cell", "n", "pass", "units"
ROWS = [row for row in latest(read(RESULTS / "h200" / "algorithms.jsonl"), KEY) if "ms" in row]


@pytest.fixture(autouse=True)
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in dict(arch="sm_90a", name="NVIDIA H200", sm_count=132, max_shared=232_448).items():
        monkeypatch.setattr(context, name, value)


def options(row: Row) -> list[Any]:
    c, f, hw = row["channels"], row["f"], row["hw"]
    desc = ConvDesc.fprop((row["n"], hw, hw, c), (c, f, f, c // row["groups"]), stride=(1, 1), padding=(f // 2,) * 2,
                          dilation=(1, 1), groups=row["groups"])
    return planner.weighed(row["pass"], desc, "fma" if row["units"] == "fma" else "fp32")


def test_the_choice_is_within_a_tenth_of_the_best_in_nine_cases_of_ten():
    regrets, against_direct = [], []
    for row in ROWS:
        ms = {name: row["ms"][name] for name in row["algorithms"]}
        taken = options(row)[0].candidate.algorithm
        regrets.append(ms[taken] / min(ms.values()) - 1)
        against_direct.append(ms[taken] / ms["direct"])
    assert len(regrets) >= 15
    assert np.mean([regret <= 0.1 for regret in regrets]) >= 0.9, sorted(regrets)[-5:]
    assert max(against_direct) <= 1.05


def test_estimates_are_within_a_factor_as_a_rule():
    taken = [(options(row)[0], row["ms"]) for row in ROWS]
    assert np.median([abs(np.log2(first.time_us / 1e3 / ms[first.candidate.algorithm])) for first, ms in taken]) <= 0.5
