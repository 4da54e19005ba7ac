"""Convolutions on this machine's GPU in float32, alpha beside cuDNN: forward pass and both gradients, layer by layer.

    python -m benchmarks.cuda_conv [--shapes v1 d32] [--passes fprop dgrad wgrad] [--tensor-cores] [--output FILE.jsonl]

Both libraries compute on the same numbers in one process, in turn. cuDNN may use NCHW and NHWC (channels_last),
searches for its fastest algorithm and computes in float32 proper, without TF32. alpha computes on FMA units, to which
the bars belong; with --tensor-cores as it does by itself. Before a pass is timed, a part of each result is compared
with float64, and alpha's whole result with cuDNN's. TFLOP/s are nominal, products with padded zeros counted, as the
field does; "useful" leaves those out, and is given as a share of what a large matrix product reaches.
"""

from __future__ import annotations

import argparse
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import alpha
from alpha.cuda.context import context
from alpha.op import registry
from benchmarks import cuda_timing as timing
from benchmarks.environment import torch_facts
from benchmarks.results import record
from benchmarks.shapes import PASSES, SHAPES, ConvShape, bar, waves

ERROR_BOUND = 1e-4    # float32 stays far below, TF32 does not
PART_IMAGES, PART_FILTERS = 2, 8  # what is computed in float64
USEFUL_BAR = 0.7      # of the rate of a large matrix product, on layers with more than one wave
MATMUL_SIZE = 8192


class Operands:
    """Sets of x, w and g of one layer, as both libraries see them."""

    def __init__(self, shape: ConvShape, sets: int) -> None:
        torch = timing.strict_torch()
        device, desc = timing.peer_device(), shape.desc
        self.shape, self.sets = shape, sets
        torch.manual_seed(0)
        scale = (shape.f * shape.f * shape.ic) ** -0.5
        self.torch = [(torch.randn(desc.x_shape, device=device), torch.randn(desc.w_shape, device=device) * scale,
                       torch.randn(desc.y_shape, device=device)) for _ in range(sets)]
        self.alpha = [tuple(map(timing.wrap, group)) for group in self.torch]

    def turned(self, channels_last: bool) -> list[tuple[Any, ...]]:
        """Returns the sets with PyTorch's axes, N C H W, in one of its two layouts."""
        turned = [tuple(t.permute(0, 3, 1, 2) for t in group) for group in self.torch]
        return turned if channels_last else [tuple(t.contiguous() for t in group) for group in turned]


def alpha_call(operands: Operands, pass_name: str) -> Callable[[int], Any]:
    """Returns alpha's pass as a function of the number of the call."""
    s = operands.shape
    op, first, second, extra = {
        "fprop": ("conv2d", 0, 1, {}), "dgrad": ("conv2d_dgrad", 2, 1, {"hw": (s.hw, s.hw)}),
        "wgrad": ("conv2d_wgrad", 0, 2, {"f": (s.f, s.f)})}[pass_name]
    run, sets, attrs = registry[op].impls["cuda"], operands.alpha, {**extra, **s.geometry}
    held = [None] * len(sets)

    def call(k: int) -> Any:
        group = sets[k % len(sets)]
        held[k % len(sets)] = made = run(group[first], group[second], **attrs)
        return made
    return call


def torch_call(operands: Operands, pass_name: str, channels_last: bool) -> Callable[[int], Any]:
    """Returns cuDNN's pass as a function of the number of the call; results have axes N C H W."""
    import torch
    s, sets = operands.shape, operands.turned(channels_last)
    stride, padding = [s.stride] * 2, [s.padding] * 2
    wanted = PASSES.index(pass_name) - 1
    held = [None] * len(sets)

    def call(k: int) -> Any:
        x, w, g = sets[k % len(sets)]
        if wanted < 0:
            made = torch.nn.functional.conv2d(x, w, None, stride, padding)
        else:
            made = torch.ops.aten.convolution_backward(g, x, w, None, stride, padding, [1, 1], False, [0, 0], 1,
                                                       [wanted == 0, wanted == 1, False])[wanted]
        held[k % len(sets)] = made
        return made
    return call


# ---- values ----------------------------------------------------------------------------------------------------------


