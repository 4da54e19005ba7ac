"""PyTorch's state_dicts and files: layouts, dtypes, and what is no such thing."""

import os
from functools import partial

import numpy as np
import pytest

import models
from alpha import checkpoint, nn, ops
from alpha.errors import CheckpointError
from alpha.gradcheck import assert_equal_at
from tests.forged import with_header

pytestmark = pytest.mark.same_without_kernels("it calls no compiled kernel")


class Net(nn.Module):
    """One layer of each kind whose weights change layout."""

    def __init__(self):
        self.conv, self.up = nn.Conv2d(3, 4, (3, 5)), nn.ConvTranspose2d(4, 2, (2, 3))
        self.bn, self.norm = nn.BatchNorm2d(2), nn.LayerNorm((5, 7, 2))
        self.fc, self.out = nn.Linear(5 * 7 * 2, 6, flattened=(5, 7, 2)), nn.Linear(6, 3)


def torch_shapes():
    return {"conv.weight": (4, 3, 3, 5), "up.weight": (4, 2, 2, 3), "norm.weight": (2, 5, 7), "fc.weight": (6, 70),
            "bn.running_mean": (2,), "bn.num_batches_tracked": (), "out.weight": (3, 6)}


def test_export_has_the_layouts_of_torch_and_import_inverts_it():
    a, b = Net(), Net()
    state = checkpoint.to_torch_state_dict(a)
    for name, shape in torch_shapes().items():
        assert state[name].shape == shape, name
    assert checkpoint.from_torch_state_dict(state, b) == ([], [])
    for name, t in a.state_dict().items():
        assert np.array_equal(b.state_dict()[name].numpy(), t.numpy()), name


def test_columns_behind_a_flattened_map_are_reordered():
    net = Net()
    column = np.arange(70.0).reshape(2, 5, 7)                   # PyTorch flattens (C, H, W)
    state = checkpoint.to_torch_state_dict(net)
    state["fc.weight"] = np.broadcast_to(column.reshape(-1), (6, 70))
    checkpoint.from_torch_state_dict(state, net)
    assert_equal_at(net.fc.weight.numpy()[0], np.moveaxis(column, 0, -1).reshape(-1))


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "_orig_mod.module."])
def test_prefixes_are_dropped(prefix):
    net = Net()
    state = {prefix + name: a for name, a in checkpoint.to_torch_state_dict(net).items()}
    assert checkpoint.from_torch_state_dict(state, Net()) == ([], [])


def test_a_foreign_state_dict_is_refused():
    state = checkpoint.to_torch_state_dict(Net())
    state["fc.weight"] = np.zeros((6, 71), np.float32)
    state["extra"] = state.pop("out.bias")
    with pytest.raises(CheckpointError, match=r"1 missing: out.bias; 1 unexpected: extra.*of another shape: fc.weight"):
        checkpoint.from_torch_state_dict(state, Net())


@pytest.mark.torch
@pytest.mark.parametrize("suffix", [".pth", ".pt", ".safetensors"])
def test_files_go_to_torch_and_come_back(tmp_path, suffix):
    torch = pytest.importorskip("torch")
    import safetensors.torch

    from benchmarks.torch_models import LeNet5

    ours, theirs = models.create("lenet5"), LeNet5()
    path = tmp_path / f"a{suffix}"
    checkpoint.save_torch(path, ours)
    load = safetensors.torch.load_file if suffix == ".safetensors" else lambda p: torch.load(p, weights_only=True)
    theirs.load_state_dict(load(path))
    with torch.no_grad():
        for p in theirs.parameters():
            p.mul_(2.0)
    if suffix == ".safetensors":
        safetensors.torch.save_file(theirs.state_dict(), path)
    else:
        torch.save({"net": {f"module.{k}": v for k, v in theirs.state_dict().items()}, "acc": 0.5}, path)
    back = models.create("lenet5")
    checkpoint.load_torch(path, back)
    for (name, p), q in zip(ours.named_parameters(), back.parameters()):
        assert np.array_equal(p.numpy() * 2, q.numpy()), name


@pytest.mark.torch
def test_bfloat16_weights_come_in():
    torch = pytest.importorskip("torch")
    layer = nn.Linear(2, 1)
    checkpoint.from_torch_state_dict(torch.nn.Linear(2, 1).bfloat16().state_dict(), layer)
    assert layer.weight.dtype == "float32"


