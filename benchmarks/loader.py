"""Epochs with data that stay on the device, and with data that a DataLoader brings there batch by batch.

    python -m benchmarks.loader [--device cuda] [--models resnet18 lenet5] [--images 50000] [--batch-size 512] [--torch]

The same batches, to the bit. Printed is how long an epoch takes with each source, the sources in turn, and the share of
the rate of bare steps, whose batches are on the device, augmented, before the epoch begins. --torch adds PyTorch's
DataLoader with as many processes, whose items are cropped and mirrored by them, with the twin of the network. Results
go to benchmarks/results/<device>/loader.jsonl.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

import alpha
import models
from alpha import ops, optim
from alpha.core.device import get_backend
from alpha.data import DataLoader
from benchmarks import results
from benchmarks.environment import add_common, environment, settle, smi


class Items:
    """The images one by one, as a foreign data set has them."""

    def __init__(self, images: np.ndarray, labels: np.ndarray) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        return self.images[index], int(self.labels[index])


def epoch_of(batches: Iterable[Any], model: str, device: str) -> Callable[[], float]:
    """Returns a function that trains for an epoch and says how many seconds it took."""
    alpha.manual_seed(0)
    net = models.create(model).to(device)
    optimizer = optim.SGD(net.named_parameters(), lr=0.01, momentum=0.9)

    def update(x: alpha.Tensor, y: alpha.Tensor) -> alpha.Tensor:
        loss = ops.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    step, backend = alpha.capture(update, net, optimizer), get_backend(device)

    def run() -> float:
        backend.synchronize()
        start = time.perf_counter()
        for x, y in batches:
            step(x, y)
        backend.synchronize()
        return time.perf_counter() - start
    return run


def sources(args: argparse.Namespace) -> dict[str, Iterable[Any]]:
    """Returns the sources that epochs read, by name."""
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (args.images, 32, 32, 3), np.uint8), np.arange(args.images) % 10
    settings = dict(shuffle=True, augment="crop=4,flip", mean=0.5, std=0.25, device=args.device)
    resident = DataLoader((images, labels), args.batch_size, resident=True, **settings)
    *whole, last = itertools.islice(resident, max(0, len(resident) - 4), None)
    return {
        "bare steps": [*itertools.islice(itertools.cycle(whole or [last]), len(resident) - 1), last],
        "resident": resident,
        "arrays, no worker": DataLoader((images, labels), args.batch_size, resident=False, **settings),
        "arrays, threads": DataLoader((images, labels), args.batch_size, resident=False, workers=2, **settings),
        "items, threads": DataLoader(Items(images, labels), args.batch_size, workers=args.workers, **settings),
        "items, processes": DataLoader(Items(images, labels), args.batch_size, workers=args.workers, processes=True,
                                       **settings)}


def torch_epoch(model: str, args: argparse.Namespace) -> Callable[[], float]:
    """As `epoch_of`, with PyTorch's DataLoader and network."""
    import torch
    import torch.nn.functional as F
    from torch.utils.data import DataLoader as TorchLoader

    from benchmarks.torch_loader import CroppedItems
    from benchmarks.torch_models import TWINS
    from benchmarks.torch_precision import allow_tf32, autocast
    torch.backends.cudnn.benchmark = True
    allow_tf32(torch, args.precision)
    net = TWINS[model]().to(args.device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    loader = TorchLoader(CroppedItems(args.images), args.batch_size, shuffle=True, num_workers=args.workers,
                         pin_memory=args.device == "cuda", persistent_workers=True,
                         multiprocessing_context="forkserver")
    synchronize = torch.cuda.synchronize if args.device == "cuda" else lambda: None

    def run() -> float:
        synchronize()
        start = time.perf_counter()
        for x, y in loader:
            x = x.to(args.device, non_blocking=True).contiguous(memory_format=torch.channels_last)
            with autocast(torch, args.device, args.precision):
                outputs = net(x)
            F.cross_entropy(outputs.float(), y.to(args.device, non_blocking=True)).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        synchronize()
        return time.perf_counter() - start
    return run


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--models", nargs="+", default=["resnet18", "lenet5"])
    for name, number in (("--images", 50_000), ("--batch-size", 512), ("--workers", 4), ("--repeats", 5)):
        parser.add_argument(name, type=int, default=number)
    parser.add_argument("--torch", action="store_true", help="PyTorch's DataLoader and network beside them")
    add_common(parser)
    args = parser.parse_args(argv)
    settle(args)
    return args


def main(argv: Sequence[str] | None = None) -> None:
    args = parsed(argv)
    facts = {**environment(f"python -m benchmarks.loader {' '.join(sys.argv[1:] if argv is None else argv)}",
                           on_gpu=args.device == "cuda"), **smi("name", "driver_version")}
    data = sources(args)
    for model in args.models:
        with alpha.config(precision=args.precision):
            epochs = {name: epoch_of(batches, model, args.device) for name, batches in data.items()}
            if args.torch:
                epochs["PyTorch, processes"] = torch_epoch(model, args)
            for run in epochs.values():
                run()
            times: dict[str, list[float]] = {name: [] for name in epochs}
            for _ in range(args.repeats):
                for name, run in epochs.items():
                    times[name].append(run())
        base = statistics.median(times["bare steps"])
        print(f"{model} in {args.precision}, {args.images} images, batch {args.batch_size}, on {args.device}")
        for name, found in times.items():
            seconds = statistics.median(found)
            rate = args.images / seconds
            print(f"| {name:18} | {seconds:8.3f} s | {rate:10.0f} images/s | {100 * base / seconds:6.1f} % |",
                  flush=True)
            results.record(args.output / "loader.jsonl", facts, {
                "model": model, "precision": args.precision, "batch": args.batch_size, "images": args.images,
                "workers": args.workers, "source": name, "seconds": round(seconds, 4), "images_per_second": round(rate),
                "share_of_bare_steps": round(base / seconds, 4)})
        epochs.clear()


if __name__ == "__main__":
    main()
