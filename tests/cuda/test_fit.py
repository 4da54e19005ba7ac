"""fit on the GPU: whole steps are recorded where they can be, with the optimizer's, and have the bits of plain ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import alpha
from alpha import nn, optim
from alpha.cuda.runtime.kernel import Kernel
from alpha.training import Callback, fit

pytestmark = pytest.mark.cuda

ENTRY = "update_sgd_v_float32"


class Watch(Callback):
    """Counts the launches of the optimizer, and replaces what a callback may."""

    def __init__(self, launches: list[str], replaced_at: int) -> None:
        self.launches, self.replaced_at, self.counts = launches, replaced_at, []

    def on_step(self, run: Any, loss: alpha.Tensor) -> None:
        self.counts.append(self.launches.count(ENTRY))
        self.launches.clear()
        if run.progress.step == self.replaced_at - 1:
            run.optimizer = optim.SGD(run.model.named_parameters(), lr=0.01, momentum=0.5)


def trained(monkeypatch: pytest.MonkeyPatch, captured: bool, replaced_at: int = 0, **settings: Any) -> Any:
    """Returns what training leaves, and how often each step launched the optimizer by itself."""
    alpha.manual_seed(0)
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((24, 4, 4, 3)).astype(np.float32), rng.integers(0, 3, 24)
    model = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(),
                          nn.Linear(16, 3)).to("cuda")
    launches: list[str] = []
    launch = Kernel.__call__
    with alpha.config(capture=captured), monkeypatch.context() as patch:
        patch.setattr(Kernel, "__call__", lambda self, *args: (launches.append(self.entry), launch(self, *args)))
        watch = Watch(launches, replaced_at)
        history = fit(model, (x, y), epochs=2, batch_size=4, lr=0.05, schedule="cosine", momentum=0.9,
                      weight_decay=0.01, ema=0.5, callbacks=watch, progress=False, **settings)
    with alpha.no_grad():
        seen = model(alpha.tensor(x, device="cuda")).sum()
        bits = [t.numpy().tobytes() for t in (*model.state_dict().values(), seen)]
    return [history["train_loss"], history["lr"], bits], watch.counts


@pytest.mark.parametrize(("settings", "behind"), [({}, 0), ({"precision": "fp16", "clip": 0.5}, 0), ({"clip": 0.5}, 1)],
                         ids=str)
def test_steps_are_recorded_whole_where_they_can_be(monkeypatch: pytest.MonkeyPatch, settings: Any, behind: int
                                                    ) -> None:
    (plain, each), (found, counts) = (trained(monkeypatch, captured, **settings) for captured in (False, True))
    assert found == plain
    assert each == [1] * 12 and counts[3:] == [behind] * 9


def test_an_optimizer_that_a_callback_replaces_makes_the_steps_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    (plain, _), (found, counts) = (trained(monkeypatch, captured, replaced_at=6) for captured in (False, True))
    assert found == plain != trained(monkeypatch, True)[0]
    assert counts[3:5] == [0, 0] and counts[8:] == [0] * 4
