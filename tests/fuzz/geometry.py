"""Random shapes of convolutions, pools, norms, losses and rows, with their gradients: compiled and in NumPy.

Both refuse a case, or both give the same numbers; where a gradient is summed in another order, nearly the same.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import alpha
from alpha import ops
from alpha.core.config import config
from alpha.errors import AlphaError
from alpha.ops.pool import pool_scatter

LIMIT = 2e-5  # of the largest element
CONSTANT = 2e-4  # of a norm's gradients where all elements are equal: terms of size 1 / sqrt(eps) that cancel

Run = Callable[[list[alpha.Tensor]], alpha.Tensor]


def drawn(rng: random.Random, shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(rng.getrandbits(32)).normal(0, 1, shape).astype(np.float32)


def pair(rng: random.Random, values: list[int]) -> Any:
    return rng.choice([rng.choice(values), (rng.choice(values), rng.choice(values))])


def image(rng: random.Random, channels: int = 0) -> tuple[int, ...]:
    return (rng.choice([0, 1, 1, 2, 3, 5]), rng.choice([1, 2, 5, 8, 13]), rng.choice([1, 3, 4, 7, 9]),
            channels or rng.choice([1, 2, 3, 4, 8, 9, 16]))


def convolution(rng: random.Random) -> tuple[list[np.ndarray], Run, str]:
    groups, narrow = rng.choice([1, 1, 1, 2, 3, 8]), rng.choice([1, 1, 2, 3, 4])
    wide = groups * rng.choice([1, 1, 2, 4])
    shape, kernel = image(rng, groups * narrow), (rng.choice([1, 2, 3, 5]), rng.choice([1, 3, 3, 4]))
    attrs: dict[str, Any] = {"stride": pair(rng, [1, 1, 2, 3]), "padding": pair(rng, [0, 0, 1, 2]),
                             "dilation": pair(rng, [1, 1, 1, 2, 3]), "groups": groups}
    transposed = rng.random() < 0.3
    if transposed:
        attrs["output_padding"] = pair(rng, [0, 0, 1, 2])
        w = drawn(rng, (groups * narrow, *kernel, wide // groups))
    else:
        w = drawn(rng, (wide, *kernel, narrow))
    f = ops.conv_transpose2d if transposed else rng.choice([ops.conv2d, ops.conv2d_bias_act])
    inputs = [drawn(rng, shape), w] + [drawn(rng, (wide,))] * (f is ops.conv2d_bias_act)
    return inputs, lambda xs: f(*xs, **attrs), f"{f} {attrs}"


def pool(rng: random.Random) -> tuple[list[np.ndarray], Run, str]:
    x = drawn(rng, image(rng))
    if rng.random() < 0.3:
        f, attrs = rng.choice([ops.adaptive_avg_pool2d, ops.adaptive_max_pool2d]), {
            "output_size": pair(rng, [1, 2, 3, 7, 12])}
    else:
        f, attrs = rng.choice([ops.max_pool2d, ops.avg_pool2d]), {
            "kernel_size": pair(rng, [1, 2, 3, 5, 8]), "stride": pair(rng, [1, 1, 2, 3]),
            "padding": pair(rng, [0, 0, 1, 2])}
        if f is ops.avg_pool2d:
            attrs["count_include_pad"] = rng.random() < 0.5
    return [x], lambda xs: f(xs[0], **attrs), f"{f} {attrs}"


def scatter(rng: random.Random) -> tuple[list[np.ndarray], Run, str]:
    shape, hw = image(rng), (rng.choice([1, 2, 6]), rng.choice([1, 3, 40]))
    index = np.random.default_rng(rng.getrandbits(32)).integers(0, rng.choice([1, 2, hw[0] * hw[1]]), shape)
    index = index.astype(rng.choice(["int32", "int64"]))
    if index.size and rng.random() < 0.1:
        index.reshape(-1)[-1] = rng.choice([-1, hw[0] * hw[1], 1 << 30])
    return [drawn(rng, shape)], lambda xs: pool_scatter(xs[0], alpha.tensor(index), hw=hw), f"pool_scatter {hw}"


def norm(rng: random.Random) -> tuple[list[np.ndarray], Run, str]:
    shape = image(rng)
    parameters = [drawn(rng, shape[-1:]) for _ in range(rng.choice([0, 2]))]
    groups = rng.choice([1, 2, 3, shape[-1]])
    attrs: dict[str, Any]
    f, attrs = rng.choice([(ops.batch_norm, {"activation": rng.choice([None, "relu"])}),
                           (ops.layer_norm, {}), (ops.group_norm, {"groups": groups})])
    return [drawn(rng, shape), *parameters], lambda xs: f(*xs, **attrs), f"{f} {attrs}"


def rows(rng: random.Random) -> tuple[list[np.ndarray], Run, str]:
    x = drawn(rng, (rng.choice([1, 2, 9]), rng.choice([1, 2, 5, 300])))
    index = np.random.default_rng(rng.getrandbits(32)).integers(-1, len(x), rng.choice([(0,), (7,), (4, 30)]))
    labels = alpha.tensor(np.abs(index.reshape(-1)[:1]).repeat(len(x)) if index.size else np.zeros(len(x), np.int64))
    axis = rng.choice([0, 1, -1])
    f: Run = rng.choice([lambda xs: xs[0][alpha.tensor(index)], lambda xs: ops.cross_entropy(xs[0], labels),
                         lambda xs: ops.softmax(xs[0], axis=axis), lambda xs: ops.log_softmax(xs[0], axis=axis),
                         lambda xs: xs[0].var(axis), lambda xs: xs[0].mean(axis)])
    return [x], f, f"rows {index.shape}"


def results(inputs: list[np.ndarray], run: Run, kernels: bool, seed: int) -> list[np.ndarray] | str:
    """Returns the output and the gradients, or what the case was refused with."""
    with config(cpu_kernels=kernels):
        try:
            xs = [alpha.tensor(x, requires_grad=True) for x in inputs]
            y = run(xs)
            g = alpha.tensor(np.random.default_rng(seed).normal(0, 1, y.shape).astype(np.float32))
            return [y.numpy(), *(d.numpy() for d in alpha.grad(y, xs, g) if d is not None)]
        except AlphaError as error:
            return f"{type(error).__name__}: {error}"


def attempt(rng: random.Random, folder: Path) -> str:
    inputs, run, text = rng.choice([convolution, convolution, pool, pool, scatter, norm, rows])(rng)
    text = f"{text} of {[x.shape for x in inputs]}"
    seed = rng.getrandbits(32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours, plain = (results(inputs, run, kernels, seed) for kernels in (True, False))
    if isinstance(ours, str) or isinstance(plain, str):
        assert isinstance(ours, str) and isinstance(plain, str) and ours[:20] == plain[:20], f"{text}: {ours}; {plain}"
        return f"{text}: refused, {ours}"
    assert len(ours) == len(plain), text
    for k, (a, b) in enumerate(zip(ours, plain)):
        assert a.shape == b.shape and a.dtype == b.dtype, f"{text}: result {k} is {a.shape}, {b.shape}"
        size = np.nanmax(np.abs(b), initial=0.0)
        assert np.allclose(a, b, rtol=0, atol=LIMIT * max(1.0, size) + CONSTANT * ("norm" in text), equal_nan=True), (
            f"{text}: result {k} differs by {np.nanmax(np.abs(a - b))}, its largest element is {size}")
    return f"{text}: {len(ours)} results agree"
