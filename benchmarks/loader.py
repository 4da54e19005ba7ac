"""Epochs with data that stay on the device, and with data that a DataLoader brings there batch by batch.

    python -m benchmarks.loader [--device cuda] [--model resnet18] [--images 50000] [--batch-size 512]

The same batches, to the bit; what is printed is how long an epoch takes with each source, the sources in turn, and the
share of the resident one.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np

import alpha
import models
from alpha import ops, optim
from alpha.backend import get_backend
from alpha.data import DataLoader


class Items:
    """The images one by one, as a data set of somebody else has them."""

    def __init__(self, images: np.ndarray, labels: np.ndarray) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        return self.images[index], int(self.labels[index])


def epoch_of(loader: DataLoader, args: argparse.Namespace) -> Callable[[], float]:
    """Returns a function that trains for an epoch and says how many seconds it took."""
    alpha.manual_seed(0)
    model = models.create(args.model).to(args.device)
    optimizer = optim.SGD(model.named_parameters(), lr=0.01, momentum=0.9)

    def losses(x: alpha.Tensor, y: alpha.Tensor) -> alpha.Tensor:
        loss = ops.cross_entropy(model(x), y)
        loss.backward()
        return loss.detach()

    step, backend = alpha.capture(losses, model), get_backend(args.device)

    def run() -> float:
        backend.synchronize()
        start = time.perf_counter()
        for x, y in loader:
            step(x, y)
            optimizer.step()
            optimizer.zero_grad()
        backend.synchronize()
        return time.perf_counter() - start
    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("--device", "cuda"), ("--model", "resnet18"), ("--precision", "bf16")):
        parser.add_argument(name, default=default)
    for name, number in (("--images", 50_000), ("--batch-size", 512), ("--workers", 4), ("--repeats", 5)):
        parser.add_argument(name, type=int, default=number)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (args.images, 32, 32, 3), np.uint8), np.arange(args.images) % 10
    settings = dict(shuffle=True, augment="crop=4,flip", mean=0.5, std=0.25, device=args.device)
    sources = {
        "resident": DataLoader((images, labels), args.batch_size, resident=True, **settings),
        "arrays, no worker": DataLoader((images, labels), args.batch_size, resident=False, **settings),
        "arrays, threads": DataLoader((images, labels), args.batch_size, resident=False, workers=2, **settings),
        "items, threads": DataLoader(Items(images, labels), args.batch_size, workers=args.workers, **settings),
        "items, processes": DataLoader(Items(images, labels), args.batch_size, workers=args.workers, processes=True,
                                       **settings)}
    with alpha.config(precision=args.precision):
        epochs = {name: epoch_of(loader, args) for name, loader in sources.items()}
        for run in epochs.values():
            run()
        times: dict[str, list[float]] = {name: [] for name in epochs}
        for _ in range(args.repeats):
            for name, run in epochs.items():
                times[name].append(run())
    base = statistics.median(times["resident"])
    print(f"{args.model} in {args.precision}, {args.images} images, batch {args.batch_size}, on {args.device}")
    for name, found in times.items():
        seconds = statistics.median(found)
        rate = args.images / seconds
        print(f"| {name:18} | {seconds:8.3f} s | {rate:10.0f} images/s | {100 * base / seconds:6.1f} % |")


if __name__ == "__main__":
    main()
