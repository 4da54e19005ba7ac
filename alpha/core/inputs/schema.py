"""Kinds of data from outside: declared once as a kind, checked as a whole before any of it is used.

    PROGRESS = Record({"epoch": Integer(0), "loss_sum": Number(), "history": Items(ROW)})
    check("resume", metadata, Record({"progress": PROGRESS}), "use the previous checkpoint")

A kind has `problem(value, at)`: the fault of a value, a phrase that begins with `at`, or None.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from alpha.core.errors import CheckpointError, message
from alpha.core.tensor import Tensor

LARGEST = 1 << 53       # above it a float no longer counts by ones


class Kind(Protocol):
    """A set of values."""

    def problem(self, value: Any, at: str) -> str | None:
        """Returns why `value`, which stands at `at`, is not one of them; None if it is."""


@dataclass(frozen=True)
class Integer:
    """The integers from low to high."""

    low: int = -LARGEST
    high: int = LARGEST

    def problem(self, value: Any, at: str) -> str | None:
        fits = isinstance(value, int) and not isinstance(value, bool) and self.low <= value <= self.high
        return None if fits else f"{at} is {shown(value)}, not an integer in [{self.low}, {self.high}]"


@dataclass(frozen=True)
class Number:
    """The finite numbers from low to high."""

    low: float = -math.inf
    high: float = math.inf

    def problem(self, value: Any, at: str) -> str | None:
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= 1e308
        return None if number and self.low <= value <= self.high else (
            f"{at} is {shown(value)}, not a finite number in [{self.low:g}, {self.high:g}]")


@dataclass(frozen=True)
class Text:
    """Strings that can be printed: of few characters, none of them a control character or half of a pair."""

    longest: int = 1000

    def problem(self, value: Any, at: str) -> str | None:
        fits = isinstance(value, str) and len(value) <= self.longest and not any(
            c < " " or "\x7f" <= c < "\xa0" or "\ud800" <= c <= "\udfff" for c in value)
        return None if fits else f"{at} is {shown(value)}, not a text of at most {self.longest} printable characters"


@dataclass(frozen=True)
class Scalar:
    """None, truth values, finite numbers and short texts."""

    def problem(self, value: Any, at: str) -> str | None:
        if value is None or isinstance(value, bool):
            return None
        return (Text() if isinstance(value, str) else Number()).problem(value, at)


@dataclass(frozen=True)
class Maybe:
    """None, or a value of a kind."""

    of: Kind

    def problem(self, value: Any, at: str) -> str | None:
        return None if value is None else self.of.problem(value, at)


@dataclass(frozen=True)
class AnyOf:
    """Values of at least one of several kinds; the last one explains."""

    of: tuple[Kind, ...]

    def problem(self, value: Any, at: str) -> str | None:
        found = [kind.problem(value, at) for kind in self.of]
        return None if None in found else found[-1]


@dataclass(frozen=True)
class Items:
    """Lists of values of a kind, of a length in [low, high]."""

    of: Kind
    low: int = 0
    high: int = LARGEST

    def problem(self, value: Any, at: str) -> str | None:
        if not isinstance(value, (list, tuple)) or not self.low <= len(value) <= self.high:
            return f"{at} is {shown(value)}, not a list of {self.low} to {self.high} items"
        found = (self.of.problem(item, f"{at}[{k}]") for k, item in enumerate(value))
        return next((text for text in found if text), None)


@dataclass(frozen=True)
class Table:
    """Dicts of any names whose values are of one kind."""

    of: Kind

    def problem(self, value: Any, at: str) -> str | None:
        if not isinstance(value, Mapping):
            return f"{at} is {shown(value)}, not a dict"
        for key, item in value.items():
            text = Text().problem(key, f"a name in {at}") or self.of.problem(item, f"{at}.{key}")
            if text:
                return text
        return None


@dataclass(frozen=True)
class Record:
    """Dicts of these names, each with its kind; those in `optional` may be missing, and others may not be there."""

    of: Mapping[str, Kind]
    optional: Mapping[str, Kind] = field(default_factory=dict)

    def problem(self, value: Any, at: str) -> str | None:
        if not isinstance(value, Mapping):
            return f"{at} is {shown(value)}, not a dict"
        kinds = {**self.of, **self.optional}
        for name in self.of:
            if name not in value:
                return f"{at} has no {name}"
        for name, item in value.items():
            if name not in kinds:
                return f"{at} has {shown(name)}, which is unknown"
            text = kinds[name].problem(item, f"{at}.{name}")
            if text:
                return text
        return None


def check(where: str, value: Any, kind: Kind, fix: str, at: str = "the metadata") -> None:
    """Raises CheckpointError if `value` is not of a kind."""
    text = kind.problem(value, at)
    if text:
        raise CheckpointError(message(where, text, fix))


def shown(value: Any) -> str:
    """Returns a short text for a value of any type and size: its repr where that is short, else its kind."""
    if isinstance(value, (str, bytes)):
        return repr(value) if len(value) <= 60 else f"{value[:40]!r}... of length {len(value)}"
    if value is None or isinstance(value, (bool, float)) or (isinstance(value, int) and abs(value) < 10 ** 30):
        return repr(value)
    if isinstance(value, int):
        return f"an integer of {value.bit_length()} bits"
    size = f" of length {len(value)}" if isinstance(value, (Mapping, Sequence)) else ""
    return f"a {type(value).__name__}{size}"


# ---- tensors ---------------------------------------------------------------------------------------------------------


def shape_of(value: Any) -> tuple[int, ...] | None:
    """Returns the shape of a tensor or an array, None of anything else."""
    try:
        return tuple(int(n) for n in value.shape)
    except (AttributeError, TypeError, ValueError):
        return None


def check_names(where: str, values: Any, what: str = "the state") -> None:
    """Raises CheckpointError unless `values` has a Tensor or an array under each name."""
    fix = "pass what state_dict() returned, or what a checkpoint holds of it"
    if not isinstance(values, Mapping):
        raise CheckpointError(message(where, f"{what} is {shown(values)}, not a dict of tensors", fix))
    for name, value in values.items():
        if not isinstance(name, str):
            raise CheckpointError(message(where, f"{what} has the name {shown(name)}, which is no string", fix))
        if shape_of(value) is None:
            raise CheckpointError(message(where, f"{name} is {shown(value)}, not a Tensor or an array", fix))


def fitted(where: str, values: Mapping[str, Any], own: Mapping[str, Tensor]) -> dict[str, Any]:
    """Returns the `values` that `own` names, ready for `own[name].copy_(...)`: nothing is left that could fail.

    Args:
        values: Tensor or array by name, of the shapes of `own`.
    Raises:
        CheckpointError: one has elements that are no numbers, or that its dtype in `own` does not hold.
    """
    return {name: _fitted(where, name, values[name], t) for name, t in own.items() if name in values}


def _fitted(where: str, name: str, value: Any, own: Tensor) -> Any:
    if isinstance(value, Tensor) and value.dtype == own.dtype:
        return value
    try:
        a = value.numpy() if isinstance(value, Tensor) else np.asarray(value)
    except Exception as error:  # other libraries raise any error: tensors on a GPU, sparse ones, ...
        raise CheckpointError(message(where, f"{name} cannot be read as an array: {error!s:.200}",
                                      "pass a Tensor or a NumPy array")) from error
    held = "float32" if own.dtype == "bfloat16" else own.dtype  # NumPy has no bfloat16: copy_ converts
    if a.dtype.kind not in ("biuf" if own.is_floating_point else "biu"):
        raise CheckpointError(message(where, f"{name} has dtype {a.dtype}, which cannot become {own.dtype}",
                                      f"convert it to {own.dtype}"))
    with np.errstate(all="ignore"):
        cast = a.astype(held)
        kept = np.isfinite(cast) | ~np.isfinite(a) if own.is_floating_point else cast == a
    if not kept.all():
        raise CheckpointError(message(where, f"{name} has the value {a[~kept].ravel()[0]}, which {own.dtype} does not "
                                      "hold", f"convert it to {own.dtype} on purpose"))
    return cast
