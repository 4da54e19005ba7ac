"""Wrong arguments of ops, layers, optimizers and of tensors from nothing: each is refused, and the message is read."""

from __future__ import annotations

import random
from collections.abc import Callable
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import alpha
from alpha import nn, ops, optim
from alpha.core.inputs import sizes
from alpha.core.inputs.arguments import checked, kinds_of
from alpha.core.inputs.kinds import Axis, Count, Decay, Kind, Pair
from alpha.core.op import op, registry
from alpha.cpu import memory
from alpha.errors import (
    AlphaError,
    ArgumentError,
    ConfigError,
    DeviceError,
    DTypeError,
    OutOfMemoryError,
    ShapeError,
    shown,
)
from alpha.gradcheck import assert_equal_at
from tests.fuzz import calls
from tests.op_checks import refused
from tests.test_public_api import STUB

A = alpha.tensor(np.ones((2, 3), np.float32))
B = alpha.tensor(np.zeros((2, 3), np.float32))
X = alpha.tensor(np.ones((1, 4, 4, 2), np.float32))
W = alpha.tensor(np.ones((2, 3, 3, 2), np.float32))
LABELS = alpha.tensor([0, 2])
ARRAY = np.ones((2, 3), np.float32)
HUGE = 1 << 40
SIZE = "an int or a tuple of ints of at least 0"


def parameter() -> nn.Parameter:
    p = nn.Parameter(ops.ones((2,)))
    p.grad = ops.ones((2,))
    return p


