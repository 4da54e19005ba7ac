"""Maps that tensor cores and FMA units read in turn: what is made again is read in the forms of the first time."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

import alpha
from alpha import nn, ops
from alpha.cuda.lazy.deferred import LazyStorage
from alpha.cuda.ops.pointwise import chain
from alpha.cuda.runtime import backlog, memory, toolchain
from alpha.cuda.runtime.context import context
from alpha.recompute import plan, recipe
from models.resnet import BasicBlock, ResNet
from tests.cuda.lazy.test_deferred_training import inceptions, vgg
from tests.cuda.test_training import batches

pytestmark = [pytest.mark.cuda, pytest.mark.no_memcheck("trains for long; its kernels have tests of their own"),
              pytest.mark.usefixtures("device"), pytest.mark.long]


@pytest.fixture(autouse=True)
def small_results_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "LEAST", 1)
    for device in plan.WORTH:
        monkeypatch.setitem(plan.WORTH, device, 1)


def resnet() -> nn.Module:
    """At batch 64 some convolutions of a map are faster on tensor cores, and others on FMA units."""
    return ResNet(BasicBlock, (1, 1, 1), 16, 10)


def trained(make: Callable[[], nn.Module], setting: str, size: int = 64) -> dict[str, bytes]:
    """Returns the bits of loss, gradients and running statistics of a step."""
    alpha.manual_seed(3)
    model = make().to("cuda")
    (x, y), = batches(size, 1, 8)
    with alpha.config(recompute=setting):
        loss = ops.cross_entropy(model(alpha.tensor(x, device="cuda")), alpha.tensor(y, device="cuda"))
    loss.backward()
    found = {"loss": loss.numpy().tobytes()}
    found |= {name: p.grad.numpy().tobytes() for name, p in model.named_parameters()}
    return found | {name: b.numpy().tobytes() for name, b in model.named_buffers()}


def different(a: dict[str, bytes], b: dict[str, bytes]) -> list[str]:
    assert a.keys() == b.keys()
    return [name for name in a if a[name] != b[name]]


@pytest.mark.parametrize("units", ["both", "both, chains", "fma"])
def test_bits_do_not_depend_on_what_is_made_again(units: str, monkeypatch: pytest.MonkeyPatch) -> None:
    merged = []
    merge = LazyStorage._merge
    monkeypatch.setattr(LazyStorage, "_merge", lambda self, *rest: (merged.append(self), merge(self, *rest))[1])
    if units == "both, chains":
        monkeypatch.setattr(chain, "LEAST", 1)
    with alpha.config(tensor_cores=units != "fma"):
        expected = trained(resnet, "none")
        assert merged or units == "fma" or not context.name.startswith("emulated"), "the case of which this test is"
        for setting in ("cheap", "full"):
            before = recipe.count.times
            assert different(expected, trained(resnet, setting)) == []
            assert recipe.count.times > before


@contextmanager
def cold() -> Iterator[list[int]]:
    """All launches wait until a result is read, as where nothing is compiled yet; gives how many did, each time."""
    counts: list[int] = []
    run = backlog.run
    gc.collect()
    memory.free_cached()    # blocks of which the emulated driver guards a part only

    def counted() -> None:
        counts.append(len(backlog.waiting))
        run()
        backlog.add(lambda: None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(toolchain, "is_idle", lambda: False)
        patch.setattr(backlog, "run", counted)
        patch.setattr(backlog, "open", True)
        patch.setattr(memory, "on_allocate", None)
        backlog.add(lambda: None)
        yield counts
    run()


def test_two_runs_have_the_same_bits_whatever_was_trained_between() -> None:
    expected = trained(resnet, "none")
    for setting in ("auto", "none"):
        held = [trained(vgg, "auto", 8), alpha.ones((1 << 20,), device="cuda")]
        with alpha.precision("bf16"):
            trained(inceptions, "full", 8)
        assert different(expected, trained(resnet, setting)) == []
        del held


@pytest.mark.parametrize("setting", ["none", "auto"])
def test_bits_do_not_depend_on_whether_launches_wait(setting: str) -> None:
    with cold() as counts:
        late = trained(resnet, setting)
    assert max(counts) > 100, counts
    assert different(late, trained(resnet, setting)) == []
