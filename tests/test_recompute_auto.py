"""What recompute="auto" decides: the same for a graph whatever ran before it, within 3 % of a step's time."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import numpy as np
import pytest

import alpha
import models
from alpha import nn, ops
from alpha.core.device import get_backend
from alpha.recompute import plan, recipe
from tests.recompute_plans import plan_of
from tests.test_recompute import image

pytestmark = pytest.mark.same_without_kernels("it tests what is above the kernels")
Told = tuple[list[tuple[str, str, str]], list[np.ndarray]]


@pytest.fixture(autouse=True)
def worth(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches are small here."""
    for device in plan.WORTH:
        monkeypatch.setitem(plan.WORTH, device, 1 << 19)


def run(name: str, batch: int = 8) -> Told:
    """Returns the plan of a step, and loss and gradients."""
    alpha.manual_seed(1)
    model = models.create(name, 10).train()
    with alpha.config(recompute="auto"):
        loss = ops.cross_entropy(model(image(1, batch, 32, 32, 3)), ops.arange(batch) % 10)
    told = plan_of(loss)
    loss.backward()
    return told, [loss.numpy(), *(p.grad.numpy() for p in model.parameters())]


def again(told: Told) -> int:
    return sum(fate == "made again" for *_, fate in told[0])


def assert_same(a: Told, b: Told) -> None:
    assert a[0] == b[0]
    assert all(np.array_equal(p, q) for p, q in zip(a[1], b[1], strict=True))


@pytest.mark.parametrize("names", [("resnet20", "vgg11"), ("vgg11", "resnet20")])
def test_the_plan_does_not_depend_on_what_ran_before(names: tuple[str, str]) -> None:
    first = {name: run(name) for name in names}
    with alpha.config(recompute="auto"):
        models.create("vgg11", 10)(image(1, 2, 32, 32, 3))    # a graph that nobody follows
    for name in (*names, *reversed(names), names[0]):
        assert_same(first[name], run(name))
    assert all(again(told) for told in first.values())


def test_nor_does_it_with_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = []
    for limit in (24, 10):
        monkeypatch.setattr(type(get_backend("cpu")), "memory_limit", lambda self, limit=limit: limit << 20)
        found = run("resnet20")
        run("lenet5")
        assert_same(found, run("resnet20"))
        kinds.append(again(found))
    assert kinds[0] < kinds[1]


def test_what_the_process_holds_counts_in_eighths_of_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = get_backend("cpu")
    for live, expected in ((5, 0.0), (7, 12.5), (18, 12.5), (19, 25.0)):
        monkeypatch.setattr(type(backend), "memory_limit", lambda self: 100)
        monkeypatch.setattr(type(backend), "memory_stats", lambda self, live=live: {"live": live})
        assert plan.Tally(backend).before == expected


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(plan, "LEAST", 1)
    for device in plan.WORTH:
        monkeypatch.setitem(plan.WORTH, device, 1)
    yield


def test_it_spends_at_most_3_percent(monkeypatch: pytest.MonkeyPatch) -> None:
    tallies: list[plan.Tally] = []
    begin = plan.Tally.__init__
    monkeypatch.setattr(plan.Tally, "__init__", lambda tally, backend: tallies.append(tally) or begin(tally, backend))
    monkeypatch.setattr(type(get_backend("cpu")), "flops_per_byte", 300.0)
    for name in ("resnet20", "googlenet"):
        tallies.clear()
        found = run(name, 4)
        whole, = [t for t in tallies if t.into is None and t.spent]
        assert 0 < whole.spent <= plan.SHARE * whole.step and again(found)
        assert any(fate == "offered" for *_, fate in found[0])


@pytest.mark.usefixtures("small")
def test_what_costs_least_per_byte_goes_first() -> None:
    """A sum of three arrays costs more than the activation behind a norm; later, once there is time, it goes too."""
    small = (image(3, 64, 64) * 0.1).requires_grad_()  # products stay finite

    def fates(products: int) -> tuple[str, str]:
        x, w = image(1, 64, 64).requires_grad_(), image(2, 64, 64).requires_grad_()
        with alpha.config(recompute="auto"):
            a = x @ w
            dear, fair = a * w, ops.sigmoid(a)
            y = (dear * dear).sum() + (fair * fair).sum()
            z = x
            for _ in range(products):
                z = z @ small
            y = y + z.sum()
        recipes = [edge[0].plan.recipe for edge in (dear._node, fair._node)]
        return tuple("offered" if r.offered else "made again" for r in recipes)

    found = [fates(k) for k in range(0, 60, 2)]
    assert found[0] == ("offered", "offered") and found[-1] == ("made again", "made again")
    assert ("offered", "made again") in found and ("made again", "offered") not in found


@pytest.mark.usefixtures("small")
def test_what_is_offered_is_held_only_for_who_saves_it() -> None:
    """And a result that nobody saves is made again for one that is, and counts."""
    backend = get_backend("cpu")
    x = image(1, 256, 256).requires_grad_()
    gc.collect()
    before = backend.memory_stats()["live"]
    with alpha.config(recompute="auto"):
        y = ops.exp(x)
        t = ops.sum((y + 1.0) * 2.0)     # neither of the two is saved
        assert backend.memory_stats()["live"] - before <= 2 * x.nbytes
        t = t + ops.sum(ops.tanh(y * 3.0))
    inner, outer = [r for _, _, r in y._node[0].plan.tally.whole().offers][:2] or (None, None)
    assert inner is not None and outer is not None
    del y
    t.backward()
    e = np.exp(x.numpy().astype(np.float64))
    np.testing.assert_allclose(x.grad.numpy(), 2 * e + (1 - np.tanh(3 * e) ** 2) * 3 * e, rtol=1e-3, atol=1e-3)


@pytest.mark.usefixtures("small")
def test_what_is_held_counts_as_kept_until_it_is_let_go_of() -> None:
    x, w = image(1, 64, 64).requires_grad_(), image(2, 64, 64)
    alpha.recompute_summary(reset=True)
    told = []
    with alpha.config(recompute="auto"):
        y = ops.exp(x)
        for _ in range(2):
            told.append((recipe.count.kept, recipe.count.planned))
            for _ in range(20):
                y = y @ w
    assert told[0] == (x.nbytes, 0) and told[1][1] == x.nbytes
    alpha.recompute_summary(reset=True)


@pytest.mark.usefixtures("small")
def test_what_is_offered_may_lose_what_it_is_made_of() -> None:
    """A change in place of what would be read keeps it; the value is the one of before."""
    x, b = image(1, 64, 64).requires_grad_(), image(2, 64, 64).requires_grad_()
    with alpha.config(recompute="auto"):
        y = ops.sigmoid(x + b)
        z = (y * y).sum()
    expected = (y * (1.0 - y) * 2.0 * y).numpy()
    with alpha.no_grad():
        b.copy_(x)
    with alpha.config(recompute="auto"):
        (x @ x).sum()       # another graph
    z.backward()
    np.testing.assert_allclose(x.grad.numpy(), expected, rtol=1e-5)
    assert not list(recipe.versions.recipes)


def test_graphs_that_meet_become_one() -> None:
    backend = get_backend("cpu")
    layers = [nn.Linear(256, 256) for _ in range(2)]
    with alpha.config(recompute="auto"):
        a, b = (layer(image(k, 256, 256)) for k, layer in enumerate(layers))
        first, second = (t._node[0].plan.tally for t in (a, b))
        each = first.step, second.step
        y = a + b
    assert first is not second and second.whole() is first and y._node[0].plan.tally is first
    assert first.step > sum(each) and backend.memory_limit() > 0