@pytest.mark.torch
def test_files_that_torch_cannot_give_us(tmp_path):
    torch = pytest.importorskip("torch")
    path, net = tmp_path / "a.pth", nn.Linear(1, 1)
    path.write_bytes(b"not a checkpoint")
    with pytest.raises(CheckpointError, match=r"load_torch: .*a.pth cannot be read: .*\nhelp: save it with torch.save"):
        checkpoint.load_torch(path, net)
    torch.save({"code": os.system}, path)
    with pytest.raises(CheckpointError, match=r"a.pth cannot be read: Weights only load failed"):
        checkpoint.load_torch(path, net)
    torch.save({"epoch": 3}, path)
    with pytest.raises(CheckpointError, match=r"a.pth holds no state_dict\nhelp: save it with"):
        checkpoint.load_torch(path, net)
    bad = tmp_path / "a.safetensors"
    bad.write_bytes(b"12345678901234567890")
    with pytest.raises(CheckpointError, match=r"a.safetensors is no safetensors file: .*\nhelp: write it with"):
        checkpoint.load_torch(bad, net)
    with pytest.raises(CheckpointError, match=r"none.pth cannot be read"):
        checkpoint.load_torch(tmp_path / "none.pth", net)


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_our_own_checkpoint_is_no_file_of_torch(tmp_path, suffix):
    path, net = tmp_path / f"a{suffix}", nn.Linear(1, 1)
    checkpoint.save(path, net.state_dict())
    with pytest.raises(CheckpointError, match=r"load_torch: .*a.* is a checkpoint of alpha, not a file of PyTorch\n"
                       r"help: read it with alpha.checkpoint.load\(path\)"):
        checkpoint.load_torch(path, net)
    checkpoint.save_torch(path.with_suffix(".safetensors"), net)
    assert checkpoint.load_torch(path.with_suffix(".safetensors"), net) == ([], [])


def test_a_pth_file_without_torch_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    (tmp_path / "a.pth").write_bytes(b"x")
    with pytest.raises(CheckpointError, match="PyTorch is not installed\nhelp: install torch, or convert"):
        checkpoint.load_torch(tmp_path / "a.pth", nn.Linear(1, 1))


# ---- who says what is turned -----------------------------------------------------------------------------------------

class Table(nn.Module):
    """A layer with parameters of four axes, one of which PyTorch stores with channels first."""

    torch_channels_first = ("maps", "absent")

    def __init__(self):
        self.table = nn.Parameter(ops.randn((1, 8, 8, 8)))
        self.maps = nn.Parameter(ops.randn((2, 8, 8, 8)))
        self.absent = None


def test_only_what_a_module_names_is_turned():
    net = nn.Sequential(Table(), nn.Conv2d(8, 8, 8, groups=8), nn.ConvTranspose2d(8, 8, 8, bias=False))
    kept = {name: t.numpy() for name, t in net.state_dict().items()}
    state = checkpoint.to_torch_state_dict(net)
    for name, a in kept.items():
        turned = a.ndim == 4 and name != "0.table"
        assert np.array_equal(state[name], np.moveaxis(a, -1, -3) if turned else a), name
    other = nn.Sequential(Table(), nn.Conv2d(8, 8, 8, groups=8), nn.ConvTranspose2d(8, 8, 8, bias=False))
    checkpoint.from_torch_state_dict(state, other)
    for name, t in other.state_dict().items():
        assert np.array_equal(t.numpy(), kept[name]), name


@pytest.mark.torch
def test_a_position_table_comes_from_torch_as_it_is():
    torch = pytest.importorskip("torch")
    class Positions(nn.Module):
        def __init__(self):
            self.table = nn.Parameter(ops.zeros((1, 8, 8, 8)))
    table, net = torch.randn(1, 8, 8, 8), Positions()
    checkpoint.from_torch_state_dict({"table": table}, net)
    assert np.array_equal(net.table.numpy(), table.numpy())
    assert np.array_equal(checkpoint.to_torch_state_dict(net)["table"], table.numpy())


@pytest.mark.parametrize("names, text", [
    ("weight", "Linear.torch_channels_first is 'weight', not a tuple of names"), (5, "is 5, not a tuple"),
    ((5,), "not a tuple of names"), (("weight",), "has 'weight', which is no parameter of height, width and channels")])
def test_a_declaration_that_is_none_is_refused(names, text):
    layer = nn.Linear(2, 2)
    layer.torch_channels_first = names
    for call in (checkpoint.to_torch_state_dict, lambda layer: checkpoint.from_torch_state_dict({}, layer)):
        with pytest.raises(CheckpointError, match=rf"torch_state_dict: .*{text}.*\nhelp: (write|name)"):
            call(layer)