CALLS: list[tuple[Callable[[], Any], type[AlphaError], str]] = [
    # ---- ops: tensors
    (lambda: ops.stack([1.0, 2.0]), ArgumentError, "stack: xs is [1.0, 2.0], a list of items, each a Tensor, is neede"),
    (lambda: ops.stack(A), ArgumentError, "stack: xs is a float32 tensor of shape (2, 3), a list of items"),
    (lambda: ops.stack(iter([A, None])), ArgumentError, "stack: xs is <list_iterator object"),
    (lambda: ops.concat(A, B), ArgumentError, "concat: xs is a float32 tensor of shape (2, 3), a list of tensors"),
    (lambda: ops.concat([A, B], B), ShapeError, "concat: axis is a float32 tensor of shape (2, 3), an int is needed"),
    (lambda: ops.concat([A, 1]), ArgumentError, "concat: xs[1] is 1, a Tensor is needed"),
    (lambda: ops.concat("ab"), ArgumentError, 'concat: xs is "ab" (str), a list of tensors is needed'),
    (lambda: ops.cross_entropy(A, [0, 2]), ArgumentError, "cross_entropy: target is [0, 2], a Tensor is needed"),
    (lambda: ops.bce_with_logits_loss(A, 1.0), ArgumentError, "bce_with_logits_loss: target is 1.0, a Tensor is"),
    (lambda: ops.relu(None), ArgumentError, "relu: x is None, a Tensor is needed"),
    (lambda: ops.relu(ARRAY), ArgumentError, "relu: x is a float32 NumPy array of shape (2, 3), a Tensor is needed"),
    (lambda: ops.add(A, "1"), ArgumentError, 'add: b is "1" (str), a Tensor or a number is needed'),
    (lambda: ops.batch_norm([1.0]), ArgumentError, "batch_norm: x is [1.0], a Tensor is needed"),
    (lambda: nn.Linear(3, 2)(ARRAY), ArgumentError, "linear: x is a float32 NumPy array of shape (2, 3), a Tensor"),
    (lambda: nn.Flatten()(None), ArgumentError, "flatten: x is None, a Tensor is needed"),
    (lambda: nn.Parameter(ARRAY), ArgumentError, "Parameter: source is a float32 NumPy array of shape (2, 3), a Tenso"),
    (lambda: A.copy_("x"), ArgumentError, 'copy_: source is "x" (str), a Tensor or a NumPy array is needed'),
    (lambda: ops.relu_grad(A, X), ShapeError, "relu_grad: g and y have shapes (2, 3) and (1, 4, 4, 2)"),
    # ---- ops: attributes
    (lambda: ops.conv2d(X, W, stride="2"), ShapeError, 'conv2d: stride is "2" (str), an int or a pair of ints of at l'),
    (lambda: ops.conv2d(X, W, groups=None), ShapeError, "conv2d: groups is None, an int of at least 1 is needed"),
    (lambda: ops.pad(A, 1), ShapeError, "pad: widths is 1, a pair (before, after) of ints of at least 0 for each axis"),
    (lambda: ops.pad(alpha.tensor([1, 2]), ((1, 1),), 2.5), DTypeError, "pad: 2.5 does not fit int64, an integer from"),
    (lambda: ops.sum(A, np.array([0, 1])), ShapeError, "sum: axis is an int64 NumPy array of shape (2,), None, an int"),
    (lambda: ops.sum(A, True), ShapeError, "sum: axis is True, None, an int or a tuple of ints is needed"),
    (lambda: ops.sum(A, 0, 1), ArgumentError, "sum: keepdims is 1, True or False is needed"),
    (lambda: ops.split(A, 1.5), ShapeError, "split: size is 1.5, an int of at least 1 or a list of ints of at least 0"),
    (lambda: ops.leaky_relu(A, nan), ConfigError, "leaky_relu: slope is nan, a finite number is needed"),
    (lambda: ops.clip(A, nan), ConfigError, "clip: low is nan, a number other than NaN or None is needed"),
    (lambda: ops.dropout(A, None), ArgumentError, "dropout: p is None, a number in [0, 1] is needed"),
    (lambda: ops.batch_norm(A, momentum=None), ArgumentError, "batch_norm: momentum is None, a number in [0, 1] is"),
    (lambda: ops.batch_norm(A, eps=inf), ConfigError, "batch_norm: eps is inf, a finite number of at least 0 is neede"),
    (lambda: ops.mse_loss(A, B, reduction=None), ArgumentError, 'mse_loss: reduction is None, "mean", "sum" or "none"'),
    (lambda: ops.cast(A, None), DTypeError, "dtype: None is not a dtype of alpha"),
    (lambda: A.astype(None), DTypeError, "dtype: None is not a dtype of alpha"),
    (lambda: A.reshape(None), ShapeError, "reshape: shape is None, an int or a tuple of ints of at least -1 is needed"),
    (lambda: A["x":], DTypeError, "getitem: the key is slice('x', None, None) (slice): slice indices must be integers"),
    (lambda: A[::0], DTypeError, "getitem: the key is slice(None, None, 0) (slice): slice step cannot be zero"),
    (lambda: A[[[1], [1, 0]]], ShapeError, "getitem: the lists of the key are of unequal lengths"),
    (lambda: ops.where(A > 0, A > 0, 300), DTypeError, "where: 300 does not fit bool, an integer from 0 to 1 is"),
    (lambda: A.to(3), ArgumentError, "Tensor.to: device is 3, a str is needed"),
    (lambda: A.backward([1]), AlphaError, "backward: a tensor of shape (2, 3) depends on nothing"),
    # ---- how an op is called
    (lambda: ops.softmax(A, colour=1), ArgumentError, "softmax: colour is unknown, it takes softmax(x, axis=-1)"),
    (lambda: ops.softmax(A, 0, axis=0), ArgumentError, "softmax: axis is given twice, it takes softmax(x, axis=-1)"),
    (lambda: ops.matmul(A), ArgumentError, "matmul: b is missing, it takes matmul(a, b, transpose_a=False"),
    (lambda: ops.max_pool2d(X), ArgumentError, "max_pool2d: kernel_size is missing, it takes max_pool2d(x, kernel_si"),
    (lambda: ops.relu(A, 1, 2), ArgumentError, "relu: 3 arguments are given, it takes relu(x)"),
    (lambda: ops.split(A), ArgumentError, "split: size is missing"),
    (lambda: ops.split(A, 1, axis=0, part=1), ArgumentError, "split: part is unknown"),
    (lambda: ops.split(A, 1, size=1), ArgumentError, "split: size is given twice"),
    (lambda: ops.split(A, 1, 0, 0), ArgumentError, "split: 4 arguments are given by position, 3 is the most"),
    # ---- layers
    (lambda: nn.BatchNorm2d(3, momentum=2), ConfigError, "BatchNorm2d: momentum is 2, a number in [0, 1] or None"),
    (lambda: nn.BatchNorm2d(3, eps=nan), ConfigError, "BatchNorm2d: eps is nan, a finite number above 0 is needed"),
    (lambda: nn.Linear("3", 2), ArgumentError, 'Linear: in_features is "3" (str), an int of at least 1 is needed'),
    (lambda: nn.Linear(3, 2, flattened=(1, 3)), ShapeError, "Linear: flattened is (1, 3), three ints of at least 1"),
    (lambda: nn.Linear(3), ArgumentError, "Linear: out_features is missing"),
    (lambda: nn.Conv2d(3, 4, 3, bias=16), ArgumentError, "Conv2d: bias is 16, True or False is needed"),
    (lambda: nn.MaxPool2d(2, padding=2), ShapeError, "MaxPool2d: padding (2, 2) exceeds half of kernel_size (2, 2)"),
    (lambda: nn.MSELoss(reduction="avg"), ConfigError,
     'MSELoss: reduction is "avg" (str), "mean", "sum" or "none" is needed'),
    (lambda: nn.Linear(3, 2).to(dtype="int64"), DTypeError, "Linear.to: dtype is int64, a floating dtype is needed"),
    (lambda: nn.Linear(3, 2).to(device=3), ArgumentError, "Linear.to: device is 3, a str or None is needed"),
    (lambda: nn.init.xavier_normal_(3), ArgumentError, "xavier_normal_: t is 3, a Tensor is needed"),
    (lambda: nn.init.xavier_normal_(ops.ones((3, 0))), ShapeError, "init: a tensor of shape (3, 0) has no element"),
    # ---- optimizers
    (lambda: optim.Adam(betas=.9), ArgumentError, "Adam: params is missing"),
    (lambda: optim.Adam([parameter()], betas=.9), ArgumentError, "Adam: betas is 0.9, a pair of numbers in [0, 1) is"),
    (lambda: optim.Adam([parameter()], eps=nan), ConfigError, "Adam: eps is nan, a finite number of at least 0 is nee"),
    (lambda: optim.SGD([parameter()], lr=inf), ConfigError, "SGD: lr is inf, a finite number above 0, or a schedule,"),
    (lambda: optim.SGD([parameter()], lr=None), ArgumentError, "SGD: lr is None, a finite number above 0, or a sched"),
    (lambda: optim.SGD([{"params": [parameter()], "lr": nan}], lr=1), ConfigError, "SGD: lr is nan, a finite number"),
    (lambda: optim.SGD([{"lr": 1.0}], lr=1), ConfigError, 'SGD: a group is {\'lr\': 1.0} (dict), a dict with "params"'),
    (lambda: optim.SGD(nn.Linear(3, 2), lr=1), ArgumentError, "SGD: params is Linear(3, 2) (Linear), a list of tensor"),
    (lambda: optim.SGD([parameter()], lr=lambda t: nan).step(), ConfigError, "sgd_step: lr is nan, a finite number of"),
    (lambda: optim.clip_grad_norm(None, 1.0), ArgumentError, "clip_grad_norm: params is None, a list of tensors is ne"),
    (lambda: optim.clip_grad_norm("w", 1.0), ArgumentError, 'clip_grad_norm: params is "w" (str), a list of tensors i'),
    (lambda: optim.clip_grad_value(nn.Linear(3, 2), 1), ArgumentError, "clip_grad_value: params is Linear(3, 2) (Line"),
    (lambda: optim.clip_grad_norm([1.0], 1.0), ArgumentError, "clip_grad_norm: parameter number 0 is 1.0, a Tensor is"),
    (lambda: optim.clip_grad_norm([parameter()], nan), ConfigError, "clip_grad_norm: max_norm is nan, a number above"),
    (lambda: optim.ExponentialMovingAverage(None), ArgumentError, "ExponentialMovingAverage: model is None, a Module"),
    (lambda: optim.schedule.cosine(0.1, 10.5), ArgumentError, "cosine: total_steps is 10.5, an int of at least 1 is"),
    (lambda: optim.schedule.exponential(0.1, inf), ConfigError, "exponential: gamma is inf, a finite number above 0"),
    (lambda: optim.schedule.constant(0.1)(None), ArgumentError, "schedule: t is None, an int of at least 0 is needed"),
    (lambda: alpha.summary(None, (3,)), ArgumentError, "summary: model is None, a Module is needed"),
    (lambda: optim.schedule.one_cycle(1e308, 9, div_factor=0.1), ConfigError, "one_cycle: max_lr=1e+308 / div_factor"),
    (lambda: optim.schedule.multistep(0.1, 30), ShapeError, "multistep: milestones is 30, a list of ints of at least"),
    (lambda: optim.LossScaler(growth_interval=1.5), ArgumentError, "LossScaler: growth_interval is 1.5, an int of at"),
    # ---- tensors from nothing
    (lambda: ops.arange(0, inf), ConfigError, "arange: stop is inf, a finite number or None is needed"),
    (lambda: ops.arange("3"), ArgumentError, 'arange: start is "3" (str), a finite number is needed'),
    (lambda: ops.arange(0, 300, dtype="uint8"), DTypeError, "tensor: the value 299 does not fit uint8, which holds 0"),
    (lambda: ops.arange(0, 1 << 70, 1 << 69), ConfigError, "are too large"),
    (lambda: ops.full((2,), 300, "uint8"), DTypeError, "full: 300 does not fit uint8, an integer from 0 to 255 is nee"),
    (lambda: ops.full((2,), 1.5, "int64"), DTypeError, "full: 1.5 does not fit int64, an integer from -92233720368547"),
    (lambda: ops.full((2,), nan, "int32"), DTypeError, "full: nan does not fit int32"),
    (lambda: ops.full((2,), 1e300), DTypeError, "full: 1e+300 does not fit float32, a number from -3.4"),
    (lambda: ops.full((2,), "x"), ArgumentError, 'full: value is "x" (str), a number is needed'),
    (lambda: ops.zeros(None), ShapeError, f"zeros: shape is None, {SIZE} is needed"),
    (lambda: ops.zeros(3, device=0), ArgumentError, "zeros: device is 0, a str is needed"),
    (lambda: ops.zeros_like(ARRAY), ArgumentError, "zeros_like: x is a float32 NumPy array of shape (2, 3), a Tensor"),
    (lambda: alpha.tensor([300], "uint8"), DTypeError, "tensor: the value 300 does not fit uint8, which holds 0 to 25"),
    (lambda: alpha.tensor([nan], "int64"), DTypeError, "tensor: the value nan does not fit int64"),
    (lambda: alpha.tensor([-inf], "int64"), DTypeError, "tensor: the value -inf does not fit int64"),
    (lambda: alpha.tensor([1 << 63], "int64"), DTypeError, "tensor: the value 9223372036854775808 does not fit int64"),
    (lambda: alpha.tensor(["a"], "float32"), DTypeError, "tensor: the elements are no numbers, the first is"),
    (lambda: alpha.tensor([1j], "float32"), DTypeError, "tensor: the elements are no numbers, the first is"),
    (lambda: alpha.tensor(None, "float32"), DTypeError, "tensor: the elements are no numbers, the first is None"),
    (lambda: alpha.manual_seed(-1), ConfigError, "manual_seed: seed is -1, an int of at least 0 is needed"),
    (lambda: ops.zeros((2,), device=["cpu"]), ArgumentError, 'zeros: device is ["cpu"], a str is needed'),
    # ---- sizes
    (lambda: ops.zeros((HUGE, HUGE)), ShapeError, f"zeros: a tensor of shape ({HUGE}, {HUGE}) is larger than any memo"),
    (lambda: ops.zeros((HUGE,)), OutOfMemoryError, f"zeros: a float32 tensor of shape ({HUGE},) takes 4,096.0 GiB, th"),
    (lambda: ops.randn((HUGE,)), OutOfMemoryError, f"randn: a float64 tensor of shape ({HUGE},) takes 8,192.0 GiB"),
    (lambda: ops.zeros((1 << 63,)), ShapeError, f"zeros: shape is ({1 << 63},), {SIZE} is needed"),
    (lambda: ops.ones((1,)).expand((HUGE, HUGE)), ShapeError, "expand: a tensor of shape"),
    (lambda: ops.ones((1,)).expand((HUGE,)), OutOfMemoryError, "the host has"),
    (lambda: ops.zeros((0,)).reshape((1 << 62, 0)), ShapeError, "reshape: a tensor of shape"),
    (lambda: ops.zeros((1,)).reshape((1,) * 70), ShapeError, "reshape: a tensor of 70 axes, 32 is the most"),
    (lambda: ops.matmul(ops.zeros((HUGE, 0)), ops.zeros((0, HUGE))), ShapeError, "matmul: a tensor of shape"),
    (lambda: ops.arange(1e300), ShapeError, "arange: a tensor of shape"),
    (lambda: ops.conv2d(X, W, padding=1 << 61), ShapeError, "positions along H are too many, 16777216 is the most"),
    (lambda: ops.adaptive_avg_pool2d(X, 1 << 40), ShapeError, "positions along H or W are too many, 16777216 is"),
    (lambda: ops.add(A, 10 ** 400), ShapeError, "add: a number of 1329 bits fits no dtype"),
    # ---- bools, which are no numbers
    (lambda: A.size(True), ArgumentError, "size: axis True does not exist in a tensor of 2 axes"),
    (lambda: alpha.config(num_threads=True).__enter__(), ConfigError, "NUM_THREADS: 'True' is not an integer"),
    (lambda: alpha.capture(True), ArgumentError, "capture: True cannot be called"),
]


