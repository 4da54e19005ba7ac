"""Small random graphs with changes in place at random places, beside PyTorch, which is given none of these changes.

PyTorch's side is made of new tensors alone: what changes elements there is `t + (new - t).detach()`. So it never
refuses anything, and has the gradients of what was computed. alpha either has the same, or raises GraphError; the
latter only where something was changed in place.
"""

from __future__ import annotations

import pathlib
import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

import alpha
from alpha import nn, ops, optim
from alpha.errors import GraphError

SHAPE = (2, 3)
UNARY = {"exp": (lambda x: ops.exp(x * 0.25), lambda t: torch.exp(t * 0.25)), "tanh": (ops.tanh, torch.tanh),
         "sigmoid": (ops.sigmoid, torch.sigmoid), "relu": (ops.relu, torch.relu), "neg": (lambda x: -x, torch.neg),
         "softmax": (lambda x: ops.softmax(x, -1), lambda t: torch.softmax(t, -1)),
         "log_softmax": (lambda x: ops.log_softmax(x, -1), lambda t: torch.log_softmax(t, -1)),
         "sqrt": (lambda x: ops.sqrt(x * x + 1.0), lambda t: torch.sqrt(t * t + 1.0)),
         "square": (lambda x: x * x, lambda t: t * t), "rows": (lambda x: x[:1] + x, lambda t: t[:1] + t),
         "mean": (lambda x: x - x.mean(0, True), lambda t: t - t.mean(0, True)),
         "product": (lambda x: x @ x.T @ x * 0.1, lambda t: t @ t.T @ t * 0.1)}
BINARY = {"add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
          "div": lambda a, b: a / (b * b + 1.0)}


def _in_place(t: Any, sign: str, other: Any) -> Any:
    if sign == "+=":
        t += other
    elif sign == "-=":
        t -= other
    else:
        t *= other
    return t


OUT_OF_PLACE = {"+=": lambda a, b: a + b, "-=": lambda a, b: a - b, "*=": lambda a, b: a * b}


@dataclass(eq=False)
class Twin:
    """A tensor of alpha and what PyTorch has for it; `family`: all twins whose tensors of alpha share memory."""

    ours: alpha.Tensor
    theirs: torch.Tensor
    family: list[Twin] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.family.append(self)