def test_a_shared_layer_is_turned_under_each_of_its_names():
    class Twice(nn.Module):
        def __init__(self):
            self.a = self.b = nn.Linear(12, 2, flattened=(2, 3, 2))
            self.c = self.d = nn.Conv2d(1, 2, 3)
    net = Twice()
    state, kept = checkpoint.to_torch_state_dict(net), net.a.weight.numpy()
    assert np.array_equal(state["a.weight"], state["b.weight"]) and state["d.weight"].shape == (2, 1, 3, 3)
    checkpoint.from_torch_state_dict(state, net)
    assert np.array_equal(net.a.weight.numpy(), kept)


def conv_and(*layers):
    return nn.Sequential(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)), nn.ReLU(), nn.MaxPool2d(2), *layers)


@pytest.mark.parametrize("net, text", [
    (conv_and(nn.Flatten(), nn.Linear(128, 5)), r"4 reads a flattened map of 8 channels and 16 pixels, which .*"
     r"\nhelp: write Linear\(128, 5, flattened=\(4, 4, 8\)\)"),
    (conv_and(nn.Dropout(), nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(48, 5))), "4.2 reads a flattened map of"
     r" 8 channels and 6 pixels.*\nhelp: write Linear\(48, 5, flattened=\(H, W, 8\)\)"),
    (conv_and(nn.Mish(), nn.Hardtanh(), nn.PReLU(8), nn.Hardshrink(), nn.Threshold(0.1, 0.0), nn.CELU(), nn.Flatten(),
              nn.Linear(128, 5)), r"10 reads a flattened map of 8 channels and 16 pixels"),
    (nn.Sequential(nn.ConvTranspose2d(3, 4, 2), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(64, 2)), "4 channels and"),
    (conv_and(nn.AvgPool2d(2), nn.LocalResponseNorm(3), nn.RMSNorm(8), nn.AdaptiveMaxPool2d(2), nn.LogSoftmax(),
              ops.mish, nn.Flatten(), nn.Linear(32, 5)), r"10 reads a flattened map of 8 channels and 4 pixels"),
])
def test_a_linear_behind_a_flatten_must_say_what_was_flattened(net, text, tmp_path):
    before = {name: t.numpy() for name, t in net.state_dict().items()}
    class Model(nn.Module):
        def __init__(self):
            self.net = net
    for model in (net, Model()):
        for call in (checkpoint.to_torch_state_dict, lambda model: checkpoint.from_torch_state_dict(before, model),
                     lambda model: checkpoint.load_torch(tmp_path / "a.pth", model),
                     lambda model: checkpoint.save_torch(tmp_path / "a.safetensors", model)):
            with pytest.raises(CheckpointError, match=text):
                call(model)
    assert os.listdir(tmp_path) == []
    checkpoint.save(tmp_path / "a", net.state_dict())       # among ourselves nothing need be said


@pytest.mark.skipif(not hasattr(nn, "Lambda"), reason="functions are no layers yet")
def test_functions_between_the_layers_hide_nothing():
    layers = [nn.Conv2d(3, 8, 3), ops.relu, partial(ops.max_pool2d, kernel_size=2)]
    for flatten in (nn.Flatten(), partial(ops.flatten, start=1)):
        net = nn.Sequential(*layers, flatten, ops.relu, nn.Linear(128, 5))
        with pytest.raises(CheckpointError, match="5 reads a flattened map of 8 channels and 16 pixels"):
            checkpoint.to_torch_state_dict(net)
    checkpoint.to_torch_state_dict(nn.Sequential(*layers, lambda x: x.mean((1, 2)), nn.Flatten(), nn.Linear(16, 5)))


@pytest.mark.parametrize("net", [
    conv_and(nn.Flatten(), nn.Linear(128, 5, flattened=(4, 4, 8))), conv_and(nn.Flatten(), nn.Linear(8, 5)),
    conv_and(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 5)),
    conv_and(nn.GLU(), nn.Flatten(), nn.Linear(4, 5)), conv_and(nn.Linear(8, 16), nn.Flatten(), nn.Linear(256, 5)),
    nn.Sequential(nn.Flatten(), nn.Linear(48, 5)),
    conv_and(nn.Flatten(), nn.Linear(128, 5, flattened=(1, 1, 128)))])
def test_a_linear_elsewhere_need_not(net):
    state = checkpoint.to_torch_state_dict(net)
    assert checkpoint.from_torch_state_dict(state, net) == ([], [])


# ---- what is no state_dict -------------------------------------------------------------------------------------------

