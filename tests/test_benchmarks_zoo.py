"""benchmarks.zoo: it runs, its table takes the best of PyTorch, both sides are one network, wrong names are refused."""

from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import models
from alpha.training.registries import MODELS
from benchmarks import results
from benchmarks.zoo import __main__ as zoo
from benchmarks.zoo import report
from benchmarks.zoo.members import MEMBERS, alpha_network

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.same_without_kernels("kernels are called by programs that it starts")]


def row(configuration: str, theirs: float, model: str = "mobilenetv2", peak: float | None = 90.0) -> dict:
    ms = {"alpha": 2.0, "torch": theirs}
    return {"kind": "step", "device": "cuda", "model": model, "batch": 256, "precision": "bf16", "settings": "",
            "configuration": configuration, "layout": "nhwc", "ms": ms, "ratio": theirs / 2, "ratio_min": theirs / 2,
            "ratio_max": theirs / 2, "peak_mib": {"alpha": 50.0, "torch": peak}, "loss_float64": 2.0,
            "losses": {"alpha": [2.0002], "torch": [1.98]}, "process_mib": {"alpha": 500.0, "torch": 900.0}}


def alone(ms: float, model: str = "mobilenetv2") -> dict:
    return {**row("", 1.0, model), "kind": "alpha", "ms": ms, "peak_mib": 45.0, "process_mib": 400.0}


ROWS = [row("torch_graph", 9.0), row("torch_graph", 6.0), row("torch_compile", 5.0, peak=70.0),
        {**row("torch_compile", 1.0), "failed": "took too long"}, row("torch_graph", 3.0, "resnet20", None)]


def test_table_has_a_row_a_network_beside_the_fastest_pytorch() -> None:
    text = report.lines(ROWS)
    assert text[2] == ("| residual | resnet20 | 256 | bf16 | 2.00 | 3.00 (graph, NHWC) | **1.50** (1.50..1.50) "
                       "| 500 / 900 | 0.56 | 1e-04 / 1e-02 |")
    assert text[3] == ("| depthwise | mobilenetv2 | 256 | bf16 | 2.00 | 6.00 (graph, NHWC), 5.00 (compile, NHWC) "
                       "| **2.50** (2.50..2.50) | 50 / 70 | 0.71 | 1e-04 / 1e-02 |")
    assert text[5] == ("bf16: 2 networks, alpha is 1.94 times as fast in the geometric mean, least 1.50 (resnet20); "
                       "memory 0.63 of PyTorch's, most 0.71 (mobilenetv2).")
    assert text[6] == ("PyTorch measured again, 1 rows: 0.667 to 0.667 of its time before, 0.667 in the geometric "
                       "mean.")
    assert text[7].startswith("Not measured: lenet5, alexnet, ")


def test_a_later_row_of_alpha_alone_stands_beside_the_kept_pytorch() -> None:
    kept, = (result for result in report.collected([*ROWS, alone(1.0)]) if result.rows[0]["model"] == "mobilenetv2")
    assert (kept.ms, kept.ratio, kept.mib, kept.kept) == ((1.0, 5.0), 5.0, (45.0, 70.0), True)
    assert "| **5.00** (PyTorch's row kept) | 45 / 70 |" in report.line(kept)
    older, = (result for result in report.collected([alone(1.0), *ROWS]) if result.rows[0]["model"] == "mobilenetv2")
    assert older.ratio == 2.5 and not older.kept


def test_every_shipped_network_is_there_and_every_family_has_a_twin() -> None:
    shipped = {name for name in models.list() if MODELS[name].__module__.startswith("models.")}
    assert shipped <= set(MEMBERS) and len(shipped) > 40 and len(MEMBERS) >= 60
    assert zoo.cases(["resnet20", "airbench94:8"], ["fp32"], "cpu") == [
        ("resnet20", 64, "fp32", "cpu"), ("airbench94", 8, "fp32", "cpu")]


