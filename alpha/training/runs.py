"""load_run: a trained model from the folder or the checkpoint of a run, ready to classify pictures.

    run = load_run("runs/mine")
    run.predict(["cat.png", picture], top=3)        # [[Guess(name='cat', probability=0.98, label=0), ...], ...]
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from alpha import checkpoint, ops, random
from alpha.checkpoint import disk
from alpha.core.device import get_backend
from alpha.core.errors import ArgumentError, CheckpointError, ConfigError, DataError, message, shown
from alpha.core.graph import no_grad
from alpha.core.inputs.arguments import bound, checked
from alpha.core.inputs.kinds import Count
from alpha.core.inputs.registry import did_you_mean
from alpha.core.tensor import Tensor, tensor
from alpha.data.folder import ENDINGS
from alpha.data.loader import DataLoader
from alpha.data.pictures import is_picture, of_array, read
from alpha.nn import Module
from alpha.nn.module import evaluating
from alpha.training.contents import contents_of
from alpha.training.registries import MODELS

WHICH = ("last", "best")
NORMALISED = "uint8"    # dtype of pictures, which are scaled to 0 to 1


class Guess(NamedTuple):
    """A class that a picture may be of: its name, its probability, and its number in the order of the outputs."""

    name: str
    probability: float
    label: int


class Normalised(Module):
    """A model behind the normalisation of its pictures: model((x / 255 - mean) / std).

    Args:
        model: takes normalised pictures.
        mean, std: one number per channel, shape (C,).
        bytes: whether pictures are of 8 bits, 0 to 255; else x is not divided.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, model: Module, mean: np.ndarray, std: np.ndarray, bytes: bool) -> None:
        self.model = model
        self.register_buffer("scale", tensor((1 / (std * (255 if bytes else 1))).astype(np.float32)))
        self.register_buffer("shift", tensor((-mean / std).astype(np.float32)))

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x * self.scale + self.shift)


