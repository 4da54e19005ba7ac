"""Matrix products: matmul over any number of batch axes, and linear, a layer's product with bias and relu."""

from __future__ import annotations

from math import prod

from alpha.core.errors import ShapeError, message
from alpha.core.inputs.dtypes import DTypeOrNone
from alpha.core.inputs.kinds import Activation
from alpha.core.op import Spec, grad_enabled, op
from alpha.core.table import public
from alpha.ops.activation import relu_grad
from alpha.ops.algorithms.names import LinearAlgorithm, ProductAlgorithm, linear_request, product_request
from alpha.ops.elementwise import broadcast_shape
from alpha.ops.reduce import Shape, bias_grad, check_sum_dtype, unbroadcast

MOST_SPARSE_ROWS = 4    # of x, beyond which most rows of w meet something


def _matrix(shape: Shape, transposed: bool) -> Shape:
    return (shape[-1], shape[-2]) if transposed else shape[-2:]


@public(top=True, method=True)
@op
class matmul:
    """y[..., i, j] = sum_k a[..., i, k] * b[..., k, j].

    Args:
        a: shape (..., M, K), or (K,), which is read as one row; number.
        b: shape (..., K, N), or (K,), which is read as one column; dtype of a, or one has 16 bits and one is float32.
        transpose_a, transpose_b: the last two axes of a (of b) are stored the other way round: (K, M), (N, K).
        dtype: "float32" leaves products of float16 or bfloat16, which are added up in float32, unrounded; None rounds
            to the dtype of the operands, that of 16 bits if there are two.
        algorithm: "strassen", which is then used or refused; "direct"; "auto" or None: what is fastest by estimate.
    Returns:
        y of shape (..., M, N), batch axes broadcast; without the axis of an operand of one axis.
    Raises:
        ShapeError: an operand has no axis, the K differ, or the batch axes do not broadcast.
        DTypeError: the dtypes do not fit together.
        ConfigError: the algorithm is unknown, or does not serve this product.
    """

    args, saves, dtypes, parameters = "a b", "a b", "number", "a b"
    flops = lambda size, a, b: 2.0 * size * a.shape[-1]  # noqa: E731
    presets = {"algorithm": product_request}

    def shape(a, b, *, transpose_a: bool = False, transpose_b: bool = False, dtype: DTypeOrNone = None,
              algorithm: ProductAlgorithm = None):
        if a.ndim == 0 or b.ndim == 0:
            raise ShapeError(message("matmul", "an operand has no axis, at least one is needed",
                                     "multiply by a number with *", a=a.shape, b=b.shape))
        if (transpose_a and a.ndim == 1) or (transpose_b and b.ndim == 1):
            raise ShapeError(message("matmul", "an operand of one axis cannot be transposed", "reshape it to two axes",
                                     a=a.shape, b=b.shape))
        rows, inner = _matrix((1, *a.shape) if a.ndim == 1 else a.shape, transpose_a)
        other, columns = _matrix((*b.shape, 1) if b.ndim == 1 else b.shape, transpose_b)
        if inner != other:
            raise ShapeError(message("matmul", f"a has {inner} columns, b has {other} rows",
                                     "make them equal; b.transpose() swaps the last two axes",
                                     a=f"{a.shape}, transposed" if transpose_a else a.shape,
                                     b=f"{b.shape}, transposed" if transpose_b else b.shape))
        batch = () if a.ndim <= 2 and b.ndim <= 2 else broadcast_shape("matmul", a=a.shape[:-2], b=b.shape[:-2])
        y_shape = batch + (() if a.ndim == 1 else (rows,)) + (() if b.ndim == 1 else (columns,))
        check_sum_dtype("matmul", dtype, a.dtype, b.dtype)
        return Spec(y_shape, dtype) if dtype else y_shape

    def vjp(g, s, needs, *, transpose_a, transpose_b, dtype, algorithm):
        a, b = s.a, s.b
        if a.ndim == 1:     # lengths and no -1, which nothing says where an axis is empty
            a = a.reshape(1, a.shape[0])
            g = g.reshape(*g.shape[:-1], 1, g.shape[-1]) if b.ndim > 1 else g.reshape(1)
        if b.ndim == 1:
            b, g = b.reshape(b.shape[0], 1), g.reshape(*g.shape, 1)
        da = db = None
        if needs[0]:
            operands = (b, g, transpose_b, True) if transpose_a else (g, b, False, not transpose_b)
            da = matmul(*operands, s.a_dtype, algorithm.inherited)
        if needs[1]:
            operands = (g, a, True, transpose_a) if transpose_b else (a, g, not transpose_a, False)
            db = matmul(*operands, s.b_dtype, algorithm.inherited)
        return (None if da is None else unbroadcast(da, a.shape).reshape(s.a_shape),
                None if db is None else unbroadcast(db, b.shape).reshape(s.b_shape))


