"""Contextual convolution on CUDA: the ops and the gradients in every storage type, a layer in a captured step."""

from __future__ import annotations

import numpy as np
import pytest

import alpha
from alpha import nn, ops, optim
from alpha.core.config import config
from alpha.cuda.conv import coconv, planner
from alpha.cuda.conv.coconv import halo, levels
from alpha.cuda.conv.wgmma import boxes
from alpha.cuda.lazy import statistics
from alpha.cuda.ops.pointwise import convert
from alpha.cuda.ops.pointwise.epilogue import Epilogue
from alpha.cuda.runtime.context import context
from alpha.cuda.runtime.memory import download, upload
from alpha.gradcheck import assert_equal_at
from tests.coconv_cases import CASES, CoCase, oracle
from tests.cuda.agree import Case, agree, as_stored, floats, ints
from tests.cuda.conv.test_conv_wgmma import fetched, stored
from tests.cuda.lazy.test_tile_statistics import check as check_statistics
from tests.cuda.process import EMULATED

pytestmark = pytest.mark.cuda

SOME = [case for case in CASES if case.name in {
    "map1", "map5", "map8.stride2", "one_level", "three_levels", "six_levels", "odd_split", "kernel5.stride2",
    "groups2", "groups4.kernel5.stride2", "few_channels", "tail", "depthwise"}]


@pytest.mark.parametrize("tensor_cores", [True, False])
@pytest.mark.parametrize("case", SOME, ids=lambda c: c.name)
def test_three_passes_equal_the_oracle_on_integers(case: CoCase, tensor_cores: bool) -> None:
    x, w, g = ints(*case.x_shape), ints(*case.w_shape, seed=1), ints(*case.desc.y_shape, seed=2)
    with config(tensor_cores=tensor_cores):
        tx, tw, tg = (alpha.tensor(a, device="cuda") for a in (x, w, g))
        got = (ops.coconv2d(tx, tw, **case.attrs), ops.coconv2d_dgrad(tg, tw, case.hw, **case.attrs),
               ops.coconv2d_wgrad(tx, tg, case.f, **case.attrs))
        for name, a, b in zip(("y", "dx", "dw"), got, oracle(case, x, w, g)):
            assert_equal_at(a.numpy(), b.astype(np.float32), name=f"{case.name}: {name}")


