"""What makes a program cheaper: constants are computed once, norms folded, activations and additions fused.

A batch norm in inference is a scale and a shift per channel, so that behind a convolution or a product, whose result
nothing else reads,

    norm(conv(x, w) + b) = conv(x, w * scale) + (b - mean) * scale + beta,    scale = gamma / sqrt(var + eps)

The new weights are computed in float64 and rounded once.
"""

from __future__ import annotations

from math import prod

import numpy as np

from alpha.core.config import config
from alpha.core.device import device_type
from alpha.core.op import Op
from alpha.core.tensor import Tensor, tensor
from alpha.fuse.follow import NORMS, PRODUCTS, Step, follow
from alpha.inference.program import VIEWS, Call, Program, Value, evaluate, op_named
from alpha.ops.matmul import MOST_SPARSE_ROWS

# Which ops can add a tensor before their activation, with the CPU's kernels and on a GPU.
ADDING = {"cpu": ("conv2d_bias_act", "coconv2d_bias_act"), "cuda": ("conv2d_bias_act",)}


def improve(program: Program, kernels: bool) -> None:
    """Rewrites a program in place; notes in it what was done.

    Args:
        kernels: whether there are compiled ones; without, NumPy does the work.
    """
    adding = ADDING[device_type(program.device)] if kernels else ()
    _compute_constants(program)
    _fold_norms(program, adding)
    _fuse_activations(program)
    if kernels:
        _fuse_additions(program, adding)
        _fuse_activations(program)
    _fuse_pools(program)
    _prepare_norms(program)
    if config.conv_sparsity and kernels:
        _skip_zeros(program)
    _drop_unread(program)
    if device_type(program.device) == "cpu":
        _reuse(program)


def _compute_constants(program: Program) -> None:
    """Computes once the values that depend on constants alone."""
    kept = []
    for call in program.calls:
        if call.op.mutates or not all(v.constant is not None for v in call.reads()):
            kept.append(call)
            continue
        made: dict[Value, object] = {}
        evaluate(call, made, program.device)
        for value in call.outs:
            value.constant = Tensor(made[value], value.shape, value.dtype, program.device)
        program.notes.append((call.op.name, "computed once"))
    program.calls = kept


def _host(value: Value | None, default: float, channels: int) -> np.ndarray:
    if value is None:
        return np.full(channels, default)
    assert value.constant is not None
    return value.constant.astype("float32").numpy().astype(np.float64) if value.dtype != "float64" else (
        value.constant.numpy())


def _constant(program: Program, a: np.ndarray, dtype: str, name: str) -> Value:
    made = tensor(np.ascontiguousarray(a).astype(dtype), device=program.device)
    return Value(made.shape, made.dtype, made, name)


def layer(call: Call) -> str:
    """Returns the name of the layer of a call, by its constants: "layer1.0.conv1"; else that of its op."""
    names = [v.name for v in call.reads() if v.name]
    return names[0].rpartition(".")[0] or names[0] if names else call.op.name


def _fold_norms(program: Program, adding: tuple[str, ...]) -> None:
    makers, readers = program.makers(), program.readers()
    for norm in list(program.calls):
        if norm.op.name not in NORMS:
            continue
        source = makers.get(norm.args[0])
        why = _why_not(norm, source, readers, adding)
        if why or source is None:
            program.notes.append((layer(norm), f"stays a norm: {why}"))
            continue
        _fold(program, norm, source)
        makers.update(dict.fromkeys(norm.outs, source))
        program.notes.append((layer(norm), f"folded into {layer(source)}"))