@pytest.mark.parametrize("call, error, part", CALLS, ids=[part[:40] for _, _, part in CALLS])
def test_a_wrong_call_is_refused(call: Callable[[], Any], error: type[AlphaError], part: str) -> None:
    with refused(error, part):
        call()


def test_messages_are_short_whatever_is_passed() -> None:
    for value in ([A] * 50, "x" * 5000, dict.fromkeys(range(99), A), nn.Sequential(*[nn.ReLU()] * 99), 10 ** 9999):
        with pytest.raises(AlphaError) as caught:
            ops.conv2d(X, W, stride=value)
        assert len(str(caught.value)) < 300, str(caught.value)
    assert shown(A) == shown(A.detach()) == "a float32 tensor of shape (2, 3)"
    assert shown([A, 1]) == "[a float32 tensor of shape (2, 3), 1]" and shown((1,)) == "(1,)"
    assert shown(10 ** 9999) == "a number of 33216 bits" and shown(nn.ReLU) == "the class ReLU"


def test_an_unfit_number_or_device_changes_nothing() -> None:
    layer, state = nn.Linear(3, 2), alpha.random.get_state()
    with refused(DeviceError, "'tpu' is not a device"):
        layer.to("tpu")
    with refused(DTypeError, "a floating dtype is needed"):
        layer.to(dtype="int64")
    with refused(OutOfMemoryError, "randn: "):
        ops.randn((HUGE,))
    assert layer.weight.dtype == "float32" and alpha.random.get_state() == state


