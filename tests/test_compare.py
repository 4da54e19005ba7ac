"""The comparison with PyTorch on the CPU: it runs, it resumes, it takes networks of one's own, it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import alpha
from alpha import nn
from benchmarks import checks, compare_tables, results
from benchmarks.checks import UnfairError
from benchmarks.configurations import settled, usual

torch = pytest.importorskip("torch")
pytest.importorskip("torch._dynamo")  # reads torch.cuda when it is first imported, which tests replace
pytestmark = [pytest.mark.torch, pytest.mark.same_without_kernels("kernels are called by programs that it starts")]

EAGER = ["torch_nchw", "torch_nhwc"]


def twins(channels: int = 4) -> tuple[nn.Module, object]:
    """The same small network twice; the names of the layers are the same by their places."""
    ours = nn.Sequential(nn.Conv2d(3, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU(),
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 5))
    theirs = torch.nn.Sequential(torch.nn.Conv2d(3, channels, 3, padding=1), torch.nn.BatchNorm2d(channels),
                                 torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(),
                                 torch.nn.Linear(channels, 5))
    return ours, theirs


# ---- the program -----------------------------------------------------------------------------------------------------


def test_the_whole_comparison_of_a_tiny_network(tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    """One process per library and configuration, equal losses, tables, pictures; --resume then measures nothing."""
    from benchmarks import compare
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")  # torch.compile gives back what it got; all around it is ours
    names = [*EAGER, "torch_compile"]
    flags = ["--models", "lenet5:32", "--device", "cpu", "--configurations", *names, "--rounds", "1", "--visit-ms", "5",
             "--output", str(tmp_path)]
    assert compare.main(flags) == 0
    rows = results.read(tmp_path / "compare.jsonl")
    steps = {row["configuration"]: row for row in rows if row["kind"] == "step"}
    assert list(steps) == names
    faster = min(EAGER, key=lambda name: steps[name]["ms"]["torch"])
    for name, row in steps.items():
        assert row["layout"] == (faster if name == "torch_compile" else name)[-4:] and row["parameters"] == 62006
        assert row["ratio_min"] <= row["ratio"] <= row["ratio_max"]
        assert len(row["losses"]["alpha"]) == 10
        assert row["losses"]["alpha"] == pytest.approx(row["losses"]["torch"], rel=1e-3)
        assert row["process_mib"]["alpha"] < row["process_mib"]["torch"]
        assert row["peak_mib"]["alpha"] > 0 and row["peak_mib"]["torch"] is None
        assert {"date", "cpu", "torch", "command", "alpha", "numpy", "rounds", "settings"} <= row.keys()
    accounts = {row["configuration"]: row["account"] for row in rows if row["kind"] == "memory"}
    assert accounts.keys() == {"alpha", *EAGER} and accounts["alpha"]["live"]
    assert {p.name for p in tmp_path.glob("*.png")} == {"zeros.png", "speedups.png", "steps.png", "memory.png",
                                                        "losses.png", "live_bytes.png"}
    printed = capsys.readouterr().out
    assert "| lenet5 | 32 | fp32 | torch_nhwc | nhwc |" in printed and "times as fast" in printed
    assert compare.main([*flags, "--resume"]) == 0
    assert len(results.read(tmp_path / "compare.jsonl")) == len(rows)


@pytest.mark.slow
def test_a_step_that_is_compiled_takes_the_faster_layout(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if "slow" not in request.config.getoption("markexpr"):
        pytest.skip("g++ works for half a minute: pytest -m slow tests/test_compare.py runs it")
    from benchmarks import compare
    assert compare.main(["--models", "lenet5:32", "--device", "cpu", "--configurations", "torch_nchw", "torch_compile",
                         "--rounds", "1", "--visit-ms", "5", "--output", str(tmp_path)]) == 0
    row = results.read(tmp_path / "compare.jsonl")[-1]
    assert (row["configuration"], row["layout"]) == ("torch_compile", "nchw")
    assert row["losses"]["alpha"] == pytest.approx(row["losses"]["torch"], rel=1e-3)


def test_what_fails_is_a_row_and_the_rest_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import compare

    class Faulty:
        """Answers like a worker, but PyTorch's NCHW is another network, and the GoogLeNet of alpha does not start."""

        def __init__(self, library: str) -> None:
            self.library = library

        def ask(self, **request: object) -> dict:
            start = request.get("start", {})
            if start.get("model") == "googlenet":
                raise RuntimeError("no room")
            if start:
                return {"losses": [2.3, 2.2, 2.1], "parameters": 11 if start.get("layout") == "nchw" else 10}
            return {"ms": 1.0, "peak_mib": 1.0, "steady_mib": 1.0, "reserved_mib": 1.0, "process_mib": 5.0,
                    "account": None}

        def close(self) -> None: ...

    monkeypatch.setattr(compare, "Worker", Faulty)
    monkeypatch.setattr(compare.plots, "draw", lambda folder: [])
    assert compare.main(["--models", "googlenet:1", "lenet5:1", "--device", "cpu", "--rounds", "1", "--configurations",
                         *EAGER, "--output", str(tmp_path)]) == 1
    rows = [row for row in results.read(tmp_path / "compare.jsonl") if row["kind"] == "step"]
    assert [row.get("failed", "").partition("\n")[0] for row in rows] == [
        "no room", "compare: alpha's network has 10 parameters, PyTorch's has 11", ""]
    assert compare.main(["--models", "lenet5:1", "--device", "cpu", "--budget-s", "-1", "--output", str(tmp_path)]) == 1
    assert "the time is up" in results.read(tmp_path / "compare.jsonl")[-1]["failed"]


