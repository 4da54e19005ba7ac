"""alpha.nn: Module (contents, modes, state, hooks), containers and their fusion."""

import copy
import gc

import numpy as np
import pytest

import alpha
from alpha import nn, ops
from alpha.core.graph import state
from alpha.errors import AlphaError, AnomalyError, CheckpointError, DTypeError
from alpha.gradcheck import assert_equal_at
from tests.op_checks import refused


class Net(nn.Module):
    """Two convolutions, one of them inside a Sequential, a buffer, and a shared parameter."""

    def __init__(self):
        self.body = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU())
        self.head = nn.Linear(3, 2)
        self.scale = nn.Parameter(ops.ones((2,)))
        self.same = self.scale
        self.register_buffer("count", ops.zeros((1,)))

    def forward(self, x):
        return self.head(self.body(x).mean((1, 2))) * self.scale


def images(*shape):
    return ops.randn(shape)


# ---- contents --------------------------------------------------------------------------------------------------------

def test_names_of_parameters_buffers_and_modules():
    net = Net()
    assert [name for name, _ in net.named_parameters()] == [
        "scale", "body.0.weight", "body.0.bias", "body.1.weight", "body.1.bias", "head.weight", "head.bias"]
    assert [name for name, _ in net.named_buffers()] == ["count", "body.1.running_mean", "body.1.running_var"]
    assert [name for name, _ in net.named_modules()] == ["", "body", "body.0", "body.1", "body.2", "head"]
    assert net.num_parameters() == 2 + 2 * 9 * 3 + 3 + 3 + 3 + 6 + 2
    assert all(p.requires_grad and p.is_leaf for p in net.parameters())


def test_a_shared_module_is_counted_once_and_saved_under_both_names():
    shared = nn.Linear(2, 2)
    net = nn.Sequential(shared, nn.ReLU(), shared)
    assert net.num_parameters() == 6
    assert sorted(net.state_dict()) == ["0.bias", "0.weight", "2.bias", "2.weight"]


def test_a_subclass_without_super_init_works():
    class Scale(nn.Module):
        def __init__(self):
            self.weight = nn.Parameter(ops.full((2,), 3.0))

        def forward(self, x):
            return x * self.weight

    assert Scale()(ops.ones((2,))).tolist() == [3.0, 3.0]


def test_a_plain_list_of_layers_is_refused():
    with pytest.raises(AlphaError, match=r"Module: attribute blocks is a plain list of layers.*\n.*nn.ModuleList"):
        nn.Module().blocks = [nn.ReLU(), nn.Linear(1, 1)]


def test_a_module_without_forward_says_so():
    with pytest.raises(NotImplementedError, match="Module: it has no forward method\nhelp: define forward"):
        nn.Module()(ops.ones((1,)))


def test_module_list_and_sequential_are_sequences():
    layers = nn.ModuleList([nn.Linear(1, 2), nn.ReLU()])
    layers.append(nn.Linear(2, 3))
    assert len(layers) == 3 and isinstance(layers[1], nn.ReLU) and layers[-1].out_features == 3
    assert [type(m).__name__ for m in layers] == ["Linear", "ReLU", "Linear"]
    assert nn.Sequential(*layers)(ops.ones((5, 1))).shape == (5, 3)


def test_repr_is_a_tree():
    assert repr(nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.Sequential(nn.ReLU()))) == (
        "Sequential(\n  (0): Conv2d(3, 4, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), bias=False)\n"
        "  (1): Sequential(\n    (0): ReLU()\n  )\n)")


def test_train_eval_apply_zero_grad_freeze():
    net = Net()
    assert net.training and net.eval() is net
    assert not any(m.training for m in net.modules())
    assert all(m.training for m in net.train().modules())
    seen = []
    assert net.apply(seen.append) is net
    assert len(seen) == 6 and seen[-1] is net
    net(images(2, 4, 4, 2)).sum().backward()
    assert all(p.grad is not None for p in net.parameters())
    net.zero_grad()
    assert all(p.grad is None for p in net.parameters())
    assert not any(p.requires_grad for p in net.requires_grad_(False).parameters())


def test_to_casts_in_place_of_the_same_parameters():
    net = Net()
    before = list(net.parameters())
    weight = net.head.weight.numpy()
    net.to("cpu", dtype="float64")
    assert all(a is b for a, b in zip(before, net.parameters()))
    assert {p.dtype for p in net.state_dict().values()} == {"float64"}
    assert_equal_at(net.head.weight.numpy(), weight)
    assert net(images(1, 4, 4, 2).astype("float64")).dtype == "float64"


def test_deepcopy_is_independent():
    net = Net()
    other = copy.deepcopy(net)
    other.scale.copy_(np.array([7.0, 7.0]))
    assert net.scale.tolist() == [1.0, 1.0]
    assert other.same is other.scale


def test_a_dropped_model_leaves_no_reference_cycle():
    gc.collect()
    gc.disable()
    try:
        net = Net()
        net.register_backward_hook(lambda module, g: None)
        net(images(2, 4, 4, 2)).sum().backward()
        del net
        found = gc.collect()
        assert found == 0
    finally:
        gc.enable()


# ---- state -----------------------------------------------------------------------------------------------------------

