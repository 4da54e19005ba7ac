"""Random trees of modules, built by operations that are allowed and by some that are not.

After each operation: a parameter or a module that an attribute leads to, through modules, lists, dicts and sets alike,
is in parameters() and modules(), or there is an AlphaError; paths are unique; the state of the tree goes into a copy
and comes back. An operation that is refused has changed nothing.
"""

from __future__ import annotations

import copy
import pathlib
import pickle
import random
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

import numpy as np

from alpha import nn, no_grad, ops
from alpha.core.tensor import Tensor
from alpha.errors import AlphaError, GraphError

NAMES = ("a", "b", "c", "fc", "weight", "bias", "0", "1", "2", "mean", "training", "apply", "forward", "keys",
         "_buffers", "to", "", "x.y", "append", "hooked", "_hidden", "items", 3, None)
STATE = ("_buffers", "_unsaved", "_hooks", "_pre_hooks")


class Free(nn.Module):
    """A module that takes what it is given, and keeps what it sees."""

    def __init__(self) -> None:
        self.items_ = []
        self.scale = ops.ones((1,))

    def forward(self, x: Any) -> Any:
        self.last = x * self.scale
        self.kept = [self.last]
        return self.last


def value(rng: random.Random, modules: list[Any], depth: int = 0) -> Any:
    """Returns something that might be set on a module."""
    pick = rng.randrange(19 if depth < 3 else 13)
    if pick == 0:
        return nn.Parameter(ops.ones((rng.randint(1, 3),)))
    if pick == 1:
        return rng.choice([nn.Linear(1, 2), nn.BatchNorm2d(1), nn.ReLU(), Free(), nn.Identity()])
    if pick == 2:
        return rng.choice(modules)
    if pick == 3:
        return ops.zeros((rng.randint(1, 2),), dtype=rng.choice(["float32", "int64"]))
    if pick == 4:
        return ops.ones((2,), requires_grad=True) if rng.random() < 0.5 else nn.Parameter(ops.ones((2,))) * 2.0
    if pick == 5:
        return rng.choice([nn.ReLU, nn.Linear, int])
    if pick == 6:
        return rng.choice([ops.relu, abs, lambda x: x])
    if pick < 11:
        return rng.choice([None, 1, 2.5, "text", True, np.ones(2)])
    if pick == 11:
        return rng.choice(list(rng.choice(modules).parameters()) or [None])
    if pick == 12:
        return rng.choice([(), [], {}, set()])
    inner = [value(rng, modules, depth + 1) for _ in range(rng.randint(0, 3))]
    if pick < 15:
        return rng.choice([list, tuple, deque])(inner)
    if pick == 15:
        return OrderedDict((rng.choice(NAMES), v) for v in inner)
    if pick == 16:
        return nn.ModuleList(v for v in inner if isinstance(v, nn.Module))
    if pick == 17:
        return nn.Sequential(*inner)
    return rng.choice([nn.ModuleDict, nn.ParameterDict])({rng.choice(NAMES): v for v in inner})


def operations(rng: random.Random, root: Any, modules: list[Any]) -> Callable[[], Any]:
    """Returns an operation to try."""
    m, name = rng.choice(modules), rng.choice(NAMES)
    v = value(rng, modules)
    index = rng.choice([0, 1, -1, 5, slice(0, 2), slice(None, None, -1), "0", None])
    common: list[Callable[[], Any]] = [
        lambda: setattr(m, name, v), lambda: setattr(m, name, v),
        lambda: delattr(m, rng.choice(list(vars(m)) or ["a"])),
        lambda: m.register_buffer(name, v, persistent=rng.random() < 0.8), lambda: m.register_parameter(name, v),
        lambda: m.add_module(name, v), lambda: m.train(rng.choice([True, False, 1])), lambda: m.requires_grad_(False),
        lambda: m.to(dtype=rng.choice(["float32", "float64"])), lambda: m.zero_grad(),
        lambda: root.load_state_dict(root.state_dict()),
        lambda: m.register_forward_hook(v if v is None else lambda *a: None),
    ]
    if isinstance(m, Free):
        common += [lambda: m(ops.ones((1,))), lambda: _without_graph(m), lambda: m.items_.append(v)]
    if isinstance(m, (nn.ModuleList, nn.Sequential, nn.ParameterList)):
        common += [lambda: m.append(v), lambda: m.extend(v), lambda: m.insert(index, v), lambda: m.pop(index),
                   lambda: m.__setitem__(index, v), lambda: m.__delitem__(index), lambda: m[index], lambda: m + v]
    if isinstance(m, (nn.ModuleDict, nn.ParameterDict)):
        common += [lambda: m.__setitem__(name, v), lambda: m.__delitem__(name), lambda: m.update(v),
                   lambda: m.pop(name), lambda: m.update({name: v}), lambda: m.clear()]
    return rng.choice(common)


