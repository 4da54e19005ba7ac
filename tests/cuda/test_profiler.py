"""The profiler on the GPU: kernels with their times, for the ops and layers that launched them."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

import alpha
from alpha import nn, ops, optim

pytestmark = pytest.mark.cuda


def network():
    return nn.Sequential({"conv": nn.Conv2d(3, 8, 3, padding=1), "relu": nn.ReLU(), "flat": nn.Flatten(),
                          "fc": nn.Linear(512, 4)}).to("cuda")


def test_kernels_are_billed_to_ops_and_layers(tmp_path):
    model = network()
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x, y = ops.randn((2, 8, 8, 3)).to("cuda"), alpha.tensor([0, 2]).to("cuda")
    with alpha.profiler() as p:
        loss = ops.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    launches = [(k.kernel, c.op, c.phase, c.layer) for c in p.calls for k in c.launches]
    assert {("forward", "conv"), ("backward", "conv"), ("forward", "fc"), ("backward", "fc"), ("forward", ""),
            ("update", "")} <= {(phase, layer) for _, _, phase, layer in launches}
    assert any(op == "sgd_step" for _, op, _, _ in launches)
    every = [k for c in p.calls for k in c.launches]
    assert all(k.seconds >= 0 and k.begin >= 0 for k in every) and p.on_device
    assert all(a.begin <= b.begin for a, b in pairwise(every)), "one stream, in order"
    assert p.table("kernel").splitlines()[-1].split()[1] == str(len(every))
    p.save(tmp_path / "trace.json")
    shown = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert [e["name"] for e in shown if e.get("tid") == 3 and e["ph"] == "X"] == [k.kernel for k in every]


@pytest.mark.long
def test_a_captured_function_is_called_op_by_op():
    calls = []
    x = ops.ones((4,)).to("cuda")

    def double(x):
        calls.append(1)
        return ops.exp(x)
    run = alpha.capture(double, x)
    for _ in range(4):
        run(x)
    recorded = len(calls)
    with alpha.profiler() as p:
        run(x)
    assert len(calls) == recorded + 1 and [c.op for c in p.calls] == ["exp"] and len(p.calls[0].launches) == 1
    run(x)
    assert len(calls) in (recorded + 1, recorded + 2)
