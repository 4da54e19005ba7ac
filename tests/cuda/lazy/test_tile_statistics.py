"""Statistics that convolutions count of what they store: their values, who reads them, and when they are dropped."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import alpha
from alpha import nn, ops
from alpha.cuda.conv import wgmma
from alpha.cuda.conv.costs import TABLES
from alpha.cuda.conv.costs.records import changed
from alpha.cuda.lazy import statistics
from alpha.cuda.ops.pointwise.epilogue import Epilogue
from alpha.cuda.runtime import memory
from alpha.cuda.runtime.memory import Array
from models.resnet import BasicBlock, ResNet
from tests.conv_cases import Case, square
from tests.cuda.conv import test_conv_wgmma
from tests.cuda.conv.test_conv_wgmma import PAIRS, fetched, inputs, of_pairs
from tests.cuda.lazy.deferred_oracle import cuda, wide
from tests.cuda.lazy.operand_oracle import normal
from tests.cuda.process import EMULATED
from tests.cuda.runtime.test_capture import Training
from tests.cuda.test_training import trained

pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("device")]

MODES = {"fp32": "float32", "tf32": "float32", "bf16": "bfloat16", "fp16": "float16"}
TAILS = (  # of rows, columns and channels; several classes, images and groups; positions without taps; many tiles
    square("tails", 70, 2, 24, 136, 3, 1, 1), square("strided", 9, 5, 16, 32, 3, 2, 1),
    square("few taps", 33, 4, 40, 40, 1, 2), square("groups", 9, 2, 48, 96, 3, 1, 1, groups=2),
    square("one image", 1, 3, 8, 8, 1), square("many tiles", 130, 4, 16, 16, 1))
EXACT = square("exact", 128, 2, 8, 16, 1)  # means over 128 rows, and over the 4 tiles, divide by powers of two


@pytest.fixture(autouse=True)
def narrow_ones_count_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that small cases do."""
    monkeypatch.setattr(wgmma, "LEAST_COUNTED", 1)


def test_a_narrow_convolution_does_not_count(launches: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wgmma, "LEAST_COUNTED", 64)
    for channels, counted in ((16, False), (64, True)):
        launches.clear()
        conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        model = nn.Sequential(conv, nn.BatchNorm2d(channels)).to("cuda")
        with alpha.precision("bf16"):
            model(alpha.ones((64, 8, 8, channels), device="cuda")).numpy()
        assert ("finalize_tiles_float32" in launches) == counted, launches


def tiles(pass_name: str, pairs: bool = False) -> list[wgmma.Wgmma]:
    """Returns the tiles that count: clusters do not, as sums in slices."""
    return [tile for tile in test_conv_wgmma.tiles(pass_name, pairs) if tile.tile.cluster == 1]


