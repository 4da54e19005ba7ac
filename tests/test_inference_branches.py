"""Where a program is cut, and which of its parts have branches that run side by side."""

from __future__ import annotations

import alpha
import models
from alpha import nn, ops
from alpha.inference import branches
from alpha.inference.passes import improve
from alpha.inference.trace import trace
from models.googlenet import Inception
from tests.test_inference import image, trained


def parts_of(model, x):
    """Returns the names of the ops of each part, and whether it has branches."""
    program, _ = trace(trained(model), [x])
    improve(program, kernels=False)
    found = branches.parts(program)
    assert [call for part in found for call in part.calls] == program.calls
    return [([call.op.name for call in part.calls], part.forked) for part in found]


def test_an_inception_block_is_one_part():
    conv, pool = "conv2d_bias_act", "max_pool2d"
    found = parts_of(nn.Sequential(Inception(3, 8, 8, 16, 8, 8, 8), nn.MaxPool2d(2), nn.Conv2d(40, 8, 1)),
                     image(2, 6, 6, 3))
    assert found == [([conv] * 6 + [pool, conv, "concat"], True), ([pool], False), ([conv], False)]


def test_a_chain_is_cut_at_each_call():
    found = parts_of(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(32, 4)),
                     image(2, 6, 6, 3))
    assert [len(calls) for calls, _ in found] == [1, 1, 1, 1] and not any(forked for _, forked in found)


def test_a_block_whose_shortcut_is_its_input_has_no_branches():
    class Residual(nn.Module):
        def __init__(self):
            self.a, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 3, 3, padding=1)

        def forward(self, x):
            x = ops.sin(x)
            return ops.cos(x + self.b(self.a(x)))

    assert parts_of(Residual(), image(2, 6, 6, 3)) == [
        (["sin"], False), (["conv2d_bias_act", "conv2d_bias_act", "add"], False), (["cos"], False)]


def test_large_results_have_no_branches(monkeypatch):
    model, x = Inception(3, 8, 8, 16, 8, 8, 8), image(2, 6, 6, 3)
    maps = 4 * 2 * 6 * 6 * (8 + 8 + 16 + 8 + 8 + 8 + 3 + 8 + 40)    # bytes, but for the indices of the pool
    for most, forked in ((2 * maps, True), (maps, False)):
        monkeypatch.setattr(branches, "MOST_BYTES", most)
        assert parts_of(model, x)[0][1] is forked


def test_results_that_the_caller_reads_close_no_part():
    class Heads(nn.Module):
        def __init__(self):
            self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 2)

        def forward(self, x):
            return self.a(x), self.b(x)

    assert parts_of(Heads(), alpha.randn((5, 4))) == [(["linear", "linear"], True)]


def test_a_resnet_has_branches_where_its_maps_shrink():
    found = parts_of(models.create("resnet18"), image(1, 32, 32, 3))
    assert sum(forked for _, forked in found) == 3
