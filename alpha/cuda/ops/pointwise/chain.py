"""Chains of pointwise ops as kernels: from alpha.fuse.chain's Chain to a source, to its launch (chain.cuh).

An op whose class has an equation is `joined`: where its result is large enough to be worth it, and every operand lies
in a way that a kernel knows, it waits (lazy/chained.py), and its readers decide what becomes one pass.

What an operand gives for element i of the result, a vector of `length` elements repeating or each serving for many:

    whole    x[i]                   one      x[0]
    column   x[i % length]          row      x[i / length]
    gate     x[i / (length * times) * length + i % length], as (N, 1, 1, C) lies in (N, H, W, C)
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Sequence
from functools import lru_cache
from math import gcd, prod
from pathlib import Path
from typing import Any, NamedTuple

from alpha.build import cache_dir
from alpha.config import config
from alpha.cuda import lazy
from alpha.cuda.ops.pointwise.equations import function
from alpha.cuda.runtime import toolchain
from alpha.cuda.runtime.kernel import C_TYPES, FLOAT_DTYPES, Kernel
from alpha.cuda.runtime.memory import ITEMSIZE, Array, empty
from alpha.cuda.runtime.walk import BLOCKS, CHAIN, LONGEST, WALK, Walk, walk
from alpha.errors import DTypeError, message
from alpha.fuse.chain import MOST_LEAVES, MOST_STEPS, Chain, Function, Leaf, Value, gather
from alpha.op import Op, registry
from alpha.ops.layout import broadcast_strides, merged
from alpha.recompute import plan as recompute

Shape = tuple[int, ...]

LEAST = 1 << 15          # elements of a result that waits: below, a launch takes longer than the memory's traffic
WRITERS = 8 * BLOCKS     # blocks of a pass that writes
LONGEST_NAME = 100       # of a kernel
TYPES = {**C_TYPES, "bool": "unsigned char"}


class Place(NamedTuple):
    """Where an operand has the element for each of the result."""

    kind: str
    length: int = 0
    times: int = 1


WHOLE = Place("whole")


@lru_cache(maxsize=4096)
def place_of(shape: Shape, target: Shape) -> Place | None:
    """Returns how a shape lies in one that it broadcasts to; None where no kernel knows it."""
    if shape == target:
        return WHOLE
    sizes, (steps,) = merged(target, [broadcast_strides(shape, target)])
    if not any(steps):
        return Place("one")
    if len(sizes) == 1:
        return WHOLE
    if steps == (1, 0):
        return Place("column", sizes[0])
    if steps == (0, 1):
        return Place("row", sizes[0])
    if steps == (1, 0, sizes[0]):
        return Place("gate", sizes[0], sizes[1])
    return None


def _row(places: Sequence[Place], inner: Sequence[Value], size: int) -> int | None:
    """Returns after how many elements the vectors of all begin anew, 0 if none are read; None if they do not agree."""
    rows = {p.length for p in places if p.kind in ("column", "gate")} | {v.row for v in inner if v.row > 0}
    spans = [p.length for p in places if p.kind == "row"] + [-v.row for v in inner if v.row < 0]
    if len(rows) > 1:
        return None
    if rows:
        row = rows.pop()
        return row if all(span % row == 0 for span in spans) and size // row < 1 << 31 else None
    return -gcd(*spans) if spans else 0


# ---- which ops wait --------------------------------------------------------------------------------------------------


def joined(op: Op, alone: Callable[..., Array] | None = None, result: str | None = None,
           number: Callable[[Any, str], float] = lambda value, dtype: value,
           numbers: Callable[..., tuple[float, ...]] | None = None) -> None:
    """Makes a pointwise op's implementation one that waits where it can, and is `alone` elsewhere.

    Args:
        alone: the op by itself; None: the kernel of a chain that has nothing else.
        result: dtype of y, where it is not that of the operands.
        number: makes a float of a number that stands for a tensor, beside a dtype.
        numbers: makes floats of the attributes, beside a dtype.
    """
    equation, code = op.equation, function(op)
    assert equation
    of_attrs = numbers or (lambda dtype, **attrs: tuple([attrs[name] for name in equation.attrs]))
    by_itself, kind = alone or _single(op, code), result or ("bool" if code.is_condition else None)

    @op.impl("cuda")
    def run(*operands: Any, **attrs: Any) -> Array:
        if config.fuse:
            shape, dtype = _result(operands)
            if dtype in FLOAT_DTYPES and prod(shape) >= LEAST:
                given = [x if isinstance(x, Array) else Leaf(float(number(x, dtype)), None) for x in operands]
                numbers_given = [None if isinstance(x, Array) else x for x in operands]
                found = wait(code, given, of_attrs(dtype, **attrs), kind or dtype, shape, lambda *xs: by_itself(
                    *[x if y is None else y for x, y in zip(xs, numbers_given)], **attrs))
                if found is not None:
                    return found
        return by_itself(*operands, **attrs)


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
    equation = op.equation
    assert equation

    def run(*operands: Any, **attrs: Any) -> Array:
        shape, dtype = _result(operands)
        if dtype not in FLOAT_DTYPES:
            raise DTypeError(message(op.name, f"its equation computes floats, the dtype is {dtype or 'bool'}",
                                     'convert the tensor: x.astype("float32")', equation=equation.text))
        inputs = [Leaf(x, place_of(x.shape, shape)) if isinstance(x, Array) else Leaf(float(x), None) for x in operands]
        row = _row([leaf.place for leaf in inputs if leaf.place], [], prod(shape))
        if row is None or any(leaf.place is None and isinstance(leaf.array, Array) for leaf in inputs):
            repeat, row = registry["expand"].impls["cuda"], 0
            inputs = [Leaf(repeat(x, shape=shape), WHOLE) if isinstance(x, Array) else leaf
                      for x, leaf in zip(operands, inputs)]
        value = Value(code, inputs, tuple([attrs[name] for name in equation.attrs]),
                      "bool" if code.is_condition else dtype, prod(shape), False, row)
        return write(value)[1][0].reshaped(shape) if value.size else empty(shape, value.dtype)
    return run


@lru_cache(maxsize=4096)
def _common(shapes: tuple[Shape, ...]) -> Shape:
    rank = max(map(len, shapes))
    return tuple([max(column) if 0 not in column else 0
                  for column in zip(*[(1,) * (rank - len(s)) + s for s in shapes])])


def wait(code: Function, operands: Sequence[Array | Leaf], numbers: tuple[float, ...], dtype: str, shape: Shape,
         alone: Callable[..., Array], rounds: bool | None = None) -> Array | None:
    """Returns the result of a function that waits for a reader; None where it cannot.

    Args:
        operands: arrays, and leaves that are numbers.
        numbers: further arguments of the function.
        alone: the op by itself.
        rounds: see Value; None: as the settings say.
    """
    arrays = [x for x in operands if x.__class__ is not Leaf]
    if not toolchain.can_compile() or not lazy.can_wait(*arrays):
        return None
    size = prod(shape)
    inputs: list[Value | Leaf] = []
    places: list[Place] = []
    inner: list[Value] = []
    for x in operands:
        if x.__class__ is Leaf:
            inputs.append(x)
            continue
        if x.dtype not in TYPES:
            return None
        place = place_of(x.shape, shape)
        if place is None:
            return None
        value = lazy.value_of(x) if place is WHOLE else None
        if value is None:
            inputs.append(Leaf(x, place))
            places.append(place)
        else:
            inputs.append(value)
            inner.append(value)
    row = _row(places, inner, size)
    if inner and (row is None or 1 + sum([v.steps for v in inner]) > MOST_STEPS
                  or len(places) + sum([v.reads for v in inner]) > MOST_LEAVES):
        for k, x in enumerate(operands):
            if inputs[k].__class__ is Value:
                inputs[k] = Leaf(x, WHOLE)
                lazy.write_for(x, "float32")    # as a chain of its own
        row = _row(places, [], size)
    if row is None:
        return None
    if rounds is None:
        rounds = config.recompute != "none" or bool(recompute.segments) or lazy.is_undisturbed()
    value = Value(code, inputs, numbers, dtype, size, rounds, row)
    shapes = [() if x.__class__ is Leaf else x.shape for x in operands]
    return lazy.chain(value, shape, shapes, write, alone)


# ---- the passes ------------------------------------------------------------------------------------------------------


def write(value: Value, spared: Sequence[Value] = ()) -> tuple[Chain, list[Array]]:
    """Writes a value, and what is kept on its way.  spared: as of `gather`."""
    chain = gather([value], WHOLE, [value], spared)
    pass_ = _pass_of(chain, value.size, value.row)
    arrays = [empty((value.size,), chain.steps[k].dtype) for k in chain.outputs]
    pass_.launch(chain, arrays, ())
    return chain, arrays


class Pass(NamedTuple):
    """A kernel, how it walks, and the elements of a row."""

    kernel: Kernel
    walk: Walk
    row: int

    def launch(self, chain: Chain, arrays: Sequence[Array], more: Sequence[Any]) -> None:
        """Launches it; more: further arguments."""
        given = [leaf.array for leaf in chain.leaves]
        spans = [max(1, leaf.place.length // self.row) if leaf.place.kind == "row" else leaf.place.times
                 for leaf in chain.leaves if leaf.place is not None and leaf.place.kind in ("row", "gate")]
        numbers = [n for v in chain.steps for n in v.numbers]
        self.kernel(self.walk.grid, *given, *spans, *numbers, *arrays, *more, self.walk.block)


def _pass_of(chain: Chain, size: int, row: int, sums: tuple[int, ...] = ()) -> Pass:
    """Returns the pass of a chain.  sums: the numbers of the steps that are added up, see sums_of."""
    key = (tuple([(v.function, len(v.numbers), refs, v.dtype, v.rounds) for v, refs in zip(chain.steps, chain.refs)]),
           tuple([None if leaf.place is None else (leaf.place.kind, leaf.array.dtype) for leaf in chain.leaves]),
           chain.outputs)
    widest = max([ITEMSIZE[leaf.array.dtype] for leaf in chain.leaves if leaf.place == WHOLE]
                 + [ITEMSIZE[chain.steps[k].dtype] for k in chain.outputs])
    row = abs(row) or size
    n = gcd(row, 16 // widest if widest > 1 else 8)
    if row == size:
        row = n  # a matrix of one column
    return Pass(_kernel(*key, n, sums), walk(size // row, row // n, *((BLOCKS, CHAIN) if sums else
                                                                     (WRITERS, LONGEST))), row)


def sums_of(v: Value, w: Value, row: int, written: Sequence[Value],
            spared: Sequence[Value]) -> tuple[Chain, list[Array], Array, int]:
    """Runs a pass that adds up v and v * w over the rows of a matrix, and writes values on its way.

    Returns:
        the chain and what was written; partial sums, float32 (2, row, chunks); the number of chunks.
    """
    chain = gather([v, w], WHOLE, written, spared)
    pass_ = _pass_of(chain, v.size, row, tuple([[x is y for y in chain.steps].index(True) for x in (v, w)]))
    arrays = [empty((v.size,), chain.steps[k].dtype) for k in chain.outputs]
    partial = empty((2, row, pass_.walk.chunks), "float32")
    pass_.launch(chain, arrays, (partial,))
    return chain, arrays, partial, pass_.walk.chunks


# ---- from a chain to its source --------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def _kernel(steps: Any, leaves: Any, outputs: tuple[int, ...], n: int, sums: tuple[int, ...]) -> Kernel:
    entry = "_".join(["chain", *[code.name.removesuffix("_of") for code, *_ in steps]])[:LONGEST_NAME].rstrip("_")
    text, args = source(entry, steps, leaves, outputs, n, sums)
    return Kernel(_file(text), entry, args)


def _file(text: str) -> Path:
    """Returns a file with a source, named by what it has."""
    path = cache_dir() / f"chain-{hashlib.sha256(text.encode()).hexdigest()[:20]}.cu"
    if not path.exists():
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".chain-")
        with os.fdopen(handle, "w") as file:
            file.write(text)
        os.replace(name, path)
    toolchain.generated.add(path)
    return path


def source(entry: str, steps: Sequence[tuple], leaves: Sequence[tuple[str, str] | None], outputs: Sequence[int],
           n: int, sums: tuple[int, ...]) -> tuple[str, str]:
    """Returns the source of a chain's kernel, and the arguments that it is declared with."""
    params, spans, held, members, loads, reads = [], [], [], [], [], []
    for k, leaf in enumerate(leaves):
        kind, dtype = leaf or ("number", "float32")
        params.append(f"float x{k}" if leaf is None else f"const {TYPES[dtype]} *__restrict__ x{k}")
        if kind in ("row", "gate"):
            spans.append(f"unsigned span{k}")
        if kind == "column":
            held.append(f"  const auto held{k} = some<N>(x{k} + first);")
        elif kind == "one":
            held.append(f"  const auto held{k} = one<N>(x{k});")
        elif kind == "row":
            members.append(f"decltype(one<N>(x{k})) x{k};")
            loads.append(f"one<N>(x{k} + unsigned(r) / span{k})")
        elif leaf is not None:
            at = "r" if kind == "whole" else f"i64(unsigned(r) / span{k})"
            members.append(f"decltype(some<N>(x{k})) x{k};")
            loads.append(f"some<N>(x{k} + {at} * stride + first)")
        reads.append({"number": f"x{k}", "column": f"held{k}.get(k)", "one": f"held{k}", "row": f"row.x{k}"}.get(
            kind, f"row.x{k}.get(k)"))
    numbers, body, functions = [], [], {}
    for k, (code, count, refs, dtype, rounds) in enumerate(steps):
        functions[code.name] = code.text
        own = [f"n{len(numbers) + j}" for j in range(count)]
        numbers += own
        call = f"{code.name}({', '.join([f'v{j}' if inside else reads[j] for inside, j in refs] + own)})"
        if rounds and dtype in ("bfloat16", "float16"):
            call = f"rounded<{TYPES[dtype]}>({call})"
        body.append(f"      const auto v{k} = {call};")
        if k in outputs:
            body.append(f"      y{k}_[k] = v{k};")
    flight = max(1, min(4, 8 // max(1, len(members))))
    params += spans + [f"float {name}" for name in numbers] + [f"{TYPES[steps[k][3]]} *__restrict__ y{k}"
                                                               for k in outputs]
    params += ["float *partial"] * bool(sums) + ["const Walk w"]
    kinds = [WALK if p.startswith("const Walk") else
             f"{'ptr' if '*' in p else 'u32' if p.startswith('unsigned') else 'f32'} {p.split()[-1].lstrip('*')}"
             for p in params]
    lines = [
        f"// {' '.join([code.name.removesuffix('_of') for code, *_ in steps])}: generated, see chain.py",
        '#include "ops/pointwise/chain.cuh"', *functions.values(), f"constexpr int N = {n};",
        f'extern "C" __global__ void __launch_bounds__(THREADS, 2) {entry}({", ".join(params)}) {{',
        "  const Place at(w);",
        *(["  Pair sums[N] = {};", "  if (at.begin < at.end) {"] if sums else ["  if (at.begin >= at.end) return;"]),
        "  const i64 first = at.column * N, stride = w.columns * N;", *held,
        f"  struct Row {{ {' '.join(members)} }};",
        f"  auto load = [&](i64 r) {{ return Row{{{', '.join(loads)}}}; }};",
        f"  each_row<{flight}>(at, w, load, [&](const Row &row, i64 r) {{",
        *[f"    {'bool' if steps[k][0].is_condition else 'float'} y{k}_[N];" for k in outputs],
        "#pragma unroll", "    for (int k = 0; k < N; k++) {", *body,
        *([f"      sums[k].sum += v{sums[0]}, sums[k].dot += v{sums[0]} * v{sums[1]};"] if sums else []), "    }",
        *[f"    put(y{k} + r * stride + first, y{k}_);" for k in outputs], "  });",
        *(["  }", "  put_sums(sums, partial, w, at);"] if sums else []), "}", f"ALPHA_KERNEL({entry})", ""]
    return "\n".join(lines), ", ".join(kinds)

