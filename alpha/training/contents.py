"""The facts of a checkpoint about its model, so that the file alone is enough to use it.

The metadata of a run's checkpoint have it under "use": the model's name and options, the form of its inputs and their
normalisation, the names of the classes, the figures measured, and the version of alpha that wrote it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from alpha.core.errors import CheckpointError, ConfigError, message
from alpha.core.inputs.schema import AnyOf, Integer, Items, Maybe, Number, Record, Scalar, Table, Text
from alpha.nn import Module

KEY = "use"
OPTIONS = Table(AnyOf((Items(Scalar()), Scalar())))
CONTENTS = Record({
    "model": Record({"name": Maybe(Text()), "num_classes": Maybe(Integer(1)), "options": OPTIONS,
                     "imports": Items(Text(4096))}),
    "inputs": Record({"shape": Items(Integer(1), 0, 8), "dtype": Text(20), "mean": Items(Number()),
                      "std": Items(Number(1e-38))}),
    "classes": Items(Text()), "loss": Text(), "metrics": Table(Scalar()), "alpha": Text(40)})


def contents(model: Module, *, shape: Sequence[int], dtype: str, mean: Any, std: Any, classes: Sequence[str], loss: Any,
             imports: Sequence[str] = ()) -> dict[str, Any]:
    """Returns the facts of a checkpoint about its model, without figures.

    Args:
        model: one of `models.create` can be made again from the file; others are passed to load_run.
        shape: of one sample, (H, W, C) of an image.
        dtype: of the data: "uint8" are pictures, which are scaled to 0 to 1 and then normalised.
        mean, std: one number per channel, as in training.
        classes: their names, in the order of the outputs; none where the outputs are no classes.
        loss: the name of the loss, or the function.
        imports: files and modules that register the model.
    Raises:
        ConfigError: a name cannot be stored.
    """
    name, num_classes, options = vars(model).get("_made_as", (None, None, {}))
    made = {"model": {"name": name, "num_classes": num_classes, "imports": [*map(str, imports)],
                      "options": {key: [*value] if isinstance(value, tuple) else value
                                  for key, value in options.items()}},
            "inputs": {"shape": [int(n) for n in shape], "dtype": dtype, "mean": _numbers(mean), "std": _numbers(std)},
            "classes": [*map(str, classes)], "loss": loss if isinstance(loss, str) else _name_of(loss), "metrics": {},
            "alpha": str(vars(sys.modules["alpha"])["__version__"])}
    problem = CONTENTS.problem(made, "the description of the run")
    if problem:
        raise ConfigError(message("run", f"a checkpoint cannot hold this run: {problem}",
                                  "give classes and options short names of printable characters, and plain values"))
    return made


def with_metrics(made: Mapping[str, Any], row: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns the contents with the row of the epoch that the weights are of."""
    values = {name: value for name, value in (row or {}).items() if Scalar().problem(value, "") is None}
    return {**made, "metrics": values}


def contents_of(where: str, path: Any, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the contents of a checkpoint that was read.  Raises CheckpointError where there are none, or bad ones."""
    found = metadata.get(KEY)
    if found is None:
        by_a_run = "identity" in metadata
        what = ("is of a run of an earlier version of alpha, and does not say what its inputs are" if by_a_run else
                "is no checkpoint of a run: it does not say which model it is of")
        raise CheckpointError(message(where, f"{path} {what}", f"alpha train --resume {path} writes it anew" if by_a_run
                                      else "pass a folder of alpha train, or of fit(output=...); alpha.load reads what "
                                      "alpha.save wrote"))
    problem = CONTENTS.problem(found, f"{path}: its description")
    sizes = {len(found["inputs"]["mean"]), len(found["inputs"]["std"])} if not problem else set()
    shape = found["inputs"]["shape"] if not problem else []
    if not problem and not (len(sizes) == 1 and sizes <= {0, shape[-1] if shape else 0}):
        problem = f"{path}: its mean and std have {' and '.join(map(str, sizes))} numbers, its inputs are {shape}"
    if problem:
        raise CheckpointError(message(where, problem, "use the checkpoint before it, whose name ends in .prev"))
    return dict(found)


def _numbers(value: Any) -> list[float]:
    return [float(v) for v in np.asarray(value, np.float64).reshape(-1)]


def _name_of(loss: Any) -> str:
    return str(getattr(loss, "__name__", type(loss).__name__))[:100]
