"""The stages of an op's call: what is settled once for a signature, what is asked in every call; keys of its class."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import alpha
from alpha import ops
from alpha.core import call
from alpha.core.op import GROUPS, KEYS, observers, registry
from alpha.errors import AnomalyError, ArgumentError, DTypeError, GraphError, ShapeError
from alpha.ops.pool import max_pool2d_backward
from tests.op_checks import refused

pytestmark = pytest.mark.same_without_kernels("calls no kernel, or calls it from a program")

A = np.arange(6, dtype=np.float32).reshape(2, 3)
MOST_KEYS = 12


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], list[Any]]:
    """Returns a function that lists the calls of an op's shape rule from now on, with nothing settled so far."""
    def watch(op: Any) -> list[Any]:
        rule, calls = op.shape, []

        def shape(*args: Any, **attrs: Any) -> Any:
            calls.append(attrs)
            return rule(*args, **attrs)
        monkeypatch.setattr(op, "shape", shape)
        monkeypatch.setattr(op, "settled", {})
        return calls
    return watch


@pytest.fixture
def own() -> Iterator[Callable[..., Any]]:
    """Makes an op of a user's, to be thrown away after the test."""
    def make(shape: Callable[..., Any] = lambda x: x.shape, **body: Any) -> Any:
        registry.pop("my_own", None)
        made = alpha.op(type("my_own", (), {"args": "x", "shape": shape, **body}))
        made.impl("cpu")(lambda x, **attrs: x * 2)
        return made
    yield make
    registry.pop("my_own", None)


def test_the_shape_rule_is_asked_once_for_a_signature(asked: Callable[[Any], list[Any]]) -> None:
    calls, x = asked(ops.mul), alpha.tensor(A)
    for _ in range(3):
        np.testing.assert_array_equal(ops.mul(x, x).numpy(), A * A)
    assert len(calls) == 1
    for a, b, count in ((x, x[:1], 2), (x[:1], x, 3), (x.double(), x.double(), 4), (x, 2.0, 5), (x, 3.0, 5), (x, 2, 6),
                        (2.0, x, 7), (x[:, :2], x[:, :2], 8), (x[:, 1:], x[:, 1:], 8), (x.long(), 2, 9)):
        ops.mul(a, b)
        assert len(calls) == count, (a, b)


def test_attributes_are_part_of_the_signature(asked: Callable[[Any], list[Any]]) -> None:
    calls, x = asked(ops.softmax), alpha.tensor(A)
    for axis, count in ((0, 1), (1, 2), (0, 2), (1, 2), (-1, 3)):
        total = ops.softmax(x, axis).numpy().sum(axis)
        np.testing.assert_allclose(total, np.ones_like(total), rtol=1e-6)
        assert len(calls) == count
    assert ops.concat([x, x]).shape == (4, 3) and ops.concat([x, x[:1]]).shape == (3, 3)
    assert ops.concat([x, x], axis=1).shape == (2, 6)


def test_integers_are_looked_at_in_every_call() -> None:
    x = alpha.tensor(np.array([1, 2], np.uint8))
    for _ in range(2):
        assert ops.add(x, 200).tolist() == [201, 202]
        with refused(DTypeError, "add: the number 300 does not fit a tensor of dtype uint8"):
            ops.add(x, 300)
        with refused(DTypeError, "the number 1.5 does not fit a tensor of dtype uint8"):
            ops.add(x, 1.5)


def test_places_that_are_none_are_refused_in_every_call() -> None:
    g, good = alpha.ones((1, 1, 1, 1)), alpha.tensor(np.array([[[[3]]]], np.int32))
    for _ in range(2):
        back = max_pool2d_backward(g, good, hw=(2, 2), kernel_size=2)
        assert back.numpy().reshape(-1).tolist() == [0, 0, 0, 1]
        with refused(ShapeError, "max_pool2d_backward"):
            max_pool2d_backward(g, alpha.tensor(np.array([[[[7]]]], np.int32)), hw=(2, 2), kernel_size=2)


def test_a_rule_of_the_users_is_asked_in_every_call(own: Callable[..., Any]) -> None:
    def shape(x: alpha.Tensor) -> Any:
        if x.numpy().max() > 10:
            raise ShapeError("my_own: too large\nhelp: make it smaller")
        return x.shape
    op = own(shape)
    assert op(alpha.tensor(A)).shape == (2, 3)
    with refused(ShapeError, "my_own: too large"):
        op(alpha.tensor(A * 10))


def test_what_is_settled_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("alpha.core.op.MOST", 5)
    monkeypatch.setattr(ops.relu, "settled", {})
    for n in range(1, 12):
        assert ops.relu(alpha.ones((n,))).shape == (n,)
        assert len(ops.relu.settled) == min(n, 5)
    assert call.MOST <= 256


