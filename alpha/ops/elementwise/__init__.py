"""Arithmetic, comparisons and casts, element by element, with NumPy's broadcasting.

Python numbers may stand for tensors and take the tensor's dtype: float32 * 2.5 is float32. The names are NumPy's, so
this module shadows some builtins (abs, pow): it calls none of them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import log as log_of
from math import pi
from math import sqrt as sqrt_of
from typing import Any

from alpha.core.device import FLOAT_DTYPES, get_backend
from alpha.core.errors import ConfigError, DTypeError, ShapeError, message
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.dtypes import DType, check_value
from alpha.core.inputs.kinds import Limit
from alpha.core.op import Op, Spec, op
from alpha.core.table import public
from alpha.core.tensor import Number, Tensor
from alpha.ops.checks import check_alike
from alpha.ops.create import full, zeros_like
from alpha.ops.reduce import Shape, unbroadcast

Vjp = Callable[[Tensor, Any], Any]

INT_RANGES = {"uint8": (0, 255), "int32": (-2 ** 31, 2 ** 31 - 1), "int64": (-2 ** 63, 2 ** 63 - 1)}


def broadcast_shape(where: str, **shapes: Shape) -> Shape:
    """Returns the shape that the shapes broadcast to.  Raises ShapeError, which names them."""
    ndim = max([len(shape) for shape in shapes.values()])
    columns = zip(*[(1,) * (ndim - len(shape)) + shape for shape in shapes.values()])
    sizes = []
    for column in columns:
        wanted = set(column) - {1}
        if len(wanted) > 1:
            raise ShapeError(message(where, f"the shapes {' and '.join([str(s) for s in shapes.values()])} do not "
                                     "broadcast", "make the sizes equal, or 1, counted from the last axis", **shapes))
        sizes.append(wanted.pop() if wanted else 1)
    return tuple(sizes)


@lru_cache(maxsize=1024)
def _pair_shape(where: str, a: Shape, b: Shape) -> Shape:
    return broadcast_shape(where, a=a, b=b)


def _shape_of(value: Tensor | Number) -> Shape:
    return value.shape if isinstance(value, Tensor) else ()


def _common_shape(where: str, **values: Tensor | Number) -> Shape:
    """Returns the common shape of tensors and numbers; refuses a number that the tensors' integers cannot hold."""
    dtype = next((v.dtype for v in values.values() if isinstance(v, Tensor) and v.dtype in INT_RANGES), "")
    if dtype:
        low, high = INT_RANGES[dtype]
        for value in values.values():
            if not isinstance(value, Tensor) and not low <= value <= high:
                raise DTypeError(message(where, f"the number {value} does not fit a tensor of dtype {dtype}",
                                         'convert the tensor: x.astype("int64")'))
    return broadcast_shape(where, **{name: _shape_of(value) for name, value in values.items()})


# ---- one tensor ------------------------------------------------------------------------------------------------------


def unary(name: str, doc: str, vjp: Vjp, saves: str = "", dtypes: str = "float", equation: str | None = None) -> Op:
    """Makes the op y = f(x), elementwise, from its equation (default: function of its name; "": none) and its vjp."""
    return op(type(name, (), dict(__doc__=doc, __module__=vjp.__module__, args="x", saves=saves, dtypes=dtypes,
                                  equation=f"{name}(x)" if equation is None else equation or None,
                                  shape=lambda x: x.shape, vjp_x=vjp)))


neg = public(method="neg negative", onnx="Neg")(
    unary("neg", "y = -x.", lambda g, s: -g, dtypes="number", equation="-x"))
exp = public(top=True, method=True, onnx="Exp")(unary("exp", "y = e^x.", lambda g, s: g * s.y, saves="y"))
log = public(top=True, method=True, onnx="Log")(
    unary("log", "y = ln(x), the natural logarithm; -inf at 0, NaN below.", lambda g, s: g / s.x, saves="x"))
