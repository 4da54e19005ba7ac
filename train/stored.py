"""Checkpoints of a run: how one is found, which fields its metadata has, and whether it is of this run.

Each field has a type and a range, which are checked before any of it is used.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

import alpha
from alpha import Tensor, checkpoint
from alpha.core.config import config as settings
from alpha.core.inputs.schema import AnyOf, Integer, Items, Maybe, Number, Record, Scalar, Table, check
from alpha.errors import CheckpointError, message
from alpha.optim.optimizer import SCALARS
from alpha.training import Progress
from alpha.training.contents import CONTENTS, KEY
from alpha.training.history import Row
from alpha.training.saving import LAST

Loaded = tuple[dict[str, Tensor], dict[str, Any]]  # the tensors and the metadata of a checkpoint

LATER: dict[str, Any] = {"drop_last": False, "image_size": None, "accumulate": 1, "balance": False, "model_option": "",
                         "freeze": "", "exact_over": 0, "swa": 0.0}  # of runs from before they could be chosen
OF_DATA = ("num_classes", "train_images")   # parts of a run's identity that are no settings
SHARE = Number(0, 1)
ROW = Record({"epoch": Integer(1), "step": Integer(1), "train_loss": Number(), "train_accuracy": SHARE,
              "val_loss": Maybe(Number()), "val_accuracy": Maybe(SHARE), "lr": Number(), "seconds": Number(0),
              "images_per_second": Number(0), "peak_memory_mib": Number(0)},
             optional={"ema_val_loss": Maybe(Number()), "ema_val_accuracy": Maybe(SHARE),
                       "loss_scale": Maybe(Number()), "skipped_steps": Maybe(Integer(0))})
PROGRESS = Record({"epoch": Integer(0), "step": Integer(0), "loss_sum": Number(), "correct": Integer(0),
                   "images": Integer(0), "seconds": Number(0), "history": Items(ROW)})
SETTINGS = Table(AnyOf((Items(Scalar()), Scalar())))
METADATA = Record({"identity": Table(Scalar()), "progress": PROGRESS, "optimizer": SCALARS, "config": SETTINGS,
                   "random": Record({"seed": Integer(0, (1 << 64) - 1), "counter": Integer(0, 1 << 62)})},
                  optional={"environment": Table(Scalar()), KEY: CONTENTS})


def load(path: Path) -> Loaded:
    """Reads a checkpoint of a run.  Raises CheckpointError if it is damaged, of something else, or contradicts itself.
    """
    tensors, metadata = checkpoint.load(path)
    if "identity" not in metadata:
        raise CheckpointError(message("resume", f"{path} was not written by the training program",
                                      "resume from last.safetensors or best.safetensors of an output directory"))
    fix = "use the checkpoint before it, whose name ends in .prev, or start again without --resume"
    # JSON has no tuples: the state of the random numbers is a list of two
    state = metadata.get("random")
    pair = {"seed": state[0], "counter": state[1]} if isinstance(state, list) and len(state) == 2 else state
    check("resume", {**metadata, "random": pair}, METADATA, fix, f"{path}: the metadata")
    progress, rows = metadata["progress"], metadata["progress"]["history"]
    steps = [row["step"] for row in rows]
    text = ""
    if [row["epoch"] for row in rows] != list(range(1, len(rows) + 1)) or steps != sorted(set(steps)):
        text = "the epochs and steps of its history do not follow each other"
    elif any((row["val_loss"] is None) != (row["val_accuracy"] is None) or
             (row.get("ema_val_loss") is None) != (row.get("ema_val_accuracy") is None) or
             (row.get("loss_scale") is None) != (row.get("skipped_steps") is None) for row in rows):
        text = "a row of its history has half of a pair"
    elif not progress["epoch"] <= len(rows) <= progress["epoch"] + 1:
        text = f"it has {progress['epoch']} epochs and a history of {len(rows)}"
    elif steps and steps[-1] > progress["step"]:
        text = f"it is at step {progress['step']}, its history at step {steps[-1]}"
    elif progress["correct"] > progress["images"]:
        text = f"{progress['correct']} of {progress['images']} images are correct"
    elif metadata["optimizer"]["step_count"] != progress["step"]:
        text = f"it is at step {progress['step']}, its optimizer at step {metadata['optimizer']['step_count']}"
    if text:
        raise CheckpointError(message("resume", f"{path} contradicts itself: {text}", fix))
    return tensors, metadata


def stored_progress(progress: Progress) -> dict[str, Any]:
    """Returns the progress of a run as its checkpoint has it."""
    fields = asdict(progress)
    correct = int(fields.pop("sums").get("accuracy", 0))
    return {**fields, "correct": correct}


def progress_of(stored: dict[str, Any], averaged: bool) -> Progress:
    """Returns what `stored_progress` has stored.

    Args:
        averaged: whether the run has a moving average. Runs once validated that alone, and called it val_.
    """
    fields = dict(stored)
    if averaged:
        fields["history"] = [row if "ema_val_loss" in row else
                             {**row, "val_loss": None, "val_accuracy": None, "ema_val_loss": row["val_loss"],
                              "ema_val_accuracy": row["val_accuracy"]} for row in fields["history"]]
    return Progress(sums={"accuracy": fields.pop("correct")}, **fields)


def environment() -> dict[str, Any]:
    """Returns what a run depends on beside its settings: versions, and threads of the CPU kernels (0: all cores)."""
    return {"alpha": alpha.__version__, "python": platform.python_version(), "numpy": np.__version__,
            "threads": settings.num_threads}


# ---- finding one -----------------------------------------------------------------------------------------------------


def missing_imports(theirs: Mapping[str, Any], ours: Collection[str]) -> str:
    """Returns the flags that import what a run's settings name and ours do not; "" if there is nothing."""
    named = theirs.get("imports") or ()
    return "".join(f" --import {name}" for name in named if name not in ours)


