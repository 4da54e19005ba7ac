"""What the chooser takes for the shapes of the catalogue: on an H100 and an A100, and on each class of CPUs.

A line is a shape and pass, and what is taken, in fma, fp32, tf32, bf16 and fp16, or by the classes of CPUs, where any
takes another algorithm than the direct one. No GPU is needed: estimates alone decide.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from typing import Any

from alpha.core.precision import PRECISIONS
from alpha.cpu.algorithms.machines import MACHINES
from alpha.cpu.algorithms.machines import choose as choose_cpu
from alpha.errors import AlphaError
from alpha.ops.conv_desc import ConvDesc
from alpha.plan import AUTO
from alpha.testing.conv_cases import CASES
from benchmarks.shapes import NARROW, SHAPES

PASSES = ("fprop", "dgrad", "wgrad")
LIMIT = 256 << 20
GPUS = {"sm_90a": ("v2", "d16", "e8", "in3", "p32", "g48", "g192"), "sm_80": ("v3", "in3", "g112")}     # and shapes


@contextmanager
def on(arch: str) -> Iterator[None]:
    """For a block: plans are made for a GPU of an architecture."""
    from alpha.cuda.conv import costs
    from alpha.cuda.runtime.context import context
    from alpha.cuda.runtime.rehearsal import DEVICES
    there = DEVICES[arch]
    rates = there.clock, there.memory_clock, there.bus
    other: dict[str, Any] = dict(arch=arch, name=there.name, sm_count=there.sm_count, max_shared=there.max_shared,
                                 driver=context.driver or object(), rates=lambda: rates)
    before = {name: (name in vars(context), getattr(context, name)) for name in other}
    costs._device.cache_clear()
    vars(context).update(other)
    try:
        yield
    finally:
        for name, (own, value) in before.items():
            setattr(context, name, value) if own else vars(context).pop(name)
        costs._device.cache_clear()


def taken(pass_name: str, desc: ConvDesc, precision: str) -> str:
    """Returns what is taken on the GPU of the block, and its expected time."""
    from alpha.cuda.conv import planner
    try:
        first = planner.weighed(pass_name, desc, precision, AUTO)[0]
    except AlphaError as error:
        return str(error).split("\n")[0]
    return f"{first.candidate.name} {first.time_us:.4g} us"


def cuda() -> Iterator[str]:
    shapes = {shape.name: shape.desc for shape in (*SHAPES, *NARROW)}
    for arch, names in GPUS.items():
        with on(arch):
            for name in names:
                for pass_name in PASSES:
                    found = ", ".join(taken(pass_name, shapes[name], precision) for precision in PRECISIONS)
                    yield f"{arch} {name} {pass_name}: {found}"


def cpu() -> Iterator[str]:
    descs = {**{case.name: case.desc for case in CASES}, **{s.name: s.desc for s in (*SHAPES, *NARROW)}}
    for name, desc in descs.items():
        for pass_name in PASSES:
            ways = [(key, str(choose_cpu(pass_name, desc, AUTO, key, LIMIT).taken.way)) for key in MACHINES]
            found = [f"{way} ({' '.join(key for key, _ in group)})" for way, group in
                     groupby(sorted(ways, key=lambda each: each[1]), key=lambda each: each[1])]
            if any(way != "direct" for _, way in ways):     # most are: a line more or less shows a change
                yield f"{name} {pass_name}: {', '.join(found)}"


def text() -> str:
    import alpha.cuda.families  # noqa: F401  registers the candidates
    return "\n".join([*cuda(), *cpu()]) + "\n"
