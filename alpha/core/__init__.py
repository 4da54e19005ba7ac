"""Tensors, ops, the graph, settings, errors: all else is built on them, and nothing here imports anything above.

From the bottom: errors and settings; devices, dtypes and kinds of arguments; Tensor, whose methods call by name what
stands above it (table); the graph and views; what an op takes (signature) and is (op).
"""
