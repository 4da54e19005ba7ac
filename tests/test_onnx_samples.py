"""ONNX files say which numbers of samples they take, and compute all of these as the model does."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import alpha
import alpha.onnx
import models
from alpha import nn, ops
from alpha.tensor import Tensor
from tests.test_onnx import first, trained

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")


class Applied(nn.Module):
    """A linear layer, and a function of its rows."""

    def __init__(self, f: Callable[[Tensor], Tensor]) -> None:
        self.f, self.line = f, nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.f(self.line(x))


FIXED = {
    "a number of the batch": lambda y: y * float(y.shape[0]),
    "a row of numbers": lambda y: y + ops.arange(y.shape[0]).reshape(-1, 1).float(),
    "zeros of the batch": lambda y: y + ops.zeros((y.shape[0], 4)),
    "a half": lambda y: y[:y.shape[0] // 2 + 1],
    "every second sample": lambda y: y[::2],
    "an expanded token": lambda y: ops.concat([ops.ones((1, 4)).expand((y.shape[0], 4)), y], 1),
    "a branch": lambda y: y if y.shape[0] < 4 else ops.relu(y),
    "an own error": lambda y: y if y.shape[0] < 3 else {}["missing"],
}
OPEN = {
    "the last sample": lambda y: y[-1:], "all but the first": lambda y: y[1:],
    "the first sample": lambda y: y[:1], "all but the last": lambda y: y[:-1], "one sample": lambda y: y[-1],
    "twice": lambda y: ops.concat([y, y], 0), "rows": lambda y: y.reshape(-1, 2), "centred": lambda y: y - y.mean(0),
}


def test_an_axis_that_one_sample_loses_closes_the_batch(tmp_path: Path) -> None:
    model = Applied(lambda y: y.squeeze())
    with pytest.warns(UserWarning, match="reshape, has another form with 2"):
        alpha.onnx.export(model, ops.zeros((1, 3)), tmp_path / "x")
    compare(model, tmp_path / "x", (3,), (1,))


def test_examples_of_several_lengths_close_the_batch(tmp_path: Path) -> None:
    class Two(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return x + y.sum(0)
    with pytest.warns(UserWarning, match=r"the first axes of the example have lengths \[2, 5\]"):
        alpha.onnx.export(Two(), (ops.zeros((2, 3)), ops.zeros((5, 3))), tmp_path / "x")
    assert batch_of(tmp_path / "x") == 2


def compare(model: nn.Module, path: Path, shape: tuple[int, ...], sizes: tuple[int, ...]) -> None:
    """Compares what ONNX Runtime computes from a file with a model, for several numbers of samples."""
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for n in sizes:
        x = ops.randn((n, *shape))
        want = first(model.eval()(x).numpy())
        (found,) = session.run(None, {"input": first(x.numpy())})
        assert found.shape == want.shape and np.allclose(found, want, rtol=1e-3, atol=1e-4 * np.abs(want).max())


def batch_of(path: Path) -> int | str:
    axis = onnx.load(str(path)).graph.input[0].type.tensor_type.shape.dim[0]
    return axis.dim_value or axis.dim_param


@pytest.mark.parametrize("samples", [1, 2])
@pytest.mark.parametrize("name", FIXED)
def test_a_constant_of_the_batch_closes_it_with_a_warning(name: str, samples: int, tmp_path: Path) -> None:
    model = Applied(FIXED[name])
    with pytest.warns(UserWarning, match=rf"onnx: the file takes {samples} samples only: .*\nhelp: "):
        alpha.onnx.export(model, ops.zeros((samples, 3)), tmp_path / "x")
    assert batch_of(tmp_path / "x") == samples
    compare(model, tmp_path / "x", (3,), (samples,))


@pytest.mark.parametrize("samples", [2, 3])
@pytest.mark.parametrize("name", OPEN)
def test_parts_of_the_batch_leave_it_open(name: str, samples: int, tmp_path: Path) -> None:
    model = Applied(OPEN[name])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        alpha.onnx.export(model, ops.zeros((samples, 3)), tmp_path / "x")
    assert batch_of(tmp_path / "x") == "N"
    compare(model, tmp_path / "x", (3,), (2, 3, 6))


QUICK = ("lenet5", "resnet20")


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in models.list()])
def test_shipped_models_take_any_number_of_samples(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if name not in QUICK and "slow" not in request.config.getoption("-m"):
        pytest.skip("long together: pytest -m slow tests/test_onnx_samples.py runs it")
    alpha.manual_seed(0)
    model = trained(models.create(name))
    alpha.onnx.export(model, ops.zeros((1, 32, 32, 3)), tmp_path / "x")
    assert batch_of(tmp_path / "x") == "N"
    compare(model, tmp_path / "x", (32, 32, 3), (1, 2, 5))
