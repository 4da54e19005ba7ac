"""interop.pytorch: PyTorch's models as modules of alpha, and back.  PyTorch is imported when a function is called.

    net = alpha.from_torch(model, torch.randn(2, 3, 32, 32))
    alpha.to_torch(net, model)      # trained weights and statistics
"""

from alpha.interop.pytorch.back import to_torch
from alpha.interop.pytorch.convert import from_torch
from alpha.interop.pytorch.modules import Converted, Part
from alpha.interop.pytorch.stored import filled

__all__ = ["Converted", "Part", "filled", "from_torch", "to_torch"]
