"""The compiled CPU kernels: built and loaded at first use, checked against NumPy, called through ctypes.

Every wrapper takes C-contiguous float32 arrays (unless it says otherwise) with outputs already allocated, checks
nothing and returns nothing unless it says so: ask `usable(...)` first. The rows of an array are all its axes but the
last. Where there is no compiler, or a kernel fails its check, `library()` says so once, in one line on stderr, and
`usable` is False for good, so that NumPy does the work.

Sums are made in an order that depends on shapes only, not on the number of threads. The kernels use OpenMP, whose
threads do not survive a fork: a process forked after the kernels were loaded computes with one thread.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np

from alpha.build import cores
from alpha.core.config import config
from alpha.core.errors import AlphaError
from alpha.core.openmp import SPIN_COUNT as SPIN_COUNT
from alpha.core.openmp import warn_if_late
from alpha.cpu.conv_tables import dgrad_table, forward_table
from alpha.cpu.library import KERNELS as KERNELS
from alpha.cpu.library import declare, load_library, steps_source
from alpha.ops.coconv_desc import CoConvDesc
from alpha.ops.conv_desc import Axis, ConvDesc, Pair

# Threads beyond one per core make nothing faster, and so many that the system refuses one end the process.
MOST_THREADS = 64

Array = np.ndarray
_FLOAT32 = np.dtype(np.float32)
_lib: Any = None
_tried = False
_lock = threading.Lock()
_recorder: Any = None   # while a function is recorded
_threads = -1
_forked = False     # from a process that had the kernels loaded


def library() -> ctypes.CDLL | None:
    """Returns the loaded kernels, building them on first use; None, after one notice, where that cannot be done."""
    if not config.cpu_kernels:
        return None
    if not _tried:
        with _lock:
            if not _tried:
                _start()
    if _lib is not None and _threads != config.num_threads:
        _set_threads()
    return _lib  # type: ignore[no-any-return]


def loaded() -> Any:
    """Returns what `library` or `usable` has loaded."""
    return _lib


def _start() -> None:
    """Loads and checks the kernels, once; leaves _lib at None where that fails."""
    global _lib, _tried
    from alpha.cpu.native_check import check  # imports this module

    try:
        _lib = _load()
        _set_threads()
        check()
    except (AlphaError, OSError) as error:
        _lib = None
        reason = str(error).partition("\n")[0]
        print(f"alpha computes with NumPy alone, several times slower: {reason}", file=sys.stderr)
    finally:
        _tried = True


def usable(*arrays: Array | None) -> bool:
    """Tells whether the kernels are there and all arrays given are C-contiguous float32."""
    for a in arrays:    # all() of a generator takes longer
        if a is not None and (a.dtype != _FLOAT32 or not a.flags.c_contiguous):
            return False
    return library() is not None


def _load() -> ctypes.CDLL:
    """Builds and loads the kernels, those of equations too, and declares the signatures."""
    from alpha.cpu.pointwise import own, write_source  # import this module
    from alpha.cpu.update import write_sources

    sources = [*sorted(KERNELS.rglob("*.cpp")), steps_source(), write_source(own()), *write_sources()]
    return declare(load_library("cpu", sources))


def _set_threads() -> None:
    global _threads
    _threads = config.num_threads
    most = cores()
    threads = 1 if _forked else min(_threads or most, max(most, MOST_THREADS))
    warn_if_late(threads)
    _lib.set_threads(threads)


def _after_fork() -> None:
    """Goes on with one thread: to wait for the others, which stayed in the parent, would never end."""
    global _forked
    if _lib is not None:
        _forked = True
        _lib.set_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


DATA = object.__basicsize__  # offset of PyArrayObject.data, the first field after the object header
_pointer_at = ctypes.c_void_p.from_address


def ptr(a: Array | None) -> Any:
    """Returns the address of an array's elements; reading the field is several times cheaper than a.ctypes.data."""
    if a is None:
        return None
    if _recorder is not None:
        _recorder.note(a)
    return _pointer_at(id(a) + DATA)