def reference(shape: ConvShape, pass_name: str, x: Any, w: Any, g: Any) -> Any:
    """Returns a pass in float64, tap by tap.

    Args:
        x, w, g: PyTorch tensors in alpha's layouts, whole or cut along N (fprop, dgrad) or OC (wgrad).
    """
    import torch
    x, w, g = x.double(), w.double(), g.double()
    p, s, (_, oh, ow, _) = shape.padding, shape.stride, g.shape
    padded = torch.nn.functional.pad(x, (0, 0, p, p, p, p))
    if pass_name == "dgrad":
        padded = torch.zeros_like(padded)
    out = torch.zeros_like(w if pass_name == "wgrad" else g)
    for fh in range(shape.f):
        for fw in range(shape.f):
            met = padded[:, fh:fh + s * (oh - 1) + 1:s, fw:fw + s * (ow - 1) + 1:s]
            if pass_name == "fprop":
                out += met @ w[:, fh, fw].T
            elif pass_name == "dgrad":
                met += g @ w[:, fh, fw]
            else:
                out[:, fh, fw] = g.flatten(0, 2).T @ met.flatten(0, 2)
    return padded[:, p:p + shape.hw, p:p + shape.hw] if pass_name == "dgrad" else out


def errors(operands: Operands, pass_name: str, calls: dict[str, Callable[[int], Any]]) -> dict[str, float]:
    """Returns the relative error of each library, and of alpha against cuDNN.  Raises ValueError where one is large."""
    x, w, g = operands.torch[0]
    if pass_name == "wgrad":
        part, expected = slice(PART_FILTERS), reference(operands.shape, pass_name, x, w[:PART_FILTERS],
                                                        g[..., :PART_FILTERS])
    else:
        part = slice(PART_IMAGES)
        expected = reference(operands.shape, pass_name, x[part], w, g[part])
    results = {name: call(0) for name, call in calls.items()}
    timing.synchronize()
    seen = {name: timing.view(r) if name == "alpha" else r.permute(0, 2, 3, 1) for name, r in results.items()}
    found = {name: timing.relative_error(r[part], expected) for name, r in seen.items()}
    found["alpha against torch_nchw"] = timing.relative_error(seen["alpha"].float(), seen["torch_nchw"])
    if not all(error < ERROR_BOUND for error in found.values()):
        raise ValueError(f"{operands.shape.name} {pass_name}: relative errors {found}, {ERROR_BOUND} is allowed")
    return found


# ---- time ------------------------------------------------------------------------------------------------------------


def measure(operands: Operands, pass_name: str, matmul_tflops: float, rounds: int, window: float) -> dict[str, Any]:
    """Returns the figures of one pass of one layer."""
    shape, desc = operands.shape, operands.shape.desc
    calls = {"alpha": alpha_call(operands, pass_name), "torch_nchw": torch_call(operands, pass_name, False),
             "torch_nhwc": torch_call(operands, pass_name, True)}
    error = errors(operands, pass_name, calls)
    times = timing.alternate({name: timing.Side(call, context.stream if name == "alpha" else None)
                              for name, call in calls.items()}, rounds, window)
    ms = timing.medians(times)
    tflops = {name: desc.nominal_flops / t / 1e9 for name, t in ms.items()}
    cudnn = max(tflops["torch_nchw"], tflops["torch_nhwc"])
    ratio, asked = tflops["alpha"] / cudnn, bar(shape, pass_name, cudnn)
    useful = desc.useful_flops / ms["alpha"] / 1e9
    full = waves(desc, context.sm_count) > 1
    return {"shape": shape.name, "pass": pass_name, **shape._asdict(), "kernel": kernel_name(pass_name, desc),
            "sets": operands.sets, "ms": ms, "ms_rounds": times, "tflops": tflops, "ratio": ratio, "bar": asked,
            "met": None if asked is None else ratio >= asked, "useful_tflops": useful,
            "useful_share": useful / matmul_tflops, "useful_bar": USEFUL_BAR if full else None,
            "gb_per_s": desc.nbytes() / ms["alpha"] / 1e6, "error": error}


def kernel_name(pass_name: str, desc: Any) -> str:
    """Returns the kernel that alpha has chosen for a pass."""
    from alpha.cuda.plan import plan, precision_of
    return plan(pass_name, desc, precision_of("float32")).chosen.name


