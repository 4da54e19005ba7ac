"""Building models: whatever is set on a module is found, saved and moved, or refused with a message that says how."""

from __future__ import annotations

import copy
import functools
import pickle
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import alpha
from alpha import nn, ops, optim
from alpha.errors import AlphaError, ArgumentError, CheckpointError, ConfigError, DTypeError, GraphError, ShapeError
from tests.op_checks import refused


class Net(nn.Module):
    """A module to set attributes of."""

    def forward(self, x: Any) -> Any:
        return x


def linear() -> nn.Linear:
    return nn.Linear(3, 2)


def param() -> nn.Parameter:
    return nn.Parameter(ops.ones((2,)))


def with_(**attributes: Any) -> Net:
    net = Net()
    for name, value in attributes.items():
        setattr(net, name, value)
    return net


def names(module: nn.Module) -> list[str]:
    return list(module.state_dict())


X = ops.ones((2, 3))


# ---- parameters and modules ------------------------------------------------------------------------------------------

@pytest.mark.parametrize("value, what", [
    (lambda: ops.zeros((2, 3)), "a Tensor"), (lambda: np.zeros((2, 3)), "a ndarray"), (lambda: 0.0, "a float"),
    (linear, "a Linear"), (lambda: [param()], "a list"), (lambda: nn.ReLU, "the class ReLU")])
def test_a_parameter_gives_way_to_a_parameter_or_none(value: Callable[[], Any], what: str) -> None:
    layer = linear()
    before = layer.weight
    with refused(DTypeError, f"Linear: weight is a parameter, it cannot be set to {what}\n",
                 "set it to nn.Parameter(...), or overwrite its elements: weight.copy_(...)"):
        layer.weight = value()
    assert layer.weight is before and names(layer) == ["weight", "bias"]
    layer.weight = nn.Parameter(ops.zeros((2, 3)))
    assert layer(X).tolist() == [layer.bias.tolist()] * 2 and names(layer) == ["weight", "bias"]
    layer.bias = None
    assert names(layer) == ["weight"] and layer(X).tolist() == [[0.0, 0.0]] * 2
    layer.bias = param()
    del layer.bias
    assert names(layer) == ["weight"]


@pytest.mark.parametrize("value, what", [(lambda: ops.relu, "an Op"), (lambda: len, "a builtin_function_or_method"),
                                         (lambda: nn.ReLU, "the class ReLU"), (lambda: X, "a Tensor"),
                                         (param, "a Parameter")])
def test_a_module_gives_way_to_a_module_or_none(value: Callable[[], Any], what: str) -> None:
    net = with_(fc=linear())
    with refused(DTypeError, f"Net: fc is a module, it cannot be set to {what}", "nn.Lambda(...), or to None"):
        net.fc = value()
    assert names(net) == ["fc.weight", "fc.bias"]
    net.fc = nn.Lambda(ops.relu)
    net.fc = None
    assert names(net) == []


def test_to_set_data_writes_the_elements() -> None:
    w = linear().weight
    array, view = w.array, w.reshape(6)
    for data in (ops.ones((2, 3)), np.ones((2, 3)), np.ones((2, 3), np.float32), linear().weight * 0.0 + 1.0):
        w.data = data
        assert w.array is array and w.requires_grad and view.tolist() == [1.0] * 6
        w.data.fill_(0.0)
        w.data += 2.0
        assert view.tolist() == [2.0] * 6 and not w.data.requires_grad
    for wrong, error in ((np.zeros((3, 2), np.float32), ShapeError), (None, ArgumentError)):
        with refused(error, "copy_: "):
            w.data = wrong  # type: ignore[assignment]