@pytest.mark.parametrize(("flags", "text"), [
    (["--device", "cpu", "--precision", "bf16"], "precision bf16 on the CPU, which computes fp32 alone"),
    (["--device", "cpu", "--configurations", "torch_graph"], "there is no configuration 'torch_graph' on cpu"),
    (["--device", "cuda"], "PyTorch finds no GPU, it could not be compared there")])
def test_what_a_device_does_not_have_is_refused(flags: list[str], text: str, capsys: pytest.CaptureFixture[str],
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import compare
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert compare.main(flags) == 1
    shown = capsys.readouterr().err
    assert text in shown and "\nhelp: " in shown


def test_a_busy_gpu_is_not_measured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from benchmarks import compare
    monkeypatch.setattr(compare, "check_names", lambda *names: None)
    monkeypatch.setattr(checks.quiet_gpu, "__defaults__", (lambda *fields: {"utilization.gpu": "97 %", "memory.used":
                                                                            "9000 MiB"}, lambda seconds: None))
    assert compare.main(["--device", "cuda"]) == 1
    assert "compare: the GPU is busy: 97 % in use with 9000 MiB" in capsys.readouterr().err


class Clock:
    """A side that notes in `said` what it is asked for; steps one by one are slow."""

    def __init__(self, name: str, ms: float, said: list[tuple[str, int]]) -> None:
        self.name, self.ms, self.said = name, ms, said

    def ask(self, steps: int) -> dict:
        self.said.append((self.name, steps))
        return {"ms": self.ms * (100 if steps == 1 else 1)}


def test_on_a_cpu_a_visit_warms_up_for_a_while_and_a_loop_is_of_one_side() -> None:
    from benchmarks import compare
    said: list[tuple[str, int]] = []
    case, effort = compare.Case("lenet5", 4, "fp32", "cpu"), compare.Effort(rounds=2, visit_ms=100.0)
    ms = {"alpha": 10.0, "torch": 500.0}
    sides = {name: Clock(name, each, said) for name, each in ms.items()}
    compare.in_turn(case, effort, sides, ms)
    assert said == [("alpha", 15), ("torch", 1), *[("alpha", 15), ("alpha", 10), ("torch", 1), ("torch", 1)] * 2]
    said.clear()
    assert compare.in_a_loop(case, effort, sides, ms) == {"alpha": 10.0, "torch": 50_000.0}
    assert said == [("alpha", 10)] * 3 + [("torch", 1)] * 3
    from benchmarks.compare_tables import turns
    assert turns({"ms": {"alpha": 11.0, "torch": 100.0}, "loop_ms": {"alpha": 10.0, "torch": 100.0}}) == [
        "in a loop: alpha 10.00 ms, in turn +10.0%, torch 100.00 ms, in turn +0.0%"]
    assert turns({"ms": {}}) == []


def test_sides_take_turns_and_a_visit_begins_with_a_step_that_does_not_count() -> None:
    from benchmarks import compare
    said: list[tuple[str, int]] = []
    case = compare.Case("lenet5", 4, "fp32", "cuda")
    times = compare.in_turn(case, compare.Effort(rounds=2, visit_ms=20.0), {
        "alpha": Clock("alpha", 2.0, said), "torch": Clock("torch", 50.0, said)}, {"alpha": 2.0, "torch": 50.0})
    assert said == [("alpha", 1), ("torch", 1), *[("alpha", 1), ("alpha", 10), ("torch", 1), ("torch", 3)] * 2]
    assert times == {"alpha": [2.0, 2.0], "torch": [50.0, 50.0]}


def test_a_side_may_be_timed_by_its_process_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import cpu_timing, step_worker
    from benchmarks.rounds import Side

    class Still:
        def __init__(self, **_: object) -> None:
            self.step = self.synchronize = lambda: None
            self.idle = lambda: True
            self.parameters = 1
    ticks = iter(range(100))
    monkeypatch.setitem(cpu_timing.CLOCKS, "cpu", lambda: float(next(ticks)))
    assert cpu_timing.window_ms(Side(lambda k: None), 4, "cpu") == 250.0
    monkeypatch.setattr(step_worker, "alpha_side", Still)
    monkeypatch.setattr(step_worker.Runner, "first_updates", lambda self: {})
    runner = step_worker.Runner("alpha")
    runner.ask(start={"model": "lenet5", "clock": "cpu"})
    assert runner.ask(steps=2) == {"ms": 500.0}


# ---- a process -------------------------------------------------------------------------------------------------------


def test_a_process_that_fails_ends_or_is_silent_is_named() -> None:
    from benchmarks.process import Worker
    worker = Worker("alpha")
    with pytest.raises(RuntimeError, match=r"models\.create: no model is called 'nothing'"):
        worker.ask(start=dict(model="nothing", batch=1, weights="x", device="cpu", precision="fp32"))
    worker.process.kill()
    worker.process.wait()
    with pytest.raises((RuntimeError, BrokenPipeError), match=r"alpha process ended with code -9|Broken pipe"):
        worker.ask(steps=1)
    worker.close()
    slow = Worker("alpha", limit_s=0.0)
    with pytest.raises(RuntimeError, match="the alpha process gave no answer for 0 s"):
        slow.ask(memory=True)
    slow.close()


# ---- a network of one's own ------------------------------------------------------------------------------------------


def test_a_network_of_ones_own_is_compared_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    from benchmarks.compare import compare
    ours, theirs = twins()
    before = {k: t.numpy() for k, t in ours.state_dict().items()}
    their_weights = theirs[0].weight.detach().clone()
    rows = compare(ours, theirs, (8, 8, 3), batch_size=4, rounds=1, visit_ms=2)
    assert [row["configuration"] for row in rows] == EAGER
    assert all(row["losses"]["alpha"] == pytest.approx(row["losses"]["torch"], rel=1e-4) for row in rows)
    assert "| Sequential | 4 | fp32 | torch_nhwc |" in capsys.readouterr().out
    assert all(np.array_equal(t.numpy(), before[k]) for k, t in ours.state_dict().items())
    assert torch.equal(theirs[0].weight, their_weights)


def test_a_layer_of_ones_own_is_compared() -> None:
    from benchmarks.compare import compare
    rows = compare(nn.Conv2d(3, 4, 3, stride=2, bias=False), torch.nn.Conv2d(3, 4, 3, stride=2, bias=False), (9, 9, 3),
                   batch_size=2, rounds=1, visit_ms=1, configurations=["torch_nchw"])
    assert rows[0]["losses"]["alpha"] == pytest.approx(rows[0]["losses"]["torch"], rel=1e-5)


def test_weights_are_found_in_order_where_names_differ() -> None:
    from benchmarks.compare import with_weights_of
    ours = twins()[0]
    theirs = torch.nn.ModuleDict({"first": torch.nn.Conv2d(3, 4, 3), "norm": torch.nn.BatchNorm2d(4),
                                  "last": torch.nn.Linear(4, 5)})
    with_weights_of(ours, theirs)
    state = alpha.checkpoint.to_torch_state_dict(ours)
    assert np.array_equal(theirs["last"].weight.detach().numpy(), state["5.weight"])
    assert np.array_equal(theirs["first"].weight.detach().numpy(), state["0.weight"])


class Swish(torch.nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(x)


@pytest.mark.parametrize(("change", "text"), [
    (lambda net: net.__setitem__(5, torch.nn.Linear(4, 6)), r"alpha's network has 145 parameters, PyTorch's has 150"),
    (lambda net: net.__setitem__(2, Swish()), r"after 0 updates alpha's loss is .* and PyTorch's is .*, fp32 allows"),
    (lambda net: net.__setitem__(1, torch.nn.Conv2d(4, 2, 1, bias=False)), r"the networks' weights do not fit: "
     r"1.weight has shape \(2, 4, 1, 1\), alpha's weights give \(4,\) there")], ids=["count", "values", "shapes"])
def test_networks_that_differ_are_refused(change, text: str) -> None:
    from benchmarks.compare import compare
    ours, theirs = twins()
    change(theirs)
    with pytest.raises(UnfairError, match=f"compare: {text}") as caught:
        compare(ours, theirs, (8, 8, 3), batch_size=4, rounds=1, visit_ms=1)
    assert "\nhelp: " in str(caught.value)


def test_a_number_of_weights_that_differs_is_refused() -> None:
    from benchmarks.compare import with_weights_of
    with pytest.raises(UnfairError, match="alpha's has 8 weights and buffers, PyTorch's 2"):
        with_weights_of(twins()[0], torch.nn.Conv2d(3, 4, 3))


# ---- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("precision", "theirs", "good"), [
    ("fp32", [2.30001, 2.21], True), ("fp32", [2.301, 2.2], False), ("fp32", [2.3, 2.25], False),
    ("tf32", [2.301, 2.25], True), ("tf32", [2.31, 2.2], False), ("bf16", [2.31, 2.3], True),
    ("bf16", [2.35, 2.2], False), ("fp32", [float("nan"), 2.2], False)])
