"""Whole networks in inference: latency of alpha.inference beside PyTorch's, on a GPU.

    python -m benchmarks.cuda_inference [--networks vgg16 vgg19 resnet18 googlenet vgg19@224 resnet18@224]
                                        [--batch 1 16] [--precision bf16 tf32 fp32] [--compile]
                                        [--calls N] [--budget-s S] [--output FOLDER]

Sides, in turn in one process: alpha.inference (traced, batch norm folded, captured); PyTorch's network with its batch
norm folded too, as a CUDA graph in both layouts, in bf16 with weights of 16 bits, in tf32 and fp32 with TF32 allowed;
with --compile also compiled by torch.compile, in channels_last, as such a graph too. A call takes an input that is
on the device and is waited for: milliseconds are medians of such calls, `ms_in_a_row` of calls that are not
waited for one by one. Both networks have the same weights, and their results are compared first.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

import alpha
from alpha.checkpoint import from_torch_state_dict
from benchmarks import checks, cuda_timing
from benchmarks.environment import add_common, settle
from benchmarks.in_turn import record_each
from benchmarks.results import Row
from benchmarks.rounds import relative_error
from benchmarks.torch_precision import allow_tf32

KEY = ("network", "n", "precision")
NETWORKS = ("vgg16", "vgg19", "resnet18", "googlenet", "vgg19@224", "resnet18@224")
BOUNDS = {"fp32": 1e-2, "tf32": 1e-2, "bf16": 1e-1}  # of a result: PyTorch has TF32, or bfloat16 weights, in all layers
ROUNDS = 5
CHECKED = 2  # images whose results are computed in float64
Call = Callable[[], Any]


def twin(network: str) -> Any:
    """Returns PyTorch's network, in inference mode, with statistics that are not the initial ones."""
    import torch

    from benchmarks import torch_models
    name, _, size = network.partition("@")
    torch.manual_seed(0)
    net, nn = torch_models.TWINS[name](), torch.nn
    if size and name == "vgg19":
        net.classifier = nn.Sequential(nn.Linear(25088, 4096), nn.ReLU(), nn.Dropout(), nn.Linear(4096, 4096),
                                       nn.ReLU(), nn.Dropout(), nn.Linear(4096, 10))
    elif size:
        net.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        net.layer1 = nn.Sequential(nn.MaxPool2d(3, 2, 1), net.layer1)
    for module in net.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1), module.running_var.uniform_(0.5, 1.5)
    return net.eval()


def named(network: str, state: dict[str, Any]) -> dict[str, Any]:
    """Returns the weights of `twin` by the names that alpha's network has in PyTorch."""
    if network == "resnet18@224":  # PyTorch's own, and the twin has a pool in front of the first stage
        for old, new in (("layer1.1.", "layer1."), ("shortcut.", "downsample."), ("linear.", "fc.")):
            state = {key.replace(old, new, 1): value for key, value in state.items()}
    return state


def ours(network: str, state: dict[str, Any]) -> alpha.nn.Module:
    """Returns alpha's network with the weights of PyTorch's."""
    import models
    name, _, size = network.partition("@")
    model = models.create(name, num_classes=10, **({"stem": "imagenet"} if size else {}))
    from_torch_state_dict(named(network, state), model)
    return model.to("cuda")


def torch_graph(net: Any, x: Any, channels_last: bool) -> Call:
    """Returns PyTorch's network as a graph that takes x anew at each call."""
    import torch
    layout = torch.channels_last if channels_last else torch.contiguous_format
    net, static = net.to(memory_format=layout), x.clone(memory_format=layout)
    if not x.is_cuda:
        return lambda: net(static)
    stream = torch.cuda.Stream()
    with torch.no_grad(), torch.cuda.stream(stream):
        for _ in range(3):
            net(static)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            y = net(static)

    def call(_weights: Any = net) -> Any:  # the graph reads them where they are: they must not go
        static.copy_(x)
        graph.replay()
        return y
    return call


def torch_calls(net: Any, x: Any, precision: str, compiled: bool) -> dict[str, Call]:
    """Returns PyTorch's sides."""
    import copy

    import torch
    from torch.fx.experimental.optimization import fuse
    kind = torch.bfloat16 if precision == "bf16" else torch.float32
    net, x = fuse(copy.deepcopy(net)).to(x.device, kind), x.to(kind)
    found = {f"torch_graph_{'nhwc' if last else 'nchw'}": torch_graph(copy.deepcopy(net), x, last)
             for last in (False, True)}
    if compiled:
        torch._dynamo.reset()
        found["torch_compiled"] = torch_graph(torch.compile(net), x, True)
    return found


