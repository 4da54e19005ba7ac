"""A bool is no number: where a count, a place, a size or a setting belongs, True is refused, not taken for 1."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import alpha
from alpha import data, nn, ops, optim
from alpha.core.inputs import kinds
from alpha.core.inputs.ints import as_int, is_real
from alpha.data import Augment
from alpha.errors import AlphaError, ConfigError

REFUSED = """
Augment(crop=True)
Augment(cutout=True)
Augment(flip=1)
Augment(crop=2.5)
Augment(crop="2")
alpha.arange(True)
alpha.arange(0, True)
alpha.arange(0, 3, True)
alpha.linspace(True, 3, 4)
x[True]
x[:True]
x[False:]
x[::True]
x[:, :np.True_]
x[True, [0, 1]]
x[[0, 1], True]
x[[0, 1], :True]
x[[True, 0]]
x.index_select(0, [True, 0])
x.__setitem__(True, 1.0)
x.__setitem__((0, True), 1.0)
x.__setitem__(slice(None, True), 1.0)
model[False]
model[True:]
model.insert(True, nn.ReLU())
model.pop(True)
model.__setitem__(False, nn.ReLU())
model.__delitem__(True)
nn.ParameterList([nn.Parameter(x)])[False]
items[True]
items[True:]
items["x":]
data.Subset(items, [0, 1])[True]
data.Subset(items, [True, 0])
data.Subset(items, [0, 1])[1.5]
data.ConcatDataset([items])[True]
data.random_split(items, [True, 3])
data.steps_per_epoch(True, 2)
data.split(items, True, 0)
optimizer.step(True)
optim.ReduceLROnPlateau(optimizer).step(True)
optim.ReduceLROnPlateau(optimizer).step("0.5")
alpha.training.register_optimizer(lr=True)(optim.SGD)
nn.functional.interpolate(x, size=True)
x.size(True)
x.sum(True)
x.chunk(True)
nn.Linear(True, 2)
nn.Dropout(True)
optim.SGD(model.parameters(), lr=True)
""".strip().splitlines()

# what elements are made of may be a bool, and a list of bools is a mask
TAKEN = """
x[[True, False, True, False]]
x[np.array([True, False, True, False])]
x + True, x * False
alpha.full((2,), True)
alpha.where(x > 0, True, x > 1)
x.masked_fill(x > 0, True)
x[np.int64(0)], x[np.array(1)], x[:np.int8(2)], model[np.int64(0)], items[np.int64(1)], items[1:3]
Augment(crop=np.int64(2), flip=np.True_)
""".strip().splitlines()


def names() -> dict[str, Any]:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    model(ops.ones((1, 4))).sum().backward()
    items = data.TensorDataset(np.zeros((4, 3), np.float32), np.arange(4))
    return {**globals(), "x": ops.zeros((4, 3, 2)), "model": model, "optimizer": optimizer, "items": items}


@pytest.mark.parametrize("line", REFUSED)
def test_refused(line: str) -> None:
    space = names()
    with pytest.raises(AlphaError) as caught, alpha.no_grad():
        exec(line, space)
    assert "\nhelp: " in str(caught.value)
    assert len(space["model"]) == 2


@pytest.mark.parametrize("line", TAKEN)
def test_taken(line: str) -> None:
    exec(line, names())


@pytest.mark.parametrize("value", [True, False, np.True_, np.array(True)])
def test_no_kind_of_number_takes_a_bool(value: Any) -> None:
    assert as_int(value) is None and not is_real(value)
    for name in ("Size", "Count", "Channels", "Seed", "Axis", "Axes", "ShapeLike", "NewShape", "Pair", "Padding",
                 "FiniteNumber", "Finite", "Positive", "NonNegative", "Share", "Decay", "Lr", "ConvPadding", "Order"):
        kind = getattr(kinds, name).__metadata__[0]
        with pytest.raises(kinds.Refused):
            kind.read(value)


def test_sizes_of_augment_have_an_end() -> None:
    with pytest.raises(ConfigError, match="Augment: crop is 65, an int from 0 to 64 is needed"):
        Augment(crop=65)
    with pytest.raises(ConfigError, match="flip and altflip are both named"):
        Augment(flip=True, altflip=True)
