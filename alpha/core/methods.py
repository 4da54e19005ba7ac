"""Operators and methods of tensors: each is the op of that name, under alpha's names and under PyTorch's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Union

import numpy as np

from alpha.core.errors import ArgumentError, DTypeError, ShapeError, message, shown
from alpha.core.inputs.arguments import bound_methods
from alpha.core.table import TABLE

TensorT = TypeVar("TensorT")    # is Tensor

Number = Union[int, float, bool]
Axes = Union[int, Sequence[int], None]


def spread(given: tuple[Any, ...]) -> tuple[int, ...]:
    """Takes t.reshape(2, 3) and t.reshape((2, 3)) alike."""
    return given[0] if len(given) == 1 and not isinstance(given[0], (int, np.integer)) else given


def _calling(name: str) -> Any:
    """Returns a method that calls the op of a name with the tensor in front; the op looks at the rest."""
    def method(self: Any, *args: Any, **named: Any) -> Any:
        return TABLE[name](self, *args, **named)
    method.__name__ = name
    return method


# Methods that hand everything on, by the ops that they call; alpha.ops gives them their docstrings.
# names: calls, written by python -m tools.names
CALLS = {name: name for name in """
    abs acos add addcdiv addcmul addmm all allclose any argmax argmin argsort asin atan atan2 baddbmm
    bernoulli bincount bmm broadcast_to ceil chunk clip cos cosh count_nonzero cumprod cumsum diag
    diagonal diff div dot eq equal erf erfc exp exp2 expm1 flatten floor floor_divide fmod gather ge
    gt hypot index_add index_select isclose isfinite isinf isnan le leaky_relu lerp log log1p log2 log10
    log_softmax logical_and logical_not logical_or logical_xor logit logsumexp lt masked_fill masked_select
    matmul max maximum mean median min minimum mm moveaxis mul multinomial mv nan_to_num narrow ne neg
    nonzero outer pow prod quantile reciprocal relu remainder repeat_interleave roll round rsqrt scatter
    scatter_add scatter_reduce select sigmoid sign sin sinh softmax sort split sqrt square squeeze std
    sub sum take_along_axis take_along_dim tan tanh tensor_split topk trace transpose tril triu trunc
    unbind unflatten unique unsqueeze var
""".split()} | {  # noqa: SIM905
    "absolute": "abs", "amax": "max", "amin": "min", "clamp": "clip", "divide": "div", "movedim": "moveaxis",
    "multiply": "mul", "negative": "neg", "norm": "vector_norm", "subtract": "sub", "swapaxes": "transpose",
    "true_divide": "div",
}
# end of names


def _numbers(a: Any, b: Any) -> tuple[Any, Any]:
    """Returns two operands: of a mask of bools and numbers, the mask as 0 and 1 in the other's dtype."""
    is_tensor = isinstance(b, Methods)      # mypy would narrow b to a class without astype
    if is_tensor and a.dtype is b.dtype:
        return a, b
    if is_tensor and (a.dtype == "bool") != (b.dtype == "bool"):
        return (a.astype(b.dtype), b) if a.dtype == "bool" else (a, b.astype(a.dtype))
    if not is_tensor and a.dtype == "bool" and type(b) in (int, float):
        return a.astype("int64" if type(b) is int else "float32"), b
    return a, b


def _like(a: Any, b: Any) -> Any:
    """Returns b in the dtype of a if it is a mask of bools and a has numbers."""
    return b if a.dtype == "bool" else _numbers(a, b)[1]


def _shape_of(where: str, other: Any) -> tuple[int, ...]:
    if not hasattr(other, "shape"):
        raise ArgumentError(message(where, f"other is {shown(other)}, a Tensor is needed", "pass a tensor of the shape "
                                    "that is wanted"))
    return other.shape