def test_losses_must_agree_as_the_precision_allows(precision: str, theirs: list[float], good: bool) -> None:
    ours = [2.3, 2.2, 2.1]
    if good:
        checks.same_values(ours, theirs, precision)
        return
    with pytest.raises(UnfairError, match=rf"updates alpha's loss is .*{precision} allows .*\nhelp: compare the same"):
        checks.same_values(ours, theirs, precision)


def test_a_clock_that_did_not_wait_is_refused() -> None:
    """A device that is still at work when synchronize() has returned, as if nobody had waited."""
    from benchmarks.sides import AlphaSide, image_batches
    from benchmarks.step_worker import Runner
    side = AlphaSide(twins()[0], image_batches(2, (8, 8, 3), 5), "cpu", "fp32")
    assert Runner(side=side).time_ms(1) > 0
    side.idle = lambda: False
    with pytest.raises(UnfairError, match=r"the clock of alpha was stopped while the device was still working.*\nhelp"):
        Runner(side=side).time_ms(1)


def test_a_quiet_gpu_may_be_measured() -> None:
    looks = iter([{"utilization.gpu": "80 %", "memory.used": "500 MiB"}, {"utilization.gpu": "[N/A]",
                                                                          "memory.used": "500 MiB"}])
    waited: list[float] = []
    checks.quiet_gpu(lambda *fields: next(looks), waited.append)  # somebody has just ended
    assert waited == [1.0]
    with pytest.raises(UnfairError, match=r"the GPU is busy: 0 % in use with 9000 MiB.*\nhelp: wait for the other"):
        checks.quiet_gpu(lambda *fields: {"utilization.gpu": "0 %", "memory.used": "9000 MiB"}, waited.append)


