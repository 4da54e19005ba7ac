"""A run of the training program around alpha.training: data, signals, checkpoints, the test at the end."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import alpha
from alpha import Tensor, dist, models, nn
from alpha.data import Augment, Dataset, Images, load
from alpha.data import split as split_off
from alpha.data.folder_set import layout_of
from alpha.data.named import is_folder
from alpha.data.sets import Split
from alpha.errors import AlphaError, AnomalyError, CheckpointError, ConfigError, message
from alpha.training import Callback, EarlyStopping
from alpha.training.classes import figures_of
from alpha.training.contents import KEY
from alpha.training.parts import frozen_parts, read_start, start_from
from alpha.training.saving import BEST, LAST
from train import ranks, report
from train.config import Config
from train.evaluation import Evaluation, evaluate
from train.interrupt import Interrupted, StopRequest
from train.options import options, without_effect
from train.stored import check_identity, find_for
from train.trainer import Trainer, identity_of, resolve_device

LOOKED_AT = 5000    # images from which initial weights are made
PATIENCE_S = 0.2    # in which most mistakes in --data-dir are found
ON_THE_CPU = {"tf32": " (as fp32: there are no tensor cores)",
              "fp16": " (float16 storage, float32 arithmetic: for tests, it is not faster)"}


class Run(Callback):
    """A run: its settings, its data and its trainer; beside the steps it writes checkpoints, metrics.csv and a line.

    Args:
        config: its settings; "auto" becomes a device that is there.
    Raises:
        ConfigError: a device that the settings name is not there.
    """

    trainer: Trainer
    data: Dataset
    split: Split

    def __init__(self, config: Config) -> None:
        self.config, self.stop = resolve_device(config), StopRequest()
        self.output = Path(config.output)

    def run(self) -> float:
        """Trains from beginning, or --resume, to end, and returns the final test accuracy (see `test`).

        Raises:
            ConfigError: another run has the output directory.
            Interrupted: a signal came; the run has been saved.
            AnomalyError: the numbers are no longer finite; the checkpoint before stays as it is.
        """
        config = self.config
        report.prepare(self.output)
        with ranks.lock(self.output), report.watching(config, self.output) as callbacks:
            report.remove_leftovers(self.output)
            self._begin()
            with ranks.stop_request() as self.stop, alpha.config(
                    precision=config.precision, conv_algorithm=config.algorithm, recompute=config.recompute):
                self._train(callbacks)
                with dist.world().long("testing"):
                    return self.test()

    def _begin(self) -> None:
        """Reads the checkpoint and the data, and makes the trainer as it is before its next step."""
        config = self.config
        found = None if config.resume is None else find_for(config.resume, config.output)
        if found is not None:
            check_identity(identity_of(config), config.imports, found[0][1], found[1])
        if is_folder(config.dataset):
            check_fits(config, layout_of("dataset", config.dataset).classes)
        start = None if config.finetune is None or found is not None else read_start(config.finetune)
        self.data = normalised(loaded(config), found[0][1].get(KEY) if found else start and start.use)
        self.split = split_off(self.data, config.val_size if self.data.val_images is None else 0, config.seed)
        self.trainer = trainer = ranks.trainer_of(config, self.data, len(self.split.train_labels))
        init_from_data(trainer.model, self.split, self.data, config.device)
        if start is not None:
            fresh = start_from(trainer.model, start)
            if trainer.ema is not None:
                trainer.ema.load_state_dict(trainer.model.state_dict())
            print(f"fine-tuning {start.path}: {'all weights are of it' if not fresh else 'new are ' + ', '.join(fresh)}"
                  , flush=True)
        trainer.start(found)
        report.write_config(self.output, config)
        trainer.say_what_is_not_reached()
        print(f"{config.model}, {trainer.model.num_parameters():,} parameters, on {config.device} in {config.precision}"
              f"{ON_THE_CPU.get(config.precision, '') if config.device == 'cpu' else ''}; {config.dataset}: "
              f"{len(self.split.train_labels)} images to train, {len(self.split.val_labels)} to validate, "
              f"{len(self.data.test_labels)} to test", flush=True)

    def _train(self, callbacks: Sequence[Callback]) -> None:
        """Trains to the end, with a validation, a line of metrics and a checkpoint after each epoch."""
        config, trainer = self.config, self.trainer
        images = Images(self.split.train_images, self.split.train_labels, self.data, config.device)
        augment = Augment.parse(config.augment)
        early = [EarlyStopping(config.patience, config.metric, config.mode)] if config.patience else []
        try:
            with frozen_parts(trainer.model, trainer.frozen):
                trainer.run(lambda epoch, step: trainer.batches(images, augment, epoch, step), self._validated,
                            [self, *early, *callbacks])
            if trainer.why:
                print(f"the run ends: {trainer.why}", flush=True)
        except Interrupted as interrupted:
            trainer.save(LAST)
            print(f"{interrupted} after step {trainer.progress.step}: saved {self.output / LAST}; --resume auto "
                  "continues", flush=True)
            raise

    def on_step(self, run: Any, loss: Tensor) -> None:
        if self.stop.asked():
            run.stop()

    def on_epoch(self, run: Any, row: report.Row) -> None:
        history = run.progress.history
        if run.best() is history[-1]:
            run.save(BEST)
        run.save(LAST)
        report.write_metrics(self.output, history)
        print(report.epoch_line(row, self.config.epochs), flush=True)

    def _validated(self) -> report.Row | None:
        self.stop.check()
        found = validate(self.trainer, self.split, self.data, self.stop.check)
        return None if found is None else {"loss": found.loss, "accuracy": found.accuracy}

    def test(self) -> float:
        """Reads the test set, for the one time: writes summary.json and the pictures, returns the final test accuracy.

        The rule: final are the last weights, with --ema their moving average, because the schedule ends there and they
        owe nothing to luck on a few validation images. Those that did best on them are tested too and reported beside
        them.
        Raises:
            AnomalyError: if a test loss is not finite; then nothing is written.
        """
        trainer, data, check = self.trainer, self.data, self.stop.check
        history, best = trainer.progress.history, trainer.best()
        with trainer.averaged():
            final = evaluate_on_test(trainer, data, check)
        tested = {"last": (history[-1]["epoch"], final)}
        if best is not None and trainer.load_best(best):
            tested["best"] = (best["epoch"], evaluate_on_test(trainer, data, check))
        for name, (epoch, result) in tested.items():
            if not math.isfinite(result.loss):
                raise trainer.diverged(f"the test loss of the {name} weights is {result.loss}", trainer.progress.step)
            print(f"{name} {trainer.tested}, epoch {epoch}: test loss {result.loss:.4f}, accuracy "
                  f"{100 * result.accuracy:.2f} %", flush=True)
        report.write_summary(self.output, {
            "test_accuracy": final.accuracy, "precision": self.config.precision, "tested": trainer.tested,
            **{name: {"epoch": epoch, "loss": result.loss, "accuracy": result.accuracy}
               for name, (epoch, result) in tested.items()},
            "classes": {f.name: {"images": f.samples, "precision": f.precision, "recall": f.recall, "f1": f.f1}
                        for f in figures_of(final.confusion, data.classes)}})
        report.plot(self.output, history, data, final)
        return final.accuracy

    def evaluate(self) -> float:
        """Returns the test accuracy of the checkpoint that --resume names.

        Raises:
            CheckpointError: if there is none.
            AnomalyError: if its loss is not finite.
        """
        config = self.config
        found = find_for(str(config.resume), config.output)
        if found is None:
            raise CheckpointError(message("evaluate", f"there is no checkpoint in {config.output}",
                                          "name the file, --resume PATH, or its directory, --output DIR"))
        data = normalised(read(config), found[0][1].get(KEY))
        trainer = Trainer(config, len(data.classes), len(data.train_labels))
        trainer.load_weights(*found)
        with alpha.config(precision=config.precision, conv_algorithm=config.algorithm):
            result = evaluate_on_test(trainer, data)
        if not math.isfinite(result.loss):
            raise AnomalyError(message("evaluate", f"the test loss of {found[1]} is {result.loss}",
                                       "test another checkpoint, or in another --precision"))
        print(f"{found[1]}, {trainer.tested}: test loss {result.loss:.4f}, {len(data.test_labels)} images of "
              f"{config.dataset}", flush=True)
        return result.accuracy


# ---- evaluation ------------------------------------------------------------------------------------------------------


def validate(trainer: Trainer, split: Split, data: Dataset, check: Callable[[], None]) -> Evaluation | None:
    """Evaluates the model as it is on the validation images; None if none are held out."""
    if not len(split.val_labels):
        return None
    return evaluate(trainer.model, split.val_images, split.val_labels, data, loss=trainer.plain_loss,
                    batch_size=trainer.config.batch_size, device=trainer.config.device, check=check)


def evaluate_on_test(trainer: Trainer, data: Dataset, check: Callable[[], None] = lambda: None) -> Evaluation:
    """Evaluates the model as it is on the test images."""
    config = trainer.config
    return evaluate(trainer.model, data.test_images, data.test_labels, data, loss=trainer.plain_loss, tta=config.tta,
                    tta_views=config.tta_views, batch_size=config.batch_size, device=config.device, check=check)


# ---- before the first step -------------------------------------------------------------------------------------------


def read(config: Config) -> Dataset:
    """Reads the data set of a run, by the settings that have an effect on it."""
    idle = without_effect(config)
    settings = {name: getattr(config, name) for name in ("data_dir", "image_size", "skip_bad") if name not in idle}
    return load(config.dataset, seed=config.seed, **settings)


def loaded(config: Config) -> Dataset:
    """Returns the data set of a run.

    While CIFAR's files are read, which takes seconds, a GPU takes a step on images without meaning: kernels are
    compiled, loaded and chosen. The run begins with the same bits: its trainer sets all random numbers anew.
    """
    classes = {"cifar10": 10, "cifar100": 100}.get(config.dataset)
    plain = config.device == "cpu" or config.imports or alpha.config.watch
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read, config)
        if classes and not plain and not wait([reading], PATIENCE_S).done:
            step_ahead(config, classes)
        return reading.result()


def step_ahead(config: Config, classes: int = 10) -> None:
    """Makes a step of the run that `config` describes on images of no meaning, and evaluates its model on a batch."""
    count = config.batch_size
    images, labels = np.zeros((count, 32, 32, 3), np.uint8), np.zeros(count, np.int64)
    data = Dataset("ahead", tuple(map(str, range(classes))), np.zeros(3, np.float32), np.ones(3, np.float32),
                   images, labels, images, labels)
    with alpha.config(precision=config.precision, conv_algorithm=config.algorithm, recompute=config.recompute):
        trainer = Trainer(config, classes, count)
        for x, y in Images(images, labels, data, config.device).batches(count, augment=Augment.parse(config.augment)):
            trainer.step(x, y)
        with trainer.averaged():
            evaluate(trainer.model, images, labels, data, batch_size=count, device=config.device)


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


def init_from_data(model: nn.Module, split: Split, data: Dataset, device: str) -> None:
    """Has a model that needs images for its initial weights (a method `init_from_data`) look at some."""
    method = getattr(type(model), "init_from_data", None)
    if callable(method):
        images = Images(split.train_images[:LOOKED_AT], split.train_labels[:LOOKED_AT], data, device)
        method(model, next(images.batches(len(images.labels), shuffle=False))[0])
