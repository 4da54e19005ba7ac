"""Containers of modules and of parameters: what they take, and that they are lists and dicts."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import alpha
from alpha import nn, ops
from alpha.errors import ConfigError, DTypeError, NotDefinedError, NotFoundError
from alpha.gradcheck import assert_equal_at
from tests.op_checks import refused

X = ops.ones((4, 3))


def linear(n: int = 3) -> nn.Linear:
    return nn.Linear(3, n)


def lists(kind: type) -> Any:
    """A list of a kind with three entries."""
    if kind is nn.ParameterList:
        return kind([nn.Parameter(ops.full((2,), float(k))) for k in range(3)])
    return kind(*map(linear, (1, 2, 3))) if kind is nn.Sequential else kind(map(linear, (1, 2, 3)))


def entry(kind: type) -> Any:
    return nn.Parameter(ops.ones((1,))) if kind is nn.ParameterList else nn.ReLU()


KINDS = pytest.mark.parametrize("kind", [nn.Sequential, nn.ModuleList, nn.ParameterList], ids=lambda k: k.__name__)


# ---- functions as layers ---------------------------------------------------------------------------------------------

def test_functions_are_layers() -> None:
    first = linear()
    net = nn.Sequential(first, ops.relu, lambda x: x * 2.0, partial(ops.leaky_relu, slope=0.1), nn.Flatten())
    assert_equal_at(net(X), ops.relu(first(X)) * 2.0)
    assert [type(m).__name__ for m in net] == ["Linear", "Lambda", "Lambda", "Lambda", "Flatten"]
    assert repr(net[1]) == "Lambda(relu)" and repr(net[2]) == "Lambda(<lambda>)"
    assert repr(net[3]) == "Lambda(leaky_relu, slope=0.1)"
    assert [r.kind for r in alpha.summary(net, (3,)).rows] == ["Linear", "Lambda", "Lambda", "Lambda", "Flatten"]
    assert isinstance(nn.ModuleList([ops.relu])[0], nn.Lambda) and isinstance(nn.ModuleDict({"f": abs})["f"], nn.Lambda)


@pytest.mark.parametrize("make, shape", [(lambda: nn.Linear(3, 2), (4, 3)), (lambda: nn.Conv2d(3, 2, 1), (1, 2, 2, 3)),
                                         (lambda: nn.BatchNorm2d(3), (2, 2, 2, 3))])
def test_the_op_relu_behind_a_layer(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    layer, x = make().eval(), ops.randn(shape)
    y = layer(x)
    assert_equal_at(nn.Sequential(layer, ops.relu)(x), np.maximum(y.numpy(), 0), atol=1e-6)
    layer.forward = lambda x: x * 0.0 - 1.0     # a forward of its own
    assert not nn.Sequential(layer, ops.relu)(x).numpy().any()


@pytest.mark.parametrize("make, text, fix", [
    (lambda: nn.Sequential(nn.ReLU, linear()), "Sequential: entry 0 is the class ReLU, a module is", "ReLU(...)"),
    (lambda: nn.Sequential([linear(), linear()]), "Sequential: entry 0 is a list, a module or", "Sequential(*layers)"),
    (lambda: nn.Sequential(linear() for _ in range(2)), "entry 0 is a generator, a module or", "Sequential(*layers)"),
    (lambda: nn.Sequential(linear(), None), "Sequential: entry 1 is None, a module or", "or pass nn.Identity()"),
    (lambda: nn.Sequential(linear(), X), "Sequential: entry 1 is a Tensor of shape (4, 3), a", "nn.Parameter(...)"),
    (lambda: nn.Sequential("relu"), "Sequential: entry 0 is a str, a module or a function is needed", "nn.ReLU()"),
    (lambda: nn.Sequential(("a", linear())), "Sequential: entry 0 is a tuple, a module", "{'a': ..., ...}"),
    (lambda: nn.Sequential({"a": linear()}, nn.ReLU()), "Sequential: entry 0 is a dict, a module", "pass one dict of"),
    (lambda: nn.Sequential({"a": nn.ReLU}), "Sequential: entry a is the class ReLU", "make one of the class"),
    (lambda: nn.Sequential(linear()).append(3), "Sequential: entry 1 is an int, a module", "pass modules"),
    (lambda: nn.ModuleList(linear()), "ModuleList: the entries are a Linear, a list is needed", "pass a list: [...]"),
    (lambda: nn.ModuleList({"a": linear()}), "ModuleList: the entries are a dict, a list is needed", "nn.ModuleDict"),
    (lambda: nn.ModuleList("ab"), "ModuleList: the entries are a str, a list is needed", "pass a list"),
    (lambda: nn.ModuleList([[linear()]]), "ModuleList: entry 0 is a list, a module or", "pass the layers one by one"),
    (lambda: nn.ModuleList().extend(linear()), "ModuleList: the entries are a Linear, a list is needed", "pass a list"),
    (lambda: nn.ModuleDict([linear()]), "ModuleDict: the entries are a list, a dict is needed", "nn.ModuleDict({name:"),
    (lambda: nn.ModuleDict(3), "ModuleDict: the entries are an int, a dict is needed", "nn.ModuleDict({name:"),
    (lambda: nn.ModuleDict({"a": None}), "ModuleDict: entry a is None, a module or a function", "leave it out"),
    (lambda: nn.ParameterList([np.ones(2)]), "ParameterList: entry 0 is a ndarray, a Parameter is", "alpha.tensor"),
    (lambda: nn.ParameterDict({"w": linear()}), "ParameterDict: entry w is a Linear, a Parameter is needed", "wrap it"),
    (lambda: nn.Lambda(nn.ReLU()), "Lambda: ReLU is a module already", "use it as it is"),
    (lambda: nn.Lambda(nn.ReLU), "Lambda: function is the class ReLU, a module is needed", "make one of the class"),
    (lambda: nn.ModuleList([linear()])["0"], "ModuleList: the index '0' is a str, an int or a slice", "position"),
])
def test_what_is_no_layer_is_refused(make: Callable[[], Any], text: str, fix: str) -> None:
    with refused(DTypeError, text, fix):
        make()


@pytest.mark.parametrize("make, text", [
    (lambda: nn.Sequential({"a.b": linear()}), "Sequential: 'a.b' is no name for a parameter, a buffer or a module"),
    (lambda: nn.Sequential({"": linear()}), "Sequential: '' is no name"),
    (lambda: nn.ModuleDict({1: linear()}), "1 is no"),
    (lambda: nn.Sequential({"append": linear()}), "Sequential: append is a part of every Sequential"),
    (lambda: nn.ModuleDict({"keys": linear()}), "ModuleDict: keys is a part of every ModuleDict"),
    (lambda: nn.ModuleDict({"training": linear()}), "ModuleDict: training is a part of every ModuleDict"),
    (lambda: nn.ModuleDict({"forward": linear()}),
     "ModuleDict: forward is a part of every ModuleDict"),
    (lambda: nn.Sequential({"a": linear()}).insert(0, linear()), "Sequential.insert: the entries are named a, not by"),
    (lambda: nn.Sequential({"1": linear()}).append(linear()), "Sequential.append: an entry is named 1 already"),
    (lambda: nn.Sequential({"1": linear()}).extend([linear()]), "Sequential.extend: an entry is named 1 already"),
    (lambda: nn.ModuleList([linear(), linear()]).__setitem__(slice(None, None, 2), []), "ModuleList: attempt to"),
])
def test_names_of_entries_are_checked(make: Callable[[], Any], text: str) -> None:
    with refused(ConfigError, text):
        make()


# ---- lists -----------------------------------------------------------------------------------------------------------

@KINDS
def test_a_list_of_modules_or_parameters_is_a_list(kind: type) -> None:
    ours = lists(kind)
    plain = list(ours)

    def same() -> None:
        assert len(ours) == len(plain) and all(a is b for a, b in zip(ours, plain))
        prefixes = list(dict.fromkeys(name.partition(".")[0] for name, _ in ours.named_parameters()))
        assert prefixes == [str(k) for k, v in enumerate(plain) if not isinstance(v, nn.ReLU)]

    same()
    for act in (lambda v, new: v.append(new), lambda v, new: v.insert(1, new), lambda v, new: v.insert(-1, new),
                lambda v, new: v.insert(99, new), lambda v, new: v.extend([new]), lambda v, new: v.__setitem__(0, new),
                lambda v, new: v.__setitem__(-2, new), lambda v, new: v.__setitem__(slice(1, 3), [new]),
                lambda v, new: v.__delitem__(0), lambda v, new: v.__delitem__(-1), lambda v, new: v.pop(),
                lambda v, new: v.pop(1), lambda v, new: v.__delitem__(slice(0, 2)), lambda v, new: v.extend([])):
        new = entry(kind)
        act(ours, new)
        act(plain, new)
        same()
    ours, plain = lists(kind), []
    plain += list(ours)
    assert type(ours[1:]) is kind and list(ours[1:]) == plain[1:] and list(ours[::-1]) == plain[::-1]
    assert next(ours[2:].named_parameters())[0].partition(".")[0] == "0"
    assert ours[np.int64(1)] is plain[1] and plain[0] in ours and None not in ours
    assert list(reversed(ours)) == plain[::-1]
    both = ours + [new := entry(kind)]
    assert type(both) is kind and list(both) == [*plain, new] and len(ours) == 3
    ours += [new]
    same_object = ours
    assert ours is same_object and list(ours) == [*plain, new]
    for index in (4, -5, 10 ** 30):
        with refused(NotFoundError, f"{kind.__name__}: there is no entry {index}, it has 4", "use an index in [-4, 4)"):
            ours[index]
    with refused(NotFoundError, f"{kind.__name__}: there is no entry 0, it has 0", "append one"):
        del kind()[0]


def test_nothing_changes_where_one_entry_is_refused() -> None:
    net = lists(nn.ModuleList)
    before = list(net)
    for act in (lambda: net.extend([nn.ReLU(), None]), lambda: net.__setitem__(slice(0, 2), [nn.ReLU(), 3]),
                lambda: net.insert(0, nn.ReLU), lambda: net.append(net), lambda: net.__setitem__(0, net),
                lambda: net.extend([nn.Sequential(net)])):
        with pytest.raises((DTypeError, ConfigError)):
            act()
        assert list(net) == before and list(dict(net.named_children())) == ["0", "1", "2"]


def test_a_sequential_of_names() -> None:
    net = nn.Sequential(OrderedDict([("conv", linear()), ("act", nn.ReLU())]))
    assert list(net.state_dict()) == ["conv.weight", "conv.bias"] and net.conv is net[0]
    assert net(X).numpy().min() >= 0
    net.append(linear(2))
    assert list(dict(net.named_children())) == ["conv", "act", "2"]
    del net[1]
    assert list(dict(net.named_children())) == ["conv", "2"]
    assert list(dict(net[:1].named_children())) == ["conv"]
    net[0] = linear(3)
    assert net.conv is net[0] and net.pop(0) is not None and len(net) == 1
    assert len(nn.Sequential({})) == len(nn.Sequential()) == 0


def test_a_subclass_of_a_list_may_have_arguments_of_its_own() -> None:
    class Tower(nn.Sequential):
        def __init__(self, width: int, depth: int) -> None:
            super().__init__(*(nn.Linear(width, width) for _ in range(depth)))

    tower = Tower(3, 4)
    assert type(tower[1:]) is nn.Sequential and len(tower[1:]) == 3
    assert tower(X).shape == (4, 3)


# ---- dicts -----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("kind, make", [(nn.ModuleDict, linear),
                                        (nn.ParameterDict, lambda: nn.Parameter(ops.ones((2,))))])
def test_a_dict_of_modules_or_parameters_is_a_dict(kind: type, make: Callable[[], Any]) -> None:
    plain = {"b": make(), "a": make()}
    ours = kind(plain)
    assert list(ours) == list(ours.keys()) == ["b", "a"] and len(ours) == 2
    assert list(ours.values()) == list(plain.values()) and list(ours.items()) == list(plain.items())
    assert ours["a"] is ours.a is plain["a"] and "a" in ours and "c" not in ours and ours.get("c") is None
    assert len(list(ours.parameters())) == len([p for v in plain.values() for p in
                                                (v.parameters() if isinstance(v, nn.Module) else [v])])
    ours["c"] = new = make()
    ours.update({"a": new})
    ours.update([("d", new)])
    assert list(ours) == ["b", "a", "c", "d"] and ours["a"] is ours["c"] is new
    del ours["b"]
    assert ours.pop("d") is new and list(ours) == ["a", "c"] and list(kind(ours)) == ["a", "c"]
    for act in (lambda: ours["x"], lambda: ours.pop("x"), lambda: ours.__delitem__("x")):
        with refused(NotFoundError, f"{kind.__name__}: there is no entry 'x'", "it has a, c"):
            act()
    with pytest.raises(KeyError):
        ours["x"]
    ours.clear()
    assert len(ours) == 0 and not ours.state_dict()


def test_lists_and_dicts_of_parameters() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            self.ws = nn.ParameterList([ops.ones((2,)), nn.Parameter(ops.ones((3,)))])
            self.by = nn.ParameterDict({"w": ops.ones((1,))})

    net = Net()
    assert list(net.state_dict()) == ["ws.0", "ws.1", "by.w"]
    assert all(type(p) is nn.Parameter and p.requires_grad for p in net.parameters())
    assert repr(net.ws) == "ParameterList((2,) float32, (3,) float32)"
    assert repr(net.by) == "ParameterDict(w: (1,) float32)"


@pytest.mark.parametrize("make", [nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict])
def test_a_container_without_forward_says_so(make: type) -> None:
    with refused(NotDefinedError, f"{make.__name__}: it holds entries and has no forward method", "nn.Sequential"):
        make()(X)
    with pytest.raises(NotImplementedError):
        nn.Sequential(make())(X)


def test_summary_of_layers_that_return_several_tensors() -> None:
    rows = alpha.summary(nn.Sequential(linear(2), lambda x: (x, x * 2.0)), (3,), batch_size=4).rows
    assert rows[1].output_shape == (4, 2) and rows[1].activation_nbytes == 2 * 4 * 2 * 4
