"""ONNX files whose number of samples is open compute what the model computes, for any number of samples."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import alpha
import alpha.nn.functional as F
import alpha.onnx
from alpha import nn
from alpha.core.tensor import Tensor
from tests.test_onnx import first

pytestmark = pytest.mark.same_without_kernels("it tests what is above the kernels")
onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")


class Then(nn.Module):
    """A convolution, and a function of its maps."""

    def __init__(self, f: Callable[[Tensor], Tensor]) -> None:
        self.f, self.conv = f, nn.Conv2d(2, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.f(self.conv(x))


def rows(y: Tensor) -> Tensor:
    return y.reshape(y.shape[0], -1, 4)


OPEN = {
    "rows": lambda y: y.reshape(y.shape[0], -1), "all rows": lambda y: y.reshape(-1, 4),
    "first sample": lambda y: y[:1], "last sample": lambda y: y[-1:], "last two": lambda y: y[-2:],
    "first two": lambda y: y[:2], "without the first": lambda y: y[1:], "every second": lambda y: y[::2],
    "but the last": lambda y: y[:-1], "turned round": lambda y: y.flip(0), "an index": lambda y: y[-1],
    "both ends": lambda y: alpha.cat([y[:1], y, y[-1:]], 0), "twice": lambda y: alpha.cat([y, y], 0),
    "zeros": lambda y: y + alpha.zeros((y.shape[0], 1, 1, 4)),
    "state": lambda y: alpha.cat([rows(y), alpha.full((y.shape[0], 1, 4), 0.5)], 1),
    "expanded": lambda y: y + alpha.ones((1, 1, 1, 4)).expand(y.shape),
    "token": lambda y: alpha.cat([alpha.ones((1, 1, 4)).expand((y.shape[0], 1, 4)), rows(y)], 1),
    "mean of samples": lambda y: y - y.mean(0, keepdim=True), "one mean": lambda y: y.mean((0, 1, 2)),
    "samples turned": lambda y: rows(y).permute((1, 0, 2)), "softmax": lambda y: y.softmax(dim=0),
}
CLOSED = {
    "a factor": (lambda y: y * float(y.shape[0]), "mul reads the number"),
    "positions": (lambda y: y + alpha.arange(y.shape[0]).reshape(-1, 1, 1, 1).float(), "reads a constant of shape"),
    "a half": (lambda y: y[: y.shape[0] // 2 + 1], "a limit of a slice is"),
    "a shape that is squeezed": (lambda y: y.mean((1, 2), keepdim=True).squeeze(), "a value has shape"),
    "another branch": (lambda y: y.relu() if y.shape[0] > 1 else y, "ops with"),
    "pairs of samples": (lambda y: y.reshape(2, -1, 4), "the model stops"),
    "a padding": (lambda y: F.pad(y, (0, y.shape[0])), "pad has widths"),
    "a mean of many": (lambda y: y.reshape(y.shape[0] * 5, -1).sum(1) / y.shape[0], "div reads the number"),
}


def compare(model: nn.Module, path: Path, made_with: int, numbers: tuple[int, ...]) -> None:
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    loaded = alpha.onnx.load(path).eval()
    model.eval()
    for n in numbers:
        x = alpha.tensor(np.random.default_rng(n).standard_normal((n, 5, 5, 2)).astype(np.float32))
        want = model(x).numpy()
        (found,) = session.run(None, {"input": first(x.numpy())})
        assert found.shape == first(want).shape, (made_with, n)
        np.testing.assert_allclose(found, first(want), atol=1e-5)
        np.testing.assert_allclose(loaded(x).numpy(), want, atol=1e-5)


@pytest.mark.parametrize("made_with", [1, 3])
@pytest.mark.parametrize("name", OPEN)
def test_a_file_follows_the_number_of_samples(name: str, made_with: int, tmp_path: Path) -> None:
    model, path = Then(OPEN[name]), tmp_path / "net.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        alpha.onnx.export(model, alpha.zeros((made_with, 5, 5, 2)), path)
    assert onnx.load(str(path)).graph.input[0].type.tensor_type.shape.dim[0].dim_param == "N"
    compare(model, path, made_with, (1, 2, 3, 8))


@pytest.mark.parametrize("made_with", [2, 4])
@pytest.mark.parametrize("name", CLOSED)
def test_a_file_is_closed_by_what_is_not_understood(name: str, made_with: int, tmp_path: Path) -> None:
    (f, reason), path = CLOSED[name], tmp_path / "net.onnx"
    model = Then(f)
    with pytest.warns(UserWarning, match=rf"takes {made_with} samples and no other number: .*{reason}.*\nhelp: "):
        alpha.onnx.export(model, alpha.zeros((made_with, 5, 5, 2)), path)
    graph = onnx.load(str(path)).graph
    assert graph.input[0].type.tensor_type.shape.dim[0].dim_value == made_with
    assert not any(d.dim_param for d in graph.output[0].type.tensor_type.shape.dim)
    compare(model, path, made_with, (made_with,))


def test_an_output_names_the_axis_of_samples_where_it_is(tmp_path: Path) -> None:
    alpha.onnx.export(Then(lambda y: rows(y).permute((1, 0, 2))), alpha.zeros((2, 5, 5, 2)), tmp_path / "x")
    dims = onnx.load(str(tmp_path / "x")).graph.output[0].type.tensor_type.shape.dim
    assert [d.dim_param or d.dim_value for d in dims] == [25, "N", 4]


@pytest.mark.parametrize("settings", [
    dict(kernel_size=2, ceil_mode=True), dict(kernel_size=3, stride=2, padding=1, ceil_mode=True),
    dict(kernel_size=2, stride=1, dilation=2), dict(kernel_size=(3, 2), stride=2, dilation=(1, 2), ceil_mode=True),
    dict(kernel_size=2, stride=3, padding=1, ceil_mode=True), dict(kernel_size=3, stride=(2, 3), ceil_mode=True)])
def test_max_pools_that_round_up_or_are_dilated_are_one_operator(settings: dict, tmp_path: Path) -> None:
    path = tmp_path / "pool.onnx"
    for size in ((5, 5), (6, 7), (7, 8), (8, 6)):
        model = nn.Sequential(nn.ReLU(), nn.MaxPool2d(**settings))
        alpha.onnx.export(model, alpha.zeros((1, *size, 2)), path)
        kinds = [n.op_type for n in onnx.load(str(path)).graph.node]
        assert kinds.count("MaxPool") == 1 and set(kinds) <= {"MaxPool", "Relu", "Identity"}
        x = alpha.randn((3, *size, 2)) - 2.0
        (found,) = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(
            None, {"input": first(x.numpy())})
        np.testing.assert_array_equal(found, first(model(x).numpy()))
        np.testing.assert_array_equal(alpha.onnx.load(path)(x).numpy(), model(x).numpy())
