"""A run on several ranks: mpirun -n 4 python -m train ...; each rank computes its part of every batch.

Order and augmentation equal one process's, as they are keyed by (seed, epoch, image); so is dropout. Every rank
knows the losses and the predictions of the whole batch, and holds the same weights, optimizer state and average, so a
checkpoint has nothing of the ranks in it. Rank 0 writes and prints.
"""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

import alpha
from alpha import dist, nn, ops, random
from alpha.core.graph import grad
from alpha.core.tensor import Tensor, tensor
from alpha.data import Augment, Dataset, Images
from alpha.data.images import epoch_order
from alpha.dist import gpu, launch
from alpha.errors import ConfigError, DeviceError, message
from alpha.training.metrics import prepared
from train.config import Config
from train.interrupt import Interrupted, StopRequest
from train.lock import OutputLock
from train.report import writes
from train.trainer import Trainer

Evaluated = tuple[float, np.ndarray, np.ndarray]    # of a batch: loss times images, classes, their probabilities

FIX = "start all ranks with the same command, on the same files"


def _has_gpu() -> bool:
    try:
        return gpu.device_count() > 0
    except DeviceError:
        return False


@contextmanager
def joined(config: Config) -> Iterator[None]:
    """For a run: joins the ranks that a launcher has started, and ends them together, whatever happens."""
    if launch.find().size == 1:
        yield
        return
    device = config.device
    if device == "auto":
        device = "cuda" if _has_gpu() else "cpu"
    if ":" in device:
        raise ConfigError(message("device", f"--device {device} on {launch.find().size} ranks, each of which takes the "
                                  "GPU of its number", "write --device cuda"))
    comm = dist.init(device)
    if comm.rank:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  for the time of the process
    try:
        comm.agree("train", {**config.to_dict(), "alpha": alpha.__version__}, FIX)
        yield
    except BaseException as error:
        together = isinstance(error, Interrupted) or getattr(error, "everywhere", False) or comm.failed(
            f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
        if together and comm.rank:
            sys.stderr = open(os.devnull, "w")  # noqa: SIM115  rank 0 says the same
        if isinstance(error, Interrupted) or getattr(error, "everywhere", False):
            comm.finish()
        raise
    comm.finish()


def trainer_of(config: Config, data: Dataset, train_images: int) -> Trainer:
    """Returns the trainer of a run: of one process, or of this rank.  Raises ConfigError."""
    comm = dist.world()
    if comm.size == 1 and not config.exact_over:
        for name in ("sync_batch_norm", "gradient_dtype"):
            if getattr(config, name) != Config.__dataclass_fields__[name].default:
                raise ConfigError(message(name, f"--{_flag(name, config)} has no effect on 1 rank", "start several: "
                                          "mpirun -n 2 python -m train ..., or leave it out"))
        return Trainer(config, len(data.classes), train_images, data)
    comm.agree("train", {"data": digest(data)}, FIX)
    return RankedTrainer(config, len(data.classes), train_images, data)


def _flag(name: str, config: Config) -> str:
    flag = name.replace("_", "-")
    return f"no-{flag}" if getattr(config, name) is False else f"{flag} {getattr(config, name)}"


def digest(data: Dataset) -> str:
    """Returns what tells data sets apart: their sizes, and a checksum of all images and labels."""
    total = 0
    for a in (data.train_images, data.train_labels, data.test_images, data.test_labels):
        total = zlib.crc32(np.ascontiguousarray(a).data, total)
    return f"{data.name}, {len(data.train_labels)} + {len(data.test_labels)} images, checksum {total:08x}"


class RankedTrainer(Trainer):
    """A trainer whose batches are shared by the ranks, or cut into slices of the same bits on any number of them."""

    def __init__(self, config: Config, num_classes: int, train_images: int, data: Dataset | None = None) -> None:
        super().__init__(config, num_classes, train_images, data)
        self.comm = dist.world()
        last = 0 if config.drop_last else train_images % config.batch_size
        rows, parts = last or config.batch_size, config.exact_over or self.comm.size
        if config.accumulate > 1:
            raise _everywhere("train", f"--accumulate {config.accumulate} on {self.comm.size} ranks: gradients of "
                              "ranks are summed in every batch", "leave it out, or train on one rank")
        for flag, value, why in (("sam", config.sam, "a step has one gradient there"),
                                 ("swa", config.swa, "statistics of its batch norms are made on one")):
            if value:
                raise _everywhere("train", f"--{flag} {value:g} on {self.comm.size} ranks: {why}",
                                  "leave it out, or train on one rank")
        if (mixing := Augment.parse(config.augment).mixing):
            raise _everywhere("train", f"--augment {mixing[0].name} on {self.comm.size} ranks: an image is mixed with "
                              "the image before it, which another rank may have", "leave it out, or train on one rank")
        if rows < parts:
            raise _everywhere("train", f"the {'last ' if last else ''}batch of an epoch has {rows} images, for {parts} "
                              f"{'slices' if config.exact_over else 'ranks'}",
                              "add --drop-last, or choose a larger --batch-size or fewer ranks")
        if config.sync_batch_norm or config.exact_over:
            self.model = dist.convert_sync_batchnorm(self.model)
        wire = None if config.gradient_dtype == "float32" else config.gradient_dtype
        self.slices = dist.Slices(config.exact_over) if config.exact_over else None
        if self.slices:
            self._check_exact(wire)
        self.parallel = None if self.slices else dist.DataParallel(self.model, wire=wire)
        if config.exact_over:   # a run that is not exact cannot become it
            self.identity["exact_over"] = config.exact_over

    def _check_exact(self, wire: str | None) -> None:
        if wire:
            raise _everywhere("train", f"--gradient-dtype {wire} beside --exact-over {self.config.exact_over}, whose "
                              "sums keep all bits", "leave out one of them")
        if not self.config.sync_batch_norm:
            raise _everywhere("train", f"--no-sync-batch-norm beside --exact-over {self.config.exact_over}: running "
                              "statistics would depend on the ranks", "leave out one of them")

    def batches(self, images: Images, augment: Augment, epoch: int, step: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields this rank's images of each batch, and the labels of the whole batch."""
        config = self.config
        for index in epoch_order(len(images.labels), config.batch_size, config.seed, epoch, step, True,
                                 config.drop_last, bounds=images.bounds if config.balance else None):
            first, last = self.comm.part(len(index))
            x, _ = images.batch(index[first:last], seed=config.seed, epoch=epoch, augment=augment)
            yield x, tensor(images.labels[index], device=images.device)

    def _prepare(self) -> None:
        super()._prepare()
        self._whole = False
        self._captured: Any = self.losses   # what ranks tell each other is not recorded

    def step(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        """Makes one update of the weights.  x: this rank's images; y: the labels of the whole batch."""
        comm = self.comm
        comm.beacon.doing = f"in step {self.progress.step + 1}"
        first = not self._parts
        with comm.long("in its first step") if first else nullcontext():
            found = super().step(x, y)
        comm.beacon.starting = False
        return found

    def losses(self, x: Tensor, y: Tensor, share: Tensor | None = None) -> tuple[Tensor, ...]:
        """Returns the mean loss and the predictions of the whole batch; leaves its gradients.  share: None."""
        rows = y.shape[0]
        first, last = self.comm.part(rows)
        if self.slices is not None:
            return self._exact(self.slices, x, y, first)
        assert self.parallel is not None
        self.parallel.weigh(last - first, rows)
        with random.part(first, last, rows):
            loss, *values = super().losses(x, y[first:last])
        of_batch = (last - first) / rows
        return self.comm.all_reduce(loss * of_batch), *[self._whole_of(v, first, rows, of_batch) for v in values]

    def _whole_of(self, value: Tensor, first: int, rows: int, share: float) -> Tensor:
        """Returns a metric of the whole batch: of shape (), a mean, or (rows,)."""
        if not value.ndim:
            return self.comm.all_reduce(value * share)
        ends = [ops.zeros((n,), dtype=value.dtype, device=value.device)
                for n in (first, rows - first - value.shape[0])]
        return self.comm.all_reduce(ops.concat([ends[0], value, ends[1]]))

    def _exact(self, slices: dist.Slices, x: Tensor, y: Tensor, begin: int) -> tuple[Tensor, ...]:
        params, rows = [p for p in self.model.parameters() if p.requires_grad], y.shape[0]

        def part(first: int, last: int) -> tuple[list[Tensor | None], Tensor, list[Tensor]]:
            outputs = self.model(x[first - begin:last - begin].clone())
            targets = y[first:last].clone()
            loss = self.loss(outputs, targets)
            grads = grad(loss if self.scaler is None else self.scaler.scale(loss), params)
            outputs = outputs.detach()
            return grads, loss.detach(), [prepared(metric, outputs, targets) for metric in self.metrics.values()]

        found = slices.run(part, rows)
        numbers = range(self.comm.rank * slices.local, (self.comm.rank + 1) * slices.local)
        bounds = [slices.bounds(rows, k) for k in numbers]
        shares = [(last - first) / rows for first, last in bounds]
        _set_gradients(slices, params, [grads for grads, _, _ in found], shares)
        loss = slices.tree_sum([loss * share for (_, loss, _), share in zip(found, shares)])
        values = []
        for column in zip(*[metrics for _, _, metrics in found]):
            if column[0].ndim:
                values.append(self._whole_of(ops.concat(list(column)), bounds[0][0], rows, 1.0))
            else:
                values.append(slices.tree_sum([v * share for v, share in zip(column, shares)]))
        return loss, *values

    def save(self, name: str) -> None:
        """Writes the run, on rank 0, and returns on all ranks when it is written."""
        with self.comm.long("saving"):
            super().save(name)
            self.comm.barrier()


def _set_gradients(slices: dist.Slices, params: Sequence[nn.Parameter], found: Sequence[Sequence[Tensor | None]],
                   shares: Sequence[float]) -> None:
    """Gives each parameter the weighted sum of its gradients in all slices; none where no slice has one."""
    for dtype in dict.fromkeys(p.dtype for p in params):
        mine = [k for k, p in enumerate(params) if p.dtype == dtype]
        flat = []
        for grads, share in zip(found, shares):
            parts = [ops.zeros((params[k].numel(),), dtype=dtype, device=params[k].device) if g is None else
                     g.reshape(-1) * share for k, g in ((k, grads[k]) for k in mine)]
            used = tensor([float(grads[k] is not None) for k in mine], device=parts[0].device).astype(dtype)
            flat.append(ops.concat([*parts, used]))
        total = slices.tree_sum(flat)
        at, used_by = 0, total[total.shape[0] - len(mine):].tolist()
        for k, slices_used in zip(mine, used_by):   # type: ignore[arg-type]
            p = params[k]
            if slices_used:
                p.grad = total[at:at + p.numel()].clone().reshape(p.shape)
            at += p.numel()


def own(batches: Sequence[int]) -> Iterator[int | None]:
    """Yields the batches that this rank evaluates, every size-th one; None to end with as many as the other ranks."""
    comm = dist.world()
    with comm.long("evaluating"):
        for k in range(0, len(batches), comm.size):
            yield batches[k + comm.rank] if k + comm.rank < len(batches) else None


def all_of(mine: list[Evaluated]) -> list[Evaluated]:
    """Returns what all ranks have found of their batches (see `own`), in the order of the batches."""
    comm = dist.world()
    if comm.size == 1:
        return mine
    rows = comm.gather([(loss, p.tolist(), c.tolist()) for loss, p, c in mine])
    return [(loss, np.array(p, np.int64), np.array(c, np.float32))
            for group in zip_longest(*rows) for loss, p, c in (item for item in group if item is not None)]


class AgreedStop(StopRequest):
    """A StopRequest of all ranks: a signal to one of them ends all of them after the same step."""

    def asked(self) -> int:
        """Returns the signal that has come to any rank, 0 if none has.  All ranks call it."""
        comm = dist.world()
        agreed = int(comm.all_reduce(tensor([self.signum]), "max").tolist()[0])     # type: ignore[index]
        self.signum = agreed or self.signum     # a signal that has come in between waits for the next step
        return agreed

    def check(self) -> None:
        """Raises Interrupted, on all ranks, if a signal has come to any.  All ranks call it."""
        signum = self.asked()
        if signum:
            raise Interrupted(signum)


def stop_request() -> StopRequest:
    """Returns what notes signals: of all ranks where there are several."""
    return AgreedStop() if dist.world().size > 1 else StopRequest()


def lock(output: Path) -> AbstractContextManager[Any]:
    """Returns the lock of an output directory, which the rank that writes there holds."""
    return OutputLock(output) if writes() else nullcontext()


def _everywhere(where: str, what: str, fix: str) -> ConfigError:
    """Returns an error that all ranks raise for the same reason: it is told once."""
    error: Any = ConfigError(message(where, what, fix))
    error.everywhere = True
    return error  # type: ignore[no-any-return]