def test_state_dict_round_trip():
    a, b = Net(), Net()
    a.body[1].running_mean.copy_(np.array([1.0, 2.0, 3.0]))
    values = {name: t.numpy() for name, t in a.state_dict().items()}
    assert b.load_state_dict(values) == ([], [])
    for name, t in b.state_dict().items():
        assert_equal_at(t.numpy(), values[name], name=name)


def test_load_state_dict_lists_everything_and_loads_nothing():
    net = Net()
    values = {name: t.numpy() + 1 for name, t in net.state_dict().items()}
    values["body.0.wieght"] = values.pop("body.0.weight")
    values["head.weight"] = values["head.weight"].T
    before = {name: t.numpy() for name, t in net.state_dict().items()}
    with pytest.raises(CheckpointError) as error:
        net.load_state_dict(values)
    text = str(error.value)
    assert text.startswith("Net.load_state_dict: 1 missing: body.0.weight; 1 unexpected: body.0.wieght (did you mean "
                           "body.0.weight?); 1 of another shape: head.weight (3, 2), the module has (2, 3)\nhelp: ")
    for name, t in net.state_dict().items():
        assert_equal_at(t.numpy(), before[name], name=name)


def test_load_state_dict_not_strict_skips_names_but_not_shapes():
    net = Net()
    assert net.load_state_dict({"scale": np.array([4.0, 5.0]), "foreign": np.ones(1)}, strict=False)[1] == ["foreign"]
    assert net.scale.tolist() == [4.0, 5.0]
    with pytest.raises(CheckpointError, match=r"1 of another shape: scale \(3,\), the module has \(2,\)"):
        net.load_state_dict({"scale": np.ones(3)}, strict=False)


def test_load_state_dict_recognises_oihw():
    conv = nn.Conv2d(2, 3, 5)
    with pytest.raises(CheckpointError, match=r"PyTorch's OIHW: alpha.checkpoint.from_torch_state_dict"):
        conv.load_state_dict({"weight": np.zeros((3, 2, 5, 5)), "bias": np.zeros(3)})


# ---- hooks -----------------------------------------------------------------------------------------------------------

def test_forward_hooks_see_replace_and_can_be_removed():
    layer, log = nn.Linear(2, 2), []
    x = ops.ones((1, 2))
    plain = layer(x).numpy()
    remove_pre = layer.register_forward_pre_hook(lambda m, args: log.append("pre") or (args[0] * 2.0,))
    remove_post = layer.register_forward_hook(lambda m, args, y: log.append(args[0].tolist()) or y + 1.0)
    assert_equal_at(layer(x).numpy(), (plain - layer.bias.numpy()) * 2 + layer.bias.numpy() + 1, atol=1e-6)
    assert log == ["pre", [[2.0, 2.0]]]
    remove_pre()
    remove_post()
    assert_equal_at(layer(x).numpy(), plain)
    assert len(log) == 2


def test_backward_hook_sees_and_replaces_the_gradient_of_the_output():
    layer, seen = nn.Linear(2, 1, bias=False), []
    remove = layer.register_backward_hook(lambda m, g: seen.append(g.tolist()) or g * 3.0)
    layer(ops.ones((1, 2))).sum().backward()
    assert seen == [[[1.0]]] and layer.weight.grad.tolist() == [[3.0, 3.0]]
    remove()
    layer.zero_grad()
    layer(ops.ones((1, 2))).sum().backward()
    assert layer.weight.grad.tolist() == [[1.0, 1.0]]


def test_hooks_that_return_something_else():
    x = ops.ones((2, 3))
    layer = nn.Linear(3, 2)
    remove = layer.register_forward_pre_hook(lambda m, args: args[0] * 0.0)     # one argument, not a tuple
    assert layer(x).tolist() == [layer.bias.tolist()] * 2
    remove()
    for value, what in ((3, "an int"), (True, "a bool"), (np.ones(2), "a ndarray")):
        remove = layer.register_forward_hook(lambda m, args, y, value=value: value)
        with refused(DTypeError, f"Linear: a forward hook returned {what}, the output is a Tensor", "None to keep"):
            layer(x)
        remove()
    layer.register_forward_hook(lambda m, args, y: (y, y))
    assert len(layer(x)) == 2
    for register in (layer.register_forward_hook, layer.register_forward_pre_hook, layer.register_backward_hook):
        with refused(DTypeError, f"Linear.{register.__name__}: the hook is None, a function is needed"):
            register(None)
    pair = nn.Identity()
    pair.register_backward_hook(lambda m, g: None)
    with refused(DTypeError, "Identity: its output is a tuple, a backward hook needs one", "t.register_hook(...)"):
        pair((x, x))


def test_a_hook_that_is_registered_twice_is_removed_once():
    x = ops.ones((2, 3))
    layer, log = nn.Linear(3, 2), []
    remove = layer.register_forward_hook(hook := lambda m, args, y: log.append(1))
    layer.register_forward_hook(hook)
    remove()
    remove()
    layer(x)
    assert log == [1]


def test_anomaly_mode_names_the_layer():
    net = Net()
    net.body[0].weight.copy_(np.full((3, 3, 3, 2), np.nan))
    with alpha.detect_anomaly(), pytest.raises(AnomalyError, match=r"layer body.0 \(Conv2d\), .*test_nn.py:\d+"):
        net(images(1, 4, 4, 2))
    assert state.layers == ()
