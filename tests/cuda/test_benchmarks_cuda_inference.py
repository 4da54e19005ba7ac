"""`python -m benchmarks.cuda_inference` gives both libraries the same weights, compares them, and writes rows."""

from __future__ import annotations

import pytest

import alpha
import models
from benchmarks import cuda_inference, results
from tests.cuda.process import EMULATED

pytestmark = [pytest.mark.cuda, pytest.mark.torch, pytest.mark.long]


@pytest.mark.parametrize("network", cuda_inference.NETWORKS)
def test_both_libraries_have_the_same_network(network, monkeypatch):
    """On the CPU: names and shapes of all weights."""
    import torch
    monkeypatch.setattr(alpha.nn.init, "kaiming_uniform_", lambda t, **_: t)  # loaded values take their place
    name, _, size = network.partition("@")
    state = cuda_inference.twin(network).state_dict()
    model = models.create(name, num_classes=10, **({"stem": "imagenet"} if size else {}))
    alpha.checkpoint.from_torch_state_dict(cuda_inference.named(network, state), model)
    assert sum(v.numel() for k, v in state.items() if not k.endswith("tracked")) == sum(
        p.size for p in (*model.parameters(), *(b for _, b in model.named_buffers())))
    assert all(torch.isfinite(v).all() for v in state.values())


@pytest.mark.skipif(EMULATED, reason="a whole network takes minutes on the emulated driver")
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_a_network_is_measured(device, tmp_path, precision):
    assert cuda_inference.main(["--busy", "--networks", "resnet18", "--batch", "1", "--precision", precision,
                                "--calls", "2", "--output", str(tmp_path)]) == 0
    row, = results.read(tmp_path / "cuda_inference.jsonl")
    assert row["ratio"] > 0 and row["errors"]["alpha"] < cuda_inference.BOUNDS[precision]
