"""A run of training: the step, the epoch, what is measured and recorded, and the callbacks.

`fit` makes one and runs it; that of the training program (train/trainer.py) can also be saved.
"""

from __future__ import annotations

import itertools
import math
import operator
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from alpha import ops, optim
from alpha.capture import capture
from alpha.core.device import get_backend
from alpha.core.errors import AnomalyError, ConfigError, DataError, message, shown
from alpha.core.graph import no_grad
from alpha.core.inputs.kinds import Count
from alpha.core.tensor import Tensor, tensor
from alpha.nn import Module
from alpha.nn.module import evaluating
from alpha.optim.recorded import can_record
from alpha.training.averages import EpochAverage
from alpha.training.callback import Callback, check_callbacks
from alpha.training.effects import FirstSteps, check_parameters
from alpha.training.history import AVERAGED, History, Progress, Row
from alpha.training.metrics import Metric, OverEpoch, prepared, total
from alpha.training.registries import Loss
from alpha.training.steps import Batch, Readings, ended, mean_of, pairs, progress_bar

MIB = 1 << 20


class Trainer:
    """A model, an optimizer, a loss, and how far they have come.

    Args:
        model: computes the outputs of a batch.
        optimizer: updates its parameters.
        loss: (outputs, targets) -> Tensor of shape (), the mean over the batch.
        metrics: by name; see alpha.training.metrics. Those of `over_epoch` are of the validation alone.
        epochs, steps_per_epoch, max_steps: how long the run is.
        clip: largest norm of the whole gradient; 0 is off.
        ema: average of the weights, which is validated beside them.
        scaler: of the loss, in fp16.
        accumulate: batches whose gradients are added up for one step: the loss is then the mean over the samples of
            all of them. A batch norm sees one batch at a time.
        sam: how far off the point is whose gradient a step takes, the worst one nearby (optim.SAM); 0 is off. Each
            step then computes two gradients of its batch; batch norms and dropout see both passes.
    Raises:
        ConfigError: sam stands beside accumulate or a scaler; or, when it runs, the optimizer has parameters of which
            neither the model nor the loss knows, or does not change the model.
    """

    def __init__(self, model: Module, optimizer: optim.Optimizer, loss: Loss, metrics: Mapping[str, Metric], *,
                 epochs: int, steps_per_epoch: int, max_steps: int | None = None, clip: float = 0.0,
                 ema: optim.ExponentialMovingAverage | None = None, scaler: optim.LossScaler | None = None,
                 accumulate: Count = 1, sam: float = 0.0) -> None:
        self.model, self.optimizer, self.loss = model, optimizer, loss
        self.metrics = {name: metric for name, metric in metrics.items() if not isinstance(metric, OverEpoch)}
        self.whole: dict[str, Any] = {name: metric for name, metric in metrics.items() if isinstance(metric, OverEpoch)}
        self.epochs, self.steps_per_epoch, self.max_steps = epochs, steps_per_epoch, max_steps
        if accumulate < 1:
            raise ConfigError(message("Trainer", f"accumulate={accumulate}, it counts the batches of a step",
                                      "pass 1, or more"))
        for name, given in ((f"accumulate={accumulate}", accumulate > 1), ("a loss scaler, of fp16", scaler)):
            if sam and given:
                raise ConfigError(message("Trainer", f"sam={sam:g} beside {name}: the second gradient of a step is of "
                                          "the same batch, unscaled", "leave one of them out"))
        self.clip, self.ema, self.scaler, self.accumulate, self.sam = clip, ema, scaler, accumulate, sam
        self._parts: tuple[Any, ...] = ()   # that `_prepare` was called for
        self._modes: list[tuple[Module, bool]] = []     # of the modules, in which the last epoch was trained
        self._first: FirstSteps | None = None   # while it is not known that the optimizer changes the model
        self.progress = Progress()
        self.stopped, self.why = False, ""
        self.forms: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())  # shapes of a sample and of its outputs

    def losses(self, x: Any, y: Any, share: Tensor | None = None) -> tuple[Tensor, ...]:
        """Returns the mean loss, shape (), and the device's part of each metric; leaves the gradients.

        share: of the samples of a step that are in this batch, shape (); None: all of them.
        """
        outputs = self.model(x)
        loss = self.loss(outputs, y)
        if not isinstance(loss, Tensor) or loss.shape:
            raise ConfigError(message("loss", f"it returned {shown(loss)}, a Tensor of shape () is needed",
                                      "compute it from the outputs by ops: ops.mean((outputs - targets) ** 2)"))
        part = loss if share is None else loss * share
        (part if self.scaler is None else self.scaler.scale(part)).backward()
        self.forms = (tuple(getattr(x, "shape", ())[1:]), tuple(getattr(outputs, "shape", ())[1:]))
        outputs = outputs.detach()
        return loss.detach(), *[prepared(metric, outputs, y) for metric in self.metrics.values()]

    def step(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        """Makes one update of the weights.

        Args:
            x, y: a batch and its targets.
        Returns:
            the mean loss, shape (); of each metric what the device computes, such as the predicted classes.
        """
        self._look()
        found = self._captured(x, y)
        self._finish(lambda: self._captured(x, y))
        return found

    def step_over(self, batches: Sequence[Batch]) -> list[tuple[Tensor, ...]]:
        """Makes one update of the weights from the gradients of several batches, each weighted by its samples.

        Returns:
            for each batch what `step` returns.
        """
        if len(batches) == 1 and self.accumulate == 1:
            return [self.step(*batches[0])]
        self._look()
        count = sum(x.shape[0] for x, _ in batches)
        params, found = [p for p in self.model.parameters() if p.requires_grad], []
        sums: dict[int, Tensor] = {}
        if isinstance(self.loss, Module):
            params += [p for p in self.loss.parameters() if p.requires_grad]
        for x, y in batches:
            share = tensor(np.float32(x.shape[0] / count), device=x.device)
            found.append(self._captured(x, y, share))
            for p in params:    # taken away, so that every batch begins without: its step is recorded once
                if p.grad is not None:
                    sums[id(p)] = sums[id(p)] + p.grad if id(p) in sums else p.grad.clone()
                p.grad = None
        for p in params:
            p.grad = sums.get(id(p))
        self._finish()
        return found

    def _look(self) -> None:
        """Prepares the step anew where a part of the run is another one."""
        scaler = self.scaler
        parts = (self.model, self.loss, self.optimizer, self.clip, scaler, scaler and scaler.growth_interval,
                 self.accumulate, self.sam)
        if not self._parts or any(map(operator.is_not, parts, self._parts)):
            self._parts = parts
            self._prepare()

    def _finish(self, again: Callable[[], Any] | None = None) -> None:
        """Makes the update behind the gradients, if it is not recorded with them, and moves the average.

        again: computes the gradients of the step's batch once more, for SAM.
        """
        if self._sam is not None and again is not None:
            self._sam.step(lambda: (again(), self._clip()))  # type: ignore[func-returns-value]
            self.optimizer.zero_grad()
        elif not self._whole:
            self._update()
        if self._first is not None and self._first.is_over():
            self._first = None
        if self.ema is not None:
            self.ema.update()

    def _prepare(self) -> None:
        """Has as much of a step recorded, on a GPU, as can be: to clip without a scaler, gradients are read back."""
        check_parameters(self.optimizer, self.model, self.loss)
        self._first = FirstSteps.of(self.optimizer, self.model)
        state: list[Any] = [part for part in (self.model, self.loss) if isinstance(part, Module)]
        self._whole = can_record(self.optimizer) and (self.scaler is not None or not self.clip)
        self._whole = self._whole and self.accumulate == 1 and not self.sam
        self._sam = optim.SAM(self.optimizer, self.sam) if self.sam else None
        if self._whole:
            state += [*[p for group in self.optimizer.param_groups for p in group["params"]], self.optimizer]
        self._captured = capture(self._with_update if self._whole else self.losses, *state)

    def _with_update(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        found = self.losses(x, y)
        self._update()
        return found

    def _update(self) -> None:
        """Makes the optimizer's step and drops the gradients."""
        if self.scaler is not None:
            self.scaler.step(self.optimizer, max_norm=self.clip)
        else:
            self._clip()
            self.optimizer.step()
        self.optimizer.zero_grad()

    def _clip(self) -> None:
        """Shortens the whole gradient to `clip`, where it is longer."""
        if self.clip:
            optim.clip_grad_norm(self.model.named_parameters(), self.clip)

    @property
    def device(self) -> str:
        """Where the parameters are."""
        return next((p.device for p in self.model.parameters()), "cpu")

    @property
    def epoch_step(self) -> int:
        """Steps made in the present epoch."""
        return self.progress.step - self.progress.epoch * self.steps_per_epoch

    @property
    def steps_left(self) -> int:
        """Steps still to make in the present epoch."""
        left = self.steps_per_epoch - self.epoch_step
        return left if self.max_steps is None else max(0, min(left, self.max_steps - self.progress.step))

    @property
    def done(self) -> bool:
        """Whether all epochs, or max_steps, have been trained and validated."""
        state = self.progress
        recorded = bool(state.history) and state.history[-1]["step"] == state.step
        return self.stopped or state.epoch >= self.epochs or (recorded and self.steps_left == 0)

    def stop(self, why: str = "") -> None:
        """Ends the run after the present step; the epoch is validated and recorded.  why: what `run.why` is then."""
        self.stopped, self.why = True, why

    def averaged(self) -> AbstractContextManager[None]:
        """For a block: the model computes with the moving average, if there is one."""
        return self.ema.applied() if self.ema else nullcontext()

    # ---- the run -----------------------------------------------------------------------------------------------------

    def run(self, batches: Callable[[int, int], Iterable[Batch]], validate: Callable[[], Row | None],
            callbacks: Sequence[Callback] = ()) -> History:
        """Trains to the end, with a validation and a row after each epoch.

        Args:
            batches: (epoch, first batch) -> the batches of that epoch from that one on.
            validate: returns what it measured of the model, by name, or None; called after each epoch, and with a
                moving average once more, while the model computes with that.
        Raises:
            AnomalyError: a loss, a weight or an average is not finite.
            DataError: the batches end before the epoch does.
            ConfigError: a callback has a method that nobody would call.
        """
        state, backend = self.progress, get_backend(self.device)
        backend.prepare()       # no part of the first epoch's time
        check_callbacks(callbacks)
        check_parameters(self.optimizer, self.model, self.loss)
        for callback in callbacks:
            callback.on_start(self)
        while not self.done:
            state = self.progress
            backend.reset_peak_memory()
            before = state.step
            self.train_epoch(batches(state.epoch, self.epoch_step * self.accumulate), callbacks)
            if state.step == before and self.steps_left and not self.stopped:
                what = f"the batches of epoch {state.epoch + 1} end after {self.epoch_step} steps"
                raise DataError(message("fit", f"{what}, steps_per_epoch is {self.steps_per_epoch}",
                                        "make it the batches of an epoch, divided by accumulate and rounded up"))
            self.check_weights()
            measured = self._validated(validate, "")
            averaged = None
            with self._average_taken(batches):
                if self.ema is not None and measured is not None:
                    with self.averaged():
                        averaged = self._validated(validate, " of the average")
            row = self.make_row(measured, backend.memory_stats()["peak"], averaged)
            state.close_epoch(row, self.epoch_step == self.steps_per_epoch)
            for callback in callbacks:
                callback.on_epoch(self, row)
        for callback in callbacks:
            callback.on_end(self)
        return History(self.progress.history, self.ema)

    def _average_taken(self, batches: Callable[[int, int], Iterable[Batch]]) -> AbstractContextManager[None]:
        """For a block behind an epoch: an average of epochs has taken it in."""
        if not isinstance(self.ema, EpochAverage):
            return nullcontext()
        epoch, whole = self.progress.epoch, self.epoch_step == self.steps_per_epoch
        return self.ema.taken(epoch, whole, pairs(batches(epoch, 0)))

    def _validated(self, validate: Callable[[], Row | None], of: str) -> Row | None:
        found = validate()
        if found is not None and not math.isfinite(found["loss"]):
            raise self.diverged(f"the validation loss{of} is {found['loss']}", self.progress.step)
        return found

    def _set_modes(self) -> None:
        """Has the model in training mode, but for the parts that were put into inference mode: those stay frozen.

        A model that is in inference mode as a whole is put into the modes that it was trained in before, or as a whole
        into training mode.
        """
        if not any(m.training for m in self.model.modules()):
            self.model.train()
            for m, training in self._modes:
                object.__setattr__(m, "training", training)
        self._modes = [(m, m.training) for m in self.model.modules()]

    def train_epoch(self, batches: Iterable[Batch], callbacks: Sequence[Callback] = ()) -> None:
        """Trains to the end of the present epoch, or until max_steps or `stop` ends it.

        Raises AnomalyError if a loss is not finite.
        """
        state = self.progress
        self._set_modes()
        if self._parts:     # else `_prepare` looks
            check_parameters(self.optimizer, self.model, self.loss)
        readings = Readings(self)
        start = time.perf_counter()
        with progress_bar(f"epoch {state.epoch + 1}/{self.epochs}", self.steps_per_epoch, self.epoch_step) as bar:
            part = pairs(ended(itertools.islice(batches, self.steps_left * self.accumulate), batches))
            while group := [*itertools.islice(part, self.accumulate)]:
                try:
                    found = self.step_over(group)
                except AnomalyError as error:  # from clip or ALPHA_CHECK_NAN, which do not know the step
                    raise self.diverged(str(error).partition("\n")[0], state.step + 1, state.step) from error
                state.step += 1
                for values, (_, y) in zip(found, group):
                    readings.add(values, y)
                bar.update()
                for callback in callbacks:
                    callback.on_step(self, mean_of(found, group))
                if self.stopped:
                    break
            readings.read()
        if self._first is not None:
            self._first.epoch_ends()
        state.seconds += time.perf_counter() - start

    def evaluate(self, batches: Iterable[Batch], loss: Loss | None = None) -> Row:
        """Returns the mean loss and metrics over batches, of the model in inference mode.

        `with run.averaged():` around it measures the moving average.
        """
        sums, count = dict.fromkeys(("loss", *self.metrics), 0.0), 0
        kept: tuple[list[Any], list[Any]] = ([], [])    # outputs and targets of all samples
        with evaluating(self.model), no_grad():
            for x, y in pairs(batches):
                outputs, n = self.model(x), y.shape[0]
                sums["loss"] += (loss or self.loss)(outputs, y).item() * n
                for name, metric in self.metrics.items():
                    sums[name] += total(metric, prepared(metric, outputs, y).numpy(), y.numpy(), n)
                count += n
                for parts, t in zip(kept if self.whole else (), (outputs, y)):
                    parts.append(t.numpy())
        over = [np.concatenate(parts) for parts in kept if parts]
        return {**{name: value / max(count, 1) for name, value in sums.items()},
                **{name: metric(*over) if over else math.nan for name, metric in self.whole.items()}}

    def check_weights(self) -> None:
        """Raises AnomalyError if a weight, a running statistic or an average of them is not finite.

        A checkpoint of them would be worthless, and the losses do not tell what the last step has made.
        """
        averages = self.ema.state_dict() if self.ema is not None else {}
        for name, t in (*self.model.named_parameters(), *self.model.named_buffers(),
                        *((f"the average of {name}", t) for name, t in averages.items())):
            if t.is_floating_point and t.size:
                ends = [float(end(t.detach()).item()) for end in (ops.max, ops.min)]    # NaN wins in both
                if not all(map(math.isfinite, ends)):
                    what = "NaN" if math.isnan(ends[0]) else "infinite"
                    raise self.diverged(f"{name} has become {what}", self.progress.step)

    def make_row(self, val: Row | None, peak_nbytes: int, averaged: Row | None = None) -> Row:
        """Returns the row of the present epoch.  val, averaged: measured of the weights, and of their average."""
        state = self.progress
        means = {"loss": state.loss_sum, **{name: state.sums.get(name, 0.0) for name in self.metrics}}
        lr = self.optimizer.param_groups[0]["lr"]
        names = (*means, *self.whole)
        return {"epoch": state.epoch + 1, "step": state.step,
                **{f"train_{name}": round(value / max(state.images, 1), 6) for name, value in means.items()},
                **{f"train_{name}": None for name in self.whole},
                **{f"val_{name}": val and round(val[name], 6) for name in names},
                **{f"{AVERAGED}val_{name}": averaged and round(averaged[name], 6) for name in names if self.ema},
                "lr": lr(max(state.step - 1, 0)) if callable(lr) else lr, "seconds": round(state.seconds, 3),
                "images_per_second": round(state.images / max(state.seconds, 1e-9), 1),
                "peak_memory_mib": round(peak_nbytes / MIB, 1), "loss_scale": self.scaler and self.scaler.value,
                "skipped_steps": self.scaler and self.scaler.skipped}

    def diverged(self, what: str, step: int, weights_of: int | None = None) -> AnomalyError:
        """Returns the error of a run whose numbers are no longer finite.

        Args:
            what: which of them.
            step: the step that found it, the last one made where it is found after the steps.
            weights_of: the step that left the weights from which it comes; default `step`.
        """
        return AnomalyError(message("fit", f"{what} at step {step}, in epoch {self.progress.epoch + 1}",
                                    f"lower lr, now {self.optimizer.lr:g}; or pass clip=1.0; alpha.detect_anomaly() "
                                    "stops at the op that makes the first NaN"))
