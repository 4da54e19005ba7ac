"""Doors to other libraries: DLPack, NumPy's functions, copies and pickles, PyTorch's names.

Each file puts functions that methods of Tensor call into alpha.core.table.
"""
