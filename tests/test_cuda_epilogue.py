"""Epilogues: the list of equations, and what kernels do of it."""

from __future__ import annotations

import numpy as np
import pytest

from alpha.cuda.ops.pointwise.epilogue import ADD, NOTHING, RELU, Epilogue, Equation
from alpha.cuda.runtime.memory import Array
from alpha.errors import AlphaError

BIAS = Array(None, 256, (8,), "float32", 8, 32)


@pytest.mark.parametrize(("epilogue", "expressions", "known"), [
    (Epilogue.of(None, None), [], (None, False)), (Epilogue.of(BIAS, None), [ADD], (BIAS, False)),
    (Epilogue.of(None, "relu"), [RELU], (None, True)), (Epilogue.of(BIAS, "relu"), [ADD, RELU], (BIAS, True))])
def test_the_first_two_equations_are_bias_and_relu(epilogue, expressions, known):
    assert [equation.expression for equation in epilogue.equations] == expressions
    assert epilogue.known() == known
    assert Epilogue.of(None, None) is NOTHING


@pytest.mark.parametrize("equations", [
    (Equation(RELU), Equation(ADD, BIAS)), (Equation("tanhf(v)"),), (Equation(ADD, BIAS), Equation("v * v")),
    (Equation(ADD, BIAS), Equation(ADD, BIAS))], ids=lambda e: " ".join(f.expression for f in e))
def test_what_no_kernel_does_is_refused(equations):
    """Nothing is left out, and nothing is done in another order."""
    with pytest.raises(AlphaError) as caught:
        Epilogue(equations).known()
    first, second = str(caught.value).splitlines()
    assert first == (f"epilogue: kernels do 'v + a', then 'v < 0 ? 0 : v', not "
                     f"{[equation.expression for equation in equations]}")
    assert second == "help: compute what is left by ops of its own"


def test_equations_are_what_the_ops_compute():
    """As the expressions say, for scalars."""
    v, a = np.float32(-1.5), np.float32(0.25)
    assert eval(ADD, {"v": v, "a": a}) == np.float32(-1.25)
    condition, _, rest = RELU.partition(" ? ")
    yes, _, no = rest.partition(" : ")
    for value in (v, np.float32(2), np.float32("nan")):
        got = eval(yes if eval(condition, {"v": value}) else no, {"v": value})
        assert np.array_equal(got, np.maximum(value, np.float32(0)), equal_nan=True)