# ---- configurations --------------------------------------------------------------------------------------------------


def test_graph_and_compile_take_the_faster_layout() -> None:
    assert usual("cpu") == [*EAGER, "torch_compile"] and usual("cuda") == [*EAGER, "torch_graph", "torch_compile"]
    assert settled("torch_graph", "fp32", {"torch_nchw": 2.0, "torch_nhwc": 1.0}, "cuda").layout == "nhwc"
    assert settled("torch_graph", "fp32", {}, "cuda").layout == "nchw"
    assert settled("torch_compile", "bf16", {}, "cuda").layout == settled("torch_compile", "fp32", {}, "cpu").layout
    assert settled("torch_nchw", "fp32", {"torch_nhwc": 1.0}, "cpu").layout == "nchw"


class FakeCuda:
    """As much of torch.cuda as a capture needs; a replay runs the captured function again."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def Stream(self):
        return self

    CUDAGraph = current_stream = Stream

    def wait_stream(self, other) -> None:
        self.said.append("wait")

    def stream(self, stream):
        return self

    graph = stream

    def __enter__(self):
        self.said.append("enter")

    def __exit__(self, *error) -> None:
        self.said.append("exit")

    def replay(self) -> None:
        self.said.append("replay")


def test_a_captured_step_starts_from_the_first_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Warm-up on another stream, then the capture, then the weights and the momentum of the start."""
    from benchmarks.sides import TorchSide, image_batches
    net = twins()[1]
    first = net[0].weight.detach().clone()
    cuda = FakeCuda()
    monkeypatch.setattr(torch, "cuda", cuda)
    monkeypatch.setattr(cuda, "is_available", lambda: False, raising=False)
    side = TorchSide(net, image_batches(2, (8, 8, 3), 5), "cuda", "fp32", "nhwc", "graph")
    assert cuda.said == ["wait", "enter", "exit", "wait", "enter", "exit"]
    assert torch.equal(net[0].weight, first)
    assert all(not s["momentum_buffer"].any() for s in side.optimizer.state.values())
    side.step()
    side.step()
    assert cuda.said[-2:] == ["replay", "replay"]
    assert side.account() is None


