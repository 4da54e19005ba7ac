"""Contextual residual networks: the authors' form beside PyTorch, their weight files in and out, a short training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import alpha
import models
from alpha import checkpoint, nn, ops
from alpha.errors import CheckpointError, ConfigError
from alpha.gradcheck import assert_equal_at
from models.coresnet import CoResNet
from models.resnet import BasicBlock, Bottleneck
from tests.op_checks import refused

PAIRS = {"coresnet18": "resnet18", "coresnet50": "resnet50", "coresnet101": "resnet101", "coresnet152": "resnet152"}
FORMS = ("conv2_1", "coconv_levels.0")


@pytest.mark.parametrize("name", PAIRS)
def test_shapes_and_names_of_parameters_are_those_of_the_plain_network(name: str, monkeypatch) -> None:
    monkeypatch.setattr(nn.init, "kaiming_uniform_", lambda t, **_: t)  # values do not count, and take seconds
    ours, plain = (models.create(n).state_dict() for n in (name, PAIRS[name]))
    assert {k: t.shape for k, t in ours.items()} == {k: t.shape for k, t in plain.items()}


def test_levels_by_stage() -> None:
    net = models.create("coresnet18")
    for stage, levels in zip(net.stages, (4, 3, 2, 1)):
        convs = [m for m in getattr(net, stage).modules() if isinstance(m, nn.CoConv2d)]
        assert len(convs) == 4 and {m.dilations for m in convs} == {tuple(range(1, levels + 1))}
    convs = [m for m in models.create("coresnet50").modules() if isinstance(m, nn.CoConv2d)]
    assert len(convs) == 16


def test_the_authors_initial_values_are_scaled_by_level() -> None:
    alpha.manual_seed(0)
    net = models.create("coresnet50", init="fan_out")
    layer = net.layer2[1].conv2
    first = 0
    for channels in layer.channels:
        part = layer.weight.numpy()[first:first + channels]
        assert part.std() == pytest.approx((2 / (9 * channels)) ** 0.5, rel=0.05)
        first += channels
    assert net.conv1.weight.numpy().std() == pytest.approx((2 / (9 * 64)) ** 0.5, rel=0.1)


def test_unknown_options_are_refused() -> None:
    with refused(ConfigError, "models.create: coresnet50 has no option 'norm', it has stem, bn_end_stage, init"):
        models.create("coresnet50", norm=True)
    with refused(ConfigError, "models.create: resnet34 has no option 'stem', it has none"):
        models.create("resnet34", stem="imagenet")
    with refused(ConfigError, "CoResNet: stem is 'big', it can be 'small' or 'imagenet'"):
        models.create("coresnet18", stem="big")
    with refused(ConfigError, "CoResNet: init is 'fan', it can be 'fan_in' or 'fan_out'"):
        models.create("coresnet18", init="fan")


# ---- the authors' networks in PyTorch --------------------------------------------------------------------------------


def twin(form: str):
    """Returns PyTorch's network in one of the two public forms, with norms that do something."""
    torch = pytest.importorskip("torch")
    from benchmarks.torch_coresnet import CoResNet as Theirs

    torch.manual_seed(0)
    net = Theirs((2, 2, 2, 2), num_classes=7, imagenet=True, form=form)
    for module in net.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(module.weight, 0.5, 1.5)
            torch.nn.init.uniform_(module.running_var, 0.5, 1.5)
            torch.nn.init.normal_(module.running_mean)
    return net


def authors_network(blocks: tuple[int, ...] = (2, 2, 2, 2)) -> CoResNet:
    return CoResNet(Bottleneck, blocks, 7, stem="imagenet", bn_end_stage=True)


