"""Winograd and FFT on CUDA: bits on integers, errors against float64, adjoints, tails, requests, the choice."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

import alpha
from alpha import ops
from alpha.cuda.conv import planner
from alpha.cuda.conv.transformed import pipeline
from alpha.cuda.conv.transformed.pipeline import CANDIDATES, Transformed
from alpha.cuda.ops.pointwise.epilogue import Epilogue
from alpha.cuda.runtime.memory import download, upload
from alpha.cuda.runtime.recording import Recording
from alpha.errors import ConfigError
from alpha.gradcheck import assert_equal_at
from alpha.ops.algorithms.tile_transform import WINOGRAD_ERRORS
from alpha.ops.conv import conv2d
from alpha.ops.conv_desc import ConvDesc
from alpha.plan import Request
from tests.conv_cases import Case, square
from tests.conv_oracle import conv_dgrad_padded, conv_fprop_padded, conv_wgrad_padded
from tests.cuda.agree import floats, ints
from tests.cuda.conv.checks import check
from tests.cuda.process import CHECKED, EMULATED
from tests.op_checks import refused
from tests.test_algorithms import data, he

pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("device")]

MAPS = [(1, 1), (2, 3), (4, 4), (5, 9), (8, 7), (13, 12), (3, 13)]
SHAPES = {"fprop": ("x", "w", "y"), "dgrad": ("y", "w", "x"), "wgrad": ("x", "y", "w")}


def named(name: str, tile: int, pass_name: str | None = None) -> list[Transformed]:
    return [c for c in CANDIDATES if c.way == (name, tile) and pass_name in (None, c.pass_name)]


def result(candidate: Transformed, case: Case, x, w, g, *epilogue) -> np.ndarray:
    """Returns what a candidate computes of a case; the output starts as NaN."""
    desc, arrays = case.desc, {"x": x, "w": w, "y": g}
    a, b, out = SHAPES[candidate.pass_name]
    assert candidate.rejection(desc) is None, candidate.rejection(desc)
    y = upload(np.full(arrays[out].shape, np.nan, np.float32))
    candidate.prepare(desc)(upload(arrays[a]), upload(arrays[b]), y, *epilogue)
    return download(y, "float32")


def exact(pass_name: str, case: Case, x, w, g) -> np.ndarray:
    x, w, g = (a.astype(np.float64) for a in (x, w, g))
    geometry = tuple(case.attrs.values())
    return {"fprop": lambda: conv_fprop_padded(x, w, *geometry),
            "dgrad": lambda: conv_dgrad_padded(g, w, case.hw, *geometry),
            "wgrad": lambda: conv_wgrad_padded(x, g, case.f, *geometry)}[pass_name]()


def error(got: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(got - expected) / (np.linalg.norm(expected) or 1))


def operands(case: Case, seed: int = 0) -> list[np.ndarray]:
    return [floats(*shape, seed=seed + k) for k, shape in enumerate((case.x_shape, case.w_shape, case.desc.y_shape))]


# ---- every pass against the oracle -----------------------------------------------------------------------------------


@pytest.mark.parametrize("candidate", named("winograd", 2), ids=lambda c: c.name)
@pytest.mark.parametrize("channels", [(3, 5), (36, 68)])
def test_f23_is_right_to_the_bit_on_small_integers(candidate, channels):
    """Its filters are quarters: nothing is rounded.  Tile remainders, tails of channels; bias and relu."""
    for hw in MAPS:
        check(Case(f"{hw}", 2, hw, *channels, (3, 3), padding=(1, 1)), candidate)
    check(Case("unequal padding", 3, (6, 7), *channels, (3, 3), padding=(0, 2)), candidate)


@pytest.mark.parametrize(("name", "tile", "f"), [("winograd", 4, (3, 3)), ("winograd", 2, (5, 5)), ("fft", 16, (3, 3)),
                                                 ("fft", 16, (7, 7)), ("fft", 16, (6, 2)),
                                                 pytest.param("fft", 32, (19, 19), marks=pytest.mark.long)])
@pytest.mark.parametrize("channels", [(3, 5), (20, 36)])
def test_floats_are_right_at_every_remainder(name, tile, f, channels):
    """Where every access is checked, on every other map; integers meet them all."""
    for candidate in named(name, tile):
        for hw in MAPS[1::2] if CHECKED else MAPS:
            case = Case("", 3, hw, *channels, f, padding=tuple(k // 2 for k in f))
            if candidate.rejection(case.desc):
                continue
            x, w, g = operands(case)
            np.testing.assert_allclose(result(candidate, case, x, w, g), exact(candidate.pass_name, case, x, w, g),
                                       rtol=1e-4, atol=2e-4, err_msg=f"{candidate.name} {hw}")


@pytest.mark.parametrize(("tile", "f", "hw"), [(16, (7, 7), (13, 12)), (16, (5, 3), (7, 9)), (32, (13, 13), (14, 14)),
                                               (32, (19, 19), (30, 8)), (64, (31, 31), (40, 36))])
def test_depthwise_by_fft(tile, f, hw):
    case = Case("", 2, hw, 12, 12, f, padding=tuple(k // 2 for k in f), groups=12)
    x, w, g = operands(case)
    for candidate in named("fft", tile):
        found = error(result(candidate, case, x, w, g), exact(candidate.pass_name, case, x, w, g))
        assert found <= 4e-7, candidate.name


@pytest.mark.parametrize("candidate", [*named("winograd", 4, "fprop"), *named("fft", 16, "fprop")],
                         ids=lambda c: c.name)
@pytest.mark.parametrize("groups", [1, 12])
def test_bias_and_relu(candidate, groups):
    case = Case("", 2, (9, 10), 12, 12, (3, 3), padding=(1, 1), groups=groups)
    if candidate.rejection(case.desc):
        pytest.skip("winograd has no depthwise form")
    x, w, g = operands(case)
    b = floats(12, seed=9)
    expected = np.maximum(exact("fprop", case, x, w, g) + b, 0)
    assert (expected == 0).any()
    np.testing.assert_allclose(result(candidate, case, x, w, g, Epilogue.of(upload(b), "relu")), expected, atol=5e-5)


@pytest.mark.parametrize("name, tile, f", [("winograd", 4, 3), ("fft", 16, 7)])
def test_chunks_and_blocks_of_channels_change_no_result(name, tile, f, monkeypatch):
    """Chunks with a tail, levels of wgrad's sums that are added up, and channels that go in blocks."""
    case = square("", 3, 19, 20, 36, f, 1, f // 2)
    x, w, g = operands(case)
    candidates = named(name, tile)
    whole = [result(c, case, x, w, g) for c in candidates]
    for least in ("LEAST_TILES", "LEAST_FFT_TILES"):
        monkeypatch.setattr(pipeline, least, 11)
    monkeypatch.setattr("alpha.ops.algorithms.family.FILTER_BYTES", 200_000)
    monkeypatch.setattr(Transformed, "sizes", lambda self, desc: pipeline._sizes.__wrapped__(self.way, self.pass_name,
                                                                                             desc, 1))
    for candidate, expected in zip(candidates, whole):
        sizes = candidate.sizes(case.desc)
        assert sizes.chunk < sizes.tiles.count and (name == "winograd" or sizes.outer < sizes.tiles.outer)
        np.testing.assert_allclose(result(candidate, case, x, w, g), expected, rtol=1e-4, atol=1e-4)


# ---- errors against float64 ------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("kind", ["relu", "normal", "offset", "uniform", "lognormal"])
@pytest.mark.parametrize(("name", "tile", "f"), [("winograd", 2, 3), ("winograd", 4, 3), ("winograd", 2, 5),
                                                 ("fft", 16, 7)])
def test_errors_keep_the_promise(name, tile, f, kind):
    """512 channels that fprop and dgrad sum over."""
    rng = np.random.default_rng(0)
    bound = 4e-7 if name == "fft" else WINOGRAD_ERRORS[tile, f]
    for candidate in named(name, tile):
        channels = {"fprop": (512, 8), "dgrad": (8, 512), "wgrad": (16, 8)}[candidate.pass_name]
        case = square("", 2, 12, *channels, f, 1, f // 2)
        x, w, g = data(kind, rng, case.x_shape), he(rng, case), data(kind, rng, case.desc.y_shape)
        found = error(result(candidate, case, x, w, g), exact(candidate.pass_name, case, x, w, g))
        assert found <= bound, (candidate.name, found)
        if (tile, kind) == (4, "relu"):
            assert found <= 1e-6, (candidate.name, found)


@pytest.mark.long
def test_the_error_of_wgrad_does_not_grow_with_the_tiles():
    """32,768 tiles: one level of sums of 64 would have twice the error."""
    rng = np.random.default_rng(0)
    case = square("", 8, 256, 4, 4, 3, 1, 1)
    x, g = data("relu", rng, case.x_shape), data("normal", rng, case.desc.y_shape)
    candidate = named("winograd", 4, "wgrad")[0]
    assert error(result(candidate, case, x, he(rng, case), g), exact("wgrad", case, x, he(rng, case), g)) <= 1.5e-6


@pytest.mark.long
def test_adjoints():
    for name, tile, f in (("winograd", 4, 3), ("fft", 16, 7)):
        case = square("", 3, 9, 20, 24, f, 1, f // 2)
        x, w, g = operands(case)
        y, dx, dw = (result(c, case, x, w, g).astype(np.float64) for c in named(name, tile))
        size = np.linalg.norm(y) * np.linalg.norm(g)
        assert abs((y * g).sum() - (x * dx).sum()) <= 1e-6 * size
        assert abs((y * g).sum() - (w * dw).sum()) <= 1e-6 * size


@pytest.mark.long
def test_two_runs_give_the_same_bits():
    case = square("", 5, 14, 36, 40, 3, 1, 1)
    x, w, g = operands(case)
    for candidate in (*named("winograd", 4), *named("fft", 16)):
        assert np.array_equal(result(candidate, case, x, w, g), result(candidate, case, x, w, g)), candidate.name


@pytest.mark.parametrize("name", ["winograd", "fft"])
def test_a_recorded_step_gives_the_same_bits(name):
    case = square("", 2, 9, 8, 8, 3, 1, 1)
    x, w, _ = operands(case)
    run = conv2d.impls["cuda"]
    attrs = dict(stride=(1, 1), padding=(1, 1), dilation=(1, 1), groups=1, algorithm=Request(name, True))
    arrays, weight = upload(x), upload(w)
    expected = download(run(arrays, weight, **attrs), "float32")    # tables are uploaded, kernels loaded
    recording = Recording(lambda inputs: [run(inputs[0], weight, **attrs)], [arrays])
    try:
        assert np.array_equal(download(recording.replay([arrays])[0], "float32"), expected)
    finally:
        recording.close()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bits_are_transformed_as_float32(dtype):
    case = square("", 2, 9, 8, 8, 3, 1, 1)
    x, w, _ = (alpha.tensor(a, device="cuda").astype(dtype) for a in operands(case))
    y = ops.conv2d(x, w, padding=1, algorithm="winograd")
    expected = exact("fprop", case, *(t.astype("float32").numpy() for t in (x, w)), operands(case)[2])
    assert y.dtype == dtype
    assert error(y.astype("float32").numpy(), expected) <= 4e-3


def test_a_wrong_coefficient_shows(monkeypatch):
    from alpha.cuda.conv.transformed import transforms
    case = square("", 2, 9, 8, 8, 3, 1, 1)
    x, w, g = operands(case)
    candidate = named("winograd", 4, "fprop")[0]
    kernels = transforms.WINOGRAD[4, 3]
    table = np.frombuffer(kernels.numbers, np.float32).copy()
    table[3] *= 1.01
    monkeypatch.setattr(kernels, "numbers", table.tobytes())
    assert error(result(candidate, case, x, w, g), exact("fprop", case, x, w, g)) > 1e-4


# ---- requests and the choice -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["winograd", "fft"])
def test_a_name_is_taken_and_inherited(name, launches):
    case = square("", 2, 9, 4, 8, 3, 1, 1)
    x, w, g = (alpha.tensor(a, device="cuda", requires_grad=True) for a in operands(case))
    y = ops.conv2d(x, w, padding=1, algorithm=name)
    y.backward(g)
    entries = "winograd_inputs" if name == "winograd" else "fft_tiles"
    assert launches.count(entries) >= 3
    expected = [exact(p, case, *(t.numpy() for t in (x, w, g))) for p in ("fprop", "dgrad", "wgrad")]
    for got, wanted in zip((y, x.grad, w.grad), expected):
        np.testing.assert_allclose(got.numpy(), wanted, atol=2e-4)


def test_strict_names_are_refused_and_preferences_passed_over(launches):
    x, w = (alpha.tensor(floats(*shape), device="cuda") for shape in ((2, 9, 9, 4), (8, 3, 3, 4)))
    with refused(ConfigError, "conv2d: winograd does not serve stride (2, 2), which must be", 'algorithm="auto"'):
        ops.conv2d(x, w, stride=2, padding=1, algorithm="winograd")
    with refused(ConfigError, "conv2d: fft does not serve dilation (2, 2)"):
        ops.conv2d(x, w, dilation=2, algorithm="fft")
    for name in ("strassen", "im2col"):
        with refused(ConfigError, f"conv2d: {name} has no CUDA kernels", 'algorithm="auto"', 'x.to("cpu")'):
            ops.conv2d(x, w, algorithm=name)
    with refused(ConfigError, "matmul: strassen has no CUDA kernels"):
        ops.matmul(x.reshape(-1, 4), w.reshape(-1, 4), transpose_b=True, algorithm="strassen")
    for name in ("im2col", "winograd"):
        with alpha.config(conv_algorithm=name):
            ops.conv2d(x, w, stride=2, padding=1)
    assert not any(entry.startswith("winograd") for entry in launches)
    with alpha.config(conv_algorithm="winograd"):
        ops.conv2d(x, w, padding=1)
    assert "winograd_inputs" in launches


def test_the_limit_of_workspace_is_kept():
    desc = square("", 64, 64, 64, 64, 3, 1, 1).desc
    with alpha.config(conv_workspace_mib=1), refused(ConfigError, "MiB of workspace, the limit is 1",
                                                    "raise ALPHA_CONV_WORKSPACE_MIB"):
        planner.plan("fprop", desc, "fma", Request("winograd", True))
    chosen = planner.plan("fprop", desc, "fma", Request("winograd", True)).chosen
    assert chosen.algorithm == "winograd" and chosen.workspace(desc) <= 512 << 20


def algorithm_of(pass_name: str, desc: ConvDesc, precision: str) -> str:
    return planner.plan(pass_name, desc, precision).chosen.algorithm


@pytest.mark.parametrize("pass_name", planner.PASSES)
def test_a_free_choice_takes_winograd_on_fma_units_alone(pass_name, as_h100):
    for n, hw, c in ((512, 16, 128), (512, 8, 256), (512, 4, 512)):
        desc = square("", n, hw, c, c, 3, 1, 1).desc
        assert algorithm_of(pass_name, desc, "fma") == "winograd"
        options = planner.rank(pass_name, desc, "fp32")
        if options[0].candidate.reads != "float32":
            assert algorithm_of(pass_name, desc, "fp32") == algorithm_of(pass_name, desc, "bf16") == "direct"
    few = square("", 2, 8, 16, 16, 3, 1, 1).desc
    assert algorithm_of(pass_name, few, "fma") == "direct"


def test_large_filters_take_fft(as_h100):
    assert algorithm_of("fprop", square("", 8, 56, 64, 64, 31, 1, 15).desc, "fma") == "fft"
    assert algorithm_of("fprop", square("", 8, 56, 128, 128, 31, 1, 15, 1, 128).desc, "fp32") == "fft"
    assert algorithm_of("fprop", square("", 8, 56, 128, 128, 3, 1, 1, 1, 128).desc, "fp32") == "direct"


@pytest.mark.long
def test_large_tiles_of_many_channels_find_room():
    """A tile of 64 x 64 has 13 MB of points at 384 channels in and out: few go at a time."""
    dense, depthwise = (square("", 32, 56, 384, 384, 31, 1, 15, 1, groups).desc for groups in (1, 384))
    for desc in (dense, depthwise):
        assert all(c.rejection(desc) is None for c in named("fft", 64))


def test_small_integers_agree_over_all_algorithms():
    """The same convolution by every name."""
    case = square("", 2, 8, 8, 12, 3, 1, 1)
    x, w = ints(*case.x_shape), ints(*case.w_shape, seed=1)
    expected = conv_fprop_padded(x, w, **case.attrs)
    for name in ("auto", "direct", "winograd", "fft"):
        y = ops.conv2d(alpha.tensor(x, device="cuda"), alpha.tensor(w, device="cuda"), padding=1, algorithm=name)
        assert_equal_at(np.rint(y.numpy()), expected, name=name)


TRAIN = """
import sys, numpy as np, alpha, models
from alpha import ops, optim
alpha.manual_seed(0)
model = models.create("vgg11", num_classes=10).to("cuda")
optimizer = optim.SGD(model.parameters(), lr=2e-5)  # higher ones make of rounding what they like
rng = np.random.default_rng(0)
x = alpha.tensor(rng.standard_normal((16, 32, 32, 3)).astype("float32"), device="cuda")
y = alpha.tensor(rng.integers(0, 10, 16), device="cuda")
for _ in range(20):
    loss = ops.cross_entropy(model(x), y)
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    print(loss.item())
"""


@pytest.mark.skipif(EMULATED, reason="a whole network takes minutes on the emulated driver")
def test_losses_of_vgg_on_fma_units_are_those_of_direct():
    """20 steps by auto, which takes Winograd in some layers, and by the direct kernels"""
    losses = []
    for name in ("auto", "direct"):
        done = subprocess.run([sys.executable, "-c", TRAIN], capture_output=True, text=True, check=True,
                              env={**os.environ, "ALPHA_CONV_ALGORITHM": name, "ALPHA_TENSOR_CORES": "0"})
        losses.append(np.array(done.stdout.split(), float))
    auto, direct = losses
    assert direct[-1] < 0.7 * direct[0] and (auto != direct).any()
    assert np.abs(auto - direct).max() <= 1e-4 * direct[-1]
