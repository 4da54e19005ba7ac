"""The rule of an optimizer: its equations over lists of tensors, written once, from which all kernels are made.

    Rule("momentum", '''
        v = mu * v + g
        w = w - lr / t * v
    ''')

The syntax is Python's, as in alpha.core.equation: one `name = expression` a line. Every name has a meaning:

    w, g       a parameter and its gradient (or the two names of `over`): lists of tensors
    states     what is assigned and is read before: v above; lists of tensors too
    t, lr      number of the step, from 1, and the learning rate
    settings   every other name that is read and never assigned: a number
    the rest   is assigned first, and read in the lines below

An expression without tensors is a number. The host computes it in double, with Python's operators (** too) and the
functions of NUMBERS, and rounds it to float32 once: mu and lr / t above. Those numbers are all that a kernel gets, so
that a step that is recorded (alpha.capture) reads others each time. All else is computed for each element, in float32.

A state may be optional. `vmax if vmax else v` is vmax where it is given, and v where it is not; a line that assigns a
state that is not given is left out. A Variant is the rule of the states that are given.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import compress, product
from textwrap import dedent
from typing import Any

import numpy as np

from alpha.core.equation import Expressions, assigned
from alpha.core.errors import ArgumentError, ConfigError, message, shown

Array = np.ndarray
MOST_STATES = 12

# What an expression without tensors may call.
NUMBERS: dict[str, Callable[..., float]] = {
    "abs": abs, "sqrt": math.sqrt, "exp": math.exp, "expm1": math.expm1, "log": math.log, "log1p": math.log1p,
    "tanh": math.tanh, "erf": math.erf, "maximum": max, "minimum": min}
_ALLOWED = (ast.Name, ast.Load, ast.UnaryOp, ast.USub, ast.Not, ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow,
            ast.BoolOp, ast.And, ast.Or, ast.Compare, ast.cmpop, ast.IfExp, ast.Call)


def _reads(e: ast.AST) -> list[str]:
    """Returns the names that an expression reads, but for the functions that it calls, in their order."""
    called = {id(n.func) for n in ast.walk(e) if isinstance(n, ast.Call)}
    return [n.id for n in ast.walk(e) if isinstance(n, ast.Name) and id(n) not in called]


class Rule(Expressions):
    """A checked rule.

    Args:
        name: of the step, for messages and kernels: "adam".
        text: the equations.
        over: names of what is changed and of what is read, as they stand in the text.
        optional: states that a step may have or not -> the setting that asks for it.
        wide: whether states are float32 beside parameters of 16 bits.
        contracted: whether a compiler may round a product and the sum it goes into once. Without, every operation is
            rounded by itself, so that float32 has NumPy's bits on every device.
    Attributes:
        states: their names, in the order in which they are first read.
        settings: names of the numbers that it takes, `lr` among them; `step` stands for t.
    Raises:
        ConfigError: the text is no rule.
    """

    help = "write `name = expression` a line, of w, g, states, numbers and settings"

    def __init__(self, name: str, text: str, *, over: str = "w g", optional: Mapping[str, str] | None = None,
                 wide: bool = True, contracted: bool = False) -> None:
        if not (isinstance(name, str) and name.isidentifier() and name.isascii()):
            raise ArgumentError(message("Rule", f"its name is {shown(name)}, letters and digits are needed",
                                        'pass Rule("mine", "w = w - lr * g")'))
        if not isinstance(text, str):
            raise ArgumentError(message("Rule", f"the text of {name} is {shown(text)}, equations are needed",
                                        'pass Rule("mine", "w = w - lr * g")'))
        self.name, self.where = name, f"rule {name}"
        self.text = dedent(text).strip()
        self.changed, self.read = over.split()
        self.optional, self.wide, self.contracted = dict(optional or {}), wide, contracted
        body = self.parsed()
        if not all(map(assigned, body)):
            raise self.refused("a line is not `name = expression`")
        self.lines: list[tuple[str, ast.expr]] = [(assigned(n), n.value) for n in body]  # type: ignore[attr-defined]
        self.states, self.settings = self._sorted_names()
        self.variants()     # refuses what cannot be compiled

    def _sorted_names(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Returns the states and the settings.  Raises ConfigError."""
        targets = {name for name, _ in self.lines}
        if self.changed not in targets or self.read in targets:
            raise self.refused(f"it assigns no {self.changed}" if self.changed not in targets else
                               f"it assigns {self.read}, which it may only read")
        early: dict[str, None] = {}
        known = {self.changed, self.read}
        for name, e in self.lines:
            early.update(dict.fromkeys(n for n in _reads(e) if n not in known))
            known |= {name} - early.keys()
        states = tuple([n for n in early if n in targets])
        settings = tuple(["step" if n == "t" else n for n in early if n not in targets])
        if "step" in early:
            raise self.refused("step is unknown; the number of the step is t")
        if unusable := [n for n in (*early, *targets) if not n.isascii() or re.fullmatch(r"n\d+|_.*", n)]:
            raise self.refused(f"the name {unusable[0]} is taken by its kernels, or is not of ASCII letters")
        if len(states) > MOST_STATES:
            raise self.refused(f"it has {len(states)} states, kernels have room for {MOST_STATES}")
        if wrong := [s for s in self.optional if s not in states]:
            raise self.refused(f"{wrong[0]} is optional, and no state")
        return states, settings

    def variant(self, states: Sequence[str]) -> Variant:
        """Returns the rule where these states are given."""
        return _variant(self, frozenset(states))

    def variants(self) -> list[Variant]:
        """Returns the variants with each choice of the optional states."""
        needed = [s for s in self.states if s not in self.optional]
        return [self.variant([*needed, *compress(self.optional, given)])
                for given in product((False, True), repeat=len(self.optional))]

    def wanted(self, settings: Mapping[str, Any]) -> tuple[str, ...]:
        """Returns the states that a step with these settings has."""
        return tuple([s for s in self.states if s not in self.optional or settings.get(self.optional[s])])

    def constant(self, text: str) -> float:
        """Returns the value of an expression without names.  Raises ConfigError."""
        try:
            return float(eval(text, {"__builtins__": {}, **NUMBERS}))
        except (ArithmeticError, ValueError, TypeError) as error:
            raise self.refused(f"{text} cannot be computed: {error}") from error

    def value_of(self, e: ast.expr, known: Mapping[str, Any]) -> Any:
        """As of Expressions; of a condition of numbers one side alone is computed, and constants have w's dtype."""
        if not isinstance(e, ast.IfExp):
            return super().value_of(e, known)
        if isinstance(test := self.value_of(e.test, known), (bool, np.bool_)):
            return self.value_of(e.body if test else e.orelse, known)
        return np.where(test, self.value_of(e.body, known), self.value_of(e.orelse, known)).astype(
            known["_dtype"], copy=False)


