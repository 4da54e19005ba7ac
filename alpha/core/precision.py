"""The four precision modes: how layers store activations, and which digits a matrix product may drop.

    with alpha.precision("bf16"):          # for a block
        loss = ops.cross_entropy(model(images), labels)
    ALPHA_PRECISION=bf16 python ...        # for a process

Weights, their gradients, the states of the optimizer and the statistics of batch norm are float32 in every mode, sums
are made in float32, and losses are float32. docs/explanation/numerics.md has the promises and how each is kept.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass

from alpha.core.config import Config, config
from alpha.core.device import get_backend
from alpha.core.errors import DTypeError, message
from alpha.core.inputs.arguments import bound
from alpha.core.tensor import Tensor


@dataclass(frozen=True)
class Precision:
    """A precision: what is stored, what tensor cores multiply, and how far a result may be off.

    Attributes:
        name: as in `alpha.config.precision`; "fma" stands for "fp32" with ALPHA_TENSOR_CORES=0.
        dtype: in which layers store activations, and gradients of them.
        products: how a convolution or matrix product treats the digits of its operands, in words.
        operand: the form in which tensor cores read an array: "float32" as it is stored, or 16-bit planes, by their
            dtype and, where there are two, "x2" (alpha/cuda/lazy/operands.py).
        promise: relative error of a convolution or product by any algorithm, in the Frobenius norm, against float64
            (docs/explanation/numerics.md).
        timed_as: the precision whose kernels take as long: its measured constants serve both.
        scales_loss: whether gradients need a scaled loss (alpha.optim.LossScaler), as the dtype's range is short.
    """

    name: str
    dtype: str
    products: str
    operand: str
    promise: float
    timed_as: str
    scales_loss: bool = False

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype} activations, {self.products}"

    @property
    def element(self) -> str:
        """The dtype of a plane of an operand."""
        return self.operand.removesuffix("x2")

    @property
    def planes(self) -> int:
        """16-bit planes of an operand: two hold the digits of float32."""
        return 2 if self.operand.endswith("x2") else 1

    @property
    def multiplications(self) -> int:
        """Products of planes that make one product: of two planes the three that are not too small."""
        return self.planes * (self.planes + 1) // 2

    @property
    def reads(self) -> tuple[str, ...]:
        """What kernels may read for an array."""
        return tuple(dict.fromkeys(("float32", self.operand)))


PRECISIONS = {one.name: one for one in (
    Precision("fma", "float32", "products on units for float32", "float32", 2e-6, "fma"),
    Precision("fp32", "float32", "products as accurate as float32's", "float16x2", 2e-6, "fp32"),
    Precision("tf32", "float32", "operands of products rounded to 11 bits on tensor cores", "float16", 6e-4, "tf32"),
    Precision("bf16", "bfloat16", "float32 weights, sums in float32", "bfloat16", 6e-4, "bf16"),
    Precision("fp16", "float16", "float32 weights, sums in float32, scaled loss", "float16", 6e-4, "bf16", True),
)}
MODES = {name: one for name, one in PRECISIONS.items() if name != "fma"}     # that a user may set


@bound
def precision(name: str) -> AbstractContextManager[Config]:
    """For a block: layers compute in a mode, "fp32", "tf32", "bf16" or "fp16".  Raises ConfigError for another name."""
    return config(precision=name)


def mode() -> Precision:
    """Returns the mode in force."""
    return MODES[config.precision]


def to_storage_dtype(x: Tensor) -> Tensor:
    """Returns the input of a layer as the mode in force stores it.

    float32 becomes float16 in "fp16" and bfloat16 in "bf16"; tensors of other dtypes stay as they are. The layers
    that multiply by weights call this, ops by themselves never look at the mode.
    Raises:
        DTypeError: the device does not have the dtype of the mode.
    """
    dtype = MODES[config.precision].dtype
    if dtype == "float32" or not isinstance(x, Tensor) or x.dtype != "float32":     # the op refuses other types
        return x
    backend = get_backend(x.device)
    if dtype not in backend.dtypes:
        raise DTypeError(message("precision", f"{config.precision} stores activations in {dtype}, which the "
                                 f"{backend.name} backend does not have", 'compute in "fp32" or "fp16", or move the '
                                 'model and its input to a GPU: .to("cuda")'))
    return x.astype(dtype)
