"""Plans without a GPU: what is said where no kernel computes a convolution."""

from __future__ import annotations

import subprocess
import sys

import pytest

from alpha.cuda.conv import planner
from alpha.cuda.conv.coconv import halo, levels
from alpha.cuda.runtime.context import context
from alpha.errors import AlphaError
from alpha.ops.conv_desc import ConvDesc
from alpha.plan import Request
from tests.conv_cases import square

pytestmark = pytest.mark.same_without_kernels("it calls no compiled kernel")


@pytest.fixture(autouse=True)
def hopper(monkeypatch):
    for name, value in dict(arch="sm_90a", name="NVIDIA H100", sm_count=132, max_shared=232_448).items():
        monkeypatch.setattr(context, name, value)


HUGE = ConvDesc.fprop((1, 65536, 65536, 8), (8, 3, 3, 8), stride=(1, 1), padding=(1, 1), dilation=(1, 1), groups=1)


@pytest.mark.parametrize("precision", planner.PRECISIONS)
@pytest.mark.parametrize("pass_name", planner.PASSES)
def test_a_map_too_large_for_every_kernel_is_refused_in_a_few_lines(pass_name, precision):
    with pytest.raises(AlphaError) as caught:
        planner.plan(pass_name, HUGE, precision)
    text = str(caught.value)
    assert text.startswith(f"conv2d {pass_name}: none of its ") and "CUDA kernels fits ConvDesc(n=1, " in text
    assert "\n  an image of x: 34359738368 >= 2^31" in text
    assert text.endswith('\nhelp: compute it on the CPU: .to("cpu")')
    assert len(text.splitlines()) < 15 and len(text) < 2500


def test_rare_reasons_are_counted(monkeypatch):
    monkeypatch.setattr(planner, "MOST_REASONS", 1)
    with pytest.raises(AlphaError, match=r"\n  and \d+ more reasons\nhelp"):
        planner.plan("wgrad", HUGE, "fp32")


def test_large_batches_of_maps_that_fit_are_computed_on_tensor_cores():
    """What counts is an image, not all of them."""
    desc = square("", 1024, 224, 64, 64, 3, 1, 1).desc
    options = planner.rank("fprop", desc, "bf16", every=False)
    assert options[0].candidate.name.startswith("conv_wgmma") and not options[0].reason


def test_every_candidate_says_nothing_or_why(monkeypatch):
    """None, or a reason: an empty text would be neither."""
    for desc in (HUGE, square("", 2, 8, 64, 64, 3, 1, 1).desc, square("", 2, 9, 3, 5, 3, 2, 1).desc):
        for pass_name in planner.PASSES:
            found = [c.rejection(desc) for c in planner.candidates(pass_name)]
            assert all(reason is None or reason for reason in found)


# 15 for inference: products of few rows, convolutions that pool, and those that read float32 in TF32, with which a call
# of ResNet-18 takes 0.61 to 0.88 of the time. 12 for narrow groups, which no other candidate had on tensor cores: a
# convolution takes 0.04 of its time. Long files are modules by element type.
# 40 modules for attention, products of many matrices, and augmentation; 36 for the rules of optimizers by element type.
MOST_CANDIDATES, MOST_MODULES = 264, 328
MOST_OVER_LEVELS = 30  # of the candidates, of contextual convolution
OTHERS, MOST_OTHERS = ("winograd", "fft"), 15  # by other algorithms than the direct one


def test_candidates_and_modules_are_few():
    """Each is compiled, tested and estimated. What a new one has to be worth: a step of a network that takes 1 % less
    (benchmarks/results/h200/pruning.jsonl)."""
    found = [c for pass_name in planner.PASSES for c in planner.candidates(pass_name)]
    over_levels = (*levels.TOGETHER, *halo.CANDIDATES)  # those by level are conv2d's
    assert len(found) <= MOST_CANDIDATES, f"{len(found)} candidates"
    others = [c for pass_name in planner.PASSES for c in planner.candidates(pass_name, None, OTHERS)]
    assert len(others) <= MOST_OTHERS, f"{len(others)} candidates by other algorithms"
    assert len(over_levels) <= MOST_OVER_LEVELS, f"{len(over_levels)} candidates over levels"
    declared = ("import alpha.cuda.runtime.walk\nfrom alpha.cuda.runtime import toolchain\n"
                "print(len(toolchain.units('sm_90a')))")
    modules = int(subprocess.run([sys.executable, "-c", declared], capture_output=True, text=True, check=True).stdout)
    assert modules <= MOST_MODULES, f"{modules} modules"


@pytest.mark.parametrize("precision", planner.PRECISIONS)
@pytest.mark.parametrize("pass_name", planner.PASSES)
def test_what_reads_other_elements_than_are_stored_makes_operands_of_them(pass_name, precision):
    """Gradients of depthwise filters in tf32 took the kernel for float16, which read float32 as such."""
    stores = planner.PRECISIONS[precision].dtype
    for one in planner.candidates(pass_name, precision):
        assert one.reads in ("float32", stores) or hasattr(one, "on_operands") or hasattr(one, "inner"), one.name


@pytest.mark.parametrize("name", ["im2col", "strassen", "fft"])
def test_a_preference_that_does_not_serve_leaves_the_choice_free(name):
    desc = square("", 512, 32, 32, 96, 3, 2 if name == "fft" else 1, 1).desc
    free = planner.weighed("fprop", desc, "fma", Request())
    found = planner.weighed("fprop", desc, "fma", Request(name))
    assert found[0] == free[0] and {o.candidate for o in free} == {o.candidate for o in found}
    assert (free[0].candidate.algorithm == "winograd") == (name != "fft")