@bound_methods()
class Methods(Generic[TensorT]):
    """The arithmetic of Tensor; it has no slots of its own."""

    __slots__ = ()

    if TYPE_CHECKING:
        shape: tuple[int, ...]
        dtype: str

    def __add__(self, other: TensorT | Number) -> TensorT:
        a, b = _numbers(self, other)
        return TABLE["add"](a, b)
    def __radd__(self, other: TensorT | Number) -> TensorT: return TABLE["add"](*_numbers(self, other)[::-1])
    def __sub__(self, other: TensorT | Number) -> TensorT:
        a, b = _numbers(self, other)
        return TABLE["sub"](a, b)
    def __rsub__(self, other: TensorT | Number) -> TensorT: return TABLE["sub"](*_numbers(self, other)[::-1])
    def __mul__(self, other: TensorT | Number) -> TensorT:
        a, b = _numbers(self, other)
        return TABLE["mul"](a, b)
    def __rmul__(self, other: TensorT | Number) -> TensorT: return TABLE["mul"](*_numbers(self, other)[::-1])
    def __truediv__(self, other: TensorT | Number) -> TensorT:
        a, b = _numbers(self, other)
        return TABLE["div"](a, b)
    def __rtruediv__(self, other: TensorT | Number) -> TensorT: return TABLE["div"](other, self)
    def __floordiv__(self, other: TensorT | Number) -> TensorT: return TABLE["floor_divide"](self, other)
    def __rfloordiv__(self, other: TensorT | Number) -> TensorT: return TABLE["floor_divide"](other, self)
    def __mod__(self, other: TensorT | Number) -> TensorT: return TABLE["remainder"](self, other)
    def __rmod__(self, other: TensorT | Number) -> TensorT: return TABLE["remainder"](other, self)
    def __pow__(self, other: TensorT | Number) -> TensorT: return TABLE["pow"](self, other)
    def __rpow__(self, other: TensorT | Number) -> TensorT: return TABLE["pow"](other, self)
    def __matmul__(self, other: TensorT) -> TensorT: return TABLE["matmul"](self, other)
    def __rmatmul__(self, other: TensorT) -> TensorT: return TABLE["matmul"](other, self)
    def __iadd__(self: Any, other: TensorT | Number) -> TensorT:
        return TABLE["update"](self, "+=", TABLE["add"], _like(self, other))
    def __isub__(self: Any, other: TensorT | Number) -> TensorT:
        return TABLE["update"](self, "-=", TABLE["sub"], _like(self, other))
    def __imul__(self: Any, other: TensorT | Number) -> TensorT:
        return TABLE["update"](self, "*=", TABLE["mul"], _like(self, other))
    def __itruediv__(self: Any, other: TensorT | Number) -> TensorT:
        return TABLE["update"](self, "/=", TABLE["div"], _like(self, other))
    def __ipow__(self: Any, other: TensorT | Number) -> TensorT:
        return TABLE["update"](self, "**=", TABLE["pow"], other)
    def __ifloordiv__(self: Any, other: TensorT | Number) -> TensorT:
        return TABLE["update"](self, "//=", TABLE["floor_divide"], other)
    def __imod__(self: Any, other: TensorT | Number) -> TensorT:
        return TABLE["update"](self, "%=", TABLE["remainder"], other)
    def __iand__(self: Any, other: TensorT | bool) -> TensorT:
        return TABLE["update"](self, "&=", TABLE["logical_and"], other)
    def __ior__(self: Any, other: TensorT | bool) -> TensorT:
        return TABLE["update"](self, "|=", TABLE["logical_or"], other)
    def __ixor__(self: Any, other: TensorT | bool) -> TensorT:
        return TABLE["update"](self, "^=", TABLE["logical_xor"], other)
    def __imatmul__(self: Any, other: TensorT) -> TensorT: return TABLE["update"](self, "@=", TABLE["matmul"], other)
    def __neg__(self) -> TensorT: return TABLE["neg"](self)
    def __pos__(self) -> TensorT: return self  # type: ignore[return-value]
    def __abs__(self) -> TensorT: return TABLE["abs"](self)
    def __and__(self, other: TensorT | bool) -> TensorT: return TABLE["logical_and"](self, other, where="&")
    def __rand__(self, other: TensorT | bool) -> TensorT: return TABLE["logical_and"](self, other, where="&")
    def __or__(self, other: TensorT | bool) -> TensorT: return TABLE["logical_or"](self, other, where="|")
    def __ror__(self, other: TensorT | bool) -> TensorT: return TABLE["logical_or"](self, other, where="|")
    def __xor__(self, other: TensorT | bool) -> TensorT: return TABLE["logical_xor"](self, other, where="^")
    def __rxor__(self, other: TensorT | bool) -> TensorT: return TABLE["logical_xor"](self, other, where="^")
    def __invert__(self) -> TensorT: return TABLE["logical_not"](self, where="~")
    def __eq__(self, other: Any) -> TensorT:  # type: ignore[override]
        return NotImplemented if other is None else TABLE["eq"](self, other)  # so that `t == None` is False
    def __ne__(self, other: Any) -> TensorT:  # type: ignore[override]
        return NotImplemented if other is None else TABLE["ne"](self, other)
    def __lt__(self, other: TensorT | Number) -> TensorT: return TABLE["lt"](self, other)
    def __le__(self, other: TensorT | Number) -> TensorT: return TABLE["le"](self, other)
    def __gt__(self, other: TensorT | Number) -> TensorT: return TABLE["gt"](self, other)
    def __ge__(self, other: TensorT | Number) -> TensorT: return TABLE["ge"](self, other)
    __hash__ = object.__hash__

    def __getitem__(self, key: Any) -> TensorT: return TABLE["getitem"](self, key)
    def __setitem__(self, key: Any, value: Any) -> None: TABLE["setitem"](self, key, value)

    def reshape(self, *shape: Any) -> TensorT: return TABLE["reshape"](self, spread(shape))
    def view(self, *shape: Any) -> TensorT:
        """Does `self.reshape(...)`."""
        if shape and isinstance(shape[0], str):
            raise DTypeError(message("view", f"the bits of {self.dtype} cannot be read as {shape[0]}",
                                     f't.astype("{shape[0]}") converts the numbers', shape=self.shape))
        return TABLE["reshape"](self, spread(shape))

    def permute(self, *axes: Any, **named: Any) -> TensorT:
        return TABLE["permute"](self, **named) if named else TABLE["permute"](self, spread(axes))
    @property
    def T(self) -> TensorT: return TABLE["permute"](self, tuple(range(len(self.shape)))[::-1])
    @property
    def mT(self) -> TensorT: return TABLE["transpose"](self, -2, -1)
    def t(self) -> TensorT:
        """Swaps the two axes of a matrix.  Raises ShapeError for more than two."""
        if len(self.shape) > 2:
            raise ShapeError(message("t", f"x has {len(self.shape)} axes, at most 2 are swapped", "x.transpose(0, 1), "
                                     "or x.mT for the last two"))
        return TABLE["transpose"](self, 0, 1) if len(self.shape) == 2 else self  # type: ignore[return-value]
    def expand(self, *shape: Any) -> TensorT: return TABLE["expand"](self, spread(shape))
    def expand_as(self, other: TensorT) -> TensorT: return TABLE["expand"](self, _shape_of("expand_as", other))
    def view_as(self, other: TensorT) -> TensorT: return TABLE["reshape"](self, _shape_of("view_as", other))
    reshape_as = view_as
    def where(self, cond: TensorT, other: TensorT | Number) -> TensorT:
        """Returns the elements where cond holds, else the other's.  See alpha.where."""
        return TABLE["where"](cond, self, other)
    def repeat(self, *counts: Any) -> TensorT: return TABLE["tile"](self, spread(counts))
    tile = repeat
    def flip(self, *axis: Any, **named: Any) -> TensorT:
        given = (axis[0] if len(axis) == 1 else axis,) if axis else ()
        return TABLE["flip"](self, *given, **named)

    if TYPE_CHECKING:
        # names: methods, written by python -m tools.names
        def abs(self) -> TensorT: ...
        def absolute(self) -> TensorT: ...
        def acos(self) -> TensorT: ...
        def all(self, axis: Axes = None, keepdims: bool = False, **torch: Any) -> TensorT: ...
        def amax(self, axis: Axes = None, keepdims: bool = False, **torch: Any) -> TensorT: ...
        def amin(self, axis: Axes = None, keepdims: bool = False, **torch: Any) -> TensorT: ...
        def any(self, axis: Axes = None, keepdims: bool = False, **torch: Any) -> TensorT: ...
        def argmax(self, axis: int | None = None, keepdims: bool = False, **torch: Any) -> TensorT: ...
        def argmin(self, axis: int | None = None, keepdims: bool = False, **torch: Any) -> TensorT: ...
        def argsort(self, axis: int = -1, descending: bool = False, stable: bool = True, **torch: Any) -> TensorT: ...
        def asin(self) -> TensorT: ...
        def atan(self) -> TensorT: ...
        def bernoulli(self) -> TensorT: ...
        def bincount(self, weights: TensorT | None = None, minlength: int = 0, **torch: Any) -> TensorT: ...
        def ceil(self) -> TensorT: ...
        def clamp(self, low: TensorT | Number | None = None, high: TensorT | Number | None = None,
                  **torch: Any) -> TensorT: ...
        def clip(self, low: TensorT | Number | None = None, high: TensorT | Number | None = None,
                 **torch: Any) -> TensorT: ...
        def cos(self) -> TensorT: ...
        def cosh(self) -> TensorT: ...
        def count_nonzero(self, axis: Axes = None, **torch: Any) -> TensorT: ...
        def diag(self, diagonal: int = 0, **torch: Any) -> TensorT: ...
        def diagonal(self, offset: int = 0, dim1: int = 0, dim2: int = 1, **torch: Any) -> TensorT: ...
        def diff(self, n: int = 1, axis: int = -1, prepend: TensorT | None = None, append: TensorT | None = None,
                 **torch: Any) -> TensorT: ...
        def erf(self) -> TensorT: ...
        def erfc(self) -> TensorT: ...
        def exp(self) -> TensorT: ...
        def exp2(self) -> TensorT: ...
        def expm1(self) -> TensorT: ...
        def flatten(self, start: int = 0, end: int = -1, **torch: Any) -> TensorT: ...
        def floor(self) -> TensorT: ...
        def isfinite(self) -> TensorT: ...
        def isinf(self) -> TensorT: ...
        def isnan(self) -> TensorT: ...
        def leaky_relu(self, slope: float = 0.01, **torch: Any) -> TensorT: ...
        def log(self) -> TensorT: ...
        def log1p(self) -> TensorT: ...
        def log2(self) -> TensorT: ...
        def log10(self) -> TensorT: ...
        def log_softmax(self, axis: int = -1, **torch: Any) -> TensorT: ...
        def logical_not(self, *, where: str = "logical_not", **torch: Any) -> TensorT: ...
        def logit(self, eps: Number | None = None, **torch: Any) -> TensorT: ...
        def logsumexp(self, axis: Axes = None, keepdims: bool = False, **torch: Any) -> TensorT: ...
        def max(self, axis: Axes = None, keepdims: bool = False, **torch: Any) -> TensorT: ...
        def mean(self, axis: Axes = None, keepdims: bool = False, **torch: Any) -> TensorT: ...
        def median(self, axis: int | None = None, keepdims: bool = False, **torch: Any) -> Any: ...
        def min(self, axis: Axes = None, keepdims: bool = False, **torch: Any) -> TensorT: ...
        def nan_to_num(self, nan: Number = 0.0, posinf: Number | None = None, neginf: Number | None = None,
                       **torch: Any) -> TensorT: ...
        def neg(self) -> TensorT: ...
        def negative(self) -> TensorT: ...
        def nonzero(self, as_tuple: bool = False, **torch: Any) -> Any: ...
        def norm(self, p: float | str = 2, axis: Axes = None, keepdims: bool = False, **torch: Any) -> TensorT: ...
        def prod(self, axis: Axes = None, keepdims: bool = False, **torch: Any) -> TensorT: ...
        def reciprocal(self) -> TensorT: ...
        def relu(self) -> TensorT: ...
        def round(self, decimals: int = 0, **torch: Any) -> TensorT: ...
        def rsqrt(self) -> TensorT: ...
        def sigmoid(self) -> TensorT: ...
        def sign(self) -> TensorT: ...
        def sin(self) -> TensorT: ...
        def sinh(self) -> TensorT: ...
        def softmax(self, axis: int = -1, **torch: Any) -> TensorT: ...
        def sort(self, axis: int = -1, descending: bool = False, stable: bool = True, **torch: Any) -> Any: ...
        def sqrt(self) -> TensorT: ...
        def square(self) -> TensorT: ...
        def squeeze(self, axis: Axes = None, **torch: Any) -> TensorT: ...
        def std(self, axis: Axes = None, *, keepdims: bool = False, correction: int = 1, **torch: Any) -> TensorT: ...
        def sum(self, axis: Axes = None, keepdims: bool = False, dtype: Any = None, **torch: Any) -> TensorT: ...
        def swapaxes(self, a: int = -2, b: int = -1, **torch: Any) -> TensorT: ...
        def tan(self) -> TensorT: ...
        def tanh(self) -> TensorT: ...
        def trace(self) -> TensorT: ...
        def transpose(self, a: int = -2, b: int = -1, **torch: Any) -> TensorT: ...
        def tril(self, diagonal: int = 0, **torch: Any) -> TensorT: ...
        def triu(self, diagonal: int = 0, **torch: Any) -> TensorT: ...
        def trunc(self) -> TensorT: ...
        def unbind(self, axis: int = 0, **torch: Any) -> tuple[TensorT, ...]: ...
        def unique(self, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False,
                   axis: int | None = None, **torch: Any) -> Any: ...
        def var(self, axis: Axes = None, *, keepdims: bool = False, correction: int = 0, **torch: Any) -> TensorT: ...
        _method: Callable[..., Any] = print
        add = addcdiv = addcmul = addmm = allclose = atan2 = baddbmm = bmm = broadcast_to = chunk = \
            cumprod = cumsum = div = divide = dot = eq = equal = floor_divide = fmod = gather = ge = gt = \
            hypot = index_add = index_select = isclose = le = lerp = logical_and = logical_or = logical_xor = \
            lt = masked_fill = masked_select = matmul = maximum = minimum = mm = moveaxis = movedim = mul = \
            multinomial = multiply = mv = narrow = ne = outer = pow = quantile = remainder = \
            repeat_interleave = roll = scatter = scatter_add = scatter_reduce = select = split = sub = \
            subtract = take_along_axis = take_along_dim = tensor_split = topk = true_divide = unflatten = \
            unsqueeze = _method
        # end of names


for _name, _called in CALLS.items():
    setattr(Methods, _name, _calling(_called))
