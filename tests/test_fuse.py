"""Which values become one pass, and what of them is kept: alpha/fuse/chain.py, without a device."""

from __future__ import annotations

from weakref import ref

import pytest

from alpha.core.equation import Equation
from alpha.fuse.chain import Function, Leaf, Value, gather, keep, made_again, recipe_of

pytestmark = pytest.mark.same_without_kernels("it calls no compiled kernel")
WHOLE, COLUMN = "whole", "column"


class Array:
    """Stands for one of a device."""


def value(*inputs: object, alive: bool = False) -> Value:
    made = Value(Function("f", ""), inputs, (), "float32", 8, 0)
    if alive:
        value.holders.append(Array())
        made.holder = ref(value.holders[-1])
    return made


value.holders = []


def test_a_chain_is_what_the_root_depends_on_and_reads_each_array_once() -> None:
    x, z, vector = [Leaf(Array(), place) for place in (WHOLE, WHOLE, COLUMN)]
    a = value(x, vector)
    b = value(a, x)
    c = value(a, b, z, Leaf(2.0, None), Leaf(2.0, None))
    chain = gather([c], WHOLE, [c])
    assert chain.steps == [a, b, c]
    assert [leaf.array for leaf in chain.leaves] == [x.array, vector.array, z.array, 2.0, 2.0]
    assert chain.refs == [((False, 0), (False, 1)), ((True, 0), (False, 0)),
                          ((True, 0), (True, 1), (False, 2), (False, 3), (False, 4))]
    assert chain.outputs == (2,)
    assert (c.steps, [leaf.array for leaf in c.leaves(WHOLE) if leaf.place == WHOLE]) == (4, [z.array, x.array])


def test_what_is_written_is_an_array() -> None:
    x = Leaf(Array(), WHOLE)
    a = value(x)
    b = value(a)
    a.written = written = Array()
    chain = gather([b], WHOLE, [b])
    assert (chain.steps, chain.leaves) == ([b], [Leaf(written, WHOLE)])
    assert b.leaves(WHOLE) == [Leaf(written, WHOLE)]


def test_what_is_alive_is_kept_where_it_is_made_of_more_than_one_array() -> None:
    x, z, vector = [Leaf(Array(), place) for place in (WHOLE, WHOLE, COLUMN)]
    one, two = value(x, vector, alive=True), value(x, z, alive=True)
    assert not keep(one, WHOLE)
    assert keep(two, WHOLE)
    last = value(one, two, alive=True)
    assert gather([last], WHOLE, [last]).outputs == (1, 2)
    assert gather([last], WHOLE, [last], [two]).outputs == (2,)
    assert gather([last], WHOLE, []).outputs == (1,)
    value.holders.clear()
    assert gather([last], WHOLE, [last]).outputs == (2,)


def test_a_recipe_makes_again_what_is_made_of_what_is_there() -> None:
    x, vector, other = [Leaf(Array(), place) for place in (WHOLE, COLUMN, COLUMN)]
    root = value(value(x, vector), Leaf(2.0, None))
    recipe = recipe_of(root, WHOLE)
    assert recipe
    again = made_again(recipe, [x, vector, other], 8, 4)
    assert again and set(again.leaves(WHOLE)) == {x, vector} and again.row == 4
    assert gather([again], WHOLE, [again]).refs == gather([root], WHOLE, [root]).refs
    assert made_again(recipe, [x, other], 8, 4) is None, "of another vector"
    assert recipe_of(value(x, Leaf(Array(), WHOLE)), WHOLE) is None, "of two arrays"
    alive = ref(vector.array)
    del vector, again, root
    assert alive() is None, "a recipe keeps nothing alive"
    assert made_again(recipe, [x, other], 8, 4) is None


@pytest.mark.parametrize(("equation", "numbers", "expected"), [
    ("0 if x < 0 else x", (), True), ("x * normal_cdf(x)", (), True), ("-x", (), True),
    ("x if x > 0 else a * x", (1.0,), True), ("x if x > 0 else a * x", (1.5,), False), ("exp(x)", (), False),
    ("x * x", (), False), ("logistic(x)", (), False), ("minimum(x, a)", (-1.0,), False), ("x > 0", (), False)])
def test_which_functions_enlarge_nothing(equation: str, numbers: tuple[float, ...], expected: bool) -> None:
    assert Equation("f", equation, ["x"], ["a"] * len(numbers)).shrinks(numbers) == expected
    assert not Equation("f", "x + y", ["x", "y"]).shrinks(())
