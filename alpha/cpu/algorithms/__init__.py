"""Which algorithm a convolution takes on the CPU, and the call of it.

`direct` is what alpha.cpu.conv does by itself; where something else is chosen, `transformed` returns it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from alpha.config import config
from alpha.cpu.algorithms import products, tiles
from alpha.ops.algorithms.cost import Rates
from alpha.ops.algorithms.family import MIB, OPS, Choice, Machine, Way, choose, register
from alpha.ops.algorithms.names import Request
from alpha.ops.conv_desc import ConvDesc

Array = np.ndarray
Run = Callable[[ConvDesc, Array, Array, Array], None]
WORKSPACE_MIB = 256

NUMPY = Machine(Rates({"direct": 40e9, "depthwise": 2e9, "product": 60e9, "spectral": 40e9, "transform": 2e9,
                       "fft": 1e9}, {"L2": 20e9, "DRAM": 10e9}, 1e-4, 0.0), ())
register(numpy=NUMPY)


class Chosen(NamedTuple):
    """An algorithm with its tile, and the function that makes it."""

    way: Way
    run: Run


def chosen(pass_name: str, desc: ConvDesc, request: Request, compiled: bool) -> Chosen | None:
    """Returns what computes a pass, None for the direct kernels.

    Args:
        compiled: whether the compiled kernels can take the arrays.
    Raises:
        ConfigError: a strict request cannot be served.
    """
    limit = (config.conv_workspace_mib or WORKSPACE_MIB) * MIB
    found = _chosen(pass_name, desc, request, "numpy", limit)
    if config.debug > 2:
        _tell(pass_name, desc, request, choose(pass_name, desc, request, "numpy", limit))
    return found


@lru_cache(maxsize=4096)
def _chosen(pass_name: str, desc: ConvDesc, request: Request, machine: str, limit: int) -> Chosen | None:
    way = choose(pass_name, desc, request, machine, limit).way
    return None if way.name == "direct" else Chosen(way, _runs(pass_name, way))


def _runs(pass_name: str, way: Way) -> Run:
    if way.name == "im2col":
        return getattr(products, pass_name)
    if way.name == "strassen":
        return _STRASSEN[pass_name]
    run = getattr(tiles, pass_name)

    def call(desc: ConvDesc, a: Array, b: Array, out: Array) -> None:
        run(way, desc, a, b, out)
    return call


def _matrix(a: Array) -> Array:
    return a.reshape(-1, a.shape[-1])


def _strassen_fprop(desc: ConvDesc, x: Array, w: Array, y: Array) -> None:
    y[...] = products.strassen(_matrix(x), _matrix(w).T).reshape(y.shape)


def _strassen_dgrad(desc: ConvDesc, g: Array, w: Array, dx: Array) -> None:
    dx[...] = products.strassen(_matrix(g), _matrix(w)).reshape(dx.shape)


def _strassen_wgrad(desc: ConvDesc, x: Array, g: Array, dw: Array) -> None:
    dw[...] = products.strassen(_matrix(g).T, _matrix(x)).reshape(dw.shape)


_STRASSEN: dict[str, Run] = {"fprop": _strassen_fprop, "dgrad": _strassen_dgrad, "wgrad": _strassen_wgrad}


@lru_cache(maxsize=1024)
def _tell(pass_name: str, desc: ConvDesc, request: Request, choice: Choice) -> None:
    """Prints a choice, once."""
    axes = ", ".join(f"{a.i}->{a.o} f{a.f} s{a.s} p{a.p} d{a.d}" for a in (desc.h, desc.w))
    print(f"alpha: {OPS[pass_name]} {desc.n} x ({axes}) {desc.ic}->{desc.oc} groups {desc.groups}, {request}:\n"
          f"{choice}", file=sys.stderr)