@pytest.mark.parametrize("state, text", [
    (None, "the state is None, not a dict"), ([1], "the state is a list of length 1"),
    ({5: np.zeros(1)}, "the state has the name 5, which is no string"),
    ({"weight": np.zeros((1, 1)), "module.weight": np.zeros((1, 1))}, "two names of the state are weight without"),
    ({"weight": None, "bias": np.zeros(1)}, "weight has dtype object, which cannot become float32|of another shape"),
    ({"weight": [[1j]], "bias": np.zeros(1)}, "weight has dtype complex128, which cannot become float32"),
])
def test_what_is_no_state_dict_is_refused(state, text):
    layer = nn.Linear(1, 1)
    before = layer.weight.numpy()
    with pytest.raises(CheckpointError, match=rf"{text}.*\nhelp: "):
        checkpoint.from_torch_state_dict(state, layer)
    assert np.array_equal(layer.weight.numpy(), before)


@pytest.mark.parametrize("model", [None, 5, nn.Linear, {}])
def test_what_is_no_model_is_refused(model, tmp_path):
    for call in (checkpoint.to_torch_state_dict, lambda m: checkpoint.from_torch_state_dict({}, m),
                 lambda m: checkpoint.load_torch(tmp_path / "a.pth", m), lambda m: checkpoint.save_torch("a.pth", m)):
        with pytest.raises(CheckpointError, match=r"the model is .*, not an alpha.nn.Module\nhelp: pass the model"):
            call(model)


@pytest.mark.torch
def test_tensors_of_torch_that_are_no_arrays_are_refused():
    torch = pytest.importorskip("torch")
    layer, bias = nn.Linear(2, 2), torch.zeros(2)
    for value in (torch.eye(2).to_sparse(), torch.empty(2, 2, device="meta"), torch.eye(2).to(torch.float8_e4m3fn)):
        with pytest.raises(CheckpointError, match=r"'weight' cannot be read as an array: .*\nhelp: convert it"):
            checkpoint.from_torch_state_dict({"weight": value, "bias": bias}, layer)


@pytest.mark.torch
def test_a_bfloat16_file_is_read_as_float32(tmp_path):
    torch = pytest.importorskip("torch")
    import safetensors.torch
    path, layer = tmp_path / "a.safetensors", nn.Linear(3, 2)
    theirs = torch.nn.Linear(3, 2).bfloat16()
    safetensors.torch.save_file(theirs.state_dict(), path)
    assert checkpoint.load_torch(path, layer) == ([], [])
    assert np.array_equal(layer.weight.numpy(), theirs.weight.detach().float().numpy())


@pytest.mark.torch
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_an_8_bit_file_is_refused(tmp_path, dtype):
    torch = pytest.importorskip("torch")
    import safetensors.torch
    path = tmp_path / "a.safetensors"
    safetensors.torch.save_file({"weight": torch.eye(2).to(getattr(torch, dtype)), "bias": torch.zeros(2)}, path)
    with pytest.raises(CheckpointError, match=r"load_torch: weight in .* has dtype F8_E\dM\d, which alpha cannot read\n"
                       "help: convert it where it was made"):
        checkpoint.load_torch(path, nn.Linear(2, 2))


@pytest.mark.parametrize("suffix", [".safetensors", ".pth", ".pt", ""])
def test_an_empty_file_is_a_message(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    path.touch()
    if suffix != ".safetensors":
        pytest.importorskip("torch")
    with pytest.raises(CheckpointError, match=r"load_torch: .*a.* (cannot be read|is no safetensors file): .+\nhelp: "):
        checkpoint.load_torch(path, nn.Linear(1, 1))
    with pytest.raises(CheckpointError, match=r"a.* is damaged, or no checkpoint of alpha: it has 0 bytes, too few"):
        checkpoint.load(path)


def test_a_forged_safetensors_file_is_a_message(tmp_path):
    path = tmp_path / "a.safetensors"
    for header in (b"[]", b"{", b'{"weight":{"dtype":"F32","shape":[0,4611686018427387904],"data_offsets":[0,0]}}'):
        path.write_bytes(with_header(header, b""))
        with pytest.raises(CheckpointError, match=r"a.safetensors is no safetensors file: .*\nhelp: write it with"):
            checkpoint.load_torch(path, nn.Linear(1, 1))


def test_save_torch_without_torch_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(CheckpointError, match=r"save_torch: .*PyTorch is not installed\nhelp: install torch, or name"):
        checkpoint.save_torch(tmp_path / "a.pth", nn.Linear(1, 1))


def test_save_torch_does_not_replace_a_directory(tmp_path):
    (tmp_path / "a.safetensors").mkdir()
    with pytest.raises(CheckpointError, match=r"save_torch: .*a.safetensors is a directory"):
        checkpoint.save_torch(tmp_path / "a.safetensors", nn.Linear(1, 1))
