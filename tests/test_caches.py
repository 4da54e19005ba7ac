"""Caches by shape have a bound: a loop whose batches are all of other sizes comes to an end of what it keeps."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import alpha
from alpha import nn, ops, optim
from alpha.core.call import MOST as MOST_SIGNATURES
from alpha.core.table import registry
from alpha.cpu.algorithms import _chosen
from alpha.cuda.conv import planner
from alpha.ops.conv_desc import ConvDesc, describe

ROOT = Path(alpha.__file__).parent
MOST = 2048

# What is kept for good, and by what: none of it by a shape.
UNBOUNDED = {
    "core/device.get_backend": "devices", "build.version_of": "compilers",
    "cpu/pointwise._kernel": "ops with an equation",
    "cpu/pointwise._kinds": "ops with an equation", "cpu/pointwise._ready": "ops with an equation",
    "cuda/runtime/libcuda.library": "nothing", "cuda/runtime/memory._kept_counters": "numbers of bits",
    "cuda/runtime/toolchain._has_nvcc": "nothing", "cuda/runtime/toolchain._pack": "folders of packed kernels",
    "cuda/runtime/toolchain._workers": "nothing", "core/follow._following": "ops and dtypes",
    "core/inputs/sizes.host_nbytes": "nothing", "cuda/conv/costs/records._hints": "classes of records",
    "cpu/update._kernel": "rules",
    "cuda/ops/update._kernels": "rules", "cuda/ops/update._source": "rules",
    "cuda/runtime/toolchain._known_to": "compilers", "packed._there": "packs",
    "packed._opened": "files of packed kernels"}


def caches() -> Iterator[tuple[str, int | None]]:
    """Yields each cache of a function in alpha, by its file and name, with its bound; 0 is a named constant."""
    for path in sorted(ROOT.rglob("*.py")):
        place = path.relative_to(ROOT).with_suffix("").as_posix().removesuffix("/__init__")
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                made = [(node.name, decorator) for decorator in node.decorator_list]
            elif isinstance(node, ast.Assign):
                made = [(ast.unparse(node.targets[0]), part) for part in ast.walk(node.value)
                        if isinstance(part, ast.Call)]
            else:
                continue
            for name, part in made:
                text = ast.unparse(part)
                if text == "cache" or text.startswith("cache("):
                    yield f"{place}.{name}", None
                elif text == "lru_cache":
                    yield f"{place}.{name}", 128
                elif isinstance(part, ast.Call) and ast.unparse(part.func) == "lru_cache":
                    size = [k.value for k in part.keywords if k.arg == "maxsize"] + list(part.args)
                    yield f"{place}.{name}", size[0].value if isinstance(size[0], ast.Constant) else 0


def test_each_cache_has_a_bound_or_a_reason() -> None:
    found = dict(caches())
    assert len(found) > 80, "the caches are not found"
    assert {name for name, size in found.items() if size is None} == {*UNBOUNDED}
    assert {name: size for name, size in found.items() if size is not None and size > MOST} == {}


def step(net: nn.Module, optimizer: optim.Optimizer, n: int, device: str = "cpu") -> None:
    x = alpha.tensor(np.ones((n, 6, 6, 1), np.float32), device=device)
    loss = ops.cross_entropy(net(x), alpha.tensor(np.zeros(n, np.int64), device=device))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def network(device: str = "cpu") -> tuple[nn.Module, optim.Optimizer]:
    net = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.GELU(), nn.MaxPool2d(2), nn.Flatten(),
                        nn.Dropout(0.1), nn.Linear(27, 4)).to(device)
    return net, optim.SGD(net.named_parameters(), lr=0.01, momentum=0.9)


def objects() -> int:
    for _ in range(3):  # a tuple of tuples is let go of by the collector after these
        gc.collect()
    return len(gc.get_objects())


def growth(sizes: range, rounds: int, device: str = "cpu") -> list[int]:
    """Returns how many objects of the host each round of steps with all sizes adds."""
    net, optimizer = network(device)
    counted = []
    for _ in range(rounds):
        for n in sizes:
            step(net, optimizer, n, device)
        counted.append(objects())
    return [b - a for a, b in pairwise(counted)]


def test_sizes_that_were_seen_leave_nothing() -> None:
    assert max(growth(range(1, 40), 3)) < 20


def test_a_size_that_is_new_leaves_few_objects() -> None:
    """The taps of an axis are those of all batches, and candidates that were not chosen are not kept for each."""
    net, optimizer = network()
    for n in range(1, MOST_SIGNATURES + 11):    # what ops know of signatures has come to its bound then
        step(net, optimizer, n)
    before = objects()
    for n in range(400, 500):
        step(net, optimizer, n)
    assert (objects() - before) / 100 < 60
    assert max(len(op.settled) for op in registry.values()) == MOST_SIGNATURES


def test_batches_of_all_sizes_share_what_is_known_of_an_axis() -> None:
    descs = [describe("conv2d", (n, 9, 9, 3), (4, 3, 3, 3), (1, 1), (1, 1), (1, 1), 1) for n in (1, 2)]
    assert descs[0].h is descs[1].h and descs[0].h.fprop_classes is descs[1].h.fprop_classes


def test_plans_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "_plans", {})
    monkeypatch.setattr(planner, "_make", lambda pass_name, desc, precision, request: desc.n)
    monkeypatch.setattr(planner, "PLANS", 5)
    desc = describe("conv2d", (1, 9, 9, 3), (4, 3, 3, 3), (1, 1), (1, 1), (1, 1), 1)
    for n in range(1, 20):
        assert planner.plan("fprop", ConvDesc(n, 3, 4, desc.h, desc.w)) == n
    assert len(planner._plans) == 5
    assert planner.plan("fprop", ConvDesc(1, 3, 4, desc.h, desc.w)) == 1


def test_what_is_chosen_on_the_cpu_has_a_bound() -> None:
    assert _chosen.cache_info().maxsize == describe.cache_info().maxsize == MOST
