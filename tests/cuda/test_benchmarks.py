"""The GPU benchmarks run, at sizes that the emulated driver bears: what they compare and what they report."""

from __future__ import annotations

import json
import sys

import pytest

from alpha import nn, ops
from alpha.core.op import registry
from alpha.cuda.runtime import memory
from alpha.cuda.runtime.context import context
from benchmarks import checks, compare, conv_ops, cuda_bandwidth, cuda_overhead
from benchmarks import cuda_timing as timing
from benchmarks.bandwidth_jobs import FAMILIES, Data
from benchmarks.checks import UnfairError
from benchmarks.conv_sides import Operands, alpha_call
from benchmarks.memory_account import holdings, total
from benchmarks.shapes import PASSES, ConvShape
from benchmarks.sides import AlphaSide, image_batches
from benchmarks.step_worker import Runner

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.cuda, pytest.mark.torch, pytest.mark.long]

TINY = ConvShape("tiny", 3, 6, 8, 12, 3, 1, 2)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int64", "bool"])
def test_both_libraries_see_one_memory(dtype: str) -> None:
    t = (torch.arange(12).reshape(3, 4).to(timing.peer_device()) % 3).to(getattr(torch, dtype))
    x = timing.wrap(t)
    assert (x.shape, x.dtype, x.nbytes) == ((3, 4), dtype, 12 * t.element_size())
    assert torch.equal(timing.view(x), t)
    if timing.peer_device() == "cuda":
        assert timing.view(x).data_ptr() == t.data_ptr()


CEILINGS, EFFORT = {"matmul_tflops": 50.0, "copy_gb_per_s": 3000.0}, {"rounds": 1, "window": 0.01}


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
@pytest.mark.parametrize("pass_name", PASSES)
def test_a_convolution_is_compared_and_timed(pass_name: str, precision: str) -> None:
    operands = Operands(TINY, timing, "bfloat16" if precision == "bf16" else "float32", sets=2)
    row = conv_ops.measure("layers", operands, pass_name, precision, CEILINGS, EFFORT)
    assert all(error < 1e-2 for error in row["error"].values()) and row["ratio"] > 0 and row["bar"] is None
    assert f"| layers | tiny | {pass_name} | {precision} |" in conv_ops.line(row) and row["kernel"]
    assert json.loads(json.dumps(row))["useful_tflops"]["alpha"] < row["tflops"]["alpha"]


def test_operands_that_are_there_are_not_made_again(launches) -> None:
    operands = Operands(TINY._replace(ic=64, oc=64, n=64), timing, sets=1)
    kernel, reads = conv_ops.kernel_of("fprop", operands.shape.desc, "float32", "cuda")
    if reads == "float32":
        pytest.skip(f"{kernel} reads float32")
    calls = alpha_call(operands, "fprop", "cuda"), alpha_call(operands, "fprop", "cuda", reads)
    alone = []
    for call in calls:
        call(0)
        launches.clear()
        call(0)
        alone.append([entry for entry in launches if "split" in entry or "measure" in entry])
    assert alone[0] and not alone[1]


def test_convolutions_are_reported_with_their_bars(monkeypatch: pytest.MonkeyPatch, tmp_path, capsys) -> None:
    monkeypatch.setattr(conv_ops, "SHAPES", (TINY, TINY._replace(name="odd", padding=2)))
    monkeypatch.setitem(conv_ops.GPU, "matmul", 64)
    monkeypatch.setitem(conv_ops.GPU, "copy_mib", 1)
    monkeypatch.setattr(conv_ops.plots, "draw", lambda folder: [])
    assert conv_ops.main(["--device", "cuda", "--sets", "layers", "--fma", "--rounds", "1", "--window", "0.01",
                          "--busy", "--output", str(tmp_path)]) == 0
    rows = [json.loads(text) for text in (tmp_path / "conv_ops.jsonl").read_text().splitlines()]
    assert [(row["shape"], row["pass"]) for row in rows] == [(s, p) for s in ("tiny", "odd") for p in PASSES]
    assert all({"date", "arch", "command", *CEILINGS} <= set(row) and "failed" not in row for row in rows)
    assert all("ALPHA_TENSOR_CORES=0" in row["settings"] for row in rows) and rows[0]["bar"] == 0.9
    assert "bars met" in capsys.readouterr().out.splitlines()[-2]


