"""Every op on the CPU beside PyTorch, forward and backward, the two taking turns.

    python -m benchmarks.cpu_ops [--shape 16 32 32 96] [--only gelu where] [--threads 1] [--clock cpu]
                                 [--output FILE.jsonl]

x has the given shape, channels last; y = f(x), then y's gradient is taken back to x (and to gamma and the like).
PyTorch gets the same layout: channels last. A ratio above 1 means that alpha is faster.
Allocation and the engine's own cost are part of a call on both sides. Times are the least of the rounds: where other
programs run, teams of threads wait for each other, and one thread (--threads 1) tells more; with `--clock cpu` its
processor time, which leaves out when others ran.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import alpha
from alpha import ops
from alpha.core.config import config
from benchmarks import cpu_timing
from benchmarks.environment import add_clock, check_clock
from benchmarks.results import record
from benchmarks.rounds import Side

SHAPE = (16, 32, 32, 96)


class Case(NamedTuple):
    """An op as alpha and as PyTorch call it, on x and further arrays, whose shapes follow from x's."""

    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    others: Callable[[tuple[int, ...]], Sequence[tuple[int, ...]]] = lambda s: ()
    differentiable: bool = True


def _same(s: tuple[int, ...]) -> list[tuple[int, ...]]:
    return [s]


def _channels(s: tuple[int, ...]) -> list[tuple[int, ...]]:
    return [s[-1:]]


def _pair(s: tuple[int, ...]) -> list[tuple[int, ...]]:
    return [s[-1:], s[-1:]]


def _first(t: Any) -> Any:
    """The channels-last form of NCHW that PyTorch's layers take: a view."""
    return t.permute(0, 3, 1, 2)


def _last(t: Any) -> Any:
    return t.permute(0, 2, 3, 1)


