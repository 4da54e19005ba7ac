"""Contextual convolutions beside PyTorch, a list of convolutions and a concatenation there: three passes, and steps.

    python -m benchmarks.coconv [--device cpu|cuda] [--shapes 56x64x4 ...] [--passes fprop dgrad wgrad] [--tables]
                                [--precision fp32 tf32 bf16] [--rounds N] [--window MS] [--compile] [--steps]
                                [--clock cpu] [--output FOLDER] [--resume]

Sides, in turn in one process: `alpha`, the op; `composed`, alpha's conv2d for each level, copies and concatenation;
`conv2d`, alpha's Conv2d of the same weight; `torch_nchw`, `torch_nhwc`; in fp32 also PyTorch's with TF32, `tf32_nchw`
and `tf32_nhwc`; with --compile `compiled`. On a GPU all are CUDA graphs, so that time on the host counts for none, and
the tensor cores' form of float32 is made before, as in training. Before a pass is timed alpha's result is compared with
PyTorch's in strict float32. --tables: the shapes of the paper's Tables 1 and 2, one image, forward. --steps: training
steps of coresnet50 by benchmarks.compare, at the batches of --batch-sizes. --clock cpu: the processor's time, of one
core (taskset -c 0), on a machine that others use too.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import alpha
from alpha.core.op import registry
from alpha.errors import AlphaError
from alpha.ops.coconv_desc import CoConvDesc
from alpha.ops.conv_desc import ConvDesc
from benchmarks import checks, results
from benchmarks.conv_ops import BOUNDS, in_windows, stream_of, timing_of
from benchmarks.conv_sides import Operands
from benchmarks.environment import add_clock, add_common, check_clock, settle, torch_facts
from benchmarks.results import Row
from benchmarks.rounds import Side, medians, relative_error
from benchmarks.shapes import PASSES
from benchmarks.torch_precision import allow_tf32

KEY = ("set", "shape", "pass", "precision", "n")
PRECISIONS = ("fp32", "tf32", "bf16")
READS = {"fp32": "float16x2", "tf32": "float16"}  # of float32, by tensor cores
Call = Callable[[int], Any]


class CoShape(NamedTuple):
    """A square contextual convolution of 3x3 with dilations 1, 2, ...; x (n, hw, hw, ic), w (oc, 3, 3, ic)."""

    n: int
    hw: int
    ic: int
    oc: int
    levels: int
    f: int = 3

    @property
    def name(self) -> str:
        channels = str(self.ic) if self.ic == self.oc else f"{self.ic}-{self.oc}"
        return f"{self.hw}x{channels}x{self.levels}"

    @property
    def attrs(self) -> dict[str, Any]:
        """The attributes of the ops, canonical."""
        return dict(dilations=tuple(range(1, self.levels + 1)), channels=None, stride=(1, 1), groups=1)

    @property
    def desc(self) -> CoConvDesc:
        return CoConvDesc.fprop((self.n, self.hw, self.hw, self.ic), (self.oc, 3, 3, self.ic), **self.attrs)


SHAPES = tuple(CoShape(*row) for row in ((64, 56, 64, 64, 4), (64, 28, 128, 128, 3), (64, 14, 256, 256, 2),
                                         (512, 32, 64, 64, 4), (512, 16, 128, 128, 3), (512, 8, 256, 256, 2)))
CPU_SHARE = 16  # a CPU gets one image of so many
# The paper's tables name input and output; where they disagree the rows are Table 2's.
TABLES = tuple(CoShape(1, hw, ic, oc, 4) for hw, ic, oc in (
    (5, 3, 4), (16, 12, 8), (32, 32, 8), (64, 32, 12), (64, 32, 16), (64, 64, 64), (64, 100, 32), (100, 100, 100),
    (128, 100, 100), (256, 100, 100), (500, 100, 100)))
PAPER_MS = dict(zip((shape.name for shape in TABLES), (
    (0.425, 208, 4511), (24.299, 179.481, 3733), (165.912, 189.25, 3863), (551.926, 135.94, 3796),
    (781.265, 167.64, 3876), (3306.033, 226.037, 3890), (14911.199, 222.084, 3980), (34492.828, 233.251, 4890),
    (60498.508, 369.057, 4150), (242430.468, 396.469, 3737), (1054068.75, 641.7, 4080))))  # one thread, CUDA, PyTorch


# ---- sides -----------------------------------------------------------------------------------------------------------


def geometry(level: ConvDesc) -> dict[str, Any]:
    """Returns the attributes of a level as a convolution."""
    return dict(stride=(level.h.s, level.w.s), padding=(level.h.p, level.w.p), dilation=(level.h.d, level.w.d),
                groups=level.groups)


def alpha_calls(operands: Operands, pass_name: str, device: str, reads: str) -> dict[str, Call]:
    """Returns the op, the composition, and Conv2d of the same weight, as functions of the number of the call."""
    sets, desc, tensors = operands.wrapped(), operands.shape.desc, []
    for group in sets:
        if reads:
            from alpha.cuda.lazy import operand
            for x in group:
                operand(x, reads)
        dtype = str(operands.dtype)
        tensors.append([alpha.Tensor(a, tuple(a.shape), dtype, device) for a in group])
    held: dict[str, list[Any]] = {}

    def side(name: str, run: Callable[..., Any], source: Sequence[Any]) -> Call:
        held[name] = [None] * len(source)

        def call(k: int) -> Any:
            made = held[name][k % len(source)] = run(*source[k % len(source)])
            return made
        return call

    extra: dict[str, Any] = {"fprop": {}, "dgrad": {"hw": desc.x_shape[1:3]},
                             "wgrad": {"f": desc.w_shape[1:3]}}[pass_name]
    suffix = "" if pass_name == "fprop" else f"_{pass_name}"
    plain = geometry(desc.levels[0][1])
    first, second = {"fprop": (0, 1), "dgrad": (2, 1), "wgrad": (0, 2)}[pass_name]

    def direct(op: str, attrs: dict[str, Any]) -> Callable[..., Any]:
        run = registry[op].impls[device]
        return lambda *group: run(group[first], group[second], **extra, **attrs)
    return {"alpha": side("alpha", direct(f"coconv2d{suffix}", operands.shape.attrs), sets),
            "composed": side("composed", lambda *group: composed(desc, pass_name, *group), tensors),
            "conv2d": side("conv2d", direct(f"conv2d{suffix}", plain), sets)}


def composed(desc: CoConvDesc, pass_name: str, x: Any, w: Any, g: Any) -> Any:
    """Returns a pass made of alpha's convolutions."""
    ops = alpha.ops
    made = []
    for first, level in desc.levels:
        rows = slice(first, first + level.oc)
        if pass_name == "fprop":
            made.append(ops.conv2d(x, w[rows], **geometry(level)))
        elif pass_name == "dgrad":
            made.append(ops.conv2d_dgrad(g[:, :, :, rows], w[rows], desc.x_shape[1:3], **geometry(level)))
        else:
            made.append(ops.conv2d_wgrad(x, g[:, :, :, rows], desc.w_shape[1:3], **geometry(level)))
    if pass_name == "dgrad":
        return sum(made[1:], start=made[0])
    return ops.concat(made, 3 if pass_name == "fprop" else 0)


