"""alpha.inference on the GPU: one recording of what is left, equal to the forward pass; weights that change."""

from __future__ import annotations

import numpy as np
import pytest

import alpha
from alpha import ops
from alpha.core import versions
from alpha.cuda.lazy import operands
from alpha.cuda.runtime import memory
from alpha.inference.passes import NORMS
from tests.test_inference import Block, Dense, assert_close, image, plain, trained

pytestmark = pytest.mark.cuda


def assert_like_the_model(run, model, tolerance=1e-5):
    for seed in (3, 4):
        x = image(2, 6, 5, 3, seed=seed).to("cuda")
        assert_close(run(x), plain(model, x), tolerance)


@pytest.mark.parametrize("network, folded", [(Block, 2), (Dense, 1)])
def test_a_network_is_folded_and_is_one_launch(network, folded):
    model = trained(network()).to("cuda")
    run = alpha.inference(model, image(2, 6, 5, 3).to("cuda"))
    assert_like_the_model(run, model)
    assert run.report().count("folded into") == folded
    assert "all in one recording" in str(run)
    assert not any(call.op.name in NORMS for call in run.program.calls)   # those that stay have their statistics


def test_a_norm_that_stays_is_one_launch(launches):
    model = trained(Dense()).to("cuda")
    x = image(2, 6, 5, 3).to("cuda")
    with alpha.config(capture=False):
        run = alpha.inference(model, x)
        launches.clear()
        y = run(x)
        seen = list(launches)
        assert_close(y, plain(model, x))
    assert run.report().count("stays a norm") == 1
    assert seen and not any(entry.startswith("running_statistics") for entry in seen)


def test_a_repetition_changes_nothing_that_has_versions():
    model, x = trained(Block()).to("cuda"), image(2, 6, 5, 3).to("cuda")
    run = alpha.inference(model, x)
    before = versions.newest
    run(x)
    assert versions.newest == before


def test_results_are_the_callers():
    model = trained(Block()).to("cuda")
    run = alpha.inference(model, image(2, 6, 5, 3).to("cuda"))
    first = run(image(2, 6, 5, 3, seed=1).to("cuda"))
    kept = first.numpy()
    run(image(2, 6, 5, 3, seed=2).to("cuda"))
    assert (first.numpy() == kept).all()


def test_changed_weights_and_statistics_are_folded_again():
    model = trained(Block()).to("cuda")
    run = alpha.inference(model, image(2, 6, 5, 3).to("cuda"))
    model.second.weight.copy_(model.second.weight.numpy() * 2)
    assert_like_the_model(run, model)
    model.a.running_mean.copy_(np.full(8, -0.5, np.float32))
    assert_like_the_model(run, model)


@pytest.mark.parametrize("precision, tolerance", [("bf16", 0.03), ("fp16", 5e-3), ("tf32", 5e-3)])
def test_the_precision_is_that_of_the_making(precision, tolerance):
    model = trained(Block()).to("cuda")
    x = image(2, 6, 5, 3).to("cuda")
    with alpha.precision(precision):
        run = alpha.inference(model, x)
        expected = plain(model, x)
    y = run(x)
    assert y.dtype == expected.dtype and precision in str(run)
    assert_close(y.astype("float32"), expected.astype("float32"), tolerance)


@pytest.mark.long
def test_without_capture_it_is_called_op_by_op():
    model = trained(Block()).to("cuda")
    x = image(2, 6, 5, 3).to("cuda")
    with alpha.config(capture=False):
        run = alpha.inference(model, x)
        assert "op by op" in str(run)
        assert_close(run(x), plain(model, x))


def test_a_result_that_is_an_input_or_a_constant():
    class Net(Block):
        def forward(self, x):
            return x, super().forward(x), self.head.bias * 2, ops.relu(x)

    model = trained(Net()).to("cuda")
    x = image(2, 6, 5, 3).to("cuda")
    run = alpha.inference(model, x)
    for y, e in zip(run(x), plain(model, x)):
        assert_close(y, e)


def test_what_is_read_for_weights_is_made_once_and_held(monkeypatch):
    recorded = []
    for name in ("_split", "prepare_weights"):
        made = getattr(operands, name)
        monkeypatch.setattr(operands, name, lambda x, form, made=made: (
            recorded.append(memory.recorder is not None), made(x, form))[1])
    model = trained(Block()).to("cuda")
    x = image(2, 6, 5, 3).to("cuda").astype("bfloat16")
    with alpha.precision("bf16"):
        run = alpha.inference(model, x)
    assert recorded and not any(recorded)
    weights = [v.constant.array for call in run.program.calls for v in call.reads() if v.constant is not None]
    kept = [w.derived["bfloat16"].keep for w in weights if w.derived and "bfloat16" in w.derived]
    held = {id(x) for x in run._captured.found.recording._held}
    assert kept and all(id(x) in held for x in kept)
