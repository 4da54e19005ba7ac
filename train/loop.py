"""A run of the training program around alpha.training: data, signals, checkpoints, the test at the end."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import alpha
from alpha import Tensor, dist, models, nn, ops
from alpha.data import Augment, Dataset, Images
from alpha.data import split as split_off
from alpha.data.folder_set import layout_of
from alpha.data.named import is_folder, load
from alpha.data.sets import Split
from alpha.errors import AlphaError, AnomalyError, CheckpointError, ConfigError, message
from alpha.nn.module import evaluating
from alpha.training import Callback, EarlyStopping, Trainer
from alpha.training.classes import figures_of
from alpha.training.contents import KEY
from alpha.training.parts import Start, frozen_parts, read_start, start_from
from alpha.training.registries import Loss, cross_entropy
from train import ranks, report
from train.config import Config
from train.interrupt import Interrupted, StopRequest
from train.meanwhile import Meanwhile
from train.moot import VIEWS, without_effect
from train.options import options
from train.session import BEST, LAST, Session, check_identity, find_for, identity_of, resolve_device
from train.watching import watching

LOOKED_AT = 5000    # images from which initial weights are made
PATIENCE_S = 0.2    # in which most mistakes in --data-dir are found
ON_THE_CPU = {"tf32": " (as fp32: there are no tensor cores)",
              "fp16": " (float16 storage, float32 arithmetic: for tests, it is not faster)"}


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
        loss: that of the run.
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
        tta: a name of `views`, or augmentations as --augment names them; draw k is that of epoch k of seed 0.
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


def init_from_data(model: nn.Module, split: Split, data: Dataset, device: str) -> None:
    """Has a model that needs images for its initial weights (a method `init_from_data`) look at some."""
    method = getattr(type(model), "init_from_data", None)
    if callable(method):
        images = Images(split.train_images[:LOOKED_AT], split.train_labels[:LOOKED_AT], data, device)
        method(model, next(images.batches(len(images.labels), shuffle=False))[0])


class Shell(Callback):
    """What the program adds to the training: signals, checkpoints, metrics.csv, and a line per epoch."""

    def __init__(self, session: Session, stop: StopRequest) -> None:
        self.session, self.request = session, stop

    def on_step(self, run: Trainer, loss: Tensor) -> None:
        if self.request.asked():
            run.stop()

    def on_epoch(self, run: Trainer, row: report.Row) -> None:
        session = self.session
        if session.best() is session.progress.history[-1]:
            session.save(BEST)
        session.save(LAST)
        report.write_metrics(session.output, session.progress.history)
        print(report.epoch_line(row, session.config.epochs), flush=True)


def fit(session: Session, split: Split, data: Dataset, stop: StopRequest, callbacks: Sequence[Callback] = ()) -> None:
    """Trains to the end, with a validation, a line of metrics and a checkpoint after each epoch, and other callbacks.

    Raises:
        Interrupted: if a signal came; the run has been saved.
        AnomalyError: if the numbers are no longer finite; the checkpoint before stays as it is.
    """
    config, state = session.config, session.progress
    images, augment = Images(split.train_images, split.train_labels, data, config.device), Augment.parse(config.augment)

    def validated() -> report.Row | None:
        stop.check()
        found = validate(session, split, data, stop.check)
        return None if found is None else {"loss": found.loss, "accuracy": found.accuracy}

    early = [EarlyStopping(config.patience, config.metric, config.mode)] if config.patience else []
    try:
        with frozen_parts(session.model, session.frozen):
            session.run(lambda epoch, step: session.batches(images, augment, epoch, step), validated,
                        [Shell(session, stop), *early, *callbacks])
        if session.why:
            print(f"the run ends: {session.why}", flush=True)
    except Interrupted as interrupted:
        session.save(LAST)
        print(f"{interrupted} after step {state.step}: saved {session.output / LAST}; --resume auto continues",
              flush=True)
        raise


def validate(session: Session, split: Split, data: Dataset, check: Callable[[], None]) -> Evaluation | None:
    """Evaluates the model as it is on the validation images; None if none are held out."""
    if not len(split.val_labels):
        return None
    return evaluate(session.model, split.val_images, split.val_labels, data, loss=session.plain_loss,
                    batch_size=session.config.batch_size, device=session.config.device, check=check)


def final_test(session: Session, data: Dataset, check: Callable[[], None]) -> float:
    """Reads the test set, for the one time: writes summary.json and the pictures, returns the final test accuracy.

    The rule: final are the last weights, with --ema their moving average, because the schedule ends there and they owe
    nothing to luck on a few validation images. Those that did best on them are tested too and reported beside them.
    Raises:
        AnomalyError: if a test loss is not finite; then nothing is written.
    """
    history, best = session.progress.history, session.best()
    with session.averaged():
        final = evaluate_on_test(session, data, check)
    tested = {"last": (history[-1]["epoch"], final)}
    if best is not None and session.load_best(best):
        tested["best"] = (best["epoch"], evaluate_on_test(session, data, check))
    for name, (epoch, result) in tested.items():
        if not math.isfinite(result.loss):
            raise session.diverged(f"the test loss of the {name} weights is {result.loss}", session.progress.step)
        print(f"{name} {session.tested}, epoch {epoch}: test loss {result.loss:.4f}, accuracy "
              f"{100 * result.accuracy:.2f} %", flush=True)
    report.write_summary(session.output, {"test_accuracy": final.accuracy, "precision": session.config.precision,
                                          "tested": session.tested, **{
        name: {"epoch": epoch, "loss": result.loss, "accuracy": result.accuracy}
        for name, (epoch, result) in tested.items()},
        "classes": {f.name: {"images": f.samples, "precision": f.precision, "recall": f.recall, "f1": f.f1}
                    for f in figures_of(final.confusion, data.classes)}})
    if report.can_plot():
        report.plot_curves(session.output, history)
        report.plot_confusion(session.output, final.confusion, data.classes)
        report.plot_images(session.output, data, final.predicted, final.confidence)
    return final.accuracy


def evaluate_on_test(session: Session, data: Dataset, check: Callable[[], None] = lambda: None) -> Evaluation:
    """Evaluates the model as it is on the test images."""
    return evaluate(session.model, data.test_images, data.test_labels, data, loss=session.plain_loss,
                    tta=session.config.tta, tta_views=session.config.tta_views,
                    batch_size=session.config.batch_size, device=session.config.device, check=check)


def run(config: Config) -> float:
    """Trains one model from beginning, or --resume, to end, and returns its final test accuracy (see `final_test`).

    Raises ConfigError if another run has the output directory.
    """
    config = resolve_device(config)
    output = report.prepare(config.output)
    with ranks.lock(output), watching(config, output) as callbacks:
        report.remove_leftovers(output)
        return _run(config, output, callbacks)


def read(config: Config) -> Dataset:
    """Reads the data set of a run, by those of its settings that have an effect on it."""
    idle = without_effect(config)
    settings = {name: getattr(config, name) for name in ("data_dir", "image_size", "skip_bad") if name not in idle}
    return load(config.dataset, seed=config.seed, **settings)


def loaded(config: Config) -> Dataset:
    """Returns the data set of a run.

    While CIFAR's files are read, which takes seconds, a GPU takes a step on images without meaning: kernels are
    compiled, loaded and chosen. The run begins with the same bits: its session sets all random numbers anew.
    """
    reading = Meanwhile(read, config)
    classes = {"cifar10": 10, "cifar100": 100}.get(config.dataset)
    plain = config.device == "cpu" or config.imports or alpha.config.watch
    if classes and not plain and not reading.done(PATIENCE_S):
        from train import ahead
        ahead.steps(config, classes)
    return reading.result()


def check_fits(config: Config, classes: Sequence[str]) -> None:
    """Raises ConfigError for a model that does not take pictures of --image-size, before they are read."""
    size = config.image_size or 0
    try:
        model = models.create(config.model, len(classes), **options(config, "model_option"))
        with alpha.no_grad():
            model.eval()(alpha.zeros((1, size, size, 3)))
    except AlphaError as error:
        what = str(error).partition("\n")[0]
        raise ConfigError(message("image_size", f"{config.model} does not take pictures of {size}x{size}: {what}",
                                  "choose another --image-size, 32 fits every shipped model; or another --model, "
                                  "resnet20 takes any size")) from error


def normalised(data: Dataset, use: Mapping[str, Any] | None) -> Dataset:
    """Returns a data set with the mean and std of the checkpoint that is continued, where it is of such pictures."""
    inputs = use["inputs"] if use else {"mean": []}
    if len(inputs["mean"]) != len(data.mean):
        return data
    return replace(data, mean=np.array(inputs["mean"], np.float32), std=np.array(inputs["std"], np.float32))


def begin_with(session: Session, start: Start) -> None:
    """Gives a session the weights of --finetune, its average too, and says what is new."""
    fresh = start_from(session.model, start)
    if session.ema is not None:
        session.ema.load_state_dict(session.model.state_dict())
    print(f"fine-tuning {start.path}: {'all weights are of it' if not fresh else 'new are ' + ', '.join(fresh)}",
          flush=True)


def _run(config: Config, output: Path, callbacks: Sequence[Callback]) -> float:
    found = None if config.resume is None else find_for(config)
    if found is not None:
        check_identity(config, identity_of(config), found[0][1], found[1])
    if is_folder(config.dataset):
        check_fits(config, layout_of("dataset", config.dataset).classes)
    start = None if config.finetune is None or found is not None else read_start(config.finetune)
    data = normalised(loaded(config), found[0][1].get(KEY) if found else start and start.use)
    split = split_off(data, config.val_size if data.val_images is None else 0, config.seed)
    session = ranks.session_of(config, data, len(split.train_labels))
    init_from_data(session.model, split, data, config.device)
    if start is not None:
        begin_with(session, start)
    session.start(found)
    report.write_config(output, config)
    session.say_what_is_not_reached()
    print(f"{config.model}, {session.model.num_parameters():,} parameters, on {config.device} in {config.precision}"
          f"{ON_THE_CPU.get(config.precision, '') if config.device == 'cpu' else ''}; {config.dataset}: "
          f"{len(split.train_labels)} images to train, {len(split.val_labels)} to validate, {len(data.test_labels)} to "
          "test", flush=True)
    with ranks.stop_request() as stop, alpha.config(precision=config.precision, conv_algorithm=config.algorithm,
                                             recompute=config.recompute):
        fit(session, split, data, stop, callbacks)
        with dist.world().long("testing"):
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
    data = normalised(read(config), found[0][1].get(KEY))
    session = Session(config, len(data.classes), len(data.train_labels))
    session.load_weights(*found)
    with alpha.config(precision=config.precision, conv_algorithm=config.algorithm):
        result = evaluate_on_test(session, data)
    if not math.isfinite(result.loss):
        raise AnomalyError(message("evaluate", f"the test loss of {found[1]} is {result.loss}",
                                   "test another checkpoint, or in another --precision"))
    print(f"{found[1]}, {session.tested}: test loss {result.loss:.4f}, {len(data.test_labels)} images of "
          f"{config.dataset}", flush=True)
    return result.accuracy
