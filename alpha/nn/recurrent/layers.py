"""Recurrent layers: the products with x of all steps at once, then step by step; parameters have PyTorch's names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from alpha import ops
from alpha.core.errors import ConfigError, message
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import Count, Share, Size
from alpha.core.precision import to_storage_dtype
from alpha.core.tensor import Tensor
from alpha.nn.module import Module
from alpha.nn.recurrent.cells import GATES, Nonlinearity, drawn, gru_step, lstm_step, refused, rnn_step

Step = Callable[..., tuple[Tensor, ...]]


class _Recurrent(Module):
    """Base of RNN, LSTM and GRU: layers, directions, dropout between layers, and the form of x."""

    kind = "RNN"
    states = 1          # tensors of a state
    proj_size = 0

    def __init__(self, input_size: int, hidden_size: int, num_layers: int, bias: bool, batch_first: bool,
                 dropout: float, bidirectional: bool) -> None:
        if dropout and num_layers == 1:
            raise ConfigError(message(type(self).__name__, f"dropout={dropout} has no effect with num_layers=1: it is "
                                      "between layers", "leave dropout out, or pass num_layers=2"))
        self.input_size, self.hidden_size, self.num_layers, self.bias = input_size, hidden_size, num_layers, bias
        self.batch_first, self.dropout, self.bidirectional = batch_first, dropout, bidirectional
        rows, out = GATES[self.kind] * hidden_size, self.proj_size or hidden_size
        for k in range(num_layers):
            for end in self._ends():
                wide = out * len(self._ends()) if k else input_size
                setattr(self, f"weight_ih_l{k}{end}", drawn(hidden_size, rows, wide))
                setattr(self, f"weight_hh_l{k}{end}", drawn(hidden_size, rows, out))
                for name in ("ih", "hh") if bias else ():
                    setattr(self, f"bias_{name}_l{k}{end}", drawn(hidden_size, rows))
                if self.proj_size:
                    setattr(self, f"weight_hr_l{k}{end}", drawn(hidden_size, self.proj_size, hidden_size))

    def _ends(self) -> tuple[str, ...]:
        """Returns the ending of the names of each direction's parameters."""
        return ("", "_reverse") if self.bidirectional else ("",)

    def _step(self, k: int, end: str) -> Step:
        """Returns the function (W_ih x + b_ih, state) -> new state of a layer and a direction."""
        raise NotImplementedError

    def _given(self, name: str, k: int, end: str) -> Any:
        return getattr(self, f"{name}_l{k}{end}", None) if name.startswith("weight") or self.bias else None

    def _sizes(self) -> tuple[int, ...]:
        return (self.proj_size or self.hidden_size, self.hidden_size)[:self.states]

    def _start(self, hx: Any, x: Tensor, single: bool) -> list[Tensor]:
        """Returns the tensors of the first state, each (layers * directions, N, size)."""
        lead = self.num_layers * len(self._ends())
        shapes = [(lead, x.shape[1], size) for size in self._sizes()]
        if hx is None:
            return [ops.zeros(shape, x.dtype, x.device) for shape in shapes]
        given = list(hx) if isinstance(hx, (tuple, list)) else [hx]
        wanted = [(lead, size) if single else shape for shape, size in zip(shapes, self._sizes())]
        if len(given) != self.states or any(not isinstance(t, Tensor) or t.shape != shape
                                            for t, shape in zip(given, wanted)):
            needed = str(wanted[0]) if self.states == 1 else f"a pair of {wanted[0]} and {wanted[1]}"
            raise refused(type(self).__name__, "the state", hx, needed)
        return [t.astype(x.dtype).reshape(shape) for t, shape in zip(given, shapes)]

    def _line(self, x: Tensor, k: int, end: str, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Returns the output of a direction of a layer for x (L, N, size), and its last state."""
        wx = ops.linear(x, getattr(self, f"weight_ih_l{k}{end}"), self._given("bias_ih", k, end))
        step, outs = self._step(k, end), []
        parts = ops.unbind(wx, 0)
        for part in reversed(parts) if end else parts:
            state = step(part, state)
            outs.append(state[0])
        return ops.stack(outs[::-1] if end else outs, 0), state

    def forward(self, x: Tensor, hx: Any = None) -> Any:
        """Returns (y, last state); see the class."""
        axes = (2, 3)
        if not isinstance(x, Tensor) or x.ndim not in axes or x.shape[-1] != self.input_size or 0 in x.shape:
            order = "(N, L" if self.batch_first else "(L, N"
            raise refused(type(self).__name__, "x", x, f"{order}, {self.input_size}) or (L, {self.input_size}), with "
                          "a step at least,")
        single = x.ndim == 2
        x = to_storage_dtype(x)
        x = x.unsqueeze(1) if single else x.transpose(0, 1) if self.batch_first else x
        start = self._start(hx, x, single)
        last: list[tuple[Tensor, ...]] = []
        for k in range(self.num_layers):
            if k and self.dropout:
                x = ops.dropout(x, self.dropout, training=self.training)
            made = []
            for end in self._ends():
                y, state = self._line(x, k, end, tuple([t[len(last)] for t in start]))
                made.append(y)
                last.append(state)
            x = ops.concat(made, -1) if len(made) > 1 else made[0]
        ends = [ops.stack([state[j] for state in last], 0) for j in range(self.states)]
        if single:
            x, ends = x.squeeze(1), [t.squeeze(1) for t in ends]
        elif self.batch_first:
            x = x.transpose(0, 1)
        return x, tuple(ends) if self.states > 1 else ends[0]

    def macs(self, x_shape: tuple[int, ...]) -> tuple[int, int]:
        count = sum([p.numel() for name, p in self.named_parameters() if name.startswith("weight")])
        steps = 1
        for n in x_shape[:-1]:
            steps *= n
        return steps * count, steps * count

    def extra_repr(self) -> str:
        text = f"{self.input_size}, {self.hidden_size}"
        for name, default in (("proj_size", 0), ("num_layers", 1), ("bias", True), ("batch_first", False),
                              ("dropout", 0.0), ("bidirectional", False)):
            if getattr(self, name) != default:
                text += f", {name}={getattr(self, name)}"
        return text


class RNN(_Recurrent):
    """A recurrent network: h' = tanh(W_ih x + b_ih + W_hh h + b_hh), step by step.

    Args:
        input_size, hidden_size: of x and of h.
        num_layers: each reads the output of the layer before.
        nonlinearity: "tanh" or "relu".
        bias: whether there are biases.
        batch_first: whether sequences are (N, L, size); else (L, N, size).
        dropout: probability of a zero between layers, in training.
        bidirectional: whether a second direction reads the sequence from its end; y has both, one behind the other.
    Shape: x (L, N, input_size) -> y (L, N, D * hidden_size), last state (D * num_layers, N, hidden_size), D directions;
        the first state, hx, has the shape of the last one, and is 0 if it is not given.  A sequence without a batch is
        (L, input_size), and its state has no axis N.
    Parameters: weight_ih_l0 (hidden_size, input_size), weight_hh_l0 (hidden_size, hidden_size), bias_ih_l0, bias_hh_l0
        (hidden_size,), then _l1, ...; of the second direction with _reverse behind it. They start as U[-b, b),
        b = 1 / sqrt(hidden_size). Names and layouts are PyTorch's.
    Raises:
        ConfigError: a setting is out of range, or dropout is given for one layer.  ShapeError: x or hx does not fit.
    Sequences of several lengths are padded: there are no packed ones.
    """

    @checked
    def __init__(self, input_size: Count, hidden_size: Count, num_layers: Count = 1,
                 nonlinearity: Nonlinearity = "tanh", bias: bool = True, batch_first: bool = False,
                 dropout: Share = 0.0, bidirectional: bool = False) -> None:
        self.nonlinearity = nonlinearity
        super().__init__(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional)

    def _step(self, k: int, end: str) -> Step:
        w, b = getattr(self, f"weight_hh_l{k}{end}"), self._given("bias_hh", k, end)
        return lambda x, state: rnn_step(x, state, w, b, self.nonlinearity)


class LSTM(_Recurrent):
    """A recurrent network whose cells c keep and forget by gates.

        i, f, g, o = parts of W_ih x + b_ih + W_hh h + b_hh
        c' = sigmoid(f) * c + sigmoid(i) * tanh(g);  h' = sigmoid(o) * tanh(c'), with proj_size W_hr h'
    Args:
        proj_size: size of h where it is projected; 0: it is hidden_size.
        others: see RNN.
    Shape: as RNN, the state being (h, c): h (D * num_layers, N, proj_size or hidden_size), c (..., hidden_size).
    Parameters: as RNN, with 4 * hidden_size rows, of i, f, g and o; weight_hr_l0 (proj_size, hidden_size).
    Raises:
        ConfigError: proj_size is not below hidden_size; otherwise as RNN.
    Source: Hochreiter and Schmidhuber, "Long short-term memory", 1997; projection: Sak et al., arXiv 1402.1128.
    """

    kind, states = "LSTM", 2

    @checked
    def __init__(self, input_size: Count, hidden_size: Count, num_layers: Count = 1, bias: bool = True,
                 batch_first: bool = False, dropout: Share = 0.0, bidirectional: bool = False, proj_size: Size = 0
                 ) -> None:
        if proj_size >= hidden_size:
            raise ConfigError(message("LSTM", f"proj_size={proj_size} is not below hidden_size={hidden_size}",
                                      "choose a smaller one, or 0 for no projection"))
        self.proj_size = proj_size
        super().__init__(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional)

    def _step(self, k: int, end: str) -> Step:
        w, b = getattr(self, f"weight_hh_l{k}{end}"), self._given("bias_hh", k, end)
        w_hr = getattr(self, f"weight_hr_l{k}{end}") if self.proj_size else None
        return lambda x, state: lstm_step(x, state, w, b, w_hr)


class GRU(_Recurrent):
    """A recurrent network whose gates say how much of h stays.

        r = sigmoid(W_ir x + b_ir + W_hr h + b_hr);  z = sigmoid(W_iz x + b_iz + W_hz h + b_hz)
        n = tanh(W_in x + b_in + r * (W_hn h + b_hn));  h' = (1 - z) * n + z * h
    Args: see RNN.
    Shape: as RNN.
    Parameters: as RNN, with 3 * hidden_size rows, of r, z and n.
    Raises: as RNN.
    Source: Cho et al., arXiv 1406.1078; r is applied to the product with h, as in PyTorch.
    """

    kind = "GRU"

    @checked
    def __init__(self, input_size: Count, hidden_size: Count, num_layers: Count = 1, bias: bool = True,
                 batch_first: bool = False, dropout: Share = 0.0, bidirectional: bool = False) -> None:
        super().__init__(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional)

    def _step(self, k: int, end: str) -> Step:
        w, b = getattr(self, f"weight_hh_l{k}{end}"), self._given("bias_hh", k, end)
        return lambda x, state: gru_step(x, state, w, b)
