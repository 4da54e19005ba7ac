"""Recurrent layers, volumes and computed weights as ONNX files, which ONNX Runtime reads; and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import alpha
from alpha import nn
from alpha.errors import ConfigError
from tests.op_checks import refused

pytestmark = pytest.mark.same_without_kernels("made of ops that have tests without kernels")

pytest.importorskip("onnx")


class First(nn.Module):
    """The first result of a layer."""

    def __init__(self, layer: nn.Module) -> None:
        self.layer = layer

    def forward(self, x: alpha.Tensor) -> alpha.Tensor:
        y: alpha.Tensor = self.layer(x)[0]
        return y


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "LSTM": (lambda: First(nn.LSTM(3, 4, num_layers=2, bidirectional=True)), (4, 2, 3)),
    "GRU": (lambda: First(nn.GRU(3, 4, batch_first=True)), (2, 4, 3)), "RNN": (lambda: First(nn.RNN(3, 4)), (3, 2, 3)),
    "Conv3d": (lambda: nn.Sequential(nn.Conv3d(2, 3, 3), nn.ReLU(), nn.MaxPool3d(2)), (2, 4, 6, 6, 2)),
    "ConvTranspose1d": (lambda: nn.ConvTranspose1d(3, 4, 3, 2), (2, 5, 3)),
    "weight_norm": (lambda: nn.Sequential(nn.utils.weight_norm(nn.Conv2d(3, 4, 3)), nn.ReLU()), (2, 5, 5, 3)),
    "spectral_norm": (lambda: nn.utils.spectral_norm(nn.Linear(3, 4)), (2, 3)),
    "SqueezeExcite": (lambda: nn.Sequential(nn.SqueezeExcite(4, 2), nn.DropPath(0.5), nn.LayerNorm2d(4)), (2, 3, 3, 4)),
    "momentum=None": (lambda: nn.BatchNorm2d(3, momentum=None), (2, 4, 4, 3))}


@pytest.mark.filterwarnings("ignore:.*the file takes:UserWarning")
@pytest.mark.parametrize("name", MODELS)
def test_files_compute_what_layers_do(name: str, tmp_path: Path) -> None:
    runtime: Any = pytest.importorskip("onnxruntime")
    make, shape = MODELS[name]
    model = make().eval()
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    alpha.onnx.export(model, alpha.tensor(x), tmp_path / "m.onnx", channels_first=False)
    session = runtime.InferenceSession(str(tmp_path / "m.onnx"))
    (y,) = session.run(None, {session.get_inputs()[0].name: x})
    np.testing.assert_allclose(y, model(alpha.tensor(x)).detach().numpy(), rtol=1e-4, atol=1e-5)


def test_a_transposed_convolution_of_volumes_is_refused(tmp_path: Path) -> None:
    with refused(ConfigError, "has no counterpart"):
        alpha.onnx.export(nn.ConvTranspose3d(2, 3, 2), alpha.ones((1, 3, 3, 3, 2)), tmp_path / "m.onnx")