def test_numbers_of_numpy_are_as_good_as_those_of_python() -> None:
    assert ops.sum(A, np.int64(1), np.bool_(True)).shape == (2, 1)
    assert ops.split(A, np.int32(1))[0].shape == (1, 3) and ops.zeros((np.int8(2), 3)).shape == (2, 3)
    layer = nn.Conv2d(np.int64(3), 4, (np.int32(3), 3), bias=np.bool_(False))
    assert type(layer.in_channels) is int and type(layer.kernel_size[0]) is int and layer.bias is None
    assert type(nn.Dropout(np.float32(0.5)).p) is float and ops.leaky_relu(A, np.float64(0.1)).shape == (2, 3)
    assert ops.full((2,), np.float32(2.5)).tolist() == [2.5, 2.5] and ops.arange(np.int64(3)).tolist() == [0, 1, 2]
    assert optim.SGD([parameter()], lr=np.float64(1)).param_groups[0]["lr"] == 1.0


def test_minus_zero_and_one_are_not_taken_for_what_equals_them() -> None:
    for value in (0.0, -0.0, 0.0):
        assert np.signbit(ops.pad(A, ((1, 0), (0, 0)), value).numpy()[0, 0]) == np.signbit(value)
    ops.sum(A, 1, True)
    with refused(ArgumentError, "sum: keepdims is 1"):
        ops.sum(A, 1, 1)


