"""Chains of views and changes in place through any of them, beside PyTorch, which does the same.

After each change every tensor that is there has PyTorch's elements, or alpha has refused the change. At the end the
gradients are PyTorch's, or one of both has refused the backward pass.
"""

from __future__ import annotations

import pathlib
import random
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch

import alpha
from alpha import nn
from alpha.errors import AlphaError

Pair = tuple[Any, Any]  # a tensor of alpha, and PyTorch's


def key_of(rng: random.Random, shape: tuple[int, ...]) -> Any:
    """Returns a key of ints, slices and None that both libraries take."""
    key: list[Any] = []
    for n in shape:
        kind = rng.random()
        if kind < 0.25 and n:
            key.append(rng.randrange(-n, n))
        elif kind < 0.7:
            first = rng.randint(0, n)
            key.append(slice(first, rng.randint(first, n), rng.choice([None, None, 2])))
        else:
            key.append(slice(None))
        if rng.random() < 0.1:
            key.append(None)
    return tuple(key[:rng.randint(1, len(key))]) if key else (None,)


def axes_of(rng: random.Random, ndim: int) -> list[int]:
    return rng.sample(range(ndim), ndim)


def factors_of(rng: random.Random, size: int, most: int = 3) -> tuple[int, ...]:
    """Returns a shape of a number of elements."""
    shape = []
    for _ in range(rng.randint(0, most)):
        n = rng.choice([d for d in range(1, size + 1) if size % d == 0]) if size else 1
        shape.append(n)
        size //= n
    shape.append(size)
    rng.shuffle(shape)
    return tuple(shape)


def _wide(rng: random.Random, shape: tuple[int, ...]) -> tuple[int, ...]:
    grown = [rng.choice([1, 2, 3]) if n == 1 else n for n in shape]
    return (*[2] * rng.randint(0, 1), *grown)


