"""Chains of pointwise ops as kernels: from alpha.fuse.chain's Chain to a source, to its launch (chain.cuh).

An op whose class has an equation is `joined`: where its result is large enough to be worth it, and every operand lies
in a way that a kernel knows, it waits (lazy/chained.py), and its readers decide what becomes one pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from math import gcd, prod
from typing import Any, NamedTuple

from alpha.build import written
from alpha.core.config import config
from alpha.core.equation import Equation
from alpha.core.errors import DTypeError, message
from alpha.core.op import Op, registry
from alpha.cuda import lazy
from alpha.cuda.runtime import toolchain
from alpha.cuda.runtime.kernel import FLOAT_DTYPES, Kernel
from alpha.cuda.runtime.memory import ITEMSIZE, Array, Shape, empty
from alpha.cuda.runtime.walk import BLOCKS, LONGEST, SUMMERS, Walk, walk
from alpha.fuse.chain import Chain, Function, Leaf, Value, gather
from alpha.fuse.places import WHOLE, Place, place_of, row_of
from alpha.fuse.source import AS_PLANES, BOUNDED, GUARDED, PLAIN, PLANES, TYPES, head, source
from alpha.ops.elementwise import broadcast_shape

_BYTES = {**ITEMSIZE, PLANES: 4}
LEAST = 1 << 17          # elements of a result that waits: below, the host takes longer for it than the device
WRITERS = 8 * BLOCKS     # blocks of a pass that writes
LONGEST_NAME = 100       # of a kernel


# ---- which ops wait --------------------------------------------------------------------------------------------------
def function(op: Op) -> Function:
    """Returns what a pointwise op does to an element, in device code."""
    assert op.equation
    return Function(f"{op.name}_of", op.equation.function(f"{op.name}_of", "EQUATION "),
                    op.equation.code.is_condition)


def joined(op: Op, alone: Callable[..., Array] | None = None,
           number: Callable[[Any, str], float] = lambda value, dtype: value,
           numbers: Callable[..., tuple[float, ...]] | None = None) -> None:
    """Binds an implementation of a pointwise op whose result waits where it can, and which is `alone` elsewhere.

    Args:
        alone: the op by itself; None: the kernel of a chain that has nothing else.
        number: makes a float of a number that stands for a tensor, beside a dtype.
        numbers: makes floats of the attributes, beside a dtype.
    """
    equation, code = op.equation, function(op)
    of_attrs = numbers or (lambda dtype, **attrs: tuple([attrs[name] for name in equation.attrs]))
    by_itself, kind = alone or _single(op, code), "bool" if code.is_condition else None

    @op.impl("cuda")
    def run(*operands: Any, **attrs: Any) -> Array:
        if config.fuse:
            shape, dtype = _result(operands)
            if dtype in FLOAT_DTYPES and may_wait(prod(shape)):
                given = [x if isinstance(x, Array) else Leaf(float(number(x, dtype)), None) for x in operands]
                numbers_given = [None if isinstance(x, Array) else x for x in operands]
                found = wait(code, given, of_attrs(dtype, **attrs), kind or dtype, shape, lambda *xs: by_itself(
                    *[x if y is None else y for x, y in zip(xs, numbers_given)], **attrs), equation)
                if found is not None:
                    return found
        return by_itself(*operands, **attrs)


def may_wait(size: int) -> bool:
    """Tells whether results of so many elements wait."""
    return (size >= LEAST or (lazy.is_inferring() and size > 0)) and config.fuse


def can_chain() -> bool:
    """Tells whether chains are made, and can be compiled here."""
    return config.fuse and toolchain.can_compile()


def whole(x: Array) -> Value | Leaf:
    """Returns what an array of all elements is to a chain: a value, or what is there, planes or elements."""
    value = lazy.value_of(x)
    if value is not None:
        return value
    planes = lazy.planes_of(x)
    if planes is None:
        lazy.write_for(x, "float32")    # now, as elements: later somebody may have it written as planes
    return Leaf(planes or x, WHOLE)


def _result(operands: Sequence[Any]) -> tuple[Shape, str]:
    """Returns the shape of a result, and the dtype of the operands that are no conditions: "" if all are."""
    arrays = [x for x in operands if isinstance(x, Array)]
    shape = arrays[0].shape
    for x in arrays:
        if x.shape != shape:
            shape = _common(tuple([x.shape for x in arrays]))
            break
    return shape, next((x.dtype for x in arrays if x.dtype != "bool"), "")


def _single(op: Op, code: Function) -> Callable[..., Array]:
    """Returns what runs an op of the user's by the kernel of its equation.  That raises DTypeError."""
    equation: Any = op.equation

    def run(*operands: Any, **attrs: Any) -> Array:
        shape, dtype = _result(operands)
        if dtype not in FLOAT_DTYPES:
            raise DTypeError(message(op.name, f"its equation computes floats, the dtype is {dtype or 'bool'}",
                                     'convert the tensor: x.astype("float32")', equation=equation.text))
        inputs = [Leaf(x, place_of(x.shape, shape)) if isinstance(x, Array) else Leaf(float(x), None) for x in operands]
        row = row_of([leaf.place for leaf in inputs if leaf.place], [], prod(shape))
        if row is None or any(leaf.place is None and isinstance(leaf.array, Array) for leaf in inputs):
            repeat, row = registry["expand"].impls["cuda"], 0
            inputs = [Leaf(repeat(x, shape=shape), WHOLE) if isinstance(x, Array) else leaf
                      for x, leaf in zip(operands, inputs)]
        value = Value(code, inputs, tuple([attrs[name] for name in equation.attrs]),
                      "bool" if code.is_condition else dtype, prod(shape), row)
        return write(value)[1][0].reshaped(shape) if value.size else empty(shape, value.dtype)
    return run


