"""Zeros of feature maps: how many trained networks have, and the gain of convolutions that skip them.

    python -m benchmarks.sparsity networks [--model vgg11 vgg11_plain] [--epochs 3] [--prune 0.8] [--export DIR]
    python -m benchmarks.sparsity sweep [--only vgg19_32 strides] [--batch 1 32] [--clock cpu] [--output FILE.jsonl]

networks: trains each network on the digits of benchmarks.digits_archive and prints, beside its accuracy on test images,
    the share of zeros that every convolution and linear layer reads. --prune sets the smallest weights to zero, that
    share of each layer's, and counts again. --export writes the inputs of all convolutions for a batch of test images.
sweep: the forward pass of a layer by direct loops, Winograd and sparse loops, and by PyTorch (oneDNN), taking turns, at
    shares of zeros that are spread evenly; filters are packed in each call; with --packed also once, as alpha.inference
    does. The last columns are the share from which
    sparse beats direct, and the MiB of lists, of im2col's columns and of x. Sets of layers: VGG-19's at 32 and 224, the
    layers of the blocking paper's Table I, at its share, and strides 2 and 3. On a GPU, beside cuDNN in strict float32,
    TF32 and bfloat16: python -m benchmarks.cuda_sparsity
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import alpha
import models
from alpha import nn
from alpha.core.config import config
from alpha.nn import Module
from alpha.testing.conv_cases import Case, square
from benchmarks import cpu_timing, digits_archive
from benchmarks.environment import add_clock, check_clock
from benchmarks.inference import least_ms
from benchmarks.results import record

SHARES = (0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98)
MIB = 1 << 20


def vgg19(size: int) -> list[Case]:
    """The distinct 3x3 layers of VGG-19 behind the first, for images of size x size."""
    stages = ((1, 64, 64), (2, 64, 128), (2, 128, 128), (4, 128, 256), (4, 256, 256), (8, 256, 512), (8, 512, 512),
              (16, 512, 512))
    return [square(f"{size // part}x{size // part} {ic}->{oc}", 1, size // part, ic, oc, 3, 1, 1)
            for part, ic, oc in stages]


# The rows of Table I that can be identified: map, channels in and out, filter.
TABLE_I = [square(name, 1, hw, ic, oc, f, 1, f // 2) for name, hw, ic, oc, f in (
    ("inception 4a.1", 14, 480, 192, 1), ("inception 4a.2", 14, 480, 96, 1), ("inception 4e.3", 14, 160, 320, 3),
    ("inception 5a.1", 7, 832, 256, 1), ("inception 5a.2", 7, 832, 160, 1), ("inception 5b.3", 7, 192, 384, 3),
    ("inception 5a.7", 7, 832, 128, 1), ("AlexNet conv4", 13, 384, 384, 3))]
STRIDES = [square(f"{hw}x{hw} {c}->{c} stride {s}", 1, hw, c, c, 3, s, 1)
           for hw, c in ((56, 128), (28, 256), (14, 512)) for s in (2, 3)]
SETS: dict[str, list[Case]] = {"vgg19_32": vgg19(32), "vgg19_224": vgg19(224), "table1": TABLE_I, "strides": STRIDES}


# ---- networks --------------------------------------------------------------------------------------------------------


def images(count: int, test: bool) -> tuple[np.ndarray, np.ndarray]:
    """Returns images (N, 32, 32, 3), float32 from -1 to 1, and labels."""
    x, y = digits_archive.made(*digits_archive.sources(0)[test], count, np.random.default_rng(int(test)))
    return x.astype(np.float32) / 127.5 - 1, y


def accuracy(model: Module, x: np.ndarray, y: np.ndarray) -> float:
    with alpha.no_grad():
        found = [model.eval()(alpha.tensor(part)).numpy().argmax(1) for part in np.array_split(x, -(-len(x) // 200))]
    return float((np.concatenate(found) == y).mean())


def prune(model: Module, share: float) -> None:
    """Sets the smallest weights of each convolution and linear layer to zero."""
    for layer in model.modules():
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            w = layer.weight.numpy()
            layer.weight.copy_(np.where(np.abs(w) < np.quantile(np.abs(w), share), 0, w).astype(np.float32))


def export(model: Module, x: np.ndarray, path: Path) -> None:
    """Writes the inputs of all convolutions, an array of each by the name of its layer."""
    kept: dict[str, np.ndarray] = {}
    layers = [(name, m) for name, m in model.named_modules() if isinstance(m, nn.Conv2d)]
    removers = [m.register_forward_hook(lambda m, args, y, name=name: kept.__setitem__(name, args[0].numpy()))
                for name, m in layers]
    with alpha.no_grad():
        model.eval()(alpha.tensor(x))
    for remove in removers:
        remove()
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **kept)


def report(name: str, model: Module, x: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    """Prints and returns the share of zeros that each layer reads, beside the accuracy."""
    rows = alpha.summary(model.eval(), x.shape[1:], zeros=alpha.tensor(x[:100])).rows
    shares = {r.path: r.input_zeros for r in rows if r.kind in ("Conv2d", "Linear")}
    right = accuracy(model, x, y)
    print(f"\n{name}: accuracy {right:.1%} on {len(x)} test images\n| layer | zeros read |\n| --- | --- |")
    for layer, share in shares.items():
        print(f"| {layer} | {share:.1%} |")
    return {"network": name, "accuracy": right, "zeros": shares}


def networks(args: argparse.Namespace) -> None:
    facts = cpu_timing.start("python -m benchmarks.sparsity networks")
    x, y = images(args.images, False)
    test_x, test_y = images(max(200, args.images // 10), True)
    for name in args.model:
        model = models.create(name)
        alpha.training.fit(model, (x, y), epochs=args.epochs, batch_size=64, optimizer="adam", lr=1e-3, progress=False)
        record(args.output, facts, report(name, model, test_x, test_y))
        if args.export:
            export(model, test_x[:8], args.export / f"{name}.npz")
        if args.prune:
            prune(model, args.prune)
            record(args.output, facts, report(f"{name}, {args.prune:.0%} of the weights cut", model, test_x, test_y))


# ---- sweep -----------------------------------------------------------------------------------------------------------


def sides(case: Case, zeros: float, packed: bool = False) -> dict[str, Callable[[], Any]]:
    """Returns the calls of each way, which agree; packed: of alpha.inference, too, which packs filters once."""
    import torch
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in (case.x_shape, case.w_shape))
    x[rng.random(x.shape) < zeros] = 0
    ours = alpha.tensor(x), alpha.tensor(w)
    theirs = [torch.from_numpy(np.ascontiguousarray(a.transpose(0, 3, 1, 2))).contiguous(
        memory_format=torch.channels_last) for a in (x, w)]
    names = ("direct", "sparse", *(("winograd",) if case.f == (3, 3) and case.stride == (1, 1) else ()))

    def call(name: str) -> Callable[[], Any]:
        return alpha.no_grad()(lambda: alpha.ops.conv2d(*ours, algorithm=name, **case.attrs))
    found: dict[str, Callable[[], Any]] = {name: call(name) for name in names}
    for name in names if packed else ():
        layer = nn.Conv2d(case.ic, case.oc, case.f, case.stride, case.padding, bias=False, algorithm=name)
        layer.weight.copy_(w)
        found[f"{name}_packed"] = partial(alpha.inference(layer, ours[0]), ours[0])
    expected = found["direct"]().numpy()
    for name in found:
        off = np.linalg.norm(found[name]().numpy() - expected)
        if not off <= 4e-6 * np.linalg.norm(expected):
            raise RuntimeError(f"{case.name}: {name} differs from direct by {off:.1e}")
    found["torch"] = torch.no_grad()(lambda: torch.nn.functional.conv2d(*theirs, None, case.stride, case.padding))
    return found


def crossover(shares: list[float], ratios: list[float]) -> float | None:
    """Returns the share of zeros from which a ratio, of ascending shares, exceeds 1, between points by a line."""
    for k, ratio in enumerate(ratios):
        if ratio >= 1:
            if k == 0:
                return shares[0]
            step = (1 - ratios[k - 1]) / (ratio - ratios[k - 1])
            return shares[k - 1] + step * (shares[k] - shares[k - 1])
    return None


def sweep(args: argparse.Namespace) -> None:
    facts = cpu_timing.start("python -m benchmarks.sparsity sweep", "torch")
    clock = time.thread_time if args.clock == "cpu" else time.perf_counter
    print("| layer | batch | zeros | direct ms | Winograd | oneDNN | sparse | x direct | from zeros | lists MiB | "
          "im2col | x |\n|" + " --- |" * 12)
    for case in (case for name in args.only for case in SETS[name]):
        for batch in args.batch:
            layer = Case(case.name, batch, case.hw, case.ic, case.oc, case.f, case.stride, case.padding)
            rows = [least_ms(sides(layer, z, args.packed), args.rounds, clock) for z in args.zeros]
            start = crossover(list(args.zeros), [row["direct"] / row["sparse"] for row in rows])
            x_mib = 4 * np.prod(layer.x_shape) / MIB
            columns = x_mib * np.prod(layer.f) * np.prod(layer.desc.y_shape[:3]) / np.prod(layer.x_shape[:3])
            for z, row in zip(args.zeros, rows):
                record(args.output, facts, {"layer": case.name, "batch": batch, "zeros": z, "clock": args.clock,
                                            "threads": args.threads, **{f"{k}_ms": v for k, v in row.items()}})
                print(f"| {case.name} | {batch} | {z:g} | {row['direct']:.3f} | "
                      f"{row.get('winograd', float('nan')):.3f} | {row['torch']:.3f} | {row['sparse']:.3f} | "
                      f"{row['direct'] / row['sparse']:.2f} | "
                      f"{'-' if start is None else f'{start:.2f}'} | {2 * x_mib:.2f} | {columns:.2f} | {x_mib:.2f} |",
                      flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Zeros of feature maps, and what skipping them brings.")
    parser.add_argument("what", choices=("networks", "sweep"))
    parser.add_argument("--output", type=Path)
    parser.add_argument("--model", nargs="+", default=["vgg11", "vgg11_plain"])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--images", type=int, default=10_000, help="to train on")
    parser.add_argument("--prune", type=float, default=0.0, help="share of each layer's weights that is set to zero")
    parser.add_argument("--export", type=Path, help="folder for the inputs of the convolutions")
    parser.add_argument("--only", nargs="+", default=list(SETS), choices=list(SETS), help="sets of layers")
    parser.add_argument("--zeros", nargs="+", type=float, default=SHARES)
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 32])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--packed", action="store_true", help="alpha.inference, too, which packs filters once")
    add_clock(parser)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    check_clock(parser, args)
    if args.what == "networks":
        return networks(args)
    with config(num_threads=args.threads):
        cpu_timing.strict_torch().set_num_threads(args.threads)
        sweep(args)


if __name__ == "__main__":
    main()
