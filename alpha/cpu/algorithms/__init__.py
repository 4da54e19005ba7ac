"""Which algorithm a convolution takes on the CPU, and the call of it.

`direct` is what alpha.cpu.conv does by itself; where something else is chosen, `transformed` returns it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np

from alpha.core.config import config
from alpha.core.precision import PRECISIONS
from alpha.cpu import native
from alpha.cpu.algorithms import fft, products, sparse, sparse_numpy, tiles, winograd
from alpha.cpu.algorithms.machines import MACHINES, choose, text_of
from alpha.cpu.half import quiet
from alpha.ops.algorithms.family import MIB, OPS, Way, cost_of, counts_zeros, limits, sparse_cost, too_small, ways
from alpha.ops.conv_desc import Axis, ConvDesc, ceil_div
from alpha.plan import TAKEN_BELOW, Choice, Request, time_us

Array = np.ndarray
Run = Callable[..., None]   # of a description, two operands and the result
WORKSPACE_MIB = 256
X_CHANNELS, LEVEL_CHANNELS = 16, {"fprop": 2, "dgrad": 8, "wgrad": 8}  # least, for Winograd's tiles of a level
COUNT_STEP = 8  # pixels; zeros are counted in one of so many


class Chosen(NamedTuple):
    """An algorithm with its tile, the function that makes it, and whether that takes a bias and relu as well."""

    way: Way
    run: Run
    fused: bool


def chosen(pass_name: str, desc: ConvDesc, request: Request, compiled: bool) -> Chosen | None:
    """Returns what computes a pass, None for the direct kernels.

    Args:
        compiled: whether the compiled kernels can take the arrays.
    Raises:
        ConfigError: a strict request cannot be served.
    """
    limit, machine = workspace_limit(), machine_key() if compiled else "numpy"
    found = _chosen(pass_name, desc, request, machine, limit)
    if config.watch and config.debug > 2:
        _tell(pass_name, desc, request, choose(pass_name, desc, request, machine, limit))
    return found


def workspace_limit() -> int:
    """Returns the bytes that an algorithm may have beside operands and result."""
    return (config.conv_workspace_mib or WORKSPACE_MIB) * MIB


def tiles_of_level(pass_name: str, level: ConvDesc, machine: str, limit: int) -> dict[Way, float]:
    """Returns the microseconds that are expected of the Winograd tiles that serve a level of a contextual convolution.

    Every d-th pixel of its maps, by rows and columns, is a map of its own, of a convolution without dilation.
    """
    d = level.h.d
    if (level.h.f, level.w.f, level.h.s, level.w.s, level.groups) != (3, 3, 1, 1, 1):
        return {}
    if level.ic < X_CHANNELS or level.oc < LEVEL_CHANNELS[pass_name]:
        return {}
    sizes = ceil_div(level.h.i, d), ceil_div(level.w.i, d)
    maps = ConvDesc(level.n * d * d, level.ic, level.oc, *(Axis(i=i, o=i, f=3, s=1, p=1, d=1) for i in sizes))
    return {way: time_us(cost_of(way, pass_name, maps), MACHINES[machine].rates) for way in ways("winograd", maps)
            if not limits(cost_of(way, pass_name, maps), PRECISIONS["fp32"].promise, limit)
            and not too_small(way, pass_name, maps, 0, MACHINES[machine].least_tiles)}


def way_of_level(pass_name: str, level: ConvDesc, machine: str, limit: int) -> Way | None:
    """Returns Winograd's tiles that a level of a contextual convolution takes, None for the direct kernels."""
    found, lanes = tiles_of_level(pass_name, level, machine, limit), int(machine.removeprefix("cpu").partition("_")[0])
    written = level.oc if pass_name == "fprop" else level.ic    # by the direct kernels, in half or in whole vectors
    whole = lanes // 2 if written <= lanes // 2 and pass_name != "wgrad" else lanes
    rounded = ceil_div(written, whole) * whole / written
    most = TAKEN_BELOW * rounded * time_us(cost_of(Way("direct"), pass_name, level), MACHINES[machine].rates)
    return min((way for way in found if found[way] <= most), key=found.__getitem__, default=None)


@lru_cache(maxsize=1)
def machine_key() -> str:
    """Returns the class of this machine, by the width of its vectors and its maker.  For the compiled kernels."""
    library = native.library()
    assert library is not None
    key = f"cpu{library.vector_lanes()}"
    own = f"{key}_intel"
    return own if library.made_by_intel() and own in MACHINES else key


@lru_cache(maxsize=2048)
def _chosen(pass_name: str, desc: ConvDesc, request: Request, machine: str, limit: int) -> Chosen | None:
    way: Way = choose(pass_name, desc, request, machine, limit).taken.way
    if way.name == "direct":
        return None
    if way.name in ("im2col", "strassen"):
        run = getattr(products, pass_name) if way.name == "im2col" else _STRASSEN[pass_name]
        return Chosen(way, quiet(run), False)
    compiled = machine != "numpy" and (desc.groups == 1 or way.name == "winograd")
    if way.name == "sparse":
        run = getattr(sparse, pass_name) if compiled else quiet(getattr(sparse_numpy, pass_name))
        return Chosen(way, run, compiled)
    if not compiled:
        return Chosen(way, quiet(partial(getattr(tiles, pass_name), way)), False)
    module = winograd if way.name == "winograd" else fft
    return Chosen(way, partial(getattr(module, pass_name), way), module is winograd)


def for_zeros(desc: ConvDesc, request: Request, x: Array, found: Chosen | None) -> Chosen | None:
    """Returns what computes fprop where the zeros of x may be counted: the sparse loops, or what was found without.

    Zeros are counted in every eighth pixel: the result depends on the data alone. For arrays of the compiled kernels.
    """
    needed = zeros_needed(desc, request, found.way if found else Way("direct"))
    if needed > 1 or zeros_of(x) < needed:
        return found
    return Chosen(Way("sparse"), sparse.fprop, True)


def zeros_needed(desc: ConvDesc, request: Request, way: Way) -> float:
    """Returns the share of zeros of x from which sparse loops are expected to beat a way; above 1 if they never do."""
    return _zeros_needed(desc, request, way, machine_key(), workspace_limit())


@lru_cache(maxsize=1024)
def _zeros_needed(desc: ConvDesc, request: Request, way: Way, machine: str, limit: int) -> float:
    if request.name != "auto" or not counts_zeros(desc) or sparse_cost("fprop", desc, 0.0).workspace > limit:
        return 2.0
    rates = MACHINES[machine].rates
    most = TAKEN_BELOW * time_us(cost_of(way, "fprop", desc), rates)
    shares = (k / 100 for k in range(101))
    return next((share for share in shares if time_us(sparse_cost("fprop", desc, share), rates) <= most), 2.0)


def zeros_of(x: Array) -> float:
    """Returns the share of zeros among the elements of every COUNT_STEP-th pixel.  For the compiled kernels' arrays."""
    rows = x.size // x.shape[-1]
    counted = -(-rows // COUNT_STEP) * x.shape[-1]
    return 1.0 - native.loaded().count_nonzeros(native.ptr(x), rows, x.shape[-1], COUNT_STEP) / counted


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
          f"{text_of(choice)}", file=sys.stderr)


