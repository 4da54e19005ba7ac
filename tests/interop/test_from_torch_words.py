"""alpha.from_torch: its errors, settings and files, and what it counts."""

from __future__ import annotations

import importlib.util
import inspect
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import alpha
from alpha.errors import ArgumentError, CheckpointError, ConfigError, GraphError, ShapeError

torch = pytest.importorskip("torch")
import_module("tests.interop.nets_attention")
NETS = import_module("tests.interop.nets").NETS
agree = import_module("tests.interop.agree")
pytestmark = [pytest.mark.torch,
              pytest.mark.same_without_kernels("networks of PyTorch are compared with the kernels")]
X = torch.ones(2, 3, 8, 8)


def line_of(f: Any, text: str) -> int:
    """Returns the line of this file where a function has a text."""
    lines, first = inspect.getsourcelines(f)
    return first + next(k for k, line in enumerate(lines) if text in line)


class Net(torch.nn.Module):
    """A convolution, and what a test does behind it."""

    def __init__(self, behind: Any = None) -> None:
        super().__init__()
        self.conv, self.behind = torch.nn.Conv2d(3, 4, 1), behind
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        y = self.conv(x)
        return y if self.behind is None else self.behind(self, y)


# ---- errors ----------------------------------------------------------------------------------------------------------


class Strange(Net):
    def forward(self, x):
        y = torch.digamma(x)
        z = torch.nn.functional.grid_sample(x, x[:, :2].permute(0, 2, 3, 1))
        return (y + z + torch.digamma(x)).sum()


def test_all_operators_without_a_counterpart_are_named_with_their_lines() -> None:
    with pytest.raises(ConfigError, match="operators of the model have no counterpart") as error:
        alpha.from_torch(Strange(), X)
    text = str(error.value)
    for name, part in (("digamma", "y = torch"), ("grid_sampler", "z = torch"), ("digamma", "return")):
        assert f"{name} at test_from_torch_words.py:{line_of(Strange, part)}" in text
    assert "3 operators" in text and "help: write these with other operators" in text


def undecided(net, x):
    if x.sum() > 0:
        return x
    return -x


def test_a_choice_by_the_elements_is_refused_with_its_line() -> None:
    with pytest.raises(GraphError, match="depends on the elements of its input") as error:
        alpha.from_torch(Net(undecided), X)
    assert f"test_from_torch_words.py:{line_of(undecided, 'if x.sum')}" in str(error.value)
    assert "help: choose by torch.where" in str(error.value)


class Counting(Net):
    def forward(self, x):
        self.count += 1
        return x


def hidden_view(net, x):
    y = x[:, ::2]
    y += 1
    return x + 1


def test_changes_of_buffers_and_of_read_views_are_refused() -> None:
    with pytest.raises(ConfigError, match="forward changes count") as error:
        alpha.from_torch(Counting(), X)
    assert f"test_from_torch_words.py:{line_of(Counting, '+= 1')}" in str(error.value)
    with pytest.raises(ConfigError, match="a view is changed in place") as error:
        alpha.from_torch(Net(hidden_view), X)
    assert "help: write what is changed in place as a new value" in str(error.value)


def broken(net, x):
    return x.reshape(7, 7)


def test_what_torch_cannot_export_is_told_with_the_place() -> None:
    with pytest.raises(ConfigError, match="PyTorch cannot export the model") as error:
        alpha.from_torch(Net(broken), X)
    assert f"test_from_torch_words.py:{line_of(broken, 'reshape')}" in str(error.value)


def test_other_arguments_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"a torch\.nn\.Module is needed"):
        alpha.from_torch(Net, X)
    with pytest.raises(ArgumentError, match=r"example is .*a torch.Tensor is needed"):
        alpha.from_torch(Net(), np.ones((2, 3, 8, 8)))
    with pytest.raises(ConfigError, match="name a Python file"):
        alpha.from_torch(Net(), X, write="net.txt")


def test_a_path_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"net.py cannot be written.*\nhelp: make the folder first"):
        alpha.from_torch(Net(), X, write=tmp_path / "none" / "net.py")


# ---- settings --------------------------------------------------------------------------------------------------------


def test_inputs_and_outputs_may_have_channels_first() -> None:
    model = Net().double()
    net = alpha.from_torch(model, X.double(), channels_first=True)
    y = net(alpha.ones((2, 3, 8, 8), dtype="float64"))
    np.testing.assert_allclose(y.numpy(), model(X.double()).detach().numpy(), atol=1e-12)
    assert len(net.permutes) == 2 and "2 permutes left" in repr(net)


