"""einsum, and the products of vectors and matrices that go by names of their own."""

from __future__ import annotations

from math import prod
from typing import Any

from alpha.core.errors import ShapeError, message
from alpha.core.inputs.arguments import bound, checked
from alpha.core.inputs.kinds import FiniteNumber
from alpha.core.table import public
from alpha.core.tensor import Tensor
from alpha.ops.elementwise.curves import times
from alpha.ops.matmul import matmul
from alpha.ops.shape import expand, permute, reshape


@public(top=True)
@bound
def einsum(equation: str, *operands: Tensor) -> Tensor:
    """y = sum of products of the operands over the axes that the equation's right side leaves out.

    Args:
        equation: letters for the axes of each operand, "ij,jk->ik" say; "..." stands for leading axes that broadcast.
            Without "->" the letters that occur once are kept, in alphabetical order.
        operands: tensors, as many as there are names of axes; or one list of them.
    Raises:
        ShapeError: the equation and the shapes do not fit together, or a letter comes twice in an operand.
    The operands are taken from left to right, each pair by a matrix product over the letters that end there.
    """
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = tuple(operands[0])
    terms, result, sizes = _parsed(equation, operands)
    term, y = terms[0], operands[0]
    for k in range(1, len(terms)):
        needed = set(result).union(*terms[k + 1:])
        term, y = _product(term, y, terms[k], operands[k], needed, sizes)
    y = y.sum([k for k, c in enumerate(term) if c not in result]) if set(term) - set(result) else y
    term = [c for c in term if c in result]
    y = y.permute([term.index(c) for c in result]) if term != result else y
    return y


def _parsed(equation: str, operands: tuple[Tensor, ...]) -> tuple[list[list[str]], list[str], dict[str, int]]:
    """Returns the letters of each operand and of the result, and the size of each; "..." became capital letters."""
    def refuse(what: str) -> ShapeError:
        shapes = ", ".join(str(getattr(t, "shape", t)) for t in operands)
        return ShapeError(message("einsum", f"{what} in {str(equation)[:80]!r}", 'write it as "ij,jk->ik", letters for '
                                  "axes", operands=shapes))
    if not isinstance(equation, str) or not operands or not all(isinstance(t, Tensor) for t in operands):
        raise refuse("an equation and tensors are needed")
    left, arrow, right = equation.replace(" ", "").partition("->")
    parts = left.split(",")
    if len(parts) != len(operands):
        raise refuse(f"{len(parts)} operands are named, {len(operands)} given")
    spare = max([t.ndim - len(p.replace("...", "")) for p, t in zip(parts, operands) if "..." in p], default=0)
    terms: list[list[str]] = []
    sizes: dict[str, int] = {}
    for part, t in zip(parts, operands):
        free = t.ndim - len(part.replace("...", "")) if "..." in part else 0
        letters = list(part.replace("...", "".join(chr(0x3b1 + spare - free + k) for k in range(free))))
        if len(letters) != t.ndim or len(set(letters)) != len(letters) or not all(c.isalpha() for c in letters):
            raise refuse(f"{part!r} does not fit a tensor of {t.ndim} axes, a letter for each,")
        for c, n in zip(letters, t.shape):
            if sizes.setdefault(c, n) != n and 1 not in (n, sizes[c]):
                raise refuse(f"axis {c!r} has sizes {sizes[c]} and {n}")
            sizes[c] = max(sizes[c], n) if 0 not in (n, sizes[c]) else 0
        terms.append(letters)
    dots = [chr(0x3b1 + k) for k in range(spare)]
    every = [c for term in terms for c in term]
    if arrow:
        result = list(right.replace("...", "".join(dots)))
    else:
        result = dots + sorted(c for c in set(every) - set(dots) if every.count(c) == 1)
    if len(set(result)) != len(result) or set(result) - set(every):
        raise refuse(f"the result {right!r} has a letter twice, or one that no operand has,")
    return terms, result, sizes