def test_shared_weights_stay_shared() -> None:
    net = with_(a=linear(), b=linear())
    net.a.weight = net.b.weight
    assert net.num_parameters() == 10 and len(list(net.parameters())) == 3
    net.to(dtype="float64")
    assert net.a.weight is net.b.weight and net.a.weight.dtype == "float64"
    assert copy.deepcopy(net).num_parameters() == 10
    state = net.state_dict()
    assert with_(a=net.a, b=net.b).load_state_dict(state) == ([], [])
    other = {**state, "b.weight": state["b.weight"] + 1.0}
    before = net.a.weight.numpy()
    with refused(CheckpointError, "Net.load_state_dict: a.weight and b.weight are one tensor in the module, and have "
                 "different values", "strict=False"):
        net.load_state_dict(other)
    assert (net.a.weight.numpy() == before).all()
    del other["a.weight"]
    net.load_state_dict(other, strict=False)
    assert (net.a.weight.numpy() == before + 1).all()


# ---- lists, dicts and sets -------------------------------------------------------------------------------------------

@pytest.mark.parametrize("value, text, fix", [
    (lambda: {"a": linear()}, "dict of layers, whose parameters nobody would find", "nn.ModuleDict({...})"),
    (lambda: OrderedDict(a=[linear()]), "OrderedDict of layers", "nn.ModuleDict({...})"),
    (lambda: [[1, {"a": (linear(),)}]], "list of layers", "nn.ModuleList([...])"),
    (lambda: (nn.ReLU(),), "tuple of layers", "nn.ModuleList([...])"),
    (lambda: {linear()}, "set of layers", "nn.ModuleList([...])"),
    (lambda: deque([linear()]), "deque of layers", "nn.ModuleList([...])"),
    (lambda: [param()], "list of parameters, which nobody would find", "nn.ParameterList([...])"),
    (lambda: {"w": param()}, "dict of parameters", "nn.ParameterDict({...})"),
    (lambda: [ops.ones((2,), requires_grad=True)], "list of parameters", "nn.ParameterList([...])"),
    (lambda: [ops.ones((2,))], "list of tensors, which nobody would save or move", "self.register_buffer(name, t)")])
def test_a_container_of_what_would_not_be_found_is_refused(value: Callable[[], Any], text: str, fix: str) -> None:
    net = Net()
    with refused(ConfigError, f"Net: attribute parts is a plain {text}", fix):
        net.parts = value()
    assert not hasattr(net, "parts")


def test_containers_of_other_things_are_plain_attributes() -> None:
    loop: list[Any] = [1]
    loop.append(loop)
    net = with_(a=[1, "x"], b={"k": (1, None)}, c=[nn.ReLU, ops.relu], d=np.ones(2), e=loop, f=lambda: None)
    assert net.b == {"k": (1, None)} and names(net) == []


def test_a_list_may_repeat_what_the_module_has() -> None:
    net = with_(fc=linear(), last=linear())
    net.order = [net.last, net.fc, net.fc.weight]
    assert len(list(net.parameters())) == 4
    del net.last
    with refused(ConfigError, "Net: attribute order is a plain list of layers"):
        list(net.parameters())


@pytest.mark.parametrize("add, text", [
    (lambda net: net.items.append(linear()), "list of layers"),
    (lambda net: net.table.update(a=linear()), "dict of layers"),
    (lambda net: net.items.extend([1, {"a": [param()]}]), "list of parameters")])
@pytest.mark.parametrize("ask", [
    lambda net: list(net.parameters()), lambda net: net.state_dict(), lambda net: net.to("cpu"), lambda net: net.eval(),
    lambda net: optim.SGD(net.parameters(), lr=0.1), lambda net: net.load_state_dict({}), lambda net: net.zero_grad(),
    lambda net: with_(inner=net), lambda net: net.num_parameters(), lambda net: alpha.summary(net, (3,))])
def test_a_list_that_grew_is_found_when_somebody_asks(add: Any, text: str, ask: Any) -> None:
    net = with_(items=[], table={})
    ask(net) if "SGD" not in ask.__code__.co_names else None
    add(net)
    with refused(ConfigError, f"is a plain {text}", "wrap it: nn."):
        ask(net)