class Run:
    """A trained model with the facts of its checkpoint; `load_run` makes one.

    Attributes:
        path: the checkpoint.
        model: in inference mode, with the moving average of the weights where the run has one.
        classes: their names, in the order of the outputs; () where the outputs are no classes.
        input_shape: of one sample, (H, W, C) of a picture.
        dtype: of the samples: "uint8" are pictures, which are divided by 255 and then normalised.
        mean, std: one number per channel, float32; empty where samples are no images.
        metrics: the row of the history that the weights are of, by column.
        loss, model_name, model_options, version: name of the loss and of the model, its options, alpha's version then.
        settings: of `alpha train` for the run; {} for a run of fit.
        device: where it computes.
    """

    def __init__(self, path: Path, model: Module, use: dict[str, Any], settings: dict[str, Any], device: str) -> None:
        inputs, self.settings = use["inputs"], settings
        self.path, self.model, self.device = path, model, device
        self.classes, self.metrics, self.version = tuple(use["classes"]), dict(use["metrics"]), use["alpha"]
        self.input_shape, self.dtype = tuple(inputs["shape"]), inputs["dtype"]
        self.mean, self.std = (np.array(inputs[name], np.float32) for name in ("mean", "std"))
        self.loss, self.model_name, self.model_options = use["loss"], use["model"]["name"], use["model"]["options"]

    def __repr__(self) -> str:
        name = self.model_name or type(self.model).__name__
        return f"<run {self.path}: {name}, {len(self.classes)} classes, inputs {self.dtype} {self.input_shape}>"

    @checked
    def predict(self, images: Any, top: Count = 5, batch_size: Count = 64) -> list[list[Guess]]:
        """Returns for each picture its likeliest classes, the likeliest first.

        Args:
            images: a path of a picture or of a folder of pictures; an array (H, W, C), (H, W) or (N, H, W, C), uint8; a
                picture of Pillow; or a list of these. They are scaled to cover the size of the run's pictures, cut out
                of the middle, and normalised, as in validation.
            top: how many classes; all of them where there are fewer.
            batch_size: pictures per call of the model.
        Raises:
            ConfigError: the outputs of this run are no classes.
            DataError: a picture cannot be read, or is of another form than the run's pictures.
        """
        if not self.classes:
            raise ConfigError(message("predict", f"the outputs of {self.path} are no classes: its loss is {self.loss}",
                                      "run.outputs(images) has the outputs as they are"))
        found = []
        for outputs in self._batches(images, batch_size):
            shares = (ops.sigmoid(outputs) if self.loss == "bce_with_logits" else ops.softmax(outputs, axis=1)).numpy()
            for row in shares:
                order = np.argsort(-row, kind="stable")[:top]
                found.append([Guess(self.classes[k], float(row[k]), int(k)) for k in order])
        return found

    @checked
    def outputs(self, images: Any, batch_size: Count = 64) -> np.ndarray:
        """Returns the model's outputs for pictures as `predict` takes them.  Shape (N, ...), float32.

        Raises DataError.
        """
        return np.concatenate([t.numpy() for t in self._batches(images, batch_size)])

    @checked
    def export(self, path: str | Path, *, normalise: bool = False, channels_first: bool = True) -> None:
        """Writes the model as an ONNX file, whose metadata have classes, mean, std and more; see alpha.onnx.export.

        Args:
            path: of the file.
            normalise: whether the file takes pixels from 0 to 255, as float32, and normalises them as in training;
                else it takes normalised ones.
            channels_first: whether it takes (N, C, H, W); else (N, H, W, C).
        Raises:
            ConfigError: there is nothing to normalise, onnx is not installed, an op has no counterpart, or path cannot
                be written.
        """
        if normalise and not self.mean.size:
            raise ConfigError(message("export", f"normalise=True, and the samples of {self.path} are {self.dtype} of "
                                      f"shape {self.input_shape}, which no mean and std go with", "leave it out"))
        from alpha import onnx

        model = Normalised(self.model, self.mean, self.std, self.dtype == NORMALISED) if normalise else self.model
        example = ops.zeros((1, *self.input_shape)).astype("float32" if self.dtype == NORMALISED else self.dtype)
        facts = {"classes": [*self.classes], "mean": self.mean.tolist(), "std": self.std.tolist(),
                 "input_shape": [*self.input_shape], "scale": 255 if self.dtype == NORMALISED else 1,
                 "normalised_in_the_graph": normalise, "model": self.model_name, "alpha": self.version}
        onnx.export(model.to("cpu"), example, path, channels_first=channels_first,
                    metadata={name: json.dumps(value) for name, value in facts.items()})
        model.to(self.device)

    def _batches(self, images: Any, batch_size: int) -> Iterator[Tensor]:
        mean, std = (self.mean, self.std) if self.mean.size else (0.0, 1.0)
        for batch in _in_parts(self.samples(images), batch_size):
            for (x, *_) in DataLoader((np.stack(batch),), batch_size, device=self.device, mean=mean, std=std):
                with evaluating(self.model), no_grad():
                    yield self.model(x).astype("float32")

    def samples(self, images: Any) -> Iterator[np.ndarray]:
        """Yields the images given one by one, as the model's samples are before they are normalised.

        Each has the shape `input_shape` and the dtype of the run.  Raises DataError.
        """
        for one in _one_by_one(images, len(self.input_shape)):
            if self.dtype == NORMALISED and len(self.input_shape) == 3:
                yield self._picture(one)
                continue
            a = np.asarray(one.numpy() if isinstance(one, Tensor) else one)
            if a.dtype.kind not in "biuf" or a.shape != self.input_shape:
                raise DataError(message("predict", f"a sample is {shown(one)}, this run takes {self.dtype} of shape "
                                        f"{self.input_shape}", "pass arrays as the run was trained on"))
            yield a.astype(self.dtype)

    def _picture(self, one: Any) -> np.ndarray:
        height, width, channels = self.input_shape
        if isinstance(one, (str, os.PathLike)):
            return read(Path(one), (height, width), channels, "predict")
        a = one if is_picture(one) else np.asarray(one.numpy() if isinstance(one, Tensor) else one)
        return of_array("predict", a, (height, width), channels)


@bound
def load_run(path: str | os.PathLike[str], which: str | None = None, *, device: str = "cpu",
             model: Module | None = None) -> Run:
    """Returns the model of a run with its classes and its normalisation, to be used.

    Args:
        path: the folder of a run of `alpha train` or of `fit(output=...)`, or one of its checkpoints.
        which: of a folder: "last", the weights that the run ended with (the default), or "best", those that did best in
            validation.
        device: where the model computes.
        model: takes the weights, where the run's model was not made by `models.create`.
    Raises:
        CheckpointError: there is no such checkpoint, it is damaged, or does not name its model.
        ArgumentError: model is no Module.
        ConfigError: the model is not known, which is not one of both, or has no effect.
        DeviceError: the device is not there.
    """
    get_backend(device)
    if model is not None and not isinstance(model, Module):
        raise ArgumentError(message("load_run", f"model is {shown(model)}, a Module is needed",
                                    "pass the network that the weights go into"))
    place = checkpoint_of("load_run", path, which)
    tensors, metadata = checkpoint.load(place)
    use = contents_of("load_run", place, metadata)
    made = _model_of(place, use) if model is None else model
    made.load_state_dict(weights_of(tensors))
    settings = metadata.get("config")
    return Run(place, made.to(device).eval(), use, dict(settings) if isinstance(settings, dict) else {}, device)


