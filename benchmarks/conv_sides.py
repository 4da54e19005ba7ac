"""The three passes of a convolution in each library, on the same numbers, and the right results in float64."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import alpha  # noqa: F401  registers the ops
from alpha.core.op import registry
from benchmarks.rounds import relative_error
from benchmarks.shapes import PASSES, ConvShape

PART_IMAGES, PART_FILTERS = 2, 8  # parts that are computed in float64

Call = Callable[[int], Any]


class Operands:
    """Rotating sets of x, w and g of one layer, as both libraries see them.

    Args:
        timing: benchmarks.cpu_timing or benchmarks.cuda_timing.
        dtype: "float32", "bfloat16" or "float16".
        sets: how many; None: as many as no cache holds.
    """

    def __init__(self, shape: ConvShape, timing: ModuleType, dtype: str = "float32", sets: int | None = None) -> None:
        torch = timing.strict_torch()
        desc, device, kind = shape.desc, timing.peer_device(), getattr(torch, dtype)
        self.shape, self.dtype, self.timing = shape, dtype, timing
        self.sets = sets or timing.sets_for(desc.nbytes(4 if dtype == "float32" else 2))
        torch.manual_seed(0)
        scale = (shape.f * shape.f * shape.ic) ** -0.5
        self.torch = [tuple((torch.randn(size, device=device) * by).to(kind) for size, by in (
            (desc.x_shape, 1.0), (desc.w_shape, scale), (desc.y_shape, 1.0))) for _ in range(self.sets)]

    def wrapped(self) -> list[tuple[Any, ...]]:
        """Returns the sets as alpha's arrays."""
        return [tuple(map(self.timing.wrap, group)) for group in self.torch]

    def turned(self, channels_last: bool) -> list[tuple[Any, ...]]:
        """Returns the sets with PyTorch's axes, N C H W, in one of its two layouts."""
        turned = [tuple(t.permute(0, 3, 1, 2) for t in group) for group in self.torch]
        return turned if channels_last else [tuple(t.contiguous() for t in group) for group in turned]


def alpha_call(operands: Operands, pass_name: str, device: str, there: str = "") -> Call:
    """Returns alpha's pass as a function of the number of the call.

    there: the tensor cores' form of float32 tensors (alpha/cuda/lazy/operands.py), made before and kept, as the
        layers around a convolution leave it in training.
    """
    s = operands.shape
    op, first, second, extra = {
        "fprop": ("conv2d", 0, 1, {}), "dgrad": ("conv2d_dgrad", 2, 1, {"hw": (s.hw, s.hw)}),
        "wgrad": ("conv2d_wgrad", 0, 2, {"f": (s.f, s.f)})}[pass_name]
    run, sets, attrs = registry[op].impls[device], operands.wrapped(), {**extra, **s.geometry}
    if there:
        from alpha.cuda.lazy.operands import operand
        for x in (x for group in sets for x in group):
            operand(x, there)
    held: list[Any] = [None] * len(sets)

    def call(k: int) -> Any:
        group = sets[k % len(sets)]
        held[k % len(sets)] = made = run(group[first], group[second], **attrs)
        return made
    return call


def torch_call(operands: Operands, pass_name: str, channels_last: bool) -> Call:
    """Returns PyTorch's pass as a function of the number of the call; results have axes N C H W."""
    import torch
    s, sets = operands.shape, operands.turned(channels_last)
    stride, padding = [s.stride] * 2, [s.padding] * 2
    wanted = PASSES.index(pass_name) - 1
    held: list[Any] = [None] * len(sets)

    def call(k: int) -> Any:
        x, w, g = sets[k % len(sets)]
        if wanted < 0:
            made = torch.nn.functional.conv2d(x, w, None, stride, padding, groups=s.groups)
        else:
            made = torch.ops.aten.convolution_backward(g, x, w, None, stride, padding, [1, 1], False, [0, 0], s.groups,
                                                       [wanted == 0, wanted == 1, False])[wanted]
        held[k % len(sets)] = made
        return made
    return call


def reference(shape: ConvShape, pass_name: str, x: Any, w: Any, g: Any) -> Any:
    """Returns a pass in float64, tap by tap.

    Args:
        x, w, g: PyTorch tensors in alpha's layouts, whole or cut along N (fprop, dgrad) or OC (wgrad).
    """
    import torch
    x, w, g = x.double(), w.double(), g.double()
    p, s, (_, oh, ow, _) = shape.padding, shape.stride, g.shape
    padded = torch.nn.functional.pad(x, (0, 0, p, p, p, p))
    if pass_name == "dgrad":
        padded = torch.zeros_like(padded)
    out = torch.zeros_like(w if pass_name == "wgrad" else g)
    for fh in range(shape.f):
        for fw in range(shape.f):
            met = padded[:, fh:fh + s * (oh - 1) + 1:s, fw:fw + s * (ow - 1) + 1:s].unflatten(3, (shape.groups, -1))
            if pass_name == "wgrad":     # of the first filters, each with the channels of its group
                of_filter = torch.arange(len(w), device=w.device) // (shape.oc // shape.groups)
                out[:, fh, fw] = torch.einsum("nhwo,nhwoi->oi", g, met[..., of_filter, :])
                continue
            filters = w[:, fh, fw].unflatten(0, (shape.groups, -1))
            if pass_name == "fprop":
                out += torch.einsum("nhwgi,goi->nhwgo", met, filters).flatten(3)
            else:
                met += torch.einsum("nhwgo,goi->nhwgi", g.unflatten(3, (shape.groups, -1)), filters)
    return padded[:, p:p + shape.hw, p:p + shape.hw] if pass_name == "dgrad" else out


def part_of(operands: Operands, pass_name: str) -> tuple[slice, Any]:
    """Returns which part of a result is computed in float64, and that part: some images, or some filters."""
    x, w, g = operands.torch[0]
    if pass_name == "wgrad":
        part = slice(PART_FILTERS)
        return part, reference(operands.shape, pass_name, x, w[part], g[..., part])
    part = slice(PART_IMAGES)
    return part, reference(operands.shape, pass_name, x[part], w, g[part])


def error_of(operands: Operands, pass_name: str, result: Any) -> float:
    """Returns the relative error of a part of a result, in alpha's layout, against float64."""
    part, expected = part_of(operands, pass_name)
    return relative_error(result[part], expected)