def table_ptr(a: Array) -> Any:
    """As ptr, of what follows from shapes and settings alone: it stays as it is in what is recorded."""
    if _recorder is not None:
        _recorder.keep(a)
    return _pointer_at(id(a) + DATA)


def recorder() -> Any:
    """Returns what notes the calls of this thread; None where they are made."""
    return None if _recorder is None or not _recorder.is_here() else _recorder


def holds(w: Array) -> bool:
    """Tells whether a recording says that these weights do not change."""
    return _recorder is not None and _recorder.is_constant(w)


def prepared(w: Array, key: tuple[Any, ...], make: Callable[[Array], Array]) -> Array | None:
    """Returns what `make` makes of weights, made once, where a recording says that they do not change; else None."""
    return None if _recorder is None else _recorder.prepared(w, key, make)  # type: ignore[no-any-return]


@contextmanager
def recorded_by(recorder: Any) -> Iterator[None]:
    """For a block: `loaded` and `library` return what notes calls for a recorder; None: what makes them, as ever.

    The recorder looks whether a call comes from its own thread (alpha.cpu.recording).
    """
    global _lib, _recorder
    library()
    before, real = (_lib, _recorder), _lib if _recorder is None else _recorder.library
    _recorder, _lib = recorder, real if recorder is None or real is None else recorder.door(real)
    try:
        yield
    finally:
        _lib, _recorder = before


def conv_fprop(desc: ConvDesc | CoConvDesc, x: Array, w: Array, y: Array, bias: Array | None = None,
               relu: bool = False, level: int | None = None, add: bool = False) -> None:
    """y = x * w (+ bias[oc]), then max(y, 0) if relu.  x (N, IH, IW, IC), w (OC, FH, FW, IC / groups).

    add: y is a summand of its own, before relu; for weights of which `prepared` makes panels (see `packs`).
    """
    panels = prepared(w, (desc, level), lambda w: _packed(desc, level, w)) if packs(desc, w, level) else None
    if panels is None:
        _lib.conv_fprop(table_ptr(forward_table(desc, level)), ptr(x), ptr(w), ptr(bias), ptr(y), relu)
    else:
        _lib.conv_run(table_ptr(forward_table(desc, level)), ptr(x), ptr(w), ptr(panels), ptr(bias), ptr(y), relu, add)


def packs(desc: ConvDesc | CoConvDesc, w: Array, level: int | None = None) -> bool:
    """Tells whether a recording has panels of these weights, which the direct kernels read."""
    return holds(w) and _lib.conv_panel_floats(table_ptr(forward_table(desc, level))) > 0


def _packed(desc: ConvDesc | CoConvDesc, level: int | None, w: Array) -> Array:
    table = forward_table(desc, level)
    panels = np.empty(_lib.conv_panel_floats(ptr(table)), np.float32)
    _lib.conv_pack(ptr(table), ptr(w), ptr(panels))
    return panels


def conv_dgrad(desc: ConvDesc | CoConvDesc, g: Array, w: Array, dx: Array, level: int | None = None) -> None:
    """dx = the gradient with respect to x of conv_fprop, from g (N, OH, OW, OC); a level but the first adds to it."""
    _lib.conv_dgrad(table_ptr(dgrad_table(desc, level)), ptr(g), ptr(w), ptr(dx))


def conv_dgrad_adds(desc: ConvDesc) -> bool:
    """Tells whether conv_dgrad_add does its work: not where that would take two passes."""
    return bool(_lib.conv_dgrad_adds(table_ptr(dgrad_table(desc))))


def conv_dgrad_add(desc: ConvDesc, g: Array, w: Array, dx: Array) -> None:
    """dx += what conv_dgrad makes, with the bits of two passes; where conv_dgrad_adds says so."""
    _lib.conv_dgrad_add(table_ptr(dgrad_table(desc)), ptr(g), ptr(w), ptr(dx))