def test_another_implementation_counts_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    x = alpha.tensor(A)
    assert ops.exp(x).shape == (2, 3)
    monkeypatch.setitem(ops.exp.impls, "cpu", lambda x: x + 1)
    np.testing.assert_array_equal(ops.exp(x).numpy(), A + 1)


def test_what_is_wrong_is_refused_after_calls_that_were_right() -> None:
    x, w = alpha.tensor(A), alpha.tensor(A, requires_grad=True)
    ops.add(x, x)
    for bad, error in ((A, ArgumentError), ("a", ArgumentError), (None, ArgumentError), ([x], ArgumentError),
                       (x.half(), DTypeError), (alpha.ones((4, 3)), ShapeError)):
        with pytest.raises(error, match="help: "):
            ops.add(x, bad)
    y = ops.mul(w, w)
    w.copy_(A + 1)
    with pytest.raises(GraphError, match="changed in place"):
        y.sum().backward()


def test_settings_and_observers_are_asked_in_every_call(capsys: pytest.CaptureFixture[str]) -> None:
    x, told = alpha.tensor(np.zeros((2, 3), np.float32), requires_grad=True), []
    ops.div(x, x)
    with alpha.config(check_nan=True), pytest.raises(AnomalyError, match="div: the result of shape"):
        ops.div(x, x)
    with alpha.config(debug=2):
        ops.div(x, x)
    assert "alpha: div(2x3, 2x3)" in capsys.readouterr().err
    observers.append(lambda op, *_: told.append(op.name))
    try:
        ops.div(x, x)
    finally:
        observers.pop()
    assert told == ["div"]
    with alpha.profiler() as p:
        ops.div(x, x)
    assert "div" in p.table("op")
    with alpha.no_grad():
        assert not ops.div(x, x).requires_grad
    assert ops.div(x, x).requires_grad and not ops.div(x.detach(), x.detach()).requires_grad


def test_views_made_by_a_settled_call_are_of_their_own_family() -> None:
    a, b = alpha.zeros((2, 3)), alpha.zeros((2, 3))
    first, second = a.reshape(3, 2), b.reshape(3, 2)
    second += 1
    assert a.numpy().max() == first.numpy().max() == 0 and b.numpy().min() == 1
    a += 2
    assert first.numpy().min() == 2 and second.numpy().max() == 1


def test_modes_of_precision_do_not_share_what_is_settled() -> None:
    wide, narrow = alpha.tensor(A), alpha.tensor(A).half()
    with alpha.config(precision="fp16"):
        assert ops.add(wide, narrow).dtype == "float16"
    with pytest.raises(DTypeError, match="help: "):
        ops.add(wide, narrow)
    with alpha.config(precision="fp16"):
        assert ops.add(narrow, wide).dtype == "float16" and ops.add(wide, wide).dtype == "float32"


def test_a_batch_without_samples_and_one_with_some() -> None:
    x, w = alpha.ones((2, 4, 4, 1)), alpha.ones((1, 3, 3, 1))
    for n in (2, 0, 2, 0):
        assert ops.conv2d(x[:n], w).shape == (n, 2, 2, 1)


def test_stages_are_those_that_an_op_needs() -> None:
    for op in registry.values():
        assert op.compute is (call.changing if op.mutates else call.computed), op.name
        assert op.give is (call.joined if op.name in ("reshape", "permute", "slice_axes", "expand", "diagonal") else
                           call.given), op.name


def test_ops_use_few_keys_and_all_of_them_are_known() -> None:
    for op in registry.values():
        keys = {"vjp" if key.startswith("vjp_") else key for key in vars(op.written) if key[0] != "_"}
        assert keys <= {*KEYS} and len(keys) <= MOST_KEYS, op.name
    assert len(KEYS) == len({*KEYS}) == sum(len(keys) for keys in GROUPS.values())
    for key in KEYS:    # the vocabulary is told where ops are made
        assert f"    {key} " in (registry["relu"].__class__.__init__.__globals__["__doc__"] + "    vjp "), key


@pytest.mark.parametrize("key, near", [("save", "saves"), ("equations", "equation"), ("mutate", "mutates"),
                                       ("lable", "label"), ("qqq", "")])
def test_an_unknown_key_is_refused_with_the_nearest_known_one(own: Callable[..., Any], key: str, near: str) -> None:
    said = [f"op: the class my_own has {key}, which is no key of an op", "inputs: args dtypes", "hints: label batched"]
    with refused(ArgumentError, *said, *([f"did you mean '{near}'?"] if near else ["correct the name; helpers"])):
        own(**{key: "x"})
    assert own(_helper=lambda x: x)(alpha.tensor(A)).shape == (2, 3)
