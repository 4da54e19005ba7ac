"""What the metadata of a run's checkpoint is: each field has a type and a range, checked before any of it is used."""

from __future__ import annotations

import platform
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

Loaded = tuple[dict[str, Tensor], dict[str, Any]]  # the tensors and the metadata of a checkpoint

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
