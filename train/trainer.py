"""The trainer of a run: alpha.training's Trainer, made of the settings, and its way to disk and back.

    last.safetensors    the run after its latest epoch, or where a signal stopped it
    best.safetensors    the run after the epoch whose weights did best on the validation images
    *.prev              what was there before, should the newest file turn out damaged

A checkpoint holds all that the next step depends on, so a resumed run ends with the very bits of an uninterrupted one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import alpha
from alpha import Tensor, checkpoint, models, optim, random, training
from alpha.core.device import get_backend
from alpha.core.precision import MODES
from alpha.data import Augment, Dataset, Images, steps_per_epoch
from alpha.errors import AnomalyError, CheckpointError, ConfigError, DeviceError, message
from alpha.optim.schedule import Schedule
from alpha.training import accuracy, registries
from alpha.training.averages import average_of
from alpha.training.contents import KEY, contents, with_metrics
from alpha.training.parts import scaled_groups, to_freeze
from alpha.training.registries import Loss, find_loss
from alpha.training.saving import BEST, LAST, set_aside
from train.config import Config
from train.options import options
from train.report import ARTIFACTS, Row, write_metrics, writes
from train.stored import LATER, Loaded, check_identity, environment, find, progress_of, reached, stored_progress

WEIGHTS, AVERAGE = "weights", "averaged weights"


class Trainer(training.Trainer):
    """A training.Trainer that is made of a Config and can be saved and restored.

    Args:
        config: its device is not "auto" any more.
        num_classes: outputs of the model.
        train_images: how many images an epoch has.
        data: the data set; a checkpoint says of it how pictures become inputs. None: it says nothing.
    Raises:
        ConfigError: a checkpoint cannot hold what the data set or the model says of itself.
    """

    def __init__(self, config: Config, num_classes: int, train_images: int, data: Dataset | None = None) -> None:
        alpha.manual_seed(config.seed)
        self.config = config
        steps = -(-steps_per_epoch(train_images, config.batch_size, config.drop_last) // config.accumulate)
        model = models.create(config.model, num_classes, **options(config, "model_option")).to(config.device)
        self.frozen = to_freeze(model, config.freeze)
        self.schedule = make_schedule(config, steps)
        optimizer = make_optimizer(config, scaled_groups(model, options(config, "lr_scale"), self.schedule,
                                                         self.frozen), self.schedule)
        super().__init__(
            model, optimizer,
            find_loss("loss", config.loss, config.label_smoothing, options(config, "loss_option")),
            {"accuracy": accuracy}, epochs=config.epochs, accumulate=config.accumulate,
            steps_per_epoch=steps, max_steps=config.max_steps, clip=config.clip,
            sam=config.sam, ema=average_of(model, optimizer, config.ema, config.swa, config.epochs),
            scaler=optim.LossScaler(config.device) if MODES[config.precision].scales_loss else None)
        self.use = None if data is None else contents(
            model, shape=data.image_shape, dtype="uint8", mean=data.mean, std=data.std, classes=data.classes,
            loss=config.loss, imports=config.imports)
        self.saved_step: int | None = None      # of the weights in LAST, as far as this process knows
        self.identity = {**identity_of(config), "num_classes": num_classes, "train_images": train_images}
        self.tested = AVERAGE if self.ema else WEIGHTS

    def say_what_is_not_reached(self) -> None:
        """Says where the run ends before the learning rate has become what the settings say."""
        config = self.config
        warmup, end = round(config.warmup * self.steps_per_epoch), self.max_steps
        if end is not None and warmup > end:
            print(f"notice: --max-steps {end} is within the {warmup} steps of --warmup {config.warmup:g}: the learning "
                  f"rate does not reach --lr {config.lr:g}", flush=True)
        if config.schedule == "step" and config.step_size >= config.epochs:
            print(f"notice: --step-size {config.step_size:g} is not below --epochs {config.epochs}: --schedule step "
                  "leaves the learning rate as it is", flush=True)

    @property
    def plain_loss(self) -> Loss:
        """The loss without label smoothing, for what is not trained."""
        given = options(self.config, "loss_option")
        return find_loss("loss", self.config.loss, options=given)

    def best(self) -> Row | None:
        """The row of the best epoch, by --metric; None where there is none yet."""
        return self.progress.best(self.config.metric, self.config.mode)

    @property
    def output(self) -> Path:
        return Path(self.config.output)

    def diverged(self, what: str, step: int, weights_of: int | None = None) -> AnomalyError:
        """As Trainer.diverged; says which checkpoint is good."""
        state, path = self.progress, self.output / LAST
        kept = f"{path} is the last good checkpoint" if path.exists() else "there is no checkpoint before it"
        if self.saved_step == (step if weights_of is None else weights_of):
            before = checkpoint.previous(path)
            kept = f"the weights in {path} make it" + (f", {before} has those before" if before.exists() else "")
        recorded = bool(state.history) and state.history[-1]["step"] == step
        epoch = state.history[-1]["epoch"] if recorded else state.epoch + 1
        return AnomalyError(message("train", f"{what} at step {step}, in epoch {epoch}; {kept}",
                                    f"lower --lr, now {self.config.lr:g}; or add --warmup 1 or --clip 1; with "
                                    "ALPHA_CHECK_NAN=1 the run stops at the op that makes the first NaN"))

    def batches(self, images: Images, augment: Augment, epoch: int, step: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields the batches of an epoch, from a step on."""
        config = self.config
        return images.batches(config.batch_size, seed=config.seed, epoch=epoch, start_step=step, augment=augment,
                              drop_last=config.drop_last, balance=config.balance)

    # ---- to disk and back --------------------------------------------------------------------------------------------

    def save(self, name: str) -> None:
        """Writes the run to LAST or BEST in the output directory.  Raises CheckpointError if that fails."""
        state = self.optimizer.state_dict()
        tensors = {**_prefixed("model/", self.model.state_dict()), **_prefixed("optimizer/", state["tensors"]),
                   **_prefixed("ema/", self.ema.state_dict() if self.ema else {}),
                   **_prefixed("scaler/", self.scaler.state_dict() if self.scaler else {})}
        row = self.progress.history[-1] if self.progress.history else None
        use = {} if self.use is None else {KEY: with_metrics(self.use, row)}
        if writes():
            checkpoint.save(self.output / name, tensors, {
                **use, "identity": self.identity, "progress": stored_progress(self.progress),
                "optimizer": state["scalars"], "random": random.get_state(), "config": self.config.to_dict(),
                "environment": environment()})
        self.saved_step = self.progress.step if name == LAST else self.saved_step

    def start(self, found: tuple[Loaded, Path] | None) -> None:
        """Makes the output directory ready for a new run, or for the continuation of the run that was found."""
        if found is None:
            put_aside(self.output)
            return
        self.restore(*found)
        state, place = self.progress, found[1].parent
        if place.resolve() != self.output.resolve():
            best = find(place, BEST, lambda metadata: reached(metadata, self.best()))
            put_aside(self.output)
            if best is not None and writes():
                checkpoint.save(self.output / BEST, *best[0])
        write_metrics(self.output, state.history)
        print(f"resumed from {found[1]}: {state.epoch} epochs and {self.epoch_step} steps are done", flush=True)

    def load_best(self, best: Row) -> bool:
        """Takes the weights after the epoch of a row, or says that they are lost and returns False."""
        found = find(self.output, BEST, lambda metadata: reached(metadata, best))
        if found is None:
            print(f"{BEST} of epoch {best['epoch']} is not there, so it is not tested", flush=True)
            return False
        self.load_weights(*found)
        return True

    def restore(self, loaded: Loaded, where: Path) -> None:
        """Continues from a checkpoint that `train.stored.load` read.

        Raises CheckpointError if it is of another run, or does not fit; then nothing has changed.
        """
        tensors, metadata = loaded
        check_identity(self.identity, self.config.imports, metadata, where)
        self._check_position(metadata["progress"], where)
        theirs, ours = (None if use is None else use["classes"] for use in (metadata.get(KEY), self.use))
        if theirs is not None and ours is not None and theirs != ours:
            there, here = (", ".join(names[:10]) for names in (theirs, ours))
            raise CheckpointError(message("resume", f"{where} has the classes {there}, the data set has {here}",
                                          "continue it on the data that it was started with"))
        progress = progress_of(metadata["progress"], self.ema is not None)
        loads: list[Callable[[], Any]] = [
            self.model.prepare_state_dict(_without("model/", tensors)),
            self.optimizer.prepare_state_dict({"tensors": _without("optimizer/", tensors),
                                               "scalars": metadata["optimizer"]})]
        if self.ema is not None:
            loads.append(self.ema.prepare_state_dict(_without("ema/", tensors)))
        if self.scaler is not None:
            loads.append(self.scaler.prepare_state_dict(_without("scaler/", tensors)))
        random.set_state(*metadata["random"])  # which refuses what is no state
        for load in loads:
            load()
        self.progress = progress
        self.saved_step = self.progress.step if where == self.output / LAST else None
        self._say_what_changed(metadata["config"])

    def load_weights(self, loaded: Loaded, where: Path) -> None:
        """Takes the weights alone, the moving average's if there is one.  Raises CheckpointError."""
        tensors, metadata = loaded
        names = ("model", "num_classes")
        check_identity({name: self.identity[name] for name in names}, self.config.imports, metadata, where)
        averaged = _without("ema/", tensors)
        self.model.load_state_dict(averaged or _without("model/", tensors))
        self.tested = AVERAGE if averaged else WEIGHTS

    def _check_position(self, progress: dict[str, Any], where: Path) -> None:
        steps = progress["step"] - progress["epoch"] * self.steps_per_epoch
        if not 0 <= steps <= self.steps_per_epoch or progress["images"] > self.identity["train_images"]:
            raise CheckpointError(message("resume", f"{where} contradicts itself: {progress['epoch']} epochs of "
                                          f"{self.steps_per_epoch} steps, and {progress['images']} images of the next, "
                                          f"do not make step {progress['step']}", "use the checkpoint before it, whose "
                                          "name ends in .prev, or start again without --resume"))

    def _say_what_changed(self, before: dict[str, Any]) -> None:
        for name, value in self.config.to_dict().items():
            old = before.get(name, value)
            silent = ("output", "resume", "runs", "device", "data_dir", "imports")
            if name not in silent and old not in (value, _listed(value)):
                print(f"resuming with {name} {value}, before it was {old}", flush=True)


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value  # what JSON makes of it


