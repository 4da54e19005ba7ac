"""Dropout whose mask is a function of (seed, offset): nothing is kept for backward, which makes the mask again."""

from __future__ import annotations

from alpha import random
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import Seed, Share, Size
from alpha.core.op import op
from alpha.core.table import public
from alpha.core.tensor import Tensor


@public(layer="Dropout", keeps_channels=True)
@checked
def dropout(x: Tensor, p: Share = 0.5, training: bool = True) -> Tensor:
    """In training, y = x / (1 - p) with probability 1 - p and 0 else, per element; otherwise y = x.

    Args:
        x: any shape; float.
        p: probability of a zero, in [0, 1].
        training: False returns x itself.
    Returns:
        y of the shape of x. The numbers come from the process's stream: see alpha.manual_seed.
    Raises:
        ConfigError: p is not in [0, 1].
    Source: Srivastava et al., "Dropout: a simple way to prevent neural networks from overfitting", JMLR 15, 2014.
        Differs: the scale is applied in training, not in inference.
    """
    if p == 0 or not training:
        return x
    seed, offset = random.reserve(x.numel())
    return keyed_dropout(x, p=p, seed=seed, offset=offset)


@op
class keyed_dropout:
    """y[k] = x[k] / (1 - p) where number offset + k of the stream "dropout" is at least p, else 0; k counts elements.

    Args:
        x: any shape; float.
        p: in [0, 1]; 1 makes y zero.
        seed, offset: which numbers, see alpha.random.uniform.
    """

    args, cheap = "x", True
    by_value = True     # the key and the counter are others in each call

    def shape(x, *, p: Share, seed: Seed, offset: Size):
        return x.shape

    def vjp_x(g, s, *, p, seed, offset):
        return keyed_dropout(g, p=p, seed=seed, offset=offset)
