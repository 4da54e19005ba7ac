"""Every kernel of a convolution gives the same bits, launch after launch: no race, no sum whose order varies."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from alpha import no_grad, ops
from alpha.core.tensor import Tensor
from alpha.cuda.conv import planner
from alpha.cuda.runtime.context import context
from alpha.cuda.runtime.memory import Array, empty
from alpha.ops.conv_desc import ConvDesc
from tests.conv_cases import square
from tests.cuda.agree import floats
from tests.cuda.conv.test_conv_wgmma import stored
from tests.cuda.process import EMULATED

pytestmark = [pytest.mark.cuda, pytest.mark.no_memcheck("a thousand launches of each kernel"), pytest.mark.long]

REPETITIONS, SHARE = (2, 23) if EMULATED else (1000, 1)  # of every kernel, or of some on the emulated driver
CASES = (square("several tiles", 40, 4, 72, 136, 3, 1, 1), square("long sums", 3, 2, 104, 104, 3, 1, 1))


def tensor(a: Array) -> Tensor:
    return Tensor(a, a.shape, a.dtype, "cuda")


def prepared(candidate, pass_name: str, desc: ConvDesc) -> tuple[Callable[[Array], None], tuple[int, ...], str]:
    """Returns a function that launches a kernel on arrays of its own, and the shape and dtype of its output."""
    dtype = getattr(candidate, "writes", "float32")
    if pass_name == "wgrad":
        dtype = "bfloat16" if candidate.reads == "bfloat16" else "float32"
    x, w, g = (stored(floats(*shape, seed=k), dtype) for k, shape in enumerate((desc.x_shape, desc.w_shape,
                                                                                desc.y_shape)))
    launch = candidate.prepare(desc)
    if pass_name == "fprop":
        return lambda y: launch(x, w, y), desc.y_shape, dtype
    if pass_name == "dgrad":
        return lambda dx: launch(g, w, dx), desc.x_shape, dtype
    return lambda dw: launch(x, g, dw), desc.w_shape, "float32"


def largest_difference(launch: Callable[[Array], None], shape: tuple[int, ...], dtype: str) -> float:
    """Returns by how much any repetition differs from the first one; all of them are compared on the device."""
    made = [empty(shape, dtype) for _ in range(2)]
    launch(made[0])
    worst = None
    for _ in range(REPETITIONS - 1):
        launch(made[1])
        found = ops.max(ops.abs(tensor(made[0]) - tensor(made[1])))
        worst = found if worst is None else ops.maximum(worst, found)
    return worst.item()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("pass_name", ["fprop", "dgrad", "wgrad"])
def test_bits_do_not_depend_on_the_launch(device, pass_name, case):
    reached = set()
    with no_grad():
        for candidate in [c for c in planner.candidates(pass_name) if not c.rejection(case.desc)][::SHARE]:
            assert largest_difference(*prepared(candidate, pass_name, case.desc)) == 0, candidate.name
            reached.add(candidate.reads)
    assert "float32" in reached and (EMULATED or context.arch in ("sm_86", "sm_89") or "float16x2" in reached)