@lru_cache(maxsize=1024)
def _variant(rule: Rule, states: frozenset[str]) -> Variant:
    return Variant(rule, states)


class Variant:
    """A rule of the states that are given.

    Attributes:
        name: of its kernels: the rule's, and the optional states that it has.
        states: in the rule's order.
        lists: names of the lists of a step: what is changed, the states, and last what is read.
        lines: what is computed of each element: name and expression, in which numbers are called n0, n1, ...
        expressions: of the numbers, as text.
    """

    def __init__(self, rule: Rule, states: frozenset[str]) -> None:
        self.rule = rule
        self.states = tuple([s for s in rule.states if s in states])
        self.name = "_".join([rule.name, *[s for s in self.states if s in rule.optional]])
        self.lists = (rule.changed, *self.states, rule.read)
        self.lines: list[tuple[str, ast.expr]] = []
        self.expressions: list[str] = []
        missing = {*rule.states} - states
        numeric: list[ast.stmt] = []
        found = _Numbers(rule, {*self.lists}, missing)
        for name, e in rule.lines:
            if name in missing:
                continue
            e = found.visit(found.chosen(e))
            if found.is_number(e) and name not in found.tensors:
                numeric.append(ast.Assign([ast.Name(name, ast.Store())], found.checked(e)))
                continue
            found.tensors.add(name)
            self.lines.append((name, found.named(e)))
        self.expressions = list(found.numbers)
        if not self.expressions:
            raise rule.refused("it reads no number, such as lr")
        values = ast.Tuple([ast.parse(text, mode="eval").body for text in self.expressions], ast.Load())
        tree = ast.Module([*numeric, ast.Assign([ast.Name("_numbers", ast.Store())], values)], [])
        self._compute = compile(ast.fix_missing_locations(tree), rule.where, "exec")
        self.statements = self._written()

    def numbers(self, settings: Mapping[str, Any]) -> tuple[float, ...]:
        """Returns the numbers of a step.  Raises ConfigError: they cannot be computed, by a division by 0 say."""
        known: dict[str, Any] = {**settings, "t": settings.get("step")}
        try:
            exec(self._compute, {"__builtins__": {}, **NUMBERS}, known)
            return tuple([float(x) for x in known["_numbers"]])
        except (ArithmeticError, ValueError, TypeError) as error:
            raise ConfigError(message(self.rule.where, f"one of its numbers {', '.join(self.expressions)} cannot be "
                                      f"computed: {error}", "correct the rule or the settings")) from error

    def _written(self) -> list[str]:
        """Returns the lines as statements in C, which change variables that have the names of the lists."""
        kinds: dict[str, bool | None] = dict.fromkeys(
            (*self.lists, *[f"n{k}" for k in range(len(self.expressions))]), False)
        statements = []
        for name, e in self.lines:
            wanted = kinds.get(name)
            text, kinds[name] = self.rule.c_of(e, kinds, wanted)
            statements.append(f"{'' if wanted is not None else 'auto '}{name}_ = {text};")
        return statements

    def compute(self, arrays: Mapping[str, Array], numbers: Sequence[float]) -> dict[str, Array]:
        """Returns what is changed, and the states, by NumPy, from the arrays of the lists."""
        known: dict[str, Any] = {"_dtype": arrays[self.rule.changed].dtype, **arrays,
                                 **{f"n{k}": x for k, x in enumerate(numbers)}}
        with np.errstate(all="ignore"):
            for name, e in self.lines:
                known[name] = self.rule.value_of(e, known)
        return {name: known[name] for name in self.lists[:-1]}