def identity_of(config: Config) -> dict[str, Any]:
    """Returns the settings that a run keeps when it is continued; of later versions only the ones in use.
    """
    found = {"model": config.model, "dataset": Path(config.dataset).name, "val_size": config.val_size,
             "seed": config.seed, "batch_size": config.batch_size, "optimizer": config.optimizer, "ema": config.ema,
             "precision": config.precision}
    later = {"drop_last": config.drop_last, "image_size": config.image_size, "accumulate": config.accumulate,
             "balance": config.balance, "model_option": " ".join(config.model_option),
             "freeze": " ".join(config.freeze), "swa": config.swa}
    return {**found, **{name: value for name, value in later.items() if value != LATER[name]}}


def put_aside(output: Path) -> None:
    """Moves the files of an earlier run in this directory to its subdirectory `earlier`, and says so; rank 0 does."""
    if writes() and set_aside(output, ARTIFACTS):
        print(f"{output} held an earlier run: its files are in {output / 'earlier'} now", flush=True)


def resolve_device(config: Config) -> Config:
    """Returns the config with a device that is there instead of "auto".  Raises ConfigError if a named one is not."""
    try:
        device = "cuda" if config.device == "auto" else config.device
        get_backend(device)
    except DeviceError as error:
        if config.device != "auto":
            raise ConfigError(str(error)) from error
        device = "cpu"
    return replace(config, device=device)


# ---- optimizer -------------------------------------------------------------------------------------------------------


def make_schedule(config: Config, per_epoch: int) -> Schedule:
    """Returns the learning rate as a function of the step; an epoch has `per_epoch` steps.

    It is laid out over --epochs, so --max-steps leaves the course as it is.  Raises ConfigError.
    """
    total = config.epochs * per_epoch
    return registries.make_schedule(
        "schedule", config.schedule, warmup_steps=round(config.warmup * per_epoch), lr=config.lr, total_steps=total,
        steps_per_epoch=per_epoch, epochs=config.epochs, gamma=config.gamma,
        step_size=max(1, round(config.step_size * per_epoch)),
        milestones=[round(m * total) for m in config.milestones], **options(config, "schedule_option"))


def make_optimizer(config: Config, named_parameters: Any, lr: Schedule) -> optim.Optimizer:
    """Returns the optimizer that --optimizer names.  Raises ConfigError."""
    return registries.make_optimizer("optimizer", config.optimizer, named_parameters, lr,
                                     weight_decay=config.weight_decay, momentum=config.momentum,
                                     **options(config, "optimizer_option"))


def _prefixed(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {prefix + name: t for name, t in tensors.items()}


def _without(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
