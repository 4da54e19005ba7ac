"""How well each class is told from the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from alpha.core.errors import DataError, message, shown
from alpha.core.inputs.arguments import bound
from alpha.core.tensor import Tensor


class ClassFigures(NamedTuple):
    """Of one class: how many samples are of it and were taken for it, and the shares that are right.

    precision: of the samples taken for it the share that belongs to it; recall: of its samples the share taken for it;
    f1: their harmonic mean. A share of nothing is 0.
    """

    name: str
    samples: int
    predicted: int
    precision: float
    recall: float
    f1: float


@bound
def per_class(predicted: Any, targets: Any, classes: Sequence[str]) -> list[ClassFigures]:
    """Returns the figures of each class, in the order of their numbers.

    Args:
        predicted, targets: numbers of classes, shape (N,), integers: the predicted and the right class of each sample.
        classes: names of all classes.
    Raises:
        DataError: the two are not of one length, or have a number that no class has.
    """
    taken, wanted = (np.asarray(a.numpy() if isinstance(a, Tensor) else a) for a in (predicted, targets))
    if taken.shape != wanted.shape or taken.ndim != 1 or {taken.dtype.kind, wanted.dtype.kind} - {*"iu"}:
        raise DataError(message("per_class", f"predicted is {shown(taken)}, targets is {shown(wanted)}: integers of "
                                "one shape (N,) are needed", "pass outputs.argmax(1) and the labels"))
    high = int(max(taken.max(initial=-1), wanted.max(initial=-1)))
    if high >= len(classes) or min(taken.min(initial=0), wanted.min(initial=0)) < 0:
        raise DataError(message("per_class", f"a number is {high if high >= len(classes) else 'below 0'}, there are "
                                f"{len(classes)} classes", "pass the names of all classes"))
    confusion = np.zeros((len(classes),) * 2, np.int64)
    np.add.at(confusion, (wanted, taken), 1)
    return figures_of(confusion, classes)


def figures_of(confusion: np.ndarray, classes: Sequence[str]) -> list[ClassFigures]:
    """Returns the figures of each class.  confusion[i, j] counts the samples of class i taken for class j."""
    found = []
    for k, name in enumerate(classes):
        right, count, taken = (int(n) for n in (confusion[k, k], confusion[k].sum(), confusion[:, k].sum()))
        precision, recall = right / max(taken, 1), right / max(count, 1)
        found.append(ClassFigures(str(name), count, taken, precision, recall,
                                  2 * precision * recall / max(precision + recall, 1e-300)))
    return found


def table_of(figures: Sequence[ClassFigures]) -> str:
    """Returns the figures as a table, a line for each class."""
    width = max(len("class"), *(len(f.name) for f in figures))
    head = f"{'class':<{width}}  {'images':>7}  precision  recall     f1"
    lines = [f"{f.name:<{width}}  {f.samples:>7}  {100 * f.precision:>7.1f} %  {100 * f.recall:>4.1f} %  {f.f1:>5.3f}"
             for f in figures]
    return "\n".join([head, *lines])