@pytest.mark.parametrize("wrong", [(True, 2), (1.0, 2), [True, 2]])
def test_a_pair_is_not_taken_for_one_that_equals_it_and_was_taken_before(wrong: Any) -> None:
    right = (1, 2)
    for call, text in ((lambda pair: ops.conv2d(X, W, stride=pair), "conv2d: stride is"),
                       (lambda pair: ops.max_pool2d(X, pair), "max_pool2d: kernel_size is"),
                       (lambda pair: ops.pad(A, (pair, (0, 0))), "pad: widths is"),
                       (lambda pair: ops.coconv2d(X, W, dilations=pair, channels=(1, 1)), "coconv2d: dilations is"),
                       (lambda pair: nn.CoConv2d(2, 8, dilations=pair), "CoConv2d: dilations is")):
        call(right)
        with refused(ShapeError, text):
            call(wrong)


def test_elements_may_be_infinite_and_masks_bool() -> None:
    assert np.isnan(ops.full((1,), nan).item()) and ops.full((1,), -inf, "float16").item() == -inf
    assert ops.full((2,), True, "bool").tolist() == [True, True]
    assert alpha.tensor([1.5, -2.5], "int64").tolist() == [1, -2] and alpha.tensor([255.0], "uint8").tolist() == [255]
    assert ops.arange(3, 0).shape == (0,) and ops.arange(1e308, step=-1).shape == (0,)


