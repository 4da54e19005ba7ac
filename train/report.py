"""What a run leaves in its output directory, and what it says on the way.

    config.toml     the resolved settings, with the versions that ran; --config reads it back
    metrics.csv     one line per epoch; val_ is of the weights, with --ema ema_val_ of their average; the loss scale
                    and the steps skipped so far in fp16
    curves.png      loss and accuracy over the epochs           (the pictures need matplotlib)
    confusion.png   which class of the test set was taken for which
    images.png      some images of the test set with what they were taken for, and those that were taken wrongly
    profile.txt     with --profile: times and memory by op, layer and kernel; profile.json shows them over time
    tensorboard/    with --tensorboard: curves and pictures
    summary.json    test loss and accuracy of the last weights, and of the best ones on the validation images, with
                    --ema of their moving averages: "tested" says which
"""

from __future__ import annotations

import csv
import datetime
import io
import json
import math
import platform
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import alpha
from alpha.data import Dataset
from alpha.dist.joining import world
from alpha.errors import ConfigError, message, true_here
from alpha.training import Callback, Profile, TensorBoard
from alpha.training.history import Row
from alpha.training.saving import write as write_whole
from train.config import Config

COLUMNS = ("epoch", "step", "train_loss", "train_accuracy", "val_loss", "val_accuracy", "lr", "seconds",
           "images_per_second", "peak_memory_mib", "loss_scale", "skipped_steps")
AVERAGED = ("ema_val_loss", "ema_val_accuracy")     # of the moving average, behind val_accuracy, in runs with --ema
ARTIFACTS = ("config.toml", "metrics.csv", "curves.png", "confusion.png", "images.png", "summary.json", "profile.txt",
             "profile.json")
SAMPLES, WRONG, ACROSS = 8, 16, 8   # images of images.png: drawn ones, misclassified ones, in a row
NO_MATPLOTLIB = 'matplotlib is not installed (pip install ".[plot]")'


def prepare(output: str | Path) -> Path:
    """Makes the output directory if need be, and returns it.

    Raises:
        ConfigError: if it cannot be made, or nothing can be written to it.
    """
    path = Path(output)
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path) as probe:
            probe.write(b"x")
            probe.flush()
    except OSError as error:
        raise ConfigError(message("output", f"cannot write to {path}: {error.strerror}",
                                  "choose another directory: --output DIR, or make room or permission in this one"
                                  )) from error
    return path


def writes() -> bool:
    """Whether this process writes files: of several ranks, rank 0 does."""
    return world().rank == 0


def remove_leftovers(output: Path) -> None:
    """Removes what a run that was killed while it wrote has left; for the holder of the directory's lock alone."""
    if not writes():
        return
    for leftover in (*output.glob(".*.safetensors.*"), *(output / f".{name}.tmp" for name in ARTIFACTS)):
        leftover.unlink(missing_ok=True)


def write(path: Path, content: str | bytes) -> None:
    """Replaces a file as a whole: a reader finds the old content or the new one.  Rank 0 alone writes."""
    if writes():
        write_whole(path, content)


def versions() -> dict[str, str]:
    """Returns what ran: alpha, its git commit where there is one, python, numpy."""
    found = {"alpha": alpha.__version__}
    try:
        git = subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=40"], cwd=Path(__file__).parent,
                             capture_output=True, text=True, timeout=10)
        found |= {"git": git.stdout.strip()} if git.returncode == 0 else {}
    except (OSError, subprocess.TimeoutExpired):
        pass  # no git here: then there is no commit to name
    return {**found, "python": platform.python_version(), "numpy": np.__version__, "machine": platform.platform()}


def write_config(output: Path, config: Config) -> None:
    """Writes config.toml; date and versions are comments in it, so that --config reads it back."""
    date = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
    facts = {"date": date, **versions()}
    write(output / "config.toml", "".join(f"# {k}: {v}\n" for k, v in facts.items()) + config.to_toml())