class Case:
    """One random graph."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.log, self.changes = rng, [], 0
        self.leaves: list[tuple[alpha.Tensor, torch.Tensor]] = []
        self.twins = [self.leaf() for _ in range(rng.randint(1, 3))]

    def array(self, shape: tuple[int, ...] = SHAPE) -> np.ndarray:
        return np.array([self.rng.uniform(-2, 2) for _ in range(int(np.prod(shape)))]).reshape(shape)

    def leaf(self) -> Twin:
        a = self.array()
        twin = Twin(alpha.tensor(a, requires_grad=True), torch.tensor(a, requires_grad=True))
        self.leaves.append((twin.ours, twin.theirs))
        return twin

    def pick(self, like: Twin | None = None) -> Twin:
        fitting = [t for t in self.twins if like is None or t.ours.shape == like.ours.shape]
        return self.rng.choice(fitting[-6:])

    def step(self) -> None:
        """Adds a tensor, or changes one."""
        t, choice = self.pick(), self.rng.random()
        if choice < 0.3:
            name = self.rng.choice(list(UNARY))
            self.add(f"{name}", Twin(UNARY[name][0](t.ours), UNARY[name][1](t.theirs)))
        elif choice < 0.55:
            name, other = self.rng.choice(list(BINARY)), self.pick(t)
            self.add(name, Twin(BINARY[name](t.ours, other.ours), BINARY[name](t.theirs, other.theirs)))
        elif choice < 0.7:
            self.view(t)
        elif choice < 0.85:
            self.change(t)
        else:
            self.recorded(t)

    def add(self, what: str, twin: Twin) -> None:
        self.log.append(what)
        self.twins.append(twin)

    def view(self, t: Twin) -> None:
        kind = self.rng.choice(["reshape", "detach", "parameter", "dlpack", "whole"])
        if kind == "reshape":
            shape = t.ours.shape[::-1]
            self.add(kind, Twin(t.ours.reshape(shape), t.theirs.reshape(shape), t.family))
        elif kind == "whole":
            self.add(kind, Twin(t.ours[:], t.theirs[:], t.family))
        elif kind == "parameter":
            twin = Twin(nn.Parameter(t.ours), t.theirs.detach().clone().requires_grad_(), t.family)
            self.leaves.append((twin.ours, twin.theirs))
            self.add(kind, twin)
        else:
            ours = t.ours.detach()
            self.add(kind, Twin(alpha.from_dlpack(ours) if kind == "dlpack" else ours, t.theirs.detach(), t.family))

    def change(self, t: Twin) -> None:
        """Changes the elements of a family without a word to the graph."""
        if t.ours.shares == "sometimes":
            return
        sign, a = self.rng.choice(["+=", "-=", "*=", "copy_", "step"]), self.array(t.ours.shape)
        before = t.ours.numpy()
        if sign == "step":
            p, expected = t.ours.detach().requires_grad_(), before - 0.5 * a
            p.grad = alpha.tensor(a)
            optim.SGD([p], lr=0.5).step()
        elif sign == "copy_":
            t.ours.copy_(a)
            expected = a
        else:
            with alpha.no_grad():
                _in_place(t.ours, sign, alpha.tensor(a))
            expected = OUT_OF_PLACE[sign](before, a)
        self.log.append(f"[{sign}]")
        self.changes += 1
        for member in t.family:
            new = expected.reshape(member.ours.shape)
            assert np.allclose(member.ours.numpy(), new, rtol=1e-12, atol=1e-12), "a view did not see a change"
            member.theirs = member.theirs + (torch.tensor(new) - member.theirs).detach()

    def recorded(self, t: Twin) -> None:
        """Changes a tensor by an op that the graph sees; alpha's tensor then is another one."""
        if len(t.family) > 1:
            return  # by design its views keep what they had
        sign, other = self.rng.choice(list(OUT_OF_PLACE)), self.pick(t)
        self.log.append(sign)
        if t.ours.requires_grad and t.ours.is_leaf:
            before = t.ours.numpy()
            try:
                _in_place(t.ours, sign, other.ours)
            except GraphError:
                assert (t.ours.numpy() == before).all()
                return
            raise AssertionError("a leaf was changed while the graph is recorded")
        theirs = OUT_OF_PLACE[sign](t.theirs, other.theirs)
        ours = _in_place(t.ours, sign, other.ours)
        assert ours is t.ours
        t.theirs = theirs
        self.changes += 1

    def loss(self) -> tuple[alpha.Tensor, torch.Tensor]:
        ours, theirs = alpha.zeros((), "float64"), torch.zeros((), dtype=torch.float64)
        for t in [*self.twins[-1:], self.pick(), self.pick()]:
            w = self.array(t.ours.shape)
            ours, theirs = ours + (t.ours * alpha.tensor(w)).sum(), theirs + (t.theirs * torch.tensor(w)).sum()
        return ours, theirs


def attempt(rng: random.Random, folder: pathlib.Path) -> str:
    """Runs one graph; returns what it was, and how it ended."""
    case = Case(rng)
    for _ in range(rng.randint(2, 14)):
        case.step()
    ours, theirs = case.loss()
    twice = rng.random() < 0.3
    for _ in range(rng.choice([0, 0, 1, 2])):
        case.change(case.pick())
    end = "equal"
    if not theirs.requires_grad or not torch.isfinite(theirs):
        return f"{' '.join(case.log)}: nothing to compare"
    try:
        if twice:
            xs, ts = [x for x, _ in case.leaves], [t for _, t in case.leaves]
            first = [g for g in alpha.grad(ours, xs, create_graph=True) if g is not None]
            theirs_first = [g for g in torch.autograd.grad(theirs, ts, create_graph=True, allow_unused=True)
                            if g is not None]
            if rng.random() < 0.5:
                case.change(case.pick())
            ours = sum(((g * g).sum() for g in first), alpha.zeros((), "float64"))
            theirs = sum((g * g).sum() for g in theirs_first)
            if not ours.requires_grad or not torch.as_tensor(theirs).requires_grad:
                return f"{' '.join(case.log)}: no second gradient"
        ours.backward()
    except GraphError as error:
        assert case.changes, f"refused without a change: {error}"
        end = f"refused, {str(error).partition(' was ')[0]}"
    else:
        theirs.backward()
        for k, (x, t) in enumerate(case.leaves):
            g = np.zeros(SHAPE) if x.grad is None else x.grad.numpy()
            h = np.zeros(SHAPE) if t.grad is None else t.grad.numpy()
            assert np.allclose(g.reshape(-1), h.reshape(-1), rtol=1e-8, atol=1e-8, equal_nan=True), \
                f"gradient of leaf {k}: {g.tolist()}, PyTorch has {h.tolist()}, after {' '.join(case.log)}"
    return f"{' '.join(case.log)}: {end}"