def _without_graph(m: Any) -> None:
    with no_grad():
        m(ops.ones((1,)))


def snapshot(root: Any) -> Any:
    """Returns what an operation that is refused must leave as it is: the attributes of all modules."""
    found: list[Any] = []
    reach(root, lambda v: found.append((v, dict(vars(v)))) if isinstance(v, nn.Module) else None)
    return found


def reach(start: Any, see: Callable[[Any], Any]) -> None:
    """Calls `see` with all modules and parameters that attributes and containers lead to, each once."""
    seen: set[int] = set()
    to_do = [start]
    while to_do:
        one = to_do.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, (nn.Module, nn.Parameter)):
            see(one)
        if isinstance(one, nn.Module):
            to_do.extend(vars(one).values())
        elif isinstance(one, dict):
            to_do.extend(one.values())
        elif isinstance(one, (list, tuple, set, deque)):
            to_do.extend(one)


def check(root: Any) -> bool:
    """Asserts that all of a tree is found; False where alpha says that it is not."""
    try:
        parameters, buffers = dict(root.named_parameters()), dict(root.named_buffers())
        modules = dict(root.named_modules())
        state = root.state_dict()
    except AlphaError as error:
        assert "nobody would" in str(error), error
        return False
    found: list[Any] = []
    reach(root, found.append)
    known = {id(v) for v in (*parameters.values(), *modules.values())}
    lost = [v for v in found if id(v) not in known]
    assert not lost, f"{type(lost[0]).__name__} is reached, but not found"
    assert len({id(v) for v in parameters.values()}) == len(parameters)
    assert all(type(b) is Tensor and not b.requires_grad for b in buffers.values())
    assert parameters.keys() <= state.keys() and not parameters.keys() & buffers.keys()
    for path, p in parameters.items():
        assert _at(root, path) is p, path
    for path, b in buffers.items():
        assert _at(root, path) is b, path
    for m in modules.values():
        assert isinstance(m.training, bool) and callable(m.apply) and callable(m.state_dict)
        for name, v in vars(m).items():
            if type(v) is Tensor and name not in ("last", "kept"):
                assert name in m._buffers, f"{name} is neither saved nor moved"
    return True


def _at(root: Any, path: str) -> Any:
    for name in path.split("."):
        root = vars(root)[name]
    return root


def round_trip(root: Any, rng: random.Random) -> None:
    """Asserts that the state of a tree goes into a copy of other values, and comes back bit by bit."""
    for m in root.modules():
        for name in ("last", "kept"):
            vars(m).pop(name, None)     # with a graph, perhaps, which cannot be copied
    try:
        other = copy.deepcopy(root) if rng.random() < 0.5 else pickle.loads(pickle.dumps(root))
    except (GraphError, AttributeError, TypeError, pickle.PicklingError):
        return                          # a tensor with a graph that a list keeps, or a lambda
    state, mine = root.state_dict(), other.state_dict()
    assert list(state) == list(mine)
    for t in mine.values():
        t.copy_(np.full(t.shape, 7))
    assert other.load_state_dict(state) == ([], [])
    for path, t in other.state_dict().items():
        assert t.numpy().tobytes() == state[path].numpy().tobytes() and t.dtype == state[path].dtype, path
    kinds, mine_too = ([(path, type(m)) for path, m in net.named_modules()] for net in (root, other))
    assert kinds == mine_too


def attempt(rng: random.Random, folder: pathlib.Path) -> str:
    """Builds one tree; see the head of this file."""
    root, done, refused = Free(), 0, 0
    root.a, root.b, root.c = nn.Sequential(nn.Linear(1, 1)), nn.ModuleDict({"k": Free()}), nn.ParameterList()
    for _ in range(rng.randint(1, 20)):
        modules: list[Any] = list(root.modules())
        before = snapshot(root)
        operation = None
        try:
            operation = operations(rng, root, modules)
            operation()
            done += 1
        except AlphaError:
            refused += 1
            if operation is not None:
                for m, attributes in before:
                    left = {name for name in vars(m).keys() ^ attributes.keys() if name not in STATE}
                    assert not left, f"a refused operation left a trace: {left}"
        except AttributeError as error:     # of `del`
            assert "no attribute" in str(error), error
        except TypeError as error:
            assert any(text in str(error) for text in ("unhashable", "unsupported operand", "must be string")), error
        if not check(root):
            return f"{done} operations, {refused} refused, then a list with modules in it"
    round_trip(root, rng)
    return f"{done} operations, {refused} refused, {len(list(root.modules()))} modules"