def _why_not(norm: Call, source: Call | None, readers: dict[Value, list[Call | None]], adding: tuple[str, ...]) -> str:
    """Returns why a norm cannot be folded into what makes its input; "" if it can."""
    if source is None or source.op.name not in PRODUCTS:
        return f"its input comes from {source.op.name if source else 'outside'}"
    if len(readers[source.outs[0]]) > 1:
        return f"others read the result of {layer(source)}, too"
    if source.attrs.get("activation") is not None or source.residual is not None:
        return f"an addition or activation lies between it and {layer(source)}"
    if any(v is not None and v.constant is None for v in (*norm.args[1:5], *source.args[1:])):
        return "weights or statistics are computed from the input"
    if source.args[1].dtype not in ("float32", "float64"):
        return f"the weights of {layer(source)} are {source.args[1].dtype}, which rounding twice would harm"
    if len(norm.args) > 5 and PRODUCTS[source.op.name] not in adding:
        return "norm, addition and activation are one pass as they are"
    return ""


def _fold(program: Program, norm: Call, source: Call) -> None:
    """Makes the call in front of a norm compute the norm's result, in the norm's place."""
    w = source.args[1]
    channels, dtype = w.shape[0], w.dtype
    gamma, beta, mean, var = (_host(v, default, channels) for v, default in zip(norm.args[1:5], (1, 0, 0, 1)))
    scale = gamma / np.sqrt(var + norm.attrs["eps"])
    bias = _host(source.args[2] if len(source.args) > 2 else None, 0.0, channels)
    weights = _host(w, 0.0, channels) * scale.reshape(-1, *[1] * (len(w.shape) - 1))
    attrs = {**source.attrs, "activation": norm.attrs["activation"]}
    if "for_norm" in attrs:
        attrs["for_norm"] = False
    _become(source, op_named(PRODUCTS[source.op.name]), [source.args[0], _constant(program, weights, dtype, w.name),
            _constant(program, (bias - mean) * scale + beta, dtype, "")], attrs)
    source.residual = norm.args[5] if len(norm.args) > 5 else None
    _take_place(program, source, norm)


def _prepare_norms(program: Program) -> None:
    """Gives norms that stay the statistics as they read them, which they would compute in each call."""
    readers = program.readers()
    for norm in program.calls:
        if norm.op.name not in NORMS or any(out in readers for out in norm.outs[1:]):
            continue
        x, gamma, beta, mean, var, *residual = norm.args
        if mean.constant is None or var.constant is None:
            continue
        dtype = norm.outs[1].dtype
        istd = 1 / np.sqrt(_host(var, 1.0, 0) + norm.attrs["eps"])
        statistics = _constant(program, _host(mean, 0.0, 0), dtype, mean.name), _constant(program, istd, dtype, "")
        _become(norm, op_named("batch_norm_apply"), [x, gamma, beta, *statistics, *(residual or [None])],
                {"activation": norm.attrs["activation"], "training": False})
        norm.outs = norm.outs[:1]


def behind_relu(program: Program, x: Value) -> bool:
    """Tells whether a relu made a value, but for a look at it in another shape."""
    makers = program.makers()
    while x in makers and makers[x].op.name in VIEWS:
        x = makers[x].args[0]
    return x in makers and (makers[x].op.name in ("relu", "conv_relu_pool") or
                            makers[x].attrs.get("activation") == "relu")


def _skip_zeros(program: Program) -> None:
    """Lets linear layers of few rows behind a relu skip rows of weights that meet zeros."""
    for call in program.calls:
        if (call.op.name == "linear" and call.attrs["algorithm"].name == "auto"
                and prod(call.args[0].shape[:-1]) <= MOST_SPARSE_ROWS and behind_relu(program, call.args[0])):
            call.attrs = {**call.attrs, "algorithm": call.attrs["algorithm"]._replace(name="sparse")}
            program.notes.append((layer(call), "skips rows of zeros"))


def _step(call: Call) -> Step:
    return Step(call.op.name, call.args, call.attrs)


def _become(call: Call, op: Op, args: list[object], attrs: dict[str, object]) -> None:
    call.op, call.args, call.attrs = op, args, attrs