sqrt = public(top=True, method=True, onnx="Sqrt")(
    unary("sqrt", "y = square root of x; NaN below 0.  The gradient g / (2 y) is infinite at 0.",
          lambda g, s: g * 0.5 / s.y, saves="y"))
abs = public(top=True, method="abs absolute", onnx="Abs")(
    unary("abs", "y = |x|; the gradient at 0 and at NaN is 0.", lambda g, s: g * sign(s.x), saves="x",
          dtypes="number"))
sign = public(top=True, method=True, onnx="Sign")(
    unary("sign", "y = -1, 0 or 1, the sign of x, 0 at NaN; the gradient is 0.", lambda g, s: zeros_like(g),
          dtypes="number", equation="1 if x > 0 else -1 if x < 0 else 0"))
erf = public(top=True, method=True, onnx="Erf")(
    unary("erf", "y = 2 / sqrt(pi) * integral of exp(-t^2) dt from 0 to x.",
          lambda g, s: g * (exp(-(s.x * s.x)) * (2 / sqrt_of(pi))), saves="x"))


@op
class clip:
    """y = x limited to [low, high]; a limit may be None.  The gradient is g inside, limits included, and 0 outside.

    NaN stays NaN, and its gradient is 0.

    Raises:
        DTypeError: a limit is a fraction and x has integers.
        ConfigError: low is above high, or both are None.
    """

    args, saves, dtypes = "x", "x", "number"
    equation = "low if x < low else high if x > high else x"

    def shape(x, *, low: Limit | None = None, high: Limit | None = None):
        if low is not None and high is not None and low > high:
            raise ConfigError(message("clip", f"low {low} is above high {high}", "swap them"))
        if low is None and high is None:
            raise ConfigError(message("clip", "neither low nor high is given", "pass at least one limit"))
        if x.dtype not in FLOAT_DTYPES and (isinstance(low, float) or isinstance(high, float)):
            raise DTypeError(message("clip", f"limits {low} and {high} are no integers, x has dtype {x.dtype}",
                                     'pass integers, or convert the tensor: x.astype("float32")'))
        for limit in (low, high) if x.dtype not in FLOAT_DTYPES else ():
            if limit is not None:
                check_value("clip", limit, x.dtype)
        return x.shape

    def vjp_x(g, s, *, low, high):
        return clip_grad(g, s.x, low, high)


@op
class clip_grad:
    """Gradient of clip: g where low <= x <= high, else 0."""

    args, saves = "g x", "x"
    equation = "g if low <= x <= high else 0"

    def shape(g, x, *, low: Limit | None, high: Limit | None):
        check_alike("clip_grad", g=g, x=x)
        return x.shape

    def vjp_g(g, s, *, low, high):
        return clip_grad(g, s.x, low, high)

    def vjp_x(g, s, *, low, high):
        return None


@public()
@op
class cast:
    """y = x in another dtype; floats are cut to integers towards 0.  Differentiable between floating dtypes.

    Raises DTypeError: the dtype is unknown, or the device does not have it.
    """

    args, dtypes, cheap = "x", "any", True

    def shape(x, *, dtype: DType):
        backend = get_backend(x.device)
        if dtype not in backend.dtypes:
            raise DTypeError(message("cast", f"the {backend.name} backend has no {dtype}, it has "
                                     f"{', '.join(sorted(backend.dtypes))}", "choose one of those, or another device"))
        return Spec(x.shape, dtype)

    def vjp_x(g, s, *, dtype):
        return cast(g, s.x_dtype)


@op
class transfer:
    """y = x, in the memory of another device.  `to_device` is its public form."""

    args, dtypes, moves = "x", "any", True

    def shape(x, *, device: str, source: str):
        return x.shape

    def vjp_x(g, s, *, device, source):
        return transfer(g, source, device)


