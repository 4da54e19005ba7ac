"""What other libraries see of tensors: DLPack, NumPy's functions, copies and pickles, PyTorch's names.

Each file puts what the methods of Tensor call into alpha.core.table.
"""
