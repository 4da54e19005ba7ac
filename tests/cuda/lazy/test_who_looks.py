"""Looking at results that wait changes nothing: checks for NaN, and the times that ALPHA_DEBUG=2 prints."""

from __future__ import annotations

import re

import numpy as np
import pytest

import alpha
from alpha import ops
from alpha.cuda import BACKEND, lazy
from alpha.cuda.lazy.deferred import Deferred
from alpha.errors import AnomalyError
from alpha.ops.pool import max_pool2d
from tests.cuda.lazy.deferred_oracle import FORMS, Norm, cuda, like, planes
from tests.cuda.lazy.operand_oracle import normal
from tests.cuda.lazy.test_deferred_training import NETWORKS
from tests.cuda.test_training import trained

pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("device")]


@pytest.mark.parametrize("form", FORMS)
def test_a_look_leaves_the_form_alone(form):
    x, wanted = like(Norm(60, 24), form)
    state = x.array.derived
    before = state.in_planes, state.reads, state.memory.elements.ptr
    got = BACKEND.to_numpy(lazy.peek(x.array))
    assert np.abs(got - wanted).max() <= 2.0 ** -20 * np.abs(wanted).max()
    assert (state.in_planes, state.reads, state.memory.elements.ptr) == before
    assert lazy.peek(cuda(normal(3)).array).shape == (3,), "of an array that never waits it is the array"


def test_a_look_at_what_waits_for_what_waits(launches):
    """A pool of a sum of two results: neither of the three is written by it."""
    first, second = Norm(2, 4, 4, 8), Norm(2, 4, 4, 8)
    x = first.call()
    y = second.call(x)
    z = max_pool2d(y, 2)
    with alpha.no_grad():
        got = BACKEND.to_numpy(lazy.peek(z.array))
    assert all(type(t.array) is Deferred and t.array.derived.reads for t in (x, y, z))
    wanted = second.y64(first.y64()).reshape(2, 2, 2, 2, 2, 8).max((2, 4))
    assert np.abs(got - wanted).max() < 1e-5
    launches.clear()
    planes(z)
    assert {"max_pool_planes", "chain_norm_relu_norm_add_relu_planes"} <= set(launches), "written as without the look"


@pytest.mark.usefixtures("tensor_cores_first")
@pytest.mark.parametrize("mode", ["fp32", "bf16"])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_check_for_nan_runs_the_kernels_that_run_without_it(name, mode, launches):
    """In their order, with its own between them; so a step's results have the same bits."""
    found = []
    for check in (False, True):
        launches.clear()
        with alpha.precision(mode), alpha.config(check_nan=check):
            losses, weights = trained(NETWORKS[name], "cuda", 1, pixels=4)
        found.append((losses, {key: w.tobytes() for key, w in weights.items()}, list(launches)))
    (losses, weights, plain), (checked_losses, checked_weights, checked) = found
    assert losses == checked_losses and weights == checked_weights
    rest = iter(checked)
    missing = next((entry for entry in plain if entry not in rest), None)  # each is looked for behind the one before
    assert missing is None and "max_rows_float32" in checked
    assert mode == "bf16" or "apply_planes" in plain


def test_a_nan_is_told_by_the_op_that_made_it():
    norm = Norm(60, 8)
    norm.x[3, 5] = np.nan
    with alpha.config(check_nan=True), pytest.raises(AnomalyError, match="batch_norm_act: the result"):
        norm.call()


@pytest.mark.usefixtures("tensor_cores_first")
def test_the_op_that_asked_for_the_work_is_billed(capfd):
    norm, w = Norm(5, 4, 4, 8), cuda(normal(8, 3, 3, 8))
    with alpha.config(debug=2):
        y = norm.call()
        ops.conv2d(y, w, padding=1)
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("alpha: ") and " ms" in line]
    told = [re.sub(r"\d+\.\d+ ms", "T ms", line) for line in lines]
    assert [line.partition("(")[0] for line in told] == ["alpha: batch_norm_act", "alpha: batch_norm_act",
                                                        "alpha: conv2d"]
    assert told[1].endswith("cuda T ms later, for conv2d") and told[0].endswith("cuda T ms")
    assert told[2].endswith("cuda T ms") and "padding=(1, 1)" in told[2]


def test_work_for_a_reader_that_is_no_op_is_billed_too(capfd):
    with alpha.config(debug=2):
        y = Norm(60, 8).call()
        y.numpy()
    told = [line for line in capfd.readouterr().err.splitlines() if "batch_norm" in line]
    assert len(told) == 2 and told[1].endswith(" later, for a reader")
