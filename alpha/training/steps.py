"""Work of a run around its steps: readings on their way to the host, batches, the bar of an epoch."""

from __future__ import annotations

import itertools
import math
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm import tqdm

from alpha.core.device import get_backend
from alpha.core.errors import DataError, message, shown
from alpha.core.tensor import Tensor
from alpha.training.metrics import total

if TYPE_CHECKING:
    from alpha.training.trainer import Trainer

READ_AFTER = 16  # steps until a loss is looked at: it has come by then, and neither device nor host waits for it

Batch = tuple[Tensor, Tensor]


def mean_of(found: Sequence[tuple[Tensor, ...]], group: Sequence[Batch]) -> Tensor:
    """Returns the mean loss of the samples of a step, shape ()."""
    if len(found) == 1:
        return found[0][0]
    counts = [x.shape[0] for x, _ in group]
    return sum((values[0] * (n / sum(counts)) for values, n in zip(found[1:], counts[1:])),
               found[0][0] * (counts[0] / sum(counts)))


class Readings:
    """Losses and metrics on their way from the device into the running sums of the epoch."""

    def __init__(self, run: Trainer) -> None:
        self.run = run
        self.compares = any(hasattr(metric, "measure") for metric in run.metrics.values())
        self.waiting: deque[tuple[int, int, Callable[[], list[np.ndarray]]]] = deque()

    def add(self, found: tuple[Tensor, ...], targets: Tensor) -> None:
        """Puts the results of a step in the queue, and takes those out that have been there for a while.

        Of the targets a copy, as data may come in the same tensors again before it is read.
        """
        self.waiting.append((self.run.progress.step, targets.shape[0],
                             fetch([*found, *([targets.detach().clone()] if self.compares else [])])))
        self.read(READ_AFTER)

    def read(self, leave: int = 0) -> None:
        """Empties the queue but for the last `leave` steps.  Raises AnomalyError if a loss is not finite."""
        state, metrics = self.run.progress, self.run.metrics
        while len(self.waiting) > leave:
            step, count, fetched = self.waiting.popleft()
            loss, *values = fetched()
            value = loss.item()
            if not math.isfinite(value):
                raise self.run.diverged(f"the loss is {value}", step, step - 1)
            state.loss_sum += value * count
            for (name, metric), found in zip(metrics.items(), values):
                state.sums[name] = state.sums.get(name, 0) + total(metric, found, values[-1], count)
            state.images += count


def fetch(tensors: Sequence[Tensor]) -> Callable[[], list[np.ndarray]]:
    """Begins to bring tensors to the host; the function returned gives them, waiting if need be."""
    parts = [get_backend(device).fetch([t.array for t in group])
             for device, group in itertools.groupby(tensors, key=lambda t: t.device)]
    return lambda: [a for part in parts for a in part()]


def ended(part: Iterable[Batch], whole: Iterable[Batch]) -> Iterator[Batch]:
    """Yields a part's batches, and ends the iterator of the whole: a loader's workers may wait there."""
    try:
        yield from part
    finally:
        close = getattr(whole, "close", None)
        if callable(close):
            close()


def pairs(batches: Iterable[Any]) -> Iterator[Batch]:
    """Yields batches.  Raises DataError for a batch that is no pair."""
    for batch in batches:
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            what = f"{len(batch)} parts" if isinstance(batch, (tuple, list)) else shown(batch)
            raise DataError(message("fit", f"a batch is {what}, two are needed: (inputs, targets)",
                                    "give the data targets: (images, labels), or items (image, label)"))
        yield batch  # type: ignore[misc]


def progress_bar(title: str, total: int, done: int) -> Any:
    """Returns a bar of steps that shows itself on a terminal only, and goes when it is closed."""
    return tqdm(desc=title, total=total, initial=done, leave=False, unit="step", disable=not sys.stderr.isatty())