def test_what_belongs_to_the_class_is_refused() -> None:
    for body in (dict(fc=linear()), dict(w=param()), dict(layers=[linear()]), dict(table={"a": linear()})):
        (name,) = body
        with refused(ConfigError, f"Bad: attribute {name} belongs to the class", f"set it in __init__: self.{name} = "):
            type("Bad", (nn.Module,), body)
    for base in (nn.Module, nn.ModuleList):
        with refused(ConfigError, "Bad: _buffers is private to Module", "choose another name"):
            type("Bad", (base,), {"_buffers": {}})
    with refused(ConfigError, "Bad: it has __slots__, where parameters are not looked for", "leave __slots__ out"):
        type("Bad", (nn.Module,), {"__slots__": ("fc",)})

    class Shared(nn.Module):
        layers: list[nn.Module] = []
        sizes = (1, 2)

    a, b = Shared(), Shared()
    assert list(a.parameters()) == []
    a.layers.append(linear())
    for net in (a, b):
        with refused(ConfigError, "Shared: attribute layers is a plain list of layers"):
            list(net.parameters())


# ---- buffers ---------------------------------------------------------------------------------------------------------

class Centre(nn.Module):
    """Subtracts a mean that it keeps, and keeps what it saw."""

    def __init__(self) -> None:
        self.mean = ops.ones((3,))
        self.register_buffer("seen", None)
        self.register_buffer("scratch", ops.zeros((1,)), persistent=False)
        self.weight = nn.Parameter(ops.ones((3,)))

    def forward(self, x: alpha.Tensor) -> alpha.Tensor:
        self.last = y = (x - self.mean) * self.weight
        self.cache = [y]
        self.parts = {"mean": x.mean()}
        self.mean = self.mean * 0.5
        self.seen = x
        return y


def test_a_tensor_set_on_a_module_is_a_buffer_and_one_that_forward_keeps_is_not() -> None:
    net = Centre()
    assert names(net) == ["mean", "weight"]
    assert [name for name, _ in net.named_buffers()] == ["mean", "scratch"]
    with alpha.no_grad():
        net(X)
    net(X)
    assert sorted(names(net)) == ["mean", "seen", "weight"]
    assert net.mean.tolist() == [0.25] * 3 and net.last.requires_grad
    seen = net.seen
    net.to(dtype="float64")
    assert seen.dtype == "float32" and net.seen.dtype == "float64"      # the tensor itself may be somebody else's
    assert {t.dtype for t in (net.mean, net.seen, net.scratch, net.weight)} == {"float64"}
    assert net.last.dtype == "float32"
    net.other = ops.zeros((2,))
    assert "other" in names(net)
    net.other = param()
    assert "other" in dict(net.named_parameters()) and "other" not in dict(net.named_buffers())
    assert [name for name, _ in Centre().named_buffers()] == ["mean", "scratch"]    # nothing is shared


def test_a_module_made_within_a_call_has_its_buffers() -> None:
    class Lazy(nn.Module):
        def forward(self, x: Any) -> Any:
            self.inner = Centre()
            return self.inner(x)

    net = Lazy()
    net(X)
    assert sorted(names(net)) == ["inner.mean", "inner.seen", "inner.weight"]


def test_buffers_are_tensors_without_a_graph() -> None:
    net = Centre()
    for value, what in ((1.0, "a float"), (np.ones(3), "a ndarray"), ([1.0], "a list")):
        with refused(DTypeError, f"Centre: mean is a buffer, it cannot be set to {what}", "or del it first"):
            net.mean = value
    with refused(DTypeError, "Centre: seen is a buffer, it cannot be set to an int"):
        net.seen = 3
    with refused(ConfigError, "Centre: buffer mean is set to a tensor that requires a gradient", "t.detach()"):
        net.mean = net.weight * 2.0
    assert net.mean.tolist() == [1.0] * 3
    del net.mean
    net.mean = 1.0
    assert names(net) == ["weight"]
    with refused(ConfigError, "Net: attribute w is no Parameter, but a tensor that requires a", "nn.Parameter(t)"):
        with_(w=ops.ones((2,), requires_grad=True))
    with refused(ConfigError, "Net: attribute w is no Parameter, but a tensor that was computed from", "in forward"):
        with_(w=param() * 0.1)