def stored(tile: wgmma.Wgmma, case: Case, bias: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Returns what a tile stores, (rows, C), and the parts that it counts, (slots, 3, C)."""
    w = inputs(tile, *case.w_shape, seed=1)[1]
    launch, read, written = tile.prepare(case.desc), case.x_shape, case.desc.y_shape
    if tile.pass_name == "dgrad":
        read, written = written, read
    x, y = inputs(tile, *read, seed=2)[1], memory.empty(written, tile.writes)
    b = memory.upload(normal(case.oc, seed=3)) if bias else None
    launch(x, w, statistics.ask(y), *([Epilogue.of(b, None)] if b else []))
    parts = statistics.take(y)
    assert parts is not None and statistics.take(y) is None
    return fetched(y).astype(np.float64).reshape(-1, written[-1]), memory.download(parts, np.float32).astype(np.float64)


def merged(parts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns count, mean and variance of each channel."""
    means, m2s, counts = parts.transpose(1, 0, 2)
    count = counts.sum(0)
    mean = (means * counts).sum(0) / count
    return count, mean, (m2s + (means - mean) ** 2 * counts).sum(0) / count


def check(y: np.ndarray, parts: np.ndarray) -> None:
    count, mean, var = merged(parts)
    assert np.array_equal(count, np.full(y.shape[1], len(y)))
    assert (np.abs(mean - y.mean(0)) <= 3e-7 * np.abs(y).max(0)).all()
    np.testing.assert_allclose(var, y.var(0), rtol=2e-6, atol=1e-30)


# ---- values ----------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("pass_name", ["fprop", "dgrad"])
@pytest.mark.parametrize("case", TAILS, ids=lambda case: case.name)
def test_every_tile_counts_what_it_stores(pass_name: str, case: Case) -> None:
    for tile in tiles(pass_name):
        if not tile.rejection(case.desc) and not tile.work_list(case.desc).slots:
            check(*stored(tile, case))


@pytest.mark.long
@pytest.mark.parametrize("pass_name", ["fprop", "dgrad"])
def test_pairs_of_outputs_are_counted(pass_name: str) -> None:
    for tile in tiles(pass_name, pairs=True):
        for case in PAIRS[1:2] if EMULATED else PAIRS[:2]:
            check(*stored(tile, of_pairs(pass_name, case)))


def test_bias_and_rounding_come_first() -> None:
    for tile in tiles("fprop"):
        if not tile.rejection(TAILS[0].desc):
            check(*stored(tile, TAILS[0], bias=True))


def test_sums_of_integers_are_exact() -> None:
    for tile in tiles("fprop"):
        y, parts = stored(tile, EXACT)
        count, mean, var = merged(parts)
        assert (count == len(y)).all() and np.array_equal(mean, y.mean(0)) and np.array_equal(var, y.var(0))


def test_a_large_mean_costs_no_digits() -> None:
    """Sums of squares would have none left: the mean is 10^4 standard deviations."""
    x, w = normal(300, 4, 4, 8) * 1e-4 + 1, np.eye(8, dtype=np.float32).reshape(8, 1, 1, 8)
    tile = next(t for t in tiles("fprop") if t.mode.name == "fp32" and t.tile.columns == 32)
    case, y = square("large mean", 300, 4, 8, 8, 1), memory.empty(x.shape, "float32")
    tile.prepare(case.desc)(memory.upload(x.astype(np.float32)), memory.upload(w), statistics.ask(y))
    _, mean, var = merged(memory.download(statistics.take(y), np.float32).astype(np.float64))
    values = fetched(y).astype(np.float64).reshape(-1, 8)
    np.testing.assert_allclose(mean, values.mean(0), rtol=2e-7)
    np.testing.assert_allclose(var, values.var(0), rtol=1e-4)


@pytest.mark.usefixtures("tensor_cores_first")
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_batch_norm_computes_what_it_did(mode: str, bias: bool, launches: list[str]) -> None:
    """From statistics, and from a pass of its own over the same values."""
    dtype = MODES[mode]
    x = cuda(normal(33, 4, 4, 16)).astype(dtype)
    w, b = cuda(normal(24, 3, 3, 16, seed=1)), cuda(normal(24, seed=2))
    results = []
    with alpha.precision(mode):
        for reads in (True, False):
            running = [cuda(np.full(24, k, np.float32)) for k in (0, 1)]
            attrs = dict(padding=1, for_norm=reads)
            y = ops.conv2d_bias_act(x, w, b, **attrs) if bias else ops.conv2d(x, w, **attrs)
            launches.clear()
            z = ops.batch_norm(y, None, None, *running)
            assert f"statistics_{dtype}" not in launches if reads else f"statistics_{dtype}" in launches
            results.append([t.astype("float32").numpy() for t in (*running, z)])
    for got, wanted in zip(*results):
        np.testing.assert_allclose(got, wanted, rtol=1e-6 if got.ndim == 1 or dtype == "float32" else 1e-2, atol=1e-6)


# ---- who reads them --------------------------------------------------------------------------------------------------


def convolved(**attrs) -> alpha.Tensor:
    x, w = cuda(normal(9, 4, 4, 16)), cuda(normal(24, 3, 3, 16, seed=1))
    return ops.conv2d_bias_act(x, w, None, **dict(padding=1, for_norm=True) | attrs)


def counts(y: alpha.Tensor) -> bool:
    return statistics.NAME in (y.array.derived or ())


@pytest.mark.usefixtures("tensor_cores_first")
@pytest.mark.parametrize("mode", ["fp32", "bf16"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_bad_channel_has_bad_statistics_and_no_other_has(mode: str, bad: float, launches: list[str]) -> None:
    dtype, bias = MODES[mode], np.zeros(24, np.float32)
    bias[3] = bad
    x, w = cuda(normal(33, 4, 4, 16)).astype(dtype), cuda(normal(24, 3, 3, 16, seed=1))
    mean, var = cuda(np.zeros(24, np.float32)), cuda(np.ones(24, np.float32))
    with alpha.precision(mode):
        y = ops.batch_norm(ops.conv2d_bias_act(x, w, cuda(bias), padding=1, for_norm=True), None, None, mean, var)
        assert f"statistics_{dtype}" not in launches
    found = y.astype("float32").numpy().reshape(-1, 24)
    for statistic in (mean.numpy(), var.numpy(), found):
        assert np.array_equal(~np.isfinite(statistic).reshape(-1, 24).all(0), np.arange(24) == 3)
    assert np.isnan(var.numpy()[3]) and np.isnan(found[:, 3]).all()


CHANGES: dict[str, Callable[[alpha.Tensor], object]] = {
    "copied into": lambda y: y.copy_(normal(*y.shape)),
    "seen by others": lambda y: y.__dlpack__(),
}


@pytest.mark.usefixtures("tensor_cores_first")
@pytest.mark.parametrize("change", CHANGES)
def test_whatever_may_change_the_output_drops_them(change: str, launches: list[str]) -> None:
    y = convolved()
    assert counts(y)
    with alpha.no_grad():
        CHANGES[change](y)
    assert not counts(y)
    launches.clear()
    z = ops.batch_norm(y).numpy().astype(np.float64)
    assert "statistics_float32" in launches
    assert np.abs(z.mean((0, 1, 2))).max() < 1e-6 and np.abs(z.var((0, 1, 2)) - 1).max() < 1e-4


@pytest.mark.usefixtures("tensor_cores_first")
def test_they_are_the_first_readers_and_of_its_channels_alone(launches: list[str]) -> None:
    y = convolved()
    expected = ops.batch_norm(y.reshape(9, 16, 24)).numpy()
    assert "statistics_float32" not in launches, "another shape with the same channels"
    again = ops.batch_norm(y).numpy()
    assert launches.count("statistics_float32") == 1, "they are gone"
    np.testing.assert_allclose(again.ravel(), expected.ravel(), rtol=1e-6, atol=1e-6)
    y = convolved()
    ops.batch_norm(y.reshape(-1, 48))
    assert launches.count("statistics_float32") == 2 and counts(y)
    ops.batch_norm(y, running_mean=cuda(np.zeros(24, np.float32)), running_var=cuda(np.ones(24, np.float32)),
                   training=False)
    assert counts(y)


@pytest.mark.usefixtures("tensor_cores_first")
@pytest.mark.parametrize("why", ["nobody asks", "linear", "tensor cores", "slices"])
def test_where_nobody_asks_or_a_kernel_cannot_nothing_is_counted(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if why == "slices":
        quick = changed(changed(TABLES["h100"], "wgmma.sum_us", 0.0), "wgmma.sum_l2", 1e6)
        monkeypatch.setitem(TABLES, "h100", quick)  # else sums as short as a test's are not cut
        wgmma._estimate.cache_clear()
    with alpha.config(tensor_cores=why != "tensor cores"):
        if why == "slices":
            y = ops.conv2d(cuda(normal(3, 1, 1, 648)), cuda(normal(40, 1, 1, 648)), for_norm=True)
        elif why == "linear":
            y = ops.linear(cuda(normal(80, 16)), cuda(normal(24, 16, seed=1)), None)
        else:
            y = convolved(for_norm=why != "nobody asks")
    wgmma._estimate.cache_clear()
    assert not counts(y)


@pytest.mark.usefixtures("tensor_cores_first")
@pytest.mark.parametrize("wide_map", [False, True])
@pytest.mark.parametrize("wide_filters", [False, True])
def test_an_output_that_planes_did_not_make_is_read(wide_map: bool, wide_filters: bool, launches: list[str]) -> None:
    """Where they do not hold an operand, sums are of float32, whose squares may exceed it: nothing is counted."""
    x, w = normal(5, 4, 4, 24), normal(16, 3, 3, 24, seed=1)
    x, w = x * (wide(24) if wide_map else 1), w * (wide(24) if wide_filters else 1)
    y = ops.conv2d(cuda(x.astype(np.float32)), cuda(w.astype(np.float32)), padding=1, for_norm=True)
    parts: Array = y.array.derived[statistics.NAME]
    launches.clear()
    z = ops.batch_norm(y, eps=1e-30).numpy()
    assert not [entry for entry in launches if entry.startswith("statistics")]
    count = memory.download(parts, np.float32)[:, 2].sum(0)
    assert (count == (0 if wide_map or wide_filters else 5 * 4 * 4)).all()
    values = y.numpy().astype(np.float64)
    np.testing.assert_allclose(z, (values - values.mean((0, 1, 2))) / values.std((0, 1, 2)), rtol=1e-5, atol=2e-6)


# ---- training --------------------------------------------------------------------------------------------------------


def vgg() -> nn.Module:
    """Convolutions with biases in front of batch norm."""
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Flatten(), nn.Linear(16, 10))


def resnet() -> nn.Module:
    return ResNet(BasicBlock, (1, 1), 8, 10)


NETWORKS = {"vgg": vgg, "resnet": resnet}


@pytest.mark.long
@pytest.mark.usefixtures("tensor_cores_first")
@pytest.mark.parametrize("mode", ["fp32", "bf16"])
@pytest.mark.parametrize("name", NETWORKS)
def test_losses_are_those_of_the_pass(name: str, mode: str, launches: list[str],
                                      monkeypatch: pytest.MonkeyPatch) -> None:
    steps = 2 if EMULATED else 3
    with alpha.precision(mode):
        losses, weights = trained(NETWORKS[name], "cuda", steps, pixels=4)
        again, same = trained(NETWORKS[name], "cuda", steps, pixels=4)
        assert not [entry for entry in launches if entry.startswith("statistics")]
        monkeypatch.setattr(statistics, "ask", lambda y: y)
        expected, _ = trained(NETWORKS[name], "cuda", steps, pixels=4)
    assert "statistics_" + MODES[mode] in launches
    assert losses == again and all(w.tobytes() == same[key].tobytes() for key, w in weights.items())
    assert losses == pytest.approx(expected, rel=1e-5 if mode == "fp32" else 1e-2)


@pytest.mark.long
@pytest.mark.usefixtures("tensor_cores_first")
@pytest.mark.parametrize("mode", ["fp32", "bf16"])
def test_captured_steps_have_the_same_bits(mode: str) -> None:
    rng = np.random.default_rng(0)
    batches = [(cuda(rng.standard_normal((4, 4, 4, 3)).astype(np.float32)), cuda(rng.integers(0, 10, 4)))
               for _ in range(4)]
    found = []
    with alpha.precision(mode):
        for captured in (False, True):
            run = Training(vgg, captured)
            losses = [run.step(*batch)[0].numpy().tobytes() for batch in batches]
            found.append([*losses, *run.bits()])
            assert run.plain_calls == (3 if captured else 4)
    assert found[0] == found[1]


@pytest.mark.usefixtures("tensor_cores_first")
def test_memory_is_given_back_with_the_first_reader() -> None:
    y = convolved()
    parts = y.array.derived[statistics.NAME]
    assert parts.shape[1:] == (3, 24) and parts.nbytes < 2 * wgmma.context.sm_count * 3 * 24 * 4 + 1
    ops.batch_norm(y)
    assert not counts(y)
