"""alpha.to_torch: weights into PyTorch's model, and torch modules of alpha's networks."""

from __future__ import annotations

from importlib import import_module

import numpy as np
import pytest

import alpha
import models
from alpha import nn, ops, optim
from alpha.errors import ArgumentError, CheckpointError, ConfigError

torch = pytest.importorskip("torch")
import_module("tests.interop.nets_attention")
NETS = import_module("tests.interop.nets").NETS
agree = import_module("tests.interop.agree")
pytestmark = [pytest.mark.torch,
              pytest.mark.same_without_kernels("networks of PyTorch are compared with the kernels")]
SMALL = ("lenet5", "resnet20", "airbench94")


@pytest.mark.parametrize("name", ["plain", "residual", "positions", "generator", "vit"])
def test_trained_weights_and_statistics_go_back(name: str) -> None:
    make, shapes = NETS[name]
    model = make().double()
    net = alpha.from_torch(model, agree.inputs(shapes, 2, 0))
    xs = agree.inputs(shapes, 4, 1)
    optimizer = optim.SGD(net.parameters(), lr=0.05)
    agree.losses(net.train(), [agree.to_alpha(x) for x in xs], optimizer, optimizer.zero_grad)
    other = make().double()
    assert alpha.to_torch(net, other) is other
    agree.check_outputs(other.eval(), net.eval(), xs)


def check_twin(name: str) -> None:
    net = models.create(name).to(dtype="float64")
    for p in net.parameters():
        p.data += 0.05 * ops.randn(p.shape, dtype="float64")
    twin = alpha.to_torch(net.eval())
    xs = agree.inputs(((2, 3, 32, 32),), 2, 0)
    assert not twin.training
    agree.check_outputs(twin, net, xs)
    agree.check_training(without_dropout(twin), without_dropout(net), xs, lr=1e-4)


def without_dropout(model):
    for module in model.modules():
        if type(module).__name__ == "Dropout":
            module.p = 0.0
    return model


@pytest.mark.parametrize("name", SMALL)
def test_a_shipped_network_is_a_torch_module(name: str) -> None:
    check_twin(name)


@pytest.mark.large
@pytest.mark.parametrize("name", [name for name in models.list() if name not in SMALL])
def test_every_shipped_network_is_a_torch_module(name: str) -> None:
    check_twin(name)


def test_names_are_those_that_weight_files_have() -> None:
    net = models.create("resnet18", stem="imagenet")
    names = set(alpha.to_torch(net, example=ops.zeros((2, 64, 64, 3))).state_dict())
    assert names == set(alpha.checkpoint.to_torch_state_dict(net)) and "layer2.0.downsample.0.weight" in names


class Strange(nn.Module):
    def __init__(self, how: str) -> None:
        self.how, self.fc = how, nn.Linear(4, 4)

    def forward(self, x):
        if self.how == "op":
            return ops.argmax(self.fc(x), 1)
        if self.how == "mode":
            return self.fc(x) if self.training else self.fc(self.fc(x))
        return self.fc(x)


def test_what_has_no_counterpart_is_refused() -> None:
    x = ops.zeros((2, 4))
    with pytest.raises(ConfigError, match=r"the op argmax of Strange has no counterpart\nhelp: write the model in Py"):
        alpha.to_torch(Strange("op"), example=x)
    with pytest.raises(ConfigError, match=r"other layers in training than in inference\nhelp: write the model"):
        alpha.to_torch(Strange("mode"), example=x)
    made = alpha.to_torch(Strange("plain"), example=x)
    assert "fc" in made.code and made(torch.ones(5, 4)).shape == (5, 4)


def test_wrong_arguments_are_refused_and_nothing_is_written() -> None:
    net = alpha.from_torch(torch.nn.Sequential(torch.nn.Linear(3, 2)), torch.ones(2, 3))
    with pytest.raises(ArgumentError, match=r"a Module of alpha is needed\nhelp: pass the trained module first"):
        alpha.to_torch(torch.nn.Linear(3, 2), net)
    with pytest.raises(ArgumentError, match=r"a torch\.nn\.Module is needed"):
        alpha.to_torch(net, 3)
    with pytest.raises(ArgumentError, match="an example is given beside a model"):
        alpha.to_torch(net, torch.nn.Linear(3, 2), example=ops.zeros((2, 3)))
    with pytest.raises(ArgumentError, match="a Tensor with an axis of samples is needed"):
        alpha.to_torch(net, example=np.zeros((2, 3)))
    other = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    before = other[0].weight.detach().clone()
    with pytest.raises(CheckpointError, match=r"1\.weight is missing.*0\.weight has shape \(2, 3\), the model has"):
        alpha.to_torch(net, other)
    assert torch.equal(other[0].weight, before)
