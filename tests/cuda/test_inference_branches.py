"""Branches that run side by side in a recording: the same bits as one call after the other.

The emulated driver runs of several launches that may begin the one that was recorded last, so that what is missing in
the order shows.
"""

from __future__ import annotations

import pytest

import alpha
from alpha import nn, ops
from alpha.cuda.conv import planner
from alpha.cuda.runtime import memory
from alpha.cuda.runtime.recording import Recorder
from alpha.inference import branches
from alpha.lifetimes import pack
from models.googlenet import Inception
from models.resnet import BasicBlock
from tests.test_inference import image, trained

pytestmark = [pytest.mark.cuda, pytest.mark.long]


class Inceptions(nn.Module):
    """Pools that wait and concatenations that wait have several readers, which want planes and elements of them."""

    def __init__(self):
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.a, self.b = Inception(16, 8, 8, 16, 8, 8, 8), Inception(40, 16, 8, 8, 8, 16, 8)

    def forward(self, x):
        x = self.a(ops.max_pool2d(self.stem(x), 3, stride=2, padding=1))
        return self.b(ops.max_pool2d(x, 3, stride=1, padding=1))


class Shortcuts(nn.Module):
    """Norms behind additions stay, and wait for their readers."""

    def __init__(self):
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.a, self.b = (BasicBlock(n, m, 2, nn.Sequential(nn.Conv2d(n, m, 1, stride=2), nn.BatchNorm2d(m)))
                          for n, m in ((16, 32), (32, 48)))

    def forward(self, x):
        return self.b(self.a(self.stem(x)))


class Chains(nn.Module):
    """Pointwise ops wait for their readers: two convolutions, of which the first has them written for both."""

    def __init__(self):
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.branches = nn.ModuleList([nn.Conv2d(16, 16, n, padding=n // 2) for n in (1, 3, 5)])

    def forward(self, x):
        for _ in range(2):
            x = ops.silu(self.stem(x) if x.shape[-1] == 3 else x)
            x = sum(ops.sin(branch(x)) for branch in self.branches)
        return x


class Gates(nn.Module):
    """Chains of pointwise ops, means that count the blocks that have come, group norms, products of few rows; two
    results, and one input read by all."""

    def __init__(self):
        self.wide, self.deep = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(3, 16, 5, padding=2)
        self.norms = nn.ModuleList([nn.GroupNorm(4, 16), nn.GroupNorm(4, 16)])
        self.gates = nn.ModuleList([nn.Linear(16, 16), nn.Linear(16, 16)])

    def forward(self, x):
        a, b = (ops.silu(norm(conv(x))) for norm, conv in zip(self.norms, (self.wide, self.deep)))
        both = a + ops.sin(b)
        gates = [ops.sigmoid(gate(part.mean((1, 2)))) for gate, part in zip(self.gates, (a, b))]
        scaled = [both * gate.reshape(-1, 1, 1, 16) + ops.tanh(both) for gate in gates]
        return ops.concat([*scaled, both], -1), (scaled[0] * scaled[1]).sum((1, 2))


def results_of(model, precision, x):
    """Returns a runner's results for x, behind those for another input, whose values lie in its memory then; and how
    many nodes its parts waited for at most."""
    most, wait = 0, Recorder.join

    def join(self, tokens):
        nonlocal most
        tokens = list(tokens)
        most = max(most, len(frozenset().union(*tokens)))
        wait(self, tokens)

    with pytest.MonkeyPatch.context() as patch, alpha.precision(precision):
        patch.setattr(Recorder, "join", join)
        run = alpha.inference(model, x)
        found = [run(t) for t in (-3 * x, x)][-1]
    return [y.astype("float32").numpy() for y in (found if isinstance(found, tuple) else [found])], most


@pytest.fixture
def on_tensor_cores(monkeypatch):
    """Convolutions on Hopper's tensor cores, which read planes: the first reader of a map has them made for the others,
    and no argument of theirs says which map they read."""
    rank = planner.rank
    monkeypatch.setattr(planner, "_plans", {})
    monkeypatch.setattr(planner, "weighed", lambda *args: sorted(
        rank(*args[:3]), key=lambda o: (o.reason is not None, "conv_wgmma" not in o.candidate.name, o.time_us)))


@pytest.mark.usefixtures("on_tensor_cores")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("network", [Inceptions, Shortcuts, Chains, Gates])
def test_branches_have_the_bits_of_a_chain(network, precision, monkeypatch):
    x = image(2, 9, 8, 3).to("cuda")
    model = trained(network()).to("cuda")
    found, most = results_of(model, precision, x)
    monkeypatch.setattr(branches, "MOST_BYTES", -1)
    expected, none = results_of(model, precision, x)
    assert [y.tobytes() for y in found] == [y.tobytes() for y in expected]
    assert most > 1 and none == 0


def test_memory_that_is_freed_in_a_part_serves_what_follows_it(monkeypatch):
    model = trained(nn.Sequential(*[Inception(40, 8, 8, 16, 8, 8, 8) for _ in range(4)])).to("cuda")
    x, nbytes = alpha.ones((1, 32, 32, 40), device="cuda"), []
    for most in (64 << 20, -1):
        monkeypatch.setattr(branches, "MOST_BYTES", most)
        arena = alpha.inference(model, x)._captured.found.recording._arena
        nbytes.append(pack(arena._lives)[1])    # what pieces take that lie side by side while they are there
    assert nbytes[1] < nbytes[0] < 3 * nbytes[1]


def test_launches_of_a_recording_share_no_counters():
    found = []

    def step(x):
        found.append([memory.counters(7) for _ in range(2)])
        return x + 1

    step = alpha.capture(step)
    for _ in range(3):
        step(alpha.ones((4,), device="cuda"))
    (a, b), *_, (c, d) = found
    assert a is b and a.size == 8
    assert len({a.ptr, c.ptr, d.ptr}) == 3 and c.size == d.size == 7
