"""The benchmark of the convolution modes runs, checks its results, and reports what it was asked for."""

from __future__ import annotations

import json
import sys

import pytest

pytestmark = [pytest.mark.cuda, pytest.mark.torch, pytest.mark.long]
pytest.importorskip("torch")


def test_every_mode_and_peer_has_a_row(device, monkeypatch, tmp_path, capsys):
    from benchmarks import cuda_conv_modes
    from benchmarks.shapes import ConvShape
    monkeypatch.setattr(cuda_conv_modes, "SHAPES", (ConvShape("tiny", 3, 2, 64, 64, 3, 1, 1),))
    output = tmp_path / "rows.jsonl"
    monkeypatch.setattr(sys, "argv", ["cuda_conv_modes", "--shapes", "tiny", "--passes", "fprop", "dgrad", "--modes",
                                      "fp32", "bf16", "--rounds", "1", "--rest", "0", "--split", "--counts",
                                      "--output", str(output)])
    cuda_conv_modes.main()
    rows = [json.loads(text) for text in output.read_text().splitlines()]
    for pass_name in ("fprop", "dgrad"):
        sides = [(row["mode"], row["side"].split()[0]) for row in rows if row["pass"] == pass_name]
        assert {("fp32", "conv_wgmma"), ("bf16", "conv_wgmma"), ("fp32", "cuDNN"), ("tf32", "cuDNN"), ("bf16", "cuDNN")
                } == set(sides)
    assert any(row["side"].endswith("+split") for row in rows)
    assert {row["pass"] for row in rows if row["side"].endswith("+counts")} == {"fprop"}
    assert max(row["error"] for row in rows if row["mode"] == "fp32") < 2e-6
    assert "useful" in capsys.readouterr().out


def test_a_wrong_result_is_not_timed(device, monkeypatch):
    from argparse import Namespace

    from benchmarks import cuda_conv_modes
    from benchmarks.shapes import ConvShape
    monkeypatch.setattr(cuda_conv_modes, "error_of", lambda *args: 1.0)
    args = Namespace(modes=["fp32"], units=["wgmma"], peers=[], tiles=1, split=False, counts=False, sustained=0.0,
                     rounds=1, rest=0.0)
    with pytest.raises(ValueError, match=r"conv_wgmma .* relative error 1.0, 2e-06 is allowed"):
        cuda_conv_modes.measure(ConvShape("tiny", 2, 1, 8, 8, 1, 0, 1), "fprop", args)


def test_a_planned_tile_that_is_slower_than_another_is_named():
    from benchmarks.cuda_conv_modes import behind

    def row(case: str, side: str, us: float) -> dict[str, object]:
        return {"shape": case, "pass": "fprop", "mode": "bf16", "side": side, "us": us}
    rows = [row("v1", "planned", 10.4), row("v1", "planned +split", 20.0), row("v1", "other", 10.0),
            row("v2", "planned", 10.6), row("v2", "other", 10.0), row("v2", "cuDNN NHWC", 1.0),
            row("v3", "planned", 9.0)]
    assert behind(rows) == ["v2 fprop bf16: planned 10.6 us is planned, other takes 10.0",
                            "the planned tile is within 5% of the best of those measured in 1 of 2 cases"]
    assert behind(rows[-1:]) == []


def test_tiles_of_one_instruction_are_timed_alone():
    from benchmarks.cuda_conv_modes import candidates
    for pass_name in ("fprop", "dgrad", "wgrad"):
        names = {unit: {c.name for c in candidates(pass_name, "bf16", [unit])} for unit in ("wgmma", "mma")}
        assert all(f"_{unit} " in name for unit, found in names.items() for name in found)
        assert names["wgmma"] | names["mma"] == {c.name for c in candidates(pass_name, "bf16")}


def test_a_layer_without_a_tile_has_the_planned_kernel(device):
    from argparse import Namespace

    from benchmarks import cuda_conv_modes
    from benchmarks.shapes import ConvShape
    args = Namespace(modes=["fp32", "bf16"], units=["wgmma"], peers=[], tiles=1, split=False, counts=False,
                     sustained=0.0, rounds=1, rest=0.0)
    rows = cuda_conv_modes.measure(ConvShape("tiny", 2, 4, 3, 8, 3, 1, 1), "fprop", args)
    assert [(row["mode"], row["side"]) for row in rows] == [("fp32", "few_fprop float32"),
                                                            ("bf16", "few_fprop bfloat16")]
    assert rows[0]["error"] < 1e-6 < rows[1]["error"] < 5e-3


def test_constants_get_other_values(monkeypatch):
    from alpha.cuda.conv import wgmma
    from alpha.cuda.conv.costs import TABLES, device
    from benchmarks.cuda_conv_modes import set_constant
    monkeypatch.setitem(TABLES, device().costs, device().table)
    monkeypatch.setattr(wgmma, "STREAMED_BYTES", wgmma.STREAMED_BYTES)
    set_constant("costs.wgmma.box_us=0.5")
    set_constant("alpha.cuda.conv.wgmma.STREAMED_BYTES=1.0")
    assert device().table.wgmma.box_us == 0.5 and wgmma.STREAMED_BYTES == 1.0
    for wrong in ("costs.wgmma.no_such=1", "no.such.module=1", "costs.wgmma.box_us=much", "box_us"):
        with pytest.raises(ValueError, match=r"--set .*\nhelp: write OWNER.NAME=VALUE"):
            set_constant(wrong)
    assert device().table.wgmma.box_us == 0.5


def test_modes_are_summed_up_beside_their_peers():
    from benchmarks.cuda_conv_modes import summary
    base = {"pass": "fprop", "sustained_us": float("nan")}
    measured = (("v1", "conv_wgmma a", "fp32", 10.0), ("v1", "conv_wgmma b", "fp32", 8.0),
                ("v1", "conv_wgmma b +split", "fp32", 1.0), ("v1", "cuDNN NCHW", "fp32", 64.0),
                ("v1", "cuDNN NHWC", "fp32", 72.0), ("v1", "cuDNN NHWC", "tf32", 16.0),
                ("v2", "conv_wgmma a", "fp32", 10.0), ("v2", "cuDNN NCHW", "fp32", 20.0),
                ("v2", "cuDNN NHWC", "tf32", 5.0))
    rows = [{**base, "shape": shape, "side": side, "mode": mode, "us": us} for shape, side, mode, us in measured]
    assert summary(rows) == [
        "burst: fp32 beside cuDNN's fp32: geometric mean 4.00, least 2.00 (v2 fprop), 2 cases",
        "burst: fp32 beside cuDNN's tf32: geometric mean 1.00, least 0.50 (v2 fprop), 2 cases"]
    sustained = summary([{**row, "sustained_us": row["us"]} for row in rows])
    assert sustained[2] == "sustained" + sustained[0].removeprefix("burst")
