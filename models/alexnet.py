"""AlexNet for 32x32 images."""

from __future__ import annotations

from alpha import Tensor, nn

from . import register_model


class AlexNet(nn.Module):
    """Five convolutions (3x3, the first with stride 2), three max pools, and three linear layers with dropout."""

    def __init__(self, num_classes: int) -> None:
        self.features = nn.Sequential(
            nn.Conv2d(3, 64, 3, stride=2, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(64, 192, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(192, 384, 3, padding=1), nn.ReLU(),
            nn.Conv2d(384, 256, 3, padding=1), nn.ReLU(),
            nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        self.classifier = nn.Sequential(
            nn.Dropout(0.5), nn.Linear(2 * 2 * 256, 4096, flattened=(2, 2, 256)), nn.ReLU(),
            nn.Dropout(0.5), nn.Linear(4096, 4096), nn.ReLU(),
            nn.Linear(4096, num_classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).flatten(1))


@register_model
def alexnet(num_classes: int) -> AlexNet:
    """AlexNet (Krizhevsky et al., "ImageNet classification with deep convolutional neural networks", 2012), its filters
    made 3x3 and its strides smaller for 32x32 images.  23,272,266 parameters with 10 classes.
    """
    return AlexNet(num_classes)
