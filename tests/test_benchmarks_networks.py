"""benchmarks.networks: it runs, its table takes the best of PyTorch, and it refuses what it does not know."""

from importlib import import_module
from pathlib import Path

import pytest

from benchmarks import networks, results

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.same_without_kernels("kernels are called by programs that it starts")]


def row(configuration: str, theirs: float, model: str = "mobilenetv2", peak: float | None = 90.0) -> dict:
    ms = {"alpha": 2.0, "torch": theirs}
    return {"kind": "step", "device": "cuda", "model": model, "batch": 256, "precision": "bf16", "settings": "",
            "configuration": configuration, "layout": "nhwc", "ms": ms, "ratio": theirs / 2, "ratio_min": theirs / 2,
            "ratio_max": theirs / 2, "peak_mib": {"alpha": 50.0, "torch": peak},
            "process_mib": {"alpha": 500.0, "torch": 900.0}}


def test_the_table_has_a_row_a_network_beside_the_fastest_pytorch():
    rows = [row("torch_graph", 9.0), row("torch_graph", 6.0), row("torch_compile", 5.0, peak=70.0),
            {**row("torch_compile", 1.0), "failed": "took too long"}, row("torch_graph", 3.0, "resnet20", None)]
    first, second = networks.table(rows)[2:]
    assert first == ("| resnet20 | 256 | bf16 | 2.00 | 3.00 (graph, NHWC) | **1.50** (1.50..1.50) | 500 / 900 |")
    assert second == ("| mobilenetv2 | 256 | bf16 | 2.00 | 6.00 (graph, NHWC), 5.00 (compile, NHWC) "
                      "| **2.50** (2.50..2.50) | 50 / 70 |")


def test_every_network_has_a_twin_and_batches():
    from benchmarks.torch_models import TWINS
    assert networks.NETWORKS.keys() <= TWINS.keys()
    assert networks.cases(["resnet20", "airbench94:8"], ["fp32"], "cpu") == [
        ("resnet20", 64, "fp32", "cpu"), ("airbench94", 8, "fp32", "cpu")]


def test_it_measures_a_network_and_refuses_an_unknown_one(tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                                          monkeypatch: pytest.MonkeyPatch):
    flags = ["--device", "cpu", "--configurations", "torch_nhwc", "--rounds", "1", "--visit-ms", "5", "--output",
             str(tmp_path)]
    assert networks.main(["--only", "resnet20:2", *flags]) == 0
    found = results.read(tmp_path / "networks.jsonl")
    assert [r["model"] for r in found] == ["resnet20"] and found[0]["parameters"] == 269_722
    assert "| resnet20 | 2 | fp32 |" in capsys.readouterr().out
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})
    row = {key: value for key, value in found[0].items() if key != "settings"}  # no processes again
    monkeypatch.setattr(networks.compare, "network", lambda *case: iter([row]))
    assert networks.main(["--only", "resnet20:2", *flags, "--clock", "cpu"]) == 0
    assert results.read(tmp_path / "networks.jsonl")[-1]["settings"] == "one thread"
    assert "| resnet20 | 2 | fp32 one thread |" in capsys.readouterr().out
    assert networks.main(["--only", "resnet21", *flags]) == 1
    assert "there is no network 'resnet21' here\nhelp: use some of resnet20, " in capsys.readouterr().err


@pytest.mark.parametrize("program", ["compare", "networks", "coconv", "cpu_ops --threads 2", "inference --threads 2",
                                     "sparsity sweep --threads 2", "algorithms"])
def test_the_clock_of_the_processor_is_for_one_thread(program: str, monkeypatch: pytest.MonkeyPatch,
                                                      capsys: pytest.CaptureFixture[str]) -> None:
    """It adds up all threads: a program that runs two says so, each in the same words, before it measures."""
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr("sys.argv", [*program.split(), "--clock", "cpu"])
    with pytest.raises(SystemExit):
        import_module(f"benchmarks.{program.split()[0]}").main()
    fix = "start it by taskset -c 0" if program in ("compare", "networks", "coconv") else "use --threads 1"
    assert f"--clock cpu adds up the time of all threads, which are 2 here: {fix}" in capsys.readouterr().err
