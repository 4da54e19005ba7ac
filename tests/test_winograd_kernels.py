"""The compiled Winograd kernels, FFT in float32, and what `auto` takes on the CPU."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import alpha
from alpha import ops
from alpha.core.config import config
from alpha.core.device import get_backend
from alpha.errors import ConfigError
from alpha.gradcheck import assert_equal_at
from alpha.ops.algorithms.family import Way
from alpha.ops.algorithms.tile_transform import WINOGRAD_ERRORS
from alpha.plan import AUTO, Request
from tests.conv_cases import Case, square
from tests.conv_oracle import conv_dgrad_padded, conv_fprop_padded, conv_wgrad_padded

get_backend("cpu")
from alpha.cpu import native  # noqa: E402
from alpha.cpu.algorithms import chosen, fft, machine_key, tiles, winograd  # noqa: E402
from alpha.cpu.algorithms.machines import MACHINES, choose  # noqa: E402

pytestmark = [pytest.mark.skipif(native.library() is None, reason="there are no compiled CPU kernels here"),
              pytest.mark.same_without_kernels("it tests the compiled kernels, which it turns on")]
CHANNELS = [(3, 5), (16, 16), (70, 33), (130, 65)]


def arrays(case: Case, seed=0, dtype=np.float32):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(dtype) for shape in (case.x_shape, case.w_shape, case.desc.y_shape)]


def passes(module, way: Way, case: Case, x, w, g):
    y, dx, dw = (np.full(a.shape, np.nan, x.dtype) for a in (g, x, w))
    module.fprop(way, case.desc, x, w, y)
    module.dgrad(way, case.desc, g, w, dx)
    module.wgrad(way, case.desc, x, g, dw)
    return y, dx, dw


def oracle(case: Case, x, w, g):
    geometry = tuple(case.attrs.values())
    return (conv_fprop_padded(x, w, *geometry), conv_dgrad_padded(g, w, case.hw, *geometry),
            conv_wgrad_padded(x, g, case.f, *geometry))


def error(got, expected) -> float:
    return float(np.linalg.norm(got - expected) / (np.linalg.norm(expected) or 1))


@pytest.mark.parametrize("m, r", WINOGRAD_ERRORS)
@pytest.mark.parametrize("channels", CHANNELS, ids=str)
def test_each_remainder_of_tiles_and_channels(m, r, channels):
    for hw, padding in (((1, 2), r - 1), ((5, 9), 0), ((13, 12), 1), ((6, 17), r // 2)):
        case = Case("", 3, hw, *channels, (r, r), padding=(padding, padding))
        if min(hw) + 2 * padding < r:
            continue
        x, w, g = arrays(case)
        for got, expected in zip(passes(winograd, Way("winograd", m), case, x, w, g), oracle(case, x, w, g)):
            assert error(got, expected) <= WINOGRAD_ERRORS[m, r], (hw, padding)
            assert np.abs(got - expected).max() <= 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize("m, r", WINOGRAD_ERRORS)
@pytest.mark.parametrize("channels, groups", [((6, 10), 2), ((48, 32), 2), ((66, 99), 3), ((256, 128), 4)], ids=str)
def test_groups_are_some_of_the_channels(m, r, channels, groups):
    """With a bias, and with what is there already, which belong to some of them, too."""
    case = Case("", 3, (6, 11), *channels, (r, r), padding=(r // 2, 0), groups=groups)
    x, w, g = arrays(case)
    for got, expected in zip(passes(winograd, Way("winograd", m), case, x, w, g), oracle(case, x, w, g)):
        assert error(got, expected) <= WINOGRAD_ERRORS[m, r]
        assert np.abs(got - expected).max() <= 1e-4 * np.abs(expected).max()
    b, dx, y = np.arange(case.oc, dtype=np.float32) - 4, x.copy(), np.empty_like(g)
    winograd.fprop(Way("winograd", m), case.desc, x, w, y, b, True)
    winograd.dgrad(Way("winograd", m), case.desc, g, w, dx, add=True)
    forward, backward, _ = oracle(case, x, w, g)
    assert error(y, np.maximum(forward + b, 0)) <= WINOGRAD_ERRORS[m, r]
    assert error(dx, x + backward) <= WINOGRAD_ERRORS[m, r]


@pytest.mark.parametrize("threads", [1, 2])
def test_sums_of_many_channels_are_made_for_a_part_of_the_outputs_at_a_time(threads):
    """36 sums for each of 512 x 300 pairs of channels are 21 MiB; V and Y take 7."""
    case = Case("", 9, (4, 4), 512, 300, (3, 3), padding=(1, 1))
    x, _, g = arrays(case)
    dw = np.full(case.w_shape, np.nan, np.float32)
    base = winograd.tables("wgrad", Way("winograd", 4), case.desc)[0].copy()
    with config(num_threads=threads):
        assert native.library().winograd_wgrad_floats(native.ptr(base), 1) * 4 <= 18 << 20
        winograd.wgrad(Way("winograd", 4), case.desc, x, g, dw)
    expected = conv_wgrad_padded(x, g, case.f, *case.attrs.values())
    assert error(dw, expected) <= WINOGRAD_ERRORS[4, 3]
    assert np.abs(dw - expected).max() <= 1e-4 * np.abs(expected).max()


def test_f23_is_exact_on_small_integers():
    for channels in CHANNELS:
        case = Case("", 2, (9, 6), *channels, (3, 3), padding=(1, 1))
        x, w, g = (np.random.randint(-3, 4, shape).astype(np.float32)
                   for shape in (case.x_shape, case.w_shape, case.desc.y_shape))
        for got, expected in zip(passes(winograd, Way("winograd", 2), case, x, w, g), oracle(case, x, w, g)):
            assert_equal_at(got, expected)


def test_bias_and_relu_are_fused():
    case = square("", 2, 7, 20, 35, 3, 1, 1)
    x, w, _ = arrays(case)
    b = np.random.standard_normal(35).astype(np.float32)
    x[0, 3, 3] = np.nan
    y = ops.conv2d_bias_act(*map(alpha.tensor, (x, w, b)), padding=1, activation="relu", algorithm="winograd").numpy()
    plain = ops.conv2d(alpha.tensor(x), alpha.tensor(w), padding=1, algorithm="winograd").numpy()
    np.testing.assert_array_equal(y, np.where(plain + b < 0, 0, plain + b))
    assert np.isnan(y[0]).any() and not np.isnan(y[1]).any()


@pytest.mark.parametrize("kind", ["relu", "normal", "offset", "lognormal"])
def test_errors_keep_the_promise(kind):
    rng = np.random.default_rng(0)
    case = square("", 2, 12, 512, 32, 3, 1, 1)
    x, _, g = arrays(case)
    w = (rng.standard_normal(case.w_shape) * np.sqrt(2 / 4608)).astype(np.float32)
    w -= w.mean((1, 2, 3), keepdims=True)
    make = {"relu": lambda a: np.maximum(a, 0), "normal": lambda a: a, "offset": lambda a: a + 3,
            "lognormal": lambda a: np.exp(2 * a) * np.sign(a[::-1])}[kind]
    x, g = make(x).astype(np.float32), make(g).astype(np.float32)
    expected = oracle(case, *(a.astype(np.float64) for a in (x, w, g)))
    found = [error(a, b) for a, b in zip(passes(winograd, Way("winograd", 4), case, x, w, g), expected)]
    assert max(found) <= (1e-6 if kind == "relu" else 1.5e-6), found


def test_the_error_of_wgrad_does_not_grow_with_the_tiles():
    """32,768 tiles, which is eight levels of 64 sums of 64."""
    case = square("", 8, 256, 2, 2, 3, 1, 1)
    x, _, g = arrays(case)
    x = np.maximum(x, 0)
    dw = np.empty(case.w_shape, np.float32)
    winograd.wgrad(Way("winograd", 4), case.desc, x, g, dw)
    assert error(dw, conv_wgrad_padded(x, g, case.f, *case.attrs.values())) <= 1.5e-6


@pytest.mark.parametrize("f, edge, blocks", [(7, 16, 1 << 26), (5, 8, 1 << 26), (3, 8, 4000)])
def test_fft_in_float32_equals_its_oracle(f, edge, blocks, monkeypatch):
    monkeypatch.setattr("alpha.ops.algorithms.family.FILTER_BYTES", blocks)
    case = Case("", 3, (11, 18), 6, 9, (f, f), padding=(f // 2, f - 1))
    x, w, g = arrays(case)
    for got, expected in zip(passes(fft, Way("fft", edge), case, x, w, g), oracle(case, x, w, g)):
        assert error(got, expected) <= 4e-7


def test_no_number_of_threads_changes_a_bit():
    case = square("", 3, 26, 40, 72, 3, 1, 1)
    x, w, g = arrays(case)
    found = []
    for threads in (1, 2, 5):
        with config(num_threads=threads):
            native.library()
            found.append([*passes(winograd, Way("winograd", 4), case, x, w, g),
                          *passes(fft, Way("fft", 16), case, x, w, g)])
    for other in found[1:]:
        for a, b in zip(found[0], other):
            np.testing.assert_array_equal(a, b)


def test_the_oracle_agrees():
    case = square("", 2, 14, 70, 33, 3, 1, 1)
    x, w, g = arrays(case)
    for m in (2, 4):
        way = Way("winograd", m)
        for a, b in zip(passes(winograd, way, case, x, w, g), passes(tiles, way, case, x, w, g)):
            assert error(a, b) <= 1.5e-6


# ---- the choice ------------------------------------------------------------------------------------------------------


def way_of(case: Case, pass_name="fprop", request=AUTO, machine="cpu16", limit=1 << 28) -> str:
    return str(choose(pass_name, case.desc, request, machine, limit).taken.way)


@pytest.mark.parametrize("machine", ["cpu8", "cpu16", "cpu16_intel", "cpu8_intel"])
@pytest.mark.parametrize("pass_name", ["fprop", "dgrad", "wgrad"])
def test_auto_takes_winograd_where_it_is_ahead_and_nowhere_else(machine, pass_name):
    choice = partial(way_of, pass_name=pass_name, machine=machine)
    for case in (square("", 32, 32, 64, 64, 3, 1, 1), square("", 32, 16, 128, 128, 3, 1, 1),
                 square("", 32, 8, 256, 256, 3, 1, 1), square("", 1, 56, 256, 256, 3, 1, 1)):
        assert choice(case) == "winograd[4]", case
    for case in (square("", 32, 32, 3, 64, 3, 1, 1), square("", 32, 32, 64, 64, 3, 2, 1),
                 square("", 1, 7 if pass_name == "wgrad" else 14, 512, 512, 3, 1, 1), square("", 32, 32, 64, 64, 1),
                 square("", 2, 8, 64, 64, 3, 1, 1), square("", 8, 32, 64, 64, 3, 1, 1, 1, 64)):
        assert choice(case) == "direct", case
    assert choice(square("", 1, 56, 64, 64, 31, 1, 15)) == "fft[64]"
    assert choice(square("", 8, 32, 512, 512, 3, 1, 1, 1, 8)) == "winograd[4]", "groups of 64 channels"
    assert choice(square("", 8, 32, 512, 512, 3, 1, 1, 1, 32)) == "direct", "of 16"


def test_auto_without_kernels_is_direct():
    assert way_of(square("", 32, 32, 64, 64, 3, 1, 1), machine="numpy") == "direct"
    with config(cpu_kernels=False):
        assert chosen("fprop", square("", 32, 32, 64, 64, 3, 1, 1).desc, AUTO, False) is None


def test_f63_needs_tf32():
    case = square("", 32, 32, 64, 64, 3, 1, 1)
    fp32 = choose("fprop", case.desc, Request("winograd", True), "cpu16", 1 << 28)
    assert {one.candidate.name: one.reason for one in fp32.options}["winograd[6]"].startswith("has an error of up to")
    assert way_of(case, request=Request("auto", False, "tf32")) in ("winograd[4]", "winograd[6]")


def test_no_workspace_no_winograd():
    case = square("", 32, 32, 64, 64, 3, 1, 1)
    assert way_of(case, limit=1 << 20) == "direct"
    with pytest.raises(ConfigError, match="MiB of workspace, the limit is 1"):
        way_of(case, request=Request("winograd", True), limit=1 << 20)


def test_machines_are_known():
    assert machine_key() in MACHINES
