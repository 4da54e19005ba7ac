"""Convolutions beside PyTorch, operator by operator, on the CPU: which ones, values, figures, the program."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from alpha.core.op import registry
from benchmarks import conv_ops, cpu_timing, results, rounds
from benchmarks.checks import UnfairError
from benchmarks.conv_sides import reference
from benchmarks.rounds import Side
from benchmarks.shapes import PAPER, PASSES, ConvShape, moved_bytes, network_shapes, paper, table2_flops

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.same_without_kernels("kernels are called by programs that it starts")]

TINY = ConvShape("tiny", 3, 6, 8, 12, 3, 1, 2)
CEILINGS = {"matmul_tflops": 1.0, "copy_gb_per_s": 1e6}
EFFORT = {"rounds": 1, "window": 0.01, "executions": 3}


# ---- which ones ------------------------------------------------------------------------------------------------------


def test_the_papers_cases_shrink_and_grow() -> None:
    for f in (3, 5):
        cases = paper(f, "cuda")
        assert [shape.hw for shape in cases] == [128, 64, 32, 16, 8, 4, 2, 1]
        assert all((shape.f, shape.padding, shape.stride) == (f, f // 2, 2) for shape in cases)
        for before, after in pairwise(cases):
            assert after.n > before.n and after.ic >= before.ic and after.oc >= before.oc
        assert len({shape.desc.nominal_flops for shape in cases[:7]}) == 1
    assert [shape.n * 32 for shape in paper(3, "cpu")] == [n for _, n, _, _ in PAPER]


def test_the_formulas_of_table_2() -> None:
    """By hand: 3 images, 6x6 maps, 8 to 12 channels, 3x3 filters, stride 2: 3x3 outputs, 5x5 with inserted zeros."""
    flops = {p: table2_flops(TINY.desc, p) for p in PASSES}
    assert flops == {"fprop": 2 * 12 * 3 * 3 * 3 * 9 * 8, "dgrad": 2 * 8 * 3 * 6 * 6 * 9 * 12,
                     "wgrad": 2 * 12 * 9 * 8 * 5 * 5 * 3}
    assert flops["fprop"] == TINY.desc.nominal_flops > TINY.desc.useful_flops


def test_the_convolutions_of_the_networks() -> None:
    found = network_shapes(["vgg16", "resnet18"], 7)
    assert sum(count["vgg16"] for count in found.values() if "vgg16" in count) == 13
    assert sum(count["resnet18"] for count in found.values() if "resnet18" in count) == 20
    shortcut = ConvShape("32x32 64-128 1x1/2", 7, 32, 64, 128, 1, 0, 2)
    assert found[shortcut] == {"resnet18": 1}
    assert found[ConvShape("32x32 3-64 3x3", 7, 32, 3, 64, 3, 1, 1)] == {"vgg16": 1, "resnet18": 1}
    jobs = conv_ops.jobs(["networks", "paper5"], PASSES, "cpu", 7, ["lenet5"])
    assert [(name, passes) for name, _, passes, _ in jobs][:3] == [
        ("networks", ["fprop", "wgrad"]), ("networks", list(PASSES)), ("paper5", list(PASSES))]


# ---- values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pass_name", PASSES)
@pytest.mark.parametrize("shape", [ConvShape("a", 3, 6, 4, 5, 3, 1, 1), ConvShape("b", 3, 7, 4, 5, 5, 2, 2),
                                   ConvShape("c", 3, 6, 4, 5, 1, 0, 2)], ids=lambda s: s.name)
def test_the_reference_is_a_convolution(shape: ConvShape, pass_name: str) -> None:
    torch.manual_seed(0)
    x, w, g = (torch.randn(s).double() for s in (shape.desc.x_shape, shape.desc.w_shape, shape.desc.y_shape))
    turned = [t.permute(0, 3, 1, 2).requires_grad_() for t in (x, w)]
    y = torch.nn.functional.conv2d(*turned, stride=shape.stride, padding=shape.padding)
    y.backward(g.permute(0, 3, 1, 2))
    expected = {"fprop": y, "dgrad": turned[0].grad, "wgrad": turned[1].grad}[pass_name].permute(0, 2, 3, 1)
    torch.testing.assert_close(reference(shape, pass_name, x, w, g), expected.detach())
    if pass_name == "wgrad":
        part = reference(shape, pass_name, x, w[:2], g[..., :2])
        torch.testing.assert_close(part, expected[:2].detach())


@pytest.mark.parametrize("set_name", ["networks", "paper3"])
@pytest.mark.parametrize("pass_name", PASSES)
def test_a_convolution_is_compared_and_timed(pass_name: str, set_name: str) -> None:
    row = conv_ops.measure(set_name, conv_ops.Operands(TINY, cpu_timing, sets=2), pass_name, "fp32", CEILINGS, EFFORT)
    assert row["error"].keys() == {"alpha", "torch_nchw", "torch_nhwc", "alpha against torch_nchw"}
    assert max(row["error"].values()) < 1e-5 and row["bar"] is None
    for side, ms in row["ms"].items():
        assert row["tflops"][side] == pytest.approx(TINY.desc.nominal_flops / ms / 1e9)
        assert row["useful_tflops"][side] == pytest.approx(TINY.desc.useful_flops / ms / 1e9)
        assert row["table2_tflops"][side] == pytest.approx(table2_flops(TINY.desc, pass_name) / ms / 1e9)
    assert row["roofline_tflops"] == 1.0 and row["of_roofline"] == pytest.approx(row["useful_tflops"]["alpha"])
    assert row["ratio"] == pytest.approx(row["tflops"]["alpha"] / max(row["tflops"][k] for k in ("torch_nchw",
                                                                                                  "torch_nhwc")))
    assert f"| {set_name} | tiny | {pass_name} | fp32 |" in conv_ops.line(json.loads(json.dumps(row)))


def test_a_convolution_that_moves_more_than_it_multiplies_has_another_ceiling() -> None:
    operands = conv_ops.Operands(TINY, cpu_timing, sets=2)
    row = conv_ops.measure("networks", operands, "fprop", "fp32", {**CEILINGS, "copy_gb_per_s": 1e-3}, EFFORT)
    assert row["roofline_tflops"] == pytest.approx(TINY.desc.useful_flops / moved_bytes(TINY.desc, "fprop", 4) * 1e-6)
    assert row["of_roofline"] == pytest.approx(row["useful_tflops"]["alpha"] / row["roofline_tflops"])


def test_what_strides_leap_over_need_not_be_read() -> None:
    desc = ConvShape("c", 3, 6, 4, 5, 1, 0, 2).desc  # x 3x6x6x4, of which 3x3 positions are met; y 3x3x3x5; w 5x4
    assert moved_bytes(desc, "fprop", 4) == moved_bytes(desc, "wgrad", 4) == 4 * (3 * 9 * 4 + 3 * 9 * 5 + 20)
    assert moved_bytes(desc, "dgrad", 2) == 2 * (3 * 36 * 4 + 3 * 9 * 5 + 20)
    assert moved_bytes(ConvShape("a", 3, 6, 4, 5, 3, 1, 2).desc, "fprop", 4) == ConvShape("a", 3, 6, 4, 5, 3, 1, 2
                                                                                          ).desc.nbytes()


def test_a_wrong_convolution_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = registry["conv2d"].impls["cpu"]
    monkeypatch.setitem(registry["conv2d"].impls, "cpu", lambda x, w, **geometry: right(x, w, **geometry) * np.float32(
        1.001))
    with pytest.raises(UnfairError, match=r"conv_ops: tiny fprop: a result is wrong, relative errors .*alpha against "
                                          r"torch_nchw.* 0.0001 is allowed in fp32\nhelp: look for the kernel"):
        conv_ops.measure("networks", conv_ops.Operands(TINY, cpu_timing, sets=1), "fprop", "fp32", CEILINGS, EFFORT)


# ---- time ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("executions", "blocks"), [(3, [1, 1, 1]), (25, [3] * 8 + [1]), (1000, [100] * 10)])
def test_every_execution_is_waited_for(executions: int, blocks: list[int]) -> None:
    """Two warm-up calls, then blocks in turn, with a synchronisation after every call."""
    said: list[str] = []
    sides = {name: Side(lambda k, name=name: said.append(name)) for name in "ab"}
    times = rounds.one_by_one(sides, executions, lambda: said.append("wait"))
    assert len(times["a"]) == len(times["b"]) == len(blocks)
    expected = ["a", "a", "wait", "b", "b", "wait"]
    for count in blocks:
        expected += ["a", "wait"] * count + ["b", "wait"] * count
    assert said == expected


# ---- the program -----------------------------------------------------------------------------------------------------


def test_the_program_measures_reports_and_resumes(tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(conv_ops.CPU, "matmul", 32)
    flags = ["--device", "cpu", "--sets", "paper3", "networks", "--models", "lenet5", "--batch", "1", "--executions",
             "1", "--rounds", "1", "--window", "0.01", "--output", str(tmp_path), "--shapes", "14x14 6-16 5x5",
             "1x1 512-512 3x3/2"]
    assert conv_ops.main(flags) == 0
    rows = results.read(tmp_path / "conv_ops.jsonl")
    assert [(row["set"], row["pass"]) for row in rows] == [(s, p) for s in ("paper3", "networks") for p in PASSES]
    assert rows[-1]["networks"] == {"lenet5": 1}
    assert all({"date", "cpu", "command", "torch", "matmul_tflops", "executions"} <= row.keys() for row in rows)
    assert (tmp_path / "conv_speed.png").exists()
    printed = capsys.readouterr().out
    assert "fprop: faster than PyTorch's better layout in" in printed and printed.splitlines()[-1] == "0 failed"
    assert conv_ops.main([*flags, "--resume"]) == 0
    assert len(results.read(tmp_path / "conv_ops.jsonl")) == len(rows)


def test_a_failure_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(conv_ops.CPU, "matmul", 32)
    monkeypatch.setitem(conv_ops.BOUNDS, "fp32", 0.0)
    monkeypatch.setattr(conv_ops.plots, "draw", lambda folder: [])
    assert conv_ops.main(["--device", "cpu", "--sets", "networks", "--models", "lenet5", "--batch", "1", "--passes",
                          "wgrad", "--output", str(tmp_path)]) == 1
    rows = results.read(tmp_path / "conv_ops.jsonl")
    assert len(rows) == 2 and "a result is wrong" in rows[0]["failed"] and "FAILED" in conv_ops.line(rows[0])


def test_a_precision_that_the_cpu_does_not_have_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert conv_ops.main(["--device", "cpu", "--precision", "tf32"]) == 1
    assert "conv_ops: precision tf32 on the CPU, which computes fp32 alone\nhelp: use" in capsys.readouterr().err


def test_bars_are_counted() -> None:
    row = {"set": "layers", "shape": "v1", "pass": "fprop", "precision": "fp32", "settings": "ALPHA_TENSOR_CORES=0",
           "n": 512, "ratio": 1.1, "bar": 0.9, "met": True, "of_roofline": 0.6, "roofline_bar": 0.7, "kernel": "slab",
           **{key: {"alpha": 2.0, "torch_nchw": 1.0, "torch_nhwc": 1.5}
              for key in ("ms", "tflops", "useful_tflops", "table2_tflops", "error")}}
    lines = conv_ops.report([row, {**row, "shape": "v2", "met": False, "ratio": 0.8}])
    assert lines[-2] == "1 of 2 bars met; 0 of 2 useful rates at 70 % of the roofline"
    assert "| - |" in conv_ops.line({key: value for key, value in row.items() if "roofline" not in key})
    assert ">= 0.9 ok" in lines[2] and ">= 0.9 MISSED" in lines[3] and ">= 0.7 MISSED" in lines[2]