def torch_pass(desc: CoConvDesc, pass_name: str) -> Callable[..., Any]:
    """Returns PyTorch's pass as a function of (x, levels of w, g), with axes N C H W; of wgrad a list."""
    import torch
    levels = [(first, level.oc, [level.h.p] * 2, [level.h.d] * 2) for first, level in desc.levels]

    def run(x: Any, w: Sequence[Any], g: Any) -> Any:
        if pass_name == "fprop":
            return torch.cat([torch.nn.functional.conv2d(x, part, None, 1, p, d) for part, (_, _, p, d) in
                              zip(w, levels)], 1)
        made = [torch.ops.aten.convolution_backward(
            g[:, first:first + count], x, part, None, [1, 1], p, d, False, [0, 0], 1,
            [pass_name == "dgrad", pass_name == "wgrad", False])[int(pass_name == "wgrad")]
            for part, (first, count, p, d) in zip(w, levels)]
        return sum(made[1:], start=made[0]) if pass_name == "dgrad" else made
    return run


def torch_calls(operands: Operands, pass_name: str, precision: str, compiled: bool, device: str) -> dict[str, Call]:
    """Returns PyTorch's sides; each sets its rounding before it computes."""
    import torch
    desc, run = operands.shape.desc, torch_pass(operands.shape.desc, pass_name)
    found: dict[str, Call] = {}
    for layout in ("nchw", "nhwc"):
        sets = [(x, [w[a:a + level.oc].contiguous(memory_format=torch.channels_last if layout == "nhwc" else
                                                  torch.contiguous_format) for a, level in desc.levels], g)
                for x, w, g in operands.turned(layout == "nhwc")]
        modes = {"torch": precision, **({"tf32": "tf32"} if precision == "fp32" and device == "cuda" else {})}
        runs = {name: (run, mode) for name, mode in modes.items()}
        if compiled and layout == "nhwc":
            runs["compiled"] = torch.compile(run), precision
        for name, (function, mode) in runs.items():
            found[name if name == "compiled" else f"{name}_{layout}"] = _torch_side(torch, function, sets, mode)
    return found