@lru_cache(maxsize=1024)
def _common(shapes: tuple[Shape, ...]) -> Shape:
    return broadcast_shape("chain", **{f"operand {k}": shape for k, shape in enumerate(shapes)})


def wait(code: Function, operands: Sequence[Array | Leaf], numbers: tuple[float, ...], dtype: str, shape: Shape,
         alone: Callable[..., Array], equation: Equation | None = None) -> Array | None:
    """Returns the result of a function that waits for a reader; None where it cannot.

    Args:
        operands, numbers: as of `result_of`.
        alone: the op by itself.
        equation: of the function, if it has one: by it a bound of the only operand may be one of the result.
    """
    value = result_of(code, operands, numbers, dtype, shape)
    if value is None:
        return None
    shrinks = len(operands) == 1 and dtype == "float32" and equation is not None and equation.shrinks(numbers)
    if memory := lazy.reserve_for(shape, operands, flush=False) if shrinks else None:
        return bounded(value, memory)
    shapes = [() if x.__class__ is Leaf else x.shape for x in operands]
    return lazy.chain(value, shape, shapes, write, alone)


def result_of(code: Function, operands: Sequence[Array | Leaf], numbers: tuple[float, ...], dtype: str, shape: Shape
              ) -> Value | None:
    """Returns what a function makes of its operands, or of those that are values; None where no pass can compute it.

    Values that would make the chain too long are written, as chains of their own.

    Args:
        operands: arrays, and leaves that are numbers.
        numbers: further arguments of the function.
    """
    if not toolchain.can_compile() or not lazy.can_wait(*[x for x in operands if x.__class__ is not Leaf]):
        return None
    size = prod(shape)
    inputs: list[Value | Leaf] = []
    places: list[Place] = []
    inner: list[Value] = []
    for x in operands:
        if x.__class__ is Leaf:
            inputs.append(x)    # a number, or numbers
            continue
        if x.dtype not in TYPES:
            return None
        place = place_of(x.shape, shape)
        if place is None:
            return None
        if place is WHOLE:
            found = whole(x)
        else:
            lazy.write_for(x, "float32")
            found = Leaf(x, place)
        inputs.append(found)
        inner += [found] if isinstance(found, Value) else []
        places += [] if isinstance(found, Value) else [place]
    row = row_of(places, inner, size)
    value = Value(code, inputs, numbers, dtype, size, row or 0)
    if inner and (row is None or not value.fits(WHOLE)):
        for k, x in enumerate(operands):
            if inputs[k].__class__ is Value:
                inputs[k] = Leaf(x, WHOLE)
                lazy.write_for(x, "float32")    # as a chain of its own
        row = row_of(places, [], size)
        value = Value(code, inputs, numbers, dtype, size, row or 0)
    return None if row is None else value


def bounded(value: Value, memory: lazy.Memory, hurries: bool = False) -> Any:
    """Returns a value of float32 that waits for a reader: one who has it written as planes, or makes it for itself.

    Args:
        memory: for it, with a bound of it in its header by the time that it is written.
        hurries: as of `lazy.defer`.
    """
    reads = [leaf.array for leaf in value.leaves(WHOLE) if isinstance(leaf.array, Array)]
    return lazy.offer(lazy.defer(memory, reads, partial(_write_bounded, value), hurries), value)


def _write_bounded(value: Value, memory: lazy.Memory, planes: bool) -> None:
    """Writes a value as planes, or its elements; as elements too where planes turn out not to hold it."""
    y, header, flag = memory
    chain = gather([value], WHOLE, [value])
    chain = chain._replace(outputs=(len(chain.steps) - 1,))     # others that are alive are written by themselves
    if planes:
        pass_ = _pass_of(chain, value.size, value.row, AS_PLANES, blocks=lazy.PLANE_WRITERS)
        pass_.launch(chain, [y], (header, lazy.flag_counter()))
    elements = _pass_of(chain, value.size, value.row, GUARDED, blocks=lazy.GUARDED if planes else 0)
    elements.launch(chain, [y], (flag if planes else None,))


