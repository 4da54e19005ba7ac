"""Base calls of the functions of tensors: a name has one call or several."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import alpha
from alpha.errors import AlphaError
from tests.silence.seen import method, op
from tests.silence.values import Array

Call = Callable[..., Any]

A = Array(3, 4)
B = Array(3, 4, seed=1)
POSITIVE = Array(3, 4, seed=2, low=0.2, high=2.0)
SHARE = Array(3, 4, seed=3, low=0.05, high=0.95)
MAP = Array(2, 6, 6, 4)
LINE = Array(2, 7, 4)
VOLUME = Array(2, 5, 4, 4, 2)
FILTERS = Array(4, 3, 3, 4, seed=1)
LINES = Array(4, 3, 4, seed=1)
SIGNS = Array(values=[[1, -1, 1, -1], [1, 1, -1, -1], [-1, 1, 1, 1]])
LABELS = Array(values=[0, 3, 1], dtype="int64")
GRADIENT = Array(2, 4, 4, 4, seed=2)
NUMBERS = Array(values=[0.5, float("nan"), float("inf"), float("-inf")])
TIED = Array(values=[[1.0, 2.0, 1.0, 3.0], [2.0, 2.0, 1.0, 1.0]])
SHUFFLED = Array(values=[3, 1, 3, 2, 1], dtype="int64")
SQUARE = Array(4, 4)
CUBE = Array(3, 3, 3)
VECTOR = Array(4, seed=4)
SPREAD = Array(4, seed=5, low=0.3, high=2.0)
NEAR = Array(values=[1.0, 2.0, float("nan"), 0.0])
NEARLY = Array(values=[1.3, 2.0, float("nan"), 0.2])
EQUAL = Array(values=[1.0, 2.0, float("nan"), 0.0])


def twice(call: Callable[[], Any]) -> Any:
    """Returns the results of two calls; the second one is refused where the graph is gone."""
    first = call()
    try:
        return first, call()
    except AlphaError:
        return first


def gradient_of(f: Callable[..., Any], **given: Any) -> Any:
    """The gradient of a cube."""
    x = alpha.tensor(2.0, requires_grad=True)
    y = x * x * x
    return twice(lambda: f(y, x, **given))


def states(*extra: str) -> list[Any]:
    """Returns the arguments of an update op: parameters, gradients, and averages by their least value."""
    return [[Array(5, seed=1, grad=False)], [Array(5, seed=2, grad=False)], *(
        [Array(5, seed=3 + k, low=0.01 if kind == "+" else -1.0, high=0.5, grad=False)]
        for k, kind in enumerate(extra))]


def update(*extra: str, **fixed: Any) -> Call:
    return op(*states(*extra), lr=0.1, **fixed)


CALLS: dict[str, list[Call]] = {
    # elementwise
    "clip": [op(A, low=-1.0, high=1.0)], "elu": [op(A)], "leaky_relu": [op(A)], "celu": [op(A)], "hardshrink": [op(A)],
    "softshrink": [op(A)], "hardtanh": [op(A)], "logit": [op(SHARE)], "nan_to_num": [op(NUMBERS)], "round": [op(A)],
    "addcdiv": [op(A, B, POSITIVE)], "addcmul": [op(A, B, POSITIVE)],
    "addmm": [op(Array(3, 4), Array(3, 2), Array(2, 4))],
    "baddbmm": [op(Array(2, 3, 4), Array(2, 3, 2), Array(2, 2, 4))], "dropout": [op(A), op(A, 0.4)],
    "glu": [op(Array(2, 4, 4))], "gumbel_softmax": [op(A)], "softmin": [op(A)],
    "allclose": [op(Array(values=[1.0, 2.0]), Array(values=[1.25, 2.2])), op(EQUAL, EQUAL),
                 op(Array(values=[1.0, 0.1]), Array(values=[1.0, 0.2]))],
    "isclose": [op(NEAR, NEARLY), op(EQUAL, EQUAL)],
    # reductions and order
    **{name: [op(A), op(A, axis=1)] for name in ("sum", "mean", "max", "min", "prod", "any", "all", "argmax", "argmin",
                                                 "logsumexp", "var", "std", "median", "count_nonzero", "vector_norm")},
    "quantile": [op(A, 0.3), op(A, 0.3, axis=1)],
    "softmax": [op(A)], "log_softmax": [op(A)], "argsort": [op(A), op(TIED)], "sort": [op(A), op(TIED)],
    "topk": [op(Array(4, 6), 3)], "unique": [op(SHUFFLED), op(TIED)], "bincount": [op(SHUFFLED)],
    "cosine_similarity": [op(A, B), op(Array(3, 4, low=-1e-3, high=1e-3), Array(3, 4, low=-1e-3, high=1e-3, seed=1))],
    "pairwise_distance": [op(A, B)], "recompute_summary": [op()],
    # shapes
    "chunk": [op(SQUARE, 2)], "split": [op(SQUARE, 2)], "tensor_split": [op(SQUARE, 2)], "stack": [op([A, B])],
    "concat": [op([A, B])], "diag": [op(SQUARE)], "diagonal": [op(CUBE)], "diff": [op(SQUARE)], "flip": [op(SQUARE)],
    "flatten": [op(CUBE)], "squeeze": [op(Array(1, 3, 1))], "transpose": [op(CUBE)], "roll": [op(SQUARE, 1)],
    "repeat_interleave": [op(A, 2)], "nonzero": [op(A)], "one_hot": [op(LABELS)], "tril": [op(SQUARE)],
    "triu": [op(SQUARE)], "unbind": [op(SQUARE)], "pad": [op(SQUARE, ((1, 1), (1, 1)))],
    "take_along_dim": [op(SQUARE, Array(values=[[0, 1, 0, 2], [3, 2, 1, 0]], dtype="int64"))],
    "index_add": [op(A, 0, [0, 2], Array(2, 4))], "meshgrid": [op(VECTOR, Array(3))], "cdist": [op(A, B)],
    "scatter_reduce": [op(VECTOR, 0, LABELS, Array(3, seed=9), "mean")], "multinomial": [op(SPREAD, 2)],
    # made
    **{name: [op((2, 3))] for name in ("zeros", "ones", "rand", "randn")}, "full": [op((2, 3), 1.5)],
    "arange": [op(1), op(1, 6)], "eye": [op(3)], "linspace": [op(0, 1, 5)], "randint": [op(50), op(50, 90, (3,))],
    "randperm": [op(5)], "tensor": [op([1.5, 2.5])], "device": [op("cuda")],
    # products and convolutions
    "matmul": [op(SQUARE, Array(4, 4, seed=1))], "linear": [op(SQUARE, Array(4, 4, seed=1))],
    "conv2d": [op(MAP, FILTERS)], "conv2d_bias_act": [op(MAP, FILTERS, VECTOR)],
    "conv2d_relu_pool": [op(Array(2, 8, 8, 4, grad=False), Array(4, 3, 3, 4, grad=False))],
    "conv2d_dgrad": [op(GRADIENT, FILTERS, hw=(6, 6)), op(Array(2, 3, 3, 4), FILTERS, hw=(5, 5), padding=(0, 0))],
    "conv2d_dgrad_add": [op(GRADIENT, FILTERS, MAP, hw=(6, 6))],
    "conv2d_wgrad": [op(MAP, GRADIENT, f=(3, 3))], "conv_transpose2d": [op(MAP, FILTERS), op(MAP, FILTERS, stride=2)],
    "coconv2d": [op(MAP, Array(4, 3, 3, 4), dilations=(1, 2))],
    "coconv2d_bias_act": [op(MAP, Array(4, 3, 3, 4), VECTOR, dilations=(1, 2))],
    "coconv2d_dgrad": [op(Array(2, 6, 6, 4), Array(4, 3, 3, 4), hw=(6, 6), dilations=(1, 2))],
    "coconv2d_wgrad": [op(MAP, Array(2, 6, 6, 4), f=(3, 3), dilations=(1, 2))],
    "scaled_dot_product_attention": [op(Array(2, 2, 4, 4), Array(2, 2, 4, 4, seed=1), Array(2, 2, 4, 4, seed=2))],
    # pools, pictures, windows
    **{name: [op(MAP, 2), op(MAP, 3), op(MAP, 3, 2), op(Array(2, 7, 7, 2), 3, 2, 1)]
       for name in ("avg_pool2d", "max_pool2d", "avg_pool_windows", "max_pool_windows")},
    **{name: [op(VOLUME, 2), op(VOLUME, 3, 2, 1), op(VOLUME, 3)] for name in ("max_pool3d", "avg_pool3d")},
    "conv3d": [op(VOLUME, Array(4, 3, 3, 3, 2, seed=1)), op(VOLUME, Array(4, 3, 3, 3, 1, seed=1), groups=2)],
    **{name: [op(VOLUME, Array(2, 3, 3, 3, 2, seed=1), stride=s) for s in (1, 2)] for name in ("conv_transpose3d",)},
    "conv_transpose1d": [op(LINE, Array(4, 3, 2, seed=1), stride=s) for s in (1, 2)],
    "interpolate": [op(MAP, size=(9, 9)), op(MAP, scale_factor=2), op(MAP, size=(9, 9), mode="bilinear")],
    "grid_sample": [op(MAP, Array(2, 3, 3, 2))], "affine_grid": [op(Array(2, 2, 3), (2, 4, 5, 1))],
    "local_response_norm": [op(MAP, 3)], "embedding": [op(LABELS, Array(4, 3))],
    "unfold": [op(MAP, 2)], "fold": [op(Array(2, 25, 16), (6, 6), 2), op(Array(2, 4, 16), (4, 4), 2, stride=2),
                                  op(Array(2, 9, 16), (6, 6), 2, stride=2)],
    # norms
    "batch_norm": [op(MAP, SPREAD, VECTOR, running_mean=VECTOR, running_var=SPREAD),
                   op(MAP, running_mean=Array(4, grad=False), running_var=Array(4, low=0.5, grad=False))],
    "group_norm": [op(MAP, SPREAD, VECTOR, groups=2)], "layer_norm": [op(Array(2, 3, 4), SPREAD, VECTOR)],
    "rms_norm": [op(Array(2, 3, 4)), op(Array(2, 3, 4), SPREAD)],
    # losses
    **{name: [op(A, B)] for name in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")},
    "bce_loss": [op(SHARE, SHARE)], "bce_with_logits_loss": [op(A, SHARE)], "kl_div": [op(A, SHARE)],
    "cross_entropy": [op(A, LABELS)], "nll_loss": [op(A, LABELS)], "multi_margin_loss": [op(A, LABELS)],
    "cosine_embedding_loss": [op(A, B, Array(values=[1, -1, -1])), op(A, A, Array(values=[-1, -1, -1]))],
    "gaussian_nll_loss": [op(A, B, POSITIVE), op(A, B, SHARE)], "hinge_embedding_loss": [op(A, SIGNS)],
    "margin_ranking_loss": [op(A, B, SIGNS)], "soft_margin_loss": [op(A, SIGNS)],
    "poisson_nll_loss": [op(A, Array(values=[[0, 1, 2, 3], [4, 0, 1, 2], [3, 3, 1, 0]], grad=False)),
                         op(POSITIVE, B, log_input=False)],
    "focal_loss": [op(A, SHARE)], "dice_loss": [op(SHARE, SHARE)],
    "ctc_loss": [op(Array(4, 2, 4), [[1, 1], [2, 1]], [4, 4], [2, 2]),
                 op(Array(4, 2, 4), [[1, 1], [2, 1]], [2, 4], [2, 2])],
    "triplet_margin_loss": [op(A, B, Array(3, 4, seed=7)), op(Array(3, 4, seed=8), B, A, margin=4.0)],
    # update ops and what few call
    "sgd_step": [update("-", momentum=0.5), update("-")], "adam_step": [op(*states("-", "+"), [], lr=0.1, step=2,
    weight_decay=0.1),
                  op(*states("-", "+", "+"), lr=0.1, step=2, weight_decay=0.1)],
    "adamax_step": [update("-", "+", step=2)], "adamod_step": [update("-", "+", "+", step=2)],
    "radam_step": [update("-", "+", step=9, weight_decay=0.1)], "rmsprop_step": [op(*states("+"), [], [], lr=0.1,
    weight_decay=0.1),
                     op(*states("+"), [], [Array(5, grad=False)], lr=0.1, momentum=0.5)],
    "loss_scale_step": [op(Array(values=[4.0, 9.0], grad=False), Array(values=8.0, grad=False),
                           Array(values=[3, 0], dtype="int32"))],
    "augment_images": [op(Array(4, 8, 8, 3, dtype="uint8", low=0, high=255), Array(values=[0, 1, 2], dtype="int64"),
                          Array(values=[0.1, 0.2, 0.3], grad=False), Array(values=[0.5, 0.6, 0.7], grad=False),
                          **fixed) for fixed in ({}, dict(crop=2, flip=True, cutout=2))],
    # autograd
    "grad": [gradient_of],
}

def both(x: alpha.Tensor, y: alpha.Tensor) -> Any:
    """A pair of numbers, for functions that take one of each kind of result."""
    return (x * x * y).sum(), (x + y).sum()


def applied(f: Callable[..., Any], **given: Any) -> Any:
    """A gradient of a function of two tensors."""
    pair = given.get("has_aux", False)
    made = f(both if pair else lambda x, y: both(x, y)[0], **given)
    return made(alpha.tensor(A.values), alpha.tensor(B.values))


def pulled(f: Callable[..., Any], **given: Any) -> Any:
    """A product with a Jacobian."""
    x, y = alpha.tensor(A.values), alpha.tensor(B.values)
    return f(both, x, y, **given) if f.__name__ == "vjp" else f(both, (x, y), (y, x), **given)


def called(f: Callable[..., Any], **given: Any) -> Any:
    """A module with one other parameter."""
    model = alpha.nn.Linear(4, 2)
    return f(model, {"bias": -alpha.ops.ones((2,))}, **{"args": alpha.tensor(A.values), **given})


FUNC_CALLS: dict[str, list[Call]] = {
    **{name: [applied] for name in ("grad", "grad_and_value", "jacfwd", "jacobian", "hessian")},
    "vjp": [pulled], "jvp": [pulled], "functional_call": [called],
    "vmap": [lambda f, **given: f(lambda x: x * 2.0, **given)(alpha.tensor(CUBE.values[:2]))],
}

# Functions of nn.functional, by the names there.
F_CALLS: dict[str, list[Call]] = {
    **{name: [op(A)] for name in ("celu", "elu", "gelu", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "mish",
                                  "relu", "relu6", "selu", "silu")},
    "threshold": [op(A, 0.2, 3.0)],
    "avg_pool1d": [op(LINE, 3), op(LINE, 2), op(LINE, 3, 2, 1)], "max_pool1d": [op(LINE, 3), op(LINE, 2), op(LINE, 3,
    2, 1)],
    "avg_pool2d": [op(MAP, 2), op(MAP, 3), op(Array(2, 7, 7, 2), 3, 2, 1), op(Array(2, 8, 8, 2), 3, 2)],
    "max_pool2d": [op(MAP, 2), op(MAP, 3), op(Array(2, 8, 8, 2), 3, 2)],
    "batch_norm": [op(MAP, VECTOR, SPREAD), op(MAP, VECTOR, SPREAD, training=True)],
    "instance_norm": [op(MAP), op(MAP, VECTOR, SPREAD, use_input_stats=False)],
    "group_norm": [op(MAP, 2)], "layer_norm": [op(MAP, (4,))], "rms_norm": [op(MAP, (4,))],
    "conv1d": [op(LINE, LINES)], "conv2d": [op(MAP, FILTERS)],
    "conv_transpose2d": [op(MAP, FILTERS), op(MAP, FILTERS, stride=2)],
    "drop_path": [op(A)], "dropout": [op(A)],
    "dropout1d": [op(LINE)], "embedding": [op(LABELS, Array(4, 3))], "normalize": [op(Array(3, 4,
    low=0.01, high=0.1))],
}


def differentiated(f: Callable[..., Any], **given: Any) -> Any:
    """Goes back from a function of a leaf, once and once more."""
    x = alpha.tensor([2.0, 3.0], requires_grad=True)
    y = (x * x * x)[:1 if "gradient" not in given else 2]
    twice(lambda: f(y, **{"gradient": alpha.ops.ones((1,)), **given}))
    return x.grad.requires_grad, x


METHOD_CALLS: dict[str, list[Call]] = {
    "backward": [differentiated],
    "to": [method(A)], "type": [method(A)],
    **{f"new_{name}": [method(A, *args)] for name, args in (("zeros", [(2,)]), ("ones", [(2,)]), ("full", [(2,), 1.5]),
                                                          ("tensor", [[1.0]]))},
    "requires_grad_": [method(A)],
}

# Values of one callable's parameter, where the name alone does not say them.
VALUES: dict[str, list[Any]] = {
    "max_unpool2d.stride": [3], "max_unpool2d.output_size": [(7, 7)],
    "argmax.axis": [0], "vector_norm.p": [1, 3], "pairwise_distance.p": [1.0], **{f"{name}.axis": [1] for name in (
        "chunk", "concat", "split", "stack", "tensor_split", "unbind")}, "softmax.axis": [0], "diff.prepend": [Array(4,
        1)],
    "diff.append": [Array(4, 1)], "diff.n": [2], "diagonal.dim1": [2], "diagonal.dim2": [2], "bincount.minlength": [9],
    "bincount.weights": [Array(5)], "nll_loss.weight": [SPREAD], "cross_entropy.weight": [SPREAD],
    "multi_margin_loss.weight": [SPREAD], "cross_entropy.ignore_index": [0, 3], "nll_loss.ignore_index": [0, 3],
    "bce_with_logits_loss.pos_weight": [SPREAD], "multi_margin_loss.p": [2], "triplet_margin_loss.p": [1.0],
    "arange.stop": [4], "arange.dtype": ["float64"], "randint.high": [90], "randint.shape": [(4,)], "eye.m": [5],
    "tensor.dtype": ["int32"], "randint.dtype": ["int32"], "one_hot.classes": [6], "unique.axis": [0],
    "linear.b": [VECTOR], "conv2d_relu_pool.b": [VECTOR], "batch_norm.residual": [MAP],
    "scaled_dot_product_attention.attn_mask": [Array(4, 4)], "scaled_dot_product_attention.scale": [0.1],
    "coconv2d.channels": [(1, 3)], "coconv2d_bias_act.channels": [(1, 3)], "coconv2d_dgrad.channels": [(1, 3)],
    "coconv2d_wgrad.channels": [(1, 3)], "layer_norm.normalized_ndim": [2], "rms_norm.normalized_ndim": [2],
    "glu.axis": [1], "gumbel_softmax.axis": [0], "pad.value": [3.0], "transpose.a": [0], "transpose.b": [0],
    "flatten.start": [1], "flatten.end": [1], "device.index": [1], "grad.grad_outputs": [Array(values=3.0, grad=False)],
    "backward.gradient": [Array(values=[2.0, 3.0], grad=False)], "backward.retain_graph": [True],
    "grad.retain_graph": [True], "loss_scale_step.growth_interval": [3, 4], "squeeze.axis": [0], "roll.axis": [0, 1],
    "conv2d_relu_pool.pool_stride": [1],
    **{f"func.{name}.argnums": [1, (0, 1)] for name in ("grad", "grad_and_value", "jacfwd",
                                                                       "jacobian", "hessian")},
    "vmap.in_dims": [1], "vmap.out_dims": [1], "functional_call.args": [B], "functional_call.kwargs": [{"activation":
    "relu"}],
    "bce_loss.weight": [SPREAD], "bce_with_logits_loss.weight": [SPREAD],
    "tril.diagonal": [1], "conv3d.bias": [VECTOR], "conv_transpose3d.bias": [Array(2)],
    "conv_transpose1d.bias": [Array(2)], "conv3d.groups": [2], "conv_transpose3d.groups": [2],
    "batch_norm.weight": [SPREAD], "group_norm.weight": [SPREAD], "layer_norm.weight": [SPREAD],
    "rms_norm.weight": [SPREAD], "instance_norm.weight": [SPREAD], "instance_norm.running_mean": [VECTOR],
    "instance_norm.running_var": [SPREAD], "batch_norm.running_mean": [VECTOR], "batch_norm.running_var": [SPREAD],
    "index_add.alpha": [0.5], "meshgrid.indexing": ["xy"],
    "topk.axis": [0], "adam_step.vmax": [[Array(5, low=0.6, high=0.9, grad=False)]],
    "augment_images.key": [Array(values=[5, 6, 7], dtype="int64")], "cumsum.axis": [1],
    "rmsprop_step.a": [[Array(5, low=-0.01, high=0.01, grad=False)]],
    "rmsprop_step.b": [[Array(5, grad=False)]], "sgd_step.v": [[Array(5, grad=False)]],
}
