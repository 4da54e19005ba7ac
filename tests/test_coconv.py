"""Contextual convolution: the trio and its layer on the CPU, against two oracles, PyTorch, and convolution itself."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import alpha
from alpha import nn, ops
from alpha.cpu import coconv as coconv_cpu
from alpha.cpu import conv_numpy, conv_tables
from alpha.cpu.algorithms import way_of_level
from alpha.errors import ShapeError
from alpha.gradcheck import adjoint_check, assert_equal_at
from alpha.ops.algorithms.family import Way
from alpha.ops.coconv_desc import CoConvDesc
from tests.coconv_cases import CASES, CoCase, oracle
from tests.op_checks import leaf, like_torch, refused

ids = [case.name for case in CASES]


def operands(case: CoCase, dtype: str = "float32") -> list[np.ndarray]:
    """Small integers x, w, g: every sum of their products is exact in float32."""
    rng = np.random.default_rng(0)
    return [rng.integers(-3, 4, s).astype(dtype) for s in (case.x_shape, case.w_shape, case.desc.y_shape)]


# ---- bitwise on small integers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_three_passes_equal_the_oracle(dtype: str, cpu_kernels: str) -> None:
    for case in CASES:
        x, w, g = operands(case, dtype)
        tx, tw, tg = map(alpha.tensor, (x, w, g))
        got = (ops.coconv2d(tx, tw, **case.attrs), ops.coconv2d_dgrad(tg, tw, case.hw, **case.attrs),
               ops.coconv2d_wgrad(tx, tg, case.f, **case.attrs))
        assert [t.dtype for t in got] == [dtype, dtype, "float32" if dtype == "float16" else dtype]
        for name, a, b in zip(("y", "dx", "dw"), got, oracle(case, x, w, g)):
            assert_equal_at(a.numpy(), b.astype(a.numpy().dtype), name=f"{case.name}: {name}")


def test_bias_and_activation_are_those_of_each_channel(cpu_kernels: str) -> None:
    for case in CASES:
        x, w, _ = map(alpha.tensor, operands(case))
        b = alpha.tensor(np.arange(case.oc, dtype=np.float32) - case.oc // 2)
        plain = ops.coconv2d(x, w, **case.attrs).numpy() + b.numpy()
        assert_equal_at(ops.coconv2d_bias_act(x, w, b, **case.attrs).numpy(), plain, name=case.name)
        cut = ops.coconv2d_bias_act(x, w, b, activation="relu", **case.attrs).numpy()
        assert_equal_at(cut, np.maximum(plain, 0), name=case.name)


def test_one_level_is_conv2d_bit_for_bit(cpu_kernels: str) -> None:
    rng = np.random.default_rng(0)
    for f, d, stride, groups in product((1, 3, 5), (1, 3), (1, 2), (1, 4)):
        x, w = (alpha.tensor(rng.standard_normal(s, np.float32)) for s in ((3, 9, 9, 20), (24, f, f, 20 // groups)))
        geometry = dict(stride=stride, padding=d * (f // 2), dilation=d, groups=groups)
        levels = dict(dilations=(d,), stride=stride, groups=groups)
        y = ops.conv2d(x, w, **geometry)
        assert np.array_equal(ops.coconv2d(x, w, **levels).numpy(), y.numpy())
        assert np.array_equal(ops.coconv2d_dgrad(y, w, 9, **levels).numpy(),
                              ops.conv2d_dgrad(y, w, 9, **geometry).numpy())
        assert np.array_equal(ops.coconv2d_wgrad(x, y, f, **levels).numpy(),
                              ops.conv2d_wgrad(x, y, f, **geometry).numpy())


def test_the_papers_own_form_gives_the_same() -> None:
    """One product with windows of the largest dilated kernel, the others' taps among zeros."""
    case = CoCase("paper", 2, (7, 9), 5, 16, (1, 2, 3, 4))
    x, w, _ = operands(case)
    side = 2 * max(case.dilations) + 1
    spread = np.zeros((case.oc, side, side, case.ic), np.float32)
    for k, d in enumerate(case.dilations):
        taps = side // 2 + d * np.array([-1, 0, 1])
        spread[4 * k:4 * k + 4, taps[:, None], taps] = w[4 * k:4 * k + 4]
    padded = np.pad(x, ((0, 0), (side // 2,) * 2, (side // 2,) * 2, (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (side, side), (1, 2))    # N, H, W, C, side, side
    y = np.einsum("nhwcij,oijc->nhwo", windows, spread)
    assert_equal_at(ops.coconv2d(alpha.tensor(x), alpha.tensor(w), case.dilations).numpy(), y)


@settings(deadline=None, max_examples=25)
@given(st.permutations(range(4)), st.lists(st.integers(1, 5), min_size=4, max_size=4), st.integers(1, 2),
       st.integers(1, 9))
def test_permuting_levels_permutes_channels(order: list[int], channels: list[int], stride: int, size: int) -> None:
    dilations, oc = (1, 2, 3, 5), sum(channels)
    rng = np.random.default_rng(0)
    x, w = (alpha.tensor(rng.integers(-3, 4, s).astype(np.float32)) for s in ((2, size, size, 3), (oc, 3, 3, 3)))
    y = ops.coconv2d(x, w, dilations, channels, stride).numpy()
    first = np.cumsum([0, *channels])
    rows = np.concatenate([np.arange(first[k], first[k + 1]) for k in order])
    other = ops.coconv2d(x, w[rows.tolist()], [dilations[k] for k in order], [channels[k] for k in order], stride)
    assert np.array_equal(other.numpy(), y[..., rows])


def test_a_level_that_writes_elsewhere_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sabotage: the second level one channel too far to the left."""
    case = CoCase("sabotage", 2, (5, 5), 8, 16, (1, 2))
    x, w, g = operands(case)
    right = conv_tables.forward_table(case.desc)
    wrong = right.copy()
    wrong[4] -= 1
    monkeypatch.setattr("alpha.cpu.native.forward_table", lambda desc, level: wrong)
    if not coconv_cpu.native.usable(x, w):
        pytest.skip("there are no compiled CPU kernels here (no C++ compiler?)")
    with pytest.raises(AssertionError):
        assert_equal_at(ops.coconv2d(alpha.tensor(x), alpha.tensor(w), case.dilations).numpy(),
                        oracle(case, x, w, g)[0])


NARROW = CoCase("narrow", 2, (18, 21), 32, 12, (1, 2, 3), (4, 5, 3))
WIDE = (CoCase("wide4", 3, (24, 25), 32, 64, (1, 2, 3, 4)),
        CoCase("tails", 5, (19, 14), 20, 72, (3, 1, 2), (16, 24, 32)),
        CoCase("some_levels", 4, (13, 30), 48, 68, (5, 2), (4, 64)))


@pytest.mark.parametrize("case", (*WIDE, NARROW), ids=str)
def test_levels_by_winograd(case: CoCase, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every d-th pixel is a map of its own; levels of few channels have the direct kernels, beside them."""
    rng = np.random.default_rng(0)
    x, w, g = (rng.standard_normal(s, np.float32) for s in (case.x_shape, case.w_shape, case.desc.y_shape))
    if not coconv_cpu.native.usable(x, w):
        pytest.skip("there are no compiled CPU kernels here (no C++ compiler?)")
    b = rng.standard_normal(case.oc, np.float32)
    monkeypatch.setattr(coconv_cpu, "ways", lambda pass_name, desc: tuple(
        Way("winograd", 4) if level.oc >= 16 or case is NARROW else None for _, level in desc.levels))
    tx, tw, tg = map(alpha.tensor, (x, w, g))
    y, dx, dw = oracle(case, x.astype(np.float64), w.astype(np.float64), g.astype(np.float64))
    found = {threads: passes_of(case, tx, tw, tg, alpha.tensor(b), threads) for threads in (1, 2, 3)}
    for got, expected in zip(found[1], (y, dx, dw, np.maximum(y + b, 0))):
        assert np.linalg.norm(got - expected) <= 1.5e-6 * np.linalg.norm(expected)
        assert np.abs(got - expected).max() <= 1e-5 * np.abs(expected).max()
    for other in (2, 3):
        assert all(np.array_equal(a, b) for a, b in zip(found[1], found[other]))


def test_which_levels_winograd_takes() -> None:
    """Wide ones on many tiles; not those of few channels or tiles, of a stride, in groups, or of kernels but 3x3."""
    def taken(*shape: int, **changes: Any) -> list[bool]:
        n, size, ic, oc = shape
        levels = {"dilations": (1, 2), "channels": None, "stride": (1, 1), "groups": 1, "f": 3} | changes
        f = levels.pop("f")
        desc = CoConvDesc.fprop((n, size, size, ic), (oc, f, f, ic // levels["groups"]), **levels)
        return [bool(way) for pass_name in ("fprop", "dgrad", "wgrad") for way in coconv_cpu.ways(pass_name, desc)]
    if not coconv_cpu.native.usable(np.zeros(1, np.float32)):
        pytest.skip("there are no compiled CPU kernels here (no C++ compiler?)")
    assert all(taken(32, 8, 256, 256)) and all(taken(4, 14, 256, 256))
    for other in (taken(32, 8, 256, 256, stride=(2, 2)), taken(32, 8, 256, 256, groups=2), taken(4, 14, 256, 256, f=5),
                  taken(1, 8, 256, 256), taken(32, 8, 256, 2), taken(32, 8, 8, 256)):
        assert not any(other)
    with alpha.config(conv_algorithm="direct"):
        assert not any(taken(32, 8, 256, 256))


@pytest.mark.parametrize("machine", ["cpu16", "cpu8", "cpu16_intel", "cpu8_intel"])
def test_all_levels_of_a_gradient_of_w_take_the_same_tiles(machine: str) -> None:
    """Level by level the last one would take the direct kernels here: 14.0 ms, 10.4 in one call."""
    desc = CoConvDesc.fprop((32, 16, 16, 128), (128, 3, 3, 128), dilations=(1, 2, 3), channels=None, stride=(1, 1),
                            groups=1)
    found = coconv_cpu._ways("wgrad", desc, machine, 1 << 28)
    assert found[0] is not None and set(found) == {found[0]}


@pytest.mark.parametrize("machine, channels", [("cpu16", 4), ("cpu8", 6), ("cpu16_intel", 4), ("cpu8_intel", 6)])
def test_narrow_levels_are_made_by_winograd_forward(machine: str, channels: int) -> None:
    """The direct kernels would fill a part of each vector; gradients, whose vectors are full, keep them."""
    (_, level), _ = CoConvDesc.fprop((8, 32, 32, 64), (2 * channels, 3, 3, 64), dilations=(1, 2), channels=None,
                                     stride=(1, 1), groups=1).levels
    assert way_of_level("fprop", level, machine, 1 << 28)
    for pass_name in ("dgrad", "wgrad"):
        assert way_of_level(pass_name, level, machine, 1 << 28) is None
    (_, single), _ = CoConvDesc.fprop((8, 32, 32, 64), (2, 3, 3, 64), dilations=(1, 2), channels=None, stride=(1, 1),
                                      groups=1).levels
    assert way_of_level("fprop", single, machine, 1 << 28) is None


def passes_of(case: CoCase, x: alpha.Tensor, w: alpha.Tensor, g: alpha.Tensor, b: alpha.Tensor, threads: int
              ) -> list[np.ndarray]:
    with alpha.config(num_threads=threads):
        made = (ops.coconv2d(x, w, **case.attrs), ops.coconv2d_dgrad(g, w, case.hw, **case.attrs),
                ops.coconv2d_wgrad(x, g, case.f, **case.attrs),
                ops.coconv2d_bias_act(x, w, b, activation="relu", **case.attrs))
        return [t.numpy() for t in made]


def test_one_level_on_large_maps_has_the_tiles_of_conv2d(cpu_kernels: str) -> None:
    rng = np.random.default_rng(0)
    x, w = (alpha.tensor(rng.standard_normal(s, np.float32)) for s in ((4, 32, 32, 64), (64, 3, 3, 64)))
    y = ops.conv2d(x, w, padding=1)
    assert np.array_equal(ops.coconv2d(x, w, (1,)).numpy(), y.numpy())
    assert np.array_equal(ops.coconv2d_dgrad(y, w, 32, (1,)).numpy(), ops.conv2d_dgrad(y, w, 32, padding=1).numpy())
    assert np.array_equal(ops.coconv2d_wgrad(x, y, 3, (1,)).numpy(), ops.conv2d_wgrad(x, y, 3, padding=1).numpy())


def test_multiplications_done_are_the_useful_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    done = [0]

    def matmul(a, b, out):
        done[0] += a.shape[0] * a.shape[1] * b.shape[1]
        return np.matmul(a, b, out=out)

    monkeypatch.setattr(conv_numpy, "_matmul", matmul)
    for size, stride, d in product((1, 4, 9), (1, 2), ((1, 2), (1, 2, 3, 4))):
        case = CoCase("count", 2, (size, size), 3, 8, d, stride=(stride, stride))
        x, w, g = operands(case)
        for run, a, b, shape in ((coconv_cpu.fprop, x, w, g.shape), (coconv_cpu.dgrad, g, w, x.shape),
                                 (coconv_cpu.wgrad, x, g, w.shape)):
            done[0] = 0
            run(case.desc, a, b, np.empty(shape, np.float32))
            assert 2 * done[0] == case.desc.useful_flops, (size, stride, d)


# ---- gradients -------------------------------------------------------------------------------------------------------


def test_adjoint_identities(cpu_kernels: str) -> None:
    for case in CASES:
        x, w, g = map(alpha.tensor, operands(case, "float64"))
        adjoint_check(partial(ops.coconv2d, w=w, **case.attrs),
                      partial(ops.coconv2d_dgrad, w=w, hw=case.hw, **case.attrs), x, g)
        adjoint_check(partial(ops.coconv2d, x, **case.attrs),
                      partial(ops.coconv2d_wgrad, x, f=case.f, **case.attrs), w, g)


@pytest.mark.parametrize("case", [CoCase("a", 2, (5, 4), 2, 4, (1, 2)), CoCase("b", 2, (5, 5), 4, 6, (3, 1), (2, 4),
                                                                              stride=(2, 1), groups=2),
                                  CoCase("c", 1, (6, 6), 2, 3, (2, 1, 3), (1, 1, 1), f=(5, 3))], ids=lambda c: c.name)
def test_gradcheck_to_the_second_order(case: CoCase) -> None:
    x, w, g = leaf(case.x_shape, 1), leaf(case.w_shape, 2), leaf(case.desc.y_shape, 3)
    b = leaf((case.oc,), 4)
    assert alpha.gradcheck(lambda x, w: ops.coconv2d(x, w, **case.attrs), (x, w), second_order=True)
    assert alpha.gradcheck(lambda g, w: ops.coconv2d_dgrad(g, w, case.hw, **case.attrs), (g, w), second_order=True)
    assert alpha.gradcheck(lambda x, g: ops.coconv2d_wgrad(x, g, case.f, **case.attrs), (x, g), second_order=True)
    for activation in (None, "relu"):
        run = partial(ops.coconv2d_bias_act, activation=activation, **case.attrs)
        assert alpha.gradcheck(run, (x, w, b), second_order=activation is None)


@pytest.mark.torch
@pytest.mark.parametrize("case", CASES, ids=ids)
def test_torch_agrees(case: CoCase) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(1)

    def theirs(x, w):
        ys = [torch.nn.functional.conv2d(
            x.permute(0, 3, 1, 2), w[a:a + level.oc].permute(0, 3, 1, 2), None, case.stride, (level.h.p, level.w.p),
            (level.h.d, level.w.d), case.groups) for a, level in case.desc.levels]
        return torch.cat(ys, 1).permute(0, 2, 3, 1)

    like_torch(lambda x, w: ops.coconv2d(x, w, **case.attrs), theirs,
               [rng.standard_normal(s) for s in (case.x_shape, case.w_shape)])


# ---- the description -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("levels", "shares"), [(1, (64,)), (2, (32, 32)), (3, (32, 16, 16)), (4, (16,) * 4),
                                                (5, (16, 16, 16, 8, 8))])
def test_the_usual_split(levels: int, shares: tuple[int, ...]) -> None:
    desc = CoConvDesc.fprop((2, 8, 8, 4), (64, 3, 3, 4), dilations=tuple(range(1, levels + 1)), channels=None,
                            stride=(1, 1), groups=1)
    assert tuple(level.oc for _, level in desc.levels) == shares
    assert [first for first, _ in desc.levels] == np.cumsum([0, *shares])[:-1].tolist()
    assert desc.x_shape == (2, 8, 8, 4) and desc.w_shape == (64, 3, 3, 4) and desc.y_shape == (2, 8, 8, 64)
    assert hash(desc) == hash(CoConvDesc(desc.levels)) and desc == CoConvDesc(desc.levels)


def test_flops_are_sums_and_the_input_is_read_once() -> None:
    desc = CoConvDesc.fprop((64, 56, 56, 64), (64, 3, 3, 64), dilations=(1, 2, 3, 4), channels=None, stride=(1, 1),
                            groups=1)
    assert desc.nominal_flops == 2 * 64 * 56 * 56 * 64 * 9 * 64
    assert desc.useful_flops / desc.nominal_flops == pytest.approx(0.942, abs=5e-4)
    assert desc.nbytes(2) == 2 * (2 * 64 * 56 * 56 * 64 + 64 * 9 * 64)  # 51 MB
    for size, levels, share in ((8, 4, 0.635), (14, 2, 0.863), (28, 3, 0.919), (4, 4, 0.375), (7, 2, 0.737)):
        desc = CoConvDesc.fprop((1, size, size, 8), (8, 3, 3, 8), dilations=tuple(range(1, levels + 1)), channels=None,
                                stride=(1, 1), groups=1)
        assert desc.useful_flops / desc.nominal_flops == pytest.approx(share, abs=5e-4)


@pytest.mark.parametrize(("changes", "parts"), [
    ({"f": (3, 2)}, ("coconv2d: the kernel is 3x2, odd sides are needed", "conv2d for an even one")),
    ({"channels": (16,)}, ("channels (16,) has 1 levels, dilations (1, 2) has 2", "one number of channels for each")),
    ({"channels": (4, 8)}, ("channels (4, 8) add up to 12, there are 16 output channels", "make them equal")),
    ({"channels": (16, 0)}, ("channels (16, 0) has a level with 0 of the 16 output channels", "give each level")),
    ({"channels": (6, 10), "groups": 4}, ("groups=4 does not divide a level of 6 channels (channels (6, 10))",)),
    ({"dilations": (1, 2, 3, 4), "oc": 18}, ("18 output channels, the usual split into 4 levels needs a",)),
    ({"dilations": (1,) * 6}, ("there are 6 levels, a usual split is known of 5 at most", "pass channels: 6 numbers")),
    ({"dilations": ()}, ("dilations is (), at least 1 level is needed",)),
    ({"dilations": (1, 0)}, ("coconv2d: dilations is (1, 0), a tuple of ints of at least 1 is needed",)),
    ({"dilations": 2}, ("coconv2d: dilations is 2, a tuple of ints of at least 1",)),
    ({"channels": "a"}, ("coconv2d: channels is \"a\" (str), None or a tuple of ints is needed",)),
    ({"wrong": 1}, ("x has 9 channels, w expects 8",)),
])
def test_bad_input_is_refused(changes: dict, parts: tuple[str, ...]) -> None:
    f, oc, wrong = changes.pop("f", (3, 3)), changes.pop("oc", 16), changes.pop("wrong", 0)
    groups = changes.get("groups", 1)
    x, w = ops.zeros((2, 6, 6, 8 + wrong)), ops.zeros((oc, *f, 8 // groups))
    with refused(alpha.errors.AlphaError, *parts):
        ops.coconv2d(x, w, **{"dilations": (1, 2), **changes})


def test_gradients_refuse_other_shapes() -> None:
    g, w, x = ops.zeros((2, 3, 3, 16)), ops.zeros((16, 3, 3, 8)), ops.zeros((2, 6, 6, 8))
    with refused(ShapeError, "coconv2d_dgrad: g has shape (2, 3, 3, 16), this geometry gives (2, 6, 6, 16)"):
        ops.coconv2d_dgrad(g, w, 6, (1, 2))
    with refused(ShapeError, "coconv2d_wgrad: g has shape (2, 3, 3, 16), this geometry gives (2, 6, 6, 16)"):
        ops.coconv2d_wgrad(x, g, 3, (1, 2))
    with refused(ShapeError, "coconv2d_wgrad: groups=3 does not divide 8 input and 16 output channels"):
        ops.coconv2d_wgrad(x, g, 3, (1, 2), groups=3)
    with refused(ShapeError, "coconv2d_bias_act: b has shape (8,), w has 16 filters"):
        ops.coconv2d_bias_act(x, w, ops.zeros((8,)), dilations=(1, 2))


# ---- the layer -------------------------------------------------------------------------------------------------------


def test_the_layer_has_the_weight_of_conv2d() -> None:
    alpha.manual_seed(3)
    layer = nn.CoConv2d(8, 16, dilations=(1, 2))
    alpha.manual_seed(3)
    plain = nn.Conv2d(8, 16, 3, padding=1, bias=False)
    assert np.array_equal(layer.weight.numpy(), plain.weight.numpy()) and layer.bias is None
    x = ops.randn((2, 7, 7, 8))
    assert_equal_at(layer(x).numpy(), ops.coconv2d(x, layer.weight, (1, 2)).numpy())
    assert layer(x).shape == (2, 7, 7, 16) and nn.CoConv2d(8, 16, stride=2)(x).shape == (2, 4, 4, 16)
    desc = CoConvDesc.fprop(x.shape, layer.weight.shape, **layer.geometry)
    assert layer.macs(x.shape) == (desc.nominal_flops // 2, desc.useful_flops // 2)
    assert layer.macs(x.shape)[0] == plain.macs(x.shape)[0]
    assert repr(layer) == ("CoConv2d(8, 16, kernel_size=(3, 3), stride=(1, 1), dilations=(1, 2), channels=(8, 8))")
    assert repr(nn.CoConv2d(8, 16, groups=2, bias=True)).endswith("channels=(4, 4, 4, 4), groups=2, bias=True)")


def test_a_relu_joins_a_layer_with_bias() -> None:
    net = nn.Sequential(nn.CoConv2d(4, 8, 5, dilations=(1, 3), bias=True), nn.ReLU())
    x = ops.randn((2, 6, 6, 4))
    layer = net[0]
    expected = ops.relu(ops.coconv2d_bias_act(x, layer.weight, layer.bias, dilations=(1, 3)))
    assert_equal_at(net(x).numpy(), expected.numpy())


def test_the_layer_refuses_bad_settings() -> None:
    with refused(ShapeError, "CoConv2d: the kernel is 2x2, odd sides are needed"):
        nn.CoConv2d(4, 8, 2)
    with refused(ShapeError, "CoConv2d: 6 output channels, the usual split into 4 levels needs a multiple of 4"):
        nn.CoConv2d(4, 6)
    with refused(ShapeError, "CoConv2d: groups=2 does not divide a level of 1 channels"):
        nn.CoConv2d(4, 4, groups=2)
    with refused(ShapeError, "groups=3 does not divide 4 input and 12 output channels"):
        nn.CoConv2d(4, 12, groups=3)
    with refused(ShapeError, "CoConv2d: dilations is (1, -1), a tuple of ints of at least 1 is needed"):
        nn.CoConv2d(4, 8, dilations=(1, -1))
