"""LeNet-5."""

from __future__ import annotations

from alpha import Tensor, nn, ops

from . import register_model


class LeNet5(nn.Module):
    """Two 5x5 convolutions, each followed by a 2x2 max pool, and three linear layers; ReLU throughout."""

    def __init__(self, num_classes: int) -> None:
        self.conv1 = nn.Conv2d(3, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(5 * 5 * 16, 120, flattened=(5, 5, 16))
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = ops.max_pool2d(self.conv1(x, activation="relu"), 2)
        x = ops.max_pool2d(self.conv2(x, activation="relu"), 2)
        x = self.fc1(x.flatten(1), activation="relu")
        return self.fc3(self.fc2(x, activation="relu"))


@register_model
def lenet5(num_classes: int) -> LeNet5:
    """LeNet-5 (LeCun et al., "Gradient-based learning applied to document recognition", 1998) with ReLU, max pooling
    and three input channels.  62,006 parameters with 10 classes.
    """
    return LeNet5(num_classes)