def outputs(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns both libraries' output in training, from alpha's weights and in alpha's layout."""
    import torch

    import alpha
    from alpha import checkpoint
    from benchmarks.zoo.members import torch_network
    alpha.manual_seed(0)
    ours, theirs = alpha_network(name), torch_network(name)
    state = {key: torch.from_numpy(np.asarray(value)) for key, value in checkpoint.to_torch_state_dict(ours).items()}
    found = theirs.load_state_dict(state, strict=False)
    assert not found.unexpected_keys and all("num_batches" in key for key in found.missing_keys)
    assert sum(p.size for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters())
    x = np.random.default_rng(0).standard_normal((4, 32, 32, 3)).astype(np.float32)
    with torch.no_grad(), alpha.no_grad():
        y = theirs.train()(torch.from_numpy(x.transpose(0, 3, 1, 2).copy())).numpy()
        return ours.train()(alpha.tensor(x)).numpy(), y.transpose(0, 2, 3, 1) if y.ndim == 4 else y


OWN = [name for name in MEMBERS if name not in models.list()]
OTHERS = ["regnet_y_400mf", "efficientnet_b0", "shufflenetv2", "vit_tiny_4", "vgg13", "vgg11_plain"]


@pytest.mark.parametrize("name", [*OWN, *OTHERS])
def test_both_sides_are_one_network(name: str) -> None:
    ours, theirs = outputs(name)
    assert ours.shape == theirs.shape
    assert np.abs(ours - theirs).max() <= 1e-4 * np.abs(theirs).max()


def test_it_measures_resumes_and_refuses_an_unknown_network(tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                                            monkeypatch: pytest.MonkeyPatch) -> None:
    flags = ["--device", "cpu", "--configurations", "torch_nhwc", "--rounds", "1", "--visit-ms", "5", "--output",
             str(tmp_path)]
    assert zoo.main(["--only", "resnet20:2", *flags]) == 0
    first, = results.read(tmp_path / "zoo.jsonl")
    assert first["model"] == "resnet20" and first["parameters"] == 269_722
    assert abs(first["losses"]["alpha"][0] - first["loss_float64"]) < 1e-4 * first["loss_float64"]
    assert "| residual | resnet20 | 2 | fp32 |" in capsys.readouterr().out
    assert (tmp_path / "zoo.png").exists()
    monkeypatch.setattr(zoo.compare, "network", lambda *case, **options: pytest.fail("measured again"))
    assert zoo.main(["--only", "resnet20:2", "--resume", *flags]) == 0
    assert len(results.read(tmp_path / "zoo.jsonl")) == 1
    monkeypatch.setattr(zoo, "CHECKED", 1)
    monkeypatch.setattr(zoo.compare, "network", lambda *case, **options: iter([first]))
    assert zoo.main(["--only", "lenet5:2", "resnet20:2", "--kept", *flags]) == 0
    kinds = [(row["model"], row["kind"]) for row in results.read(tmp_path / "zoo.jsonl")]
    assert kinds == [("resnet20", "step"), ("resnet20", "step"), ("resnet20", "alpha")]
    capsys.readouterr()
    assert zoo.main(["--only", "resnet21", *flags]) == 1
    assert "there is no network 'resnet21' here\nhelp: use some of lenet5, " in capsys.readouterr().err
    with pytest.raises(SystemExit):
        zoo.main(["--kept", "--resume", *flags])
    assert "--kept measures alpha's rows anew and --resume leaves them out" in capsys.readouterr().err


@pytest.mark.parametrize("program", ["compare", "zoo", "coconv", "cpu_ops --threads 2", "inference --threads 2",
                                     "sparsity sweep --threads 2", "algorithms"])
def test_the_clock_of_the_processor_is_for_one_thread(program: str, monkeypatch: pytest.MonkeyPatch,
                                                      capsys: pytest.CaptureFixture[str]) -> None:
    """It adds up all threads: a program that runs two says so, each in the same words, before it measures."""
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr("sys.argv", [*program.split(), "--clock", "cpu"])
    with pytest.raises(SystemExit):
        import_module("benchmarks.zoo.__main__" if program == "zoo" else f"benchmarks.{program.split()[0]}").main()
    fix = "start it by taskset -c 0" if program in ("compare", "zoo", "coconv") else "use --threads 1"
    assert f"--clock cpu adds up the time of all threads, which are 2 here: {fix}" in capsys.readouterr().err