def matmul_facts(size: int, rounds: int, window: float) -> dict[str, Any]:
    """Returns what a large float32 matrix product of cuBLAS reaches, the arithmetic's ceiling, and the clocks then."""
    torch = timing.strict_torch()
    a, b = (torch.randn(size, size, device=timing.peer_device()) for _ in range(2))
    side = timing.Side(lambda k: a @ b)
    ms = timing.medians(timing.alternate({"matmul": side}, rounds, window))["matmul"]
    return {"matmul_tflops": 2 * size ** 3 / ms / 1e9, **timing.smi_during(side, max(1, round(1500 / ms)))}


def line(row: dict[str, Any]) -> str:
    """Returns a row of the table."""
    if "failed" in row:
        return f"| {row['shape']} | {row['pass']} | FAILED: {row['failed']} |"
    t = row["tflops"]
    return (f"| {row['shape']} | {row['pass']} | {row['ms']['alpha']:.3f} | {t['alpha']:.1f} | {t['torch_nchw']:.1f} | "
            f"{t['torch_nhwc']:.1f} | {row['ratio']:.2f} | {timing.mark(row['ratio'], row['bar'])} | "
            f"{row['useful_tflops']:.1f} | {100 * row['useful_share']:.0f} % "
            f"{timing.mark(row['useful_share'], row['useful_bar'])} | {row['error']['alpha']:.0e} / "
            f"{row['error']['torch_nchw']:.0e} | {row['kernel']} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = [s.name for s in SHAPES]
    parser.add_argument("--shapes", nargs="+", default=names, choices=names, metavar="NAME")
    parser.add_argument("--passes", nargs="+", default=list(PASSES), choices=PASSES)
    parser.add_argument("--tensor-cores", action="store_true", help="let alpha use them, as it does by itself")
    parser.add_argument("--rounds", type=int, default=timing.ROUNDS)
    parser.add_argument("--window-ms", type=float, default=timing.WINDOW_MS, help="time of a window of calls")
    parser.add_argument("--output", type=Path, help="append the results to this file, a JSON object a line")
    args = parser.parse_args()
    facts = timing.start(f"python -m benchmarks.cuda_conv --shapes {' '.join(args.shapes)} --passes "
                         f"{' '.join(args.passes)} --rounds {args.rounds} --window-ms {args.window_ms:g}"
                         + " --tensor-cores" * args.tensor_cores)
    facts |= {**torch_facts(), **matmul_facts(MATMUL_SIZE, 3, 100.0)}
    alpha.config.tensor_cores = args.tensor_cores
    rows = []
    for shape in (s for s in SHAPES if s.name in args.shapes):
        operands = Operands(shape, timing.sets_for(shape.desc.nbytes()))
        for pass_name in args.passes:
            try:
                row = measure(operands, pass_name, facts["matmul_tflops"], args.rounds, args.window_ms)
            except Exception as error:  # the other layers are of use without this one
                traceback.print_exc()
                row = {"shape": shape.name, "pass": pass_name, "failed": str(error).partition("\n")[0][:200]}
            rows.append(row)
            record(args.output, facts, row)
            print(line(row), flush=True)
    report(facts, rows)


def report(facts: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    print("\n" + "; ".join(f"{k}: {v}" for k, v in facts.items()))
    print("| layer | pass | ms | TFLOP/s | cuDNN NCHW | cuDNN NHWC | ratio | bar | useful TFLOP/s | of matmul | "
          "error alpha / cuDNN | kernel |\n|" + "---|" * 12)
    for row in rows:
        print(line(row))
    judged = [row for row in rows if row.get("bar") is not None]
    useful = [row for row in rows if row.get("useful_bar") is not None]
    print(f"{sum(row['met'] for row in judged)} of {len(judged)} bars met; "
          f"{sum(row['useful_share'] >= row['useful_bar'] for row in useful)} of {len(useful)} useful rates at "
          f"{100 * USEFUL_BAR:.0f} % of {facts['matmul_tflops']:.1f} TFLOP/s; "
          f"{sum('failed' in row for row in rows)} failed")


if __name__ == "__main__":
    main()
