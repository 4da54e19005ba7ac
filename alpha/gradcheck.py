"""Checks of gradients: by finite differences along random directions, by adjoint identities, element by element."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from alpha.core.errors import AlphaError, ArgumentError, DTypeError, message, shown
from alpha.core.graph import grad, no_grad
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import NonNegative, Positive, Seed
from alpha.core.tensor import Tensor, tensor


def _direction(like: Tensor, rng: np.random.Generator) -> Tensor:
    """A random direction whose entries keep away from 0, so that no element goes unchecked."""
    d = rng.uniform(0.5, 1.5, like.shape) * rng.choice([-1.0, 1.0], like.shape)
    return tensor(d, like.dtype, like.device)


def _dot(a: Tensor, b: Tensor) -> float:
    return float(np.sum(a.numpy() * b.numpy()))


def _outputs(f: Callable[..., Any], args: Sequence[Any]) -> list[Tensor]:
    ys = f(*args)
    results = list(ys) if isinstance(ys, (list, tuple)) else [ys]
    for y in results:
        if not isinstance(y, Tensor):
            raise ArgumentError(message("gradcheck", f"f returned {shown(y)}, a tensor or a list of them is needed",
                                        "return what is to be differentiated"))
    return results


@checked
def gradcheck(f: Callable[..., Any], inputs: Tensor | Iterable[Any], *, eps: Positive = 1e-5,
              rtol: NonNegative = 1e-6, atol: NonNegative = 1e-8, second_order: bool = False, seed: Seed = 0) -> bool:
    """Compares the gradients of `f` with central differences along a random direction, in float64.

    For a random w over the outputs and, for each input in turn, a random direction v, it compares
    <v, J^T w> with <(f(x + eps v) - f(x - eps v)) / (2 eps), w>: two evaluations whatever the size.

    Args:
        f: function of the inputs that returns a Tensor or several; it must be smooth around them.
        inputs: the arguments of f, a tensor or a list; the tensors that require a gradient are checked and must be
            float64.
        eps: step of the difference.
        rtol, atol: bound of the difference, relative to the size of the two terms, and absolute.
        second_order: check the gradients of the gradients as well, by the inputs and by the gradient that comes in.
        seed: of the random directions.
    Returns:
        True.
    Raises:
        AlphaError: a gradient is wrong; the message names the input and both values.
        DTypeError: an input to be checked is not float64.
        ArgumentError: inputs is no list, none of them requires a gradient, f is no function, or returns something else
            than tensors.
    """
    if isinstance(inputs, Tensor):
        inputs = [inputs]
    elif not isinstance(inputs, (list, tuple)) and not hasattr(inputs, "__next__"):
        raise ArgumentError(message("gradcheck", f"inputs is {shown(inputs)}, a tensor or a list of them is needed",
                                    "pass what f takes: [x], say"))
    inputs = list(inputs)
    checked = [k for k, x in enumerate(inputs) if isinstance(x, Tensor) and x.requires_grad]
    if not checked:
        raise ArgumentError(message("gradcheck", f"none of the {len(inputs)} inputs requires a gradient, nothing would "
                                    "be checked", 'make them alpha.tensor(a, "float64", requires_grad=True)'))
    for k in checked:
        if inputs[k].dtype != "float64":
            raise DTypeError(message("gradcheck", f"input {k} has dtype {inputs[k].dtype}, differences need float64",
                                     'make it alpha.tensor(a, "float64", requires_grad=True)'))
    _first_order(f, inputs, checked, eps, rtol, atol, np.random.default_rng(seed))
    if second_order:
        rng = np.random.default_rng(seed + 1)
        # The gradient that comes in is an input here, too: the gradient of a linear function depends on nothing else.
        weights = [_direction(y, rng).requires_grad_() for y in _outputs(f, inputs) if y.requires_grad]

        def gradients(*args: Tensor) -> list[Tensor]:
            ys = [y for y in _outputs(f, args[:len(inputs)]) if y.requires_grad]
            got = grad(ys, [args[k] for k in checked], args[len(inputs):], create_graph=True)
            return [g for g in got if g is not None]

        everything = [*checked, *range(len(inputs), len(inputs) + len(weights))]
        _first_order(gradients, [*inputs, *weights], everything, eps, rtol * 10, atol * 10, rng, len(inputs))
    return True


def _first_order(f: Callable[..., Any], inputs: list[Tensor], checked: list[int], eps: float, rtol: float, atol: float,
                 rng: np.random.Generator, incoming: int = 0) -> None:
    """Checks the gradients by the inputs of some numbers; `incoming`: the first input that is a gradient itself."""
    ys = _outputs(f, inputs)
    weights = [_direction(y, rng) for y in ys]
    graphs = [(y, w) for y, w in zip(ys, weights) if y.requires_grad]  # the others must be constant
    analytic = _analytic(graphs, inputs, checked)
    for k, g in zip(checked, analytic):
        v = _direction(inputs[k], rng)
        moved = []
        for step in (eps, -eps):
            args = [x.detach().requires_grad_() if isinstance(x, Tensor) and x.requires_grad else x for x in inputs]
            args[k] = tensor(inputs[k].numpy() + step * v.numpy(), device=v.device, requires_grad=True)
            moved.append(sum(_dot(y.detach(), w) for y, w in zip(_outputs(f, args), weights)))
        numeric = (moved[0] - moved[1]) / (2 * eps)
        exact = 0.0 if g is None else _dot(g, v)
        size = max(abs(numeric), abs(exact), 0.0 if g is None else float(np.sum(np.abs(g.numpy() * v.numpy()))))
        if not abs(numeric - exact) <= atol + rtol * size:
            cut = len(graphs) < len(ys)
            what = f"{'second gradient' if incoming else 'gradient'} of " + (
                f"incoming gradient {k - incoming}" if 0 < incoming <= k else f"input {k}")
            fix = "correct the op's vjp; at a kink (relu at 0) choose other inputs"
            if cut:
                made = "a vjp" if incoming else "the function"
                fix = f"compute {made} with alpha's ops: NumPy, detach and alpha.tensor(...) cut the graph"
            raise AlphaError(message(
                "gradcheck", f"{what}: backward gives {exact:.12g}, differences give {numeric:.12g}"
                + (f"; {len(ys) - len(graphs)} of {len(ys)} results have no graph" if cut else ""), fix,
                shape=inputs[k].shape, eps=eps))


def _analytic(graphs: Sequence[tuple[Tensor, Tensor]], inputs: Sequence[Tensor], checked: Sequence[int]) -> list[Any]:
    if not graphs:
        return [None] * len(checked)
    ys, weights = zip(*graphs)
    return grad(ys, [inputs[k] for k in checked], weights)


def adjoint_check(forward: Callable[[Tensor], Tensor], transpose: Callable[[Tensor], Tensor], x: Tensor,
                  g: Tensor) -> bool:
    """Checks <forward(x), g> == <x, transpose(g)>, exactly; meant for small integers in a float dtype.

    Raises AlphaError with both values.
    """
    with no_grad():
        left, right = _dot(forward(x), g), _dot(x, transpose(g))
    if left != right:
        raise AlphaError(message("adjoint_check", f"<forward(x), g> = {left!r} but <x, transpose(g)> = {right!r}",
                                 "correct the gradient's implementation", x=x.shape, g=g.shape))
    return True


def assert_equal_at(actual: Any, expected: Any, *, rtol: float = 0.0, atol: float = 0.0, name: str = "result") -> None:
    """Asserts that two arrays are equal (within atol + rtol * |expected|); names the first bad coordinate.

    NaN equals NaN. Raises AssertionError with the coordinate, both values, and how many elements differ.
    """
    a, b = np.asarray(actual), np.asarray(expected)
    assert a.shape == b.shape, f"{name}: shape {a.shape}, expected {b.shape}"
    with np.errstate(invalid="ignore"):
        near = np.abs(a.astype(np.float64) - b.astype(np.float64)) <= atol + rtol * np.abs(b.astype(np.float64))
    bad = ~(near | (a == b) | ((a != a) & (b != b)))
    if bad.any():
        at = tuple(int(k) for k in np.argwhere(bad)[0])
        raise AssertionError(f"{name}: {int(bad.sum())} of {a.size} elements differ, first at {at}: "
                             f"{a[at]!r}, expected {b[at]!r}")
