"""Plans per precision: who serves which, and float32's results where 16-bit planes lose a tensor."""

from __future__ import annotations

import numpy as np
import pytest

import alpha
from alpha.cuda.conv import planner
from alpha.cuda.conv.costs import time_us
from alpha.cuda.ops.pointwise import convert
from alpha.cuda.ops.pointwise.epilogue import Epilogue
from alpha.cuda.runtime.context import context
from alpha.cuda.runtime.memory import download, empty, upload
from alpha.ops.conv_desc import ConvDesc
from tests.conv_cases import square
from tests.cuda.agree import ints
from tests.cuda.lazy.operand_oracle import flagged_count

pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("device")]
DESC = square("", 9, 3, 8, 16, 3, 1, 1).desc
SHAPES = {"fprop": (DESC.x_shape, DESC.w_shape, DESC.y_shape), "dgrad": (DESC.y_shape, DESC.w_shape, DESC.x_shape),
          "wgrad": (DESC.x_shape, DESC.y_shape, DESC.w_shape)}


@pytest.mark.parametrize("pass_name", planner.PASSES)
@pytest.mark.parametrize("precision", planner.PRECISIONS)
def test_candidates_of_a_precision_read_what_it_allows(pass_name, precision):
    stores, reads = planner.PRECISIONS[precision].dtype, planner.PRECISIONS[precision].reads
    found = planner.candidates(pass_name, precision)
    assert {c.reads for c in found} == set(reads)
    assert {c.writes for c in found if c.reads != "float32"} <= {"float32" if pass_name == "wgrad" else stores}


PADDED = square("", 9, 5, 3, 16, 3, 1, 1).desc
PADDED_OUT, PADDED_BOTH = square("", 9, 5, 16, 12, 3, 1, 1).desc, square("", 9, 5, 6, 12, 3, 1, 1).desc


UNITS = pytest.mark.parametrize("unit", ["wgmma", "mma"])


def on_tensor_cores(unit: str, pass_name: str, reads: str, desc) -> list[planner.Candidate]:
    """Returns the candidates that fit and multiply by an instruction; on this device there may be none of it."""
    if unit == "wgmma" and context.arch != "sm_90a":
        pytest.skip("wgmma is there on sm_90a")
    found = [c for c in planner.candidates(pass_name)
             if c.reads == reads and f"_{unit} " in c.name and not c.rejection(desc)]
    assert found
    return found


@UNITS
@pytest.mark.parametrize(("pass_name", "reads", "desc"), [
    ("fprop", "float16x2", PADDED), ("wgrad", "float16x2", PADDED), ("wgrad", "float16x2", PADDED_OUT),
    *((p, "bfloat16", PADDED) for p in ("fprop", "dgrad", "wgrad")),
    *((p, "bfloat16", desc) for p in planner.PASSES for desc in (PADDED_OUT, PADDED_BOTH))])
def test_padded_channels_give_the_same(pass_name, reads, desc, unit):
    exact = next(c for c in planner.candidates(pass_name, "fma") if not c.rejection(desc))
    found = [c for c in on_tensor_cores(unit, pass_name, reads, desc) if c.name.endswith("padded")]
    x, w = ints(*desc.x_shape), ints(*desc.w_shape, seed=1)
    g = ints(*desc.y_shape, seed=2)
    results = []
    for candidate in (exact, found[0]):
        half = candidate.reads == "bfloat16"
        shape = {"fprop": desc.y_shape, "dgrad": desc.x_shape, "wgrad": desc.w_shape}[pass_name]
        out, launch, filters = empty(shape, candidate.writes), candidate.prepare(desc), upload(w)
        given = [convert(upload(a), "bfloat16") if half else upload(a) for a in (x, g)]
        if pass_name == "fprop":
            launch(given[0], filters, out, Epilogue.of(upload(ints(desc.oc, seed=3).astype(np.float32)), "relu"))
        else:
            launch(*((given[1], filters) if pass_name == "dgrad" else given), out)
        results.append(download(convert(out, "float32"), "float32"))
    assert np.abs(results[0] - results[1]).max() <= (0.5 if reads == "bfloat16" and pass_name != "wgrad" else 0)


def test_tensor_cores_can_be_turned_off():
    with alpha.precision("tf32"):
        assert planner.precision_of("float32") == "tf32"
    with alpha.config(tensor_cores=False):
        assert planner.precision_of("float32") == "fma"
        assert planner.precision_of("bfloat16") == "bf16"


def run(pass_name: str, a: np.ndarray, b: np.ndarray, candidate: planner.Candidate) -> np.ndarray:
    out = empty(SHAPES[pass_name][2], "float32")
    planner.launch_of(candidate, DESC, "fp32")(upload(a), upload(b), out)
    return download(out, "float32")


@pytest.mark.long
@pytest.mark.parametrize(("unit", "huge"), [("wgmma", 2.0**60), ("mma", 2.0**60), ("mma", np.inf)])
@pytest.mark.parametrize("pass_name", planner.PASSES)
def test_float32_is_read_where_planes_lose_the_range(pass_name, unit, huge):
    """One huge element leaves nothing of the others in 16 bits."""
    fast = on_tensor_cores(unit, pass_name, "float16x2", DESC)[0]
    exact = next(c for c in planner.candidates(pass_name, "fma") if not c.rejection(DESC))
    a, b = ints(*SHAPES[pass_name][0]), ints(*SHAPES[pass_name][1], seed=1)
    before = flagged_count()
    assert np.array_equal(run(pass_name, a, b, fast), run(pass_name, a, b, exact))
    assert flagged_count() == before
    a.flat[5] = huge
    assert np.array_equal(run(pass_name, a, b, fast), run(pass_name, a, b, exact), equal_nan=True)
    assert flagged_count() == before + 1


LAYERS = [((8, 8, 8, 64), (64, 3, 3, 64), 1, 1), ((4, 16, 16, 48), (96, 5, 5, 48), 2, 2),
          ((64, 4, 4, 256), (512, 1, 1, 256), 2, 0),
          ((2, 9, 7, 3), (64, 3, 3, 3), 1, 1), ((32, 2, 2, 512), (512, 3, 3, 512), 1, 1)]


@pytest.mark.parametrize("precision", planner.PRECISIONS)
@pytest.mark.parametrize("pass_name", planner.PASSES)
def test_what_is_left_out_could_not_have_won(monkeypatch, pass_name, precision):
    """`least_us` is no more than `cost` takes, so that the choice is the same without the estimates that it saves."""
    monkeypatch.setattr(context, "sm_count", 132)
    saved = 0
    for x, w, stride, padding in LAYERS:
        desc = ConvDesc.fprop(x, w, stride=(stride,) * 2, padding=(padding,) * 2, dilation=(1, 1), groups=1)
        every = planner.rank(pass_name, desc, precision)
        for option in every:
            if not option.reason:
                us = time_us(option.candidate.cost(desc))
                assert option.candidate.least_us(desc) <= us * (1 + 1e-9), option.candidate.name
        some = planner.rank(pass_name, desc, precision, every=False)
        assert some[0] == every[0] and len(some) == len(every)
        saved += sum((option.reason or "").startswith("takes at least") for option in some)
    assert saved or precision == "fma"
