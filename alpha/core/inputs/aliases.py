"""PyTorch's names of parameters beside alpha's: `x.sum(dim=1, keepdim=True)` is `x.sum(axis=1, keepdims=True)`.

They are looked up where a name is unknown to a function, so a call with alpha's own names pays nothing for them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

# PyTorch's name -> alpha's names for it, of which a function has one at most
NAMES: dict[str, tuple[str, ...]] = {
    "dim": ("axis", "axes"), "dims": ("axis", "axes"), "keepdim": ("keepdims",), "dim0": ("a",), "dim1": ("b",),
    "start_dim": ("start",), "end_dim": ("end",), "min": ("low",), "max": ("high",), "size": ("shape",),
    "input": ("x", "logits", "log_probs", "p", "a"), "other": ("b",), "exponent": ("b",), "weight": ("w",),
    "condition": ("cond",), "tensors": ("xs",), "tensor": ("x",), "split_size_or_sections": ("size",),
    "split_size": ("size",), "negative_slope": ("slope",), "end": ("stop", "b"), "fill_value": ("value",),
    "value": ("v",), "query": ("q",), "key": ("k",), "input1": ("x1",), "input2": ("x2",),
    "unbiased": ("correction",), "num_classes": ("classes",), "pad": ("widths",), "elementwise_affine": ("affine",),
    "num_workers": ("workers",), "dataset": ("data",), "ddof": ("correction",),
}
NOTHING = ("out", "dtype", "initial")   # parameters that NumPy's functions hand on as None
# the help where a function does not take a parameter of PyTorch's
ADVICE = {
    "device": "move it: .to(device)", "dtype": 'convert it: .to(dtype="float16")', "out": "take what is returned",
    "inplace": "leave it out: x stays as it is", "fused": "leave it out: parameters are updated together",
    "foreach": "leave it out: parameters are updated together", "maximize": "minimise the negative loss",
    "alpha": "multiply before: x + 2 * y", "weights_only": "leave it out: nothing is ever unpickled", "collate_fn":
    "items are stacked part by part; transform=f does the work on each", "sampler": "pass Subset(data, order)",
    "batch_sampler": "pass Subset(data, order) and batch_size", "persistent_workers": "leave it out",
    "generator": "alpha.manual_seed(seed) starts all of them", "memory_format": "leave it out: channels are last",
    "layout": "leave it out: all tensors are dense", "worker_init_fn": "transform(x, rng) gets a generator",
    "enable_gqa": "repeat the heads: k.repeat_interleave(n, 1)",
    "batch_first": "leave it out: the batch is always first",
    "force": "leave it out: numpy() copies from any device",
    "with_kwargs": "leave it out: a hook gets what is passed by position",
    "prepend": "leave it out: hooks are called in the order in which they came",
    "allow_unused": "leave it out: an input that nothing depends on has None",
    "keep_vars": "dict(model.named_parameters()) has the parameters themselves",
    "prefix": "leave it out: names begin at the module that is asked",
    "recurse": "leave it out: submodules are walked over",
    "timeout": "leave it out",
    "prefetch_factor": "pass prefetch=",
    "always_call": "leave it out",
    "only_inputs": "leave it out: gradients go to the inputs alone",
    "rounding_mode": "x // y rounds down, (x / y).trunc() towards 0",
    "accumulate": "pass a larger batch_size; in a loop of your own, call backward for several batches before the step",
    "recompute_scale_factor": "leave it out, or pass size=",
}
CONVERTED: dict[str, Callable[[Any], Any]] = {"unbiased": int}


def twin_of(name: str, known: Collection[str]) -> str | None:
    """Returns the name, among the parameters `known`, of PyTorch's parameter `name`, or None."""
    return next((own for own in NAMES.get(name, ()) if own in known), None)


def renamed(given: Mapping[str, Any], known: Collection[str]) -> dict[str, Any] | None:
    """Returns the arguments under alpha's names, or None where that does not make them fit."""
    result: dict[str, Any] = {}
    for name, value in given.items():
        own = name if name in known else twin_of(name, known)
        if own is None and value is None and name in NOTHING:
            continue
        if own is None or own in result or (own != name and own in given):
            return None
        result[own] = CONVERTED[name](value) if own != name and name in CONVERTED else value
    return result
