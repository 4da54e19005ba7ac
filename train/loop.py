"""The training loop: one step, one epoch, one evaluation, one run.

The device is a string and everything else is ops and layers, so the same lines run on the CPU and on a GPU.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import alpha
from alpha import nn, ops, optim
from alpha.backend import get_backend
from alpha.checkpoint import previous
from alpha.errors import AnomalyError, CheckpointError, message
from alpha.tensor import Tensor
from train import report
from train.augment import Augment
from train.config import Config
from train.data import Dataset, Images, Split, load
from train.data import split as split_off
from train.interrupt import Interrupted, StopRequest
from train.lock import OutputLock
from train.session import BEST, LAST, Session, find_for, resolve_device

MIB = 1 << 20
ON_THE_CPU = {"tf32": " (as fp32: there are no tensor cores)",
              "fp16": " (float16 storage, float32 arithmetic: for tests, it is not faster)"}
READ_EVERY = 16  # steps between two readings of the losses: in between a device need not wait for the host


def train_step(session: Session, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Makes one update of the weights.

    Args:
        x: normalised images.  Shape (N, H, W, C), NHWC, float32.
        y: labels.  Shape (N,), int64.
    Returns:
        the mean loss, shape (); the predicted classes, shape (N,), int64.
    """
    loss, predictions = session.losses(x, y)
    if session.scaler is not None:
        session.scaler.step(session.optimizer, max_norm=session.config.clip)
    else:
        if session.config.clip:
            optim.clip_grad_norm(session.model.named_parameters(), session.config.clip)
        session.optimizer.step()
    session.optimizer.zero_grad()
    if session.ema is not None:
        session.ema.update()
    return loss, predictions


def train_one_epoch(session: Session, images: Images, stop: StopRequest) -> None:
    """Trains on `images` to the end of the present epoch, or until --max-steps or a signal ends it.

    Raises:
        AnomalyError: if a loss is not finite.
    """
    config, state = session.config, session.progress
    epoch_batches = images.batches(config.batch_size, seed=config.seed, epoch=state.epoch,
                                   start_step=session.epoch_step, augment=Augment.parse(config.augment))
    session.model.train()
    readings = _Readings(session)
    start = time.perf_counter()
    title = f"epoch {state.epoch + 1}/{config.epochs}"
    with report.progress(title, session.steps_per_epoch, session.epoch_step) as bar:
        for x, y in itertools.islice(epoch_batches, session.steps_left):
            try:
                loss, predictions = train_step(session, x, y)
            except AnomalyError as error:  # from --clip or ALPHA_CHECK_NAN, which do not know the step
                raise diverged(str(error).partition("\n")[0], state.step + 1, session, state.step) from error
            state.step += 1
            readings.add(loss, predictions, y)
            bar.update()
            if stop.signum:
                break
        readings.read()
    state.seconds += time.perf_counter() - start