def _torch_side(torch: Any, run: Callable[..., Any], sets: Sequence[Any], mode: str) -> Call:
    held: list[Any] = [None] * len(sets)

    def call(k: int) -> Any:
        allow_tf32(torch, mode)
        with torch.no_grad():
            made = held[k % len(sets)] = run(*sets[k % len(sets)])
        return made
    return call


# ---- figures ---------------------------------------------------------------------------------------------------------


def check(operands: Operands, pass_name: str, precision: str, calls: dict[str, Call]) -> dict[str, float]:
    """Returns the relative errors of alpha's two forms against PyTorch in strict float32.  Raises UnfairError."""
    import torch
    desc = operands.shape.desc
    allow_tf32(torch, "fp32")
    x, w, g = (t.float().permute(0, 3, 1, 2) for t in operands.torch[0])
    with torch.no_grad():
        expected = torch_pass(desc, pass_name)(x, [w[a:a + level.oc] for a, level in desc.levels], g)
    expected = (torch.cat(expected) if pass_name == "wgrad" else expected).permute(0, 2, 3, 1)
    found = {}
    for name in ("alpha", "composed"):
        made = calls[name](0)
        operands.timing.synchronize()
        view = operands.timing.view(made.array if isinstance(made, alpha.Tensor) else made)
        found[name] = relative_error(view, expected)
    if not all(error < BOUNDS[precision] for error in found.values()):
        checks.refuse(f"{operands.shape.name} {pass_name}: a result is wrong, relative errors {found}, "
                      f"{BOUNDS[precision]} is allowed in {precision}", "look for the kernel", where="coconv")
    return found


def measure(set_name: str, operands: Operands, pass_name: str, precision: str, device: str, args: Any) -> Row:
    """Returns the figures of one pass of one shape."""
    shape, timing = operands.shape, operands.timing
    reads = READS.get(precision, "") if device == "cuda" and alpha.config.tensor_cores else ""
    with alpha.precision(precision), alpha.no_grad():
        ours = alpha_calls(operands, pass_name, device, reads)
        error = check(operands, pass_name, precision, ours)
        calls = {**ours, **torch_calls(operands, pass_name, precision, args.compile, device)}
        sides = {name: Side(call, stream_of(device) if name in ours else None) for name, call in calls.items()}
        times = in_windows(timing, sides, operands.sets if device == "cuda" else 0, vars(args))
    ms = medians(times)
    theirs = {name: t for name, t in ms.items() if name.startswith(("torch", "compiled"))}
    rounding = {name: t for name, t in ms.items() if name.startswith("tf32")}
    return {"set": set_name, "shape": shape.name, "pass": pass_name, "precision": precision, "device": device,
            "n": shape.n, "kernel": kernel_of(pass_name, shape.desc, str(operands.dtype), device, precision), "ms": ms,
            "ms_rounds": times, "error": error, "ratio": min(theirs.values()) / ms["alpha"],
            "ratio_tf32": min(rounding.values()) / ms["alpha"] if rounding else None,
            "of_conv2d": ms["alpha"] / ms["conv2d"], "of_composed": ms["alpha"] / ms["composed"],
            "useful_tflops": shape.desc.useful_flops / ms["alpha"] / 1e9,
            **({"paper_ms": PAPER_MS[shape.name]} if set_name == "tables" else {})}


def kernel_of(pass_name: str, desc: CoConvDesc, dtype: str, device: str, precision: str) -> str:
    """Returns the kernel of a pass: on a GPU the candidate that was chosen."""
    if device == "cpu":
        from alpha.cpu import native
        return "compiled" if alpha.config.cpu_kernels and native.library() else "numpy"
    from alpha.cuda.conv.planner import plan, precision_of
    with alpha.precision(precision):
        return plan(pass_name, desc, precision_of(dtype)).chosen.name


HEAD = ("set", "shape", "n", "pass", "precision", "us", "composed", "Conv2d", "PyTorch", "its TF32", "times PyTorch",
        "times its TF32", "of Conv2d", "useful TFLOP/s", "error", "kernel", "paper: CPU, CUDA, PyTorch ms")