@pytest.mark.parametrize("name", ["windows", "branches", "vit", "shared"])
def test_the_code_is_imported_and_computes_the_same(name: str, tmp_path: Path) -> None:
    make, shapes = NETS[name]
    model = make().double().eval()
    xs = agree.inputs(shapes, 2, 0)
    net = alpha.from_torch(model, xs, write=tmp_path / "my_net.py")
    spec = importlib.util.spec_from_file_location("my_net", tmp_path / "my_net.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    again = module.load().eval()
    assert type(again).__name__ == type(model).__name__ and again.origin.endswith(name)
    agree.check_outputs(model, again, xs)
    assert "import torch" not in net.code and f"nets{'_attention' if name != 'branches' else ''}.py:" in net.code
    alpha.save({"other": alpha.ones((2,))}, tmp_path / "other.safetensors")
    with pytest.raises(CheckpointError, match="has other names than"):
        module.load(tmp_path / "other.safetensors")


def test_the_number_of_samples_is_open_also_with_an_example_of_one() -> None:
    net = alpha.from_torch(Net(), X[:1])
    assert net(alpha.ones((5, 8, 8, 3))).shape == (5, 8, 8, 4)


def of_two(net, x):
    return x.mean((2, 3)).view(2, -1)


def test_a_model_for_one_number_of_samples_says_so() -> None:
    net = alpha.from_torch(Net(of_two), X)
    assert net(alpha.ones((2, 8, 8, 3))).shape == (2, 4) and "2 samples alone" in repr(net)
    with pytest.raises(ShapeError, match="x has 3 samples, the model was converted for 2"):
        net(alpha.ones((3, 8, 8, 3)))


def test_a_float32_model_is_converted_in_float32_and_can_be_moved() -> None:
    make, shapes = NETS["broadcasts"]
    model = make().eval()
    net = alpha.from_torch(model, torch.ones(shapes[0]))
    assert {p.dtype for p in net.parameters()} == {"float32"}
    x = agree.inputs(shapes, 2, 1)
    agree.check_outputs(model.double(), net.double(), x, 1e-6)


# ---- what is made ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["plain", "residual", "dense", "shuffle", "split_channels", "unet", "convnext",
                                  "inception", "vit", "conv_mixer"])
def test_no_permute_is_left_where_none_is_needed(name: str) -> None:
    make, shapes = NETS[name]
    net = alpha.from_torch(make(), tuple([torch.ones(shape) for shape in shapes]))
    assert net.permutes == () and ".permute(" not in net.code and "0 permutes left" in repr(net)


def test_permutes_that_are_needed_are_counted_with_their_lines() -> None:
    make, shapes = NETS["mixer"]
    net = alpha.from_torch(make(), torch.ones(shapes[0]))
    assert len(net.permutes) == 2 and all("nets_attention.py" in place or "nets.py" in place for place in net.permutes)


def test_calls_of_layers_are_layers_and_what_follows_them_is_fused() -> None:
    net = alpha.from_torch(NETS["residual"][0](), X)
    assert isinstance(net.layers[0].bn1, alpha.nn.BatchNorm2d) and net.layers[0].bn2.momentum == 0.3
    assert 'activation="relu"' in net.code and "residual=" in net.code and "for_norm=self.training" in net.code
    assert isinstance(NETS["plain"][0]()[0], torch.nn.Conv2d) and net.fc.flattened == (2, 2, 8)


def test_frozen_and_shared_parameters_stay_so() -> None:
    net = alpha.from_torch(NETS["shared"][0](), torch.ones(2, 8))
    assert net.b.weight is net.a.weight and net.again is net.a and not net.c.bias.requires_grad


def test_dropout_drops_in_training_alone() -> None:
    model = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Flatten())
    net = alpha.from_torch(model.train(), torch.ones(2, 10, 10))
    x = alpha.ones((4, 10, 10))
    assert net.training and isinstance(net[0], alpha.nn.Dropout)
    y = net(x).numpy()
    assert set(np.unique(y)) == {0.0, 2.0} and 0.3 < (y > 0).mean() < 0.7
    assert (net.eval()(x).numpy() == 1).all()


def test_a_part_is_entries_by_name() -> None:
    part = alpha.interop.pytorch.Part(alpha.nn.Linear(2, 2), scale=alpha.nn.Parameter(alpha.ones((3, 2, 2))),
                              mask=alpha.ones((2,)), channels_first=("scale",), unsaved=("mask",))
    assert isinstance(part[0], alpha.nn.Linear) and part["scale"] is part.scale
    assert set(part.state_dict()) == {"0.weight", "0.bias", "scale"} and len(list(part.buffers())) == 1
    assert alpha.checkpoint.to_torch_state_dict(part)["scale"].shape == (2, 3, 2)
