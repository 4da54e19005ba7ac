"""The GPU's side of benchmarks.algorithms: cells by every algorithm and by PyTorch, in turn, as CUDA graphs.

Errors are of a part of the result, some images or some filters, against float64 by transforms of whole maps.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import alpha
from alpha.core.op import registry
from alpha.errors import AlphaError
from alpha.ops.algorithms.family import Way, cost_of
from alpha.ops.conv_desc import ConvDesc
from alpha.plan import Request
from benchmarks import cuda_timing
from benchmarks.results import Row
from benchmarks.rounds import Side, medians, relative_error
from benchmarks.shapes import SHAPES, ConvShape, squares

NAMED = ("v1", "v2", "v3", "v4", "b128")
CELL_FLOPS, MOST_FLOPS, MOST_BYTES, MOST_IMAGES = 2e10, 2e12, 8 << 30, 512
LIMIT_MIB = 4096
PART_IMAGES, PART_FILTERS, CALLS = 2, 8, 4
MOST_SPECTRUM = 2 << 30     # bytes of the transformed filters of whole maps, for torch.fft
Call = Callable[[int], Any]


def cells(args: argparse.Namespace) -> Iterator[tuple[ConvShape, ConvDesc]]:
    """Yields the named shapes, then dense or depthwise cells of kernels, maps and channels."""
    if args.shapes:
        for shape in SHAPES:
            if shape.name in args.shapes:
                yield shape, shape.desc
        return
    for shape in squares(args.kernels, args.maps, args.channels, args.depthwise, CELL_FLOPS, MOST_IMAGES):
        yield shape, shape.desc


def operands(desc: ConvDesc) -> dict[str, Any]:
    """Returns x after a relu, w after He, and g, as PyTorch's tensors in alpha's layouts."""
    torch, device = cuda_timing.strict_torch(), cuda_timing.peer_device()
    torch.manual_seed(0)
    fan = desc.ic // desc.groups * desc.h.f * desc.w.f
    return {"x": torch.relu(torch.randn(desc.x_shape, device=device)),
            "w": torch.randn(desc.w_shape, device=device) * (2 / fan) ** 0.5,
            "g": torch.randn(desc.y_shape, device=device)}


def exact(pass_name: str, desc: ConvDesc, t: dict[str, Any]) -> tuple[slice, Any]:
    """Returns which part of a result is computed, and that part in float64."""
    import torch
    x, w, g = (t[key].double().permute(0, 3, 1, 2) for key in "xwg")
    depthwise, pad = desc.groups > 1, (desc.w.p, desc.w.p, desc.h.p, desc.h.p)
    size = [axis.i + 2 * axis.p for axis in (desc.h, desc.w)]
    part = slice(PART_FILTERS if pass_name == "wgrad" else PART_IMAGES)

    def spectrum(a: Any) -> Any:
        return torch.fft.rfft2(a, size)
    if pass_name == "wgrad":
        maps, gs = torch.nn.functional.pad(x[:, part] if depthwise else x, pad), g[:, part]
        u = [(spectrum(maps[:, k:k + 1] if depthwise else maps) * spectrum(gs[:, k:k + 1]).conj()).sum(0)
             for k in range(gs.shape[1])]
        dw = torch.fft.irfft2(torch.stack(u), size)[..., :desc.h.f, :desc.w.f]
        return part, dw.permute(0, 2, 3, 1)
    if pass_name == "fprop":
        v, u, rule = spectrum(torch.nn.functional.pad(x[part], pad)), spectrum(w).conj(), "nchw,ochw->nohw"
    else:
        v, u, rule = spectrum(g[part]), spectrum(w), "nohw,ochw->nchw"
    if depthwise:
        y = torch.fft.irfft2(v * u[:, 0], size)
    else:
        y = torch.fft.irfft2(torch.einsum(rule, v, u), size)
    if pass_name == "fprop":
        return part, y[..., :desc.h.o, :desc.w.o].permute(0, 2, 3, 1)
    return part, y[..., desc.h.p:desc.h.p + desc.h.i, desc.w.p:desc.w.p + desc.w.i].permute(0, 2, 3, 1)


def geometry(desc: ConvDesc) -> dict[str, Any]:
    return dict(stride=(1, 1), padding=(desc.h.p, desc.w.p), dilation=(1, 1), groups=desc.groups)


def alpha_call(pass_name: str, desc: ConvDesc, arrays: dict[str, Any], name: str) -> Call:
    """Returns alpha's pass by an algorithm."""
    op, first, second, extra = {"fprop": ("conv2d", "x", "w", {}),
                                "dgrad": ("conv2d_dgrad", "g", "w", {"hw": desc.x_shape[1:3]}),
                                "wgrad": ("conv2d_wgrad", "x", "g", {"f": desc.w_shape[1:3]})}[pass_name]
    run, a, b = registry[op].impls["cuda"], arrays[first], arrays[second]
    attrs = {**extra, **geometry(desc), "algorithm": Request(name, True)}
    held: list[Any] = [None]

    def call(k: int) -> Any:
        held[0] = run(a, b, **attrs)
        return held[0]
    return call


