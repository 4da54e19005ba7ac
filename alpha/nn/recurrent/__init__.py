"""Recurrent layers, composed of ops: RNN, LSTM, GRU, and one step of each as a cell."""

from alpha.nn.recurrent.cells import GRUCell, LSTMCell, RNNCell
from alpha.nn.recurrent.layers import GRU, LSTM, RNN

__all__ = ["GRU", "LSTM", "RNN", "GRUCell", "LSTMCell", "RNNCell"]
