"""The benchmark of the convolution modes runs, checks its results, and reports what it was asked for."""

from __future__ import annotations

import json
import sys

import pytest

pytestmark = [pytest.mark.cuda, pytest.mark.torch]
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
    args = Namespace(modes=["fp32"], units=["wgmma"], peers=[], all=False, split=False, counts=False, rounds=1,
                     rest=0.0)
    with pytest.raises(ValueError, match=r"conv_wgmma .* relative error 1.0, 2e-06 is allowed"):
        cuda_conv_modes.measure(ConvShape("tiny", 2, 1, 8, 8, 1, 0, 1), "fprop", args)


def test_tiles_of_one_instruction_are_timed_alone():
    from benchmarks.cuda_conv_modes import candidates
    for pass_name in ("fprop", "dgrad", "wgrad"):
        names = {unit: {c.name for c in candidates(pass_name, "bf16", [unit])} for unit in ("wgmma", "mma")}
        assert all(f"_{unit} " in name for unit, found in names.items() for name in found)
        assert names["wgmma"] | names["mma"] == {c.name for c in candidates(pass_name, "bf16")}
