"""`alpha.func`: gradients of functions as functions, in the form of torch.func.

    from alpha.func import functional_call, grad, vmap
    per_sample = vmap(grad(loss_of), in_dims=(None, 0, 0))(dict(model.named_parameters()), images, labels)

Arguments and results are tensors, or tuples, lists and dicts of them. Each function may be applied to the result of
another one, to any depth.
"""

import sys

from alpha.func.call import functional_call
from alpha.func.gradients import grad, grad_and_value, hessian, jacfwd, jacobian, jacrev, jvp, vjp
from alpha.func.maps import vmap
from alpha.interop import twins

__all__ = ["functional_call", "grad", "grad_and_value", "hessian", "jacfwd", "jacobian", "jacrev", "jvp", "vjp",
           "vmap"]


def __getattr__(name: str) -> object:
    raise twins.missing("alpha.func", name, twins.FUNC, sys.modules[__name__])
