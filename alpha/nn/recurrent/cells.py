"""One step of a recurrent layer: the equations that cells and layers share, and the cells."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any

from alpha import ops
from alpha.core.errors import ShapeError, message, shown
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import Choice, Count
from alpha.core.precision import to_storage_dtype
from alpha.core.tensor import Tensor
from alpha.nn import init
from alpha.nn.module import Module, Parameter

Nonlinearity = Annotated[str, Choice("tanh", "relu")]
GATES = {"RNN": 1, "LSTM": 4, "GRU": 3}


def rnn_step(x: Tensor, state: Sequence[Tensor], w_hh: Tensor, b_hh: Tensor | None, nonlinearity: str = "tanh"
             ) -> tuple[Tensor, ...]:
    """h' = tanh(x + W_hh h + b_hh), x being W_ih x + b_ih; or relu."""
    return (getattr(ops, nonlinearity)(x + ops.linear(state[0], w_hh, b_hh)),)


def lstm_step(x: Tensor, state: Sequence[Tensor], w_hh: Tensor, b_hh: Tensor | None, w_hr: Tensor | None = None
              ) -> tuple[Tensor, ...]:
    """i, f, g, o = parts of x + W_hh h + b_hh;  c' = s(f) c + s(i) tanh(g);  h' = s(o) tanh(c'), projected by W_hr."""
    i, f, g, o = ops.chunk(x + ops.linear(state[0], w_hh, b_hh), 4, -1)
    c = ops.sigmoid(f) * state[1] + ops.sigmoid(i) * ops.tanh(g)
    h = ops.sigmoid(o) * ops.tanh(c)
    return (h if w_hr is None else ops.linear(h, w_hr)), c


def gru_step(x: Tensor, state: Sequence[Tensor], w_hh: Tensor, b_hh: Tensor | None) -> tuple[Tensor, ...]:
    """r, z, n = parts of x;  n' = tanh(n + s(r + W_hr h) (W_hn h + b_hn));  h' = (1 - z') n' + z' h.

    z' = s(z + W_hz h).
    """
    (h,) = state
    xr, xz, xn = ops.chunk(x, 3, -1)
    hr, hz, hn = ops.chunk(ops.linear(h, w_hh, b_hh), 3, -1)
    z = ops.sigmoid(xz + hz)
    n = ops.tanh(xn + ops.sigmoid(xr + hr) * hn)
    return (n + z * (h - n),)


def drawn(hidden_size: int, *shape: int) -> Parameter:
    """Returns a parameter as PyTorch's recurrent layers start with: U[-b, b), b = 1 / sqrt(hidden_size)."""
    bound = 1.0 / math.sqrt(hidden_size)
    return init.uniform_(Parameter(ops.zeros(shape)), -bound, bound)


def refused(where: str, what: str, given: Any, needed: str) -> ShapeError:
    said = f"shape {given.shape}" if isinstance(given, Tensor) else shown(given)
    return ShapeError(message(where, f"{what} is of {said}, {needed} is needed", f"pass {what} of that shape"))


class _Cell(Module):
    """Base of cells: parameters, and the look at x and the state."""

    kind = "RNN"

    def __init__(self, input_size: int, hidden_size: int, bias: bool) -> None:
        self.input_size, self.hidden_size, self.bias = input_size, hidden_size, bias
        rows = GATES[self.kind] * hidden_size
        self.weight_ih = drawn(hidden_size, rows, input_size)
        self.weight_hh = drawn(hidden_size, rows, hidden_size)
        self.bias_ih = drawn(hidden_size, rows) if bias else None
        self.bias_hh = drawn(hidden_size, rows) if bias else None

    def _ready(self, x: Tensor, state: Any, count: int) -> tuple[Tensor, list[Tensor]]:
        """Returns W_ih x + b_ih and the state, zeros where there is none."""
        name, n = type(self).__name__, self.input_size
        if not isinstance(x, Tensor) or x.ndim not in (1, 2) or x.shape[-1] != n:
            raise refused(name, "x", x, f"(N, {n}) or ({n},)")
        x = to_storage_dtype(x)
        shape = (*x.shape[:-1], self.hidden_size)
        if state is None:
            state = [ops.zeros(shape, x.dtype, x.device) for _ in range(count)]
        given = list(state) if isinstance(state, (tuple, list)) else [state]
        if len(given) != count or any(not isinstance(t, Tensor) or t.shape != shape for t in given):
            raise refused(name, "the state", state, str(shape) if count == 1 else f"a pair of {shape}")
        return ops.linear(x, self.weight_ih, self.bias_ih), [t.astype(x.dtype) for t in given]

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}" + ("" if self.bias else ", bias=False")


class RNNCell(_Cell):
    """One step of an RNN: h' = tanh(W_ih x + b_ih + W_hh h + b_hh).

    Args:
        input_size, hidden_size: of x and h.
        bias: whether there are biases.
        nonlinearity: "tanh" or "relu".
    Shape: x (N, input_size), h (N, hidden_size) -> h'; without h it is 0.  One axis less without a batch.
    Parameters: weight_ih, weight_hh, bias_ih, bias_hh, as PyTorch's; they start as RNN's.
    """

    @checked
    def __init__(self, input_size: Count, hidden_size: Count, bias: bool = True, nonlinearity: Nonlinearity = "tanh"
                 ) -> None:
        super().__init__(input_size, hidden_size, bias)
        self.nonlinearity = nonlinearity

    def forward(self, x: Tensor, hx: Tensor | None = None) -> Tensor:
        wx, state = self._ready(x, hx, 1)
        return rnn_step(wx, state, self.weight_hh, self.bias_hh, self.nonlinearity)[0]


class LSTMCell(_Cell):
    """One step of an LSTM: see alpha.nn.LSTM.

    Args:
        input_size, hidden_size: of x, and of h and c.
        bias: whether there are biases.
    Shape: x (N, input_size), (h, c) each (N, hidden_size) -> (h', c'); without a state it is 0.
    Parameters: as RNNCell, with four times as many rows: of the gates i, f, g, o.
    """

    kind = "LSTM"

    @checked
    def __init__(self, input_size: Count, hidden_size: Count, bias: bool = True) -> None:
        super().__init__(input_size, hidden_size, bias)

    def forward(self, x: Tensor, hx: Any = None) -> tuple[Tensor, Tensor]:
        wx, state = self._ready(x, hx, 2)
        h, c = lstm_step(wx, state, self.weight_hh, self.bias_hh)
        return h, c


class GRUCell(_Cell):
    """One step of a GRU: see alpha.nn.GRU.

    Args:
        input_size, hidden_size: of x and h.
        bias: whether there are biases.
    Shape: x (N, input_size), h (N, hidden_size) -> h'; without h it is 0.
    Parameters: as RNNCell, with three times as many rows: of the gates r, z, n.
    """

    kind = "GRU"

    @checked
    def __init__(self, input_size: Count, hidden_size: Count, bias: bool = True) -> None:
        super().__init__(input_size, hidden_size, bias)

    def forward(self, x: Tensor, hx: Tensor | None = None) -> Tensor:
        wx, state = self._ready(x, hx, 1)
        return gru_step(wx, state, self.weight_hh, self.bias_hh)[0]
