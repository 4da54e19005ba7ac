"""The argument `algorithm`: names, strictness, preferences, what gradients inherit, and the choice."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

import alpha
from alpha import nn, ops
from alpha.core.config import config
from alpha.cpu import algorithms, native
from alpha.cpu.algorithms import chosen
from alpha.cpu.algorithms.machines import choose
from alpha.errors import ArgumentError, ConfigError
from alpha.ops.algorithms.family import Way, cost_of
from alpha.plan import AUTO, Cost, Rates, Request, Stage, time_us
from tests.conv_cases import square
from tests.op_checks import refused

PASSES = ("fprop", "dgrad", "wgrad")
CASE = square("", 2, 9, 4, 5, 3, 1, 1)


@pytest.fixture
def taken(monkeypatch):
    """The ways that calls have taken, in order."""
    from alpha.cpu import conv
    ways = []

    def note(pass_name, desc, request, compiled):
        found = chosen(pass_name, desc, request, compiled)
        ways.append((pass_name, found.way.name if found else "direct", request))
        return found
    monkeypatch.setattr(conv, "chosen", note)
    return ways


def operands(case=CASE, dtype="float32"):
    rng = np.random.default_rng(0)
    return [alpha.tensor(rng.standard_normal(shape).astype(dtype), requires_grad=True)
            for shape in (case.x_shape, case.w_shape, case.desc.y_shape)]


def test_a_name_is_taken_and_inherited_as_a_preference(taken):
    x, w, g = operands()
    for name in ("direct", "im2col", "winograd", "fft"):
        taken.clear()
        ops.conv2d(x, w, padding=1, algorithm=name).backward(g)
        assert sorted((p, way) for p, way, _ in taken) == [("dgrad", name), ("fprop", name), ("wgrad", name)]
        assert [request.strict for *_, request in taken] == [True, False, False]


def test_every_op_takes_a_name(taken):
    x, w, g = operands()
    bias = alpha.tensor(np.ones(5, np.float32), requires_grad=True)
    y = ops.conv2d_bias_act(x, w, bias, padding=1, activation="relu", algorithm="winograd")
    expected = ops.conv2d_bias_act(x, w, bias, padding=1, activation="relu", algorithm="direct")
    np.testing.assert_allclose(y.numpy(), expected.numpy(), atol=1e-5)
    y.backward(g)
    ops.conv2d_dgrad(g, w, hw=9, padding=1, algorithm="fft")
    ops.conv2d_wgrad(x, g, f=3, padding=1, algorithm="im2col")
    ops.conv_transpose2d(g, w, padding=1, algorithm="winograd")
    ops.conv_transpose2d(g, w, padding=1, dilation=1, algorithm="direct")
    assert [way for _, way, _ in taken] == ["winograd", "direct", "winograd", "winograd", "fft", "im2col", "winograd",
                                            "direct"]


def test_layers_take_a_name(taken):
    x = ops.randn((2, 8, 8, 4))
    nn.Conv2d(4, 3, 3, algorithm="winograd")(x)
    nn.Conv2d(4, 3, 3, bias=False, algorithm="fft")(x)
    nn.ConvTranspose2d(4, 3, 3, algorithm="im2col")(x)
    nn.Conv2d(4, 3, 3)(x).numpy()   # the last layer waits for its reader
    assert [way for _, way, _ in taken] == ["winograd", "fft", "im2col", "direct"]
    assert "algorithm='fft'" in repr(nn.Conv2d(4, 3, 3, algorithm="fft"))
    assert "algorithm" not in repr(nn.Conv2d(4, 3, 3))
    with refused(ConfigError, 'Conv2d: algorithm is "wino"'):
        nn.Conv2d(4, 3, 3, algorithm="wino")


def test_a_setting_is_a_preference_and_a_name_beats_it(taken):
    x, w, g = operands()
    with alpha.config(conv_algorithm="winograd"):
        y = ops.conv2d(x, w, padding=1)
        ops.conv2d(x, w, padding=1, algorithm="direct")
        ops.conv2d(x, w, padding=1, stride=2)       # does not serve: nobody insisted
        ops.conv2d(x, w, padding=1, algorithm="auto")
    y.backward(g)                                   # the node has the name
    assert [way for _, way, _ in taken] == ["winograd", "direct", "direct", "direct", "winograd", "winograd"]


def test_the_precision_of_the_forward_call_is_inherited(taken):
    x, w, g = operands(square("", 2, 36, 4, 5, 3, 1, 1))
    with alpha.precision("tf32"):
        y = ops.conv2d(x, w, padding=1, algorithm="winograd")
    y.backward(g)
    assert [request.precision for *_, request in taken] == ["tf32"] * 3
    desc = square("", 2, 36, 64, 64, 3, 1, 1).desc
    options = {p: choose("fprop", desc, Request("winograd", True, p), "numpy", 1 << 40).options
               for p in ("fp32", "tf32")}
    tiles = {p: {one.candidate.way.tile for one in found if not one.reason} for p, found in options.items()}
    assert tiles == {"fp32": {2, 4}, "tf32": {2, 4, 6}}


@pytest.mark.parametrize("name, attrs, parts", [
    ("winograd", dict(stride=2), ("winograd does not serve stride (2, 2), which must be (1, 1)", 'algorithm="auto"')),
    ("winograd", dict(dilation=2), ("winograd does not serve dilation (2, 2)",)),
    ("winograd", dict(padding=3), ("winograd does not serve padding (3, 3), which must be less than the filter",)),
    ("fft", dict(stride=(1, 2)), ("fft does not serve stride (1, 2)",)),
    ("fft", dict(padding=(0, 4)), ("fft does not serve padding (0, 4)",)),
    ("strassen", {}, ("strassen does not serve filters of (3, 3) taps, which must be (1, 1)",)),
])
def test_what_does_not_serve_is_refused_with_the_reason(name, attrs, parts):
    x, w, _ = operands()
    with refused(ConfigError, f"conv2d: {parts[0]}", "x: (2, 9, 9, 4) NHWC", "w: (5, 3, 3, 4) OHWI", *parts[1:]):
        ops.conv2d(x, w, algorithm=name, **attrs)


def test_other_refusals():
    x, w = ops.randn((2, 9, 9, 4)), ops.randn((4, 3, 3, 2))
    for name in ("winograd", "fft"):
        with config(cpu_kernels=False), refused(ConfigError, f"conv2d: {name} does not serve groups=2"):
            ops.conv2d(x, w, groups=2, algorithm=name)
    with refused(ConfigError, "filters of (7, 7) taps, which must be (3, 3) or (5, 5)"):
        ops.conv2d(x, ops.randn((4, 7, 7, 4)), algorithm="winograd")
    with refused(ConfigError, "filters of (49, 1) taps, of which 48 are the most"):
        ops.conv2d(ops.randn((1, 49, 1, 1)), ops.randn((1, 49, 1, 1)), algorithm="fft")
    one = ops.randn((4, 1, 1, 4))
    with refused(ConfigError, "strassen does not serve stride (2, 2) and padding (0, 0)"):
        ops.conv2d(x, one, stride=2, algorithm="strassen")
    with refused(ConfigError, "strassen does not serve groups=4"):
        ops.conv2d(x, ops.randn((4, 1, 1, 1)), groups=4, algorithm="strassen")
    with refused(ConfigError, "a product of (1, 4, 4) rows, terms and columns"):
        ops.conv2d(ops.randn((1, 1, 1, 4)), one, algorithm="strassen")
    with refused(ConfigError, 'conv2d: algorithm is "wino"', '"winograd"'):
        ops.conv2d(x, w, groups=2, algorithm="wino")
    with refused(ArgumentError, "conv2d: algorithm is 3"):
        ops.conv2d(x, w, groups=2, algorithm=3)
    with refused(ConfigError, "matmul: strassen does not serve float32 (2, 4, 3) by (3, 2)"):
        ops.matmul(ops.randn((2, 4, 3)), ops.randn((3, 2)), algorithm="strassen")
    with refused(ConfigError, 'matmul: algorithm is "fft"'):
        ops.matmul(x, x, algorithm="fft")
    with refused(ConfigError, "ALPHA_CONV_ALGORITHM: 'wino' is not one of"), alpha.config(conv_algorithm="wino"):
        pass


def test_more_workspace_than_the_limit_is_refused():
    x, w = ops.randn((1, 32, 32, 64)), ops.randn((64, 31, 31, 64))
    parts = "conv2d: fft needs ", "MiB of workspace, the limit is 8", "ALPHA_CONV_WORKSPACE_MIB"
    with alpha.config(conv_workspace_mib=8), refused(ConfigError, *parts):
        ops.conv2d(x, w, padding=15, algorithm="fft")


@pytest.mark.parametrize("name", ["im2col", "winograd", "fft"])
def test_gradients_to_second_order(name):
    x, w, g = operands(square("", 2, 5, 2, 3, 3, 1, 1), "float64")
    attrs = dict(padding=1, algorithm=name)
    assert alpha.gradcheck(lambda x, w: ops.conv2d(x, w, **attrs), (x, w), second_order=True)
    assert alpha.gradcheck(lambda g, w: ops.conv2d_dgrad(g, w, 5, **attrs), (g, w), second_order=True)
    assert alpha.gradcheck(lambda x, g: ops.conv2d_wgrad(x, g, 3, **attrs), (x, g), second_order=True)


def test_strassen_of_1x1_convolutions():
    x, w, _ = operands(square("", 2, 5, 6, 7, 1), "float64")
    y = ops.conv2d(x, w, algorithm="strassen")
    np.testing.assert_allclose(y.numpy(), ops.conv2d(x, w, algorithm="direct").numpy(), rtol=1e-10)
    assert alpha.gradcheck(lambda x, w: ops.conv2d(x, w, algorithm="strassen"), (x, w))


def test_float16_is_computed_in_float32():
    x, w, _ = operands()
    half = ops.conv2d(x.astype("float16"), w, padding=1, algorithm="winograd")
    wide = ops.conv2d(x.astype("float16").astype("float32"), w, padding=1, algorithm="winograd")
    assert half.dtype == "float16"
    np.testing.assert_array_equal(half.numpy(), wide.numpy().astype("float16"))


# ---- the model -------------------------------------------------------------------------------------------------------


def test_time_is_the_sum_of_stages():
    rates = Rates({"fma": 100.0, "slow": 10.0}, {"l2": 1000.0}, 1.0, 0.5)
    cost = Cost((Stage(200, "fma", 100, "l2", 2, 1, name="a"), Stage(10, "slow", 5000, "l2", 0, 3, name="b")), 1e-6, 7)
    assert time_us(cost, rates) == pytest.approx(2 + 1 + 1 + 5 + 3)
    assert (cost.work, cost.depth, cost.nbytes, cost.launches) == (210, 2, 5100, 4)


def test_work_is_counted():
    desc = square("", 8, 32, 64, 64, 3, 1, 1).desc
    work = {stage.name: stage.work for stage in cost_of(Way("winograd", 4), "fprop", desc).stages}
    tiles = 8 * 8 * 8
    assert work["product"] == 2 * 36 * tiles * 64 * 64 and work["in"] == 264 * tiles * 64
    assert cost_of(Way("direct"), "dgrad", desc).work == desc.useful_flops
    assert cost_of(Way("im2col"), "wgrad", desc).work == desc.nominal_flops
    assert cost_of(Way("fft", 16), "fprop", desc).stages[2].work == 8 * (16 * 9) * (8 * 9) * 64 * 64


def test_tiles_of_few_pixels_wait_for_weights():
    """Each of 3x3 pixels has a list of its own, 49 taps in all; seven images make two tiles, where eight would fit."""
    def weights(n: int, pass_name: str = "fprop") -> float:
        return cost_of(Way("direct"), pass_name, square("", n, 3, 5, 7, 3, 1, 1).desc).stages[1].nbytes
    assert [weights(n) for n in (1, 3, 4, 6, 7, 8)] == [49 * 5 * 7 * k for k in (3, 1, 0, 0, 1, 0)]
    assert weights(1, "dgrad") == weights(1) and weights(1, "wgrad") == 0
    large = square("", 1, 28, 64, 64, 31, 1, 15).desc
    assert choose("fprop", large, AUTO, "cpu16", 256 << 20).taken.way == Way("fft", 64)


def test_threads_and_the_order_of_calls_do_not_change_a_choice():
    cases = [square("", n, hw, c, c, f, 1, f // 2) for n, hw, c, f in ((8, 16, 64, 3), (1, 28, 32, 7), (2, 9, 16, 3))]
    keys = list(product(range(len(cases)), PASSES))
    found = []
    for threads, order in ((1, 1), (3, -1), (2, 1)):
        algorithms._chosen.cache_clear(), choose.cache_clear()
        with alpha.config(num_threads=threads):
            made = {key: chosen(key[1], cases[key[0]].desc, AUTO, native.library() is not None)
                    for key in keys[::order]}
        found.append([made[key] and made[key].way for key in keys])
    assert found[0] == found[1] == found[2]
    assert native.library() is None or len(set(found[0])) > 1


def test_a_choice_says_what_it_weighed(capfd):
    x, w, _ = operands()
    with alpha.config(debug=3):
        ops.conv2d(x, w, padding=1, stride=2)
        with alpha.config(conv_algorithm="winograd"):
            ops.conv2d(x, w, padding=1, stride=2)
    printed = capfd.readouterr().err
    assert "* direct" in printed and "winograd" in printed and "does not serve stride (2, 2)" in printed
    assert str(AUTO) == "auto" and str(Request("fft", True)) == "fft!"