def write_metrics(output: Path, history: Iterable[Row]) -> None:
    """Writes metrics.csv, a line per epoch.  Losses are means per image, accuracies shares of 1; empty = no value.

    val_ is of the weights, ema_val_ of their moving average.
    """
    text, rows, behind = io.StringIO(), list(history), COLUMNS.index("val_accuracy") + 1
    averaged = AVERAGED if any(AVERAGED[0] in row for row in rows) else ()
    table = csv.DictWriter(text, (*COLUMNS[:behind], *averaged, *COLUMNS[behind:]), lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    write(output / "metrics.csv", text.getvalue())


def write_summary(output: Path, summary: Mapping[str, Any]) -> None:
    """Writes summary.json; a number that is not finite, which JSON does not have, becomes null."""
    write(output / "summary.json", json.dumps(_finite(summary), indent=2, allow_nan=False) + "\n")


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def epoch_line(row: Row, epochs: int) -> str:
    """Returns what the console shows of an epoch."""
    val = "".join(f"  {name} loss {row[f'{key}_loss']:.4f} acc {100 * row[f'{key}_accuracy']:6.2f} %"
                  for key, name in (("val", "val"), ("ema_val", "ema val")) if row.get(f"{key}_loss") is not None)
    scale = ""
    if row.get("loss_scale") is not None:
        scale = f"  loss scale {row['loss_scale']:g}, {row['skipped_steps']} steps skipped so far"
    return (f"epoch {row['epoch']:>{len(str(epochs))}}/{epochs}  train loss {row['train_loss']:.4f} "
            f"acc {100 * row['train_accuracy']:6.2f} %{val}  lr {row['lr']:.2g}  {row['seconds']:.1f} s  "
            f"{row['images_per_second']:.0f} images/s  {row['peak_memory_mib']:.0f} MiB{scale}")


@contextmanager
def watching(config: Config, output: Path) -> Iterator[list[Callback]]:
    """For a run: yields the callbacks that its settings ask for; TensorBoard gets the pictures of its end too.

    Raises ConfigError where the library of TensorBoard is not installed.
    """
    profile = Profile(output, config.profile) if config.profile and writes() else None
    board = None
    if config.tensorboard and writes():
        board = TensorBoard(output / "tensorboard" / datetime.datetime.now().strftime("%Y-%m-%d_%H-%M-%S"))
    found = [c for c in (profile, board) if c is not None]
    try:
        yield list(found)
        pictures = [output / name for name in ARTIFACTS if name.endswith(".png")]
        for picture in pictures if board else ():
            if picture.exists() and board:
                board.picture(picture.stem, picture.read_bytes(), 0)
    finally:
        for callback in found:
            callback.close()


# ---- pictures --------------------------------------------------------------------------------------------------------


def plot(output: Path, history: Sequence[Row], data: Dataset, result: Any) -> None:
    """Draws the three pictures of a run's end, if matplotlib is there.  result: the Evaluation of the test images."""
    if can_plot():
        plot_curves(output, history)
        plot_confusion(output, result.confusion, data.classes)
        plot_images(output, data, result.predicted, result.confidence)


def plot_curves(output: Path, history: Sequence[Row]) -> None:
    """Draws curves.png: loss and accuracy of training and validation, with --ema also the average's."""
    figure = blank_figure(9, 3.6)
    epochs = [row["epoch"] for row in history]
    for place, what, scale, label in ((1, "loss", 1, "loss"), (2, "accuracy", 100, "accuracy, %")):
        axes = figure.add_subplot(1, 2, place, xlabel="epoch", ylabel=label)
        axes.xaxis.get_major_locator().set_params(integer=True)
        for part, name in (("train", "training"), ("val", "validation"), ("ema_val", "validation of the average")):
            values = [row[f"{part}_{what}"] for row in history if row.get(f"{part}_{what}") is not None]
            if len(values) == len(epochs):
                axes.plot(epochs, [scale * v for v in values], marker=".", label=name)
        axes.grid(alpha=0.3)
        axes.legend()
    save_figure(figure, output / "curves.png")


def plot_confusion(output: Path, confusion: np.ndarray, classes: Sequence[str]) -> None:
    """Draws confusion.png.

    Args:
        confusion: confusion[i, j] counts the images of class i that were taken for class j.  Shape (C, C), int64.
        classes: names of the C classes.
    """
    few = len(classes) <= 20  # beyond that neither names nor numbers can be read
    figure = blank_figure(*(6.4, 5.6) if few else (9, 8))
    axes = figure.add_subplot(xlabel="predicted class", ylabel="true class")
    share = confusion / np.maximum(confusion.sum(axis=1, keepdims=True), 1)
    figure.colorbar(axes.imshow(share, cmap="Blues", vmin=0, vmax=1), label="share of the true class")
    if few:
        axes.set_xticks(range(len(classes)), classes, rotation=45, ha="right")
        axes.set_yticks(range(len(classes)), classes)
        for (i, j), count in np.ndenumerate(confusion):
            if count:
                axes.text(j, i, str(count), ha="center", va="center", color="white" if share[i, j] > 0.5 else "black")
    save_figure(figure, output / "confusion.png")


def plot_images(output: Path, data: Dataset, predicted: np.ndarray, confidence: np.ndarray) -> None:
    """Draws images.png: a row of test images from all over the set, and below those taken wrongly, surest ones first.

    Args:
        predicted, confidence: the class that each test image was taken for, and its probability.  Shape (N,).
    """
    labels, names = data.test_labels, data.classes
    samples = np.unique(np.linspace(0, len(labels) - 1, SAMPLES).astype(int))
    wrong = np.flatnonzero(predicted != labels)
    wrong = wrong[np.argsort(-confidence[wrong], kind="stable")][:WRONG]
    rows = 1 + -(-len(wrong) // ACROSS)
    figure = blank_figure(1.35 * ACROSS, 1.75 * rows + 0.4)
    figure.suptitle(f"test images, and the surest of {int((predicted != labels).sum())} that were taken wrongly: "
                    "class > what it was taken for, probability", fontsize=10)
    for place, k in [*enumerate(samples, 1), *enumerate(wrong, ACROSS + 1)]:
        axes = figure.add_subplot(rows, ACROSS, place)
        image = data.test_images[k]
        axes.imshow(image[..., 0] if image.shape[-1] == 1 else image, cmap="gray", interpolation="nearest")
        axes.set_axis_off()
        right = predicted[k] == labels[k]
        title = names[labels[k]] if right else f"{names[labels[k]]} > {names[predicted[k]]}"
        axes.set_title(f"{title}\n{100 * confidence[k]:.0f} %", fontsize=8, color="black" if right else "firebrick")
    save_figure(figure, output / "images.png")


def can_plot(without: str = "curves.png, confusion.png and images.png are left out") -> bool:
    """Tells whether matplotlib is there; says once per call what is missing if it is not, and what that means."""
    try:
        import matplotlib  # noqa: F401  slow to load, so not before it is needed
    except ImportError:
        print(f"{without}: {true_here(NO_MATPLOTLIB)}")
        return False
    return True


def blank_figure(width: float, height: float) -> Any:
    """Returns a figure without axes, of a size in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    figure = Figure((width, height), layout="constrained")
    FigureCanvasAgg(figure)  # draws to memory: no display, and no state that other code could see
    return figure


def save_figure(figure: Any, path: Path) -> None:
    """Writes a figure as PNG."""
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=120)
    write(path, picture.getvalue())