def timed(calls: dict[str, Call], count: int) -> tuple[dict[str, float], dict[str, float]]:
    """Returns the milliseconds of a call that is waited for, and of one in a row, the sides taking turns."""
    waited: dict[str, list[float]] = {name: [] for name in calls}
    in_a_row: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(3):
            call()
    for _ in range(ROUNDS):
        for name, call in calls.items():
            cuda_timing.synchronize()
            for _ in range(count):
                begin = time.perf_counter()
                call()
                cuda_timing.synchronize()
                waited[name].append(1e3 * (time.perf_counter() - begin))
            begin = time.perf_counter()
            for _ in range(count):
                call()
            cuda_timing.synchronize()
            in_a_row[name].append(1e3 * (time.perf_counter() - begin) / count)
    return ({name: statistics.median(ms) for name, ms in waited.items()},
            {name: statistics.median(ms) for name, ms in in_a_row.items()})


def measure(network: str, n: int, precision: str, args: argparse.Namespace) -> Row:
    """Returns the milliseconds of each side."""
    import torch
    allow_tf32(cuda_timing.strict_torch(), "tf32")
    net, hw = twin(network), int(network.partition("@")[2] or 32)
    image = np.random.default_rng(0).standard_normal((n, hw, hw, 3), dtype=np.float32)
    with alpha.precision(precision):
        x = alpha.tensor(image, device="cuda")
        run = alpha.inference(ours(network, net.state_dict()), x)
    calls = {"alpha": lambda: run(x), **torch_calls(net, torch.from_numpy(image).permute(0, 3, 1, 2).to(
        cuda_timing.peer_device()), precision, args.compile)}
    with torch.no_grad():
        made = {name: call() for name, call in calls.items()}
    cuda_timing.synchronize()
    with torch.no_grad():
        exact = net.double()(torch.from_numpy(image[:CHECKED]).permute(0, 3, 1, 2).double())
    errors = {name: relative_error((torch.from_numpy(y.numpy()) if name == "alpha" else y.cpu())[:CHECKED], exact)
              for name, y in made.items()}
    if not errors["alpha"] < BOUNDS[precision]:
        checks.refuse(f"{network}: relative errors {errors}", "look for the layer that computes it",
                      where="cuda_inference")
    ms, in_a_row = timed(calls, args.calls)
    best = {key: min(t for name, t in times.items() if name != "alpha") / times["alpha"]
            for key, times in (("ratio", ms), ("ratio_in_a_row", in_a_row))}
    return {"ms": ms, "ms_in_a_row": in_a_row, **best, "errors": errors}


def line(row: Row) -> str:
    where = f"| {row['network']} | {row['n']} | {row['precision']} |"
    if "failed" in row:
        return f"{where} FAILED: {row['failed']} |"
    peers = ", ".join(f"{name.removeprefix('torch_')} {ms:.3f}" for name, ms in row["ms"].items() if name != "alpha")
    return (f"{where} {row['ms']['alpha']:.3f} | {peers} | {row['ratio']:.2f} | {row['ms_in_a_row']['alpha']:.3f} | "
            f"{row['ratio_in_a_row']:.2f} | {row['errors']['alpha']:.0e} |")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=NETWORKS)
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 16])
    parser.add_argument("--precision", nargs="+", default=["bf16", "fp32"], choices=list(BOUNDS))
    parser.add_argument("--compile", action="store_true", help="PyTorch's compiled network too, which takes minutes")
    parser.add_argument("--calls", type=int, default=50, help="of a round")
    add_common(parser, "network")
    args = parser.parse_args(argv)
    settle(args)
    cases = (({"network": network, "n": n, "precision": precision}, partial(measure, network, n, precision, args))
             for precision in args.precision for network in args.networks for n in args.batch)
    heading = "| network | batch | precision | alpha ms | PyTorch ms | ratio | in a row | ratio | error |"
    return record_each("cuda_inference", heading, args.precision, cases, line, args, argv)


if __name__ == "__main__":
    sys.exit(main())