@pytest.mark.torch
@pytest.mark.parametrize("form", FORMS)
def test_weights_of_pytorch_load_and_the_forward_is_theirs(form: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    theirs, ours = twin(form), authors_network()
    torch.save(theirs.state_dict(), tmp_path / "theirs.pth")
    assert checkpoint.load_torch(tmp_path / "theirs.pth", ours) == ([], [])
    x = np.random.default_rng(0).standard_normal((2, 64, 70, 3)).astype(np.float32)
    with torch.no_grad(), alpha.no_grad():
        for mode in (False, True):
            expected = theirs.train(mode)(torch.from_numpy(np.moveaxis(x, -1, 1).copy())).numpy()
            assert_equal_at(ours.train(mode)(alpha.tensor(x)).numpy(), expected, rtol=1e-3, atol=1e-3, name=f"{mode=}")
    checkpoint.save_torch(tmp_path / "ours.pth", ours, levels=form)
    other = twin(form)
    other.load_state_dict(torch.load(tmp_path / "ours.pth", weights_only=True))
    for name, t in theirs.state_dict().items():
        if not name.endswith("num_batches_tracked"):
            assert torch.allclose(other.state_dict()[name], t, rtol=1e-5, atol=1e-5), name


@pytest.mark.parametrize("form", FORMS)
def test_the_two_forms_invert(form: str, tmp_path: Path) -> None:
    a, b = (CoResNet(BasicBlock, (1, 1, 1, 1), 5, stem="imagenet") for _ in range(2))
    checkpoint.save_torch(tmp_path / "a.safetensors", a, levels=form)
    assert checkpoint.load_torch(tmp_path / "a.safetensors", b) == ([], [])
    for name, t in a.state_dict().items():
        assert np.array_equal(b.state_dict()[name].numpy(), t.numpy()), name
    names = checkpoint.to_torch_state_dict(a, form)
    assert {"fc.weight", "layer2.0.downsample.1.num_batches_tracked"} <= names.keys()
    assert not [name for name in names if "shortcut" in name or "linear" in name]
    levels = {"conv2_1": ("conv1.conv2_3.weight", "layer4.0.conv1.weight"),
              "coconv_levels.0": ("conv1.coconv_levels.2.weight", "layer4.0.conv1.coconv_levels.0.weight")}[form]
    assert names[f"layer1.0.{levels[0]}"].shape == (16, 64, 3, 3) and levels[1] in names
    assert names[f"layer2.0.{levels[0]}"].shape == (32, 64, 3, 3)


def test_a_layer_by_itself_with_bias_goes_there_and_back() -> None:
    a, b = (nn.CoConv2d(4, 8, dilations=(1, 2, 3), bias=True) for _ in range(2))
    state = checkpoint.to_torch_state_dict(a, "coconv_levels.0")
    assert {k: v.shape for k, v in state.items()} == {
        f"coconv_levels.{k}.{name}": (c, *rest) for k, c in enumerate((4, 2, 2))
        for name, rest in (("weight", (4, 3, 3)), ("bias", ()))}
    assert checkpoint.from_torch_state_dict(state, b) == ([], [])
    assert np.array_equal(a.weight.numpy(), b.weight.numpy()) and np.array_equal(a.bias.numpy(), b.bias.numpy())


def test_levels_of_other_sizes_are_refused_and_nothing_is_loaded() -> None:
    layer = nn.CoConv2d(4, 8, dilations=(1, 2), channels=(2, 6))
    before = layer.weight.numpy().copy()
    state = checkpoint.to_torch_state_dict(nn.CoConv2d(4, 8, dilations=(1, 2)))
    with refused(CheckpointError, "from_torch_state_dict: conv2_1.weight has shape (4, 4, 3, 3), its level has 2",
                 "build the layer with the channels of the file, it has (2, 6)"):
        checkpoint.from_torch_state_dict(state, layer)
    mixed = {"conv2_1.weight": np.zeros((2, 4, 3, 3)), "conv2_2.weight": np.zeros((6, 4, 5, 5))}
    with refused(CheckpointError, "the levels conv2_1.weight to conv2_2.weight differ in shape: [(2, 4, 3, 3), (6, 4"):
        checkpoint.from_torch_state_dict(mixed, layer)
    more = checkpoint.to_torch_state_dict(nn.CoConv2d(4, 12, dilations=(1, 2, 3), channels=(2, 6, 4)))
    with refused(CheckpointError, "unexpected: conv2_3.weight"):
        checkpoint.from_torch_state_dict(more, layer)
    assert np.array_equal(layer.weight.numpy(), before)
    with refused(ConfigError, "to_torch_state_dict: levels is 'conv', the first level of a CoConv2d is called "):
        checkpoint.to_torch_state_dict(layer, levels="conv")


@pytest.mark.torch
def test_the_network_for_small_images_equals_pytorchs() -> None:
    torch = pytest.importorskip("torch")
    from benchmarks.torch_coresnet import coresnet18

    torch.manual_seed(0)
    theirs, ours = coresnet18(), models.create("coresnet18")
    assert sum(p.numel() for p in theirs.parameters()) == ours.num_parameters()
    checkpoint.from_torch_state_dict(theirs.state_dict(), ours)
    x = np.random.default_rng(0).standard_normal((2, 32, 32, 3)).astype(np.float32)
    with torch.no_grad(), alpha.no_grad():
        expected = theirs(torch.from_numpy(np.moveaxis(x, -1, 1).copy())).numpy()
        assert_equal_at(ours(alpha.tensor(x)).numpy(), expected, rtol=1e-3, atol=1e-3)


# ---- training --------------------------------------------------------------------------------------------------------


def test_a_small_network_learns_and_is_saved(tmp_path: Path) -> None:
    from alpha import optim

    class Small(nn.Module):
        def __init__(self):
            self.conv1, self.bn = nn.CoConv2d(1, 8), nn.BatchNorm2d(8)
            self.conv2, self.fc = nn.CoConv2d(8, 8, stride=2, dilations=(1, 2)), nn.Linear(8, 2)

        def forward(self, x):
            y = self.bn(self.conv1(x), activation="relu")
            return self.fc(ops.relu(self.conv2(y)).mean((1, 2)))

    rng = np.random.default_rng(0)
    labels = np.arange(32) % 2
    x = alpha.tensor((rng.standard_normal((32, 8, 8, 1)) + labels[:, None, None, None]).astype(np.float32))
    target = alpha.tensor(labels)

    def steps(net, optimizer, count):
        losses = []
        for _ in range(count):
            loss = ops.cross_entropy(net(x), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    alpha.manual_seed(0)
    net = Small()
    optimizer = optim.SGD(net.parameters(), lr=0.2, momentum=0.9)
    losses = steps(net, optimizer, 20)
    assert losses[-1] < 0.3 * losses[0]
    checkpoint.save(tmp_path / "a.safetensors", net.state_dict())
    other = Small()
    other.load_state_dict(checkpoint.load(tmp_path / "a.safetensors")[0])
    with alpha.no_grad():
        assert np.array_equal(net.eval()(x).numpy(), other.eval()(x).numpy())
