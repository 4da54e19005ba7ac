"""alpha.capture on the CPU: the bits of the function itself, op by op, by kernels and by NumPy; and what is refused."""

from __future__ import annotations

import gc
import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import alpha
import models
from alpha import nn, ops, optim
from alpha.core.config import config
from alpha.cpu import CpuBackend, memory, native
from alpha.cpu.library import SIGNATURES, entry, recordable, word
from alpha.errors import DataError
from tests.op_twins import drawn
from tests.op_twins_linalg import TWINS


class Net(nn.Module):
    """Convolutions, batch norm, dropout, a sum of branches and pools."""

    def __init__(self) -> None:
        self.a, self.norm, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3, padding=1)
        self.drop, self.head = nn.Dropout(0.3), nn.Linear(8, 10)

    def forward(self, x: alpha.Tensor) -> alpha.Tensor:
        x = ops.relu(self.norm(self.a(x)))
        x = ops.max_pool2d(ops.relu(self.b(x) + x), 2)
        return self.head(self.drop(ops.adaptive_avg_pool2d(x, 1).flatten(1)))


def sgd(net: nn.Module) -> Any:
    return optim.SGD(net.named_parameters(), lr=lambda step: 0.1 / (1 + step), momentum=0.9, weight_decay=1e-4)


def adam(net: nn.Module) -> Any:
    return optim.AdamW(net.named_parameters(), lr=1e-3)


def lion(net: nn.Module) -> Any:
    return optim.Lion(net.named_parameters(), lr=lambda step: 1e-3 / (1 + step))     # of several ops


def lenet5() -> nn.Module:
    return models.create("lenet5")


def trained(make: Callable[[], nn.Module], optimizer: Callable[[nn.Module], Any], captured: bool, steps: int = 6,
            scaled: bool = False) -> tuple[list[Any], Any]:
    """Trains a network, and returns the bits of all that a step leaves; and the function."""
    alpha.manual_seed(3)
    net = make()
    o, scaler = optimizer(net), optim.LossScaler(initial=2.0 ** 20, growth_interval=2) if scaled else None

    def step(x: alpha.Tensor, y: alpha.Tensor) -> tuple[alpha.Tensor, alpha.Tensor]:
        o.zero_grad()
        logits = net(x)
        loss = ops.cross_entropy(logits, y)
        (loss if scaler is None else scaler.scale(loss)).backward()
        if scaler is None:
            o.step()
        else:
            scaler.step(o, max_norm=1.0)
        return loss.detach(), ops.argmax(logits.detach(), axis=1)

    f, rng, found = alpha.capture(step, net, o) if captured else step, np.random.default_rng(0), []
    for _ in range(steps):
        x = alpha.tensor(rng.standard_normal((4, 32, 32, 3)).astype(np.float32))
        found += [r.numpy().tobytes() for r in f(x, alpha.tensor(rng.integers(0, 10, 4)))]
    found += [t.numpy().tobytes() for t in net.state_dict().values()]
    found += [p.grad.numpy().tobytes() for p in net.parameters()]
    found += [t.numpy().tobytes() for t in o.state_dict()["tensors"].values()]
    found += [o.state_dict()["scalars"], alpha.random.get_state(), None if scaler is None else scaler.value]
    return found, f