def test_one_tensor_is_a_list_of_one_parameter() -> None:
    p = parameter()
    assert optim.clip_grad_norm(p, 1.0) == pytest.approx(2 ** 0.5)
    assert np.linalg.norm(p.grad.numpy()) == pytest.approx(1.0)
    optim.clip_grad_value(p, 0.5)
    assert p.grad.tolist() == [0.5, 0.5]
    assert optim.clip_grad_norm((q for q in [p]), 10.0) == pytest.approx(0.5 ** 0.5)
    optim.SGD(p, lr=1).step()
    assert p.tolist() == [0.5, 0.5]


def test_a_schedule_that_overflows_is_refused_at_the_step() -> None:
    optimizer = optim.SGD([parameter()], lr=optim.schedule.exponential(1.0, 2.0))
    optimizer.step_count = 10 ** 6
    with refused(ConfigError, "sgd_step: lr is inf, a finite number of at least 0 is needed"):
        optimizer.step()


def test_linear_without_features_goes_both_ways() -> None:
    for shape in ((4, 0), (0,), (2, 3, 0)):
        x, w = ops.zeros(shape, requires_grad=True), ops.zeros((5, 0), requires_grad=True)
        y = ops.linear(x, w)
        assert y.shape == (*shape[:-1], 5) and not y.numpy().any()
        y.sum().backward()
        assert x.grad.shape == shape and w.grad.shape == (5, 0)


def test_split_of_no_rows_is_one_empty_part() -> None:
    parts = ops.split(ops.zeros((0, 3), requires_grad=True), 2)
    assert [p.shape for p in parts] == [(0, 3)] and ops.concat(parts).shape == (0, 3)
    assert ops.split(ops.zeros((0, 3)), []) == []


@pytest.mark.torch
@pytest.mark.parametrize("stride, padding, dilation, extra", [
    (1, 0, 2, 1), (2, 1, 3, 2), ((1, 3), (2, 0), (3, 1), (2, 2)), (1, 3, 2, 1), (1, 0, 4, 3), (2, 2, 4, 3)])
def test_output_padding_below_the_dilation(stride: Any, padding: Any, dilation: Any, extra: Any) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(1)
    x, w = rng.normal(size=(2, 4, 5, 3)), rng.normal(size=(3, 3, 2, 4))
    tx = torch.tensor(x.transpose(0, 3, 1, 2), requires_grad=True)
    tw = torch.tensor(w.transpose(0, 3, 1, 2), requires_grad=True)
    expected = torch.nn.functional.conv_transpose2d(tx, tw, None, stride, padding, extra, 1, dilation)
    ax, aw = alpha.tensor(x, requires_grad=True), alpha.tensor(w, requires_grad=True)
    y = ops.conv_transpose2d(ax, aw, stride, padding, extra, dilation)
    assert_equal_at(y.detach(), expected.detach().numpy().transpose(0, 2, 3, 1), rtol=1e-10, atol=1e-12)
    g = rng.normal(size=y.shape)
    y.backward(alpha.tensor(g))
    expected.backward(torch.tensor(g.transpose(0, 3, 1, 2)))
    assert_equal_at(ax.grad, tx.grad.numpy().transpose(0, 2, 3, 1), rtol=1e-10, atol=1e-12)
    assert_equal_at(aw.grad, tw.grad.numpy().transpose(0, 2, 3, 1), rtol=1e-10, atol=1e-12)
    layer = nn.ConvTranspose2d(3, 4, (3, 2), stride, padding, extra, dilation=dilation)
    assert layer(ops.zeros(x.shape)).shape == y.shape and alpha.summary(layer, x.shape[1:]).total("useful_macs") > 0


