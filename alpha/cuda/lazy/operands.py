"""What a tensor core reads in the place of a tensor: 16-bit planes, with a power-of-two scale that stays on the device.

    a = operand(x, "float16x2")       # x = (plane 0 + plane 1) * scale[0], to 2^-23 of an element

`reads` says what the kernel reads: "float16x2", two planes that hold float32's digits (the mode of three products);
"float16", the first of them; "bfloat16". float32 arrays are split, which takes two launches, one where the array is
not scaled; arrays of the dtype itself are read as they are. Equations and bounds: planes.cu.

The scale comes from the largest finite element, so nothing overflows. What can happen is that a few huge elements leave
too few digits to all others: `flag` says so, on the device. A kernel that writes float32 then reads elements instead,
of both operands, where `exact` says (conv/exact/exact_sum.cuh).

Operands are kept with the memory that they were made of, until an op changes it (`Array.derived`), unless another
library can see that memory: see KEEP. A lazy array (lazy/deferred.py) has its planes written in its own memory instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from alpha.core.errors import DTypeError, message
from alpha.core.precision import PRECISIONS
from alpha.cuda.lazy.deferred import Deferred, Memory, can_wait, reserve, split_view, write_before
from alpha.cuda.lazy.quiet import is_inferring
from alpha.cuda.runtime import memory as device_memory
from alpha.cuda.runtime.context import context
from alpha.cuda.runtime.kernel import Kernel
from alpha.cuda.runtime.memory import Array, empty, extent, upload
from alpha.cuda.runtime.tables import TABLE, tables

# What `keep` should be, by what a tensor is to a convolution. Weights are read by fprop and dgrad of this step and
# others until the optimizer's step. The gradient of the output is read by dgrad and wgrad, right after each other, and
# goes then. Activations wait for the backward pass: their planes would double the memory of the training step.
KEEP = {"weight": True, "gradient": True, "activation": False}

# Exact in conv/exact/exact_sum.cuh: `exact`, and the element of b that is the first one
EXACT_ARGS = "ptr flag_a, ptr flag_b, ptr a, ptr header_a, i64 size_a, ptr b, ptr header_b, i64 size_b, i64 first"
UNFLAGGED = (None, None, None, None, 0, None, None, 0)

STEP = 2048          # chunks of larger ones are a multiple of it
BLOCKS_PER_SM = 4    # of a launch over them


class Operand(NamedTuple):
    """What a tensor core reads for a tensor."""

    ptr: int  # address of plane 0, a multiple of 256; plane p starts p * size elements later, in the tensor's layout
    dtype: str  # of the planes, "float16" or "bfloat16"
    scale: Array  # float32, shape (1,), on the device: a power of two, between 2^-126 and 2^113
    keep: Array  # planes of the tensor's shape, whose sum * scale[0] is the tensor; or the array itself, read as it is
    flag: Array  # int32, shape (1,), on the device: 1 where the planes do not hold the tensor well

    @property
    def nbytes(self) -> int:
        return self.keep.nbytes


class _Form:
    """How float32 is split for what a kernel reads."""

    def __init__(self, reads: str, dtype: str, planes: int, scaled: bool) -> None:
        self.reads, self.dtype, self.planes, self.scaled = reads, dtype, planes, scaled
        self.measured = f"scale of {reads}"  # under what name an array keeps what was measured for a split
        # known: the scale is from the header's bound
        self.split = Kernel("planes.cu", f"planes_split_{reads}", "ptr x, ptr planes, ptr header, i64 size, i32 chunk, "
                            "i32 known, ptr lost_ranges")
        self.split_all = Kernel("planes.cu", f"planes_split_{reads}_all", f"{TABLE}, ptr lost_ranges")


# By what precisions call it; float16's range is short.
READS = {reads: _Form(reads, one.element, one.planes, one.element == "float16") for reads, one in {
    one.operand: one for one in PRECISIONS.values() if one.operand != "float32"}.items()}
_stale: dict[str, WeakKeyDictionary[Array, None]] = {reads: WeakKeyDictionary() for reads in READS}  # see `forget`
_AMAX = Kernel("planes.cu", "planes_amax", "ptr x, ptr header, i64 size, i32 chunk")
_AMAX_ALL = Kernel("planes.cu", "planes_amax_all", TABLE)


def operand(x: Array, reads: str, *, keep: bool = True) -> Operand:
    """Returns what a tensor core reads for an array: kept from before, made now, or the array itself.

    Args:
        x: float32, or of the dtype that is read.
        reads: "float16x2", "float16" or "bfloat16".
        keep: keep it with the memory of x; see KEEP.  One that was kept is used in any case.
    Raises:
        DTypeError: x has another dtype.
    """
    derived = x.derived
    if derived and reads in derived:
        found: Operand = derived[reads]
        if device_memory.recorder:
            device_memory.recorder.hold((found.keep,))
        return found
    form = _checked(x, reads)
    if x.dtype != "float32" or not x.size:
        return as_stored(x, form.dtype)
    if x.__class__ is Deferred and form.scaled:
        memory = x.derived.planes(write=True)
        if memory:  # in which both planes are, or the first of them is what is read
            (block, ptr), shape = (memory.elements.block, memory.elements.ptr), (form.planes, *x.shape)
            planes = Array(block, ptr, shape, form.dtype, *extent(shape, form.dtype))
            return Operand(ptr, form.dtype, memory.scale, planes, memory.flag)
    if x in _stale[reads]:
        prepare_weights(list(_stale[reads]), reads)
        _stale[reads].clear()
        return operand(x, reads, keep=keep)
    made = _split(x, form)
    return _kept(x, reads, made) if keep or is_inferring() else made


def as_stored(x: Array, dtype: str = "float32") -> Operand:
    """Returns what a tensor core reads that takes arrays of a dtype: the array itself."""
    one, zero, _ = _constants()
    return Operand(x.ptr, dtype, one, x, zero)


def exact(x: Array, of_x: Operand, w: Array, of_w: Operand) -> tuple[Any, ...]:
    """Returns the flags of two operands, and where the elements of their arrays are, or planes with a header in their
    place; of 16-bit arrays, which have no flag, nothing."""
    if x.dtype != "float32" or w.dtype != "float32":
        return UNFLAGGED
    return of_x.flag, of_w.flag, *split_view(x), x.size, *split_view(w), w.size


def forget(arrays: Sequence[Array]) -> None:
    """Drops the operands of arrays that are about to change.

    Where one of them is asked for again, all are made anew together: the weights of a network, after a step.
    """
    write_before(arrays)
    for x in arrays:
        if not x.derived and x.__class__ is Array:
            continue
        if x.__class__ is Deferred:
            x.derived.settle()
        else:
            for reads in x.derived.keys() & READS:
                _stale[reads][x] = None
        x.derived.clear()


def prepare_weights(arrays: Sequence[Array], reads: str) -> None:
    """Makes the operands of many arrays in two launches (one where nothing is scaled), and keeps them.

    Arrays that have theirs, that need none, or whose memory others can see, are left out.

    Raises:
        DTypeError: as `operand`.
    """
    form = READS[reads]
    missing = [x for x in arrays if _checked(x, reads) and x.dtype == "float32" and x.size
               and not x.derive().visible and reads not in x.derive()]
    chunk = _chunk(sum([x.size for x in missing]), context.sm_count)
    made = [_allocate(x, form, -(-x.size // chunk)) for x in missing]
    for part, table in tables([missing, [m.keep for m in made], [m.scale for m in made]], chunk):
        if form.scaled:
            _AMAX_ALL(part.blocks, table, part.count, chunk)
        form.split_all(part.blocks, table, part.count, chunk, _constants()[2])
    for x, each in zip(missing, made):
        x.derive()[reads] = each


def kept_with(x: Array, name: str, make: Callable[[], Array]) -> Array:
    """Returns what is made of an array, kept with it until an op changes it, unless others can see its memory."""
    found: Array | None = x.derived.get(name) if x.derived else None
    if found is None:
        found = _kept(x, name, make())
    if device_memory.recorder:
        device_memory.recorder.hold((found,))
    return found


def _kept(x: Array, name: str, made: Any) -> Any:
    """Returns what was made of x, and keeps it with x, unless others can see its memory."""
    if can_wait(x):
        x.derive()[name] = made
    return made


def flag_counter() -> Array:
    """Returns the counter of flags, on the device."""
    return _constants()[2]


def _checked(x: Array, reads: str) -> _Form:
    form = READS[reads]
    if x.dtype != "float32" and (x.dtype != form.dtype or form.planes > 1):
        raise DTypeError(message("operand", f"an array of {x.dtype} is not read as {reads}",
                                 f'convert it: convert(x, "{form.dtype}" or "float32")', shape=x.shape))
    return form


@lru_cache(maxsize=1)
def _constants() -> tuple[Array, Array, Array]:
    """Returns the scale 1, the flag 0 and the counter of flags."""
    return tuple(upload(np.array([value], dtype)) for value, dtype in ((1, "float32"), (0, "int32"), (0, "int32")))


def _split(x: Array, form: _Form) -> Operand:
    """Returns the operand of a float32 array, made in one launch or two: what is largest is measured, or known."""
    size, lost_ranges = x.size, _constants()[2]
    chunk = _chunk(size, context.sm_count)
    blocks = -(-size // chunk)
    if not form.scaled:
        made = _allocate(x, form, 0)
        form.split(blocks, x, made.keep, made.scale, size, chunk, False, lost_ranges)
        return made
    known = x.derived.header_for(form.reads) if x.__class__ is Deferred else None  # of its producer, or of a split
    known = known or (x.derived.get(form.measured) if x.derived else None)
    header, planes = known or _measure(x, form, chunk, blocks), empty((form.planes, *x.shape), form.dtype)
    form.split(blocks, x, planes, header.scale, size, chunk, known is not None, lost_ranges)
    return Operand(planes.ptr, form.dtype, header.scale, planes, header.flag)


def _measure(x: Array, form: _Form, chunk: int, blocks: int) -> Memory:
    """Returns the header of a split, kept with x: the next one needs no maximum.  Partial maxima follow it."""
    header = reserve((0,), more=4 * blocks)
    _AMAX(blocks, x, header.scale, x.size, chunk)
    return _kept(x, form.measured, header)


@lru_cache(maxsize=1024)
def _chunk(total: int, sm_count: int) -> int:
    """Returns how many elements a block takes, so that all blocks are on the device at once."""
    return max(1, -(-total // (BLOCKS_PER_SM * sm_count * STEP))) * STEP


def _allocate(x: Array, form: _Form, blocks: int) -> Operand:
    """Returns an operand without values: planes, header, and a partial maximum per block, in one piece of memory."""
    planes, scale, flag = reserve((form.planes, *x.shape), form.dtype, 4 * blocks)
    return Operand(planes.ptr, form.dtype, scale, planes, flag)
