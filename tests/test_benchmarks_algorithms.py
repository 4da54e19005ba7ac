"""The benchmark of algorithms: its cells, its rows, its summary and its pictures; and what CUDA says of a name."""

from __future__ import annotations

import numpy as np
import pytest

import models
from alpha.errors import ConfigError
from alpha.plan import AUTO, Request
from benchmarks import algorithm_losses, algorithm_plots, algorithms, results
from benchmarks.shapes import squares
from tests.op_checks import refused

pytestmark = pytest.mark.same_without_kernels("kernels are called by programs that it starts")
pytest.importorskip("torch")


def test_cells_have_about_the_same_work():
    found = list(squares((3, 31), (8, 56), (64,), False, algorithms.CELL_FLOPS, algorithms.MOST_IMAGES))
    assert [(s.n, s.hw, s.f) for s in found] == [(64, 8, 3), (17, 56, 3), (7, 8, 31), (1, 56, 31)]
    assert all(s.padding == s.f // 2 and s.stride == 1 for s in found)
    one, = squares((31,), (56,), (64,), True, 1e9, 8)
    assert (one.n, one.desc.groups, one.desc.w_shape) == (2, 64, (64, 31, 31, 1))


def test_a_cell_is_computed_compared_and_timed(tmp_path, capsys):
    path = tmp_path / "algorithms.jsonl"
    algorithms.main(["--kernels", "3", "--maps", "8", "--channels", "16", "--passes", "fprop", "wgrad", "--rounds", "1",
                     "--output", str(path)])
    rows = results.read(path)
    assert [row["pass"] for row in rows] == ["fprop", "wgrad"]
    for row in rows:
        assert set(row["algorithms"]) == {"direct", "im2col", "winograd", "fft", "sparse"}
        assert max(row["errors"].values()) <= 2e-6 and row["best"] in row["algorithms"]
        assert all(row["ms"][name] > 0 and a["expected_ms"] > 0 for name, a in row["algorithms"].items())
        assert row["algorithms"]["winograd"]["depth"] > 0 and row["algorithms"]["fft"]["workspace"] > 0
        assert set(row["spread"]) == set(row["ms"]) and min(row["spread"].values()) >= 0
    assert {"torch", "torch.fft"} <= set(rows[0]["ms"])
    printed = capsys.readouterr().out
    assert "2 cells: within 10 % of the best in" in printed and "model / clock" in printed
    pytest.importorskip("matplotlib")
    algorithms.main(["--plot", str(path)])
    end = algorithm_plots.SETS.get(rows[0]["machine"], "")
    assert {p.name for p in tmp_path.glob("*.png")} == {f"algorithms_{n}{end}.png" for n in
                                                        ("model", "kernels", "errors")}


def test_a_run_goes_on_where_its_file_ends(tmp_path, capsys):
    path = tmp_path / "algorithms.jsonl"
    command = ["--kernels", "1", "--maps", "4", "--channels", "16", "--rounds", "1", "--algorithms", "direct",
               "--peers", "none", "--resume"]
    algorithms.main([*command, "--passes", "wgrad", "--output", str(path)])
    algorithms.main([*command, "--output", str(path), "--budget-s", "0"])
    assert [row["pass"] for row in results.read(path)] == ["wgrad"]
    algorithms.main([*command, "--output", str(path)])
    assert [row["pass"] for row in results.read(path)] == ["wgrad", "fprop", "dgrad"]


def test_a_machine_of_two_cores_is_twice_as_fast_but_for_its_memory():
    one, two = (algorithms.rates_of("cpu8", threads) for threads in (1, 2))
    assert two.work["direct"] == 2 * one.work["direct"] and two.nbytes["l2"] == 2 * one.nbytes["l2"]
    assert two.nbytes["dram"] == one.nbytes["dram"]


def test_choices_are_judged_by_what_was_timed():
    """Of two rows of a shape the later counts; the model's choice now, not the one that was noted."""
    row = {"machine": "cpu8", "cell": "", "n": 32, "hw": 32, "channels": 64, "f": 3, "pass": "fprop", "threads": 2,
           "chosen": "direct", "algorithms": {"direct": {"way": "direct"}, "winograd": {"way": "winograd[4]"}},
           "ms": {"direct": 8.0, "winograd": 4.0, "torch": 1.0}}
    small = {**row, "channels": 16, "n": 1, "hw": 4, "ms": {"direct": 2.0, "winograd": 1.0},
             "algorithms": {"direct": {"way": "direct"}, "winograd": {"way": "winograd[2]"}}}
    found = algorithms.judged([{**row, "ms": {"direct": 1.0, "winograd": 9.0}}, row, small], 256 << 20)
    assert [(r["chosen"], r["regret"]) for r in found] == [("direct", 1.0), ("winograd", 0.0)]
    assert "2 cells: within 10 % of the best in 50%, at most 1.00 times direct" in algorithms.summary(found)
    other = {**row, "algorithms": small["algorithms"]}
    assert algorithms.judged([other], 256 << 20) == []      # the tile that is chosen was not timed


def test_peers_may_be_left_out(tmp_path):
    path = tmp_path / "algorithms.jsonl"
    algorithms.main(["--kernels", "3", "--maps", "4", "--channels", "16", "--passes", "fprop", "--rounds", "1",
                     "--algorithms", "direct", "--peers", "none", "--output", str(path)])
    assert set(results.read(path)[0]["ms"]) == {"direct"}


def test_what_is_chosen_is_timed_though_it_was_not_named(tmp_path):
    path = tmp_path / "algorithms.jsonl"
    algorithms.main(["--kernels", "3", "--maps", "8", "--channels", "64", "--passes", "fprop", "--rounds", "1",
                     "--algorithms", "im2col", "--peers", "none", "--output", str(path)])
    row, = results.read(path)
    assert set(row["ms"]) == {"im2col", row["chosen"]} and row["regret"] >= 0


def test_without_a_run_only_the_model_speaks(capsys):
    algorithms.main(["--kernels", "3", "--maps", "224", "--channels", "512", "--passes", "dgrad", "--model"])
    printed = capsys.readouterr().out
    assert "nothing was timed" in printed and "winograd" in printed and "W/D" in printed
    algorithms.main(["--layers", "lenet5"])
    assert capsys.readouterr().out.count("W/D") == 6


def test_cuda_refuses_strassen_and_passes_over_a_preference():
    from alpha.cuda.ops.matmul.rows import check_algorithm
    for request in (AUTO, Request("direct", True), Request("strassen")):
        check_algorithm("matmul", request)
    with refused(ConfigError, "matmul: strassen has no CUDA kernels", 'x.to("cpu")'):
        check_algorithm("matmul", Request("strassen", True))


def test_losses_of_auto_stand_beside_those_of_direct(tmp_path, capsys):
    algorithm_losses.main(["--models", "lenet5", "--batch-size", "4", "--steps", "3", "--device", "cpu", "--output",
                           str(tmp_path)])
    row, = results.read(tmp_path / "algorithms_losses.jsonl")
    assert len(row["auto"]) == len(row["direct"]) == len(row["nudged"]) == 3 and row["apart"] <= algorithm_losses.BOUND
    assert "3 losses" in capsys.readouterr().out and (tmp_path / "algorithms_losses.png").exists()


def test_a_nudge_is_a_unit_in_the_last_place_of_every_weight():
    net, same = models.create("lenet5"), models.create("lenet5")
    same.load_state_dict(net.state_dict())
    algorithm_losses.nudge(net, 0)
    for a, b in zip(net.parameters(), same.parameters()):
        a, b = a.numpy(), b.numpy()
        assert np.array_equal(np.abs(a - b)[b != 0] <= 2.0 ** -23 * np.abs(b)[b != 0], (a != b)[b != 0])
