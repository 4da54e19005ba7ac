"""One rank of a measurement: python -m benchmarks.scaling_worker '{"network": "lenet5", ...}', under mpirun or alone.

Rank 0 prints one line of JSON: {"step_s", "silent_s", "loss", "peak_mib", "ranks", "engine", "buckets", ...}.
"silent_s" is of steps without communication between the ranks; buckets are one rank's, with their times.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

SIZES = (1 << 10, 1 << 16, 1 << 20, 1 << 23)    # bytes of sums by which a link is measured
TRACE = 20      # steps after which the loss is compared with one rank's


def batches(total: int, first: int, last: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns two batches of images in [0, 1) and labels, of which a rank has the rows first to before last."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(2):
        x, y = rng.random((total, 32, 32, 3), np.float32), rng.integers(0, 10, total)
        found.append((x[first:last], y[first:last]))
    return found


def timed(step: Callable[[int], Any], wait: Callable[[], None], count: int) -> float:
    """Returns the median of the seconds of `count` steps, which all ranks make."""
    times: list[float] = []
    for k in range(count):
        begin = time.perf_counter()
        step(k)
        wait()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def count_of(seconds: float, step_s: float) -> int:
    """Returns how many steps of `step_s` are made in about so many seconds."""
    return max(5, min(200, int(seconds / step_s)))


class Arrivals:
    """Listens to backward, and notes when the gradients of a model's parameters are complete."""

    def __init__(self, params: Iterable[Any], mark: Callable[[], Any]) -> None:
        self.params, self.mark = list(params), mark
        self.marks: list[tuple[Any, int]] = []
        self.grads: list[tuple[Any, Any]] = []

    def begin(self, leaves: Iterable[Any]) -> bool:
        self.marks, self.grads = [], []
        return True

    def arrived(self, leaf: Any, g: Any) -> None:
        from alpha.core.device import ITEMSIZE
        self.marks.append((self.mark(), leaf.numel() * ITEMSIZE[leaf.dtype]))
        if g is not None:
            self.grads.append((leaf, g))

    def finish(self) -> Iterable[tuple[Any, Any]]:
        return self.grads


