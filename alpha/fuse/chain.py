"""Which pointwise ops become one pass, what of them is kept, what the pass reads and writes; no device is known here.

A Value is the result of one op, element by element, without a reader yet. A reader gets the whole chain behind
it in one pass: `gather` follows the inputs of a value as far as they are values of the same elements that are not
written either. A chain ends at everything else: a reduction, a product, a convolution, a reshuffle of elements.

What is alive besides, because backward saves it say, is written by the same pass, or made again by its own reader from
what it depends on: `keep` decides. A norm is a value too (its statistics are inputs), so that what stands behind it
joins its pass, and nothing between them is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from weakref import ref

MOST_STEPS = 24   # ops of a chain
MOST_LEAVES = 16  # arrays that it reads


class Function(NamedTuple):
    """What an op does to an element.

    Attributes:
        name: of the C function, which returns a float, or a bool.
        text: its definition, or the line that includes it; "" where chain.cuh has it.
        is_condition: whether it returns a bool.
    """

    name: str
    text: str
    is_condition: bool = False


class Leaf(NamedTuple):
    """What a chain reads: an array, of whose elements each belongs to some of the result, or a number.

    Attributes:
        array: of the device; or the number.
        place: where the element for each of the result lies, as the device's kernels know it; None of a number.
    """

    array: Any
    place: Any


class Value:
    """The result of an op that is not written yet.

    Attributes:
        function, inputs, numbers: what computes an element: of other values, leaves and the op's own numbers.
        dtype: as which it is stored, and as which who reads it within a chain gets it; size: how many elements it has.
        row: after how many elements the chain's vectors begin anew; 0: it has none.
        steps, reads: bounds of the number of ops and of arrays behind it, itself included.
        written: the array, once it is; recipe: how it was made then, see `recipe_of`.
        holder: a weak reference that is dead when no tensor has the value any more; None: not yet known.
    """

    __slots__ = ("dtype", "function", "holder", "inputs", "numbers", "reads", "recipe", "row", "size", "steps",
                 "written")

    def __init__(self, function: Function, inputs: Sequence[Value | Leaf], numbers: tuple[float, ...], dtype: str,
                 size: int, row: int) -> None:
        self.function, self.inputs, self.numbers = function, tuple(inputs), numbers
        self.dtype, self.size, self.row = dtype, size, row
        self.written: Any = None
        self.recipe: Recipe | None = None
        self.holder: Any = None
        self.steps: int = 1 + sum([x.steps for x in inputs if isinstance(x, Value)])
        self.reads: int = sum([x.reads if isinstance(x, Value) else int(x.place is not None) for x in inputs])

    @property
    def is_alive(self) -> bool:
        return self.holder is not None and self.holder() is not None

    def leaves(self, whole: Any) -> list[Leaf]:
        """Returns the arrays that a pass for it would read now.  whole: as of `keep`."""
        return self._behind(whole)[0]

    def fits(self, whole: Any) -> bool:
        """Tells whether a pass for it has ops and arrays within the limits.  whole: as of `keep`."""
        if self.steps > MOST_STEPS or self.reads > MOST_LEAVES:     # bounds: what is read twice was counted twice
            leaves, steps = self._behind(whole)
            self.steps, self.reads = steps + 1, len(leaves)
        return self.steps <= MOST_STEPS and self.reads <= MOST_LEAVES

    def _behind(self, whole: Any) -> tuple[list[Leaf], int]:
        """Returns the arrays behind it, and the number of ops."""
        found: list[Leaf] = []
        waiting, seen = list(self.inputs), set()
        while waiting:
            x: Any = waiting.pop()
            if x.__class__ is Value and x.written is None:
                if id(x) not in seen:
                    seen.add(id(x))
                    waiting += x.inputs
                continue
            leaf = Leaf(x.written, whole) if x.__class__ is Value else x
            if leaf.place is not None and not any(leaf.array is f.array and leaf.place == f.place for f in found):
                found.append(leaf)
        return found, len(seen)


def keep(value: Value, whole: Any) -> bool:
    """Tells whether a value that another op may read later is written by a pass that computes it on its way.

    To keep it costs a write and a read. To make it again costs reading what it is made of: no more than the value
    itself if that is one whole array. Vectors of channels do not count.

    Args:
        whole: the place of an array that has an element for each of the result.
    """
    return sum([leaf.place == whole for leaf in value.leaves(whole)]) > 1


class Recipe(NamedTuple):
    """How a value was made, of arrays that it does not keep alive."""

    function: Function
    inputs: tuple[Any, ...]     # recipes, and leaves whose array is a weak reference, or a number
    numbers: tuple[float, ...]
    dtype: str


def recipe_of(value: Value, whole: Any) -> Recipe | None:
    """Returns how a value is made, before it is written; None of one that takes more than one whole array."""
    return None if keep(value, whole) else _recipe(value)


def _recipe(value: Value) -> Recipe:
    inputs: list[Any] = []
    for x in value.inputs:
        if isinstance(x, Value):
            inputs.append(_recipe(x) if x.written is None else Leaf(ref(x.written), None))
        else:
            inputs.append(x if x.place is None or isinstance(x.array, tuple) else Leaf(ref(x.array), x.place))
    return Recipe(value.function, tuple(inputs), value.numbers, value.dtype)


def made_again(recipe: Recipe, of: Sequence[Leaf], size: int, row: int) -> Value | None:
    """Returns the value of a recipe; None if it takes what is not among `of`."""
    inputs: list[Any] = []
    for x in recipe.inputs:
        if isinstance(x, Recipe):
            found: Any = made_again(x, of, size, row)
        elif isinstance(x.array, ref):
            found = next((y for y in of if y.array is x.array() and y.place == x.place), None)
        else:
            found = x if isinstance(x.array, float) else None
        if found is None:
            return None
        inputs.append(found)
    return Value(recipe.function, inputs, recipe.numbers, recipe.dtype, size, row)


class Chain(NamedTuple):
    """Values that one pass computes.

    Attributes:
        steps: in their order; refs: what each reads: (True, number of a step) or (False, number of a leaf).
        leaves: what is read, numbers included.
        outputs: numbers of the steps that are written.
    """

    steps: list[Value]
    refs: list[tuple[tuple[bool, int], ...]]
    leaves: list[Leaf]
    outputs: tuple[int, ...]


def gather(roots: Sequence[Value], whole: Any, written: Sequence[Value], spared: Sequence[Value] = ()) -> Chain:
    """Returns the chain that computes values, none of which is written.

    Args:
        roots: of one size.
        whole: as of `keep`.
        written: values that are to be written in any case; of the others the ones alive and kept.
        spared: values that are not written, though they are alive.
    """
    found = _Gathered(whole)
    for root in roots:
        found.visit(root)
    steps = found.steps
    outputs = [k for k, v in enumerate(steps) if any(v is x for x in written) or (
        v.is_alive and not any(v is x for x in (*roots, *spared)) and keep(v, whole))]
    return Chain(steps, found.refs, found.leaves, tuple(outputs))


class _Gathered:
    """See `gather`.  No function within it: one that calls itself would keep the arrays until garbage is collected."""

    def __init__(self, whole: Any) -> None:
        self.whole = whole
        self.steps: list[Value] = []
        self.refs: list[tuple[tuple[bool, int], ...]] = []
        self.leaves: list[Leaf] = []
        self._at: dict[int, int] = {}
        self._seen: dict[tuple[int, Any], int] = {}

    def visit(self, x: Any) -> tuple[bool, int]:
        """Adds a value or a leaf, with all behind it, and returns how it is referred to."""
        if x.__class__ is Value and x.written is None:
            if id(x) not in self._at:
                refs = tuple([self.visit(y) for y in x.inputs])
                self._at[id(x)] = len(self.steps)
                self.steps.append(x)
                self.refs.append(refs)
            return True, self._at[id(x)]
        leaf = Leaf(x.written, self.whole) if x.__class__ is Value else x
        key = (id(leaf.array), leaf.place)
        if leaf.place is None or key not in self._seen:
            self._seen[key] = len(self.leaves)
            self.leaves.append(leaf)
        return False, self._seen[key]
