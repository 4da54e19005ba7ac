"""alpha.inference: what it refuses, and how it says so."""

from __future__ import annotations

import numpy as np
import pytest

import alpha
from alpha import nn, ops
from alpha.errors import ArgumentError, ConfigError, DeviceError, DTypeError, GraphError, ShapeError
from tests.test_inference import Block, assert_close, image, plain, trained


class Function(nn.Module):
    def __init__(self, function):
        self.function, self.linear = function, nn.Linear(3, 3)

    def forward(self, *xs):
        return self.function(self.linear(xs[0]), *xs[1:])


@pytest.mark.parametrize("function, says", [
    (lambda y: y * 2 if y.sum().item() > 0 else y + 1, "call 2 is"),
    (lambda y: y * float(y.numpy().max()), "reads other values"),
    (lambda y: ops.concat([y] * (1 + int(abs(y.numpy()).sum() * 1000) % 7)), "depends on its data"),
    (lambda y: ops.dropout(y, p=0.5, training=True), "depends on its data"),
    (lambda y: y + ops.rand((2, 3)), "depends on its data"),
])
def test_what_depends_on_data_is_refused(function, says):
    alpha.manual_seed(0)
    model = Function(function)
    model.linear.weight.copy_(np.eye(3, dtype=np.float32))
    model.linear.bias.copy_(np.zeros(3, np.float32))
    x = alpha.tensor(np.array([[1, 2, 3], [4, 5, 6]], np.float32) * 10)
    with pytest.raises(GraphError, match="depends on its data") as error:
        alpha.inference(model, x)
    assert says in str(error.value) and "help: compute with ops alone" in str(error.value)


def test_a_model_that_trains_in_every_mode_is_refused():
    mean, var = ops.zeros((3,)), ops.ones((3,))
    model = Function(lambda y: ops.batch_norm(y, None, None, mean, var, training=True))
    with pytest.raises(ConfigError, match=r"changes running_mean and running_var in the forward pass\nhelp: pass "
                       r"training=self\.training"):
        alpha.inference(model, image(4, 3))


def test_hooks_are_refused():
    model = Block()
    model.first.register_forward_hook(lambda *_: None)
    with pytest.raises(ConfigError, match="the model has hooks, which would not be called\nhelp: remove"):
        alpha.inference(model, image(1, 6, 6, 3))


@pytest.mark.parametrize("result", [None, {"y": 1}, (), [1]])
def test_a_model_that_returns_no_tensors_is_refused(result):
    with pytest.raises(ConfigError, match=r"the model returns .*\nhelp: return a tensor, or a tuple"):
        alpha.inference(Function(lambda y: result), image(2, 3))


@pytest.mark.parametrize("model, example, says", [
    (lambda x: x, image(1, 3), "model is .*, a Module is needed"),
    (nn.Linear(3, 3), None, "example is None, a Tensor or a tuple"),
    (nn.Linear(3, 3), (1, 32, 32, 3), "example is .*, a Tensor or a tuple"),
    (nn.Linear(3, 3), (), "example is"),
    (nn.Linear(3, 3), np.zeros((1, 3), np.float32), "example is a float32 NumPy array"),
])
def test_what_is_no_model_and_no_example(model, example, says):
    with pytest.raises(ArgumentError, match=says):
        alpha.inference(model, example)


def test_an_error_of_the_model_is_the_models():
    with pytest.raises(ShapeError, match="linear: x has 4 features"):
        alpha.inference(nn.Linear(3, 3), image(1, 4))


def test_inputs_unlike_the_example_are_refused():
    run = alpha.inference(Function(lambda y, z: y + z), (image(2, 3), image(2, 3)))
    x = image(2, 3)
    for inputs, kind, says in (
            ((x,), ArgumentError, "1 inputs are given, the example had 2"),
            ((x, x.numpy()), ArgumentError, "the input is a float32 NumPy array"),
            ((x, image(3, 3)), ShapeError, r"the input has shape \(3, 3\), the example had \(2, 3\)"),
            ((x.astype("float64"), x), DTypeError, "the input has dtype float64, the example had float32"),
            ((x.detach().requires_grad_(), x), GraphError, "a runner makes no graph")):
        with pytest.raises(kind, match=says + ".*\nhelp: "):
            run(*inputs)
    with alpha.no_grad():
        assert_close(run(x.detach().requires_grad_(), x), run(x, x))


def test_a_failed_fold_leaves_the_runner_to_be_called_again():
    model = trained(Block())
    x = image(1, 6, 6, 3)
    run = alpha.inference(model, x)
    handle = model.first.register_forward_hook(lambda *_: None)
    model.first.weight.copy_(model.first.weight.numpy() * 2)
    with pytest.raises(ConfigError, match="hooks"):
        run(x)
    handle()
    assert_close(run(x), plain(model, x))


def test_other_devices_are_refused():
    run = alpha.inference(nn.Linear(3, 3), image(1, 3))
    with pytest.raises(DeviceError, match="the input is on cuda, the example was on cpu"):
        run(alpha.Tensor(None, (1, 3), "float32", "cuda"))
    with pytest.raises(DeviceError, match="the model is on cpu, the example on cuda"):
        alpha.inference(nn.Linear(3, 3), alpha.Tensor(None, (1, 3), "float32", "cuda"))