def alpha_rank(spec: dict[str, Any]) -> dict[str, Any]:
    """Measures alpha on this rank."""
    import alpha
    import models
    from alpha import dist, ops, optim
    from alpha.core.device import get_backend
    comm = dist.init(spec["device"])
    alpha.manual_seed(0)
    model = models.create(spec["network"], 10).to(spec["device"])
    if spec.get("sync_norm", True):
        model = dist.convert_sync_batchnorm(model)
    parallel = dist.DataParallel(model, bucket_mib=spec.get("bucket_mib", 25.0), wire=spec.get("wire"))
    optimizer = optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    total = spec["batch"] * (comm.size if spec.get("weak", True) else 1)
    first, last = comm.part(total)
    data = [(alpha.tensor(x, device=spec["device"]), alpha.tensor(y, device=spec["device"]))
            for x, y in batches(total, first, last)]
    parallel.weigh(last - first, total)
    backend = get_backend(spec["device"])

    def step(k: int) -> Any:
        x, y = data[k % 2]
        loss = ops.cross_entropy(parallel(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    def silent(k: int) -> None:
        with parallel.no_sync():
            step(k)

    with alpha.config(precision=spec.get("precision", "fp32")):
        with comm.long("measuring"):
            for k in range(TRACE):
                loss = step(k)
            loss = comm.all_reduce(loss.detach() * ((last - first) / total)).item()
            backend.reset_peak_memory()
            count = count_of(spec["seconds"], max(comm.gather(timed(step, backend.synchronize, 1))))
            found = {"loss": loss, "step_s": timed(step, backend.synchronize, count)}
            found["silent_s"] = timed(silent, backend.synchronize, count)
        found |= {"ranks": comm.size, "engine": comm.engine, "images": last - first, "total": total,
                  "peak_mib": backend.memory_stats()["peak"] / 2**20, "threads": alpha.config.num_threads}
        found["step_s"], found["silent_s"] = (max(comm.gather(found[name])) for name in ("step_s", "silent_s"))
        if comm.size == 1:
            found |= profile(model, step, backend)
        found |= {"links": links(comm, spec["device"])} if comm.size > 1 else {}
    return _ended(comm, found)


def _ended(comm: Any, found: dict[str, Any]) -> dict[str, Any]:
    rank = comm.rank
    comm.finish()
    return found if rank == 0 else {}


def profile(model: Any, step: Callable[[int], Any], backend: Any) -> dict[str, Any]:
    """Returns when gradients are complete, when backward and the step end, and the copy rate: seconds, bytes."""
    import alpha
    from alpha.core import ready
    on_device = backend.mark() is not None
    arrivals = Arrivals([p for p in model.parameters() if p.requires_grad],
                        backend.mark if on_device else time.perf_counter)
    for p in arrivals.params:
        ready.listeners[id(p)] = (p, arrivals)
    runs: list[tuple[list[tuple[float, int]], float]] = []
    for k in range(5):
        backend.synchronize()
        begin = arrivals.mark()
        step(k)
        end = arrivals.mark()
        backend.synchronize()
        seconds = (lambda a, b: b.time_since(a) * 1e-3) if on_device else (lambda a, b: b - a)
        runs.append(([(seconds(begin, mark), nbytes) for mark, nbytes in arrivals.marks], seconds(begin, end)))
    for p in arrivals.params:
        del ready.listeners[id(p)]
    runs.sort(key=lambda run: run[1])
    marks, whole = runs[len(runs) // 2]
    a = alpha.zeros((1 << 24,), device=next(model.parameters()).device)
    copy_s = timed(lambda k: a.clone(), backend.synchronize, 7)
    return {"arrivals": marks, "backward_s": marks[-1][0], "whole_s": whole, "copy_rate": 2 * a.numel() * 4 / copy_s}


def links(comm: Any, device: str) -> list[tuple[int, float]]:
    """Returns bytes and seconds of sums over the ranks of several sizes."""
    import alpha
    from alpha.core.device import get_backend
    found = []
    for n in SIZES:
        x = alpha.zeros((n // 4,), device=device)
        comm.barrier()
        seconds = timed(lambda k, x=x: comm.all_reduce(x), get_backend(device).synchronize, 7)
        found.append((n, max(comm.gather(seconds))))
    return found


def torch_rank(spec: dict[str, Any]) -> dict[str, Any]:
    """Measures PyTorch's DistributedDataParallel on this rank: by NCCL on GPUs, by gloo on the CPU."""
    import torch
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel

    from benchmarks.torch_models import TWINS
    rank, size = int(os.environ.get("PMI_RANK", "0")), int(os.environ.get("PMI_SIZE", "1"))
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ["MASTER_PORT"] = str(spec["port"])
    on_gpu = spec["device"] == "cuda"
    device = torch.device("cuda", rank % max(1, torch.cuda.device_count())) if on_gpu else torch.device("cpu")
    if not on_gpu:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // size))
    distributed.init_process_group("nccl" if on_gpu else "gloo", rank=rank, world_size=size)
    torch.manual_seed(0)
    model = TWINS[spec["network"]]().to(device, memory_format=torch.channels_last)
    if spec.get("sync_norm", True) and on_gpu:
        model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)
    model = DistributedDataParallel(model, bucket_cap_mb=spec.get("bucket_mib", 25.0))
    if on_gpu:
        model = torch.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    total = spec["batch"] * (size if spec.get("weak", True) else 1)
    first, last = rank * total // size, (rank + 1) * total // size
    data = [(torch.from_numpy(x).permute(0, 3, 1, 2).to(device, memory_format=torch.channels_last),
             torch.from_numpy(y).to(device)) for x, y in batches(total, first, last)]
    kind = torch.bfloat16 if spec.get("precision") == "bf16" else torch.float32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = spec.get("precision") == "tf32"

    def step(k: int) -> Any:
        x, y = data[k % 2]
        optimizer.zero_grad()
        with torch.autocast(device.type, kind, enabled=kind != torch.float32):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    wait = torch.cuda.synchronize if on_gpu else (lambda: None)
    for k in range(TRACE):
        step(k)
    seconds = torch.tensor([timed(step, wait, 1)], device=device)
    distributed.all_reduce(seconds, op=distributed.ReduceOp.MAX)
    seconds[0] = timed(step, wait, count_of(spec["seconds"], seconds.item()))
    distributed.all_reduce(seconds, op=distributed.ReduceOp.MAX)
    found = {"step_s": seconds.item(), "ranks": size, "images": last - first, "total": total,
             "peak_mib": torch.cuda.max_memory_allocated() / 2**20 if on_gpu else None}
    distributed.destroy_process_group()
    return found if rank == 0 else {}


def main() -> None:
    spec = json.loads(sys.argv[1])
    os.environ["NCCL_NVLS_ENABLE"] = "0"
    found = (torch_rank if spec.get("side") == "torch" else alpha_rank)(spec)
    if found:
        print("RESULT " + json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