def test_one_level_is_conv2d_bit_for_bit() -> None:
    for f, d, stride in ((3, 1, 1), (3, 2, 1), (1, 1, 2), (5, 2, 2)):
        x, w = (alpha.tensor(floats(*s, seed=k), device="cuda") for k, s in enumerate(((3, 9, 9, 16), (32, f, f, 16))))
        geometry, levels = dict(stride=stride, padding=d * (f // 2), dilation=d), dict(dilations=(d,), stride=stride)
        y = ops.conv2d(x, w, **geometry)
        for got, expected in ((ops.coconv2d(x, w, **levels), y),
                              (ops.coconv2d_dgrad(y, w, 9, **levels), ops.conv2d_dgrad(y, w, 9, **geometry)),
                              (ops.coconv2d_wgrad(x, y, f, **levels), ops.conv2d_wgrad(x, y, f, **geometry))):
            assert np.array_equal(got.numpy(), expected.numpy())


@pytest.mark.parametrize("case", [c for c in SOME if c.name in {
    "three_levels", "odd_split", "groups2", "map8.stride2"}], ids=lambda c: c.name)
def test_every_storage_type_agrees_with_the_cpu(case: CoCase) -> None:
    x, w, g, b = (floats(*s, seed=k) for k, s in enumerate((case.x_shape, case.w_shape, case.desc.y_shape, (case.oc,))))
    dtypes = ("float32", "bfloat16", "float16")
    agree(Case("coconv2d", x, w, dtypes=dtypes, atol=1e-4, rtol=2e-2, **case.attrs))
    agree(Case("coconv2d_bias_act", x, w, b, dtypes=dtypes, activation="relu", atol=1e-4, rtol=2e-2, **case.attrs))
    agree(Case("coconv2d_dgrad", g, w, hw=case.hw, dtypes=dtypes, atol=0.3, rtol=2e-2, **case.attrs))
    agree(Case("coconv2d_wgrad", x, g, f=case.f, dtypes=dtypes, atol=5e-2, rtol=2e-2, **case.attrs))


def test_captured_steps_have_the_bits_of_eager_ones() -> None:
    def run(captured: bool) -> list[np.ndarray]:
        alpha.manual_seed(0)
        net = nn.Sequential(nn.CoConv2d(8, 16), nn.BatchNorm2d(16), nn.ReLU(), nn.CoConv2d(16, 16, dilations=(1, 2)))
        net.to("cuda")
        optimizer = optim.SGD(net.parameters(), lr=0.1)
        x = alpha.tensor(floats(8, 6, 6, 8), device="cuda")

        def step(x: alpha.Tensor) -> alpha.Tensor:
            y = net(x)
            loss = (y * y).mean()
            loss.backward()
            return loss.detach()
        run_step = alpha.capture(step, net) if captured else step
        for _ in range(5):
            run_step(x)
            optimizer.step()
            optimizer.zero_grad()
        return [p.numpy() for p in net.parameters()]
    for a, b in zip(run(True), run(False)):
        assert np.array_equal(a, b)


# ---- the kernels over levels -----------------------------------------------------------------------------------------


STORES = {"float32": "float32", "float16x2": "float32", "bfloat16": "bfloat16"}
EIGHTS = (
    CoCase("map1", 3, (1, 1), 8, 32, (1, 2, 3, 4)), CoCase("tails", 5, (7, 6), 24, 56, (1, 3, 2), (8, 32, 16)),
    CoCase("stride2", 3, (9, 8), 16, 40, (2, 1), (32, 8), stride=(2, 2)),
    CoCase("kernel5.groups", 2, (6, 6), 32, 64, (1, 2), (16, 48), f=(5, 5), groups=2),
    CoCase("stride3.no_taps", 9, (8, 8), 8, 48, (2, 3, 1), stride=(3, 3), f=(1, 1), channels=(16, 16, 16)),
    CoCase("stride2.kernel5", 3, (10, 10), 8, 32, (1, 2, 3, 4), f=(5, 5), stride=(2, 2)),
    CoCase("kernel1", 9, (5, 5), 16, 24, (1, 2), (8, 16), f=(1, 1)),
    SLICED := CoCase("slices", 2, (3, 3), 264, 40, (1, 2), (8, 32)))


def of_pass(pass_name: str, candidates: tuple) -> list:
    return [candidate for candidate in candidates if candidate.pass_name == pass_name]


def candidates(case: CoCase, pass_name: str) -> list[planner.Candidate]:
    """Returns those that compute a case; on the emulated driver one of each kind."""
    found: dict[tuple, planner.Candidate] = {}
    for number, candidate in enumerate(of_pass(pass_name, coconv.CANDIDATES)):
        if candidate.reads in STORES and not candidate.rejection(case.desc):
            found.setdefault((candidate.name.split()[0], candidate.reads, not EMULATED and number), candidate)
    assert len({candidate.reads for candidate in found.values()}) == len(STORES)
    return list(found.values())


@pytest.mark.parametrize("case", EIGHTS, ids=lambda c: c.name)
@pytest.mark.parametrize("pass_name", planner.PASSES)
def test_every_kernel_is_bitwise_right_on_integers(pass_name: str, case: CoCase, device: None) -> None:
    check_on_integers(pass_name, case, candidates(case, pass_name))


def check_on_integers(pass_name: str, case: CoCase, computing: list[planner.Candidate]) -> None:
    x, w, g, b = (ints(*shape, seed=k) for k, shape in enumerate((case.x_shape, case.w_shape, case.desc.y_shape,
                                                                 (case.oc,))))
    y, dx, dw = oracle(case, x, w, g)
    expected = {"fprop": np.maximum(y + b, 0), "dgrad": dx, "wgrad": dw}[pass_name]
    for candidate in computing:
        dtype = STORES[candidate.reads]
        of_x, of_g, of_w = stored(x, dtype), stored(g, dtype), upload(w)
        out = stored(np.full(expected.shape, np.nan), "float32" if pass_name == "wgrad" else dtype)
        given = {"fprop": (of_x, of_w, out, Epilogue.of(upload(b), "relu")), "dgrad": (of_g, of_w, out),
                 "wgrad": (of_x, of_g, out)}[pass_name]
        candidate.prepare(case.desc)(*given)
        assert_equal_at(fetched(out), as_stored(expected.astype(np.float32), out.dtype),
                        name=f"{pass_name} of {case.name} by {candidate.name}")


HALOS = {name: of_pass(name, halo.CANDIDATES) for name in planner.PASSES}
IN_TILES = (
    CoCase("all_filters_stay", 2, (9, 7), 64, 64, (1, 2, 3, 4)), CoCase("chunks", 1, (9, 9), 72, 128, (1, 2, 3)),
    CoCase("columns", 3, (8, 8), 72, 256, (1, 2)), CoCase("few", 1, (5, 3), 16, 40, (2, 1), (16, 24)),
    CoCase("kernel5", 1, (9, 9), 16, 64, (1, 2), f=(5, 5)))


def in_tiles(case: CoCase, pass_name: str) -> list[planner.Candidate]:
    found = [c for c in HALOS[pass_name] if c.reads in STORES and not c.rejection(case.desc)]
    assert found or (pass_name, case.name) == ("wgrad", "kernel5")
    return found


@pytest.mark.parametrize("case", IN_TILES, ids=lambda c: c.name)
@pytest.mark.parametrize("pass_name", planner.PASSES)
@pytest.mark.usefixtures("as_h100")
def test_tiles_with_halos_are_bitwise_right_on_integers(pass_name: str, case: CoCase) -> None:
    check_on_integers(pass_name, case, in_tiles(case, pass_name))


@pytest.mark.usefixtures("as_h100")
def test_a_block_has_several_tiles_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Halos and filters come in turn: the second time around nothing of the first is left."""
    monkeypatch.setattr(context, "sm_count", 1)
    for case in (CoCase("turns", 3, (17, 9), 64, 64, (1, 2, 3, 4)), CoCase("turns.chunks", 5, (8, 8), 72, 256, (1, 2))):
        for pass_name in planner.PASSES:
            check_on_integers(pass_name, case, in_tiles(case, pass_name)[::1 if not EMULATED else 2])


@pytest.mark.usefixtures("as_h100")
def test_what_tiles_with_halos_do_not_compute_is_said() -> None:
    for case, reason in (
            (CoCase("groups", 2, (8, 8), 32, 64, (1, 2), groups=2), "2 groups, stride (1, 1), kernel (3, 3)"),
            (CoCase("stride", 2, (8, 8), 32, 64, (1, 2), stride=(2, 2)), "1 groups, stride (2, 2), kernel (3, 3)"),
            (CoCase("eights", 2, (8, 8), 8, 32, (1, 2), (8, 24)), "levels begin at [0, 8], it takes 16 channels"),
            (CoCase("far", 2, (8, 8), 8, 32, (1, 256)), "a dilation above 255"),
            (CoCase("wide", 2, (8, 8), 8, 64, (1, 12)), "halos of 32 x 32 pixels")):
        for pass_name, candidates in HALOS.items():
            assert all(reason in str(c.rejection(case.desc)) for c in candidates), (case.name, pass_name)
    assert "it computes 3x3" in str(HALOS["wgrad"][0].rejection(IN_TILES[-1].desc))
    sixteens = CoCase("sixteens", 2, (8, 8), 8, 128, (1, 2), (16, 112))
    refused = {c.tile.columns: c.rejection(sixteens.desc) for c in HALOS["fprop"]}
    assert refused == {64: None, 128: "levels begin at [0, 16], it takes 32 at a time"}


@pytest.mark.parametrize("case", [SLICED, IN_TILES[1], *(case for case in EIGHTS if case.groups > 1)],
                         ids=lambda c: c.name)
@pytest.mark.parametrize("pass_name", planner.PASSES)
@pytest.mark.usefixtures("as_h100")
def test_both_planes_are_read(monkeypatch, fresh_schedules, pass_name: str, case: CoCase, launches: list[str]) -> None:
    """Integers have one; what lies wrong of the second costs half of the digits.  Sums in slices are added in place."""
    x, w, g = floats(*case.x_shape), floats(*case.w_shape, seed=1), floats(*case.desc.y_shape, seed=2)
    of_x, of_w, of_g = map(upload, (x, w, g))
    a, b, expected = dict(zip(planner.PASSES, zip((of_x, of_g, of_x), (of_w, of_w, of_g), oracle(case, *(
        t.astype(np.float64) for t in (x, w, g))))))[pass_name]
    everything = {*candidates(case, pass_name), *(in_tiles(case, pass_name) if case in IN_TILES else ())}
    if case is SLICED and pass_name == "fprop":  # what boxes and clusters would compute in another way
        monkeypatch.setattr(boxes, "MOST_IMAGES", 0)
        everything |= {levels.ByLevel("conv_wgmma", tuple(tile for tile in unit.tiles if tile.tile.cluster == 1))
                       for unit in everything if isinstance(unit, levels.ByLevel)}
    for candidate in (c for c in everything if c.reads == "float16x2"):
        out = upload(np.full(expected.shape, np.nan, np.float32))
        candidate.prepare(case.desc)(a, b, out)
        error = np.linalg.norm(fetched(out) - expected) / np.linalg.norm(expected)
        assert error < 5e-7, (candidate.name, error)
    if case is SLICED and pass_name == "fprop" and context.arch == "sm_90a":
        assert "conv_wgmma_slices" in launches


@pytest.mark.long
@pytest.mark.usefixtures("as_h100")
@pytest.mark.parametrize("candidate", (*of_pass("fprop", levels.BY_LEVEL), *(
    c for c in HALOS["fprop"] if c.tile.columns == 64)), ids=lambda c: c.name)
def test_statistics_of_all_levels_are_counted(candidate: planner.Candidate) -> None:
    case = CoCase("counted", 304, (8, 7), 16, 40, (1, 2), (16, 24))  # work for all blocks, whatever the tile
    x, w, b = floats(*case.x_shape), floats(*case.w_shape, seed=1), floats(case.oc, seed=2)
    given = [convert(upload(a), candidate.writes) for a in (x, w)]
    y = convert(upload(np.full(case.desc.y_shape, np.nan, np.float32)), candidate.writes)
    candidate.prepare(case.desc)(*given, statistics.ask(y), Epilogue.of(upload(b), "relu"))
    parts = download(statistics.take(y), np.float32).astype(np.float64)
    check_statistics(fetched(y).astype(np.float64).reshape(-1, case.oc), parts)
    sliced = CoCase("sliced", 2, (3, 3), 520, 40, (1, 2), (8, 32))
    if isinstance(candidate, levels.ByLevel):
        assert candidate._slots(case.desc) and not candidate._slots(sliced.desc)


@pytest.mark.long
@pytest.mark.parametrize(("pass_name", "first"), [("fprop", "composed"), ("dgrad", "composed"), ("wgrad", "composed"),
                                                  ("dgrad", "over levels"), ("wgrad", "by level")])
def test_the_clock_decides_if_asked(pass_name: str, first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is run to be timed; the one that the clock prefers is taken."""
    for name in ("TUNING_LAUNCHES", "TUNING_ROUNDS"):
        monkeypatch.setattr(planner, name, 1)
    monkeypatch.setattr(planner, "_plans", {})
    monkeypatch.setattr(planner, "_write", lambda *_: None)
    monkeypatch.setattr(planner, "_read", lambda *_: {})
    clock = planner._time
    monkeypatch.setattr(planner, "_time", lambda *call: clock(*call) * 0 + (not call[3].name.endswith(first)))
    with alpha.config(tune=True):
        plan = planner.plan(pass_name, EIGHTS[0].desc, "fma")
    assert plan.chosen.name.endswith(first)
    assert {option.time_us for option in plan.options if not option.reason} == {0.0, 1.0}


def test_a_batch_norm_behind_levels_reads_their_statistics(launches: list[str]) -> None:
    """Its first pass over memory is not there, where Hopper's kernels count; the values are the CPU's."""
    def run(device: str) -> list[np.ndarray]:
        alpha.manual_seed(0)
        net = nn.Sequential(nn.CoConv2d(64, 64, dilations=(1, 2)), nn.BatchNorm2d(64)).to(device)
        x = alpha.tensor(floats(16, 8, 8, 64), device=device, requires_grad=True)
        y = net(x)
        (y * y * y).sum().backward()
        return [y.numpy(), x.grad.numpy(), *(p.grad.numpy() for p in net.parameters())]
    for a, b in zip(run("cuda"), run("cpu")):
        assert np.linalg.norm(a - b) < 2e-5 * np.linalg.norm(b)
    counted = any(name.startswith("finalize_tiles") for name in launches)
    in_levels = "conv_v2_wgmma" in launches and "conv_wgmma_slices" not in launches
    assert counted is (in_levels or "conv_coconv_fprop" in launches)


def test_levels_by_clusters_leave_the_statistics_to_the_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clusters of blocks count nothing: a norm that read their slots would divide by a count of 0."""
    monkeypatch.setattr(context, "sm_count", 132)  # for which a batch of 13 takes clusters
    monkeypatch.setattr(planner, "_plans", {})
    case = CoCase("clusters", 13, (16, 16), 128, 256, (1, 2), stride=(2, 2))
    chosen = planner.plan("fprop", case.desc, planner.precision_of("bfloat16")).chosen
    if context.arch == "sm_90a":
        assert all(tile.tile.cluster > 1 for tile in chosen.best(case.desc))
    x, w = (alpha.tensor(floats(*shape), device="cuda").astype("bfloat16") for shape in (case.x_shape, case.w_shape))
    y = nn.BatchNorm2d(256).to("cuda")(ops.coconv2d(x, w, case.dilations, stride=2, for_norm=True))
    assert np.isfinite(y.astype("float32").numpy()).all()


@pytest.fixture
def levels_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is composed where a kernel over levels serves."""
    monkeypatch.setattr(coconv, "composed_us", lambda *_: 1e9)
    monkeypatch.setattr(planner, "_plans", {})


EIGHTH = CoCase("stride2.odd_map", 5, (9, 7), 16, 48, (1, 2, 3), (24, 8, 16), stride=(2, 2))
MODES = {"fma": "float32", "fp32": "float16x2", "tf32": "float16", "bf16": "bfloat16", "fp16": "float16"}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.usefixtures("levels_first")
def test_the_ops_take_kernels_over_levels_in_every_precision(mode: str, launches: list[str]) -> None:
    case, dtype = EIGHTH, {"bf16": "bfloat16", "fp16": "float16"}.get(mode, "float32")
    x, w, g = ints(*case.x_shape), ints(*case.w_shape, seed=1), ints(*case.desc.y_shape, seed=2)
    with config(tensor_cores=mode != "fma"), alpha.precision("tf32" if mode == "tf32" else "fp32"):
        tx, tw, tg = (alpha.tensor(a, device="cuda").astype(dtype) for a in (x, w, g))
        got = (ops.coconv2d(tx, tw, **case.attrs), ops.coconv2d_dgrad(tg, tw, case.hw, **case.attrs),
               ops.coconv2d_wgrad(tx, tg, case.f, **case.attrs))
        for name, a, b in zip(("y", "dx", "dw"), got, oracle(case, x, w, g)):
            stored_b = as_stored(b.astype(np.float32), "float32" if name == "dw" else dtype)
            assert_equal_at(a.astype("float32").numpy(), stored_b, name=f"{mode}: {name}")
    for pass_name in planner.PASSES:
        plan = planner.plan(pass_name, case.desc, mode)
        assert plan.chosen in coconv.CANDIDATES and plan.chosen.name in str(plan)
        assert plan.chosen.reads in (MODES[mode], "float32")
    assert not {"copy_box", "concat_planes"} & {name.rstrip("0123456789_") for name in launches}


@pytest.mark.usefixtures("levels_first")
def test_what_no_kernel_over_levels_serves_is_composed() -> None:
    odd = next(case for case in CASES if case.name == "odd_split")
    many = CoCase("nine_levels", 2, (3, 3), 8, 72, (1, 2) * 4 + (1,), (8,) * 9)
    x, w, g = ints(*many.x_shape), ints(*many.w_shape, seed=1), ints(*many.desc.y_shape, seed=2)
    for case, pass_name, reason in ((odd, "fprop", "are no multiples of 4"), (odd, "dgrad", "are no multiples of 4"),
                                    (many, "dgrad", "9 levels, a sum has at most 8")):
        assert planner.plan(pass_name, case.desc, "fp32").chosen.name == "composed"
        on_fma = [c for c in of_pass(pass_name, coconv.CANDIDATES) if type(c) is levels.Levels]
        assert on_fma and all(reason in c.rejection(case.desc) for c in on_fma)
    dx = ops.coconv2d_dgrad(alpha.tensor(g, device="cuda"), alpha.tensor(w, device="cuda"), many.hw, **many.attrs)
    assert_equal_at(dx.numpy(), oracle(many, x, w, g)[1].astype(np.float32))
