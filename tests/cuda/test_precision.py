"""Precision modes on the GPU: 16-bit activations with float32 parameters, loss scaling, training, resuming."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import alpha
import train.report
from alpha import checkpoint, ops, optim
from tests import test_precision as cpu
from tests.cuda.agree import Case, agree, ints
from tests.cuda.process import CHECKED
from tests.tiny_run import flags
from train.__main__ import main

pytestmark = pytest.mark.cuda

HALVES = ("bfloat16", "float16")
CASES = [
    *[Case("sum", ints(*shape), axis=axis, dtype="float32", exact=True, dtypes=HALVES)
      for shape, axis in (((5, 300), 1), ((5, 300), 0), ((3, 9000), None), ((3, 5, 7), (0, 2)), ((4, 0, 3), 1),
                          ((1,), 0))],
    *[Case("matmul", ints(*a), ints(*b), transpose_a=ta, dtype="float32", exact=True, dtypes=HALVES)
      for a, b, ta in (((9, 33), (33, 5), False), ((70, 9), (70, 12), True))],
]


@pytest.fixture
def steps(device) -> int:
    """Fewer of them where every access is checked."""
    return 4 if CHECKED else 20


@pytest.mark.parametrize("case", CASES, ids=str)
def test_agrees_with_the_cpu(case: Case) -> None:
    agree(case)


@pytest.mark.parametrize("twice", [False, True], ids=["once", "twice"])
@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("call, x_shape, params", cpu.mixtures())
def test_half_activations_and_float32_parameters(call: Callable[..., alpha.Tensor], x_shape: tuple[int, ...],
                                                 params: list[np.ndarray], half: str, twice: bool) -> None:
    x = cpu.rounded(*x_shape)
    if half == "bfloat16":
        x = alpha.tensor(x, half, "cuda").numpy()
    got = cpu.results(call, x, params, half, twice, "cuda")
    cpu.agree(got, cpu.results(call, x, params, "float32", twice), half, twice)


@pytest.mark.long
@pytest.mark.parametrize("half", HALVES)
def test_gradients_of_parameters_are_not_rounded_to_sixteen_bits(half: str) -> None:
    """301 ones: bfloat16 has no odd number above 256; 2,049: float16 none above 2,048."""
    count = 301 if half == "bfloat16" else 2049
    x = ops.ones((count, 1, 1, 8), half, "cuda")
    g = ops.ones((count, 1, 1, 8), half, "cuda")
    one, zero = (ops.full((8,), v, device="cuda", requires_grad=True) for v in (1.0, 0.0))
    w = ops.zeros((8, 1, 1, 8), device="cuda", requires_grad=True)
    calls = [lambda: ops.conv2d_bias_act(x, w, zero), lambda: ops.linear(x, w.reshape(8, 8), zero),
             lambda: ops.batch_norm(x, one, zero), lambda: ops.group_norm(x, one, zero, groups=2),
             lambda: ops.layer_norm(x, one, zero)]
    for call in calls:
        assert alpha.grad(call(), [zero], g)[0].tolist() == [count] * 8
    for call in calls[:2]:
        assert set(alpha.grad(call(), [w], g)[0].numpy().ravel()) == {count}


def test_statistics_stay_in_float32() -> None:
    x = alpha.tensor(cpu.rounded(8, 5, 3), "bfloat16", "cuda")
    running, whole = ([alpha.tensor(a, device=device) for a in (np.zeros(3, np.float32), np.ones(3, np.float32))]
                      for device in ("cuda", "cpu"))
    ops.batch_norm(x, None, None, *running, momentum=1e-4)
    ops.batch_norm(alpha.tensor(x.numpy()), None, None, *whole, momentum=1e-4)
    for a, b in zip(running, whole):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-6, atol=1e-9)


# ---- training --------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("name", ["tf32", "bf16", "fp16"])
def test_the_losses_are_those_of_float32(name: str, steps: int) -> None:
    whole = cpu.trained("fp32", steps)[0]
    losses, model = cpu.trained(name, steps, "cuda")
    assert losses == pytest.approx(whole, rel=6e-2 if name == "bf16" else 2e-2)
    assert {t.dtype for t in model.state_dict().values()} == {"float32"}


@pytest.mark.long
@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_two_runs_give_the_same_bits(name: str) -> None:
    first, again = (cpu.trained(name, 4, "cuda")[1].state_dict() for _ in range(2))
    assert all(t.numpy().tobytes() == again[key].numpy().tobytes() for key, t in first.items())


def test_a_step_with_an_infinite_gradient_is_skipped_without_a_word_from_the_host(monkeypatch) -> None:
    p = alpha.tensor(np.ones(5, np.float32), device="cuda", requires_grad=True)
    optimizer, scaler = optim.Adam([p], lr=0.1), optim.LossScaler("cuda", initial=64.0)
    with monkeypatch.context() as patch:
        patch.setattr("alpha.cuda.runtime.memory.download", lambda *args: pytest.fail("the host waited for the device"))
        for grad in (np.ones(5), np.full(5, np.inf), np.full(5, np.nan)):
            p.grad = alpha.tensor(grad.astype(np.float32), device="cuda")
            scaler.step(optimizer)
    state = {name: t.numpy().tolist() for name, t in optimizer.state_dict()["tensors"].items()}
    np.testing.assert_allclose(p.detach().numpy(), 0.9, rtol=1e-5)
    assert (scaler.value, scaler.skipped) == (16, 2)
    np.testing.assert_allclose(state["0/m"], 0.1 / 64, rtol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_a_run_of_the_training_program_is_resumed_bit_by_bit(name: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(train.report, "can_plot", lambda: False)  # pictures take longer than the run
    made = optim.LossScaler.__init__.__wrapped__  # so it overflows
    monkeypatch.setattr(made, "__defaults__", ("cpu", 2.0 ** 24))
    monkeypatch.setattr(made, "__kwdefaults__", {"growth_interval": 4})
    run = dict(device="cuda", precision=name, epochs=2)
    assert main(flags(tmp_path / "whole", **run)) == 0
    assert main(flags(tmp_path / "torn", **run, max_steps=3)) == 0
    assert main([*flags(tmp_path / "torn", **run), "--resume"]) == 0
    (whole, _), (torn, _) = (checkpoint.load(tmp_path / part / "last.safetensors") for part in ("whole", "torn"))
    assert ("scaler/counts" in whole) == (name == "fp16")
    assert name == "bf16" or whole["scaler/counts"].tolist()[1] > 0, "nothing was skipped, so nothing was tested"
    for key, t in whole.items():
        assert t.numpy().tobytes() == torn[key].numpy().tobytes(), key
