"""Convolution on CUDA: description -> plan -> launch.  Each way to compute the passes has a module of its own."""

from __future__ import annotations

from typing import Any

from alpha.cuda.conv import as_stored, constants, depthwise, grouped, padded, wgmma
from alpha.cuda.conv.ffma import sk_dilated, slab
from alpha.cuda.conv.first_layer import few
from alpha.cuda.conv.first_layer.mma import stem_mma
from alpha.cuda.conv.mma import mma
from alpha.cuda.conv.planner import Plan, plan, precision_of, register
from alpha.cuda.conv.transformed import pipeline
from alpha.cuda.conv.wgmma import wgrad
from alpha.cuda.lazy import flush_gradients, forget, statistics, write_for
from alpha.cuda.ops.pointwise import as_float32
from alpha.cuda.ops.pointwise.epilogue import Epilogue
from alpha.cuda.ops.shape import first_columns
from alpha.cuda.runtime.memory import Array, copy, empty
from alpha.ops.activation import relu
from alpha.ops.conv import conv2d, conv2d_bias_act, conv2d_dgrad, conv2d_dgrad_add, conv2d_wgrad
from alpha.ops.conv_desc import ConvDesc, Pair
from alpha.ops.elementwise import add
from alpha.plan import AUTO, Request

# Of equals the first is taken.
for module in (slab, depthwise, sk_dilated, few, stem_mma, grouped, wgmma, as_stored, wgrad, mma, pipeline):
    register(*module.CANDIDATES)
register(*padded.candidates((*wgmma.CANDIDATES, *wgrad.CANDIDATES, *mma.CANDIDATES)))
constants.check_all()


@conv2d.impl("cuda")
def conv2d_cuda(x: Array, w: Array, **attrs: Any) -> Array:
    return conv2d_bias_act_cuda(x, w, None, activation=None, **attrs)


@conv2d_bias_act.impl("cuda")
def conv2d_bias_act_cuda(x: Array, w: Array, b: Array | None, *, activation: str | None, for_norm: bool = False,
                         algorithm: Request = AUTO, residual: Array | None = None, **geometry: Any) -> Array:
    """residual: added to y before the activation, for alpha.inference."""
    desc = ConvDesc.fprop(x.shape, w.shape, **geometry)
    chosen = _chosen("fprop", desc, algorithm, x)
    flush_gradients()
    apart = residual is not None and not chosen.chosen.joins
    epilogue = Epilogue.of(b and as_float32(b), None if apart else activation)
    y = empty(desc.y_shape, x.dtype)
    if residual is None or apart:
        chosen.launch(x, w, statistics.ask(y) if for_norm else y, epilogue)
    else:
        chosen.launch(x, w, y, epilogue, residual=residual)
    if apart:
        y = add.impls["cuda"](y, residual)
        return relu.impls["cuda"](y) if activation else y
    return y


@conv2d_dgrad.impl("cuda")
def conv2d_dgrad_cuda(g: Array, w: Array, *, hw: Pair, algorithm: Request = AUTO, **geometry: Any) -> Array:
    desc = ConvDesc.dgrad(g.shape, w.shape, hw, **geometry)
    chosen = _chosen("dgrad", desc, algorithm, g)
    flush_gradients()
    shape = chosen.chosen.result_of(desc)
    dx = empty(shape, g.dtype)
    chosen.launch(g, w, dx)
    return dx if shape == desc.x_shape else first_columns(dx, desc.ic)


@conv2d_dgrad_add.impl("cuda")
def conv2d_dgrad_add_cuda(g: Array, w: Array, onto: Array, *, hw: Pair, in_place: bool, algorithm: Request = AUTO,
                          **geometry: Any) -> Array:
    desc = ConvDesc.dgrad(g.shape, w.shape, hw, **geometry)
    chosen = _chosen("dgrad", desc, algorithm, g)
    if not chosen.chosen.adds:
        return add.impls["cuda"](onto, conv2d_dgrad_cuda(g, w, hw=hw, algorithm=algorithm, **geometry))
    flush_gradients()
    if not in_place:
        before, onto = onto, empty(onto.shape, onto.dtype)
        copy(onto, before)
    forget([onto])
    chosen.launch(g, w, onto, adds=True)
    return onto


@conv2d_wgrad.impl("cuda")
def conv2d_wgrad_cuda(x: Array, g: Array, *, f: Pair, algorithm: Request = AUTO, **geometry: Any) -> Array:
    desc = ConvDesc.wgrad(x.shape, g.shape, f, **geometry)
    chosen = _chosen("wgrad", desc, algorithm, x, g)
    dw = empty(desc.w_shape, "float32")
    chosen.launch(x, g, dw)
    return dw


def _chosen(pass_name: str, desc: ConvDesc, algorithm: Request, *maps: Array) -> Plan:
    """Returns the plan of a pass, and has maps written that wait for that, as it reads them.

    What they are computed from goes before the result takes memory.
    """
    found = plan(pass_name, desc, precision_of(maps[0].dtype), algorithm)
    for x in maps:
        write_for(x, found.chosen.reads)
    return found