def _product(a_term: list[str], a: Tensor, b_term: list[str], b: Tensor, needed: set[str], sizes: dict[str, int]
             ) -> tuple[list[str], Tensor]:
    """Returns the letters and the values of a product of two, summed over the letters that nobody needs later."""
    both = [c for c in a_term if c in b_term]
    batch, inner = [c for c in both if c in needed], [c for c in both if c not in needed]
    rows, columns = [c for c in a_term if c not in both], [c for c in b_term if c not in both]

    def matrices(term: list[str], t: Tensor, first: list[str], second: list[str]) -> Tensor:
        order = [*batch, *first, *second]
        t = permute(t, [term.index(c) for c in order]) if term != order else t
        whole = tuple(sizes[c] for c in order)
        t = expand(t, whole) if t.shape != whole else t
        return reshape(t, [prod(sizes[c] for c in letters) for letters in (batch, first, second)])

    product = matmul(matrices(a_term, a, rows, inner), matrices(b_term, b, inner, columns))
    term = [*batch, *rows, *columns]
    return term, reshape(product, [sizes[c] for c in term])


def _of(where: str, a: Tensor, a_ndim: int, b: Tensor, b_ndim: int) -> None:
    if (a.ndim, b.ndim) != (a_ndim, b_ndim):
        raise ShapeError(message(where, f"a has {a.ndim} axes and b {b.ndim}, {a_ndim} and {b_ndim} are needed",
                                 "use a @ b, which takes any", a=a.shape, b=b.shape))


@public(top=True, method=True)
@checked
def mm(a: Tensor, b: Tensor) -> Tensor:
    """y = a @ b of two matrices.  See matmul."""
    _of("mm", a, 2, b, 2)
    return matmul(a, b)


@public(top=True, method=True)
@checked
def bmm(a: Tensor, b: Tensor) -> Tensor:
    """y[n] = a[n] @ b[n] of two batches of matrices.  See matmul."""
    _of("bmm", a, 3, b, 3)
    if a.shape[0] != b.shape[0]:
        raise ShapeError(message("bmm", f"a has {a.shape[0]} matrices, b has {b.shape[0]}", "make them equal, or use "
                                 "a @ b, which broadcasts", a=a.shape, b=b.shape))
    return matmul(a, b)


@public(top=True, method=True)
@checked
def mv(a: Tensor, b: Tensor) -> Tensor:
    """y = a @ b of a matrix and a vector.  See matmul."""
    _of("mv", a, 2, b, 1)
    return matmul(a, b)


@public(top=True, method=True)
@checked
def dot(a: Tensor, b: Tensor) -> Tensor:
    """y = sum of a * b of two vectors.  See matmul."""
    _of("dot", a, 1, b, 1)
    return matmul(a, b)


@public(top=True, method=True)
@checked
def outer(a: Tensor, b: Tensor) -> Tensor:
    """y[i, j] = a[i] * b[j] of two vectors."""
    _of("outer", a, 1, b, 1)
    return reshape(a, (-1, 1)) * reshape(b, (1, -1))

@public(top=True, method=True)
@checked
def addmm(x: Tensor, mat1: Tensor, mat2: Tensor, *, beta: FiniteNumber = 1, alpha: FiniteNumber = 1) -> Tensor:
    """y = beta * x + alpha * (mat1 @ mat2) of two matrices; x broadcasts, and is not read where beta is 0.

    Raises ShapeError unless mat1 and mat2 are matrices that fit together.
    """
    return _added_product("addmm", 2, x, mat1, mat2, beta, alpha)


@public(top=True, method=True)
@checked
def baddbmm(x: Tensor, batch1: Tensor, batch2: Tensor, *, beta: FiniteNumber = 1, alpha: FiniteNumber = 1) -> Tensor:
    """y[n] = beta * x[n] + alpha * (batch1[n] @ batch2[n]) of two batches of matrices.  See addmm."""
    return _added_product("baddbmm", 3, x, batch1, batch2, beta, alpha)


def _added_product(where_: str, ndim: int, x: Tensor, a: Tensor, b: Tensor, beta: Any, alpha: Any) -> Tensor:
    if (a.ndim, b.ndim) != (ndim, ndim) or a.shape[:-2] != b.shape[:-2]:
        raise ShapeError(message(where_, f"the factors have shapes {a.shape} and {b.shape}, {ndim} axes are needed, "
                                 "all but the last two alike", "use x + a @ b, which takes any"))
    product = times(matmul(a, b), alpha)
    if len(x.shape) > ndim or any(m not in (1, n) for m, n in zip(x.shape[::-1], product.shape[::-1])):
        raise ShapeError(message(where_, f"x has shape {x.shape}, the product {product.shape}",
                                 "pass an x that broadcasts to the product"))
    return product if beta == 0 else times(x, beta) + product