def test_a_wrong_convolution_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = registry["conv2d"].impls["cuda"]

    def wrong(x, w, **geometry):
        y = right(x, w, **geometry)
        memory.copy(y.reshaped(y.shape), memory.upload(memory.download(y, "float32") * 1.001))
        return y
    monkeypatch.setitem(registry["conv2d"].impls, "cuda", wrong)
    with pytest.raises(UnfairError, match=r"tiny fprop: a result is wrong.*alpha against torch.*0.0001 is allowed"):
        conv_ops.measure("layers", Operands(TINY, timing, sets=1), "fprop", "fp32", CEILINGS, EFFORT)


def jobs(dtype: str) -> list:
    return [pytest.param(family, k, dtype, id=f"{job.op} {job.label} {dtype}") for family in FAMILIES
            for k, job in enumerate(FAMILIES[family](Data(torch, "cpu", dtype, 1)))
            if dtype == "float32" or family in cuda_bandwidth.HALF_FAMILIES]


@pytest.mark.parametrize(("family", "k", "dtype"), jobs("float32") + jobs("bfloat16"))
def test_a_kernel_agrees_with_pytorch(family: str, k: int, dtype: str) -> None:
    torch.manual_seed(0)
    job = list(FAMILIES[family](Data(torch, timing.peer_device(), dtype, 1)))[k]
    if dtype == "bfloat16" and "norm_grad" in job.op and timing.peer_device() == "cpu":
        pytest.skip("on the CPU PyTorch keeps these statistics in bfloat16")
    _, nbytes = cuda_bandwidth.compare(registry[job.op], job, job.make(), dtype)
    assert nbytes >= 65536 * (4 if dtype == "float32" else 2)


def test_the_bytes_of_a_kernel() -> None:
    size = 32 * 32 * 64 * 4
    expected = {"relu": 2, "relu_grad": 3, "sgd_step": 5, "adam_step": 7, "ema_step": 3, "sums_of_squares": 1}
    for name, tensors in expected.items():
        data = Data(torch, timing.peer_device(), "float32", 1)
        job = next(job for family in FAMILIES.values() for job in family(data) if job.op == name)
        nbytes = cuda_bandwidth.compare(registry[name], job, job.make(), "float32")[1]
        assert tensors * size <= nbytes < (tensors + 0.01) * size, name


def test_a_kernel_is_timed_and_reported(monkeypatch: pytest.MonkeyPatch, tmp_path, capsys) -> None:
    output = tmp_path / "deep" / "rows.jsonl"
    monkeypatch.setattr(sys, "argv", ["cuda_bandwidth", "--families", "loss", "--dtypes", "float32", "--images", "1",
                                      "--rounds", "1", "--window-ms", "0.01", "--output", str(output)])
    cuda_bandwidth.main()
    rows = [json.loads(text) for text in output.read_text().splitlines()]
    assert [row["op"] for row in rows][:2] == ["softmax", "log_softmax"]
    assert all({"date", "device", "command", "torch", "gb_per_s", "of_copy"} <= set(row) for row in rows)
    assert "0 failed" in capsys.readouterr().out


def test_overhead_of_every_call(monkeypatch: pytest.MonkeyPatch, tmp_path, capsys) -> None:
    output = tmp_path / "rows.jsonl"
    monkeypatch.setattr(cuda_overhead, "LENGTH", 2)
    monkeypatch.setattr(cuda_overhead, "times_us", lambda calls, repeats, before: {
        name: [(f(), 1.0)[1]] for name, (f, _) in calls.items()})
    monkeypatch.setattr(sys, "argv", ["cuda_overhead", "--output", str(output)])
    cuda_overhead.main()
    row = json.loads(output.read_text())
    assert row["met"] and row["us"]["alpha"].keys() >= row["us"]["torch"].keys()
    assert "| an op with its node | 1.0 (1.0) | 1.0 (1.0) | ok, < 15 |" in capsys.readouterr().out


