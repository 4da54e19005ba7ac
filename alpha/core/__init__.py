"""Tensors, ops, the graph, settings, errors: all else is built on them, and nothing here imports anything above.

From the bottom: errors and settings; devices, dtypes and kinds of arguments; Tensor, whose methods call by name the ops
that stand above it (table); the graph and views; an op's arguments (signature) and its class (op).
"""
