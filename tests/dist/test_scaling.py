"""benchmarks.scaling: the model of a data-parallel step, and the measurement of it on ranks of the CPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from alpha.errors import ConfigError
from benchmarks import scaling
from benchmarks.scaling_model import (
    LINKS,
    NETWORKS,
    Fabric,
    Link,
    Step,
    all_reduce_s,
    cut,
    efficiency,
    ring_s,
    step_s,
    tree_s,
)
from tests.dist import launch

pytestmark = pytest.mark.same_without_kernels("ranks are what is tested")

FAST = Link("fast", 100.0, 0.0, "a test")
SLOW = Link("slow", 10.0, 1.0, "a test")


def test_a_ring_and_a_tree_by_hand() -> None:
    assert ring_s(4, 200.0, FAST) == pytest.approx(2 * 3 / 4 * 200 / 100)
    assert ring_s(4, 0.0, SLOW) == pytest.approx(6.0)
    assert tree_s(8, 50.0, SLOW) == pytest.approx(2 * 3 * 1.0 + 2 * 50 / 10)
    assert tree_s(1, 50.0, SLOW) == 0.0
    # small sums take the tree, large ones the ring
    assert all_reduce_s(1.0, Fabric(SLOW, 8)) == pytest.approx(tree_s(8, 1.0, SLOW))
    assert all_reduce_s(1e6, Fabric(SLOW, 8)) == pytest.approx(ring_s(8, 1e6, SLOW))


def test_machines_add_their_network() -> None:
    both = all_reduce_s(1e3, Fabric(FAST, 4, 2, SLOW))
    assert both == pytest.approx(all_reduce_s(1e3, Fabric(FAST, 4)) + all_reduce_s(1e3, Fabric(SLOW, 2)))
    assert all_reduce_s(1e3, Fabric(FAST, 1)) == 0.0


def test_what_is_ready_early_is_hidden_and_the_rest_is_not() -> None:
    # two buckets of 2 s each on two ranks: the first beside backward, the second behind it
    step = Step(backward_s=10.0, step_s=11.0, buckets=[(2.0, 200), (10.0, 200)], copy_rate=1e12)
    seconds, exposed = step_s(step, Fabric(FAST, 2, slowed=0.0))
    assert exposed == pytest.approx(2.0) and seconds == pytest.approx(13.0)
    assert step_s(step, Fabric(FAST, 2, slowed=0.5))[0] == pytest.approx(13.0 + 0.5 * 2.0)   # the hidden 2 s cost half
    assert step_s(step, Fabric(FAST, 2, slowed=0.0, overlaps=False))[1] == pytest.approx(4.0)
    assert step_s(step, Fabric(FAST, 1)) == (11.0, 0.0) and efficiency(step, Fabric(FAST, 1)) == 1.0
    slow_copies = step._replace(copy_rate=1000.0)
    assert step_s(slow_copies, Fabric(FAST, 2, slowed=0.0))[0] == pytest.approx(13.0 + 5 * 400 / 1000)


def test_more_ranks_and_slower_links_are_no_faster() -> None:
    step = Step(0.03, 0.04, [(0.01, 25 << 20), (0.03, 20 << 20)], 2e12)
    for link in LINKS.values():
        found = [efficiency(step, Fabric(link, n)) for n in (2, 4, 8)]
        assert found == sorted(found, reverse=True) and all(0 < e < 1 for e in found)
    assert efficiency(step, Fabric(LINKS["nvlink"], 8)) > efficiency(step, Fabric(LINKS["pcie4"], 8))
    far = [efficiency(step, Fabric(LINKS["nvlink"], 8, 8, NETWORKS[name])) for name in ("200", "400")]
    assert far[0] < far[1] < efficiency(step, Fabric(LINKS["nvlink"], 8))


def test_buckets_are_cut_in_the_order_of_arrival() -> None:
    assert cut([(1.0, 4), (2.0, 4), (3.0, 4), (4.0, 20), (5.0, 1)], 8) == [(2.0, 8), (3.0, 4), (4.0, 20), (5.0, 1)]


def test_a_link_is_fitted_to_sums() -> None:
    link = Link("true", 1e6, 1e-3, "a test")
    found = scaling.fitted(4, [(0, ring_s(4, 0, link)), (1 << 20, ring_s(4, 1 << 20, link))])
    assert found.bandwidth == pytest.approx(1e6) and found.latency_s == pytest.approx(1e-3)


ALONE = {"side": "alpha", "network": "lenet5", "precision": "fp32", "batch": 8, "device": "cpu", "weak": True,
         "bucket_mib": 25.0, "wire": None, "sync_norm": True, "ranks": 1, "total": 8, "images": 8, "step_s": 0.02,
         "silent_s": 0.02, "whole_s": 0.01, "backward_s": 0.008, "copy_rate": 1e9, "threads_used": 2,
         "arrivals": [[0.004, 100_000], [0.008, 100_000]]}


def test_the_profiled_step_stands_for_the_median_one() -> None:
    step = scaling.step_of(ALONE)
    assert step == Step(0.016, 0.02, [(0.016, 200_000)], 1e9)
    assert scaling.step_of(ALONE, wire="float16").buckets == [(0.016, 100_000)]
    assert scaling.step_of(ALONE, bucket_mib=0.1).buckets == [(0.008, 100_000), (0.016, 100_000)]


def test_ranks_that_share_cores_take_turns() -> None:
    case = scaling.Case("lenet5", "fp32", 8, "cpu")
    sums = [(1 << 10, 0.0), (1 << 20, 0.0)]
    two = scaling.predicted(case, 2, {**ALONE, "threads_used": 1}, sums, cores=2)
    four = scaling.predicted(case, 4, {**ALONE, "threads_used": 1}, sums, cores=2)
    packing = 5 * 200_000 / 1e9
    assert two == pytest.approx(0.02 + packing, rel=1e-3) and four == pytest.approx(0.04 + packing, rel=1e-3)


def test_tables_show_predicted_beside_measured() -> None:
    two = {**ALONE, "ranks": 2, "total": 16, "step_s": 0.025, "silent_s": 0.02, "predicted_s": 0.024}
    theirs = {**two, "side": "torch", "step_s": 0.05}
    lines = scaling.measured_table([ALONE, two, theirs])
    assert lines[-1] == ("| lenet5 fp32 | 2 | 16 | 640 | 160 % of one rank's rate | 24.0 | 25.0 | 5.0 | 320 |")
    shown = scaling.prediction_table([ALONE, two, theirs])
    assert shown[0].endswith("| lenet5 fp32, 8 images a rank |") and len(shown) == 2 + len(scaling.FABRICS)


def test_a_network_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="nosuchnet on 1 ranks failed: (.|\n)*help: run it by itself: "):
        scaling.run(scaling.Case("nosuchnet", "fp32", 2, "cpu"), 1, 0.1)
    monkeypatch.setattr(scaling.shutil, "which", lambda name: None)
    monkeypatch.setattr(scaling.sys, "executable", "/nowhere/python")
    with pytest.raises(ConfigError, match="there is no mpirun"):
        scaling.mpirun()


@pytest.mark.large
@pytest.mark.skipif(bool(launch.MISSING), reason=launch.WHY)
def test_ranks_of_the_cpu_are_measured_beside_the_prediction(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--measure", "--device", "cpu", "--networks", "lenet5", "--batch", "4", "--ranks", "1", "2", "--seconds",
             "0.1", "--no-peer", "--output", str(tmp_path)]
    assert scaling.main(flags) == 0
    alone, two = map(json.loads, (tmp_path / "scaling.jsonl").read_text().splitlines())
    assert (alone["ranks"], two["ranks"], two["total"]) == (1, 2, 8) and two["engine"] == "mpi"
    assert sum(nbytes for _, nbytes in alone["arrivals"]) == 62_006 * 4
    assert two["predicted_s"] > 0 and two["silent_s"] > 0 and abs(two["loss"] - alone["loss"]) < 1
    said = capsys.readouterr().out
    assert "| 8 x 8 nvlink, 400 Gbit/s |" in said and "| lenet5 fp32 | 2 | 8 |" in said
    assert scaling.main([*flags, "--resume"]) == 0      # nothing is measured again
    assert len((tmp_path / "scaling.jsonl").read_text().splitlines()) == 2