# ---- the passes ------------------------------------------------------------------------------------------------------
def write(value: Value, spared: Sequence[Value] = ()) -> tuple[Chain, list[Array]]:
    """Writes a value, and what is kept on its way.  spared: as of `gather`."""
    chain = gather([value], WHOLE, [value], spared)
    pass_ = _pass_of(chain, value.size, value.row)
    arrays = [empty((value.size,), chain.steps[k].dtype) for k in chain.outputs]
    pass_.launch(chain, arrays, ())
    return chain, arrays


class Numbers(NamedTuple):
    """Random numbers, as a kernel gets them: seed, stream, offset, and what a recording adds to seed and offset."""

    arguments: tuple[int, int, int, Array | None]


class Pass(NamedTuple):
    """A kernel, how it walks, and the elements of a row."""

    kernel: Kernel
    walk: Walk
    row: int

    def launch(self, chain: Chain, arrays: Sequence[Array], more: Sequence[Any]) -> None:
        """Launches it; more: further arguments."""
        given = [x for leaf in chain.leaves for x in getattr(leaf.array, "arguments", (leaf.array,))]
        spans = [max(1, leaf.place.length // self.row) if leaf.place.kind == "row" else leaf.place.times
                 for leaf in chain.leaves if leaf.place is not None and leaf.place.kind in ("row", "gate")]
        numbers = [n for v in chain.steps for n in v.numbers]
        self.kernel(self.walk.grid, *given, *spans, *numbers, *arrays, *more, self.walk.block)


def _pass_of(chain: Chain, size: int, row: int, form: str = PLAIN, sums: tuple[int, ...] = (), blocks: int = 0) -> Pass:
    """Returns the pass of a chain.

    Args:
        form: see `source`; sums: the numbers of the steps that are added up, see `sums_of`.
        blocks: that are enough; 0: as many as there are otherwise.
    """
    key = (tuple([(v.function, len(v.numbers), refs, v.dtype) for v, refs in zip(chain.steps, chain.refs)]),
           tuple([None if leaf.place is None else (leaf.place.kind, getattr(leaf.array, "dtype", ""))
                  for leaf in chain.leaves]),
           chain.outputs)
    widest = max([_BYTES[leaf.array.dtype] for leaf in chain.leaves if leaf.place == WHOLE]
                 + [ITEMSIZE[chain.steps[k].dtype] for k in chain.outputs])
    row = abs(row) or size
    most = 16 // widest if widest > 1 else 8
    n = 1 if sums and widest == 4 and row % 4 else gcd(row, most)  # in the order of batch_norm.cu
    if row == size:
        row = n  # a matrix of one column
    limits = SUMMERS if sums else (blocks,) if blocks else (WRITERS, LONGEST)
    return Pass(_kernel(*key, n, sums, form), walk(size // row, row // n, *limits), row)


def sums_of(v: Value, w: Value, row: int, written: Sequence[Value], spared: Sequence[Value],
            header: Array | None = None) -> tuple[Chain, list[Array], Array]:
    """Runs a pass that adds up v and v * w over the rows of a matrix, and writes values on its way.

    Args:
        header: is made ready for a bound of v; the largest |v| of each column's chunks is found, too.
    Returns:
        the chain and what was written; partial sums, float32 (2, row, chunks), or (3, ...) with the largest |v|.
    """
    chain = gather([v, w], WHOLE, written, spared)
    pass_ = _pass_of(chain, v.size, row, BOUNDED if header else PLAIN,
                     tuple([[x is y for y in chain.steps].index(True) for x in (v, w)]))
    arrays = [empty((v.size,), chain.steps[k].dtype) for k in chain.outputs]
    sums = empty((3 if header else 2, row, pass_.walk.chunks), "float32")
    pass_.launch(chain, arrays, (sums, header) if header else (sums,))
    return chain, arrays, sums


# ---- from a chain to its kernel --------------------------------------------------------------------------------------
@lru_cache(maxsize=1024)
def _kernel(steps: Any, leaves: Any, outputs: tuple[int, ...], n: int, sums: tuple[int, ...], form: str) -> Kernel:
    name = "_".join(["chain", *[code.name.removesuffix("_of") for code, *_ in steps]])[:LONGEST_NAME].rstrip("_")
    text, found = head(steps, n), {}
    for each in (GUARDED, AS_PLANES) if form in (GUARDED, AS_PLANES) else (form,):  # of one module: both are launched
        entry = name + "_planes" * (each == AS_PLANES)
        kernel, args = source(entry, steps, leaves, outputs, sums, each)
        text, found[each] = text + kernel, (entry, args)
    path = written("chain", text, ".cu")
    toolchain.generated.add(path)
    return Kernel(path, *found[form])