class _Readings:
    """Losses and predictions on their way from the device into the running sums of the epoch."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.waiting: list[tuple[int, Tensor, Tensor, Tensor]] = []

    def add(self, loss: Tensor, predictions: Tensor, labels: Tensor) -> None:
        self.waiting.append((self.session.progress.step, loss, predictions, labels))
        if len(self.waiting) == READ_EVERY:
            self.read()

    def read(self) -> None:
        """Empties the queue.  Raises AnomalyError, naming the step, if a loss is not finite."""
        state = self.session.progress
        for step, loss, predictions, labels in self.waiting:
            value = loss.item()
            if not math.isfinite(value):
                raise diverged(f"the loss is {value}", step, self.session, step - 1)
            state.loss_sum += value * len(labels)
            state.correct += int((predictions.numpy() == labels.numpy()).sum())
            state.images += len(labels)
        self.waiting.clear()


def diverged(what: str, step: int, session: Session, weights_of: int | None = None) -> AnomalyError:
    """Returns the error of a run whose numbers are no longer finite.

    Args:
        what: which of them.
        step: the step that found it, the last one made where it is found after the steps.
        weights_of: the step that left the weights from which it comes; default `step`.
    """
    state, path = session.progress, session.output / LAST
    kept = f"{path} is the last good checkpoint" if path.exists() else "there is no checkpoint before it"
    if session.saved_step == (step if weights_of is None else weights_of):
        kept = f"the weights in {path} make it" + (
            f", {previous(path)} has those before" if previous(path).exists() else "")
    epoch = state.history[-1]["epoch"] if state.history and state.history[-1]["step"] == step else state.epoch + 1
    return AnomalyError(message("train", f"{what} at step {step}, in epoch {epoch}; {kept}",
                                f"lower --lr, now {session.config.lr:g}; or add --warmup 1 or --clip 1; with "
                                "ALPHA_CHECK_NAN=1 the run stops at the op that makes the first NaN"))


@dataclass(frozen=True)
class Evaluation:
    """How a model does on a set of images.

    Args:
        loss: mean cross entropy, without label smoothing.
        confusion: confusion[i, j] counts the images of class i taken for class j.  Shape (C, C), int64.
    """

    loss: float
    confusion: np.ndarray

    @property
    def accuracy(self) -> float:
        """The share of images taken for what they are."""
        return float(np.trace(self.confusion) / self.confusion.sum())


def evaluate(model: nn.Module, images: np.ndarray, labels: np.ndarray, data: Dataset, *, batch_size: int, device: str,
             check: Callable[[], None] = lambda: None) -> Evaluation:
    """Runs a model in inference mode over images.

    Args:
        images, labels: shapes (N, H, W, C), NHWC, uint8, and (N,), int64; N at least 1.
        data: the data set they are from: its normalisation and its classes.
        batch_size: images per call of the model; the accuracy does not depend on it.
        check: called before every batch; what it raises ends the evaluation.
    """
    confusion = np.zeros((len(data.classes), len(data.classes)), np.int64)
    loss_sum = 0.0
    model.eval()
    with alpha.no_grad():
        for x, y in Images(images, labels, data, device).batches(batch_size, shuffle=False):
            check()
            logits = model(x)
            loss_sum += ops.cross_entropy(logits, y).item() * len(y)
            np.add.at(confusion, (y.numpy(), ops.argmax(logits, axis=1).numpy()), 1)
    return Evaluation(loss_sum / len(labels), confusion)


def fit(session: Session, split: Split, data: Dataset, stop: StopRequest) -> None:
    """Trains to the end, with a validation, a line of metrics and a checkpoint after each epoch.

    Raises:
        Interrupted: if a signal came; the run has been saved.
        AnomalyError: if the numbers are no longer finite; the checkpoint before stays as it is.
    """
    state, config, backend = session.progress, session.config, get_backend(session.config.device)
    images = Images(split.train_images, split.train_labels, data, config.device)
    try:
        while not session.done:
            backend.reset_peak_memory()
            train_one_epoch(session, images, stop)
            check_weights(session)
            stop.check()
            val = validate(session, split, data, stop.check)
            if val is not None and not math.isfinite(val.loss):
                raise diverged(f"the validation loss is {val.loss}", state.step, session)
            whole = session.epoch_step == session.steps_per_epoch
            state.close_epoch(make_row(session, val, backend.memory_stats()["peak"]), whole)
            if state.best() is state.history[-1]:
                session.save(BEST)
            session.save(LAST)
            report.write_metrics(session.output, state.history)
            print(report.epoch_line(state.history[-1], config.epochs), flush=True)
    except Interrupted as interrupted:
        session.save(LAST)
        print(f"{interrupted} after step {state.step}: saved {session.output / LAST}; --resume auto continues",
              flush=True)
        raise


def check_weights(session: Session) -> None:
    """Raises AnomalyError if a weight, a running statistic or an average of them is not finite.

    Their checkpoint would be worthless, and the losses do not tell what the last step has made.
    """
    averages = session.ema.state_dict() if session.ema is not None else {}
    for name, t in (*session.model.named_parameters(), *session.model.named_buffers(),
                    *((f"the average of {name}", t) for name, t in averages.items())):
        if t.is_floating_point and t.size:
            ends = [float(end(t.detach()).item()) for end in (ops.max, ops.min)]    # NaN wins in both
            if not all(map(math.isfinite, ends)):
                what = "NaN" if math.isnan(ends[0]) else "infinite"
                raise diverged(f"{name} has become {what}", session.progress.step, session)


def validate(session: Session, split: Split, data: Dataset, check: Callable[[], None]) -> Evaluation | None:
    """Evaluates the weights (with --ema their average) on the validation images; None if none are held out."""
    if not len(split.val_labels):
        return None
    with session.averaged():
        return evaluate(session.model, split.val_images, split.val_labels, data, batch_size=session.config.batch_size,
                        device=session.config.device, check=check)


def make_row(session: Session, val: Evaluation | None, peak_nbytes: int) -> report.Row:
    """Returns the line of metrics.csv for the present epoch."""
    state = session.progress
    return {"epoch": state.epoch + 1, "step": state.step, "train_loss": round(state.loss_sum / state.images, 6),
            "train_accuracy": round(state.correct / state.images, 6), "val_loss": val and round(val.loss, 6),
            "val_accuracy": val and round(val.accuracy, 6), "lr": session.schedule(state.step - 1),
            "seconds": round(state.seconds, 3), "images_per_second": round(state.images / state.seconds, 1),
            "peak_memory_mib": round(peak_nbytes / MIB, 1), "loss_scale": session.scaler and session.scaler.value,
            "skipped_steps": session.scaler and session.scaler.skipped}


def final_test(session: Session, data: Dataset, check: Callable[[], None]) -> float:
    """Reads the test set, for the one time: writes summary.json and the pictures, returns the final test accuracy.

    The rule: final are the last weights, because the schedule ends there and they owe nothing to luck on a few
    validation images. The weights that did best on those are tested too and reported beside them.
    Raises:
        AnomalyError: if a test loss is not finite; then nothing is written.
    """
    history, best = session.progress.history, session.progress.best()
    with session.averaged():
        final = evaluate_on_test(session, data, check)
    tested = {"last": (history[-1]["epoch"], final)}
    if best is not None and session.load_best(best):
        tested["best"] = (best["epoch"], evaluate_on_test(session, data, check))
    for name, (epoch, result) in tested.items():
        if not math.isfinite(result.loss):
            raise diverged(f"the test loss of the {name} weights is {result.loss}", session.progress.step, session)
        print(f"{name} weights, epoch {epoch}: test loss {result.loss:.4f}, accuracy {100 * result.accuracy:.2f} %",
              flush=True)
    report.write_summary(session.output, {"test_accuracy": final.accuracy, "precision": session.config.precision, **{
        name: {"epoch": epoch, "loss": result.loss, "accuracy": result.accuracy}
        for name, (epoch, result) in tested.items()}})
    if report.can_plot():
        report.plot_curves(session.output, history)
        report.plot_confusion(session.output, final.confusion, data.classes)
    return final.accuracy


def evaluate_on_test(session: Session, data: Dataset, check: Callable[[], None] = lambda: None) -> Evaluation:
    """Evaluates the model as it is on the test images."""
    return evaluate(session.model, data.test_images, data.test_labels, data, batch_size=session.config.batch_size,
                    device=session.config.device, check=check)


def run(config: Config) -> float:
    """Trains one model from beginning, or --resume, to end, and returns its final test accuracy (see `final_test`).

    Raises ConfigError if another run has the output directory.
    """
    config = resolve_device(config)
    output = report.prepare(config.output)
    with OutputLock(output):
        report.remove_leftovers(output)
        return _run(config, output)


def _run(config: Config, output: Path) -> float:
    found = None if config.resume is None else find_for(config)
    data = load(config.dataset, config.data_dir, seed=config.seed)
    split = split_off(data, config.val_size, config.seed)
    session = Session(config, len(data.classes), len(split.train_labels))
    session.start(found)
    report.write_config(output, config)
    print(f"{config.model}, {session.model.num_parameters():,} parameters, on {config.device} in {config.precision}"
          f"{ON_THE_CPU.get(config.precision, '') if config.device == 'cpu' else ''}; {config.dataset}: "
          f"{len(split.train_labels)} images to train, {len(split.val_labels)} to validate, {len(data.test_labels)} to "
          "test", flush=True)
    with StopRequest() as stop, alpha.config(precision=config.precision, conv_algorithm=config.algorithm):
        fit(session, split, data, stop)
        return final_test(session, data, stop.check)


def evaluate_checkpoint(config: Config) -> float:
    """Returns the test accuracy of the checkpoint that --resume names.

    Raises:
        CheckpointError: if there is none.
        AnomalyError: if its loss is not finite.
    """
    config = resolve_device(config)
    found = find_for(config)
    if found is None:
        raise CheckpointError(message("evaluate", f"there is no checkpoint in {config.output}",
                                      "name the file, --resume PATH, or its directory, --output DIR"))
    data = load(config.dataset, config.data_dir, seed=config.seed)
    session = Session(config, len(data.classes), len(data.train_labels))
    session.load_weights(*found)
    with alpha.config(precision=config.precision, conv_algorithm=config.algorithm):
        result = evaluate_on_test(session, data)
    if not math.isfinite(result.loss):
        raise AnomalyError(message("evaluate", f"the test loss of {found[1]} is {result.loss}",
                                   "test another checkpoint, or in another --precision"))
    print(f"{found[1]}: test loss {result.loss:.4f}, {len(data.test_labels)} images of {config.dataset}", flush=True)
    return result.accuracy