def test_a_side_on_the_gpu_answers(tmp_path) -> None:
    """The same losses as PyTorch's, a time, and memory by its own count."""
    spec = {"model": "lenet5", "batch": 2, "weights": str(tmp_path / "weights.npz"), "device": "cuda",
            "precision": "fp32"}
    ours, theirs = Runner("alpha"), Runner("torch")
    begun = {"alpha": ours.ask(start=spec), "torch": theirs.ask(start={**spec, "layout": "nhwc", "kind": "eager"})}
    assert begun["alpha"]["parameters"] == begun["torch"]["parameters"] == 62006
    assert begun["alpha"]["losses"] == pytest.approx(begun["torch"]["losses"], rel=1e-3)
    assert ours.ask(steps=1)["ms"] > 0 and theirs.ask(steps=1)["ms"] > 0
    for runner in (ours, *([theirs] if timing.peer_device() == "cuda" else [])):
        found = runner.ask(memory=True)
        assert 0 < found["steady_mib"] <= found["peak_mib"] and found["reserved_mib"] > 0
    assert context.index == 0


def test_a_network_of_ones_own_is_compared_on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    if timing.peer_device() == "cpu":
        monkeypatch.setattr(compare, "check_names", lambda *names: None)  # PyTorch works on the CPU then
    ours = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten(),
                         nn.Linear(128, 5, flattened=(4, 4, 8)))
    theirs = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.Flatten(),
                                 torch.nn.Linear(128, 5))
    before = ours.state_dict()["0.weight"].numpy()
    row, = compare.compare(ours, theirs, (4, 4, 3), batch_size=2, device="cuda", configurations=["torch_nhwc"],
                           rounds=1, visit_ms=0.1)
    assert row["losses"]["alpha"] == pytest.approx(row["losses"]["torch"], rel=1e-3)
    assert row["peak_mib"]["alpha"] > 0 and row["process_mib"]["alpha"] is None
    assert next(ours.parameters()).device == "cpu" and (ours.state_dict()["0.weight"].numpy() == before).all()


def test_a_clock_that_did_not_wait_for_the_gpu_is_refused(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream is asked: had nobody waited for it, it would be at work still."""
    runner = Runner("alpha")
    runner.ask(start={"model": "lenet5", "batch": 1, "weights": str(tmp_path / "weights.npz"), "device": "cuda",
                      "precision": "fp32"})
    assert runner.side.idle()
    busy = type("Stream", (), {"is_done": lambda self: False})()
    monkeypatch.setattr(type(context), "stream", busy, raising=False)
    monkeypatch.setitem(vars(context), "stream", busy)
    with pytest.raises(UnfairError, match="the clock of alpha was stopped while the device was still working"):
        checks.synchronised(runner.side)


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_the_memory_of_a_step_on_the_gpu_is_explained(precision: str) -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(512, 5))
    side = AlphaSide(net, image_batches(4, (8, 8, 3), 5), "cuda", precision)
    side.step()
    found = side.account()
    for _ in range(4):
        side.step()
    assert side.update.found  # captured by now; the account is that of a step op by op, all the same
    assert side.account()["peak"] == pytest.approx(found["peak"], rel=0.02) and side.update.found is None
    assert found["weights"] == 4 * (side.parameters + 16) and found["gradients"] == 4 * side.parameters
    assert found["optimizer_state"] == found["gradients"]
    assert found["activations"] >= 4 * 8 * 8 * 8 * (2 if precision == "bf16" else 4)
    assert found["peak"] == sum(found["at_peak"].values()) == max(found["live"])
    assert found["at_peak"]["workspace"] >= 0 and found["peak_phase"] in ("forward", "backward", "update")


def test_memory_that_a_chain_will_be_computed_from_is_counted() -> None:
    """A result that waits has no memory of its own; once it is written it has some."""
    x, y = (ops.full((512, 256), value).to("cuda") for value in (1.0, 2.0))
    chain = ops.gelu(x) * y
    waits = holdings(chain.array)
    assert {h.address for h in waits} == {int(t.array.block) for t in (x, y)} and total(waits) == 2 * x.array.nbytes
    assert chain.numpy().shape == (512, 256)
    assert [h.address for h in holdings(chain.array)] not in ([], [h.address for h in waits])
