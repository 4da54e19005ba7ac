"""PyTorch's weights for a Linear behind a flattened map, in modules with a forward of their own."""

from __future__ import annotations

import warnings

import pytest
import safetensors.numpy

import alpha
from alpha import nn


class Net(nn.Module):
    def __init__(self, **settings):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.fc = nn.Linear(64, 5, **settings)

    def forward(self, x):
        return self.fc(self.conv(x).flatten(1))


class Turned(Net):
    def forward(self, x):
        return self.fc(self.conv(x).permute(0, 3, 1, 2).flatten(1))


class Features(Net):
    """Its Linear reads the mean of a map, of as many features as channels."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 16)
        self.last = nn.Linear(16, 5)

    def forward(self, x):
        return self.last(self.fc(self.conv(x).mean((1, 2))))


def loaded(net, tmp_path):
    path = tmp_path / "weights.safetensors"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        safetensors.numpy.save_file(alpha.checkpoint.to_torch_state_dict(net), path)
    return alpha.checkpoint.load_torch(path, net)


def test_a_linear_behind_a_flattened_map_is_named_once(tmp_path):
    with pytest.warns(UserWarning) as said:
        loaded(Net(), tmp_path)
    assert len(said) == 1
    assert "fc has 64 inputs, 4 channels x 4 x 4" in str(said[0].message)
    assert "Linear(64, 5, flattened=(4, 4, 4))" in str(said[0].message)


@pytest.mark.parametrize("make", [Turned, Features, lambda: Net(flattened=(4, 4, 4)),
                                  lambda: Net(flattened=(1, 1, 64))],
                         ids=["permutes", "means", "flattened", "own order"])
def test_other_linear_layers_load_without_a_word(make, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded(make(), tmp_path)
