"""Products of up to four rows by linear_rows.cu: float32 is multiplied as it is, weights of 16 bits as theirs."""

from __future__ import annotations

from functools import lru_cache

from alpha.core.errors import ConfigError, message
from alpha.cuda import lazy
from alpha.cuda.conv.planner import ABSENT
from alpha.cuda.conv.split import workspace
from alpha.cuda.ops.pointwise.epilogue import Epilogue
from alpha.cuda.ops.shape import permute_cuda
from alpha.cuda.runtime.context import context
from alpha.cuda.runtime.kernel import C_TYPES, Kernel
from alpha.cuda.runtime.memory import Array
from alpha.cuda.runtime.walk import LANES
from alpha.ops.conv_desc import ceil_div
from alpha.ops.matmul import MOST_SPARSE_ROWS as MOST_ROWS
from alpha.plan import Request

WARPS, STEP = 8, 256                # STEP: of the sum that a block lists at a time
FULL = 16                           # warps of a multiprocessor that keep its memory busy
BLOCKS = 4                          # of a multiprocessor, in slices of sums
_ROWS = "ptr x, ptr w, ptr b, ptr scale, ptr y, i32 rows, i32 n, i32 k, i32 relu"
DENSE, WITHOUT_ZEROS = ({(dtype, rows): Kernel("linear_rows.cu", entry, f"{_ROWS}, {more}",
                                               defines={"ELEMENT": C_TYPES[dtype], "X_ROWS": rows})
                         for dtype in C_TYPES for rows in (1, MOST_ROWS)}
                        for entry, more in (("linear_rows", "i32 warps"),
                                            ("linear_without_zeros", "ptr slots, ptr arrived, i32 each")))


def check_algorithm(op: str, request: Request) -> None:
    """Refuses a strict request for Strassen's algorithm; a preference is passed over.  Raises ConfigError."""
    if request.strict and request.name == "strassen":
        raise ConfigError(message(op, f"{request.name} {ABSENT}",
                                  'write algorithm="auto", or move the tensors: x.to("cpu")'))


def serves(m: int, k: int, x: Array, w: Array, y: Array) -> bool:
    """Tells whether a kernel has these products of m rows of x with the rows of w, of k elements."""
    return (0 < m <= MOST_ROWS and k > 0 and x.dtype == y.dtype and w.dtype in (x.dtype, "float32")
            and k % LANES[x.dtype] == 0)


def multiply(m: int, n: int, k: int, x: Array, w: Array, y: Array, epilogue: Epilogue) -> None:
    """Writes y (m, n) of x (m, k) and w (n, k)."""
    bias, relu = epilogue
    weights, scale = _weights(x, w)
    warps = next(warps for warps in (1, 2, 4, WARPS) if warps == WARPS or n * warps >= FULL * context.sm_count
                 or 2 * warps * 32 * LANES[x.dtype] > k)
    DENSE[x.dtype, 1 if m == 1 else MOST_ROWS](ceil_div(n * warps, WARPS), x, weights, bias, scale, y, m, n, k, relu,
                                               warps)


def multiply_without_zeros(m: int, n: int, k: int, x: Array, w: Array, y: Array, epilogue: Epilogue) -> None:
    """As multiply; the transpose of w is kept with it until it changes."""
    bias, relu = epilogue
    weights, scale = _weights(x, w)
    turned = lazy.kept_with(w, f"{x.dtype} transposed", lambda: permute_cuda(weights.reshaped((n, k)), axes=(1, 0)))
    rows, tiles = 1 if m == 1 else MOST_ROWS, ceil_div(n, 32 * LANES[x.dtype])
    slices, each = _slices(tiles, k, context.sm_count)
    slots, arrived = workspace(tiles * slices if slices > 1 else 0, rows * 32 * LANES[x.dtype] * WARPS)
    WITHOUT_ZEROS[x.dtype, rows]((tiles, slices), x, turned, bias, scale, y, m, n, k, relu, slots, arrived, each)


def skips_zeros(request: Request, m: int, n: int, k: int, x: Array, w: Array, y: Array) -> bool:
    """Tells whether zeros are to be skipped.  Raises ConfigError where they must be and no kernel does."""
    fits = serves(m, k, x, w, y) and n % LANES[x.dtype] == 0
    if request.name == "sparse" and request.strict and not fits:
        raise ConfigError(message("linear", f"sparse does not serve {m} rows of {k} features and {n} outputs in "
                                  f"{x.dtype} on a GPU, it takes up to {MOST_ROWS} rows, and multiples of "
                                  f"{LANES[x.dtype]}",
                                  'write algorithm="auto", or pass fewer rows at a time', x=x.shape, w=w.shape))
    return request.name == "sparse" and fits


def _weights(x: Array, w: Array) -> tuple[Array, Array | None]:
    """Returns w in the dtype of x, and what it is to be multiplied by."""
    if x.dtype == "float32":
        return w, None
    found = lazy.operand(w, x.dtype)
    return found.keep, found.scale


@lru_cache(maxsize=1024)
def _slices(tiles: int, k: int, sm_count: int) -> tuple[int, int]:
    """Returns into how many slices sums are cut, and how long these are."""
    each = STEP * ceil_div(ceil_div(k, STEP), max(1, BLOCKS * sm_count // tiles))
    return ceil_div(k, each), each