class _Numbers(ast.NodeTransformer):
    """Finds what of a rule's expressions is a number, and calls it n0, n1, ...

    Attributes:
        tensors: names of what has elements; missing: states that are not given.
        numbers: the expressions that were found, as text, with their place.
    """

    def __init__(self, rule: Rule, tensors: set[str], missing: set[str]) -> None:
        self.rule, self.tensors, self.missing = rule, tensors, missing
        self.numbers: dict[str, int] = {}

    def visit_IfExp(self, e: ast.IfExp) -> ast.AST:
        """Takes the side that is there, where the condition is that a state is given."""
        match e.test:
            case ast.Name(id=name) if name in self.rule.optional:
                return self.visit(e.orelse if name in self.missing else e.body)  # type: ignore[no-any-return]
        return self.generic_visit(e)

    def chosen(self, e: ast.expr) -> ast.expr:
        """Returns a copy of an expression, to be changed."""
        return ast.parse(ast.unparse(e), mode="eval").body

    def is_number(self, e: ast.AST) -> bool:
        return not any(name in self.tensors or name in self.missing for name in _reads(e))

    def checked(self, e: ast.expr) -> ast.expr:
        """Returns an expression without tensors.  Raises ConfigError: it has what no number is made of."""
        for n in ast.walk(e):
            constant = isinstance(n, ast.Constant) and isinstance(n.value, (int, float))
            called = isinstance(n, ast.Call) and not (isinstance(n.func, ast.Name) and n.func.id in NUMBERS)
            if called or not (constant or isinstance(n, _ALLOWED)):
                raise self.rule.refused(f"{ast.unparse(e)!r} is unknown")
        return e

    def named(self, e: ast.expr) -> ast.expr:
        """Returns an expression of elements, with names for the largest parts that are numbers."""
        if self.is_number(e):
            text = ast.unparse(self.checked(e))
            if isinstance(e, ast.Constant):
                return e
            if not _reads(e):
                return ast.Constant(self.rule.constant(text))
            return ast.Name(f"n{self.numbers.setdefault(text, len(self.numbers))}", ast.Load())
        if isinstance(e, ast.IfExp) and self.is_number(e.test):
            return ast.IfExp(ast.Compare(self.named(e.test), [ast.NotEq()], [ast.Constant(0)]), self.named(e.body),
                             self.named(e.orelse))
        for field, value in ast.iter_fields(e):
            if isinstance(value, ast.expr) and field != "func":
                setattr(e, field, self.named(value))
            elif isinstance(value, list):
                setattr(e, field, [self.named(x) if isinstance(x, ast.expr) else x for x in value])
        return e
