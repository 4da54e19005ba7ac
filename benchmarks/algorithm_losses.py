"""The first losses of a training run with the algorithms that are chosen freely, beside those with direct alone.

    python -m benchmarks.algorithm_losses [--models vgg11] [--steps 20] [--lr 1e-4] [--device cpu|cuda] [--fma]
                                           [--output FOLDER]

Same weights, same batches: only the rounding of the convolutions differs. How far a rounding goes in so many steps
is seen from a third run, of direct with every first weight moved by a unit in its last place (`nudged`): its distance
from direct is no error of any algorithm. Rows go to algorithms_losses.jsonl, the picture of all of them lies beside
it. --fma leaves a GPU's tensor cores aside, where auto takes direct alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import alpha
import models
from alpha.cpu import native
from benchmarks import results
from benchmarks.environment import add_common, environment, settle, smi
from benchmarks.results import Row
from benchmarks.sides import AlphaSide, image_batches
from train.report import can_plot

KEY = ("model", "batch", "units", "lr")
BOUND = 1e-4    # of the differences, see apart


def nudge(net: Any, seed: int) -> None:
    """Moves every weight by a unit in its last place, up or down."""
    rng = np.random.default_rng(seed)
    state = {name: t.numpy() for name, t in net.state_dict().items()}
    net.load_state_dict({name: (a * (1 + rng.choice((-1, 1), a.shape) * 2.0 ** -24)).astype(a.dtype)
                         if a.dtype == np.float32 else a for name, a in state.items()})


def losses(model: str, batch: int, steps: int, lr: float, device: str, algorithm: str,
           nudged: int | None = None) -> list[float]:
    """Returns the losses of the first steps.  nudged: a seed by which weights are moved, see `nudge`."""
    alpha.manual_seed(0)
    with alpha.config(conv_algorithm=algorithm):
        net = models.create(model)
        if nudged is not None:
            nudge(net, nudged)
        side = AlphaSide(net, image_batches(batch), device, "fp32")
        for group in side.optimizer.param_groups:
            group["lr"] = lr
        return [float(side.step().numpy()) for _ in range(steps)]


def apart(one: Sequence[float], other: Sequence[float]) -> float:
    """Returns the largest difference of two runs, in parts of the second's loss where that is above 1."""
    return max(differences(one, other))


def differences(one: Sequence[float], other: Sequence[float]) -> list[float]:
    return [abs(a - b) / max(b, 1) for a, b in zip(one, other)]


def units_of(device: str, fma: bool) -> str:
    """Returns the units that multiply."""
    if device != "cpu":
        return "fma" if fma else "tensor cores"
    library = native.library()
    return f"vectors of {library.vector_lanes()}" if library else "numpy"


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draws losses by auto and by direct, and how far auto and nudged are from direct, a pair of panels per run."""
    if not can_plot("no picture is drawn"):
        return
    from benchmarks.plots import panels
    figure, axes_of = panels(2 * len(rows))
    for row in rows:
        title = f"{row['model']}, batch {row['batch']}, {row['units']}, lr {row['lr']:g}"
        axes = axes_of(title=title)
        for name, mark in (("direct", "o"), ("auto", ".")):
            axes.plot(row[name], mark, label=name)
        axes.set(xlabel="step", ylabel="loss")
        axes.legend(fontsize=6)
        axes = axes_of(title=f"{title}: difference")
        for name, mark in (("auto", "."), ("nudged", "x")):
            axes.semilogy([max(d, 1e-8) for d in differences(row.get(name) or (), row["direct"])], mark, label=name)
        axes.axhline(BOUND, color="k", linestyle=":", linewidth=0.8)
        axes.set(xlabel="step", ylabel="|... - direct| / max(direct, 1)")
        axes.legend(fontsize=6)
    figure.savefig(path, dpi=120, bbox_inches="tight")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["vgg11"])
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--lr", type=float, default=1e-4, help="the larger, the more a rounding grows by steps")
    parser.add_argument("--fma", action="store_true", help="ALPHA_TENSOR_CORES=0")
    add_common(parser)
    args = parser.parse_args(argv)
    settle(args)
    file = args.output / "algorithms_losses.jsonl"
    facts = {**environment("python -m benchmarks.algorithm_losses", on_gpu=args.device == "cuda"),
             **(smi("name", "driver_version") if args.device == "cuda" else {})}
    for model in args.models:
        with alpha.config(tensor_cores=not args.fma):
            found = {name: losses(model, args.batch_size, args.steps, args.lr, args.device, name)
                     for name in ("auto", "direct")}
            found["nudged"] = losses(model, args.batch_size, args.steps, args.lr, args.device, "direct", nudged=0)
            units = units_of(args.device, args.fma)
        worst, nudged = (apart(found[name], found["direct"]) for name in ("auto", "nudged"))
        results.record(file, facts, {"model": model, "batch": args.batch_size, "units": units, "lr": args.lr,
                                     "apart": worst, "apart_nudged": nudged, **found})
        print(f"{model}, batch {args.batch_size}, {units}: {args.steps} losses, {found['direct'][0]:.4f} to "
              f"{found['direct'][-1]:.4f}; auto and direct differ by at most {worst:.1e}, "
              f"nudged and direct by {nudged:.1e}")
    draw(results.latest(results.read(file), KEY), args.output / "algorithms_losses.png")


if __name__ == "__main__":
    main()