def torch_calls(pass_name: str, desc: ConvDesc, t: dict[str, Any], modes: tuple[bool, ...]) -> dict[str, Call]:
    """Returns PyTorch's pass in both layouts, with TF32 or not as `modes` says, and torch.fft on whole maps."""
    import torch
    wanted = ("fprop", "dgrad", "wgrad").index(pass_name) - 1
    padding = [desc.h.p, desc.w.p]
    held: dict[str, Any] = {}

    def side(name: str, tf32: bool, tensors: Sequence[Any]) -> Call:
        x, w, g = tensors

        def call(k: int) -> Any:
            torch.backends.cudnn.allow_tf32 = tf32
            if wanted < 0:
                held[name] = torch.nn.functional.conv2d(x, w, None, 1, padding, 1, desc.groups)
            else:
                held[name] = torch.ops.aten.convolution_backward(
                    g, x, w, None, [1, 1], padding, [1, 1], False, [0, 0], desc.groups,
                    [wanted == 0, wanted == 1, False])[wanted]
            torch.backends.cudnn.allow_tf32 = False
            return held[name]
        return call
    last = [t[key].permute(0, 3, 1, 2) for key in "xwg"]
    first = [a.contiguous() for a in last]
    found = {f"torch {layout}{' tf32' * tf32}": side(f"{layout}{tf32}", tf32, tensors) for tf32 in modes
             for layout, tensors in (("nchw", first), ("nhwc", last))}
    size = [axis.i + 2 * axis.p for axis in (desc.h, desc.w)]
    if pass_name == "fprop" and desc.groups == 1 and 8 * desc.ic * desc.oc * size[0] * size[1] <= MOST_SPECTRUM:
        def whole_maps(k: int) -> Any:
            padded = torch.nn.functional.pad(first[0], (desc.w.p, desc.w.p, desc.h.p, desc.h.p))
            v, u = torch.fft.rfft2(padded, size), torch.fft.rfft2(first[1], size).conj()
            return torch.fft.irfft2(torch.einsum("nchw,ochw->nohw", v, u), size)[:, :, :desc.h.o, :desc.w.o]
        found["torch.fft"] = whole_maps
    return found


def model(pass_name: str, desc: ConvDesc, name: str) -> Row | None:
    """Returns the planner's estimate for an algorithm; None: it cannot."""
    from alpha.cuda.conv import planner
    try:
        made = planner.plan(pass_name, desc, planner.precision_of("float32"), Request(name, name != "auto"))
    except AlphaError:
        return None
    us = next(option.time_us for option in made.options if option.candidate is made.chosen)
    counted = cost_of(getattr(made.chosen, "way", Way(made.chosen.algorithm)), pass_name, desc)
    return {"way": made.chosen.name, "algorithm": made.chosen.algorithm, "work": counted.work, "depth": counted.depth,
            "parallelism": counted.work / max(1, counted.depth), "nbytes": counted.nbytes,
            "workspace": getattr(made.chosen, "workspace", lambda desc: 0)(desc), "expected_ms": us / 1e3,
            "bound": counted.error}


def run_cell(shape: ConvShape, desc: ConvDesc, pass_name: str, args: argparse.Namespace) -> Row:
    """Returns the row of a cell."""
    free = model(pass_name, desc, "auto")
    assert free is not None
    row: Row = {"cell": shape.name, "n": shape.n, "hw": shape.hw, "channels": shape.ic, "f": shape.f,
                "groups": desc.groups, "pass": pass_name,
                "units": "tensor cores" if alpha.config.tensor_cores else "fma",
                "chosen": free["algorithm"], "chosen_way": free["way"], "algorithms": {}}
    with alpha.config(conv_workspace_mib=LIMIT_MIB):
        known = {name: model(pass_name, desc, name) for name in args.algorithms}
    row["algorithms"] = {name: found for name, found in known.items() if found}
    nbytes = desc.nbytes() + max((a["workspace"] for a in row["algorithms"].values()), default=0)
    if args.model or desc.nominal_flops > MOST_FLOPS or nbytes > MOST_BYTES:
        return row
    with alpha.config(conv_workspace_mib=LIMIT_MIB):
        times, row["errors"] = measured(pass_name, desc, list(row["algorithms"]), args)
    row["ms"] = medians(times)
    row["best"] = min((row["ms"][name], name) for name in row["algorithms"])[1]
    row["regret"] = row["ms"][row["chosen"]] / row["ms"][row["best"]] - 1
    return row


def measured(pass_name: str, desc: ConvDesc, names: Sequence[str], args: argparse.Namespace
             ) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Returns the milliseconds of each side per round, in turn, and the errors."""
    t = operands(desc)
    arrays = {key: cuda_timing.wrap(a) for key, a in t.items()}
    if alpha.config.tensor_cores:   # as in training, where the ops around a convolution leave them
        from alpha.cuda.lazy import operand
        for a in arrays.values():
            operand(a, "float16x2")
    calls = {name: alpha_call(pass_name, desc, arrays, name) for name in names}
    modes = {"all": (False, True), "strict": (False,), "none": ()}[args.peers]
    peers = torch_calls(pass_name, desc, t, modes) if modes else {}
    part, expected = exact(pass_name, desc, t)
    errors = {name: relative_error(cuda_timing.view(call(0))[part], expected) for name, call in calls.items()}
    errors.update({name: relative_error(call(0).permute(0, 2, 3, 1)[part], expected) for name, call in peers.items()})
    from alpha.cuda.runtime.context import context
    sides = {name: Side(call, context.stream) for name, call in calls.items()}
    sides.update({name: Side(call) for name, call in peers.items()})
    with cuda_timing.replayed(sides, CALLS) as graphs:
        times = cuda_timing.alternate(graphs, args.rounds, args.window)
    return {name: [value / CALLS for value in values] for name, values in times.items()}, errors