@public()
@checked
def to_device(x: Tensor, device: str) -> Tensor:
    """Returns a copy of x on a device; differentiable.  Raises DeviceError if the device is not there, DTypeError if it
    lacks the dtype.
    """
    backend = get_backend(device)
    if x.dtype not in backend.dtypes:
        raise DTypeError(message("to", f"the {backend.name} backend has no {x.dtype}, it has "
                                 f"{', '.join(sorted(backend.dtypes))}",
                                 f'convert it first: x.astype("float32").to({device!r})', x=x.shape))
    return transfer(x, backend.name, x.device)


# ---- two tensors -----------------------------------------------------------------------------------------------------


def binary(name: str, doc: str, vjp_a: Vjp | None, vjp_b: Vjp | None, saves: str = "", dtypes: str = "number",
           result: str | None = None, equation: str | None = None, module: str = __name__) -> Op:
    """Makes the op y = f(a, b) with broadcasting.  The gradients may have y's shape: they are summed back.

    `result` is the dtype of y where it is not that of the operands; `module` is where the op is found by its name.
    """
    def shape(a, b):
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            y_shape = a.shape if a.shape == b.shape else _pair_shape(name, a.shape, b.shape)
        elif isinstance(a, Tensor) and (isinstance(b, float) or (b.__class__ is int and a.dtype in FLOAT_DTYPES)):
            y_shape = a.shape
        else:
            y_shape = _common_shape(name, a=a, b=b)
        return Spec(y_shape, result) if result else y_shape

    body: dict[str, Any] = dict(__doc__=doc, __module__=module, args="a b", saves=saves, dtypes=dtypes, scalars=True,
                                follows=True, shape=shape, equation=equation)
    if vjp_a and vjp_b:
        body["vjp_a"] = lambda g, s: unbroadcast(vjp_a(g, s), s.a_shape)
        body["vjp_b"] = lambda g, s: unbroadcast(vjp_b(g, s), s.b_shape)
    return op(type(name, (), body))


def _pow_vjp_a(g: Tensor, s: Any) -> Tensor:
    if not isinstance(s.b, Tensor):
        return zeros_like(g) if s.b == 0 else g * (s.a ** (s.b - 1) * s.b)
    return where(s.b == 0.0, 0.0, g * (s.b * s.a ** (s.b - 1)))


def _pow_vjp_b(g: Tensor, s: Any) -> Tensor:
    if not isinstance(s.a, Tensor) and s.a > 0:
        return g * (s.y * log_of(s.a))
    a = s.a if isinstance(s.a, Tensor) else full((), s.a, g.dtype, g.device)
    slope = s.y * log(a)
    return g * where(a == 0.0, where(s.b >= 0.0, 0.0, slope), slope)


def _maximum_vjp(mine: str, other: str, loses: Callable[..., Tensor]) -> Vjp:
    """The gradient goes to the operand that was chosen; equals share it."""
    def vjp(g, s):
        x, y = getattr(s, mine), getattr(s, other)
        return where(loses(x, y), 0.0, where(eq(x, y), g * 0.5, g))
    return vjp


add = public(method=True, onnx="Add")(binary("add", "y = a + b.", lambda g, s: g, lambda g, s: g, equation="a + b"))


@op
class add_onto:
    """g + onto, in the memory of onto, which nobody may read any more: how the CPU adds up gradients of one tensor."""

    args, dtypes = "g onto", "number"

    def shape(g, onto):
        check_alike("add_onto", g=g, onto=onto)
        return onto.shape

    def vjp(g, s, needs):
        return g, g


sub = public(method="sub subtract", onnx="Sub")(
    binary("sub", "y = a - b.", lambda g, s: g, lambda g, s: -g, equation="a - b"))
mul = public(method="mul multiply", onnx="Mul")(
    binary("mul", "y = a * b.", lambda g, s: mul(g, s.b), lambda g, s: mul(g, s.a), saves="a b",
           equation="a * b"))
