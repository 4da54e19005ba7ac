"""Attention and products of heads beside PyTorch's: its backends of attention, and cuBLAS (on the CPU: MKL).

    python -m benchmarks.attention [--device cpu|cuda] [--sets attention products] [--precision fp32 tf32 bf16 fp16]
                                   [--only TEXT] [--batches 1 16 256] [--output FOLDER] [--resume]

Both libraries compute on the same numbers in one process, in turn; on a GPU, repeated as CUDA graphs. A backend that
does not serve a case has no figure. Values are compared before they are timed. Rows are appended to attention.jsonl:
milliseconds of each side (the median of the rounds), and the ratio of PyTorch's least to alpha's.

attention: forward, and forward with its gradients (both), of a ViT of patch 4 and one of patch 16, a GPT's block, and
long sequences.  products: scores, weights by values, and a gradient of keys, of the same heads.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import ModuleType
from typing import Any, NamedTuple

import alpha
from alpha import ops
from alpha.ops.attention import attention, attention_grad
from benchmarks import results, rounds
from benchmarks.conv_ops import timing_of
from benchmarks.environment import add_common, settle, torch_facts
from benchmarks.rounds import Side, medians, relative_error
from benchmarks.torch_precision import allow_tf32

SETS, PRECISIONS = ("attention", "products"), ("fp32", "tf32", "bf16", "fp16")
KEY = ("set", "name", "pass", "precision", "n")
BOUNDS = {"fp32": 1e-5, "tf32": 5e-3, "bf16": 3e-2, "fp16": 5e-3}   # of the two libraries' difference
DTYPES = {"fp32": "float32", "tf32": "float32", "bf16": "bfloat16", "fp16": "float16"}
BACKENDS = ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION", "MATH")
CALLS = 5   # of one graph


class Heads(NamedTuple):
    """A case: samples, heads, tokens and elements of a head."""

    name: str
    n: int
    heads: int
    tokens: int
    width: int
    causal: bool = False


ATTENTION = (Heads("ViT patch 4", 256, 3, 65, 64), Heads("ViT-S/16", 64, 6, 197, 64),
             Heads("64 x 12 x 64", 64, 12, 64, 64), Heads("256 tokens", 64, 12, 256, 64),
             Heads("GPT", 16, 12, 1024, 64, True), Heads("1024", 16, 12, 1024, 64), Heads("4096", 2, 12, 4096, 64),
             Heads("wide heads", 16, 8, 1024, 128))
PRODUCTS = (Heads("ViT-T/4", 256, 3, 65, 64), Heads("ViT-S/16", 256, 6, 197, 64), Heads("GPT", 16, 12, 1024, 64))
CPU_BATCH = 16


class Sides(NamedTuple):
    """Tensors of both libraries over the same numbers: q, k, v and g."""

    ours: list[alpha.Tensor]
    theirs: list[Any]

    @classmethod
    def of(cls, case: Heads, precision: str, device: str, peer: str) -> Sides:
        import torch
        alpha.manual_seed(0)
        shape = case.n, case.heads, case.tokens, case.width
        ours = [alpha.randn(shape, device=device).astype(DTYPES[precision]) for _ in range(4)]
        theirs = [torch.tensor(t.astype("float32").numpy(), device=peer) for t in ours]
        return cls(ours, [t.to(getattr(torch, DTYPES[precision])) for t in theirs])


def attention_calls(case: Heads, sides: Sides, backward: bool) -> dict[str, Callable[[], Any]]:
    """Returns a call for alpha and for each backend of PyTorch's that serves the case."""
    import torch
    q, k, v, g = sides.ours
    how = dict(causal=case.causal, scale=case.width ** -0.5)
    rest = dict(heads=0, batch_first=True, p=0.0, seed=0, offset=0)

    def ours() -> Any:
        y, lse = attention.full(q, k, v, None, **how)
        return (y, *attention_grad(g, q, k, v, None, y, lse, **how, **rest)) if backward else (y,)

    def theirs(backend: Any) -> Any:
        *xs, grad = (t.detach().requires_grad_(backward) for t in sides.theirs)
        with torch.nn.attention.sdpa_kernel(backend):
            y = torch.nn.functional.scaled_dot_product_attention(*xs, is_causal=case.causal)
        return (y.detach(), *torch.autograd.grad(y, xs, grad)) if backward else (y,)
    calls: dict[str, Callable[[], Any]] = {"alpha": ours}
    for name in BACKENDS:
        backend = getattr(torch.nn.attention.SDPBackend, name)
        try:
            theirs(backend)
        except RuntimeError:    # it does not serve this case
            continue
        calls[name.partition("_")[0].lower()] = lambda backend=backend: theirs(backend)
    return calls