def test_memory_beyond_the_host_is_refused_before_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    memory.pool.free_cached()  # a block of this size that another test left would serve
    monkeypatch.setattr(memory, "host_nbytes", lambda: memory.pool.live + (1 << 20))
    most = memory.host_nbytes() / (1 << 20)     # with what other tests have left
    with refused(OutOfMemoryError, f"memory: 2.0 MiB are asked for, the host has {most:,.1f}"):
        memory.empty((1 << 18, 1), "float64")
    assert memory.empty((1 << 16,), "float32").nbytes == 1 << 18
    assert sizes.host_nbytes() > 1 << 28


# ---- signatures ------------------------------------------------------------------------------------------------------

OPS = {name: f for name, f in registry.items() if f.__module__.startswith("alpha.")}


@pytest.mark.parametrize("name", sorted(OPS))
def test_every_attribute_of_an_op_says_what_it_may_be(name: str) -> None:
    assert set(OPS[name].kinds) == OPS[name].attr_set


@pytest.mark.parametrize("name, f", sorted({**calls.LAYERS, **calls.OPTIMIZERS, **calls.SCHEDULES}.items()))
def test_every_parameter_of_layers_optimizers_and_schedules_says_what_it_may_be(name: str, f: Any) -> None:
    untyped = {p for p, kind, _ in calls.parameters_of(f) if kind is None} - {
        "params", "args", "kwargs", "entries", "parameters", "modules"}  # the last: each entry is looked at
    assert not untyped


def test_the_typed_stub_says_the_same() -> None:
    """Where a parameter has a kind, its annotation in __init__.pyi is the one that the kind goes by."""
    import ast
    for node in STUB.body:
        if not isinstance(node, ast.FunctionDef):
            continue
        f = getattr(ops, node.name)
        found: dict[str, Kind] = dict(f.kinds) if hasattr(f, "kinds") else kinds_of(f)
        for arg in node.args.args + node.args.kwonlyargs:
            if arg.arg in found:
                words = set(ast.unparse(arg.annotation).split(" | "))
                assert words == set(found[arg.arg].stub.split(" | ")), (node.name, arg.arg, found[arg.arg].stub)


def test_a_function_and_an_op_of_ones_own_are_checked_by_their_annotations() -> None:
    @checked
    def shifted(x: alpha.Tensor, by: Count, size: Pair = 1, decay: Decay = 0.5, other: Any = None) -> Any:
        return by, size, decay, other
    assert shifted(A, 2) == (2, (1, 1), 0.5, None) and shifted(A, by=2, size=[1, 2], other="x") == (2, (1, 2), 0.5, "x")
    with refused(ConfigError, "shifted: by is 0, an int of at least 1 is needed"):
        shifted(A, 0)
    try:
        @op
        class rolled:
            """y = x."""
            args = "x"

            def shape(x: Any, *, axis: Axis, scale: float = 1, free=None):  # type: ignore[no-untyped-def]
                return x.shape
        rolled.impl("cpu")(lambda x, **attrs: x)
        assert rolled(A, 0, 2, "anything").shape == A.shape
        with refused(ConfigError, "rolled: scale is nan, a finite number is needed"):
            rolled(A, 0, nan)
        with refused(ShapeError, "rolled: axis is 1.5, an int is needed"):
            rolled(A, 1.5)
    finally:
        del registry["rolled"]


def test_calls_at_random_succeed_or_raise_alphas_errors(tmp_path: Path) -> None:
    texts = [calls.attempt(random.Random(seed), tmp_path) for seed in range(1500)]
    assert sum(text.endswith(": fine") for text in texts) > 200
