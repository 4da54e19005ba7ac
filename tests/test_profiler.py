"""The profiler: what it writes down, for which layer, and what its tables and its trace say."""

from __future__ import annotations

import json
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import alpha
from alpha import nn, ops, optim
from alpha.core.trace import watchers
from alpha.errors import ConfigError
from alpha.profiler import report


class Block(nn.Module):
    """A convolution, and an addition that is no layer."""

    def __init__(self) -> None:
        self.conv = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: alpha.Tensor) -> alpha.Tensor:
        return self.conv(x) + x


def network() -> nn.Sequential:
    return nn.Sequential({"first": nn.Conv2d(3, 4, 3, padding=1, bias=False), "norm": nn.BatchNorm2d(4),
                          "relu": nn.ReLU(), "block": Block(), "flat": nn.Flatten(), "fc": nn.Linear(256, 3)})


def profiled_step(model: nn.Module) -> alpha.profiler:
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x, y = ops.randn((2, 8, 8, 3)), alpha.tensor([0, 2])
    with alpha.profiler() as p:
        loss = ops.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    return p


def test_calls_are_billed_to_the_layers_of_their_forward_pass() -> None:
    p = profiled_step(network())
    found = {(c.op, c.phase, c.layer) for c in p.calls}
    assert {("conv2d", "forward", "first"), ("conv2d_wgrad", "backward", "first"),
            ("batch_norm_act", "forward", "norm"), ("batch_norm_grad", "backward", "norm"),    # fused with its relu
            ("conv2d_dgrad", "backward", "block.conv"), ("add", "forward", "block"),
            ("linear", "forward", "fc"), ("linear_grad", "backward", "fc"),
            ("label_cross_entropy", "forward", ""), ("cross_entropy_grad", "backward", "")} <= found
    updates = [c for c in p.calls if c.phase == "update"]
    assert [c.op for c in updates] == ["sgd_step"] and not watchers
    gradients = [c for c in p.calls if c.phase == "backward" and c.op == "add_onto"]
    assert [c.layer for c in gradients] == ["block.conv"], "where two gradients met"


def test_times_and_memory_are_those_of_the_implementations(monkeypatch: pytest.MonkeyPatch) -> None:
    slow, kept = 0.02, []
    ops.exp(ops.ones((2,)))     # finds the implementation
    was = ops.exp.impls["cpu"]

    def slowly(x: np.ndarray) -> np.ndarray:
        time.sleep(slow)
        return was(x)
    monkeypatch.setitem(ops.exp.impls, "cpu", slowly)
    x = ops.ones((256, 1024))
    with alpha.profiler() as p:
        kept.append(ops.exp(x))
    (call,) = p.calls
    assert call.op == "exp" and call.shapes == "256x1024" and slow <= call.spent <= p.seconds
    assert call.added >= 1 << 20 and p.peak >= call.live >= call.added


def test_tables_add_up() -> None:
    p = profiled_step(network())
    for by in ("op", "layer"):
        head, names, _, *body, _, total = p.table(by).splitlines()
        column = names.split().index("calls") if by == "op" else None
        if column is not None:
            assert sum(int(line.split()[column]) for line in body) == int(total.split()[column]) == len(p.calls)
        assert f"{len(p.calls)} calls of ops in" in head
    few = p.table("op", limit=2).splitlines()
    kinds = len({c.op for c in p.calls})
    assert len(few) == 2 + 1 + 2 + 1 + 2 and few[5].startswith(f"{kinds - 2} more")
    assert str(p) == f"{p.table('op')}\n\n{p.table('layer')}"
    whole = sum(c.spent for c in p.calls)
    assert p.table("layer").splitlines()[-1].split()[3] == f"{whole * 1e3:.3f}" and whole < p.seconds


def test_the_trace_has_every_call(tmp_path: Path) -> None:
    p = profiled_step(network())
    p.save(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    shown = [e for e in events if e["ph"] == "X" and e["tid"] == report.OPS]
    assert [e["name"] for e in shown] == [c.op for c in p.calls]
    assert all(a["ts"] + a["dur"] <= b["ts"] + 0.01 for a, b in pairwise(shown)), "they do not overlap"
    assert {e["name"] for e in events if e["ph"] == "X" and e["tid"] == report.LAYERS} >= {
        "first forward", "first backward", "block.conv backward", "(outside of layers) forward"}
    assert len([e for e in events if e["ph"] == "C"]) == len(p.calls)


def test_results_are_those_without_a_profiler() -> None:
    grads = []
    for watched in (False, True):
        alpha.manual_seed(3)
        model = network()
        if watched:
            with alpha.profiler():
                ops.cross_entropy(model(ops.randn((2, 8, 8, 3))), alpha.tensor([0, 2])).backward()
        else:
            ops.cross_entropy(model(ops.randn((2, 8, 8, 3))), alpha.tensor([0, 2])).backward()
        grads.append([p.grad.numpy() for p in model.parameters()])
    assert all(np.array_equal(a, b) for a, b in zip(*grads))


def test_an_error_in_the_block_ends_the_profile() -> None:
    with pytest.raises(ZeroDivisionError), alpha.profiler() as p:
        ops.ones((2,)) + 1.0
        raise ZeroDivisionError
    assert not watchers and [c.op for c in p.calls] == ["add"]


def test_wrong_use_is_refused() -> None:
    with alpha.profiler() as p:
        pass
    assert p.table().splitlines()[0].startswith("0 calls of ops")
    with pytest.raises(ConfigError, match="this profiler has been used already"), p:
        pass
    with pytest.raises(ConfigError, match='there is no table by \'time\'\nhelp: use "op", "layer" or "kernel"'):
        p.table("time")
    with pytest.raises(ConfigError, match="limit is 0, a number of rows is needed"):
        p.table("op", 0)
