"""What recomputation leaves in memory at the worst moment: full no more than cheap, and that no more than none."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import weakref
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import alpha
import models
from alpha import nn, ops
from alpha.core.device import get_backend
from alpha.cpu import native
from alpha.ops import conv
from alpha.recompute import plan, recipe
from alpha.recompute.chains import Chain
from tests.test_recompute import image

pytestmark = pytest.mark.same_without_kernels("it tests what is above the kernels")
ROOT = Path(__file__).resolve().parent.parent
MAP = 1 << 20


def peak(model: nn.Module, setting: str) -> int:
    """Returns the most bytes of the CPU's pool in a forward and a backward pass, beside parameters and batch."""
    backend = get_backend("cpu")
    for p in model.parameters():
        p.grad = None
    alpha.manual_seed(1)
    x = image(1, 16, 32, 32, 3)
    gc.collect()
    before = backend.memory_stats()["live"]
    backend.reset_peak_memory()
    with alpha.config(recompute=setting):
        ops.cross_entropy(model(x), alpha.zeros((16,), dtype="int32")).backward()
    return backend.memory_stats()["peak"] - before


@pytest.mark.skipif(native.library() is None, reason="NumPy's own temporaries make another moment the worst")
@pytest.mark.parametrize("name, share", [("lenet5", 1.0), ("resnet18", 0.82), ("vgg16", 0.95), ("googlenet", 0.7),
                                         ("vgg11", 0.95), ("resnet20", 0.8)])
def test_full_takes_least(name: str, share: float) -> None:
    """share: of cheap's peak, that full's takes at most."""
    model = models.create(name, 10).train()
    none, cheap, full = (peak(model, setting) for setting in ("none", "cheap", "full"))
    assert full <= share * cheap and cheap <= none, [round(n / MAP, 1) for n in (none, cheap, full)]