@public(functional=True)
@op
class linear:
    """y[n, o] = activation(sum_i x[n, i] * w[o, i] + b[o]), in one pass over y.

    Args:
        x: shape (N, in) or (..., in); float.
        w: shape (out, in).
        b: shape (out,); or None. w and b have the dtype of x, or are float32 where that has 16 bits.
        activation: None or "relu".
        algorithm: as in matmul; or "sparse": rows of a transposed copy of w that meet zeros of x are not read, for at
            most 4 rows of x.  Each call makes the copy on a CPU; a GPU keeps it with w until it changes.
    Returns:
        y of shape (..., out).
    Raises:
        ShapeError: the sizes of x, w and b do not fit together, or the activation is unknown.
        ConfigError: as in matmul.
    """

    args, saves, parameters = "x w b?", "x w y", "w b"
    spares = {"y": "activation"}
    flops = lambda size, x, w, *b: 2.0 * size * w.shape[-1]  # noqa: E731
    presets = {"algorithm": linear_request}

    def shape(x, w, b, *, activation: Activation = None, algorithm: LinearAlgorithm = None):
        if w.ndim != 2 or x.ndim == 0:
            raise ShapeError(message("linear", f"x has {x.ndim} axes and w {w.ndim}, x needs at least 1 and w needs 2",
                                     "reshape them to (N, in) and (out, in)", x=x.shape, w=w.shape))
        if x.shape[-1] != w.shape[1]:
            raise ShapeError(message("linear", f"x has {x.shape[-1]} features, w expects {w.shape[1]}",
                                     f"make in_features of the layer {x.shape[-1]}, or flatten x: x.flatten(1)",
                                     x=x.shape, w=f"{w.shape} (out, in)"))
        if b is not None and b.shape != w.shape[:1]:
            raise ShapeError(message("linear", f"b has shape {b.shape}, w has {w.shape[0]} outputs",
                                     f"pass a bias of shape {w.shape[:1]}, or None"))
        return (*x.shape[:-1], w.shape[0])

    def vjp(g, s, needs, *, activation, algorithm):
        if activation == "relu":
            g = relu_grad(g, s.y)
        if g.device == "cpu" and not grad_enabled() and algorithm.name != "strassen" and (
                g.dtype == s.x_dtype == s.w_dtype == "float32" and s.b_dtype in (None, "float32")):
            return linear_grad(g, s.x, s.w, for_x=needs[0], for_w=needs[1], for_b=needs[2])
        rows = g if g.ndim == 2 else g.reshape(prod(g.shape[:-1]), g.shape[-1])
        x = s.x if s.x.ndim == 2 else s.x.reshape(rows.shape[0], s.x.shape[-1])
        return (matmul(rows, s.w, algorithm=algorithm.inherited).reshape(s.x_shape) if needs[0] else None,
                matmul(rows, x, True, dtype=s.w_dtype, algorithm=algorithm.inherited) if needs[1] else None,
                bias_grad(rows, dtype=s.b_dtype) if needs[2] else None)


@op
class linear_grad:
    """Gradients of linear without an activation in one op, which spares the CPU five of them.

        dx = g w,  dw = sum over rows of g^T x,  db = sum over rows of g

    Args:
        g: gradient of y, shape (..., out).
        x, w: as in linear; float32, as g.
        for_x, for_w, for_b: which are wanted; the others have no elements.
    """

    args, outs = "g x w", "dx dw db"
    flops = lambda size, g, x, w: 4.0 * size * w.shape[0]  # noqa: E731

    def shape(g, x, w, *, for_x: bool, for_w: bool, for_b: bool):
        if w.ndim != 2 or x.shape[-1:] != w.shape[1:] or g.shape != (*x.shape[:-1], w.shape[0]):
            raise ShapeError(message("linear_grad", "g is not the gradient of linear(x, w)", "pass the tensors of one "
                                     "call", g=g.shape, x=x.shape, w=w.shape))
        return [x.shape if for_x else (0,), w.shape if for_w else (0,), w.shape[:1] if for_b else (0,)]