def test_an_average_and_a_recording_follow_a_buffer_that_is_set_anew() -> None:
    net = Centre()
    average = optim.ExponentialMovingAverage(net, decay=0.5)
    net(X)
    average.update()
    assert average.state_dict()["mean"].tolist() == [0.5] * 3
    with average.applied():
        assert net.mean.tolist() == [0.5] * 3


@pytest.mark.parametrize("call, error, text", [
    (lambda m: m.register_buffer("b", np.ones(2)), DTypeError, "Net.register_buffer: b is a ndarray, a Tensor without"),
    (lambda m: m.register_buffer("b", param()), DTypeError, "Net.register_buffer: b is a Parameter, a Tensor without"),
    (lambda m: m.register_buffer("b", param() * 2), ConfigError, "Net.register_buffer: b requires a gradient"),
    (lambda m: m.register_buffer("fc", X), ConfigError, "Net.register_buffer: fc is a Linear already"),
    (lambda m: m.register_buffer("a.b", X), ConfigError, "Net.register_buffer: 'a.b' is no name"),
    (lambda m: m.register_buffer("", X), ConfigError, "Net.register_buffer: '' is no name"),
    (lambda m: m.register_buffer(3, X), ConfigError, "Net.register_buffer: 3 is no name"),
    (lambda m: m.register_buffer("_buffers", None), ConfigError, "Net.register_buffer: _buffers is a part of"),
    (lambda m: m.register_buffer("to", X), ConfigError, "Net.register_buffer: to is a part of every Net"),
    (lambda m: m.register_parameter("w", X), DTypeError, "Net.register_parameter: w is a Tensor, a Parameter"),
    (lambda m: m.register_parameter("w.x", param()), ConfigError, "Net.register_parameter: 'w.x' is no name"),
    (lambda m: m.add_module("m", X), DTypeError, "Net.add_module: m is a Tensor, a Module is needed"),
    (lambda m: m.add_module("m", nn.ReLU), DTypeError, "Net.add_module: m is the class ReLU, a Module is needed"),
    (lambda m: m.add_module("", linear()), ConfigError, "Net.add_module: '' is no name"),
    (lambda m: setattr(m, "a.b", linear()), ConfigError, "Net: 'a.b' is no name"),
    (lambda m: m.get_submodule("fc2"), KeyError, "Net: there is no module at 'fc2'\nhelp: did you mean 'fc'?"),
    (lambda m: m.apply(None), DTypeError, "Net.apply: f is None, a function is needed"),
    (lambda m: m.train("no"), DTypeError, "Net.train: mode is a str, a bool is needed"),
    (lambda m: setattr(m, "fc", m), ConfigError, "Net: attribute fc is the module itself, or one that contains it"),
    (lambda m: m.fc.add_module("up", m), ConfigError, "Linear: attribute up is the module itself, or one that"),
    (lambda m: alpha.summary(nn.Linear, (3,)), ArgumentError, "summary: model is the class Linear, a Module is needed"),
    (lambda m: copy.deepcopy(with_(keep=None, fc=param()).fc * 2), GraphError, "deepcopy: a tensor of shape (2,) was"),
    (lambda m: pickle.dumps(param() * 2), GraphError, "pickle: a tensor of shape (2,) was made by mul")])
def test_registration_by_name_is_checked(call: Callable[[Any], Any], error: type[AlphaError], text: str) -> None:
    net = with_(fc=linear())
    with refused(error, text):
        call(net)
    assert names(net) == ["fc.weight", "fc.bias"]


