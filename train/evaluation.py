"""How a model does on images: the loss, the class that each image is taken for, and views that are averaged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

import alpha
from alpha import Tensor, nn, ops
from alpha.data import Augment, Dataset, Images
from alpha.nn.module import evaluating
from alpha.training.registries import Loss, cross_entropy
from train import ranks
from train.options import VIEWS


@dataclass(frozen=True)
class Evaluation:
    """How a model does on a set of images.

    Args:
        loss: the mean loss, without label smoothing.
        confusion: confusion[i, j] counts the images of class i taken for class j.  Shape (C, C), int64.
        predicted, confidence: the class of each image, and its probability.  Shape (N,), int64 and float32.
    """

    loss: float
    confusion: np.ndarray
    predicted: np.ndarray
    confidence: np.ndarray

    @property
    def accuracy(self) -> float:
        """The share of images taken for what they are."""
        return float(np.trace(self.confusion) / self.confusion.sum())


def evaluate(model: nn.Module, images: np.ndarray, labels: np.ndarray, data: Dataset, *, batch_size: int, device: str,
             loss: Loss = cross_entropy, tta: str = "none", tta_views: int = 8,
             check: Callable[[], None] = lambda: None) -> Evaluation:
    """Runs a model in inference mode over images, and gives each of its modules its own mode back.

    Args:
        images, labels: shapes (N, H, W, C), NHWC, uint8, and (N,), int64; N at least 1.
        data: the data set they are from: its normalisation and its classes.
        loss: the run's.
        batch_size: images per call of the model; the accuracy does not depend on it.
        tta, tta_views: which views of an image the outputs are averaged over: see `batch_of_views`.
        check: called before every batch; what it raises ends the evaluation.
    """
    source, order = Images(images, labels, data, device), np.arange(len(labels))
    found: list[ranks.Evaluated] = []
    with evaluating(model), alpha.no_grad():
        for first in ranks.own(range(0, len(labels), batch_size)):
            check()
            if first is not None:
                seen, y = batch_of_views(source, order[first:first + batch_size], tta, tta_views)
                logits = averaged(model, seen)
                found.append((loss(logits, y).item() * len(y), ops.argmax(logits, axis=1).numpy(),
                              ops.max(ops.softmax(logits.astype("float32"), axis=1), axis=1).numpy()))
    found = ranks.all_of(found)
    predicted = np.concatenate([p for _, p, _ in found])
    confusion = np.zeros((len(data.classes), len(data.classes)), np.int64)
    np.add.at(confusion, (source.labels, predicted), 1)
    return Evaluation(sum(value for value, _, _ in found) / len(labels), confusion, predicted,
                      np.concatenate([c for _, _, c in found]))


def batch_of_views(images: Images, index: np.ndarray, tta: str, count: int) -> tuple[list[Tensor], Tensor]:
    """Returns several views of the images of these numbers, and their labels: those of `views`, or draws.

    Args:
        tta: a name of `views`, or augmentations as --augment names them; draw k is epoch k's of seed 0.
        count: draws of augmentations.
    """
    if tta in VIEWS:
        x, y = images.batch(index)
        return views(x, tta), y
    draws = [images.batch(index, epoch=k, augment=Augment.parse(tta)) for k in range(count)]
    return [x for x, _ in draws], draws[0][1]


def views(x: Tensor, tta: str) -> list[Tensor]:
    """Returns images, and what --tta adds to them: mirrored, and moved by a pixel up and left, and down and right."""
    found, (h, w) = [x], x.shape[1:3]
    if "shift" in tta:
        wide = ops.pad(x, [(0, 0), (1, 1), (1, 1), (0, 0)], mode="reflect")
        found += [wide[:, :h, :w], wide[:, 2:, 2:]]
    return [*found, *[ops.flip(v, 2) for v in found]] if "mirror" in tta else found


def averaged(model: nn.Module, images: Sequence[Tensor]) -> Tensor:
    """Returns the mean of the outputs for several views of the same images."""
    total = model(images[0])
    for x in images[1:]:
        total = total + model(x)
    return total if len(images) == 1 else total * (1 / len(images))