def line(row: Row) -> str:
    """Returns a row of the table."""
    cells = [row["set"], row["shape"], row["n"], row["pass"], row["precision"]]
    if "failed" in row:
        return f"| {' | '.join(map(str, cells))} | FAILED: {row['failed']} |"
    us = {name: t * 1e3 for name, t in row["ms"].items()}
    tf32 = [t for name, t in us.items() if name.startswith("tf32")]
    cells += [f"{us['alpha']:.1f}", f"{us['composed']:.1f}", f"{us['conv2d']:.1f}", f"{us['alpha'] * row['ratio']:.1f}",
              f"{min(tf32):.1f}" if tf32 else "-", f"{row['ratio']:.2f}",
              f"{row['ratio_tf32']:.2f}" if row["ratio_tf32"] else "-", f"{row['of_conv2d']:.2f}",
              f"{row['useful_tflops']:.3g}", f"{row['error']['alpha']:.0e}", row["kernel"], row.get("paper_ms", "-")]
    return f"| {' | '.join(map(str, cells))} |"


# ---- command line ----------------------------------------------------------------------------------------------------


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = [shape.name for shape in SHAPES + TABLES]
    parser.add_argument("--shapes", nargs="+", choices=names, metavar="SHAPE", help=f"of {', '.join(names)}")
    parser.add_argument("--passes", nargs="+", default=list(PASSES), choices=PASSES)
    parser.add_argument("--precision", nargs="+", default=["fp32"], choices=PRECISIONS)
    parser.add_argument("--tables", action="store_true", help="the shapes of the paper's tables in the place of ours")
    parser.add_argument("--steps", action="store_true", help="training steps of coresnet50, and nothing else")
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=[128, 512], help="of the steps")
    parser.add_argument("--compile", action="store_true", help="torch.compile as one more side; it takes its time")
    parser.add_argument("--rounds", type=int, default=5, help="of windows")
    parser.add_argument("--window", type=float, default=8.0, help="milliseconds of calls in a row")
    add_clock(parser)
    add_common(parser, "shape")
    args = parser.parse_args(argv)
    check_clock(parser, args)
    settle(args)
    return args


def steps(args: argparse.Namespace) -> int:
    """Runs training steps of coresnet50 in both libraries."""
    from benchmarks import compare
    return compare.main(["--models", "coresnet50", "--batch-sizes", *map(str, args.batch_sizes), "--precision",
                         *args.precision, "--device", args.device, "--output", str(args.output), "--clock", args.clock,
                         *(["--resume"] if args.resume else [])])


def main(argv: Sequence[str] | None = None) -> int:
    args = parsed(argv)
    if args.steps:
        return steps(args)
    try:
        checks.admit(args.precision, args.device, "coconv", args.busy)
    except AlphaError as error:
        print(error, file=sys.stderr)
        return 1
    timing = timing_of(args.device)
    deadline = time.monotonic() + args.budget_s
    command = f"python -m benchmarks.coconv {' '.join(sys.argv[1:] if argv is None else argv)}".strip()
    facts = {**timing.start(command), **torch_facts(), "rounds": args.rounds, "window_ms": args.window,
             "clock": args.clock}
    if args.device == "cuda":
        facts["name"] = facts.pop("device")
    print("; ".join(f"{k}: {v}" for k, v in facts.items()))
    print(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}")
    rows = [row for precision in args.precision for row in run(args, timing, precision, facts, deadline)]
    return 1 if any("failed" in row for row in rows) else 0


def run(args: argparse.Namespace, timing: ModuleType, precision: str, facts: Row, deadline: float) -> list[Row]:
    """Measures all shapes in one precision; a failure is a row, and the rest goes on."""
    file, set_name = args.output / "coconv.jsonl", "tables" if args.tables else "layers"
    there = {results.key_of(row, KEY) for row in results.read(file) if "failed" not in row} if args.resume else set()
    rows: list[Row] = []
    for shape in TABLES if args.tables else SHAPES:
        if args.device == "cpu" and not args.tables:
            shape = shape._replace(n=max(1, shape.n // CPU_SHARE))
        key = {"set": set_name, "shape": shape.name, "precision": precision, "n": shape.n}
        wanted = [p for p in (["fprop"] if args.tables else args.passes)
                  if results.key_of({**key, "pass": p}, KEY) not in there]
        if (args.shapes and shape.name not in args.shapes) or not wanted or time.monotonic() > deadline:
            continue
        operands = Operands(shape, timing, "bfloat16" if precision == "bf16" else "float32")  # type: ignore[arg-type]
        for pass_name in wanted:
            try:
                row = measure(set_name, operands, pass_name, precision, args.device, args)
            except Exception as error:  # the other shapes are of use without this one
                traceback.print_exc()
                row = {**key, "pass": pass_name, "failed": (str(error) or repr(error)).partition("\n")[0][:200]}
            results.record(file, facts, row)
            print(line(row), flush=True)
            rows.append(row)
    return rows


if __name__ == "__main__":
    sys.exit(main())