def test_registration_by_name() -> None:
    net = Net()
    net.add_module("body", nn.Sequential(linear()))
    net.register_parameter("w", param())
    net.register_parameter("none", None)
    net.register_buffer("b", ops.ones((1,)))
    assert names(net) == ["w", "b", "body.0.weight", "body.0.bias"] and net.none is None
    assert net.get_submodule("body.0") is net.body[0] and net.get_submodule("") is net
    assert list(net.children()) == [net.body] and len(list(net.buffers())) == 1
    net.parent = weakref.ref(net)
    assert net.cpu() is net


# ---- names of Module -------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name, value, text", [
    ("apply", linear, "attribute apply would be a Linear in the place of apply of Module"),
    ("train", lambda: True, "attribute train would be a bool in the place of train of Module"),
    ("parameters", list, "attribute parameters would be a list in"),
    ("to", lambda: "cuda", "attribute to would be a str in"),
    ("state_dict", dict, "attribute state_dict would be a dict in"),
    ("hooked", lambda: True, "attribute hooked would be"),
    ("apply", lambda: ops.relu, "attribute apply would be an Op in the place of apply of Module"),
    ("modules", nn.ModuleList, "attribute modules would be a ModuleList in"),
    ("_buffers", dict, "attribute _buffers would be a dict in"),
    ("forward", linear, "attribute forward would be a Linear"),
    ("training", linear, "training is set to a Linear, a bool is needed"),
    ("training", lambda: 1, "training is set to an int, a bool is needed")])
def test_names_that_module_needs_are_refused(name: str, value: Callable[[], Any], text: str) -> None:
    net = Net()
    with refused(AlphaError, f"Net: {text}", "choose another name"):
        setattr(net, name, value())
    assert vars(net) == {}
    with refused(ConfigError, "Sequential: attribute append would be None in the place of append of Module"):
        nn.Sequential().append = None


def test_a_function_may_stand_for_a_method_and_a_property_for_an_attribute() -> None:
    net = with_(forward=lambda x: x * 2.0)
    assert net(X).tolist() == (X * 2.0).tolist()
    net.extra_repr = lambda: "twice"
    net.training = False
    assert not net.training and repr(net) == "Net(twice)"
    with refused(ConfigError, "Net: attribute _buffers is private to Module", "leave it alone"):
        del net._buffers

    class Guarded(nn.Module):
        @property
        def scale(self) -> Any:
            return self._scale

        @scale.setter
        def scale(self, value: Any) -> None:
            self._scale = value

        @functools.cached_property
        def made(self) -> nn.Module:
            return linear()

    guarded = Guarded()
    guarded.scale = ops.ones((2,))
    assert names(guarded) == ["_scale"]
    assert guarded.made and names(guarded) == ["_scale", "made.weight", "made.bias"]


# ---- copies ----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("again", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_a_copied_model_computes_the_same_and_is_independent(again: Callable[[Any], Any]) -> None:
    net = nn.Sequential(nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3), ops.relu, nn.Flatten(), nn.Linear(3, 2))
    net[0].weight.requires_grad = False
    x = ops.randn((4, 1, 1, 2))
    other = again(net)
    assert other[2].function is ops.relu and type(other[0].weight) is nn.Parameter
    assert [p.requires_grad for p in other.parameters()] == [False] + [True] * 5
    assert other(x).tolist() == net(x).tolist()
    other[4].weight.copy_(np.zeros((2, 3)))
    other[1].running_mean.copy_(np.full(3, 7.0))
    assert net[4].weight.numpy().any() and net[1].running_mean.tolist() != [7.0] * 3
    assert copy.copy(net)[4] is net[4]


def test_a_copy_keeps_gradients_and_shared_elements() -> None:
    p = param()
    p.grad = ops.full((2,), 3.0)
    a, b = copy.deepcopy([p, p.detach()])
    assert a.grad.tolist() == [3.0, 3.0] and a.grad is not p.grad
    a.detach().copy_(np.array([5.0, 5.0]))
    assert b.tolist() == [5.0, 5.0] and p.tolist() == [1.0, 1.0]