div = public(method="div divide true_divide", onnx="Div")(
    binary("div", "y = a / b; floats only, as integers would leave a fraction.", lambda g, s: div(g, s.b),
           lambda g, s: -(g * s.y / s.b), saves="b y", dtypes="float", equation="a / b"))
pow = public(top=True, method=True, onnx="Pow")(
    binary("pow", "y = a^b; NaN where a < 0 and b is no integer.  As in PyTorch, the gradient of a is 0 where b = 0, "
           "and that of b is 0 where a = 0 <= b.", _pow_vjp_a, _pow_vjp_b, saves="a b y", dtypes="float"))

eq = public(method=True, onnx="Equal")(
    binary("eq", "y = (a == b), bool.", None, None, dtypes="any", result="bool", equation="a == b"))
ne = public(method=True)(
    binary("ne", "y = (a != b), bool.", None, None, dtypes="any", result="bool", equation="a != b"))
lt = public(method=True, onnx="Less")(binary("lt", "y = (a < b), bool.", None, None, result="bool", equation="a < b"))
le = public(method=True, onnx="LessOrEqual")(
    binary("le", "y = (a <= b), bool.", None, None, result="bool", equation="a <= b"))
gt = public(method=True, onnx="Greater")(
    binary("gt", "y = (a > b), bool.", None, None, result="bool", equation="a > b"))
ge = public(method=True, onnx="GreaterOrEqual")(
    binary("ge", "y = (a >= b), bool.", None, None, result="bool", equation="a >= b"))

maximum = public(top=True, method=True, onnx="Max")(
    binary("maximum", "y = the larger of a and b; NaN wins.  Equals share the gradient evenly.",
           _maximum_vjp("a", "b", lt), _maximum_vjp("b", "a", lt), saves="a b", equation="maximum(a, b)"))
minimum = public(top=True, method=True, onnx="Min")(
    binary("minimum", "y = the smaller of a and b; NaN wins.  Equals share the gradient evenly.",
           _maximum_vjp("a", "b", gt), _maximum_vjp("b", "a", gt), saves="a b", equation="minimum(a, b)"))


@public(top=True, onnx="Where")
@op
class where:
    """y = x where cond holds, else y (the argument); all broadcast.

    Args:
        cond: bool tensor.
        x, y: tensors of one dtype, or one tensor and a number.
    Raises:
        ShapeError: the shapes do not broadcast.
        DTypeError: cond is not a bool tensor, or neither x nor y is a tensor.
    """

    args, saves, outs, mixed, dtypes, scalars = "cond x y", "cond", "out", "cond", "any", True
    equation = "x if cond else y"

    def shape(cond, x, y):
        if not isinstance(cond, Tensor) or cond.dtype != "bool":
            kind = cond.dtype if isinstance(cond, Tensor) else type(cond).__name__
            raise DTypeError(message("where", f"cond is of type {kind}, a bool tensor is needed",
                                     "compare first: where(a > 0, x, y)"))
        if not isinstance(x, Tensor) and not isinstance(y, Tensor):
            raise DTypeError(message("where", f"x is {x}, y is {y}: neither is a tensor, so there is no dtype",
                                     "wrap one: alpha.tensor(x, dtype=...)"))
        for value, other in ((x, y), (y, x)):
            if isinstance(other, Tensor) and other.dtype == "bool" and not isinstance(value, Tensor):
                check_value("where", value, "bool")
        if cond.shape == _shape_of(x) and _shape_of(y) in ((), cond.shape):
            return cond.shape
        return _common_shape("where", cond=cond, x=x, y=y)

    def vjp_x(g, s):
        return unbroadcast(where(s.cond, g, 0.0), s.x_shape)

    def vjp_y(g, s):
        return unbroadcast(where(s.cond, 0.0, g), s.y_shape)


@public(top=True)
@checked
def clone(x: Tensor) -> Tensor:
    """y = x, in memory of its own; differentiable."""
    return cast(x, x.dtype)
