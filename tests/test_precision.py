"""Precision modes on the CPU: float16 activations with float32 parameters, losses, loss scaling, training, resuming.

float16 stands for both 16-bit modes here; tests/cuda/test_precision.py has bfloat16.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import alpha
import train.report
from alpha import checkpoint, nn, ops, optim
from alpha.core.config import VARIABLES, config
from alpha.core.op import registry
from alpha.core.precision import MODES, mode, to_storage_dtype
from alpha.errors import ConfigError, DTypeError
from alpha.gradcheck import assert_equal_at
from tests.op_checks import floats, refused
from tests.tiny_run import flags
from train.__main__ import main

HALF, WHOLE = "float16", "float32"


def rounded(*shape: int, seed: int = 0) -> np.ndarray:
    """Values that float16 holds, in float32."""
    return floats(shape, seed).astype(HALF).astype(WHOLE)


def f32(a: np.ndarray) -> np.ndarray:
    return np.asarray(a, WHOLE)


# ---- the modes -------------------------------------------------------------------------------------------------------


def test_the_modes_are_those_that_the_setting_allows() -> None:
    variable = next(v for v in VARIABLES if v.name == "precision")
    assert tuple(MODES) == variable.choices and mode().name == variable.default == "fp32"
    assert [m.dtype for m in MODES.values()] == ["float32", "float32", "bfloat16", "float16"]
    assert [m.name for m in MODES.values() if m.scales_loss] == ["fp16"]


def test_a_block_changes_the_mode_and_an_unknown_one_is_refused() -> None:
    with alpha.precision("fp16"), alpha.precision("tf32"):
        assert mode().name == config.precision == "tf32"
    assert mode().name == "fp32"
    with refused(ConfigError, "'fp8' is not one of fp32, tf32, bf16, fp16"), alpha.precision("fp8"):
        pass


def test_layers_store_what_the_mode_says_and_ops_what_they_are_given() -> None:
    x = alpha.tensor(f32(floats((2, 6, 6, 3))))
    layers = [(nn.Conv2d(3, 4, 3), x), (nn.ConvTranspose2d(3, 4, 3), x), (nn.Linear(3, 5), x)]
    for layer, given in layers:
        assert layer(given).dtype == WHOLE
        with alpha.precision("tf32"):
            assert layer(given).dtype == WHOLE
        with alpha.precision("fp16"):
            assert layer(given).dtype == layer(given.astype(HALF)).dtype == HALF
    with alpha.precision("fp16"):
        assert (x * 2.0).dtype == WHOLE and to_storage_dtype(x.astype("float64")).dtype == "float64"
        assert to_storage_dtype(alpha.tensor([1, 2])).dtype == "int64"


def test_bfloat16_on_the_cpu_is_one_clear_error() -> None:
    with alpha.precision("bf16"), refused(DTypeError, "precision: bf16 stores activations in bfloat16, which the cpu "
                                          "backend does not have", '"fp32" or "fp16"', '.to("cuda")'):
        nn.Linear(2, 2)(ops.ones((1, 2)))


def test_the_summary_names_the_mode_and_counts_its_bytes() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
    whole = alpha.summary(net, (8, 8, 3))
    with alpha.precision("fp16"):
        half = alpha.summary(net, (8, 8, 3))
    assert half.total("activation_nbytes") * 2 == whole.total("activation_nbytes")
    assert str(half).splitlines()[-1].startswith("precision fp16: float16 activations")


# ---- the rule of the engine ------------------------------------------------------------------------------------------


def mixtures() -> list[Any]:
    """Ops by name: a call with (x of 16 bits, the parameters)."""
    x, c = (2, 6, 6, 4), (4,)
    return [pytest.param(call, x_shape, [f32(p) for p in params], id=name) for name, call, x_shape, params in (
        ("conv2d", lambda x, w: ops.conv2d(x, w, padding=1), x, [floats((5, 3, 3, 4))]),
        ("conv2d_dgrad", lambda x, w: ops.conv2d_dgrad(x, w, (13, 12), stride=2, padding=1), (2, 7, 6, 5),
         [floats((5, 3, 3, 4))]),
        ("conv_transpose2d", lambda x, w: ops.conv_transpose2d(x, w, stride=2), x, [floats((4, 3, 3, 5))]),
        ("conv2d_bias_act", lambda x, w, b: ops.conv2d_bias_act(x, w, b, activation="relu"), x,
         [floats((5, 3, 3, 4)), floats((5,))]),
        ("depthwise", lambda x, w: ops.conv2d(x, w, groups=4), x, [floats((4, 3, 3, 1))]),
        ("linear", lambda x, w, b: ops.linear(x, w, b, activation="relu"), (3, 5, 4), [floats((6, 4)), floats((6,))]),
        ("matmul", lambda x, w: ops.matmul(x, w, False, True), (3, 5, 4), [floats((6, 4))]),
        ("matmul_swapped", lambda x, w: ops.matmul(w, x, True, False), (4, 5), [floats((4, 6))]),
        ("batch_norm", lambda x, *p: ops.batch_norm(x, *p, activation="relu"), x, [floats(c), floats(c, 1)]),
        ("batch_norm_add", lambda x, *p: ops.batch_norm(x, *p, None, None, x * 0.5), x, [floats(c), floats(c, 1)]),
        ("batch_norm_gamma", lambda x, p: ops.batch_norm(x, p), x, [floats(c)]),
        ("batch_norm_inference", lambda x, *p: ops.batch_norm(
            x, *p, *[alpha.tensor(f32(a), device=x.device) for a in (np.zeros(4), np.ones(4))], training=False),
         x, [floats(c), floats(c, 1)]),
        ("layer_norm", lambda x, *p: ops.layer_norm(x, *p, normalized_ndim=2), x, [floats((6, 4)), floats((6, 4), 1)]),
        ("layer_norm_beta", lambda x, p: ops.layer_norm(x, None, p), x, [floats(c)]),
        ("group_norm", lambda x, *p: ops.group_norm(x, *p, groups=2), x, [floats(c), floats(c, 1)]),
    )]


def results(call: Callable[..., alpha.Tensor], x: np.ndarray, params: list[np.ndarray], dtype: str, twice: bool,
            device: str = "cpu") -> list[Any]:
    """Returns y, the gradients of its weighted sum, and with `twice` those of the squares of these (None: no such)."""
    tensors = [alpha.tensor(x, dtype, device, requires_grad=True),
               *[alpha.tensor(p, device=device, requires_grad=True) for p in params]]
    y = call(*tensors)
    g = alpha.tensor(rounded(*y.shape, seed=5), y.dtype, device)
    grads = alpha.grad(y, tensors, g, create_graph=twice)
    if not twice:
        return [y, *grads]
    total = sum((d.astype(WHOLE) * d.astype(WHOLE)).sum() for d in grads)
    return [y, *grads, *alpha.grad(total, tensors)]


@pytest.mark.parametrize("twice", [False, True], ids=["once", "twice"])
@pytest.mark.parametrize("call, x_shape, params", mixtures())
def test_half_activations_and_float32_parameters(cpu_kernels: str, call: Callable[..., alpha.Tensor],
                                                 x_shape: tuple[int, ...], params: list[np.ndarray],
                                                 twice: bool) -> None:
    x = rounded(*x_shape)
    agree(results(call, x, params, HALF, twice), results(call, x, params, WHOLE, twice), HALF, twice)


def agree(got: list[Any], expected: list[Any], half: str, twice: bool) -> None:
    """Asserts that x of 16 bits gives y and gradients of 16 bits, parameters gradients of 32, and the right values."""
    kinds = [half, *[WHOLE] * ((len(got) - 1) // (1 + twice) - 1)]
    wanted = [None if t is None else dtype for t, dtype in zip(expected, [half, *kinds, *kinds * twice])]
    assert [None if t is None else t.dtype for t in got] == wanted
    assert all(t is None or t.dtype == "bfloat16" or t.numpy().dtype == t.dtype for t in got)
    tolerance = (2e-2 if twice else 2e-3) * (8 if half == "bfloat16" else 1)  # twice: what was rounded is summed again
    for k, (a, b) in enumerate(zip(got, expected)):
        if b is not None:
            assert_equal_at(a.detach().astype(WHOLE), b.detach().numpy(), rtol=tolerance,
                            atol=tolerance * np.abs(b.numpy()).max(), name=str(k))


def test_gradients_of_parameters_are_not_rounded_to_sixteen_bits() -> None:
    """4,100 ones and a few more: float16 has no 4,101, and the sum of the products passes its 65,504 too."""
    x, g = np.ones((4101, 1, 1, 1)), np.ones((4101, 1, 1, 1))
    for call, params in ((ops.conv2d_bias_act, [np.zeros((1, 1, 1, 1)), np.zeros(1)]),
                         (lambda x, w, b: ops.linear(x, w, b), [np.zeros((1, 1)), np.zeros(1)])):
        w, b = (alpha.tensor(p, WHOLE, requires_grad=True) for p in params)
        y = call(alpha.tensor(32 * x, HALF), w, b)
        dw, db = alpha.grad(y, [w, b], alpha.tensor(g, HALF))
        assert (dw.item(), db.item()) == (32 * 4101, 4101)
    beta, gamma = (alpha.tensor(np.array([v]), WHOLE, requires_grad=True) for v in (0.0, 1.0))
    values = alpha.tensor(np.arange(4101).reshape(-1, 1, 1, 1) % 2, HALF)
    for rows in (ops.batch_norm(values, gamma, beta), ops.group_norm(values, gamma, beta, groups=1)):
        assert alpha.grad(rows, [beta], alpha.tensor(g, HALF))[0].item() == 4101
    dw = ops.conv2d_wgrad(alpha.tensor(32 * x, HALF), alpha.tensor(g, HALF), 1)
    assert (dw.dtype, dw.item()) == (WHOLE, 32 * 4101)
    assert alpha.tensor(x, HALF).sum(dtype=WHOLE).item() == 4101
    assert ops.matmul(alpha.tensor(x[:, 0, 0], HALF), alpha.tensor(g[:, 0, 0], HALF), True, dtype=WHOLE).item() == 4101


def test_statistics_stay_in_float32() -> None:
    x = alpha.tensor(rounded(8, 5, 3), HALF)
    running = [alpha.tensor(f32(a)) for a in (np.zeros(3), np.ones(3))]
    ops.batch_norm(x, None, None, *running, momentum=1e-4)
    whole = [alpha.tensor(f32(a)) for a in (np.zeros(3), np.ones(3))]
    ops.batch_norm(x.astype(WHOLE), None, None, *whole, momentum=1e-4)
    for a, b in zip(running, whole):
        assert_equal_at(a, b.numpy(), rtol=1e-6, atol=1e-10)


def test_parameters_of_sixteen_bits_have_gradients_of_sixteen_bits() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.LayerNorm(64),
                        nn.Linear(64, 5)).to(dtype=HALF)
    ops.cross_entropy(net(alpha.tensor(rounded(2, 6, 6, 3), HALF)), alpha.tensor([1, 2])).backward()
    assert {p.grad.dtype for p in net.parameters()} == {HALF}


def test_other_mixtures_are_refused() -> None:
    x, w, b = (alpha.tensor(floats(shape), WHOLE) for shape in ((2, 6, 6, 4), (5, 3, 3, 4), (5,)))
    with refused(DTypeError, "conv2d: the tensors have dtypes float16 and float32 (x: float32; w: float16)",
                 "x.astype(dtype); only w may be float32 beside float16 or bfloat16"):
        ops.conv2d(x, w.astype(HALF))
    with refused(DTypeError, "float32 and float64", "x: float64; w: float32"):
        ops.conv2d(x.astype("float64"), w)
    with refused(DTypeError, "x: float16; w: float64"):
        ops.conv2d(x.astype(HALF), w.astype("float64"))
    with refused(DTypeError, "x: float16; w: float32; b: float16", "only w and b may"):
        ops.conv2d_bias_act(x.astype(HALF), w, b.astype(HALF))
    with refused(DTypeError, "a: float32; b: float64"):
        ops.matmul(w.reshape(5, 36), alpha.tensor(floats((36, 2))))
    with refused(DTypeError, "batch_norm: the tensors have dtypes", "residual: float32", "only gamma and beta and"):
        ops.batch_norm(x.astype(HALF), None, None, None, None, x)
    with refused(DTypeError, "add: the tensors have dtypes float16 and float32", "x.astype(dtype)"):
        x + x.astype(HALF)


def test_sums_cannot_be_had_in_every_dtype() -> None:
    x = ops.ones((2, 2))
    with refused(DTypeError, "sum: sums of float32 cannot be had in float16", 'dtype="float32"'):
        x.sum(dtype=HALF)
    with refused(DTypeError, "matmul: sums of float32 cannot be had in float64"):
        ops.matmul(x, x, dtype="float64")


def test_a_gradient_of_the_wrong_dtype_is_named() -> None:
    @alpha.op
    class rounding_op:
        """y = x, whose gradient comes in 16 bits."""

        args = "x"

        def shape(x):
            return x.shape

        def vjp_x(g, s):
            return g.astype(HALF)

    try:
        rounding_op.impl("cpu")(lambda x: x.copy())
        with refused(DTypeError, "backward of rounding_op: the gradient of x has dtype float16, x has float32",
                     "correct vjp_x"):
            rounding_op(ops.ones((), requires_grad=True)).backward()
    finally:
        registry.pop("rounding_op")


# ---- losses ----------------------------------------------------------------------------------------------------------


LOSSES = {
    "cross_entropy": lambda x, t: ops.cross_entropy(x, alpha.tensor([1, 0, 2, 4])),
    "cross_entropy_soft": lambda x, t: ops.cross_entropy(x, t, label_smoothing=0.1),
    "nll_loss": lambda x, t: ops.nll_loss(x, alpha.tensor([1, 0, 2, 4])),
    "mse_loss": ops.mse_loss,
    "l1_loss": ops.l1_loss,
    "smooth_l1_loss": ops.smooth_l1_loss,
    "bce_loss": ops.bce_loss,
    "bce_with_logits_loss": lambda x, t: ops.bce_with_logits_loss(x, t, pos_weight=t),
}


@pytest.mark.parametrize("target_dtype", [HALF, WHOLE])
@pytest.mark.parametrize("name", LOSSES)
def test_losses_of_half_logits_are_those_of_float32(name: str, target_dtype: str) -> None:
    x = alpha.tensor(floats((4, 5), 1, 0.1, 0.9).astype(HALF), requires_grad=True)
    target = alpha.tensor(floats((4, 5), 2, 0.1, 0.9).astype(HALF)).astype(target_dtype)
    wide = x.detach().astype(WHOLE).requires_grad_()
    got, expected = LOSSES[name](x, target), LOSSES[name](wide, target.astype(WHOLE))
    assert got.dtype == WHOLE and got.item() == expected.item()
    got.backward()
    expected.backward()
    assert x.grad.dtype == HALF
    assert_equal_at(x.grad, wide.grad.numpy().astype(HALF))


# ---- training --------------------------------------------------------------------------------------------------------


def small_net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Conv2d(8, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(), nn.AdaptiveAvgPool2d(2),
                         nn.Flatten(), nn.LayerNorm(64), nn.Linear(64, 10))


def trained(name: str, steps: int = 20, device: str = "cpu") -> tuple[list[float], nn.Module]:
    """Trains a new network on two batches in turn, and returns its losses."""
    alpha.manual_seed(1)
    rng = np.random.default_rng(0)
    batches = [(alpha.tensor(f32(rng.standard_normal((8, 8, 8, 3))), device=device),
                alpha.tensor(rng.integers(0, 10, 8), device=device)) for _ in range(2)]
    model, losses = small_net().to(device), []
    optimizer, scaler = optim.SGD(model.parameters(), lr=0.01, momentum=0.9), optim.LossScaler(device)
    for k in range(steps):
        x, y = batches[k % 2]
        with alpha.precision(name):
            value = ops.cross_entropy(model(x), y)
            (scaler.scale(value) if MODES[name].scales_loss else value).backward()
        if MODES[name].scales_loss:
            scaler.step(optimizer)
        else:
            optimizer.step()
        optimizer.zero_grad()
        losses.append(value.detach())
    return [value.item() for value in losses], model


def test_twenty_steps_in_float16_have_the_losses_of_float32() -> None:
    whole, half = trained("fp32")[0], trained("fp16")
    assert whole[-1] < 0.7 * whole[1], "nothing was learned, so nothing was tested"
    assert half[0] == pytest.approx(whole, rel=2e-2) and half[0] != whole
    assert {t.dtype for t in half[1].state_dict().values()} == {WHOLE}


def test_two_runs_in_float16_give_the_same_bits() -> None:
    first, again = (trained("fp16", 5)[1].state_dict() for _ in range(2))
    assert all(t.numpy().tobytes() == again[name].numpy().tobytes() for name, t in first.items())


# ---- the training program --------------------------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train.report, "can_plot", lambda: False)  # pictures take longer than the run


def rows(output: Path) -> list[dict[str, str]]:
    with open(output / "metrics.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_the_training_program_in_every_mode_of_the_cpu(quick: None, tmp_path: Path,
                                                       capsys: pytest.CaptureFixture[str]) -> None:
    losses, accuracies = {}, {}
    for name, note in (("fp32", "on cpu in fp32; "), ("tf32", "in tf32 (as fp32: there are no tensor cores); "),
                       ("fp16", "in fp16 (float16 storage, float32 arithmetic: for tests, it is not faster); ")):
        assert main(flags(tmp_path / name, precision=name, clip=10.0)) == 0
        out = capsys.readouterr().out
        assert note in out and ("loss scale 65536, 0 steps skipped so far" in out) == (name == "fp16")
        losses[name] = [float(row["train_loss"]) for row in rows(tmp_path / name)]
        accuracies[name] = rows(tmp_path / name)[-1]["skipped_steps"]
        tensors, _ = checkpoint.load(tmp_path / name / "last.safetensors")
        assert {t.dtype for key, t in tensors.items() if not key.startswith("scaler/")} == {WHOLE}
    assert losses["tf32"] == losses["fp32"] != losses["fp16"]
    assert losses["fp16"] == pytest.approx(losses["fp32"], rel=2e-2)
    assert accuracies == {"fp32": "", "tf32": "", "fp16": "0"}


def test_an_overflow_is_skipped_counted_and_survives_a_resume(quick: None, tmp_path: Path,
                                                              monkeypatch: pytest.MonkeyPatch,
                                                              capsys: pytest.CaptureFixture[str]) -> None:
    """The loss scale starts so high that the first steps overflow; a run in two parts has the bits of one."""
    made = optim.LossScaler.__init__.__wrapped__
    monkeypatch.setattr(made, "__defaults__", ("cpu", 2.0 ** 24))
    monkeypatch.setattr(made, "__kwdefaults__", {"growth_interval": 4})
    assert main(flags(tmp_path / "whole", precision="fp16")) == 0
    for steps in (1, 3, 7, 13):
        assert main([*flags(tmp_path / "torn", precision="fp16", max_steps=steps), "--resume"]) == 0
    assert main([*flags(tmp_path / "torn", precision="fp16"), "--resume"]) == 0
    skipped = int(rows(tmp_path / "whole")[-1]["skipped_steps"])
    assert skipped > 2 and f"{skipped} steps skipped so far" in capsys.readouterr().out
    (whole, _), (torn, _) = (checkpoint.load(tmp_path / name / "last.safetensors") for name in ("whole", "torn"))
    assert whole.keys() == torn.keys() and {"scaler/scale", "scaler/counts"} < whole.keys()
    for name, t in whole.items():
        assert t.numpy().tobytes() == torn[name].numpy().tobytes(), name


def test_a_run_goes_on_in_its_mode_only_but_is_tested_in_any(quick: None, tmp_path: Path,
                                                             capsys: pytest.CaptureFixture[str]) -> None:
    assert main(flags(tmp_path, precision="fp16", epochs=1)) == 0
    assert main([*flags(tmp_path, epochs=2), "--resume"]) == 1
    assert "precision is 'fp16' there, 'fp32' here" in capsys.readouterr().err
    for name in ("fp32", "fp16"):
        assert main([*flags(tmp_path, precision=name), "--evaluate", "--resume"]) == 0


def test_the_mode_of_the_process_is_the_default(quick: None, tmp_path: Path) -> None:
    with config(precision="fp16"):
        assert main(flags(tmp_path, epochs=1, max_steps=1)) == 0
    assert 'precision = "fp16"' in (tmp_path / "config.toml").read_text()
    assert config.precision == "fp32"
