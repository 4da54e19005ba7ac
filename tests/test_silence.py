"""No setting is silent: a value other than the default changes something, is refused, or has a reason.

tests/silence has the calls and the values. A new setting is found by itself, and is red until a value is seen.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import pytest

import alpha
from alpha import nn, ops, optim
from alpha.errors import ConfigError
from tests.silence import check, layers
from tests.silence.found import public, settings_of
from tests.silence.reasons import REASONS
from tests.silence.seen import layer, op
from tests.silence.values import Array

WITH_TORCH = {"checkpoint.load_torch", "checkpoint.save_torch", "alpha.from_torch", "alpha.to_torch"}
PUBLIC = {name: f for name, f in public().items() if settings_of(f)}
PLACES = sorted({name.partition(".")[0] for name in PUBLIC})


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("place", PLACES)
def test_every_setting_changes_something_or_is_refused(place: str) -> None:
    left_out = set() if importlib.util.find_spec("torch") else WITH_TORCH
    found = [line for name, f in PUBLIC.items() if name.partition(".")[0] == place and name not in left_out
             for line in check.findings(name, f, REASONS)]
    assert not found, "\n".join(found)


def test_every_reason_is_of_a_setting_that_exists() -> None:
    known = {f"{name}.{setting}" for name, f in PUBLIC.items() for setting in settings_of(f)}
    known |= {f"*.{name.rpartition('.')[2]}" for name in known}
    stale = REASONS.keys() - known
    assert not stale, stale


def test_every_call_is_of_a_public_name() -> None:
    names = {name.partition(".")[2] for name in public()} | {*public()}
    tables = [check.WHOLE, *check.TABLES.values()]
    assert not {name for table in tables for name in table if name not in names}


def test_public_callables_of_every_place_are_found() -> None:
    assert {"ops.conv2d", "alpha.gradcheck", "F.conv2d", "nn.Conv2d", "optim.SGD", "schedule.cosine", "data.DataLoader",
            "training.fit", "training.Trainer", "onnx.export", "checkpoint.save", "models.create", "Tensor.backward",
            "Module.to", "init.normal_", "MultiheadAttention.forward"} <= PUBLIC.keys()
    assert len(PUBLIC) > 250


def scaled(x: alpha.Tensor, factor: float = 2.0, careful: bool = False) -> alpha.Tensor:
    """Ignores `careful`."""
    return x * factor


def test_a_silent_setting_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(check.WHOLE, "ops.scaled", [op(Array(3))])
    assert list(check.findings("ops.scaled", scaled, {})) == ["ops.scaled: careful=True changes nothing"]
    assert not list(check.findings("ops.scaled", scaled, {"ops.scaled.careful": "a reason"}))


def test_a_setting_without_a_call_or_a_value_is_found() -> None:
    def other(x: alpha.Tensor, mode: object = None) -> alpha.Tensor:
        return x

    assert list(check.findings("ops.unknown", other, {})) == ["ops.unknown has settings (mode) and no base call"]
    assert list(check.findings("ops.relu6", other, {})) == ["ops.relu6 has settings (mode) and no base call"]


def test_a_silent_setting_of_a_layer_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Half(nn.Module):
        def __init__(self, bias: bool = True) -> None:
            super().__init__()
            self.weight = nn.Parameter(ops.ones((3,)))

        def forward(self, x: alpha.Tensor) -> alpha.Tensor:
            return x * self.weight

    monkeypatch.setitem(layers.LAYERS, "Half", [layer(on=Array(2, 3))])
    assert list(check.findings("nn.Half", Half, {})) == ["nn.Half: bias=False changes nothing"]


@pytest.mark.parametrize("make", [lambda: nn.InstanceNorm2d(4, momentum=0.3), lambda: nn.functional.instance_norm(
    ops.ones((1, 2, 2, 4)), momentum=0.3)], ids=["layer", "function"])
def test_instance_norm_refuses_a_momentum_that_nothing_uses(make: Callable[[], Any]) -> None:
    with pytest.raises(ConfigError, match=r"momentum=0\.3 has no effect"):
        make()


@pytest.mark.parametrize("call, names", [
    (lambda: ops.interpolate(ops.ones((1, 2, 2, 1)), 4, align_corners=True), "align_corners=True.* mode=.nearest"),
    (lambda: nn.Upsample(scale_factor=2, mode="area", align_corners=False)(ops.ones((1, 2, 2, 1))),
     "align_corners=False.* mode=.area"),
    (lambda: nn.Conv2d(2, 2, 3, padding_mode="reflect"), "padding_mode='reflect'.* padding="),
    (lambda: nn.Conv1d(2, 2, 3, padding="valid", padding_mode="circular"), "padding_mode='circular'.* padding="),
    (lambda: optim.SGD([nn.Parameter(ops.ones((2,)))], lr=0.1, dampening=0.5), "dampening=0.5.* momentum=0"),
], ids=["interpolate", "Upsample", "Conv2d", "Conv1d", "SGD"])
def test_a_setting_that_another_one_makes_void_is_refused_with_both_names(call: Callable[[], Any], names: str) -> None:
    with pytest.raises(ConfigError, match=names):
        call()


def test_a_filter_of_one_pixel_takes_any_padding_mode() -> None:
    assert nn.Conv2d(2, 2, 1, padding_mode="reflect")(ops.ones((1, 3, 3, 2))).shape == (1, 3, 3, 2)


def test_the_median_of_all_elements_keeps_its_axes() -> None:
    assert ops.median(ops.ones((2, 3)), keepdims=True).shape == (1, 1)