# Name -> a function of (rng, shape) that returns a function of either tensor; None where the shape does not fit.
VIEWS: dict[str, Callable[[random.Random, tuple[int, ...]], Callable[[Any], Any] | None]] = {
    "getitem": lambda rng, s: (lambda key: lambda t: t[key])(key_of(rng, s)),
    "permute": lambda rng, s: (lambda axes: lambda t: t.permute(*axes))(axes_of(rng, len(s))) if s else None,
    "transpose": lambda rng, s: (lambda a: lambda t: t.transpose(a[0], a[1]))(axes_of(rng, len(s)))
    if len(s) > 1 else None,
    "mT": lambda rng, s: (lambda t: t.mT) if len(s) > 1 else None,
    "reshape": lambda rng, s: (lambda new: lambda t: t.reshape(new))(factors_of(rng, int(np.prod(s)))),
    "flatten": lambda rng, s: lambda t: t.flatten(),
    "unsqueeze": lambda rng, s: (lambda k: lambda t: t.unsqueeze(k))(rng.randint(0, len(s))),
    "squeeze": lambda rng, s: lambda t: t.squeeze(),
    "expand": lambda rng, s: (lambda wide: lambda t: t.expand(wide))(_wide(rng, s)),
    "chunk": lambda rng, s: (lambda a, k: lambda t: t.chunk(2, a)[min(k, len(t.chunk(2, a)) - 1)])(
        rng.randrange(len(s)), rng.randint(0, 1)) if s and all(s) else None,
    "split": lambda rng, s: (lambda a: lambda t: t.split(1, a)[-1])(rng.randrange(len(s))) if s and all(s) else None,
    "narrow": lambda rng, s: (lambda a: lambda t: t.narrow(a, s[a] // 2, s[a] - s[a] // 2))(rng.randrange(len(s)))
    if s else None,
    "select": lambda rng, s: (lambda a: lambda t: t.unbind(a)[-1])(rng.randrange(len(s))) if s and all(s) else None,
    "diagonal": lambda rng, s: (lambda n, a: lambda t: t.diagonal(n, a[0], a[1]))(
        rng.randint(-1, 1), axes_of(rng, len(s))) if len(s) > 1 else None,
    "unflatten": lambda rng, s: (lambda a: lambda t: t.unflatten(a, (s[a], 1)))(rng.randrange(len(s))) if s else None,
    "movedim": lambda rng, s: (lambda a: lambda t: t.movedim(a[0], a[1]))(axes_of(rng, len(s))) if len(s) > 1 else None,
    "detach": lambda rng, s: lambda t: t.detach(),
    "data": lambda rng, s: lambda t: t.data,
}
COPIES: dict[str, Callable[[random.Random, tuple[int, ...]], Callable[[Any], Any] | None]] = {
    "clone": lambda rng, s: lambda t: t.clone(),
    "contiguous": lambda rng, s: lambda t: t.contiguous(),
    "flip": lambda rng, s: (lambda a: lambda t: t.flip(a))(rng.randrange(len(s))) if s else None,
    "roll": lambda rng, s: (lambda n, a: lambda t: t.roll(n, a))(rng.randint(0, 2), rng.randrange(len(s)))
    if s else None,
    "repeat": lambda rng, s: (lambda counts: lambda t: t.repeat(*counts))([rng.randint(1, 2) for _ in s])
    if s else None,
    "repeat_interleave": lambda rng, s: (lambda n: lambda t: t.repeat_interleave(n, 0))(rng.randint(1, 2))
    if s else None,
    "rows": lambda rng, s: (lambda t: t[[0]]) if s and s[0] else None,
    "add": lambda rng, s: lambda t: t + 0.5,
    "square": lambda rng, s: lambda t: t * t,
    "tril": lambda rng, s: (lambda t: t.tril()) if len(s) > 1 else None,
    "diag": lambda rng, s: (lambda t: t.diag()) if len(s) == 2 else None,
    "where": lambda rng, s: lambda t: (t * 1.0).abs(),
}


def _iadd(t: Any, v: Any) -> None:
    t += v


def _imul(t: Any, v: Any) -> None:
    t *= v


class Case:
    """One random chain."""

    def __init__(self, rng: random.Random, device: str = "cpu") -> None:
        self.rng, self.device, self.log = rng, device, []
        self.leaves: list[Pair] = []
        self.pairs: list[Pair] = []
        self.changes = self.refused = 0
        for _ in range(rng.randint(1, 2)):
            self.root()

    def array(self, shape: tuple[int, ...]) -> np.ndarray:
        return np.array([self.rng.randint(-8, 8) for _ in range(int(np.prod(shape)))], np.float32).reshape(shape)

    def root(self) -> None:
        a = self.array(tuple(self.rng.randint(1, 4) for _ in range(self.rng.randint(1, 3))))
        kind = self.rng.choice(["plain", "plain", "leaf", "parameter", "result"])
        ours, theirs = alpha.tensor(a, device=self.device), torch.tensor(a)
        if kind == "parameter":
            ours, theirs = nn.Parameter(ours), torch.nn.Parameter(theirs)
        elif kind != "plain":
            ours, theirs = ours.requires_grad_(), theirs.requires_grad_()
        if kind != "plain":
            self.leaves.append((ours, theirs))
        if kind == "result":
            ours, theirs = ours * 2.0, theirs * 2.0
        self.log.append(f"{kind}{a.shape}")
        self.pairs.append((ours, theirs))

    def step(self) -> None:
        choice = self.rng.random()
        k = self.rng.randrange(len(self.pairs))
        if choice < 0.5:
            self.made(VIEWS, k)
        elif choice < 0.62:
            self.made(COPIES, k)
        elif choice < 0.7 and len(self.pairs) > 1:
            self.log.append(f"del {k}")
            del self.pairs[k]
        else:
            self.change(k)
        self.compare()

    def made(self, table: dict[str, Any], k: int) -> None:
        name = self.rng.choice(list(table))
        ours, theirs = self.pairs[k]
        f = table[name](self.rng, tuple(theirs.shape))
        if f is None or len(self.pairs) > 12:
            return
        with alpha.no_grad() if (quiet := self.rng.random() < 0.2) else nullcontext(), \
                torch.set_grad_enabled(not quiet):
            try:
                y = f(theirs)
                if table is COPIES and name != "contiguous":    # it keeps the strides of what is turned; alpha has none
                    y = y.clone(memory_format=torch.contiguous_format)
            except RuntimeError as error:
                self.forbidden(error)
                return
            if y.numel() > 200:
                return
            self.log.append(f"{len(self.pairs)} = {name} of {k}{' no_grad' * quiet} {tuple(y.shape)}")
            self.pairs.append((f(ours), y))

    def change(self, k: int) -> None:
        ours, theirs = self.pairs[k]
        shape, rng = tuple(theirs.shape), self.rng
        values = self.array(shape)
        other = rng.choice(self.pairs) if rng.random() < 0.2 else None
        if other is not None and tuple(other[1].shape) == shape:
            given: Pair = other
        else:
            given = (alpha.tensor(values, device=self.device), torch.tensor(values))
        key = key_of(rng, shape)
        name = rng.choice(["copy_", "fill_", "zero_", "+=", "*=", "setitem"])
        act: dict[str, Callable[[Any, Any], Any]] = {
            "copy_": lambda t, v: t.copy_(v), "fill_": lambda t, v: t.fill_(3.0), "zero_": lambda t, v: t.zero_(),
            "+=": _iadd, "*=": _imul, "setitem": lambda t, v: t.__setitem__(key, 7.0)}
        quiet = rng.random() < 0.7
        self.log.append(f"{name} to {k}{' no_grad' * quiet}")
        try:
            with alpha.no_grad() if quiet else nullcontext():
                act[name](ours, given[0])
        except AlphaError as error:
            self.refused += 1
            self.log[-1] += f" refused: {str(error).splitlines()[0]}"
            return
        self.changes += 1
        try:
            with torch.set_grad_enabled(not quiet):
                act[name](theirs, given[1].clone())     # of operands that overlap PyTorch's result is not defined
        except RuntimeError as error:   # alpha takes leaves there, as under no_grad
            assert "leaf" in str(error) or "view" in str(error), self.told(str(error))
            with torch.no_grad():
                act[name](theirs, given[1].clone())

    def forbidden(self, error: RuntimeError) -> None:
        """Sees that PyTorch refuses a view for its graph's sake: one of several, or made under no_grad."""
        assert "modified inplace" in str(error), self.told(str(error))

    def told(self, what: str) -> str:
        return f"{what}\n" + "\n".join(self.log)

    def compare(self) -> None:
        for k, (ours, theirs) in enumerate(self.pairs):
            try:
                expected = theirs.detach().numpy()
            except RuntimeError as error:
                self.forbidden(error)
                with torch.no_grad():
                    expected = (theirs * 1.0).numpy()
            got = ours.detach().numpy()
            assert got.shape == expected.shape and np.allclose(got, expected, rtol=1e-4, equal_nan=True), self.told(
                f"tensor {k} is {got.tolist()}, PyTorch has {expected.tolist()}")

    def backward(self) -> str:
        ends = [p for p in self.pairs if p[0].requires_grad and p[1].requires_grad]
        if not ends or not self.leaves:
            return "no gradient"
        try:
            theirs: Any = sum((t * t).sum() for _, t in ends)
            theirs.backward()
        except RuntimeError:
            return "PyTorch refuses backward"
        try:
            ours: Any = ends[0][0].sum() * 0.0
            for t, _ in ends:
                ours = ours + (t * t).sum()
            ours.backward()
        except AlphaError:
            return "backward refused"
        for k, (a, b) in enumerate(self.leaves):
            expected = np.zeros(tuple(b.shape)) if b.grad is None else b.grad.numpy()
            got = np.zeros(tuple(b.shape)) if a.grad is None else a.grad.numpy()
            assert np.allclose(got, expected, rtol=1e-3, equal_nan=True), self.told(
                f"gradient of leaf {k} is {got.tolist()}, PyTorch has {expected.tolist()}")
        return "equal gradients"


def attempt(rng: random.Random, folder: pathlib.Path, device: str = "cpu") -> str:
    """Runs one case and says how it ended.  Raises AssertionError where alpha differs without a word."""
    case = Case(rng, device)
    case.compare()
    for _ in range(rng.randint(4, 16)):
        case.step()
    end = case.backward()
    return f"{len(case.log)} steps, {case.changes} changes, {case.refused} refused: {end}"
