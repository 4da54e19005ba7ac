"""The kinds of arguments, and the names that annotations use for them.

The rules:

- An integer or a float of NumPy is as good as Python's, and becomes one.
- A bool is no number, and 0 and 1 are no bools: `sum(x, True)` meant something else.
- Infinity and NaN are elements of tensors (`Number`), but no settings.
- A list is as good as a tuple, and becomes one.

A value that does not fit raises ShapeError for sizes, axes and shapes; else ArgumentError for the wrong Python type and
ConfigError for a value out of range.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, isfinite
from typing import Annotated, Any, Union

import numpy as np

from alpha.core.errors import AlphaError, ArgumentError, ConfigError, ShapeError, message, shown
from alpha.core.inputs.ints import BOOLS, as_int, is_real
from alpha.core.inputs.sizes import MAX_SIZE


class Refused(Exception):
    """Raised by a Kind for a value; `error` is the class of the error that the caller is to see."""

    def __init__(self, error: type[AlphaError]) -> None:
        self.error = error


class Kind:
    """The values that a parameter takes.

    Attributes:
        text: the values needed, for messages.
        fix: the help; "{name}" stands for the name of the parameter.
        stub: how alpha/ops/__init__.pyi writes it.
        keyed: whether equal values of one type mean the same (0.0 == -0.0, but they are different elements).
    """

    text = stub = ""
    fix = "pass {name} of that kind"
    keyed = True

    def read(self, value: Any) -> Any:
        """Returns the canonical form of a value.  Raises Refused."""
        return value

    def take(self, where: str, name: str, value: Any) -> Any:
        """Returns the canonical form of a value.  Raises AlphaError, which names the function and the parameter."""
        try:
            return self.read(value)
        except Refused as refused:
            error = self.error_of(where, name, value, refused)
        raise error

    def error_of(self, where: str, name: str, value: Any, refused: Refused) -> AlphaError:
        """Returns the error for a value that was refused."""
        return refused.error(message(where, f"{name} is {shown(value)}, {self.text} is needed",
                                     self.fix.format(name=name)))


class Whole(Kind):
    """An integer in [low, high]."""

    stub = "int"

    def __init__(self, low: int | None = None, error: type[AlphaError] = ConfigError, high: int = MAX_SIZE) -> None:
        self.low, self.high, self.error = -high if low is None else low, high, error
        self.text = "an int" if low is None else f"an int of at least {low}"
        if high < 1 << 31:
            self.text = f"an int from {low} to {high}"
        self.fix = f"pass {{name}}={max(low or 0, 1)}, say"

    def read(self, value: Any) -> int:
        if value.__class__ is not int:
            value = self.integer(value)
        if not self.low <= value <= self.high:
            raise Refused(self.error)
        return value

    def integer(self, value: Any) -> int:
        """Returns an integer of any type as an int."""
        found = as_int(value)
        if found is None:
            raise Refused(ArgumentError if self.error is ConfigError else self.error)
        return found


class Ints(Kind):
    """An int or a sequence of ints, as a tuple: a shape (each in [low, 2^62]), or axes."""

    def __init__(self, text: str, fix: str, low: int | None = None, single: bool = True,
                 length: int | None = None) -> None:
        self.text, self.fix, self.single, self.one, self.length = text, fix, single, Whole(low, ShapeError), length
        self.stub = "int | Shape" if single else "Sequence[int]"

    def read(self, value: Any) -> tuple[int, ...]:
        read = self.one.read
        if value.__class__ is tuple or isinstance(value, (tuple, list, range)):
            if self.length is not None and len(value) != self.length:
                raise Refused(ShapeError)
            return tuple([read(n) for n in value])
        if self.single:
            return (read(value),)
        raise Refused(ShapeError)


class Axes_(Kind):
    """None, an int, or a sequence of ints, as a tuple."""

    stub, text, fix = "Axes", "None, an int or a tuple of ints", "pass {name}=k, {name}=(j, k), or None for all axes"
    one = Whole(None, ShapeError)

    def read(self, value: Any) -> int | tuple[int, ...] | None:
        if value is None:
            return None
        if isinstance(value, (tuple, list, range)):
            return tuple([self.one.read(k) for k in value])
        return self.one.read(value)


class Pair_(Kind):
    """(height, width) of an int for both or of a pair, each at least `low`."""

    stub = "IntOrPair"
    fix = "pass {name}=k for both axes, or {name}=(height, width)"

    def __init__(self, low: int) -> None:
        self.one = Whole(low, ShapeError)
        self.text = f"an int or a pair of ints of at least {low}"

    def read(self, value: Any) -> tuple[int, int]:
        read = self.one.read
        if value.__class__ is tuple or isinstance(value, (tuple, list)):
            if len(value) != 2:
                raise Refused(ShapeError)
            return read(value[0]), read(value[1])
        value = read(value)
        return value, value


class Tuples(Kind):
    """A sequence of tuples of `length` ints: the widths of a border, the ranges of a slice."""

    stub = "Any"

    def __init__(self, length: int, low: int | None, text: str, fix: str) -> None:
        self.length, self.one, self.text, self.fix = length, Whole(low, ShapeError), text, fix

    def read(self, value: Any) -> tuple[tuple[int, ...], ...]:
        read = self.one.read
        if not isinstance(value, (tuple, list)):
            raise Refused(ShapeError)
        for item in value:
            if not isinstance(item, (tuple, list)) or len(item) != self.length:
                raise Refused(ShapeError)
        return tuple([tuple([read(n) for n in item]) for item in value])


class Real(Kind):
    """A number for which `test` holds, as a float."""

    stub = "float"

    def __init__(self, text: str, test: Callable[[float], bool], keyed: bool = True) -> None:
        self.text, self.test, self.keyed = text, test, keyed
        self.fix = "choose {name} in that range"

    def read(self, value: Any) -> float:
        if value.__class__ is not float:
            if not is_real(value):
                raise Refused(ArgumentError)
            try:
                value = float(value)
            except OverflowError:
                raise Refused(ConfigError) from None
        if not self.test(value):
            raise Refused(ConfigError)
        return value


class Number_(Kind):
    """A number that becomes elements: an int, a float, also infinite or NaN, or, with `bools`, a bool."""

    stub, fix, keyed = "Number", "pass a Python number; t.item() is that of a tensor", False

    def __init__(self, text: str = "a number", test: Callable[[float], bool] = lambda v: True, bools: bool = True
                 ) -> None:
        self.text, self.test, self.bools = text, test, bools

    def read(self, value: Any) -> float:
        if isinstance(value, BOOLS) and not self.bools:
            raise Refused(ArgumentError)
        if isinstance(value, np.floating):
            value = float(value)
        elif isinstance(value, (np.integer, np.bool_)):
            value = value.item()
        elif not isinstance(value, (int, float)):
            raise Refused(ArgumentError)
        elif value.__class__ is int and value.bit_length() > 1023:  # more than float64 has
            raise Refused(ConfigError)
        if not self.test(value):
            raise Refused(ConfigError)
        return value


class Flag(Kind):
    """A bool."""

    stub, text, fix = "bool", "True or False", "pass {name}=True or {name}=False"

    def read(self, value: Any) -> bool:
        if value.__class__ is bool:
            return value
        if isinstance(value, np.bool_):
            return bool(value)
        raise Refused(ArgumentError)


class Choice(Kind):
    """One of some strings."""

    stub = "str"

    def __init__(self, *names: str, error: type[AlphaError] = ConfigError) -> None:
        self.names, self.error = names, error
        self.text = self.fix = ""
        quoted = [f'"{name}"' for name in names]
        self.text = " or ".join([", ".join(quoted[:-1]), quoted[-1]] if len(quoted) > 1 else quoted)
        self.fix = "pass one of those for {name}" if len(quoted) > 1 else f"pass {{name}}={self.text}"

    def read(self, value: Any) -> str:
        if not isinstance(value, str):
            raise Refused(ArgumentError)
        if value not in self.names:
            raise Refused(self.error)
        return value


class Instance(Kind):
    """An object of a class."""

    def __init__(self, cls: type) -> None:
        self.cls, self.stub = cls, cls.__name__
        vowel = "an" if cls.__name__[:1] in "AEIOUaeiou" else "a"
        self.text = f"{vowel} {cls.__name__}"
        if cls.__name__ == "Tensor":
            self.fix = "wrap it: alpha.tensor({name}), with its dtype"

    def read(self, value: Any) -> Any:
        if not isinstance(value, self.cls):
            raise Refused(ArgumentError)
        return value


class Function(Kind):
    """A callable."""

    stub, text = "Callable", "a function"

    def read(self, value: Any) -> Any:
        if not callable(value) or isinstance(value, type):
            raise Refused(ArgumentError)
        return value


class Nothing(Kind):
    """None."""

    stub = text = "None"

    def read(self, value: Any) -> None:
        if value is not None:
            raise Refused(ArgumentError)


class Either(Kind):
    """A value of one of several kinds; the first that takes it."""

    def __init__(self, kinds: Sequence[Kind], fix: str = "") -> None:
        self.kinds = kinds
        longer = any(" or " in kind.text for kind in kinds)
        self.text = (", or " if longer else " or ").join([kind.text for kind in kinds])
        self.stub = " | ".join([kind.stub for kind in kinds])
        self.fix = fix or next(kind.fix for kind in kinds if not isinstance(kind, Nothing))
        self.keyed = all(kind.keyed for kind in kinds)

    def read(self, value: Any) -> Any:
        error: type[AlphaError] = ArgumentError
        for kind in self.kinds:
            try:
                return kind.read(value)
            except Refused as refused:
                error = error if issubclass(refused.error, ArgumentError) else refused.error
        raise Refused(error)


class Rate(Kind):
    """A learning rate: a finite number above 0, or a schedule, which is a function of the step."""

    stub, text, fix = "Lr", "a finite number above 0, or a schedule,", "pass a positive {name}, or a schedule"
    number = Real("", lambda v: 0 < v < inf)

    def read(self, value: Any) -> Any:
        return value if callable(value) and not isinstance(value, type) else self.number.read(value)


class Many(Kind):
    """A list of values of one kind, a tuple if it has a fixed length.

    Any iterable will do but a string, a dict, or one value by itself.
    """

    def __init__(self, kind: Kind, length: int | None = None, text: str = "", fix: str = "") -> None:
        self.kind, self.length, self.keyed = kind, length, kind.keyed
        self.text = text or f"a list of items, each {kind.text},"
        self.stub = f"Sequence[{kind.stub}]"
        self.fix = fix or "pass a list: [{name}, ...]"

    def read(self, value: Any) -> Any:
        if isinstance(value, (str, bytes, dict)) or hasattr(value, "shape"):
            raise Refused(ArgumentError)
        try:
            items = list(value)
        except TypeError:
            raise Refused(ArgumentError) from None
        if self.length is not None and len(items) != self.length:
            raise Refused(ConfigError)
        read = [self.kind.read(item) for item in items]
        return read if self.length is None else tuple(read)


# ---- names for annotations -------------------------------------------------------------------------------------------

Size = Annotated[int, Whole(0)]
Count = Annotated[int, Whole(1)]
Channels = Annotated[int, Whole(1, ShapeError)]     # also groups, and parts of an axis
Seed = Annotated[int, Whole(0, high=(1 << 64) - 1)]
Axis = Annotated[int, Whole(None, ShapeError)]
Axes = Annotated[Union[int, Sequence[int], None], Axes_()]
AllAxes = Annotated[Sequence[int], Ints("a tuple of ints", "name every axis once: {name}=(1, 0)", single=False)]
ShapeLike = Annotated[Union[int, Sequence[int]],
                  Ints("an int or a tuple of ints of at least 0", "pass {name}=(2, 3), say", 0)]
NewShape = Annotated[Union[int, Sequence[int]], Ints("an int or a tuple of ints of at least -1",
                                                     "pass {name}=(2, -1), say", -1)]
Sizes = Annotated[Sequence[int], Ints("a list of ints of at least 0", "pass {name}=[2, 3], say", 0, single=False)]
Pair = Annotated[Union[int, tuple[int, int]], Pair_(1)]
Padding = Annotated[Union[int, tuple[int, int]], Pair_(0)]
Widths = Annotated[Any, Tuples(2, 0, "a pair (before, after) of ints of at least 0 for each axis",
                               "pass {name}=((1, 1), (0, 2)), say, for two axes")]
Ranges = Annotated[Any, Tuples(3, None, "(first, count, step) for each axis", "pass {name}=((0, 2, 1),), say")]
Map = Annotated[tuple[int, int, int], Ints("three ints of at least 1", "pass {name}=(height, width, channels)", 1,
                                           single=False, length=3)]
Number = Annotated[Union[int, float], Number_()]
Limit = Annotated[Union[int, float], Number_("a number other than NaN", lambda v: v == v)]
FiniteNumber = Annotated[Union[int, float], Number_("a finite number", lambda v: -inf < v < inf, bools=False)]
Finite = Annotated[float, Real("a finite number", isfinite, keyed=False)]
Positive = Annotated[float, Real("a finite number above 0", lambda v: 0 < v < inf)]
PositiveOrInf = Annotated[float, Real("a number above 0", lambda v: v > 0)]
NonNegative = Annotated[float, Real("a finite number of at least 0", lambda v: 0 <= v < inf)]
Order = Annotated[Union[float, str], Either([Real("a number above 0", lambda v: v > 0), Choice("fro")])]
Share = Annotated[float, Real("a number in [0, 1]", lambda v: 0 <= v <= 1)]
Decay = Annotated[float, Real("a number in [0, 1)", lambda v: 0 <= v < 1)]
Betas = Annotated[tuple[float, float], Many(Real("", lambda v: 0 <= v < 1), 2, "a pair of numbers in [0, 1)",
                                                      "pass {name}=(0.9, 0.999), say")]
Lr = Annotated[Union[float, Callable[[int], float]], Rate()]
Reduction = Annotated[str, Choice("mean", "sum", "none")]
PadMode = Annotated[Any, Either([Choice("constant", "reflect", "replicate", "circular"), Number_()])]  # or a value
ResizeMode = Annotated[str, Choice("nearest", "nearest-exact", "linear", "bilinear", "bicubic", "area")]
ConvPadding = Annotated[Union[int, tuple[int, int], str], Either([Pair_(0), Choice("same", "valid")],
                                                                 'pass {name}=1, {name}=(1, 2) or {name}="same"')]
LinePadding = Annotated[Union[int, str], Either([Whole(0, ShapeError), Choice("same", "valid")],
                                                'pass {name}=1, or {name}="same"')]
Sides = Annotated[Any, Either([Whole(0, ShapeError), Ints("four ints of at least 0", "", 0, single=False, length=4)],
                              "pass {name}=1, or {name}=(left, right, top, bottom)")]
_ABOVE_0 = Real("a finite number above 0", lambda v: 0 < v < inf)
Scales = Annotated[Any, Either([Nothing(), _ABOVE_0, Many(_ABOVE_0)], "pass {name}=2, or {name}=(2, 3)")]
BorderMode = Annotated[str, Choice("zeros", "reflect", "replicate", "circular")]
Approximation = Annotated[str, Choice("none", "tanh")]
Spread = Annotated[str, Choice("batchmean", "mean", "sum", "none")]
PlateauMode = Annotated[str, Choice("min", "max")]
ThresholdMode = Annotated[str, Choice("rel", "abs")]
FanMode = Annotated[str, Choice("fan_in", "fan_out")]
Activation = Annotated[Union[str, None], Either([Nothing(), Choice("relu", error=ShapeError)],
                                                     'pass None or "relu", and apply others to the result')]
Levels = Annotated[Sequence[int], Ints(
    "a tuple of ints of at least 1", "pass one for each level: {name}=(1, 2), say", 1, single=False)]
LevelChannels = Annotated[Union[Sequence[int], None], Either([Nothing(), Ints(
    "a tuple of ints", "pass one for each level: {name}=(32, 32), say, or None for the usual split", single=False)])]