def checkpoint_of(where: str, path: Any, which: str | None = None) -> Path:
    """Returns the checkpoint that a path and "last" or "best" name.  Raises CheckpointError, ConfigError."""
    if which is not None and which not in WHICH:
        raise ConfigError(message(where, f"which is {shown(which)}{did_you_mean(which, WHICH)}",
                                  f"pass {' or '.join(map(repr, WHICH))}"))
    place = disk.as_path(where, path)
    if not place.exists():
        raise CheckpointError(message(where, f"there is no {place}", "correct the path: the folder of a run is the "
                                      "--output of alpha train, or of fit"))
    if not place.is_dir():
        if which is not None:
            raise ConfigError(message(where, f"which={which!r} has no effect beside a file, {place}",
                                      "leave which out, or pass the folder of the run"))
        return place
    found = place / f"{which or WHICH[0]}.safetensors"
    if not found.exists():
        there_are = sorted(p.name for p in place.glob("*.safetensors"))
        raise CheckpointError(message(where, f"{place} has no {found.name}, it has {', '.join(there_are) or 'none'}",
                                      "pass the other one of best and last, or the path of a checkpoint" if there_are
                                      else "pass the folder of a run: the --output of alpha train"))
    return found


def weights_of(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns the weights of a run's checkpoint by name, the moving average of them where it has one."""
    parts = {prefix: {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
             for prefix in ("ema/", "model/")}
    return parts["ema/"] or parts["model/"]


def _model_of(place: Path, use: dict[str, Any]) -> Module:
    """Returns a new model as the run's was made; the random numbers stay where they are.  Raises ConfigError."""
    from alpha import models  # which imports all of its files

    name, files = use["model"]["name"], use["model"]["imports"]
    if name is None:
        raise ConfigError(message("load_run", f"the model of {place} was not made by models.create, so it cannot be "
                                  "made again by its name", f'pass yours: load_run("{place}", model=net)'))
    if name not in MODELS:
        fix = (f"import the files that the run was started with first: {', '.join(files)}" if files else
               "import the file that registers it first") + "; --import FILE does so for the commands"
        raise ConfigError(message("load_run", f"the model of {place} is called {name!r}, which is not registered here",
                                  fix))
    state = random.get_state()
    try:
        return models.create(name, use["model"]["num_classes"], **use["model"]["options"])
    finally:
        random.set_state(*state)


def _one_by_one(images: Any, axes: int) -> Iterator[Any]:
    """Yields the samples of an argument of `predict`.  Raises DataError for a folder without pictures."""
    if isinstance(images, (str, os.PathLike)):
        yield from files_of(images)
    elif isinstance(images, (np.ndarray, Tensor)):
        yield from images if images.ndim == axes + 1 else [images]
    elif is_picture(images):
        yield images
    elif isinstance(images, Sequence) and images:
        for one in images:
            yield from files_of(one) if isinstance(one, (str, os.PathLike)) else [one]
    else:
        raise DataError(message("predict", f"images is {shown(images)}, there is nothing to look at",
                                "pass paths, arrays, pictures of Pillow, or a list of them"))


def files_of(path: Any) -> list[Path]:
    """Returns a picture's path, or the paths of all pictures in a folder, sorted.  Raises DataError."""
    place = Path(path)
    if not place.exists():
        raise DataError(message("predict", f"there is no {place}", "correct the path"))
    if not place.is_dir():
        return [place]
    found = sorted(p for p in place.rglob("*") if p.suffix.lower() in ENDINGS and p.is_file()
                   and not any(part.startswith(".") for part in p.relative_to(place).parts))
    if not found:
        raise DataError(message("predict", f"{place} has no pictures", f"pass a folder with files of "
                                f"{', '.join(sorted(ENDINGS))}"))
    return found


def _in_parts(samples: Iterable[np.ndarray], size: int) -> Iterator[list[np.ndarray]]:
    part: list[np.ndarray] = []
    for sample in samples:
        part.append(sample)
        if len(part) == size:
            yield part
            part = []
    if part:
        yield part