def cases(torch: Any) -> dict[str, Case]:
    f = torch.nn.functional
    activations = {name: Case(getattr(ops, name), g) for name, g in (
        ("relu", f.relu), ("relu6", f.relu6), ("leaky_relu", f.leaky_relu), ("sigmoid", torch.sigmoid),
        ("tanh", torch.tanh), ("silu", f.silu), ("gelu", f.gelu), ("elu", f.elu), ("softplus", f.softplus),
        ("hardswish", f.hardswish), ("exp", torch.exp), ("log", lambda x: torch.log(x)), ("sqrt", torch.sqrt),
        ("erf", torch.erf), ("abs", torch.abs))}
    positive = {name: Case(lambda x, g=ours: g(ops.abs(x)), lambda x, g=theirs.theirs: g(torch.abs(x)))
                for name, theirs in activations.items() if name in ("log", "sqrt")
                for ours in (getattr(ops, name),)}
    arithmetic = {
        "x + y": Case(lambda x, y: x + y, lambda x, y: x + y, _same),
        "x * y": Case(lambda x, y: x * y, lambda x, y: x * y, _same),
        "x / y": Case(lambda x, y: x / y, lambda x, y: x / y, _same),
        "x + bias": Case(lambda x, b: x + b, lambda x, b: x + b, _channels),
        "x * gamma": Case(lambda x, b: x * b, lambda x, b: x * b, _channels),
        "x * gate": Case(lambda x, b: x * b, lambda x, b: x * b, lambda s: [(s[0], 1, 1, s[3])]),
        "x * x": Case(lambda x: x * x, lambda x: x * x), "x ** 2": Case(lambda x: x ** 2, lambda x: x ** 2),
        "x * 2.5": Case(lambda x: x * 2.5, lambda x: x * 2.5), "1 - x": Case(lambda x: 1 - x, lambda x: 1 - x),
        "x > 0": Case(lambda x: x > 0, lambda x: x > 0, differentiable=False),
        "maximum": Case(ops.maximum, torch.maximum, _same),
        "clip": Case(lambda x: ops.clip(x, -1, 1), lambda x: torch.clamp(x, -1, 1)),
        "where": Case(lambda x, y: ops.where(x > 0, x, y), lambda x, y: torch.where(x > 0, x, y), _same)}
    norms = {
        "softmax": Case(lambda x: ops.softmax(x), lambda x: f.softmax(x, -1)),
        "log_softmax": Case(lambda x: ops.log_softmax(x), lambda x: f.log_softmax(x, -1)),
        "layer_norm": Case(ops.layer_norm, lambda x, w, b: f.layer_norm(x, x.shape[-1:], w, b), _pair),
        "group_norm": Case(lambda x, w, b: ops.group_norm(x, w, b, groups=8),
                           lambda x, w, b: _last(f.group_norm(_first(x), 8, w, b)), _pair),
        "batch_norm": Case(ops.batch_norm, lambda x, w, b: _last(f.batch_norm(_first(x), None, None, w, b, True)),
                           _pair)}
    reductions = {
        "sum": Case(lambda x: x.sum(), lambda x: x.sum()), "sum over the batch": Case(lambda x: x.sum(0),
                                                                                    lambda x: x.sum(0)),
        "sum over channels": Case(lambda x: x.sum(-1), lambda x: x.sum(-1)),
        "mean over pixels": Case(lambda x: x.mean((1, 2)), lambda x: x.mean((1, 2))),
        "var over pixels": Case(lambda x: x.var((1, 2)), lambda x: x.var((1, 2), correction=0)),
        "max over channels": Case(lambda x: x.max(-1), lambda x: x.amax(-1))}
    movement = {
        "concat": Case(lambda x, y: ops.concat([x, y], -1), lambda x, y: torch.cat([x, y], -1), _same),
        "pad": Case(lambda x: ops.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0))), lambda x: f.pad(x, (0, 0, 1, 1, 1, 1))),
        "half of the channels": Case(lambda x: x[..., :x.shape[-1] // 2], lambda x: x[..., :x.shape[-1] // 2] * 1),
        "every second pixel": Case(lambda x: x[:, ::2, ::2], lambda x: x[:, ::2, ::2] * 1),
        "permute": Case(lambda x: x.permute(0, 3, 1, 2), lambda x: x.permute(0, 3, 1, 2).contiguous()),
        "channel shuffle": Case(
            lambda x: x.reshape(*x.shape[:3], 4, -1).permute(0, 1, 2, 4, 3).reshape(x.shape),
            lambda x: x.reshape(*x.shape[:3], 4, -1).permute(0, 1, 2, 4, 3).reshape(x.shape)),
        "flip": Case(lambda x: ops.flip(x, 2), lambda x: torch.flip(x, (2,)))}
    depthwise = {f"depthwise {k}x{k}": Case(
        lambda x, w, k=k: ops.conv2d(x, w.reshape(-1, k, k, 1), padding=k // 2, groups=x.shape[-1]),
        lambda x, w, k=k: _last(f.conv2d(_first(x), w.reshape(-1, 1, k, k), padding=k // 2, groups=x.shape[-1])),
        lambda s, k=k: [(s[-1] * k * k,)]) for k in (3, 5, 7)}
    return {**activations, **positive, **arithmetic, **norms, **reductions, **movement, **depthwise}


def sides(torch: Any, case: Case, shape: tuple[int, ...]) -> dict[str, dict[str, Side]]:
    """Returns both libraries' calls, of the forward pass and of both."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s, dtype=np.float32) for s in (shape, *case.others(shape))]
    xs, ts = [alpha.tensor(a) for a in arrays], [torch.from_numpy(a.copy()) for a in arrays]
    forward = {"alpha": Side(lambda _: case.ours(*xs)), "torch": Side(lambda _: case.theirs(*ts))}
    if not case.differentiable:
        return {"forward": forward}
    leaves = [alpha.tensor(a, requires_grad=True) for a in arrays]
    peers = [torch.from_numpy(a.copy()).requires_grad_() for a in arrays]
    y = case.ours(*leaves)
    g = rng.standard_normal(y.shape, dtype=np.float32)
    ours, theirs = alpha.tensor(g), torch.from_numpy(g.copy())

    def check() -> None:
        for a, b in zip(alpha.grad(case.ours(*leaves), leaves, ours),
                        torch.autograd.grad(case.theirs(*peers), peers, theirs)):
            scale = max(1.0, float(b.abs().max()))
            if not np.allclose(a.numpy() / scale, b.numpy() / scale, rtol=1e-3, atol=1e-4):
                raise SystemExit("the gradients differ")
        if not np.allclose(y.numpy(), case.theirs(*ts).numpy(), rtol=1e-3, atol=1e-4):
            raise SystemExit("the values differ")

    check()
    both = {"alpha": Side(lambda _: alpha.grad(case.ours(*leaves), leaves, ours)),
            "torch": Side(lambda _: torch.autograd.grad(case.theirs(*peers), peers, theirs))}
    return {"forward": forward, "both": both}


def measure(torch: Any, case: Case, shape: tuple[int, ...], rounds: int, window: float, clock: str = "wall"
            ) -> dict[str, float]:
    row = {}
    for what, pair in sides(torch, case, shape).items():
        times = cpu_timing.alternate(pair, rounds, window, clock)
        for name, values in times.items():
            row[f"{what}_{name}_ms"] = min(values)
        row[f"{what}_ratio"] = row[f"{what}_torch_ms"] / row[f"{what}_alpha_ms"]
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description="every op on the CPU beside PyTorch")
    parser.add_argument("--shape", type=int, nargs=4, default=SHAPE, help="of x: N H W C")
    parser.add_argument("--only", nargs="+", help="ops to measure, by name")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--window", type=float, default=30.0, help="milliseconds of calls in a row")
    parser.add_argument("--threads", type=int, help="of both libraries; default: one per core")
    add_clock(parser)
    parser.add_argument("--output", type=Path, help="append the results to this file, a JSON object a line")
    args = parser.parse_args()
    check_clock(parser, args)
    facts = cpu_timing.start(f"python -m benchmarks.cpu_ops --threads {args.threads or 'all'} --clock {args.clock}",
                             "torch")
    torch, shape = cpu_timing.strict_torch(), tuple(args.shape)
    if args.threads:
        torch.set_num_threads(args.threads)
    with config(num_threads=args.threads or config.num_threads):
        table(args, facts, torch, shape)


def table(args: argparse.Namespace, facts: dict[str, Any], torch: Any, shape: tuple[int, ...]) -> None:
    """Measures the ops that are asked for, and prints a line for each."""
    found = cases(torch)
    print(f"x {shape}, float32, milliseconds\n| op | forward: alpha | PyTorch | ratio | with backward: alpha | PyTorch "
          "| ratio |\n|---|---|---|---|---|---|---|")
    ratios: dict[str, list[float]] = {"forward": [], "both": []}
    for name in args.only or found:
        row = measure(torch, found[name], shape, args.rounds, args.window, args.clock)
        record(args.output, facts, {"op": name, "shape": shape, **row})
        keys = [f"{what}_{side}" for what in ratios for side in ("alpha_ms", "torch_ms", "ratio")]
        cells = [f"{row[key]:.{2 if key.endswith('ratio') else 3}f}" if key in row else "-" for key in keys]
        for what, values in ratios.items():
            if f"{what}_ratio" in row:
                values.append(row[f"{what}_ratio"])
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    print("geometric mean of the ratios: " + ", ".join(
        [f"{what} {statistics.geometric_mean(values):.2f}" for what, values in ratios.items() if values]))


if __name__ == "__main__":
    main()
