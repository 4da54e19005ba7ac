"""The calibration's fit, on made-up and on committed measurements: it finds the device that they were taken on."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from alpha.cuda.conv.costs import H100, time_us
from alpha.plan import Cost, Stage
from benchmarks import calibrate
from benchmarks.calibrate import FIELDS, Timed, constants_off, fit, off
from benchmarks.environment import RESULTS

pytestmark = pytest.mark.same_without_kernels("it calls no compiled kernel")
TRUE = H100._replace(clock_ghz=1.9, launch_us=2.2, latency_us=0.8, dram=3.7e6, l2=6e6)


def made_up(noise: float) -> list[Timed]:
    """Returns launches of all kinds, as long as TRUE takes for them, give or take some noise."""
    rng = np.random.default_rng(0)
    costs = [Cost((stage,)) for size in (0.1, 1, 10, 100) for stage in (
        Stage(1600 * size, "clocks", launches=1), Stage(size, launches=1, depth=4),
        Stage(size * 1e8, "fma", launches=2), Stage(nbytes=size * 2e6, launches=1),
        Stage(nbytes=size * 2e6, level="l2", launches=1, depth=2),
        Stage(800 * size, "clocks", size * 2e6, launches=1, depth=8))]
    return [Timed(f"kernel {k}", cost, time_us(calibrate.as_clocks(cost, H100), TRUE) * float(factor))
            for k, (cost, factor) in enumerate(zip(costs, np.exp(rng.normal(0, noise, len(costs)))))]


@pytest.mark.parametrize(("noise", "within"), [(0.0, 0.05), (0.05, 0.15)])
def test_the_device_is_found_from_what_launches_took(noise, within):
    rows = made_up(noise)
    found = fit(rows, H100)
    for field in FIELDS:
        assert getattr(found, field) == pytest.approx(getattr(TRUE, field), rel=within), field
    assert (found.arch, found.sm_count, found.fma, found.mma) == (H100.arch, H100.sm_count, H100.fma, H100.mma)


def test_what_no_launch_tells_of_stays():
    rows = [Timed("a", Cost((Stage(nbytes=2e6 * n),)), time_us(Cost((Stage(nbytes=2e6 * n),)), TRUE)) for n in (1, 9)]
    found = fit(rows, H100)
    assert found.dram == pytest.approx(TRUE.dram, rel=0.02) and found._replace(dram=H100.dram) == H100


def test_candidates_whose_constants_are_off_are_named():
    rows = [*made_up(0.0), *(Timed("slow", Cost((Stage(us),)), 1.5 * us * H100.clock_ghz / TRUE.clock_ghz)
                             for us in (10.0, 20.0))]
    assert constants_off(rows, TRUE, H100) == {"slow": pytest.approx(1.5)}


@pytest.mark.parametrize("name", ["conv_modes", "tiles"])
def test_the_h100_is_what_its_committed_results_say(name):
    """In a process of its own: the device of the rows is taken for that of the process."""
    done = subprocess.run([sys.executable, "-m", "benchmarks.calibrate", "--rows",
                           str(RESULTS / "h100" / f"{name}.jsonl")], capture_output=True, text=True, check=True)
    lines = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines()[1:1 + len(FIELDS)]}
    for field in FIELDS:
        taken, found = map(float, lines[field])
        assert taken == pytest.approx(getattr(H100, field)) and found == pytest.approx(taken, rel=0.1), field
    assert done.stdout.splitlines()[-1].startswith("Device(arch='sm_90a', sm_count=132, ")


def test_rows_of_candidates_that_are_gone_are_said_to_be_of_no_use(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"arch": "sm_90a", "device": "NVIDIA H100", "multiprocessors": 132, "shape": "v1",
                                "pass": "fprop", "side": "no such kernel", "us": 1.0}) + "\n")
    done = subprocess.run([sys.executable, "-m", "benchmarks.calibrate", "--rows", str(path)], capture_output=True,
                          text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == ("benchmarks.calibrate: no row is of a candidate that is there\n"
                           "help: measure anew, without --rows\n")


def test_estimates_are_off_by_nothing_on_the_device_itself():
    rows = [row._replace(cost=calibrate.as_clocks(row.cost, H100)) for row in made_up(0.0)]
    assert off(rows, TRUE) == pytest.approx(0.0, abs=1e-12) and off(rows, H100) > 0.1