def _take_place(program: Program, source: Call, following: Call) -> None:
    """Moves a call to the place of the one behind it, whose result it now makes."""
    source.outs = [following.outs[0]]
    program.calls.remove(source)
    program.calls[program.calls.index(following)] = source


def _fuse_activations(program: Program) -> None:
    """Lets what makes the input of a relu apply it."""
    makers, readers = program.makers(), program.readers()
    for call in list(program.calls):
        source = makers.get(call.args[0]) if call.op.name == "relu" else None
        if source is None or len(readers[source.outs[0]]) > 1 or call.args[0] is not source.outs[0]:
            continue
        both = follow(_step(source), Step("relu", [None], {}))
        if both is None:
            continue
        _become(source, op_named(both.op), list(both.args), both.attrs)
        makers[call.outs[0]] = source
        outs = source.outs
        _take_place(program, source, call)
        source.outs += outs[1:]     # the statistics of a norm, which nothing reads
        program.notes.append((layer(source), "relu fused"))


def _fuse_additions(program: Program, adding: tuple[str, ...]) -> None:
    """Lets a convolution add the other operand of an addition that follows it."""
    makers, readers = program.makers(), program.readers()
    order = {value: k for k, call in enumerate(program.calls) for value in call.outs}
    for call in list(program.calls):
        if call.op.name != "add" or not all(isinstance(a, Value) and a.shape == call.outs[0].shape for a in call.args):
            continue
        ready = [(order.get(a, -1), a, b) for a, b in (call.args, call.args[::-1])]
        for _, a, b in sorted(ready, key=lambda item: -item[0]):    # the operand that is made last
            source = makers.get(a)
            if (source is not None and a is not b and len(readers[a]) == 1 and source.residual is None
                    and PRODUCTS.get(source.op.name) in adding and source.attrs.get("activation") is None):
                args = [*source.args, None] if len(source.args) == 2 else source.args
                _become(source, op_named(PRODUCTS[source.op.name]), args, {**source.attrs, "activation": None})
                source.residual = b
                makers[call.outs[0]] = source
                _take_place(program, source, call)
                program.notes.append((layer(source), "addition fused"))
                break


def _fuse_pools(program: Program) -> None:
    """Lets a convolution with relu hand on the maxima of windows alone."""
    makers, readers = program.makers(), program.readers()
    for call in program.calls:
        if call.op.name != "max_pool2d" or call.outs[1] in readers:
            continue
        source = makers.get(call.args[0])
        if source is None or source.residual is not None or len(readers[source.outs[0]]) > 1:
            continue
        both = follow(_step(source), _step(call))
        if both is None:
            continue
        _become(call, op_named(both.op), list(both.args), both.attrs)
        call.outs = call.outs[:1]
        program.notes.append((layer(source), "max pool fused"))


def _reuse(program: Program) -> None:
    """Lets results have the memory of their summand, where nothing reads it afterwards."""
    last = {v: k for k, call in enumerate(program.calls) for v in call.reads()}
    last |= dict.fromkeys(program.outputs, len(program.calls))
    roots: dict[Value, Value] = {v: v for v in program.inputs}      # whose elements a value has
    for k, call in enumerate(program.calls):
        for value in call.outs:
            viewed = call.args[0] if call.op.name in VIEWS else value
            roots[value] = roots.get(viewed, viewed)
        if call.residual is not None:
            place = roots.get(call.residual, call.residual)
            shared = [v for v, root in roots.items() if root is place and v not in call.outs]
            call.in_place = (place not in program.inputs and place.constant is None
                             and roots.get(call.args[0], call.args[0]) is not place
                             and all(last.get(v, -1) <= k for v in shared))
            if call.in_place:
                roots[call.outs[0]] = place


def _drop_unread(program: Program) -> None:
    """Leaves out calls whose results nothing reads."""
    wanted, kept = set(program.outputs), []
    for call in reversed(program.calls):
        if wanted.intersection(call.outs):
            wanted.update(call.reads())
            kept.append(call)
    program.calls = kept[::-1]