def conv_wgrad(desc: ConvDesc | CoConvDesc, x: Array, g: Array, dw: Array, level: int | None = None) -> None:
    """dw = the gradient with respect to w of conv_fprop, from g (N, OH, OW, OC)."""
    _lib.conv_wgrad(table_ptr(forward_table(desc, level)), ptr(x), ptr(g), ptr(dw))


@lru_cache(maxsize=1024)
def linear_desc(n: int, inputs: int, outputs: int) -> ConvDesc:
    axis = Axis(i=1, o=1, f=1, s=1, p=0, d=1)
    return ConvDesc(n, inputs, outputs, axis, axis)


def linear_fwd(x: Array, w: Array, y: Array, bias: Array | None = None, relu: bool = False) -> None:
    """y = x @ w.T (+ bias), then max(y, 0) if relu.  x (..., I), w (O, I), y (..., O)."""
    outputs, inputs = w.shape
    conv_fprop(linear_desc(x.size // inputs, inputs, outputs), x, w, y, bias, relu)


def matrix_products(a: Array, b: Array, y: Array, *, transpose_a: bool, transpose_b: bool) -> None:
    """y[k] = a[k] @ b[k], of which one may be transposed, for a (K, ., .) or (1, ., .), b likewise, y (K, ., .)."""
    (m, n), inner = y.shape[1:], a.shape[1 if transpose_a else 2]
    _lib.matrix_products(ptr(a), ptr(b), ptr(y), m * inner * (len(a) > 1), inner * n * (len(b) > 1), len(y), m, n,
                         inner, 2 if transpose_a else not transpose_b)


def batch_norm_fwd(x: Array, gamma: Array | None, beta: Array | None, y: Array, mean: Array, istd: Array, *,
                   eps: float, momentum: float = 0.0, running_mean: Array | None = None,
                   running_var: Array | None = None, residual: Array | None = None, relu: bool = False) -> None:
    """Training: y = (x - mean) * istd * gamma + beta (+ residual), then max(y, 0) if relu.  x (..., C).

    Writes mean and istd = 1 / sqrt(var + eps), var biased, and moves the running statistics by `momentum` (the variance
    with N - 1).
    """
    c = x.shape[-1]
    _lib.bn_fwd(ptr(x), ptr(residual), ptr(gamma), ptr(beta), ptr(running_mean), ptr(running_var), ptr(y),
                ptr(mean), ptr(istd), x.size // c, c, eps, momentum, relu)


def batch_norm_apply(x: Array, gamma: Array | None, beta: Array | None, mean: Array, istd: Array, y: Array, *,
                     residual: Array | None = None, relu: bool = False) -> None:
    """y as in batch_norm_fwd, from statistics that are known."""
    c = x.shape[-1]
    _lib.bn_apply(ptr(x), ptr(residual), ptr(gamma), ptr(beta), ptr(mean), ptr(istd), ptr(y), x.size // c, c, relu)


def batch_norm_bwd(g: Array, x: Array, gamma: Array | None, beta: Array | None, mean: Array, istd: Array, dx: Array,
                   dgamma: Array | None, dbeta: Array | None, *, relu: bool = False) -> None:
    """Gradients of batch_norm_fwd without a residual; with one, pass g where y > 0, else 0, and relu=False."""
    c = x.shape[-1]
    _lib.bn_bwd(ptr(g), ptr(x), ptr(gamma), ptr(beta), ptr(mean), ptr(istd), ptr(dx), ptr(dgamma), ptr(dbeta),
                x.size // c, c, relu)


def sum_middle(x: Array, out: Array, outer: int, count: int, inner: int) -> None:
    """out[o, i] = sum over r of x[o, r, i], for x as (outer, count, inner); out is float32 or, unrounded, float64."""
    narrow, wide = (ptr(out), None) if out.dtype == _FLOAT32 else (None, ptr(out))
    _lib.sum_middle(ptr(x), narrow, wide, outer, count, inner)


def sum_rows(x: Array, out: Array, rows: int, count: int) -> None:
    """out[r] = sum of x[r, :], for x as (rows, count); out as in sum_middle."""
    narrow, wide = (ptr(out), None) if out.dtype == _FLOAT32 else (None, ptr(out))
    _lib.sum_rows(ptr(x), narrow, wide, rows, count)


def extreme(x: Array, out: Array, outer: int, count: int, inner: int, largest: bool) -> None:
    """out[o, i] = the largest or the smallest of x[o, :, i], for x as (outer, count, inner); NaN wins."""
    _lib.extreme(ptr(x), ptr(out), outer, count, inner, largest)


def softmax_fwd(x: Array, y: Array, log_of: bool) -> None:
    """y = softmax, or its logarithm, over the last axis."""
    _lib.softmax_fwd(ptr(x), ptr(y), x.size // x.shape[-1], x.shape[-1], log_of)


def softmax_bwd(g: Array, y: Array, dx: Array, log_of: bool) -> None:
    """dx = the gradient of softmax_fwd."""
    _lib.softmax_bwd(ptr(g), ptr(y), ptr(dx), y.size // y.shape[-1], y.shape[-1], log_of)


def layer_norm_fwd(x: Array, gamma: Array | None, beta: Array | None, y: Array, mean: Array, istd: Array, rest: Array,
                   eps: float) -> None:
    """y = (x - mean - rest) * istd * gamma + beta over rows: mean, istd and rest have an element for each."""
    _lib.layer_norm_fwd(ptr(x), ptr(gamma), ptr(beta), ptr(y), ptr(mean), ptr(istd), ptr(rest), mean.size,
                        x.size // mean.size, eps)


def layer_norm_bwd(g: Array, x: Array, gamma: Array | None, mean: Array, istd: Array, rest: Array | None, dx: Array,
                   dgamma: Array, dbeta: Array) -> None:
    """Gradients of layer_norm_fwd."""
    _lib.layer_norm_bwd(ptr(g), ptr(x), ptr(gamma), ptr(mean), ptr(istd), ptr(rest), ptr(dx), ptr(dgamma), ptr(dbeta),
                        mean.size, x.size // mean.size)


def group_norm_fwd(x: Array, gamma: Array | None, beta: Array | None, y: Array, mean: Array, istd: Array, rest: Array,
                   channels: int, eps: float) -> None:
    """As layer_norm_fwd over the pixels and the groups of channels of x (N, ..., C); mean and istd (N, ..., groups)."""
    n, groups = len(x), mean.size // len(x)
    _lib.group_norm_fwd(ptr(x), ptr(gamma), ptr(beta), ptr(y), ptr(mean), ptr(istd), ptr(rest), n,
                        x.size // (n * channels), channels, groups, eps)


def group_norm_bwd(g: Array, x: Array, gamma: Array | None, mean: Array, istd: Array, rest: Array | None, dx: Array,
                   dgamma: Array, dbeta: Array) -> None:
    """Gradients of group_norm_fwd."""
    n, groups, channels = len(x), mean.size // len(x), dgamma.size
    _lib.group_norm_bwd(ptr(g), ptr(x), ptr(gamma), ptr(mean), ptr(istd), ptr(rest), ptr(dx), ptr(dgamma), ptr(dbeta),
                        n, x.size // (n * channels), channels, groups)


@lru_cache(maxsize=1024)
def pool_table(x_shape: tuple[int, ...], y_shape: tuple[int, ...], *kernel_stride_padding: Pair) -> Array:
    n, *size, c = x_shape
    axes = (value for axis in zip(size, y_shape[1:3], *kernel_stride_padding) for value in axis)
    return np.array([n, c, *axes], np.int64)


def max_pool_fwd(x: Array, y: Array, index: Array, kernel_size: Pair, stride: Pair, padding: Pair) -> None:
    """y = maximum of each window, index (int32, shape of y) = ih * IW + iw of the first one.  A NaN is the maximum."""
    table = pool_table(x.shape, y.shape, kernel_size, stride, padding)
    _lib.max_pool_fwd(table_ptr(table), ptr(x), ptr(y), ptr(index))


def max_pool_relu(x: Array, y: Array, *window: Pair) -> None:
    """y = max(maximum of each window, 0), without index; window: kernel_size, stride, padding."""
    _lib.max_pool_relu(table_ptr(pool_table(x.shape, y.shape, *window)), ptr(x), ptr(y))


def max_pool_bwd(g: Array, index: Array, dx: Array, kernel_size: Pair, stride: Pair, padding: Pair) -> None:
    """dx = g summed at each index; `index` must come from max_pool_fwd with the same windows."""
    table = pool_table(dx.shape, g.shape, kernel_size, stride, padding)
    _lib.max_pool_bwd(table_ptr(table), ptr(g), ptr(index), ptr(dx))


def pool_scatter(g: Array, index: Array, dx: Array) -> int:
    """dx = g summed at each index, for any int32 index into the map.

    Returns -1, or the number of the first element whose index is outside [0, IH * IW); dx is then undefined.
    """
    n, ih, iw, c = dx.shape
    element: int = _lib.pool_scatter(ptr(g), ptr(index), ptr(dx), n, g.shape[1] * g.shape[2], ih * iw, c)
    return element


def avg_pool_fwd(x: Array, y: Array, kernel_size: Pair, stride: Pair, padding: Pair, count_include_pad: bool) -> None:
    """y = mean of each window, over its real pixels or (count_include_pad) over kernel height * width."""
    table = pool_table(x.shape, y.shape, kernel_size, stride, padding)
    _lib.avg_pool_fwd(table_ptr(table), ptr(x), ptr(y), count_include_pad)


def avg_pool_bwd(g: Array, dx: Array, kernel_size: Pair, stride: Pair, padding: Pair, count_include_pad: bool) -> None:
    """dx = the gradient of avg_pool_fwd."""
    table = pool_table(dx.shape, g.shape, kernel_size, stride, padding)
    _lib.avg_pool_bwd(table_ptr(table), ptr(g), ptr(dx), count_include_pad)


def cross_entropy_fwd(x: Array, labels: Array, loss: Array, stats: Array, smoothing: float = 0.0,
                      ignored: int = -100) -> int:
    """loss[r] of logits x (R, C) with int64 labels (R,), and stats (3, R): see alpha.ops.loss.label_cross_entropy.

    Returns -1, or the first row whose label is outside [0, C) and not the ignored one; loss and stats are then unset.
    """
    rows, classes = x.shape
    return int(_lib.cross_entropy_fwd(ptr(x), ptr(labels), ptr(loss), ptr(stats), rows, classes, smoothing, ignored))


def cross_entropy_bwd(g: Array, x: Array, labels: Array, stats: Array, dx: Array, smoothing: float = 0.0,
                      scale: float = 1.0, ignored: int = -100) -> int:
    """dx = scale * g * (softmax(x) - target).  g has one element, or one per row.

    Returns -1, or the first row whose label is outside [0, C) and not the ignored one; dx is then unset.
    """
    rows, classes = x.shape
    row: int = _lib.cross_entropy_bwd(ptr(g), int(g.size > 1), ptr(x), ptr(labels), ptr(stats), ptr(dx), rows,
                                      classes, smoothing, scale, ignored)
    return row


def random_bits(seed: int, stream: int, offset: int, out: Array) -> None:
    """out (uint32) = numbers offset, offset + 1, ... of a stream; see alpha.random.random_bits."""
    _lib.random_bits(seed, stream, offset, ptr(out), out.size)


def dropout(x: Array, y: Array, p: float, seed: int, stream: int, offset: int) -> None:
    """y = x / (1 - p) where uniform number offset + k of the stream >= p, else 0; applied to g it is the gradient."""
    _lib.dropout(ptr(x), ptr(y), x.size, p, 1.0 / (1.0 - p), seed, stream, offset)
