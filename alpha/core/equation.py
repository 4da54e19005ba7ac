"""The equation of a pointwise op: one expression, written once, from which every device's kernel is made.

    equation = "x if x > 0 else alpha * expm1(x)"
    equation = "p = logistic(x); (1 + x * (1 - p)) * p * g"

The syntax is Python's. There are the op's args and attributes, numbers, + - * / and minus, comparisons (also chained),
and, or, not, a conditional expression, the functions of FUNCTIONS, and names given before the last expression. A name
that stands for a condition is a bool tensor; all else is a float. Python's syntax and not C's, so that its parser can
check an equation where the op is defined, and NumPy can compute it where there is no compiler.

`code` writes it for compilers: C that is CUDA's and C++'s, in which a header defines `number`, `select` and the
functions, for floats or for vectors of them. `compute` evaluates it with NumPy.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, reduce
from typing import Any, NamedTuple

import numpy as np

from alpha.core.errors import ConfigError, message

Array = np.ndarray


def _logistic(x: Array) -> Array:
    return np.reciprocal(np.exp(-x) + 1)


def _by_element(name: str) -> Callable[..., Array]:
    def function(x: Array) -> Array:
        import math

        of = {"erf": math.erf, "cdf": lambda v: math.erfc(-v / math.sqrt(2)) / 2}[name]
        return np.vectorize(of, otypes=[np.float64])(x).astype(x.dtype)
    return function


# Functions that an equation may call, in NumPy's form: larger and smaller keep NaN.
FUNCTIONS: dict[str, tuple[int, Callable[..., Any]]] = {
    "abs": (1, np.abs), "sqrt": (1, np.sqrt), "exp": (1, np.exp), "expm1": (1, np.expm1), "log": (1, np.log),
    "log1p": (1, np.log1p), "tanh": (1, np.tanh), "erf": (1, _by_element("erf")), "logistic": (1, _logistic),
    "normal_cdf": (1, _by_element("cdf")),
    "normal_pdf": (1, lambda x: np.exp(x * x * -0.5) * (2 * np.pi) ** -0.5),
    "maximum": (2, np.maximum), "minimum": (2, np.minimum),
}
_ARITHMETIC = {ast.Add: ("+", np.add), ast.Sub: ("-", np.subtract), ast.Mult: ("*", np.multiply),
               ast.Div: ("/", np.true_divide)}
_COMPARISONS = {ast.Lt: ("<", np.less), ast.LtE: ("<=", np.less_equal), ast.Gt: (">", np.greater),
                ast.GtE: (">=", np.greater_equal), ast.Eq: ("==", np.equal), ast.NotEq: ("!=", np.not_equal)}
_LOGIC = {ast.And: ("&", np.logical_and), ast.Or: ("|", np.logical_or)}


class Code(NamedTuple):
    """An equation for compilers: statements, the result, whether that is a condition; args that are conditions."""

    statements: list[str]
    result: str
    is_condition: bool
    conditions: frozenset[str]


class Expressions:
    """Expressions of a text, checked: as C for compilers, and as NumPy computes them.  `where`: whose they are."""

    where: str
    text: str
    help = "write one expression of the op's args, attributes and numbers"

    def parsed(self) -> list[ast.stmt]:
        """Returns the statements of the text.  Raises ConfigError."""
        try:
            return ast.parse(self.text).body
        except (SyntaxError, ValueError) as error:
            raise self.refused("it is no expression of Python") from error

    def refused(self, what: str) -> ConfigError:
        return ConfigError(message(self.where, f"its equation {self.text!r} cannot be compiled: {what}",
                                   f"{self.help}; functions: {' '.join(FUNCTIONS)}"))

    def c_of(self, e: ast.expr, kinds: dict[str, bool | None], wanted: bool | None) -> tuple[str, bool]:
        """Returns an expression in C, and whether it is a condition, which it has to be where `wanted` says so."""
        text, condition = self._either(e, kinds, wanted)
        if wanted is not None and condition is not wanted:
            raise self.refused(f"{ast.unparse(e)} is {'a condition' if condition else 'a number'}, "
                               f"{'a condition' if wanted else 'a number'} is needed")
        return text, condition

    def _either(self, e: ast.expr, kinds: dict[str, bool | None], wanted: bool | None) -> tuple[str, bool]:
        def part(x: ast.expr, condition: bool = False) -> str:
            return self.c_of(x, kinds, condition)[0]

        match e:
            case ast.Constant(value=bool()):
                pass
            case ast.Constant(value=int() | float() as value):
                return f"number({float(value)!r}f)", False
            case ast.Name(id=name) if name in kinds:
                kinds[name] = bool(wanted) if kinds[name] is None else kinds[name]
                return f"{name}_", bool(kinds[name])
            case ast.UnaryOp(op=ast.USub(), operand=x):
                return f"(-{part(x)})", False
            case ast.UnaryOp(op=ast.Not(), operand=x):
                return f"(!{part(x, True)})", True
            case ast.BinOp(left=a, op=op, right=b) if type(op) in _ARITHMETIC:
                return f"({part(a)} {_ARITHMETIC[type(op)][0]} {part(b)})", False
            case ast.BoolOp(op=op, values=values):
                return f"({f' {_LOGIC[type(op)][0]} '.join([part(x, True) for x in values])})", True
            case ast.Compare(left=a, ops=signs, comparators=others) if all(type(s) in _COMPARISONS for s in signs):
                terms = [part(x) for x in (a, *others)]
                pairs = [f"({x} {_COMPARISONS[type(s)][0]} {y})" for x, s, y in zip(terms, signs, terms[1:])]
                return f"({' & '.join(pairs)})", True
            case ast.IfExp(test=test, body=a, orelse=b):
                return f"select({part(test, True)}, {part(a)}, {part(b)})", False
            case ast.Call(func=ast.Name(id=name), args=operands, keywords=[]) if name in FUNCTIONS:
                if len(operands) == FUNCTIONS[name][0]:
                    return f"{'absolute' if name == 'abs' else name}({', '.join([part(x) for x in operands])})", False
        raise self.refused(f"{ast.unparse(e)!r} is unknown")

    def value_of(self, e: ast.expr, known: Mapping[str, Any]) -> Any:
        """Returns the value of an expression by NumPy.  Both sides of a condition of arrays are computed."""
        match e:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return known[name]
            case ast.UnaryOp(op=op, operand=x):
                value = self.value_of(x, known)
                return np.negative(value) if isinstance(op, ast.USub) else np.logical_not(value)
            case ast.BinOp(left=a, op=op, right=b):
                return _ARITHMETIC[type(op)][1](self.value_of(a, known), self.value_of(b, known))
            case ast.BoolOp(op=op, values=values):
                return reduce(_LOGIC[type(op)][1], [self.value_of(x, known) for x in values])
            case ast.Compare(left=a, ops=signs, comparators=others):
                terms = [self.value_of(x, known) for x in (a, *others)]
                return reduce(np.logical_and, [_COMPARISONS[type(s)][1](x, y)
                                               for x, s, y in zip(terms, signs, terms[1:])])
            case ast.IfExp(test=test, body=a, orelse=b):
                return _where(*[self.value_of(x, known) for x in (test, a, b)])
            case ast.Call(func=ast.Name(id=name), args=operands):
                return FUNCTIONS[name][1](*[self.value_of(x, known) for x in operands])
        raise AssertionError("checked when it was made")


def assigned(statement: ast.stmt) -> str:
    """Returns the one name that a statement assigns an expression to, or ""."""
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)]):
            return name
    return ""


class Equation(Expressions):
    """A checked equation.  `names` are what it reads: args first, then attributes, in the order of the op."""

    def __init__(self, where: str, text: str, args: Sequence[str], attrs: Sequence[str] = ()) -> None:
        """Raises ConfigError: the text is no equation of these names."""
        self.where, self.text, self.args, self.attrs = where, text, tuple(args), tuple(attrs)
        *named, last = self.parsed() or [ast.Pass()]
        if not isinstance(last, ast.Expr) or not all(map(assigned, named)):
            raise self.refused("it is not `name = expression; ...; expression`")
        self._named: list[tuple[str, ast.expr]] = [(assigned(n), n.value) for n in named]  # type: ignore[attr-defined]
        self._last = last.value
        self.code = self._written()

    # ---- for compilers -----------------------------------------------------------------------------------------------

    def _written(self) -> Code:
        kinds: dict[str, bool | None] = dict.fromkeys(self.args)   # whether a name is a condition
        kinds |= dict.fromkeys(self.attrs, False)
        statements = []
        for name, value in self._named:
            if name in kinds:
                raise self.refused(f"{name} has two meanings")
            text, kinds[name] = self.c_of(value, kinds, None)
            statements.append(f"const auto {name}_ = {text};")
        result, condition = self.c_of(self._last, kinds, None)
        return Code(statements, result, condition, frozenset(a for a in self.args if kinds[a]))

    def function(self, name: str, qualifiers: str = "") -> str:
        """Returns a C function of one line that computes the equation of floats (bools for conditions) as `number`s."""
        params = ", ".join([f"{'bool' if a in self.code.conditions else 'number'} {a}_"
                            for a in (*self.args, *self.attrs)])
        body = " ".join([*self.code.statements, f"return {self.code.result}{'' if self.code.is_condition else '.v'};"])
        return f"{qualifiers}auto {name}({params}) {{ {body} }}"

    # ---- for NumPy ---------------------------------------------------------------------------------------------------

    def compute(self, values: Mapping[str, Any]) -> Array:
        """Returns the result from arrays and numbers by name.  Both sides of a condition are computed."""
        known = dict(values)
        with np.errstate(all="ignore"):
            for name, value in self._named:
                known[name] = self.value_of(value, known)
            return np.asarray(self.value_of(self._last, known))

    def shrinks(self, numbers: tuple[float, ...]) -> bool:
        """Tells whether no result of its only arg is larger than that, as far as samples show.

        numbers: the attributes.
        """
        return len(self.args) == 1 and not self.code.is_condition and _shrinks(self, numbers)


@lru_cache(maxsize=256)
def _shrinks(equation: Equation, numbers: tuple[float, ...]) -> bool:
    y = equation.compute({equation.args[0]: _SAMPLES, **dict(zip(equation.attrs, numbers))})
    return bool((np.abs(y) <= np.abs(_SAMPLES) * (1 + 2.0 ** -20)).all())


# The range where activations have their pieces, and large and small numbers.
_SAMPLES = np.concatenate([np.linspace(-16, 16, 4001), *[sign * np.exp2(np.arange(-60, 60.0)) for sign in (1, -1)]])


def _where(test: Any, a: Any, b: Any) -> Any:
    """np.where of numbers that take the dtype of the arrays."""
    arrays = [x for x in (a, b) if isinstance(x, np.ndarray)]
    if len(arrays) == 1:
        a, b = [np.asarray(x, arrays[0].dtype) for x in (a, b)]
    return np.where(test, a, b)