# ---- tables ----------------------------------------------------------------------------------------------------------


def step_row(configuration: str, torch_ms: float, **more: object) -> dict:
    return {"kind": "step", "device": "cuda", "model": "vgg16", "batch": 512, "precision": "fp32", "settings": "",
            "configuration": configuration, "layout": configuration[-4:], "ratio": torch_ms / 20, "ratio_min": 1.0,
            "ratio_max": 2.0, "ms": {"alpha": 20.0, "torch": torch_ms}, "ms_rounds": {"alpha": [20.0], "torch": [30.0]},
            "images_per_s": {"alpha": 25600, "torch": 17000}, "peak_mib": {"alpha": 50.0, "torch": 101.0}, "steady_mib":
            {"alpha": 50.0, "torch": 90.0}, "process_mib": {"alpha": 500.0, "torch": None}, **more}


def test_alpha_is_compared_with_the_best_of_the_same_precision() -> None:
    rows = [step_row("torch_nchw", 31.0), step_row("torch_nhwc", 33.0, peak_mib={"alpha": 50.0, "torch": 99.0}),
            step_row("torch_graph", 25.0, layout="nchw"), step_row("torch_nhwc", 10.0, precision="tf32"),
            {**step_row("torch_compile", 1.0), "failed": "no compiler\nhelp: none"}]
    marked = [line for line in compare_tables.steps(rows) if "best PyTorch" in line]
    assert [line.split(" | ")[3] for line in marked] == ["torch_graph", "torch_nhwc"]
    head = compare_tables.headline(rows)
    assert head[2] == ("| VGG-16, batch 512 | fp32 | 20.0 ms | 25.0 ms (graph, NCHW) | **1.25 times as fast** | "
                       "50 / 99 MiB (NHWC) |")
    assert "| vgg16 | 512 | fp32 | torch_compile | FAILED: no compiler |" in compare_tables.steps(rows)
    assert compare_tables.bars(rows) == [
        "vgg16, batch 512, beside eager PyTorch: 1.55 times as fast (> 1), 0.51 of its peak memory (<= 0.5): MISSED"]
    half = step_row("torch_nchw", 31.0, peak_mib={"alpha": 50.0, "torch": 100.0})
    assert compare_tables.bars([half])[0].endswith("(<= 0.5): ok")


def test_the_last_result_of_a_configuration_counts(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "rows.jsonl"
    rows = [step_row("torch_nchw", 31.0), step_row("torch_nchw", 32.0), {**step_row("torch_nchw", 1.0), "failed": "x"},
            step_row("torch_nchw", 33.0, settings="ALPHA_TENSOR_CORES=0")]
    for row in rows:
        results.record(file, {"date": "today"}, row)
    assert json.loads(file.read_text().splitlines()[0])["date"] == "today"
    assert [row["ms"]["torch"] for row in results.latest(results.read(file), compare_tables.KEY)] == [32.0, 33.0]
    results.record(None, {}, rows[0])
    assert results.read(tmp_path / "none.jsonl") == []
