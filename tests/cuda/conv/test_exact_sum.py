"""Where planes do not hold an operand, kernels that read planes give float32's result: every tile and mode of them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from alpha.cuda import lazy
from alpha.cuda.conv import coconv, planner, wgmma
from alpha.cuda.conv.costs import TABLES
from alpha.cuda.conv.costs.records import changed
from alpha.cuda.conv.wgmma import boxes
from alpha.cuda.lazy import statistics
from alpha.cuda.ops.pointwise.epilogue import Epilogue
from alpha.cuda.runtime.context import context
from alpha.cuda.runtime.memory import Array, download, empty, upload
from alpha.gradcheck import assert_equal_at
from alpha.ops.conv_desc import ConvDesc
from tests.coconv_cases import CoCase
from tests.conv_cases import Case, square
from tests.cuda.agree import ints
from tests.cuda.lazy.deferred_oracle import Norm, flag_of, planes, wide
from tests.cuda.process import CHECKED

pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("device")]
READS = ("float16x2", "float16")
HUGE, LARGE = 2.0 ** 60, 2.0 ** 50  # beside which planes hold nothing of small integers; sums with either are exact
SPOILED = {"first": (HUGE, None), "second": (None, HUGE), "both": (HUGE, LARGE), "inf": (np.inf, None),
           "inf beside padding": (HUGE, -np.inf), "nan": (np.nan, HUGE)}
CASES = (square("padding", 9, 3, 16, 40, 3, 1, 1), square("strided", 5, 5, 24, 72, 3, 2, 1),
         Case("dilated groups", 3, (6, 5), 32, 48, (3, 2), (2, 1), (2, 1), (2, 1), 2),
         square("batch tail", 66, 2, 8, 136, 2, 1, 1), square("pairs", 3, 4, 64, 64, 3, 1, 1),
         square("product", 70, 1, 72, 24, 1))
CO_CASES = (CoCase("levels", 2, (9, 10), 24, 48, (1, 2, 3), (16, 16, 16)),
            CoCase("wide levels", 2, (4, 5), 72, 128, (1, 3)),
            CoCase("strided levels", 3, (9, 7), 16, 48, (1, 2, 3), (24, 8, 16), stride=(2, 2)))


def turned(pass_name: str, case: Case) -> Case:
    """Returns the case with its channels the other way round for dgrad, which sums over those of y."""
    return replace(case, ic=case.oc, oc=case.ic) if pass_name == "dgrad" else case


def shapes(pass_name: str, case: Case | CoCase) -> tuple[tuple[int, ...], ...]:
    """Returns the shapes of operands and result."""
    x, w, y = case.x_shape, case.w_shape, case.desc.y_shape
    return {"fprop": (x, w, y), "dgrad": (y, w, x), "wgrad": (x, y, w)}[pass_name]


def of_planes(pass_name: str, case: Case | CoCase) -> list[planner.Candidate]:
    """Returns all kernels that read planes of float32, or one, and write float32; where every access is checked, which
    takes long, another quarter of them for each case."""
    found = [c for c in planner.candidates(pass_name, of=type(case.desc)) if c.reads in READS and c.writes == "float32"
             and any(planner.serves(c, precision) for precision in ("fp32", "tf32"))
             and not isinstance(c, coconv.Composed)]
    found = [c for c in found if not c.rejection(case.desc)]
    return (found[len(case.name) % 4::4] or found[:1]) if CHECKED else found


@cache
def exact(pass_name: str, desc: object) -> planner.Candidate:
    """Returns an FMA kernel."""
    return next(c for c in planner.candidates(pass_name, "fma", of=type(desc)) if not c.rejection(desc)
                and not isinstance(c, coconv.Composed))


def spoiled(how: str, *operands: tuple[int, ...]) -> list[np.ndarray]:
    """Returns small integers, of which one is another number."""
    found = [ints(*shape, seed=seed).astype(np.float32) for seed, shape in enumerate(operands)]
    for a, value in zip(found, SPOILED[how]):
        if value is not None:
            a.flat[a.size // 2] = value
    return found


def run(candidate: planner.Candidate, desc: object, a: Array, b: Array, shape: tuple[int, ...],
        *more: object) -> np.ndarray:
    out = upload(np.full(shape, 7, np.float32))
    candidate.prepare(desc)(a, b, out, *more)
    return download(out, "float32")


def check(pass_name: str, case: Case | CoCase, candidates: list[planner.Candidate], *more: object) -> None:
    *operands, result = shapes(pass_name, case)
    for how in ("both", "inf beside padding") if CHECKED else SPOILED:
        a, b = (upload(x) for x in spoiled(how, *operands))
        with np.errstate(invalid="ignore"):
            wanted = run(exact(pass_name, case.desc), case.desc, a, b, result, *more)
            for candidate in candidates:
                if how == "inf" and candidate.reads == "float16":
                    continue  # which a plane holds
                assert_equal_at(run(candidate, case.desc, a, b, result, *more), wanted,
                                name=f"{case.name}, {how}: {pass_name} by {candidate.name}")


@pytest.mark.parametrize("pass_name", planner.PASSES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_tile_reads_float32_where_planes_do_not_hold_it(pass_name, case):
    case = turned(pass_name, case)
    found = of_planes(pass_name, case)
    assert {c.reads for c in found} == set(READS)
    check(pass_name, case, found)


@pytest.mark.parametrize("pass_name", planner.PASSES)
@pytest.mark.parametrize("case", CO_CASES, ids=lambda case: case.name)
def test_so_do_kernels_over_levels(pass_name, case):
    check(pass_name, case, of_planes(pass_name, case))


@pytest.mark.parametrize("pass_name", ["fprop", "dgrad"])
def test_pixels_slices_and_runs_of_a_row(monkeypatch, fresh_schedules, pass_name):
    """Which boxes of positions and long lists leave out."""
    monkeypatch.setattr(boxes, "shapes", lambda *_: ())
    monkeypatch.setattr(context, "sm_count", 4)
    monkeypatch.setitem(TABLES, "h100", changed(TABLES["h100"], "wgmma.sum_us", 0.0))
    for case in (square("slices", 3, 1, 328, 40, 1), square("row", 3, 4, 16, 8, 3, 1, 1), CASES[4]):
        case = turned(pass_name, case)
        found = [c for c in of_planes(pass_name, case) if isinstance(c, wgmma.Wgmma)]
        if case.name == "slices" and found:
            assert any(c.work_list(case.desc).slots for c in found)
        check(pass_name, case, found)


def test_bias_and_relu_follow():
    case = CASES[0]
    more = Epilogue.of(upload(ints(case.oc, seed=3).astype(np.float32)), "relu")
    check("fprop", case, of_planes("fprop", case), more)


@pytest.mark.skipif("context.arch != 'sm_90a'")
def test_a_gradient_is_added_to_what_is_there():
    case, onto = turned("dgrad", CASES[1]), ints(*CASES[1].x_shape[:3], 72, seed=5).astype(np.float32)
    g, w = (upload(x) for x in spoiled("first", case.desc.y_shape, case.w_shape))
    alone = run(exact("dgrad", case.desc), case.desc, g, w, case.x_shape)
    found = [c for c in of_planes("dgrad", case) if c.adds]
    assert found
    for candidate in found:
        dx = upload(onto)
        candidate.prepare(case.desc)(g, w, dx, adds=True)
        assert_equal_at(download(dx, "float32"), alone + onto, name=candidate.name)


@pytest.mark.skipif("context.arch != 'sm_90a'")
def test_nothing_is_counted_of_such_results():
    """Their squares may exceed float32: batch norm reads what has a count of 0."""
    seen = 0
    for case in (square("counted", 9, 3, 16, 72, 3, 1, 1), CoCase("counted", 2, (9, 10), 16, 64, (1, 2))):
        found = *spoiled("second", case.x_shape, case.w_shape), ints(*case.w_shape, seed=1).astype(np.float32)
        x, *filters = (upload(a) for a in found)
        for candidate in of_planes("fprop", case):
            for w, rows in zip(filters, (0, np.prod(case.desc.y_shape[:3]))):
                y = statistics.ask(empty(case.desc.y_shape, "float32"))
                candidate.prepare(case.desc)(x, w, y)
                parts = statistics.take(y)
                if parts is not None:
                    assert (download(parts, "float32")[:, 2].sum(0) == rows).all(), candidate.name
                    seen += 1
    assert seen


@pytest.mark.parametrize("pass_name", planner.PASSES)
@pytest.mark.parametrize("form", ["first", "second", "both"])
def test_what_stands_in_planes_is_read_there(pass_name, form):
    """An array that is written as planes has the bits of its elements: of planes, or where they do not hold it."""
    case = turned(pass_name, square("deferred", 5, 3, 16, 24, 3, 1, 1))
    *operands, result = shapes(pass_name, case)
    norms = [Norm(*shape, gamma=wide(shape[-1]) if form in (name, "both") else 1.0)
             for name, shape in zip(("first", "second"), operands)]
    merged = [norm.call() for norm in norms]
    flags = [flag_of(t) for t in merged]
    assert flags == [form in (name, "both") for name in ("first", "second")]
    plain = [upload(t.numpy()) for t in merged]
    wanted = run(exact(pass_name, case.desc), case.desc, *plain, result)
    for candidate in of_planes(pass_name, case):
        if candidate.name.endswith("padded"):
            continue
        t = [norm.call() for norm in norms]
        for x in t:
            planes(x)
        got = run(candidate, case.desc, *(x.array for x in t), result)
        assert all(x.array.derived.in_planes for x in t), "nothing is merged"
        assert np.array_equal(got, run(candidate, case.desc, *plain, result)), candidate.name
        assert np.abs(got - wanted).max() <= 1e-5 * np.abs(wanted).max(), candidate.name


@pytest.mark.usefixtures("tensor_cores_first")
@pytest.mark.parametrize("wide_map", [False, True])
def test_an_op_launches_one_kernel(wide_map, launches):
    """Nothing follows behind it, whatever the flags."""
    x = Norm(5, 4, 4, 8, gamma=wide(8) if wide_map else 1.0).call()
    w = upload(ints(16, 3, 3, 8).astype(np.float32))
    planes(x)
    lazy.operand(w, "float16x2")
    launches.clear()
    desc = ConvDesc.fprop(x.shape, w.shape, stride=(1, 1), padding=(1, 1), dilation=(1, 1), groups=1)
    y = empty(desc.y_shape, "float32")
    planner.plan("fprop", desc, "fp32").launch(x.array, w, y)
    assert len(launches) == 1 and x.array.derived.in_planes
