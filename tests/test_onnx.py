"""ONNX files: ONNX Runtime computes from them what the model computes, and so does what is read back."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import numpy as np
import pytest

import alpha
import alpha.nn.functional as F
import alpha.onnx
import models
from alpha import nn, ops, optim
from alpha.core.tensor import Tensor
from alpha.errors import AlphaError, ConfigError

pytestmark = pytest.mark.same_without_kernels("it tests what is above the kernels")
onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")

LONG = ("coresnet101", "coresnet152", "resnet101", "resnet152", "resnet110", "wrn28_10", "densenet121", "resnet50",
        "coresnet50", "resnext29_8x64d", "resnet56", "densenet100_12", "convnext_tiny", "resnet34", "googlenet",
        "vgg13", "vgg13_plain", "vgg16_plain", "vgg19", "vgg19_plain", "dpn92", "dpn26", "unet", "dla", "senet18",
        "preact_resnet18", "regnet_x_400mf")   # layers of others, once more


def trained(model: nn.Module) -> nn.Module:
    """Gives a model running statistics and biases that are not those it begins with."""
    rng = np.random.default_rng(0)
    for name, t in (*model.named_parameters(), *model.named_buffers()):
        if t.ndim == 1:
            drawn = rng.uniform(0.5, 1.5, t.shape) if "var" in name else t.numpy() + 0.1 * rng.standard_normal(t.shape)
            with alpha.no_grad():
                t.copy_(drawn.astype(np.float32))
    return model


def first(a: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(a.transpose(0, 3, 1, 2)) if a.ndim == 4 else a


def check(model: nn.Module, shape: tuple[int, ...], path: Path, tolerance: float = 1e-4, batches: tuple = (2,)
          ) -> Path:
    """Exports a model, and compares what ONNX Runtime and the loaded file compute with it, for other batch sizes."""
    alpha.onnx.export(model, ops.zeros((1, *shape)), path)
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for batch in batches:
        x = ops.randn((batch, *shape))
        training = model.training
        want = model.eval()(x).numpy()
        model.train(training)
        (found,) = session.run(None, {"input": first(x.numpy())})
        scale = np.abs(want).max()
        assert np.abs(found - first(want)).max() <= tolerance * scale
        again = alpha.onnx.load(path).eval()(x).numpy()
        assert again.shape == want.shape and np.abs(again - want).max() <= tolerance * scale
    return path


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in LONG else n for n in models.list()])
def test_shipped_models_are_computed_by_onnx_runtime(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if name in LONG and "slow" not in request.config.getoption("-m"):
        pytest.skip("large: pytest -m slow tests/test_onnx.py runs it")
    alpha.manual_seed(0)
    check(trained(models.create(name)), (32, 32, 3), tmp_path / "net.onnx", 1e-3, (1, 2, 5))


class Mixed(nn.Module):
    """Ops whose layout matters, one after the other."""

    def __init__(self) -> None:
        self.conv = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.norm = nn.GroupNorm(2, 8)
        self.scale = nn.Parameter(ops.randn((8,)))
        self.line = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x))
        y = y * self.scale + ops.flip(y, 2)
        gate = ops.sigmoid(y.mean((1, 2)))
        y = ops.silu(y) + ops.gelu(y) * gate.reshape(-1, 1, 1, 8)
        y = ops.concat([y, ops.leaky_relu(y, 0.2)], 3)[:, ::2, 1:, 4:12]
        y = ops.pad(y, ((0, 0), (1, 0), (0, 0), (1, 1)))[..., 1:-1]
        return self.line(y) - ops.max(y, axis=3, keepdims=True)


class Causal(nn.Module):
    """Attention that looks back alone."""

    def __init__(self) -> None:
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, is_causal=True, need_weights=False)[0]


class Functions(nn.Module):
    """Functions of numbers, comparisons and choices."""

    def forward(self, x: Tensor) -> Tensor:
        y = ops.concat([ops.atan(x), ops.sinh(x), ops.cosh(x), ops.asin(0.1 * x), ops.acos(0.1 * x), ops.expm1(x),
                        ops.log1p(x.abs()), ops.erfc(x), ops.hypot(x, x + 1.0), ops.sign(x), F.normalize(x, dim=-1)], 3)
        chosen = ops.where((y > 0.2) & ~(y >= 1.0) | (y < -0.5), y, 0.25 * y)
        return ops.where((y <= 0.0) ^ (y != chosen), chosen, 2.0) * (chosen == y).float()


class UNet(nn.Module):
    """Down and up again, by two kinds of steps up, with a shortcut."""

    def __init__(self) -> None:
        self.down, self.up = nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ConvTranspose2d(8, 4, 4, 2, 1)
        self.wide, self.last = nn.Upsample(scale_factor=2, mode="bilinear"), nn.Conv2d(12, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = ops.relu(self.down(x))
        return self.last(ops.concat([self.up(h), self.wide(h)], 3))


OTHERS = {
    "functions": (lambda: Functions(), (4, 5, 3)), "u-net": (lambda: UNet(), (8, 10, 3)),
    "transposed": (lambda: nn.Sequential(nn.ConvTranspose2d(4, 6, (3, 2), 2, 1, output_padding=1, groups=2), nn.ReLU(),
                                         nn.ConvTranspose2d(6, 3, 3, dilation=2, bias=False)), (5, 4, 4)),
    "resized": (lambda: nn.Sequential(nn.Upsample((7, 9), mode="bilinear", align_corners=True), nn.Conv2d(2, 3, 1),
                                      nn.Upsample(scale_factor=2), nn.Upsample((5, 6), mode="bilinear")), (4, 5, 2)),
    "padded": (lambda: nn.Sequential(nn.ReflectionPad2d(2), nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"),
                                     nn.ReplicationPad2d(1)), (5, 6, 2)),
    "activations": (lambda: nn.Sequential(nn.PReLU(4), nn.CELU(), nn.SELU(), nn.Softsign(), nn.Mish(), nn.GLU(),
                                          nn.Hardshrink(0.1), nn.Threshold(0.05, 1.0)), (5, 6, 4)),
    "attention": (lambda: nn.Sequential(Causal(), nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)), (5, 8)),
    "layouts": (lambda: Mixed(), (9, 10, 3)),
    "flattened": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Lambda(lambda x: x * 0.5),
                                        nn.Linear(4 * 4 * 5, 6), nn.Softmax(-1)), (6, 7, 3)),
    "flattened and turned": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(80, 6)), (6, 7, 3)),
    "rows": (lambda: nn.Sequential(nn.Linear(5, 7), nn.ELU(), nn.LayerNorm(7), nn.BatchNorm1d(7), nn.Tanh()), (5,)),
    "pools": (lambda: nn.Sequential(nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(2, 1), nn.AdaptiveAvgPool2d((2, 1))),
              (10, 9, 3)),
    "groups": (lambda: nn.Sequential(nn.Conv2d(4, 8, 3, groups=2, dilation=2, bias=False), nn.BatchNorm2d(8),
                                     nn.ReLU6(), nn.Hardswish()), (9, 8, 4)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_layers_and_layouts(name: str, tmp_path: Path) -> None:
    make, shape = OTHERS[name]
    check(trained(make()), shape, tmp_path / "net.onnx")


def test_there_are_no_transposes_between_layers(tmp_path: Path) -> None:
    path = check(trained(models.create("vgg11")), (32, 32, 3), tmp_path / "net.onnx", 1e-3)
    kinds = [n.op_type for n in onnx.load(str(path)).graph.node]
    assert "Transpose" not in kinds and kinds.count("Conv") == 8
    check(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(80, 6)), (6, 7, 3), path)
    assert [n.op_type for n in onnx.load(str(path)).graph.node] == ["Conv", "Flatten", "Gemm", "Identity"]


def test_layouts_of_inputs_may_be_kept(tmp_path: Path) -> None:
    model, x = nn.Conv2d(3, 4, 3, padding=1), ops.randn((2, 5, 6, 3))
    alpha.onnx.export(model, x, tmp_path / "a", channels_first=False)
    session = runtime.InferenceSession(str(tmp_path / "a"), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {"input": x.numpy()})[0], model(x).numpy(), atol=1e-5)
    again = alpha.onnx.load(tmp_path / "a", channels_first=False)
    np.testing.assert_allclose(again(x).numpy(), model(x).numpy(), atol=1e-5)


def test_what_is_loaded_can_be_trained(tmp_path: Path) -> None:
    alpha.onnx.export(trained(models.create("lenet5")), ops.zeros((1, 32, 32, 3)), tmp_path / "net.onnx")
    model = alpha.onnx.load(tmp_path / "net.onnx")
    assert model.num_parameters() == models.create("lenet5").num_parameters()
    optimizer, x, y = optim.SGD(model.parameters(), lr=0.05), ops.randn((8, 32, 32, 3)), alpha.tensor([*range(8)])
    losses = []
    for _ in range(5):
        loss = ops.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def test_what_cannot_be_exported_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Sorted(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return ops.argmax(x, 1)
    with pytest.raises(ConfigError, match=r"the op \w+ has no counterpart here\nhelp: export a model without it"):
        alpha.onnx.export(Sorted(), ops.zeros((1, 4)), tmp_path / "x")
    with pytest.raises(AlphaError, match="model is 3, a Module is needed"):
        alpha.onnx.export(3, ops.zeros((1, 4)), tmp_path / "x")
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        alpha.onnx.load(tmp_path / "none")
    (tmp_path / "junk").write_bytes(b"\x00junk")
    with pytest.raises(ConfigError, match=r"is no ONNX file|has no operators"):
        alpha.onnx.load(tmp_path / "junk")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ConfigError, match=r'the package onnx is not installed\nhelp: pip install "\.\[onnx\]"'):
        alpha.onnx.load(tmp_path / "none")


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(18, 2)).eval()
    x, path = ops.zeros((1, 5, 5, 1)), tmp_path / "damaged.onnx"
    alpha.onnx.export(model, x, path)
    whole, rng, refused = path.read_bytes(), np.random.default_rng(1), 0
    for _ in range(150):
        data = bytearray(whole)
        for place in rng.integers(len(data), size=rng.integers(1, 6)):
            data[place] = rng.integers(256)
        path.write_bytes(data[:rng.integers(len(data))] if rng.random() < 0.2 else data)
        try:
            alpha.onnx.load(path)(x)
        except AlphaError as error:
            refused += 1
            assert "\nhelp: " in str(error)
    assert refused > 50


@pytest.mark.parametrize("place", [".", "none/model.onnx", "x" * 300])
def test_a_place_that_cannot_be_written_is_named(place: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be written: .*\nhelp: "):
        alpha.onnx.export(nn.Linear(2, 2), ops.zeros((1, 2)), tmp_path / place)


@pytest.mark.parametrize("kind, attributes, inputs, shape", [
    ("Reshape", {"allowzero": 1}, [[3, 4, 0]], (0, 3, 4)), ("Reshape", {}, [[0, 4, 3]], (2, 3, 4)),
    ("Transpose", {}, [], (2, 3, 4)), ("InstanceNormalization", {}, [[1.0, 2, 3], [0.5, 0, 0]], (2, 3, 4)),
    ("Flatten", {"axis": 0}, [], (2, 3, 4)), ("Flatten", {"axis": 2}, [], (2, 3, 4)), ("Flatten", {"axis": -1}, [],
    (2, 3, 4)), ("Pad", {"mode": "reflect"}, [[0, 1, 2, 0, 0, 1]], (2, 3, 4)), ("Pad", {"mode": "edge"},
    [[0, 1, 2, 0, 0, 1]], (2, 3, 4)), ("Pad", {}, [[0, 1, 2, 0, 0, 1], 1.5], (2, 3, 4)),
    ("Pad", {}, [[1, 2], 0.0, [2]], (2, 3, 4)), ("ReduceSum", {}, [np.zeros(0)], (2, 3, 4)),
    ("ReduceSum", {"noop_with_empty_axes": 1}, [np.zeros(0)], (2, 3, 4)), ("ReduceSum", {"keepdims": 0}, [[0, 2]],
    (2, 3, 4)), ("MaxPool", {"kernel_shape": [2, 2], "dilations": [2, 1]}, [], (1, 2, 5, 6))])
def test_defaults_of_operators(kind: str, attributes: dict, inputs: list, shape: tuple, tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    floats = [kind == "InstanceNormalization" or type(a) is float for a in inputs]
    weights = [onnx.numpy_helper.from_array(np.asarray(a, np.float32 if floats[k] else np.int64), f"i{k}")
               for k, a in enumerate(inputs)]
    value = onnx.helper.make_tensor_value_info
    rank = 2 if kind == "Flatten" else 1 if "keepdims" in attributes else len(shape)
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node(kind, ["x", *(w.name for w in weights)], ["y"], **attributes)], "one",
        [value("x", 1, shape)], [value("y", 1, [*"abcd"][:rank])], weights)
    made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=8)
    onnx.save(made, tmp_path / "one.onnx")
    want = runtime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
    y = alpha.onnx.load(tmp_path / "one.onnx", channels_first=False)(alpha.tensor(x)).detach().numpy()
    assert y.shape == want.shape
    np.testing.assert_allclose(y, want, 1e-5, 1e-6)


def test_outputs_that_nothing_computes_are_refused(tmp_path: Path) -> None:
    value = onnx.helper.make_tensor_value_info
    node = onnx.helper.make_node("MaxPool", ["x"], ["y", "at"], kernel_shape=[2, 2])
    graph = onnx.helper.make_graph([node], "one", [value("x", 1, (1, 1, 4, 4))], [
        value("y", 1, (1, 1, 3, 3)), value("at", 7, (1, 1, 3, 3))])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8),
              tmp_path / "one.onnx")
    with pytest.raises(ConfigError, match="nothing makes 'at'"):
        alpha.onnx.load(tmp_path / "one.onnx")


def one(tmp_path: Path, nodes: list, x: np.ndarray, weights: dict[str, np.ndarray], opset: int = 18) -> tuple:
    """Returns what ONNX Runtime and the loaded file compute of a graph from x to y."""
    value, path = onnx.helper.make_tensor_value_info, tmp_path / "one.onnx"
    made_of = [onnx.helper.make_node(kind, ins, outs, **attributes) for kind, ins, outs, attributes in nodes]
    graph = onnx.helper.make_graph(made_of, "one", [value("x", 1, x.shape)], [value("y", 1, [*"abcdef"][:x.ndim])], [
                                       onnx.numpy_helper.from_array(a, name) for name, a in weights.items()])
    made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=7)
    onnx.save(made, path)
    given = alpha.tensor(x.transpose(0, 2, 3, 1) if x.ndim == 4 else x)
    y = alpha.onnx.load(path).eval()(given).detach().numpy()
    session = runtime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0], first(y)


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).uniform(0.5, 2.0, shape).astype(np.float32)


@pytest.mark.parametrize("kind", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("attributes", [{}, {"axis": 0}, {"axis": 2}, {"axis": -1}])
def test_softmax_of_old_files_is_over_all_axes_behind_one(kind: str, attributes: dict, tmp_path: Path) -> None:
    np.testing.assert_allclose(*one(tmp_path, [(kind, ["x"], ["y"], attributes)], drawn(2, 3, 4), {}, 11), 1e-5, 1e-6)


@pytest.mark.parametrize("shape", [(2, 3, 3), (4, 3), (2, 3, 3, 3), (2, 3, 3, 3, 3)])
def test_batch_norm_has_its_channels_behind_the_samples(shape: tuple, tmp_path: Path) -> None:
    """Also where every axis is as long as the channels, so that no shape says so."""
    names, rng = ("g", "b", "m", "v"), np.random.default_rng(1)
    weights = {name: rng.uniform(0.5, 2.0, 3).astype(np.float32) for name in names}
    found = one(tmp_path, [("BatchNormalization", ["x", *names], ["y"], {"momentum": 0.9})], drawn(*shape), weights)
    np.testing.assert_allclose(*found, 1e-5, 1e-5)


def test_filters_that_are_computed_are_turned(tmp_path: Path) -> None:
    nodes = [("Mul", ["w", "g"], ["v"], {}), ("Conv", ["x", "v"], ["y"], {"pads": [1, 1, 1, 1]})]
    weights = {"w": drawn(4, 3, 3, 3), "g": drawn(4, 1, 1, 1)}
    np.testing.assert_allclose(*one(tmp_path, nodes, drawn(2, 3, 5, 6), weights), 1e-4, 1e-4)


def test_limits_of_old_files_are_attributes(tmp_path: Path) -> None:
    for attributes in ({"min": 0.8, "max": 1.5}, {"min": 0.8}, {"max": 1.5}, {}):
        np.testing.assert_array_equal(*one(tmp_path, [("Clip", ["x"], ["y"], attributes)], drawn(2, 3), {}, 9))


@pytest.mark.parametrize(("node", "shape", "weights", "opset", "text"), [
    (("Conv", ["x", "w"], ["y"], {}), (1, 3, 8), {"w": drawn(4, 3, 3)}, 18, "Conv y is of lines or volumes: (1, 3, 8)"),
    (("Conv", ["x", "w"], ["y"], {}), (1, 3, 8, 8, 8), {"w": drawn(4, 3, 3, 3, 3)}, 18, "Conv y is of lines or volum"),
    (("MaxPool", ["x"], ["y"], {"kernel_shape": [2]}), (1, 3, 8), {}, 18, "MaxPool y is of lines or volumes"),
    (("GlobalAveragePool", ["x"], ["y"], {}), (1, 3, 8), {}, 18, "GlobalAveragePool y is of lines or volumes"),
    (("Add", ["x", "b"], ["y"], {"axis": 1, "broadcast": 1}), (2, 3, 3), {"b": drawn(3)}, 6,
     "Add y has an attribute that is unknown: axis = 1"),
    (("BatchNormalization", ["x", "b", "b", "b", "b"], ["y"], {"training_mode": 1}), (2, 3), {"b": drawn(3)}, 15,
     "BatchNormalization y has an attribute that is unknown: training_mode = 1"),
    (("LayerNormalization", ["x", "b"], ["y"], {"axis": 1}), (2, 3, 3), {"b": drawn(3)}, 17,
     "LayerNormalization y has axis 1 of 3, and a scale of shape (3,)")])
def test_what_would_be_computed_otherwise_is_refused(node: tuple, shape: tuple, weights: dict, opset: int, text: str,
                                                     tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        one(tmp_path, [node], drawn(*shape), weights, opset)
    assert text in str(caught.value) and "\nhelp: " in str(caught.value)


def test_indices_of_a_pool_have_no_counterpart(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the indices of a max pool, has no counterpart here\nhelp: "):
        alpha.onnx.export(nn.MaxPool2d(2, return_indices=True), ops.zeros((1, 4, 4, 1)), tmp_path / "pool.onnx")


@pytest.mark.parametrize("attributes", [
    {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
    {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}, {"mode": "linear"},
    {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
    {"mode": "cubic", "coordinate_transformation_mode": "half_pixel", "cubic_coeff_a": -0.75}])
@pytest.mark.parametrize("weights", [{"scales": np.float32([1, 1, 2, 1.5])}, {"sizes": np.int64([2, 3, 9, 4])}])
def test_maps_are_resized(attributes: dict, weights: dict[str, np.ndarray], tmp_path: Path) -> None:
    inputs = ["x", "", *("scales", "sizes")[:1 + ("sizes" in weights)]]
    node = ("Resize", [name if name in (*weights, "x") else "" for name in inputs], ["y"], attributes)
    np.testing.assert_allclose(*one(tmp_path, [node], drawn(2, 3, 5, 6), weights), 1e-5, 1e-5)


@pytest.mark.parametrize(("attributes", "weights"), [
    ({"coordinate_transformation_mode": "asymmetric", "nearest_mode": "ceil"}, {"scales": np.float32([1, 1, 2, 2])}),
    ({"mode": "linear"}, {"scales": np.float32([1, 2, 1, 1])})])
def test_other_ways_to_resize_are_refused(attributes: dict, weights: dict[str, np.ndarray], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Resize y is .*\nhelp: height and width may change"):
        one(tmp_path, [("Resize", ["x", "", "scales"], ["y"], attributes)], drawn(2, 3, 4, 4), weights)


def test_a_model_of_one_number_of_samples_says_that_number(tmp_path: Path) -> None:
    class Pairs(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return ops.reshape(x, (2, 2, 3)).sum(1)
    for make, n in ((Pairs, 4), (lambda: nn.Linear(3, 2), "N")):
        with contextlib.nullcontext() if n == "N" else pytest.warns(UserWarning, match="the file takes 4 samples and"):
            alpha.onnx.export(make(), ops.zeros((4, 3)), tmp_path / "x")
        (value,) = onnx.load(str(tmp_path / "x")).graph.input
        first_axis = value.type.tensor_type.shape.dim[0]
        assert (first_axis.dim_value or first_axis.dim_param) == n
