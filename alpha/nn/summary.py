"""The table that `alpha.summary` prints: output shape, parameters and products of each layer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from alpha import ops
from alpha.core.errors import ShapeError, message
from alpha.core.graph import no_grad
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import Count
from alpha.core.precision import Precision, mode
from alpha.core.tensor import Tensor
from alpha.nn.attributes import hidden
from alpha.nn.module import Module, evaluating


@dataclass(frozen=True)
class Row:
    """One call of one layer; MACs and bytes are of the whole batch, the shape is its first output's.

    input_zeros is the share of zeros in the layer's first input, where summary was given data to count them in.
    """

    path: str
    kind: str
    output_shape: tuple[int, ...]
    parameters: int
    nominal_macs: int
    useful_macs: int
    activation_nbytes: int
    input_zeros: float | None = None


@dataclass(frozen=True)
class Summary:
    """All calls of layers in one forward pass; `print` shows the table.

    Attributes:
        rows: one Row per call of a layer without sublayers, in the order of the calls.
        parameters: elements of all parameters of the model, each counted once.
        mode: the precision mode in force, which activations were stored in.
    """

    model: str
    rows: tuple[Row, ...]
    parameters: int
    mode: Precision

    def total(self, column: str) -> int:
        """Returns the sum of a column of the rows, such as "useful_macs"."""
        return sum(getattr(row, column) for row in self.rows)

    def __str__(self) -> str:
        head: tuple[str, ...] = ("layer", "kind", "output shape", "parameters", "MACs nominal", "MACs useful",
                                 "activation KiB")
        body: list[tuple[str, ...]] = [
            (r.path, r.kind, str(r.output_shape), f"{r.parameters:,}", f"{r.nominal_macs:,}", f"{r.useful_macs:,}",
             f"{r.activation_nbytes / 1024:,.1f}") for r in self.rows]
        last: tuple[str, ...] = ("total", self.model, "", f"{self.parameters:,}", f"{self.total('nominal_macs'):,}",
                f"{self.total('useful_macs'):,}", f"{self.total('activation_nbytes') / 1024:,.1f}")
        if any(r.input_zeros is not None for r in self.rows):
            shares = ("" if r.input_zeros is None else f"{r.input_zeros:.1%}" for r in self.rows)
            head, last = (*head, "zeros read"), (*last, "")
            body = [(*line, share) for line, share in zip(body, shares)]
        widths = [max(map(len, column)) for column in zip(head, *body, last)]
        rule = "  ".join("-" * w for w in widths)
        lines = ["  ".join(cell.ljust(w) if k < 3 else cell.rjust(w) for k, (cell, w) in enumerate(zip(line, widths)))
                 for line in (head, *body, last)]
        return "\n".join([lines[0], rule, *lines[1:-1], rule, lines[-1], f"precision {self.mode}"])


@checked
def summary(model: Module, input_shape: Any, batch_size: Count = 1, zeros: Tensor | None = None) -> Summary:
    """Runs the model on zeros, or on a batch, and returns output shape, parameters and products of each layer.

    Layers count one by one: layers that Sequential would fuse are listed as two. Ops that a forward method
    calls directly (a residual sum, say) are no layer and have no row.
    Args:
        model: a Module that takes one tensor; its mode and buffers are left as they are.
        input_shape: shape of one sample, e.g. (32, 32, 3) for NHWC images.
        batch_size: number of samples; the columns scale with it.
        zeros: a batch of inputs, which then takes the place of batch_size; a column has the share of zeros among
            the elements that each layer reads.
    Returns:
        Summary; print it.
    Raises:
        ShapeError: input_shape is no tuple of sizes, or no input of the model, or zeros has samples of another shape.
        ArgumentError: model is no Module.
    """
    if not isinstance(input_shape, (tuple, list)):
        raise ShapeError(message("summary", f"input_shape is {input_shape!r}, a tuple is needed: the shape of one "
                                 "sample", "write summary(model, (32, 32, 3)) for images, (features,) for vectors"))
    first = next(model.parameters(), None)
    if zeros is not None and zeros.shape[1:] != tuple(input_shape):
        raise ShapeError(message("summary", f"zeros has samples of shape {zeros.shape[1:]}, input_shape is "
                                 f"{tuple(input_shape)}", "pass a batch of the inputs that the model takes"))
    x = zeros if zeros is not None else ops.zeros(
        (batch_size, *input_shape), dtype=first.dtype if first is not None else "float32",
        device=first.device if first is not None else "cpu")
    rows: list[Row] = []
    leaves = [(path, m) for path, m in model.named_modules() if not list(m.named_children())]
    removers = [m.register_forward_hook(partial(_note, rows, path, zeros is not None)) for path, m in leaves]
    try:
        with evaluating(model), no_grad():
            model(x)
    finally:
        for remove in removers:
            remove()
    return Summary(type(model).__name__, tuple(rows), model.num_parameters(), mode())


def _note(rows: list[Row], path: str, counted: bool, layer: Module, args: tuple[Any, ...], output: Any) -> None:
    kind, outputs = type(layer).__name__, hidden(output, (Tensor,))
    nominal, useful = layer.macs(args[0].shape) if args and isinstance(args[0], Tensor) else (0, 0)
    rows.append(Row(path or kind, kind, outputs[0].shape if outputs else (), layer.num_parameters(), nominal, useful,
                    sum(t.array.nbytes for t in outputs), _zeros(args[0]) if counted and args else None))


def _zeros(x: Any) -> float | None:
    """Returns the share of zeros of a tensor."""
    return float((x.numpy() == 0).mean()) if isinstance(x, Tensor) and x.size else None
