"""Models on the GPU: moved, copied and pickled with all that they keep; a loss scaler that follows."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import alpha
from alpha import nn, ops, optim

pytestmark = pytest.mark.cuda


def test_a_scaler_follows_the_loss_and_the_gradients() -> None:
    p = alpha.tensor(np.ones(5, np.float32), device="cuda", requires_grad=True)
    scaler, resumed = optim.LossScaler(initial=64.0), optim.LossScaler(initial=2.0)
    scaler.scale((p * 0.5).sum()).backward()
    assert p.grad.tolist() == [32.0] * 5
    scaler.step(optim.SGD([p], lr=1.0))
    assert p.tolist() == [0.5] * 5 and (scaler.value, scaler.skipped) == (64, 0)
    assert {t.device for t in scaler.state_dict().values()} == {"cuda"}
    resumed.load_state_dict(scaler.state_dict())
    resumed.step(optim.SGD([p], lr=1.0))    # gradients that another one scaled
    assert p.tolist() == [0.0] * 5 and resumed.value == 64


def test_a_model_is_copied_pickled_and_moved_with_what_it_keeps() -> None:
    net = nn.Sequential(nn.Linear(3, 2), nn.Lambda(ops.relu)).cuda()
    net.mean = alpha.tensor(np.ones(2, np.float32))
    assert net.cuda().mean.device == "cuda" and net.state_dict()["mean"].device == "cuda"
    other, again = copy.deepcopy(net), pickle.loads(pickle.dumps(net))
    net[0].weight.copy_(np.zeros((2, 3)))
    for model in (other, again):
        assert {t.device for t in model.state_dict().values()} == {"cuda"} and model[0].weight.numpy().all()
    assert {t.device for t in net.cpu().state_dict().values()} == {"cpu"} and other.mean.tolist() == [1.0, 1.0]
