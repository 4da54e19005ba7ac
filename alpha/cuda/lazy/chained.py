"""Results of pointwise ops that wait for a reader: another such op takes them for a part of its own pass.

    y = chain(value, shape, write, alone)     # an array like any other; y.ptr has the pass run

What is written, in one pass, is alpha.fuse.chain's to say. A value that has been written is an array for all readers
from then on; one that nobody has any more never is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import ref

from alpha.core.trace import running
from alpha.cuda.lazy.deferred import Deferred, LazyStorage, Planes, chained_blocks, waiting
from alpha.cuda.lazy.quiet import is_peeking, lock, peeking
from alpha.cuda.runtime.memory import Array, Shape, extent
from alpha.fuse.chain import Chain, Leaf, Recipe, Value, recipe_of
from alpha.fuse.places import WHOLE

# (value) -> the chain behind it, and for each of its outputs the array that it has written
Write = Callable[[Value], tuple[Chain, Sequence[Array]]]


class _Holder:
    __slots__ = ("__weakref__",)


class ChainStorage(LazyStorage):
    """What stands behind the arrays of a value, whose `written` is the array, once there is one: no header, no form."""

    hurries, form, bound, is_chain = False, None, None, True
    _join = _split_for = None

    def __init__(self, value: Value, write: Write, alone: Callable[..., Array], shapes: Sequence[Shape]) -> None:
        self.value, self.dtype = value, value.dtype
        self._write, self._alone, self._shapes = write, alone, shapes
        self._trace = running.get()

    @property
    def reads(self) -> list[Array]:
        """The arrays that the pass would read now."""
        return [] if self.value.written is not None else [leaf.array for leaf in self.value.leaves(None)
                                                         if isinstance(leaf.array, Array)]

    @property
    def is_alive(self) -> bool:
        return self.value.is_alive

    @property
    def block(self) -> Any:
        return self if self.value.written is None else self.value.written.block

    def elements(self) -> Array:
        """Returns the elements: the pass has run, and written what else is to be kept of it."""
        if self.value.written is None:
            with lock:
                if is_peeking():
                    return self.peek()
                if self.value.written is None:
                    with self._billed():
                        settle(*self._computed())
        found: Array = self.value.written
        return found

    def _computed(self) -> tuple[Chain, Sequence[Array]]:
        value = self.value
        if any((x.__class__ is Value and x.written is None) or (x.__class__ is Leaf and x.array.__class__ is Planes)
               for x in value.inputs):
            return self._write(value)
        arrays = [x.written.reshaped(shape) if x.__class__ is Value else x.array
                  for x, shape in zip(value.inputs, self._shapes)]
        return Chain([value], [], [], (0,)), [self._alone(*arrays)]

    def peek(self) -> Array:
        with lock:
            if self.value.written is not None:
                return self.value.written
            with peeking() as held:
                chain, arrays = self._computed()
                held.append(arrays)
                return arrays[[chain.steps[k] is self.value for k in chain.outputs].index(True)]

    def planes(self, write: bool = False) -> None:
        """There are none."""
        self.elements() if write else None


def settle(chain: Chain, arrays: Sequence[Array]) -> None:
    """Says that the first outputs of a chain are written: their own readers go on from there."""
    for k, array in zip(chain.outputs, arrays):
        value = chain.steps[k]
        chained_blocks.add(id(array.block))
        value.recipe = recipe_of(value, WHOLE)
        value.written = array
        value.inputs, value.steps, value.reads, value.row = (), 0, 1, 0


def chain(value: Value, shape: Shape, shapes: Sequence[Shape], write: Write, alone: Callable[..., Array]) -> Deferred:
    """Returns an array that is written when somebody reads it.

    Args:
        shapes: in which the op reads its inputs.
        write: runs the pass of a chain.
        alone: the op by itself, which gets arrays, or numbers, for the inputs of the value.
    """
    holder = _Holder()
    value.holder = ref(holder)
    storage = ChainStorage(value, write, alone, shapes)
    if not waiting:
        chained_blocks.clear()
    _note_reads(value)
    waiting[id(storage)] = storage
    return Deferred(shape, *extent(shape, value.dtype), storage, holder)


def offer(y: Deferred, value: Value | None) -> Deferred:
    """Returns y, which pointwise ops may make for themselves as long as its own pass has not run.

    Who reads what that is made of may make it again for itself afterwards, too.
    """
    y.derived.value, y.derived.recipe = value, value and recipe_of(value, WHOLE)
    _note_reads(value)
    return y


def _note_reads(value: Value | None) -> None:
    chained_blocks.update([id(x.array.block) for x in (value.inputs if value else ())
                           if isinstance(x, Leaf) and isinstance(x.array, Array)])


def recipe(x: Any) -> Recipe | None:
    """Returns how an array was made that has been written, or planes; None of what was made by no chain."""
    storage = x.storage if x.__class__ is Planes else x.derived if x.__class__ is Deferred else None
    return None if storage is None else storage.value.recipe if storage.is_chain else storage.recipe


def value_of(x: Any) -> Value | None:
    """Returns the value that an array is, if it waits to be written: a chain's, or one that a producer offers."""
    found = x.derived.value if x.__class__ is Deferred else None
    return found if found is not None and found.written is None else None
