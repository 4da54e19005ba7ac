"""`alpha evaluate RUN [--dataset ...]`: how well a trained model does, class by class."""

from __future__ import annotations

import json
import math
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from alpha.core.config import config
from alpha.core.errors import AnomalyError, ConfigError, DataError, message
from alpha.core.inputs.registry import find, parameters_of
from alpha.data.folder_set import layout_of, listed, read_files
from alpha.data.named import entry_of, is_folder, load
from alpha.data.public import DATASETS
from alpha.data.sets import Dataset
from alpha.programs.arguments import loaded, parser, train, whole, with_device
from alpha.training.classes import figures_of, table_of
from alpha.training.registries import LOSSES
from alpha.training.runs import Run


def main(argv: Sequence[str]) -> int:
    """Prints loss, accuracy and a table of the classes, or JSON, and returns 0.  Raises AlphaError."""
    made = parser("evaluate", "How well a trained model does on labelled pictures, class by class.")
    made.add_argument("--dataset", metavar="NAME", help="a data set of alpha train, whose test pictures are taken, or "
                      "a folder, of which test/, else val/, else all are (default: that of the run)")
    made.add_argument("--data-dir", metavar="DIR", help="as of alpha train")
    made.add_argument("--json", action="store_true", help="print an object instead of a table")
    made.add_argument("--skip-bad", action="store_true", help="leave pictures of a folder out that cannot be read")
    with_device(made)
    given = made.parse_args(argv)
    batch_size = whole("evaluate", "batch-size", given.batch_size)
    run = loaded(given, given.device)
    if not run.classes:
        raise ConfigError(message("evaluate", f"the outputs of {run.path} are no classes: its loss is {run.loss}",
                                  "compare load_run(path).outputs(images) with what is wanted"))
    loss = find(LOSSES, "evaluate", "loss", run.loss)
    images, labels, name = _pictures(run, given)
    form = _form_of(run, images, labels)
    precision = run.settings.get("precision", "fp32")
    with config(precision="fp32" if given.device == "cpu" and precision == "bf16" else precision):
        found = train("evaluation").evaluate(run.model, images, labels, form, batch_size=batch_size,
                                             device=given.device, loss=loss, tta=run.settings.get("tta", "none"))
    if not math.isfinite(found.loss):
        raise AnomalyError(message("evaluate", f"the loss of {run.path} is {found.loss}", "take other weights: --which "
                                   "best, or a checkpoint whose name ends in .prev"))
    figures = figures_of(found.confusion, run.classes)
    if given.json:
        print(json.dumps({"run": str(run.path), "dataset": name, "images": len(labels), "loss": found.loss,
                          "accuracy": found.accuracy, "classes": [f._asdict() for f in figures]}, indent=2))
    else:
        print(f"{run.path}, {len(labels)} pictures of {name}: loss {found.loss:.4f}, accuracy "
              f"{100 * found.accuracy:.2f} %\n{table_of(figures)}")
    return 0


def _pictures(run: Run, given: Namespace) -> tuple[np.ndarray, np.ndarray, str]:
    """Returns the pictures, their labels, and the name of their set.  Raises AlphaError."""
    name, settings = given.dataset or run.settings.get("dataset"), run.settings
    if name is None:
        raise ConfigError(message("evaluate", f"{run.path} is of fit, and does not say which data it was trained on",
                                  "name them: --dataset FOLDER"))
    if name not in DATASETS and not is_folder(name):
        known = ", ".join(DATASETS)
        raise ConfigError(message("evaluate", f"there is no data set and no folder {name!r}",
                                  f"use one of {known}, or a folder, or --import the file that registers it"))
    if given.data_dir is not None and is_folder(name):
        raise ConfigError(message("evaluate", f"--data-dir has no effect beside --dataset {name}, a folder",
                                  "leave --data-dir out"))
    if given.dataset is not None and is_folder(name):
        return (*_of_folder(run, Path(name), given.skip_bad), name)
    if given.skip_bad and not is_folder(name):
        raise ConfigError(message("evaluate", f"--skip-bad has no effect beside {name}, which is no folder",
                                  "leave --skip-bad out"))
    own = given.dataset is None
    place = given.data_dir or (settings.get("data_dir") if own else None)
    more: dict[str, Any] = {"image_size": settings.get("image_size") if own else None,
                            "skip_bad": given.skip_bad or bool(own and settings.get("skip_bad"))}
    taken = {k: v for k, v in more.items() if k in parameters_of(entry_of(name).read)}
    data = load(name, place, seed=settings.get("seed", 0), **taken)
    return data.test_images, _numbered(run, data.classes, data.test_labels, name), name


def _of_folder(run: Run, folder: Path, skip_bad: bool) -> tuple[np.ndarray, np.ndarray]:
    if len(run.input_shape) != 3 or run.input_shape[2] != 3:
        raise ConfigError(message("evaluate", f"the samples of {run.path} are of shape {run.input_shape}, those of a "
                                  "folder are (H, W, 3)", "compare load_run(path).outputs(images) with what is wanted"))
    layout = layout_of("evaluate", folder)
    files = next(layout.parts[part] for part in ("test", "val", "all") if part in layout.parts)
    images, labels, problems = read_files("evaluate", files, run.input_shape[:2], skip_bad)
    bad = [text for text in problems if text]
    if bad:
        print(f"notice: {len(bad)} pictures are left out:{listed(bad)}", file=sys.stderr)
    return images, _numbered(run, layout.classes, labels, str(folder))


def _numbered(run: Run, classes: Sequence[str], labels: np.ndarray, name: str) -> np.ndarray:
    """Returns labels by the numbers that the run gives the classes.  Raises DataError for a class it does not know."""
    unknown = [c for c in classes if c not in run.classes]
    if unknown:
        raise DataError(message("evaluate", f"{name} has the class {unknown[0]!r}, the run has {len(run.classes)} "
                                f"others: {', '.join(run.classes[:10])}", "evaluate it on data of its own classes",
                                unknown=len(unknown)))
    return np.array([run.classes.index(c) for c in classes], np.int64)[labels]


def _form_of(run: Run, images: np.ndarray, labels: np.ndarray) -> Any:
    """Returns a data set of the pictures with the run's normalisation.  Raises DataError where it does not fit."""
    if images.shape[1:] != run.input_shape:
        raise DataError(message("evaluate", f"the pictures are {images.shape[1:]}, the run takes {run.input_shape}",
                                "evaluate it on pictures of that size, or on a folder, whose pictures are scaled"))
    made = Dataset("evaluated", run.classes, np.zeros(images.shape[3], np.float32),
                   np.ones(images.shape[3], np.float32), images, labels, images, labels)
    return replace(made, mean=run.mean, std=run.std)
