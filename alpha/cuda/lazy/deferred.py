"""Arrays whose elements are not written yet: who reads them first decides in which form they are.

    y = defer(reserve(shape), reads=(x, gamma, beta), write=launch)

y is an array like any other. Its producer's last pass is a launch that waits. Whoever takes y.ptr gets float32, written
then and there; alpha.cuda.lazy.operands has both planes written in the same memory, which take as many bytes: nothing
is written in a form that nobody reads, and planes cost no pass of their own.

Batch norm leaves its results so (ops/norm), and so do pools, joins and activations of them (`reserve_for`). What still
waits when an array that it is a part of is written as planes is written there, and nowhere else.

- Memory is taken when the array is made, where an OutOfMemoryError belongs; a pass that waits holds what it reads
  besides. A convolution has its operands written before it takes memory for its result, and gradients that still wait
  when the next one is made are written as planes (`flush_gradients`), so the peak is what it was.
- What a pass reads is written, or changed, only after it has run: `write_before`, which the backend calls in `forget`.
- Where float32 is asked for when there are planes, it is made from them, and takes their place: the producer's inputs
  are gone by then, or would have been kept for this. Planes hold float32's digits down to 2^-16 of the scale's top;
  where they do not hold most elements so, their flag is set, and memory has the elements in any case.
- One lock serves all: whether something was written, and how, is decided once, whichever thread asks first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple
from weakref import ReferenceType, WeakValueDictionary, ref

from alpha.core.config import config
from alpha.core.trace import late, running
from alpha.cuda.lazy.quiet import is_peeking, is_undisturbed, lock, peeking
from alpha.cuda.runtime import memory as device_memory
from alpha.cuda.runtime.context import context
from alpha.cuda.runtime.kernel import Kernel
from alpha.cuda.runtime.memory import Array, Derived, Shape, allocate, extent
from alpha.cuda.runtime.rates import SPLITS_PAY
from alpha.cuda.runtime.walk import BLOCKS, Walk

ALIGNMENT = 256  # bytes, of planes and header
HEADER = 64      # bytes: OperandHeader in operand_header.cuh, with these members at
FLAG, BOUND, MOST = 4, 12, 24

PLANE_WRITERS = 2 * BLOCKS  # blocks of a pass that writes planes, all of which report to one header at their ends
GUARDED = BLOCKS // 2       # of one behind a flag, whose blocks end at once as a rule
BLOCKS_PER_SM = 4           # of a merge
MOST_OPERANDS = 8           # of which planes_bound makes one bound
_MERGE = Kernel("planes.cu", "planes_merge", "ptr x, ptr header, ptr y, ptr header_of_y, i64 size")
_BOUND = Kernel("planes.cu", "planes_bound", f"ptr header, {', '.join(f'ptr bound{k}' for k in range(MOST_OPERANDS))}",
                threads=1)

waiting: WeakValueDictionary[int, Any] = WeakValueDictionary()
chained_blocks: set[int] = set()  # ids of the memory that chains read which may be waiting; some may be others' by now


class Deferred(Array):
    """An array whose elements may not be written yet: to take `ptr` has them written.

    Its memory is known to `derived`: a LazyStorage, or alpha.cuda.lazy.chained.ChainStorage.

    Attributes:
        holder: what all arrays over the memory have, and nobody else.
    """

    __slots__ = ("holder",)

    def __init__(self, shape: Shape, size: int, nbytes: int, derived: Any, holder: Any = None) -> None:
        self.shape, self.dtype, self.size = shape, derived.dtype, size
        self.nbytes, self.derived, self.holder = nbytes, derived, holder

    @property
    def block(self) -> Any:
        return self.derived.block

    @property
    def ptr(self) -> int:  # type: ignore[override]
        return self.derived.elements().ptr

    def written(self) -> Array:
        return self.derived.elements().reshaped(self.shape)

    def reshaped(self, shape: Shape) -> Deferred:
        return Deferred(shape, self.size, self.nbytes, self.derived, self.holder)


class CompanionOutput(Array):
    """An array that the pass of a deferred one writes, too: to take `ptr` has that pass run."""

    __slots__ = ("address", "contents")

    def __init__(self, x: Array, contents: Any) -> None:
        self.block, self.shape, self.dtype, self.size, self.nbytes = x.block, x.shape, x.dtype, x.size, x.nbytes
        self.derived, self.address = None, x.ptr
        self.contents = contents  # the LazyStorage of that array; None when the pass has run

    @property
    def ptr(self) -> int:  # type: ignore[override]
        contents = self.contents
        if contents is not None:
            contents.elements()  # one launch: as a rule nobody reads them any more
        return self.address


class Memory(NamedTuple):
    """Memory for elements or for planes, and the header of these."""

    elements: Array  # the memory as an ordinary array
    scale: Array     # as of an operand; the header is at scale.ptr
    flag: Array      # as of an operand

    @property
    def nbytes(self) -> int:
        return self.elements.nbytes


class Planes(NamedTuple):
    """Elements that are kept as planes, as a chain reads them.  The memory keeps them if the array changes."""

    memory: Array
    header: Array
    storage: LazyStorage
    dtype = "planes"

    @property
    def arguments(self) -> tuple[Array, Array]:
        """Returns what a kernel gets."""
        return self.memory, self.header


class Rows(NamedTuple):
    """A part of the columns of a matrix, which has a launch of its own."""

    columns: int  # elements of a row of the whole
    first: int    # the part's first one of them
    width: int    # how many it has
    walk: Walk    # through the rows of the part, in pieces of 4 elements
    blocks: int   # of the launches for all parts


Write = Callable[[Memory, bool], None]  # (memory, planes): launches that write planes, or else elements
# (whole, rows): launches that write planes among those of a whole; without rows, elements alone and behind its flag
Join = Callable[[Memory, "Rows | None"], None]


def reserve(shape: Shape, dtype: str = "float32", more: int = 0) -> Memory:
    """Returns memory without values, with `more` bytes behind the header.  Raises OutOfMemoryError."""
    size, nbytes = extent(shape, dtype)
    at = -(-nbytes // ALIGNMENT) * ALIGNMENT
    block = allocate(at + HEADER + more)
    header = int(block) + at
    return Memory(Array(block, int(block), shape, dtype, size, nbytes), Array(block, header, (1,), "float32", 1, 4),
                  Array(block, header + FLAG, (1,), "int32", 1, 4))


def reserve_for(shape: Shape, xs: Sequence[Array], flush: bool = True) -> Memory | None:
    """Returns memory for a result that has no larger elements than what it is made of: pools, joined arrays, functions
    that shrink.  Its header has a bound of the operands.  None where the result may not wait.

    flush: has gradients that wait written before, see `flush_gradients`.
    Raises:
        OutOfMemoryError
    """
    if not 0 < len(xs) <= MOST_OPERANDS or not planes_are_read() or not can_wait(*xs):
        return None
    if flush:
        flush_gradients()
    bounds = [bound_of(x) if x.size and x.shape[-1] % 8 == 0 else None for x in xs]
    if None in bounds:
        return None
    memory = reserve(shape)
    _BOUND(1, memory.scale, *bounds, *[None] * (MOST_OPERANDS - len(bounds)))
    return memory


def planes_are_read() -> bool:
    """Tells whether convolutions of float32 arrays read planes, on this device and as it is configured."""
    return config.tensor_cores and (config.precision == "tf32" or context.arch in SPLITS_PAY)


def defer(memory: Memory, reads: Sequence[Array | None], write: Write, hurries: bool = False,
          join: Join | None = None) -> Deferred:
    """Returns the array that `write` writes when somebody reads it.

    Args:
        memory: its header has a bound of the elements by then.
        reads: the arrays that `write` reads.
        hurries: whether these should not be held for long, see `flush_gradients`.
        join: see `LazyStorage.join`.
    """
    x, contents = memory.elements, LazyStorage(memory, tuple(a for a in reads if a is not None), write, hurries, join)
    waiting[id(contents)] = contents
    return Deferred(x.shape, x.size, x.nbytes, contents)


def companion_output(y: Array, x: Array) -> Array:
    """Returns x as what the pass of y writes, too: whoever takes its address has that run, if y waits."""
    if y.__class__ is not Deferred:
        return x
    made = CompanionOutput(x, y.derived)
    y.derived.companion = ref(made)
    return made


def split_view(x: Array, write: bool = False) -> tuple[Array, Array | None]:
    """Returns memory and header of an array that consists of planes; of others the array and None.

    Args:
        write: has planes written if nothing is yet: by a pass that writes planes itself.
    """
    memory = x.derived.planes(write) if x.__class__ is Deferred else None
    return (memory.elements, memory.scale) if memory else (x, None)


def planes_of(x: Array) -> Planes | None:
    """Returns the planes that an array consists of; None of another one."""
    memory = x.derived.planes() if x.__class__ is Deferred else None
    return Planes(memory.elements, memory.scale, x.derived) if memory else None


def bound_of(x: Array | None) -> Array | None:
    """Returns the bits of a bound of x, int32 (1,), on the device; None where there is none."""
    return x.derived.bound if x.__class__ is Deferred else None  # type: ignore[union-attr]


def write_for(x: Array, reads: str) -> None:
    """Has the pass of x run, if it waits, for somebody who will ask for what `reads` says (operands.py)."""
    if x.__class__ is Deferred:
        if reads == "float32":
            x.derived.elements()
        else:
            x.derived.planes(write=True)


def join(x: Array, whole: Memory, rows: Rows | None) -> Array | None:
    """As `LazyStorage.join`; None of what does not wait."""
    return x.derived.join(whole, rows) if x.__class__ is Deferred else None


def peek(x: Array) -> Array:
    """Returns the elements of x for a check, which leaves x as it is: it waits, or consists of planes, as before."""
    return x.derived.peek().reshaped(x.shape) if x.__class__ is Deferred else x


def can_wait(*arrays: Array | None) -> bool:
    """Tells whether a pass that reads arrays may: not where other libraries can write them without a word."""
    return not any(a is not None and a.derived is not None and a.derived.visible for a in arrays)


def write_before(arrays: Sequence[Array]) -> None:
    """Has all passes run that read arrays which are about to change."""
    if waiting:
        changing = {id(x.block) for x in arrays}
        spared = changing.isdisjoint(chained_blocks)
        for contents in list(waiting.values()):
            if (spared and contents.is_chain) or not contents.is_alive:
                continue
            if not changing.isdisjoint(id(a.block) for a in contents.reads):
                contents.elements()


def flush_gradients() -> None:
    """Runs the passes that should not wait for long; they write planes, as which their results are read as a rule."""
    if not waiting or is_undisturbed():
        return
    for contents in list(waiting.values()):
        if contents.hurries:
            contents.planes(write=True)


def write_all() -> None:
    """Has all passes run, and write elements."""
    for contents in list(waiting.values()):
        if contents.is_alive:
            contents.elements()


device_memory.write_waiting = write_all


class LazyStorage(Derived):
    """What the memory of a deferred array holds; shared by all arrays over it."""

    dtype, is_alive, is_chain = "float32", True, False
    value: Any = None  # what it is to chains of pointwise ops (chained.py) as long as the pass has not run
    recipe: Any = None  # how that is made (alpha.fuse.chain), also when the pass has run

    def __init__(self, memory: Memory, reads: Sequence[Array], write: Write, hurries: bool, join: Join | None) -> None:
        self.memory, self.reads, self.hurries = memory, reads, hurries  # as of `defer`; reads: until the pass has run
        # what it writes beside this memory, if anything: weakly, as that array holds this
        self.companion: ReferenceType[CompanionOutput] | None = None
        self._write: Write | None = write
        self._join, self._trace = join, running.get()
        self.in_planes = False              # memory has planes, or elements where their flag is set
        self.form = [""]                    # see Backend.form; outlives the memory
        self._split_for: str | None = ""    # what the header's bound has served a split for; None: it bounds no more

    @property
    def block(self) -> Any:
        return self.memory.elements.block

    @property
    def bound(self) -> Array | None:
        """The bits of a bound, int32 (1,): of the largest element if that is known; None: there is none any more."""
        with lock:
            if self._split_for is None:
                return None
            header = self.memory.scale
            return Array(header.block, header.ptr + (MOST if self.in_planes else BOUND), (1,), "int32", 1, 4)

    def elements(self) -> Array:
        """Returns the float32 elements: all there is, from now on."""
        if self._write is not None or self.in_planes:  # `_run` sets them the other way round
            with lock:
                if is_peeking():
                    return self.peek()
                self._run(planes=False)
                if self.in_planes:
                    memory = reserve(self.memory.elements.shape)
                    self._merge(memory.elements, memory.scale)
                    self.memory, self.in_planes, self.form[0] = memory, False, "merged"
        return self.memory.elements

    def planes(self, write: bool = False) -> Memory | None:
        """Returns the memory if it has planes; `write`: has them written if nothing is yet."""
        with lock:
            if write:
                self._run(planes=True)
            return self.memory if self.in_planes else None

    def join(self, whole: Memory, rows: Rows | None) -> Array | None:
        """Has a pass that waits write planes where they belong in a whole; or elements, for who reads them behind the
        flag of the whole, which says whether planes hold all parts: these are there by then.

        Returns the elements' memory; None if nothing waits that can do this. The pass goes on waiting for readers of
        its own, of whom there are none as a rule.
        """
        with lock:
            if self._join is None or (rows is not None and rows.width != self.memory.elements.shape[-1]):
                return None
            self._join(whole, rows)
            return self.memory.elements

    def peek(self) -> Array:
        """Returns the elements, in other memory where this has none, and changes nothing.

        What the pass reads is looked at in the same way: nobody learns from a check in which form it will be written.
        """
        with lock:
            if self._write is None and not self.in_planes:
                return self.memory.elements
            with peeking() as held:
                made = reserve(self.memory.elements.shape)
                held.append(made)
                if self._write is not None:
                    self._write(made, False)
                else:
                    self._merge(made.elements, None)
                return made.elements

    def header_for(self, reads: str) -> Memory | None:
        """Returns the memory whose header may serve a split of the elements: one kind of it, as it gets the flag."""
        with lock:
            if self._split_for not in ("", reads):
                return None
            self._split_for = reads
            return self.memory

    def settle(self) -> None:
        """Leaves nothing but elements, as these are about to change."""
        self.elements()
        self._split_for = None

    def _run(self, planes: bool) -> None:
        """Runs the pass, unless it has been."""
        if self._write is not None:
            with self._billed():
                self._write(self.memory, planes)
            self.in_planes, self.form[0] = planes, "planes" if planes else "elements"
            self._write, self._join, self.reads, self.value = None, None, (), None
            made = self.companion and self.companion()
            if made:
                made.contents = None
            waiting.pop(id(self), None)

    def _billed(self) -> AbstractContextManager[None]:
        """For the pass: where launches are printed, its time is that of the op that has left it for later."""
        return late(self._trace, context.synchronize) if self._trace and config.debug > 1 else nullcontext()

    def _merge(self, y: Array, header: Array | None) -> None:
        """Writes the elements to y, and a header for them."""
        x, scale, _ = self.memory
        blocks = min(-(-x.size // (4 * _MERGE.threads)), BLOCKS_PER_SM * context.sm_count)
        _MERGE(blocks, x, scale, y, header, x.size)
