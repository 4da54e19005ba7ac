"""What the memory of a step is made of, the pictures, and the facts beside a figure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import alpha
from alpha import nn
from alpha.cpu import memory, native
from benchmarks import environment, plots
from benchmarks.memory_account import of_alpha
from benchmarks.sides import AlphaSide, image_batches

pytestmark = pytest.mark.same_without_kernels("kernels are called by programs that it starts")
PNG = b"\x89PNG"


def side(channels: int = 16, batch: int = 8) -> AlphaSide:
    """A network whose activations are far larger than what NumPy keeps for itself."""
    net = nn.Sequential(nn.Conv2d(3, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU(), nn.MaxPool2d(2),
                        nn.Flatten(), nn.Linear(channels * 64, 5))
    made = AlphaSide(net, image_batches(batch, (16, 16, 3), 5), "cpu", "fp32")
    made.step()
    return made


def test_the_memory_of_a_step_is_explained() -> None:
    s = side()
    found = of_alpha(s)
    assert found["weights"] == pytest.approx(4 * (s.parameters + 2 * 16), rel=0.02)  # large blocks are rounded up
    assert found["gradients"] == pytest.approx(4 * s.parameters, rel=0.02)
    assert found["optimizer_state"] == found["gradients"]
    map_bytes = 8 * 16 * 16 * 16 * 4
    assert found["activations"] >= map_bytes  # the convolution's output, which batch norm needs again
    parts = found["at_peak"]
    assert found["peak"] == sum(parts.values()) and parts["workspace"] >= 0
    assert found["peak_phase"] == "backward" and parts["workspace"] >= map_bytes  # the gradient of that output
    assert parts["activations"] <= found["activations"] and parts["gradients"] <= found["gradients"]
    assert max(found["live"]) <= found["peak"] and len(found["live"]) >= found["phase_starts"][2] > found[
        "phase_starts"][1] > found["phase_starts"][0] == 0
    json.dumps(found)


@pytest.mark.skipif(native.library() is None, reason="NumPy's own temporaries make another step the peak")
def test_gradients_count_from_when_they_are_made() -> None:
    """The peak is where the gradient of the large weight has just been made: it is there, and so is what fed it."""
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Flatten(), nn.Linear(2048, 64))
    s = AlphaSide(net, image_batches(8, (16, 16, 3), 5), "cpu", "fp32")
    s.step()
    found = of_alpha(s)
    assert found["at_peak"]["gradients"] >= 2048 * 64 * 4 and found["at_peak"]["activations"] >= 8 * 2048 * 4
    assert found["at_peak"]["workspace"] < 2048 * 64 * 4


def test_a_peak_in_the_forward_pass_is_explained_too() -> None:
    """The last map is pooled away before the backward pass begins, whose gradients are small."""
    net = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.Conv2d(16, 64, 1, bias=False),
                        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 5))
    for p in net.parameters():
        p.requires_grad_(p.shape[0] == 5)  # only the last layer learns: nothing large is kept, or made later
    s = AlphaSide(net, image_batches(8, (16, 16, 3), 5), "cpu", "fp32")
    s.step()
    found = of_alpha(s)
    assert found["peak_phase"] == "forward" and found["at_peak"]["gradients"] == 0
    assert found["at_peak"]["workspace"] >= 8 * 256 * (16 + 64) * 4


def test_the_hook_of_the_pool_is_put_back() -> None:
    seen: list[tuple[int, int]] = []
    memory.on_allocate = lambda address, nbytes: seen.append((address, nbytes))
    try:
        of_alpha(side())
        kept = memory.empty((memory.SMALL,), "uint8")
        memory.empty((memory.SMALL - 1,), "uint8")
    finally:
        memory.on_allocate = None
    assert seen[-1] == (kept.__array_interface__["data"][0], memory.SMALL)


def test_more_images_need_more_activations_but_no_more_weights() -> None:
    with alpha.config(recompute="none"):  # auto lets go of what a larger step has the time for
        few, many = of_alpha(side(batch=8)), of_alpha(side(batch=16))
    assert many["weights"] == few["weights"] and many["gradients"] == few["gradients"]
    assert many["activations"] == pytest.approx(2 * few["activations"], rel=0.15)


@pytest.mark.torch
def test_pytorchs_side_is_explained_too() -> None:
    torch = pytest.importorskip("torch")
    from benchmarks.sides import TorchSide
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.BatchNorm2d(16), torch.nn.ReLU(),
                              torch.nn.Flatten(), torch.nn.Linear(16 * 256, 5))
    s = TorchSide(net, image_batches(8, (16, 16, 3), 5), "cpu", "fp32")
    s.step()
    found = s.account()
    assert found["gradients"] == found["optimizer_state"] == 4 * s.parameters
    map_bytes = 8 * 16 * 16 * 16 * 4
    assert 2 * map_bytes <= found["activations"] <= 2 * map_bytes + 4096  # what batch norm and ReLU need again
    assert found["peak"] is None  # nobody counts on the CPU


# ---- pictures --------------------------------------------------------------------------------------------------------


def test_the_shares_of_zeros() -> None:
    assert plots.shares(1) == (pytest.approx(8 / 9), pytest.approx(8 / 9))  # one product of nine meets the only pixel
    assert plots.shares(2) == (pytest.approx(12 / 16), pytest.approx(5 / 9))
    assert plots.shares(128)[0] < 0.04 > plots.shares(128)[1]


def stored(folder: Path) -> Path:
    """A folder with lines as the programs leave them."""
    step = {"kind": "step", "device": "cpu", "model": "vgg16", "batch": 2, "precision": "fp32", "settings": "",
            "configuration": "torch_nchw", "layout": "nchw", "ms": {"alpha": 1.0, "torch": 2.0},
            "peak_mib": {"alpha": 1.0, "torch": None}, "process_mib": {"alpha": 50.0, "torch": 300.0},
            "losses": {"alpha": [2.0, 1.0], "torch": [2.0, 1.1]}}
    account = {"weights": 100, "batches": 10, "optimizer_state": 100, "live": [300, 400, 350, 320],
               "phase_starts": [0, 1, 3]}
    lines = {"compare.jsonl": [step, {**step, "configuration": "torch_nhwc", "layout": "nhwc"},
                               {**step, "configuration": "torch_compile", "failed": "no compiler"},
                               {"kind": "memory", "device": "cpu", "model": "vgg16", "batch": 2, "precision": "fp32",
                                "settings": "", "configuration": "alpha", "account": account}],
             "conv_ops.jsonl": [{"set": name, "pass": p, "shape": f"{f}x{f} {hw}", "f": f, "hw": hw, "stride": 2,
                                 "precision": "fp32", "settings": "",
                                 "table2_tflops": {"alpha": 2.0, "torch_nchw": 1.0, "torch_nhwc": 1.5}}
                                for name, f in (("paper3", 3), ("paper5", 5)) for p in ("fprop", "dgrad", "wgrad")
                                for hw in (8, 4)],
             "accuracy.jsonl": [{"recipe": "digits", "seed": k, "config": {"model": "lenet5", "precision": "fp32"},
                                 "alpha": {"accuracy": 0.98, "train_loss": [2.0, 0.5]},
                                 "torch": {"accuracy": 0.97, "train_loss": [2.0, 0.6]}} for k in range(3)]}
    for name, rows in lines.items():
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_every_picture_is_drawn_from_stored_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    plots.main([str(stored(tmp_path))])
    names = {"zeros", "conv_speed", "speedups", "steps", "memory", "losses", "live_bytes", "accuracy"}
    assert {p.stem for p in tmp_path.glob("*.png")} == names
    assert all(p.read_bytes().startswith(PNG) and p.stat().st_size > 5000 for p in tmp_path.glob("*.png"))
    assert len(capsys.readouterr().out.splitlines()) == len(names)


def test_a_picture_says_where_and_when_it_was_measured() -> None:
    facts = {"cpu": "AMD EPYC, 2 cores", "torch": "2.13.0", "date": "2026-11-21"}
    assert plots.caption(facts) == "AMD EPYC, 2 cores; PyTorch 2.13.0; 2026-11-21"
    assert plots.caption({**facts, "name": "NVIDIA H100"}).startswith("NVIDIA H100; ")


def test_pictures_show_what_the_lines_say(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from benchmarks import compare_tables, results
    stored(tmp_path)
    groups = compare_tables.networks(results.read(tmp_path / "compare.jsonl"))
    axes = plots.steps(groups).axes[0]
    assert [bar.get_height() for bar in axes.patches] == [1.0, 2.0, 2.0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["alpha", "nchw", "nhwc"]
    assert [bar.get_height() for bar in plots.memory(groups).axes[0].patches] == [50.0, 300.0, 300.0]
    assert [list(line.get_ydata()) for line in plots.losses(groups).axes[0].lines][:2] == [[2.0, 1.0], [2.0, 1.1]]
    speed, peak = plots.speedups(groups).axes
    assert [bar.get_width() for bar in (*speed.patches, *peak.patches)] == [2.0, 50 / 300]
    loss, accuracy = plots.accuracies(results.read(tmp_path / "accuracy.jsonl")).axes
    assert [list(line.get_ydata()) for line in loss.lines] == [[2.0, 0.5], [2.0, 0.6]] * 3
    assert [list(line.get_ydata()) for line in accuracy.lines] == [[98.0] * 3, [97.0] * 3]
    panels = plots.conv_speed(results.read(tmp_path / "conv_ops.jsonl")).axes
    assert [axes.get_title()[:5] for axes in panels] == ["fprop", "dgrad", "wgrad"] * 2
    assert list(panels[0].lines[0].get_ydata()) == [2.0, 2.0]


def test_rows_have_one_order_everywhere() -> None:
    from benchmarks import compare_tables
    rows = [{"model": m, "batch": b, "precision": p} for p in ("bf16", "fp32") for b in (512, 128)
            for m in ("googlenet", "mine", "lenet5")]
    ordered = sorted(rows, key=compare_tables.order)
    assert [tuple(row.values()) for row in ordered[:5]] == [
        ("lenet5", 128, "fp32"), ("lenet5", 128, "bf16"), ("lenet5", 512, "fp32"), ("lenet5", 512, "bf16"),
        ("googlenet", 128, "fp32")]
    assert ordered[-1]["model"] == "mine"


def test_only_what_has_rows_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    assert [p.name for p in plots.draw(tmp_path)] == ["zeros.png"]
    (tmp_path / "zeros.png").unlink()
    monkeypatch.setattr(plots, "can_plot", lambda without: False)
    assert plots.draw(tmp_path) == [] and not list(tmp_path.iterdir())


# ---- facts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "expected"), [
    ("NVIDIA H100 80GB HBM3", "h100"), ("NVIDIA GeForce RTX 3060 Ti", "rtx_3060_ti"), ("NVIDIA A100-SXM4-80GB", "a100"),
    ("Intel(R) Xeon(R) Processor", "intel_xeon"), ("AMD EPYC 7763 64-Core Processor", "amd_epyc_7763"),
    ("Intel(R) Core(TM) i7-8700 CPU @ 3.20GHz", "intel_core_i7_8700"), ("", "device")])
def test_a_device_has_a_short_name(name: str, expected: str) -> None:
    assert environment.slug(name) == expected


def test_the_facts_tell_what_of_alpha_is_set() -> None:
    from alpha.core.config import VARIABLES, config
    with config(**{v.name: v.default for v in VARIABLES if v.name != "cache_dir"}):
        facts = environment.environment("a command")
        assert facts["command"] == "a command" and facts["settings"] == "" and float(facts["load"]) >= 0
        with config(tensor_cores=False, num_threads=3, cache_dir="/private"):
            settings = environment.environment("a command")["settings"]
            assert settings == "ALPHA_NUM_THREADS=3 ALPHA_TENSOR_CORES=0"
            on_gpu = environment.environment("a command", on_gpu=True)
            assert on_gpu["settings"] == "ALPHA_TENSOR_CORES=0"  # the others keep no figures of a GPU apart
            assert on_gpu["host_settings"] == "ALPHA_NUM_THREADS=3" and "host_settings" not in facts
    assert environment.machine("cpu").endswith("core")
