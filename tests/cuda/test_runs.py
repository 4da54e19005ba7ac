"""Accumulation and load_run on a GPU: the gradients of several batches, and predictions of a saved run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import alpha
from alpha import nn
from alpha.training import fit, load_run

pytestmark = pytest.mark.cuda

RNG = np.random.default_rng(0)
LABELS = np.arange(22) % 3
IMAGES = (RNG.integers(0, 100, (22, 8, 8, 3)) + 50 * LABELS[:, None, None, None]).astype(np.uint8)


def net() -> nn.Module:
    alpha.manual_seed(1)
    return nn.Sequential(nn.Conv2d(3, 4, 4, stride=4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))


def test_accumulated_steps_on_a_gpu_are_those_of_the_cpu_and_a_run_is_loaded_there(tmp_path: Path) -> None:
    found = {}
    for device, size, accumulate in (("cuda", 4, 2), ("cpu", 4, 2), ("cuda", 8, 1)):
        model = net()
        history = fit(model, (IMAGES, LABELS), epochs=2, batch_size=size, accumulate=accumulate, lr=0.05, momentum=0.9,
                      freeze="0.bias", device=device, output=tmp_path / f"{device}{size}", progress=False)
        found[device, size] = {name: t.numpy() for name, t in model.state_dict().items()}
        assert history["step"] == [3, 6]
    for other in (("cpu", 4), ("cuda", 8)):
        for name, a in found["cuda", 4].items():
            assert np.allclose(a, found[other][name], rtol=1e-4, atol=1e-5), (other, name)
    run = load_run(tmp_path / "cuda4", device="cuda", model=net())
    wanted = load_run(tmp_path / "cuda4", model=net()).outputs(IMAGES)
    assert run.model.state_dict()["0.weight"].device.startswith("cuda")
    assert np.allclose(run.outputs(IMAGES, batch_size=10), wanted, rtol=1e-4, atol=1e-4)
    guesses = run.predict(IMAGES[:2], top=1)
    assert [g[0].label for g in guesses] == wanted[:2].argmax(1).tolist()


def test_sam_and_schedule_free_steps_on_a_gpu_are_those_of_the_cpu() -> None:
    for settings in ({"sam": 0.5, "momentum": 0.9}, {"optimizer": "schedule_free_sgd"}):
        found = []
        for device in ("cuda", "cpu"):
            model = net()
            history = fit(model, (IMAGES, LABELS), (IMAGES, LABELS), epochs=2, batch_size=8, lr=0.05, device=device,
                          progress=False, **settings)
            average = history.ema.state_dict() if history.ema else {}
            found.append([*(t.numpy() for t in (*model.state_dict().values(), *average.values())),
                          np.array(history["val_loss"])])
        assert len(found[0]) == (5 if "sam" in settings else 9)
        for a, b in zip(*found, strict=True):
            assert np.allclose(a, b, rtol=1e-4, atol=1e-5), settings
