"""The base of augmentations, the registry of their names, and the random numbers that they draw."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import numpy as np

from alpha.core.errors import AlphaError, ConfigError, message, shown
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.registry import did_you_mean
from alpha.ops.augment import EPOCH_BLOCKS
from alpha.random import STREAMS, philox

Array = np.ndarray
C = TypeVar("C", bound=type)

BLOCKS_OF_A_STEP = 16   # of four words each, that one augmentation of a list may draw from for an image
SHOWN = 60              # characters of a refused text


class Draws:
    """Random numbers of images: functions of (seed, epoch, number of the image, place of the augmentation).

    Args:
        numbers: of the images in the data set.  Shape (B,).
        place: of the augmentation in its list; each place has words of its own.
    """

    def __init__(self, seed: int, epoch: int, numbers: Array, place: int = 0) -> None:
        self.seed, self.epoch, self.numbers, self.place = seed, epoch, numbers, place
        self._blocks = numbers.astype(np.uint64) + np.uint64(epoch * EPOCH_BLOCKS)
        self._known: dict[int, Array] = {}

    def __len__(self) -> int:
        return len(self.numbers)

    def words(self, k: int) -> Array:
        """Returns word k of each image, k below 4 * BLOCKS_OF_A_STEP.  Shape (B,), uint32."""
        block = k // 4
        if block not in self._known:
            last = self.place * BLOCKS_OF_A_STEP + block
            self._known[block] = philox(self._blocks, STREAMS["steps"], self.seed, last)
        return self._known[block][:, k % 4]

    def uniform(self, k: int, low: float = 0.0, high: float = 1.0) -> Array:
        """Returns word k as a number of [low, high).  Shape (B,), float64."""
        return low + (high - low) * (self.words(k) * 2.0 ** -32)

    def below(self, k: int, limit: int) -> Array:
        """Returns word k as an integer from 0 to limit - 1.  Shape (B,), int64."""
        return ((self.words(k).astype(np.uint64) * np.uint64(limit)) >> np.uint64(32)).astype(np.int64)


class Augmentation:
    """An operation on training images, with its settings.  See docs/how_to/augmentation.md.

    Attributes:
        name: by which texts and messages call it.
        moves: whether pixels change their places: masks and boxes are moved along.
        opens: whether pixels from outside of the image come into it.
        colours: whether it needs images of 1 or 3 channels.
        mixes: whether it joins an image with another one, and the targets of both.
    """

    name: ClassVar[str] = ""
    moves: ClassVar[bool] = False
    opens: ClassVar[bool] = False
    colours: ClassVar[bool] = False
    mixes: ClassVar[bool] = False

    def rows(self, draws: Draws, hw: tuple[int, int]) -> Array:
        """Returns the steps of each image (alpha.data.augmentations.steps).  Shape (B, steps, WIDTH), int32."""
        raise NotImplementedError

    def __str__(self) -> str:
        """Returns the text that names it, which `steps_of` reads back."""
        given = ",".join(f"{f.name}={_written(value)}" for f in dataclasses.fields(self)  # type: ignore[arg-type]
                         if (value := getattr(self, f.name)) != f.default)
        return f"{self.name}({given})" if given else self.name


AUGMENTATIONS: dict[str, Callable[..., Augmentation]] = {}


def augmentation(name: str) -> Callable[[C], C]:
    """Makes a class with annotated fields an augmentation of that name."""
    def make(cls: C) -> C:
        made: Any = dataclasses.dataclass(frozen=True)(cls)
        made.__init__ = checked(made.__init__)
        made.name = name
        AUGMENTATIONS[name] = made
        return cls
    return make


def refuse(name: str, what: str, fix: str, error: type[AlphaError] = ConfigError) -> AlphaError:
    """Returns the error of an augmentation's setting."""
    return error(message("augment", f"{name}: {what}", fix))


def _written(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({','.join(map(_written, value))})"
    return f"{value:g}" if isinstance(value, float) else str(value)


# ---- from texts ------------------------------------------------------------------------------------------------------


def items_of(text: str) -> list[str]:
    """Splits a text at the commas that are outside of parentheses."""
    items, depth, begin = [], 0, 0
    for k, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            items.append(text[begin:k].strip())
            begin = k + 1
    return [*items, text[begin:].strip()]


def step_of(item: str, others: tuple[str, ...] = ()) -> Augmentation:
    """Returns the augmentation that an item names: "grey", "grey=0.2" or "grey(p=0.2)".

    Args:
        others: more names that there are, for messages.
    Raises:
        ConfigError: the name or a setting is unknown, or a value is out of range.
    """
    name, values, settings = _parts(item)
    if name not in AUGMENTATIONS:
        names = [*others, *sorted(AUGMENTATIONS)]
        raise ConfigError(message("augment", f"{name[:SHOWN]!r} is unknown{did_you_mean(name, names)}; there are "
                                  f"{', '.join(names)}", 'write items with commas between: "crop,flip,erasing(p=0.25)"',
                                  augment=repr(item[:SHOWN])))
    cls: Any = AUGMENTATIONS[name]
    fields = [f.name for f in dataclasses.fields(cls)]
    for setting in settings:
        if setting not in fields:
            raise refuse(name, f"there is no setting {setting[:SHOWN]!r}{did_you_mean(setting, fields)}",
                         f"use one of {', '.join(fields)}")
    if len(values) > len(fields) or set(fields[:len(values)]) & set(settings):
        raise refuse(name, f"{item[:SHOWN]!r} gives a setting twice, or more than there are",
                     f"give each once by its name: {', '.join(fields)}")
    made: Augmentation = cls(**dict(zip(fields, values)), **settings)
    return made


def _parts(item: str) -> tuple[str, list[Any], dict[str, Any]]:
    """Returns the name of an item, its values without a name, and those with one.  Raises ConfigError."""
    name, short, value = item.partition("=")
    text = f"{name}({value})" if short and "(" not in name else item
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        if isinstance(tree, ast.Name):
            return tree.id, [], {}
        if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name):
            settings = {str(k.arg): _value(k.value) for k in tree.keywords}
            return tree.func.id, [_value(v) for v in tree.args], settings
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        pass
    if not item or item.isidentifier():     # keywords of Python are names, too
        return item, [], {}
    raise ConfigError(message("augment", f"{item[:SHOWN]!r} is no name with settings",
                              'write "grey", "grey=0.2" or "erasing(p=0.25,scale=(0.02,0.3))"'))


def _value(node: ast.expr) -> Any:
    return node.id if isinstance(node, ast.Name) and node.id not in ("inf", "nan") else ast.literal_eval(node)


def steps_of(given: Any) -> tuple[Augmentation, ...]:
    """Returns augmentations: of a text, of one by itself, or of a list of texts and augmentations.

    Raises ConfigError.
    """
    if isinstance(given, str):
        return tuple([step_of(item) for item in items_of(given)])
    if isinstance(given, Augmentation):
        return (given,)
    if isinstance(given, (list, tuple)) and all(isinstance(item, (str, Augmentation)) for item in given):
        return tuple([step for item in given for step in steps_of(item)])
    raise ConfigError(message("augment", f"steps is {shown(given)}, names or augmentations are needed",
                              'pass steps="randaugment(n=2,m=9),erasing", or a list of such'))