@pytest.mark.parametrize("name", ["resnet18", "vgg16", "googlenet"])
def test_no_convolution_is_made_again_twice(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no cheap result three times."""
    made: Counter[int] = Counter()
    most: dict[bool, int] = {}
    make = recipe.Recipe._make

    def counted(self: recipe.Recipe) -> Any:
        made[self.order] += 1
        most[bool(self.op.cheap)] = max(made[self.order], most.get(bool(self.op.cheap), 0))
        return make(self)

    monkeypatch.setattr(recipe.Recipe, "_make", counted)
    model = models.create(name, 10).train()
    with alpha.config(recompute="full"):
        loss = ops.cross_entropy(model(image(1, 2, 32, 32, 3)), alpha.zeros((2,), dtype="int32"))
    loss.backward()
    assert most == {False: 1, True: 2}


def test_full_takes_least_on_a_gpu() -> None:
    """At batch 512, where a map of the first layers has 64 MiB in bf16, as the driver would be asked for it."""
    shares = {"lenet5:bf16": 1.0, "vgg16:bf16": 0.94, "vgg16:fp32": 1.0, "resnet18:bf16": 0.75, "resnet18:fp32": 0.72,
              "googlenet:bf16": 0.6, "vgg11_plain:bf16": 1.0, "resnet20:fp32": 0.8}
    out = subprocess.run([sys.executable, "-m", "tests.rehearsed_peaks", "512", *shares], cwd=ROOT, capture_output=True,
                         text=True, check=True).stdout
    for case, found in json.loads(out).items():
        assert found["full"] <= shares.pop(case) * found["cheap"] and found["cheap"] <= found["none"], (case, found)
    assert not shares


# ---- who holds what --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("side, gone", [(16, True), (2, False)])
def test_an_input_goes_before_its_gradient_comes(side: int, gone: bool, bias: bool, monkeypatch: pytest.MonkeyPatch
                                                 ) -> None:
    """Where it is larger than the filters, and the graph is not kept."""
    layer, x = nn.Conv2d(4, 4, 3, padding=1, bias=bias), image(1, 2, side, side, 4).requires_grad_()
    there, dgrad = [], conv.conv2d_dgrad

    def seen(*args: Any, **attrs: Any) -> alpha.Tensor:
        there.append(data() is not None)
        return dgrad(*args, **attrs)

    monkeypatch.setattr(conv, "conv2d_dgrad", seen)
    found = []
    for retain in (True, False):
        h = x + 1.0
        y, data = layer(h).sum(), weakref.ref(h.array)
        del h
        y.backward(retain_graph=retain)
        found.append((x.grad.numpy(), layer.weight.grad.numpy()))
        x.grad = layer.weight.grad = None
    assert there == [True, not gone]
    for a, b in zip(*found):
        np.testing.assert_array_equal(a, b)


def test_parts_of_a_result_go_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool's maxima are not there beside its index, once their reader is done."""
    monkeypatch.setattr(plan, "LEAST", 1)
    x, layer = image(1, 2, 16, 16, 4).requires_grad_(), nn.Conv2d(4, 4, 3, padding=1, bias=False)
    with alpha.config(recompute="cheap"):
        pooled = ops.max_pool2d(x, 3, 1, 1)
        own = pooled._node[0].plan.recipe
        y = layer(pooled).sum()
        del pooled
    there: list[Any] = []
    done = recipe.Recipe.done
    monkeypatch.setattr(recipe.Recipe, "done", lambda self, *rest: (done(self, *rest), there.append(
        None if self.data is None else sorted(self.data)))[0])
    y.backward()
    assert own.outs == (0, 1) and there[0] == [1] and there[-1] is None


def test_cheap_results_on_the_way_are_dropped_and_made_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "LEAST", 1)
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3, padding=1),
                          nn.BatchNorm2d(4))
    made: list[tuple[str, int]] = []
    make = recipe.Recipe._make
    monkeypatch.setattr(recipe.Recipe, "_make", lambda self: (made.append((self.op.name, self.order)), make(self))[1])
    monkeypatch.setattr(Chain, "grow", lambda *_: False)
    x = image(1, 2, 8, 8, 3)
    with alpha.config(recompute="full"):
        loss = (model(x) ** 2.0).sum()
    loss.backward()
    times = {key: made.count(key) for key in made}
    assert [times[key] for key in sorted(times, key=lambda key: key[1])][:3] == [1, 2, 1], times
    assert all(n == 1 for (name, _), n in times.items() if name == "conv2d_bias_act")
    assert np.isfinite(model[0].weight.grad.numpy()).all()


# ---- segments --------------------------------------------------------------------------------------------------------


def kept_of(sizes: list[int]) -> list[bool]:
    """Returns which results of a line of costly calls are kept."""
    chain, found = Chain(), []
    for order, nbytes in enumerate(sizes):
        chain = Chain([chain], counts=True)
        found.append(chain.grow(order, nbytes, True))
        if found[-1]:
            chain.end({order: nbytes})
    return found


def test_a_result_alone_is_made_again_and_the_next_is_kept() -> None:
    assert kept_of([64, 64]) == [False, True]


def test_segments_grow_with_what_is_kept() -> None:
    found = kept_of([8] * 200)
    kept = [k for k, is_kept in enumerate(found) if is_kept]
    lengths = [b - a for a, b in pairwise(kept)]
    assert lengths == sorted(lengths) and lengths[-1] > 10
    assert sum(found) < 2.5 * 200 ** 0.5


def test_small_maps_behind_large_ones_are_one_segment() -> None:
    """What they take is below what the first ones took."""
    assert kept_of([64, 64, *[4] * 6]) == [False, True, *[False] * 6]


def test_paths_that_meet_count_together_and_what_they_share_once() -> None:
    first = Chain([Chain()], counts=True)
    assert not first.grow(1, 8, True)
    branches = [Chain([first], counts=True) for _ in range(2)]
    assert not branches[0].grow(2, 4, False) and not branches[1].grow(3, 4, False)
    joined = Chain(branches, counts=True)
    assert sum(joined.made.values()) == 8
    assert joined.grow(4, 8, False)     # half of its own bytes, and nothing is kept