@pytest.mark.parametrize(("make", "optimizer"), [(lenet5, sgd), (lenet5, adam), (Net, sgd), (Net, lion)])
def test_a_training_step_has_the_bits_of_calls_op_by_op(make, optimizer, cpu_kernels):
    plain, _ = trained(make, optimizer, captured=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found, step = trained(make, optimizer, captured=True)
    assert found == plain and step.status == "recorded"
    by_kernels = [op for op, what in step.found.recording.lines if what not in ("NumPy", "update")]
    assert ("conv2d_wgrad" in by_kernels) is (cpu_kernels == "compiled")


def test_the_scale_of_the_loss_is_decided_anew_in_each_repetition(cpu_kernels):
    """It overflows in the first steps, and grows again."""
    (plain, _), (found, step) = (trained(Net, sgd, captured, 8, scaled=True) for captured in (False, True))
    assert found == plain and step.status == "recorded"


def test_recomputed_activations_have_the_same_bits():
    with config(recompute="full"):
        (plain, _), (found, step) = (trained(Net, sgd, captured) for captured in (False, True))
    assert found == plain and step.status == "recorded"


def test_settings_of_an_optimizer_may_change_between_repetitions():
    found = []
    for captured in (False, True):
        alpha.manual_seed(0)
        net = nn.Linear(3, 2)
        with alpha.no_grad():
            net.weight.copy_(np.ones((2, 3), np.float32))
        o = optim.SGD(net.parameters(), lr=0.1, momentum=0.5)

        def step(x):
            o.zero_grad()   # noqa: B023
            (net(x) * net(x)).sum().backward()      # noqa: B023
            o.step()    # noqa: B023

        f = alpha.capture(step, net, o) if captured else step
        for k in range(6):
            o.param_groups[0].update(lr=0.1 / (1 + k), weight_decay=0.01 * k)
            f(alpha.ones((2, 3)))
        found.append(net.weight.numpy().tobytes())
    assert found[0] == found[1]


def test_statistics_move_with_each_repetition_and_modes_are_recorded_apart():
    norm, x = nn.BatchNorm2d(2), alpha.tensor(np.arange(16, dtype=np.float32).reshape(2, 2, 2, 2))
    f, other = alpha.capture(lambda x: norm(x).detach(), norm), nn.BatchNorm2d(2)
    for _ in range(5):
        assert f(x).numpy().tobytes() == other(x).detach().numpy().tobytes()
    assert f.status == "recorded" and norm.running_mean.tolist() == other.running_mean.tolist()
    norm.eval()
    assert (f(x).numpy() != other(x).numpy()).any() and "is switched between training and evaluation" in f.status


# ---- every op --------------------------------------------------------------------------------------------------------

NOT_RECORDED = {    # twins that read elements, or draw numbers: why
    **dict.fromkeys(("masked_select", "gaussian_nll_loss"), "is read back"),
    "gumbel_softmax": "drawn on the host"}
QUICK = ("where", "batch_norm", "concat_slice_pad", "expand", "take", "conv2d_dgrad_add", "cross_entropy", "layer_norm",
         "argsort", "gumbel_softmax", "scaled_dot_product_attention", "svd")
CASES = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in TWINS
         if name != "keyed_dropout"]    # whose twin sets the seed


def gradients(ours: Callable[..., Any]) -> Callable[..., list[alpha.Tensor]]:
    """Returns a function of tensors that gives the results of another one, and the gradients of their squares."""
    def compute(*xs: alpha.Tensor) -> list[alpha.Tensor]:
        leaves = [x.detach() for x in xs]
        for t in leaves:
            t.requires_grad = bool(t.is_floating_point)
        y = ours(*leaves)
        ys = [*y] if isinstance(y, (tuple, list)) else [y]
        squares = [(t * t).sum() for t in ys if t.requires_grad]
        total: Any = sum(squares[1:], squares[0]) if squares else None
        grads = alpha.grad(total, [t for t in leaves if t.requires_grad]) if squares else []
        return [t.detach() for t in (*ys, *grads) if t is not None]
    return compute


@pytest.mark.parametrize("name", CASES)
def test_every_op_is_repeated_with_other_values(name, cpu_kernels, monkeypatch):
    """Cases make tensors of constants: those stay as they are."""
    monkeypatch.setattr(CpuBackend, "from_numpy", lambda self, a, device: np.array(a, order="C"))
    cases: list[Any] = []
    drawn(name, 1, cases.append)
    arrays = [a.astype(np.float32) if a.dtype == np.float64 else a for a in map(np.asarray, cases[-1].arrays)]
    compute, rng = gradients(cases[-1].ours), np.random.default_rng(5)
    recorded = alpha.capture(compute)
    with warnings.catch_warnings(record=True):
        for _ in range(4):
            xs = [alpha.tensor((a * rng.uniform(0.7, 1, a.shape)).astype(a.dtype) if a.dtype.kind == "f" else a)
                  for a in arrays]
            alpha.manual_seed(1)
            found = [t.numpy().tobytes() for t in recorded(*xs)]
            alpha.manual_seed(1)
            assert found == [t.numpy().tobytes() for t in compute(*xs)]
    assert NOT_RECORDED[name] in recorded.status if name in NOT_RECORDED else recorded.status == "recorded"


# ---- what cannot be recorded, and ends ----------------------------------------------------------------------------

CANNOT = [
    ("a tensor is read back to the host", lambda x: x * x.sum().item()),
    ("a tensor is made from host data", lambda x: x + alpha.tensor(np.ones(4, np.float32))),
    ("the function returns 'text'", lambda x: (x + 1, "text")),
    ("random numbers are drawn on the host", lambda x: x + alpha.random.reserve(4)[1]),
]


