"""Calls that do not fit a signature, and what is no tensor where tensors belong: each is refused, nothing is done."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import alpha
from alpha import checkpoint, gradcheck, nn, ops, optim, random
from alpha.core.config import config
from alpha.core.inputs.arguments import bound, checked
from alpha.core.op import op
from alpha.errors import AlphaError, ArgumentError, ConfigError, DTypeError, NotFoundError

pytestmark = pytest.mark.same_without_kernels("it calls no compiled kernel")
LAYERS = sorted(name for name, cls in vars(nn).items() if isinstance(cls, type) and issubclass(cls, nn.Module))


def refused(f: Callable[..., Any], *args: Any, error: type[AlphaError] = ArgumentError, **kwargs: Any) -> str:
    with pytest.raises(error) as caught:
        f(*args, **kwargs)
    return str(caught.value)


@pytest.mark.parametrize("name", LAYERS)
def test_layers_refuse_unknown_and_too_many_arguments(name: str) -> None:
    cls = getattr(nn, name)
    message = refused(cls, nosuch=1)
    assert message.startswith(f"{name}: ") and "nosuch" in message and "\nhelp: it takes " in message
    if name != "Sequential":
        assert refused(cls, *[1] * 20).startswith(f"{name}: ")


def test_a_layer_without_settings_has_an_empty_signature() -> None:
    assert not inspect.signature(nn.Sigmoid).parameters
    assert refused(nn.Sigmoid, True) == "Sigmoid: 1 arguments are given\nhelp: it takes none: leave them out"


def test_bases_behind_module_get_their_arguments() -> None:
    class Named:
        def __init__(self, name: str) -> None:
            self.name = name

    class Both(nn.Module, Named):
        pass

    class Own(nn.Module):
        def __init__(self, size: int) -> None:
            super().__init__()
            self.size = size

    assert Both("a").name == "a" and Both(name="b").name == "b" and Own(3).size == 3


@pytest.mark.parametrize("f", [
    ops.batch_norm, alpha.grad, alpha.gradcheck, alpha.no_grad, alpha.enable_grad, alpha.detect_anomaly,
    alpha.precision, alpha.capture, alpha.from_dlpack, checkpoint.save, checkpoint.load, checkpoint.load_torch,
    checkpoint.save_torch, checkpoint.from_torch_state_dict, checkpoint.to_torch_state_dict, checkpoint.previous],
    ids=lambda f: f.__name__)
def test_functions_refuse_calls_that_do_not_fit(f: Callable[..., Any]) -> None:
    message = refused(f, nosuch=1)
    assert message.startswith(f"{f.__name__}: ") and "nosuch" in message and "\nhelp: it takes (" in message


def test_bound_leaves_errors_of_the_body_alone() -> None:
    @bound
    def f(x: int, *, by: int = 1) -> int:
        return len(x)  # type: ignore[arg-type]

    with pytest.raises(TypeError, match="has no len"):
        f(3)
    assert refused(f, 1, 2).startswith("f: takes 1 positional argument but 2 were given\nhelp: it takes (x, by)")
    assert refused(f).startswith("f: missing 1 required positional argument: 'x'")


def test_checked_knows_open_ended_arguments() -> None:
    @checked
    def f(x: int, *rest: Any, by: int = 1, **more: Any) -> Any:
        return x, rest, by, more

    assert f(1, 2, 3, by=4, a=5) == (1, (2, 3), 4, {"a": 5}) and f(x=1) == (1, (), 1, {})
    assert refused(f, "a", 2).startswith('f: x is "a" (str), an int is needed')
    assert refused(f, 1, 2, x=3).startswith("f: x is given twice")
    assert refused(f).startswith("f: x is missing")


def test_grad_takes_tensors_alone() -> None:
    x = alpha.tensor([1.0, 2.0], requires_grad=True)
    y = (x * x).sum()
    assert refused(alpha.grad, None).startswith("grad: inputs is missing")
    assert refused(alpha.grad, y, None).startswith("grad: inputs is None, a tensor is needed")
    assert refused(alpha.grad, [y, 3.0], [x]).startswith("grad: outputs[1] is 3.0, a tensor is needed")
    assert refused(alpha.grad, y, [x], "g").startswith('grad: grad_outputs is "g" (str), a tensor or None is needed')
    assert refused(alpha.grad, [y, y], [x], [None]) == (
        "grad: there are 1 grad_outputs for 2 outputs\nhelp: pass one per output; None stands for 1")
    assert refused(alpha.grad, y, x, create_graph="yes").startswith('grad: create_graph is "yes" (str)')
    assert alpha.grad(y, iter([x]))[0].tolist() == [2.0, 4.0]


def test_gradcheck_says_what_it_needs() -> None:
    x = alpha.tensor([1.0, 2.0], "float64", requires_grad=True)
    assert refused(gradcheck, None).startswith("gradcheck: inputs is missing")
    assert refused(gradcheck, lambda x: x, None).startswith("gradcheck: inputs is None, a tensor or a list")
    assert refused(gradcheck, 3, [x]).startswith("gradcheck: f is 3, a function is needed")
    assert refused(gradcheck, lambda x: 1.0, [x]).startswith("gradcheck: f returned 1.0, a tensor or a list of them")
    assert refused(gradcheck, lambda x: x, [x], eps=0.0, error=ConfigError).startswith("gradcheck: eps is 0.0")
    assert gradcheck(lambda x: x * x, x)


def test_optimizers_take_no_model() -> None:
    model = nn.Linear(2, 2)
    for make in (lambda: optim.SGD(model, lr=0.1), lambda: optim.Adam(model)):
        assert "params is Linear(2, 2) (Linear), a list of tensors is needed" in refused(make)


def test_op_takes_a_class() -> None:
    assert refused(op, None, error=DTypeError) == (
        "op: None is no class\nhelp: write @op above the class that describes it")


def test_a_list_of_parameters_is_no_array_without_axes() -> None:
    message = refused(nn.ParameterList, np.array(1), error=DTypeError)
    assert message.startswith("ParameterList: the entries are a ndarray, a list is needed")


def test_numbers_are_reserved_once_in_any_number_of_threads() -> None:
    before = random.get_state()
    try:
        random.set_state(1, 0)
        found: list[list[int]] = [[] for _ in range(4)]

        def draw(mine: list[int]) -> None:
            for _ in range(20_000):
                mine.append(random.reserve(4)[1])

        threads = [threading.Thread(target=draw, args=(mine,)) for mine in found]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted([offset for mine in found for offset in mine]) == list(range(0, 320_000, 4))
        assert random.get_state() == (1, 320_000)
    finally:
        random.set_state(*before)


def test_a_state_of_random_numbers_is_two_ints() -> None:
    before = random.get_state()
    assert refused(random.set_state, None, None).startswith("set_state: seed is None, an int of at least 0")
    assert refused(random.set_state, 1, -1, error=ConfigError).startswith("set_state: counter is -1, an int")
    assert random.get_state() == before


LAYERS_OF = {"Sequential": lambda: nn.Sequential(nn.Linear(2, 3), nn.ReLU()),
             "ModuleDict": lambda: nn.ModuleDict({"a": nn.Linear(2, 3)})}


@pytest.mark.parametrize("kind, call, error, text", [
    ("Sequential", lambda m: m.get_submodule([0, 1]), NotFoundError, "there is no module at [0, 1]"),
    ("Sequential", lambda m: m["a":], DTypeError, "is no slice of ints: "),
    ("Sequential", lambda m: m.__delitem__(slice(0, 1, 0)), DTypeError, "slice step cannot be zero"),
    ("Sequential", lambda m: m.__setitem__(slice("a"), [nn.ReLU()]), DTypeError, "is no slice of ints: "),
    ("Sequential", lambda m: m[10 ** 400], NotFoundError, "..., it has 2"),
    ("Sequential", lambda m: m.register_buffer((ops.zeros((9, 9)),), None), ConfigError,
     "Sequential.register_buffer: (a float32 tensor of shape (9, 9),) is no name for"),
    ("ModuleDict", lambda m: m[[1]], NotFoundError, "there is no entry [1]"),
    ("ModuleDict", lambda m: m.pop(slice(1)), NotFoundError, "there is no entry slice(None, 1, None)"),
])
def test_what_is_no_name_and_no_position(kind: str, call: Callable[..., Any], error: type[AlphaError],
                                         text: str) -> None:
    model = LAYERS_OF[kind]()
    before = list(model)
    assert text in refused(call, model, error=error) and list(model) == before


def test_containers_know_what_they_do_not_have() -> None:
    model = LAYERS_OF["ModuleDict"]()
    assert [1] not in model and model.get([1]) is None and model.get("a") is model["a"]
    layers = LAYERS_OF["Sequential"]()
    layers.insert(10 ** 400, nn.GELU())
    assert isinstance(layers[2], nn.GELU)


@pytest.mark.parametrize("value", [int, ops.zeros((3, 3)), 1.5, "x" * 5000, 10 ** 5000, None, [1]],
                         ids=lambda v: type(v).__name__)
def test_settings_that_are_none_are_refused_in_short(value: Any) -> None:
    with config(check_nan=np.int64(1)):
        assert len(refused(lambda: config(check_nan=value).__enter__(), error=ConfigError)) < 300


def test_groups_of_an_optimizer_have_names_for_settings() -> None:
    text = refused(optim.SGD, [{"params": [nn.Parameter(ops.zeros((2,)))], 3: 1}], 0.1, error=ConfigError)
    assert text.startswith("SGD: a group has the setting 3, which is unknown")
