"""A recipe of the training program, followed by PyTorch: the same weights, batches and schedule, to the end.

PyTorch trains its own network with its own layers, eager, channels_last: in fp32 without TF32, in bf16 and fp16 by
autocast, the latter with its GradScaler. Only rounding differs, and in a long training that is enough for
other weights. benchmarks/accuracy.py runs it.
"""

from __future__ import annotations

import csv
import time
from pathlib import Path
from typing import Any

import numpy as np

import alpha
import models
from alpha import checkpoint
from alpha.core.tensor import Tensor
from alpha.data import Dataset, Images, load, split, steps_per_epoch
from alpha.data.augment import Augment
from alpha.data.sets import Split
from alpha.errors import ConfigError, message
from benchmarks.cuda_timing import strict_torch, view
from benchmarks.torch_models import TWINS
from benchmarks.torch_precision import allow_tf32, autocast
from train import loop
from train.config import Config
from train.trainer import make_schedule

TEN_CLASSES = ("cifar10", "digits", "synthetic")


def check(config: Config) -> None:
    """Raises ConfigError for a setting that PyTorch's side does not have."""
    for name, allowed in {"model": tuple(TWINS), "dataset": TEN_CLASSES, "optimizer": ("sgd",),
                          "ema": (0.0,), "swa": (0.0,), "sam": (0.0,),
                          "clip": (0.0,), "runs": (1,), "max_steps": (None,),
                          "resume": (None,)}.items():
        if getattr(config, name) not in allowed:
            raise ConfigError(message("accuracy", f"{name} is {getattr(config, name)!r}, PyTorch's side has "
                                      f"{', '.join(map(str, allowed))}", f"leave --{name.replace('_', '-')} out"))


def twin(config: Config, num_classes: int) -> Any:
    """Returns PyTorch's network with the initial weights of the training program's."""
    import torch  # as it is set: strict_torch() would take TF32 back
    alpha.manual_seed(config.seed)
    initial = checkpoint.to_torch_state_dict(models.create(config.model, num_classes))
    net = TWINS[config.model]()
    net.load_state_dict({k: torch.from_numpy(np.array(v)) for k, v in initial.items()}, strict=False)
    return net


class TorchRun:
    """PyTorch's side of a recipe."""

    def __init__(self, config: Config, parts: Split, data: Dataset) -> None:
        self.torch, self.config = strict_torch(), config
        allow_tf32(self.torch, config.precision)
        self.train_images = Images(parts.train_images, parts.train_labels, data, config.device)
        self.test_images = Images(data.test_images, data.test_labels, data, config.device)
        self.device = "cuda" if config.device.startswith("cuda") and self.torch.cuda.is_available() else "cpu"
        self.layout = self.torch.channels_last
        self.net = twin(config, len(data.classes)).to(self.device, memory_format=self.layout)
        self.lr = make_schedule(config, steps_per_epoch(len(parts.train_labels), config.batch_size))
        self.optimizer = self.torch.optim.SGD(self.net.parameters(), lr=1.0, momentum=config.momentum,
                                              weight_decay=config.weight_decay)
        self.scaler = self.torch.amp.GradScaler(self.device, enabled=config.precision == "fp16")
        self.step = 0

    def tensors(self, x: Tensor, y: Tensor) -> tuple[Any, Any]:
        """Returns a batch as PyTorch takes it."""
        images, labels = (self.torch.from_numpy(t.array) if t.device == "cpu" else view(t.array) for t in (x, y))
        return images.permute(0, 3, 1, 2).contiguous(memory_format=self.layout), labels

    def epoch(self, epoch: int) -> float:
        """Trains one epoch and returns its mean loss."""
        config = self.config
        losses, counts = [], []
        self.net.train()
        for x, y in self.train_images.batches(config.batch_size, seed=config.seed, epoch=epoch,
                                              augment=Augment.parse(config.augment)):
            for group in self.optimizer.param_groups:
                group["lr"] = self.lr(self.step)
            images, labels = self.tensors(x, y)
            with autocast(self.torch, self.device, config.precision):
                loss = self.torch.nn.functional.cross_entropy(self.net(images), labels,
                                                              label_smoothing=config.label_smoothing)
            self.optimizer.zero_grad()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.step += 1
            losses.append(loss.detach())
            counts.append(len(y))
        return float(np.average([loss.item() for loss in losses], weights=counts))

    def accuracy(self) -> float:
        """Returns the share of the test images taken for the right class."""
        self.net.eval()
        correct = 0
        with self.torch.no_grad(), autocast(self.torch, self.device, self.config.precision):
            for x, y in self.test_images.batches(self.config.batch_size, shuffle=False):
                images, labels = self.tensors(x, y)
                correct += int((self.net(images).argmax(1) == labels).sum())
        return correct / len(self.test_images.labels)


def alpha_run(config: Config) -> dict[str, Any]:
    """Trains with alpha, and returns accuracy, seconds in all and of each epoch's steps, and each epoch's loss."""
    begin = time.perf_counter()
    accuracy = loop.Run(config).run()
    seconds = time.perf_counter() - begin
    with (Path(config.output) / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {"accuracy": accuracy, "seconds": seconds, "epoch_seconds": [float(row["seconds"]) for row in rows],
            "train_loss": [float(row["train_loss"]) for row in rows]}


def torch_run(config: Config) -> dict[str, Any]:
    """Trains with PyTorch, and returns the same."""
    begin = time.perf_counter()
    data = load(config.dataset, config.data_dir, seed=config.seed)
    run = TorchRun(config, split(data, config.val_size, config.seed), data)
    losses, epoch_seconds = [], []
    for epoch in range(config.epochs):
        epoch_begin = time.perf_counter()
        losses.append(run.epoch(epoch))
        epoch_seconds.append(time.perf_counter() - epoch_begin)
        print(f"torch: epoch {epoch + 1}/{config.epochs}  train loss {losses[-1]:.4f}  {epoch_seconds[-1]:.1f} s",
              flush=True)
    return {"accuracy": run.accuracy(), "seconds": time.perf_counter() - begin, "epoch_seconds": epoch_seconds,
            "train_loss": losses}