@pytest.mark.parametrize(("why", "function"), CANNOT, ids=[why for why, _ in CANNOT])
def test_what_cannot_be_recorded_is_called_plainly(why, function):
    x, captured = alpha.tensor(np.arange(4, dtype=np.float32)), alpha.capture(function)

    def first(result):
        return (result[0] if isinstance(result, tuple) else result).numpy()
    alpha.manual_seed(0)
    plain = [first(function(x)) for _ in range(5)]
    alpha.manual_seed(0)
    found = [first(captured(x)) for _ in range(2)]
    with pytest.warns(UserWarning) as caught:
        found.append(first(captured(x)))
    assert len(caught) == 1 and why in str(caught[0].message) and "op by op" in str(caught[0].message)
    found += [first(captured(x)) for _ in range(2)]
    np.testing.assert_array_equal(plain, found)
    assert memory.here.recorder is None and memory.here.instead is None and gc.isenabled()
    assert native.recorder() is None and why in captured.status


def test_a_label_out_of_range_is_refused_in_a_repetition(cpu_kernels):
    losses = alpha.capture(lambda x, y: ops.cross_entropy(x, y))
    x, y = alpha.ones((3, 4)), alpha.tensor(np.array([0, 1, 2]))
    for _ in range(4):
        losses(x, y)
    assert losses.status == "recorded"
    with pytest.raises(DataError, match="label 9"):
        losses(x, alpha.tensor(np.array([0, 9, 2])))
    assert losses(x, y).item() == pytest.approx(np.log(4))


def test_other_threads_compute_while_a_function_is_recorded():
    """Their arrays and calls are not part of it."""
    wrong: list[float] = []

    def function(x):
        def work():
            y = ops.relu(alpha.ones((64, 64)) * 2.0).numpy()
            wrong.append(float(np.abs(y - 2).max()))
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return x * 3.0

    f = alpha.capture(function)
    for k in range(5):
        assert (f(alpha.full((8,), float(k))).numpy() == 3 * k).all()
    assert f.status == "recorded" and not any(wrong)


def test_settings_of_the_cpu_have_a_function_recorded_anew():
    net, x = nn.Conv2d(3, 8, 3), alpha.ones((2, 9, 9, 3))
    f, found = alpha.capture(lambda x: net(x).detach(), net), []
    for settings in ({}, {"num_threads": 1}, {"cpu_kernels": False}):
        with config(**settings):
            for _ in range(4):
                y = f(x).numpy()
            assert f.status == "recorded"
            found.append((f.found.recording, y, f.found.recording.lines[0][1]))
    assert len({id(recording) for recording, _, _ in found}) == 3
    np.testing.assert_allclose(found[0][1], found[2][1], rtol=1e-5)
    assert (found[1][2] == "NumPy") is (native.library() is None) and found[2][2] == "NumPy"


def test_a_recordings_memory_is_counted_and_given_back():
    net, x = nn.Sequential(*[nn.Linear(256, 256) for _ in range(4)]), alpha.ones((256, 256))
    f = alpha.capture(net, net)
    with alpha.no_grad():
        for _ in range(3):
            f(x)
    recording = f.found.recording
    assert 0 < recording.nbytes < recording.unshared_nbytes
    live = memory.pool.live
    f.close()
    assert memory.pool.live == live - recording.nbytes and recording.closed


def test_results_and_gradients_are_the_callers():
    net = nn.Linear(4, 4)

    def step(x):
        net.weight.grad = net.bias.grad = None
        y = net(x).sum()
        y.backward()
        return net(x).detach()
    f = alpha.capture(step, net)
    kept = [f(alpha.full((2, 4), float(k))) for k in range(6)]
    assert all((y.numpy() == net(alpha.full((2, 4), float(k))).numpy()).all() for k, y in enumerate(kept))
    assert f.status == "recorded"
    grad = net.weight.grad
    del f
    gc.collect()
    assert (grad.numpy() == 10).all(), "the memory of a gradient outlives the recording"


# ---- the door --------------------------------------------------------------------------------------------------------

def test_every_kernel_without_a_result_has_an_entry_for_steps():
    library = native.library()
    if library is None:
        pytest.skip("there are no compiled kernels here")
    assert {"conv_run", "pointwise", "dropout", "attention_bwd"} <= {*recordable()} < {*SIGNATURES}
    assert all(getattr(library, entry(name)) for name in recordable())


def test_numbers_become_words_with_their_bits():
    assert word("f", 0.1) == int(np.float32(0.1).view(np.uint32)) and word("d", -0.5) == int(
        np.float64(-0.5).view(np.int64))
    assert word("q", 2 ** 64 - 1) == -1 and word("p", None) == 0 and word("i", True) == 1 and word("f", 1e60) == int(
        np.float32(np.inf).view(np.uint32))