def check_identity(ours: dict[str, Any], imports: Collection[str], metadata: dict[str, Any], where: Path) -> None:
    """Raises CheckpointError where a checkpoint is of a run with another identity.

    Args:
        ours: the settings that are compared, by name.
        imports: files and modules of this run.
        metadata: of the checkpoint at `where`.
    """
    theirs = {**LATER, **metadata["identity"]}
    ours = ours if "seed" not in ours else {**LATER, **ours}
    differ = [name for name, value in ours.items() if theirs.get(name) != value]
    if not differ:
        return
    both = "; ".join(f"{name} is {theirs.get(name)!r} there, {ours[name]!r} here" for name in differ)
    flags = " ".join(f"--{'' if theirs[n] else 'no-'}{n.replace('_', '-')}" if isinstance(theirs.get(n), bool) else
                     f"--{n.replace('_', '-')} {theirs.get(n)}" for n in differ if n not in OF_DATA)
    flags += missing_imports(metadata["config"], imports)
    fix = f"continue it with {flags}" if flags else "point --data-dir at the images of that run"
    raise CheckpointError(message("resume", f"{where} is of another run: {both}",
                                  f"{fix}, or start a new run in another directory: --output DIR"))


def find(place: Path, name: str, accept: Callable[[dict[str, Any]], bool] = lambda metadata: True
         ) -> tuple[Loaded, Path] | None:
    """Returns the newest checkpoint `name` in a directory that is intact and accepted by its metadata, and its path.

    A damaged one is passed over with a notice; None where nothing is left.
    """
    for path in (place / name, checkpoint.previous(place / name)):
        if not path.exists():
            continue
        try:
            loaded = load(path)
        except CheckpointError as error:
            print(f"notice: passed over. {error}".partition("\n")[0], flush=True)
            continue
        if accept(loaded[1]):
            return loaded, path
    return None


def reached(metadata: dict[str, Any], row: Row | None) -> bool:
    """Tells whether a checkpoint is of the step at which the row was recorded."""
    return row is not None and metadata["progress"]["step"] == row["step"]


def find_for(resume: str, output: str) -> tuple[Loaded, Path] | None:
    """Returns the checkpoint that --resume names and its path; None for "auto" in a directory without one.

    Raises CheckpointError if it is damaged or not there.
    """
    if resume == "auto":
        newest = Path(output) / LAST
        found = find(newest.parent, LAST)
        if found is None and (newest.exists() or checkpoint.previous(newest).exists()):
            raise CheckpointError(message("resume", f"neither {newest} nor {checkpoint.previous(newest)} is intact",
                                          "start again without --resume: the old files are moved aside"))
        return found
    path = Path(resume)
    if path.is_dir():
        path /= LAST
    return load(path), path