def product_calls(kind: str, sides: Sides) -> dict[str, Callable[[], Any]]:
    """Returns a call for alpha and for PyTorch: scores q k^T, weights by values, or weights^T by queries."""
    q, k, v, _ = sides.ours
    a, b, c, _ = sides.theirs
    if kind == "scores":
        return {"alpha": lambda: (ops.matmul(q, k, transpose_b=True),), "torch": lambda: (a @ b.mT,)}
    weights, theirs = ops.matmul(q, k, transpose_b=True), a @ b.mT
    if kind == "values":
        return {"alpha": lambda: (ops.matmul(weights, v),), "torch": lambda: (theirs @ c,)}
    return {"alpha": lambda: (ops.matmul(weights, q, transpose_a=True),), "torch": lambda: (theirs.mT @ a,)}


def measure(calls: dict[str, Callable[[], Any]], precision: str, timing: ModuleType, args: argparse.Namespace
            ) -> results.Row:
    """Returns the figures of calls whose values agree."""
    import torch
    made = {name: call() for name, call in calls.items()}
    error = max(relative_error(torch.tensor(a.astype("float32").numpy()), b.float().cpu())
                for name in calls if name != "alpha" for a, b in zip(made["alpha"], made[name]))
    del made
    if not error <= BOUNDS[precision]:
        raise SystemExit(f"attention: the results differ by {error:.1e}, {BOUNDS[precision]:.0e} is the most in "
                         f"{precision}")
    stream = timing.context.stream if args.device == "cuda" else None
    sides = {name: Side(lambda _, call=call: call(), stream if name == "alpha" else None)
             for name, call in calls.items()}
    with ExitStack() as stack:
        each = 1
        if hasattr(timing, "replayed"):
            sides, each = stack.enter_context(timing.replayed(sides, CALLS)), CALLS
        ms = {name: t / each for name, t in medians(timing.alternate(sides, args.rounds, args.window)).items()}
    return {"ms": ms, "error": error, "ratio": min(t for name, t in ms.items() if name != "alpha") / ms["alpha"]}


def cases(args: argparse.Namespace) -> list[tuple[str, Heads, str]]:
    """Returns (set, case, pass) of the cases asked for."""
    found = []
    for name, shapes, passes in (("attention", ATTENTION, ("fwd", "both")), ("products", PRODUCTS, (
            "scores", "values", "keys"))):
        for case in shapes if name in args.sets else ():
            sizes = args.batches or (min(case.n, CPU_BATCH) if args.device == "cpu" else case.n,)
            found += [(name, case._replace(n=n), each) for n in sizes for each in passes if args.only in case.name]
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_common(parser)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=SETS)
    parser.add_argument("--precision", nargs="+", choices=PRECISIONS, default=PRECISIONS)
    parser.add_argument("--only", default="", help="of the cases, those whose name has this text")
    parser.add_argument("--batches", nargs="+", type=int, help="samples, in place of a case's own")
    parser.add_argument("--rounds", type=int, default=rounds.ROUNDS)
    parser.add_argument("--window", type=float, default=rounds.WINDOW_MS, help="milliseconds of calls in a row")
    args = parser.parse_args(argv)
    settle(args)
    timing = timing_of(args.device)
    facts = {**timing.start("benchmarks.attention"), **torch_facts()}
    torch, path = timing.strict_torch(), args.output / "attention.jsonl"
    done = {results.key_of(row, KEY) for row in results.read(path)} if args.resume else set()
    print("| set | case | n | pass | precision | alpha, ms | PyTorch, ms | ratio |\n|---|---|---|---|---|---|---|---|")
    for precision in args.precision:
        if args.device == "cpu" and precision != "fp32":
            continue
        for kind, case, name in cases(args):
            key = {"set": kind, "name": case.name, "pass": name, "precision": precision, "n": case.n}
            if results.key_of(key, KEY) in done:
                continue
            allow_tf32(torch, precision)
            with alpha.precision(precision):
                sides = Sides.of(case, precision, args.device, timing.peer_device())
                calls = (attention_calls(case, sides, name == "both") if kind == "attention" else
                         product_calls(name, sides))
                row = {**key, "shape": case[1:], **measure(calls, precision, timing, args)}
            results.record(path, facts, row)
            others = ", ".join(f"{side} {t:.4g}" for side, t in row["ms"].items() if side != "alpha")
            print(f"| {kind} | {case.name} | {case.n} | {name} | {precision} | {row['ms']['alpha']:.4g} | {others} | "
                  f"{row['ratio']:.2f} |", flush=True)
            del sides, calls
    return 0


if __name__ == "__main__":
    sys.exit(main())
