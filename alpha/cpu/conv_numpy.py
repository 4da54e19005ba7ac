"""The three convolution passes in NumPy: ConvV2, KS-deconv and Sk-dilated as loops over matrix products.

What    y[n, oh, ow, oc] = sum over fh, fw, ic of x[n, ih, iw, ic] * w[oc, fh, fw, ic],  ih = oh*sh - ph + fh*dh, and
        its two gradients. All three are sums over the same triples (oh, fh, ih) and (ow, fw, iw) of `Axis`.
Source  arXiv 2306.15951, Algorithms 1B, 2B and 3B; extended by dilation and groups.
Zeros   ConvDesc names exact ranges, so a padded or inserted zero is neither stored nor multiplied.
Forms   by tap    (small maps)  one product per filter tap, between trimmed strided views of x and y
        by pixel  (large maps)  one product per class of pixels that share their taps, from columns that are gathered
                                block by block; the taps of a class are the trimmed or split kernel of the paper
        depthwise (one input channel per group)  a multiply-add per tap, as there is nothing to sum over
        A product per tap moves the result once per tap, which is cheap only while it fits into the cache.

Every multiplication goes through `_matmul` or `_multiply`, so that a test can count them.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np
from numpy.lib.stride_tricks import as_strided

from alpha.cpu.half import quiet
from alpha.cpu.memory import empty
from alpha.cpu.reduce import sums
from alpha.ops.conv_desc import ConvDesc, TapClass

Array = np.ndarray

COLUMN_BYTES = 2 << 20     # columns of one block: they stay in the cache until the product has read them
BY_TAP_PIXELS = 8 * 8      # outputs of one image up to which a product per tap is the faster form


@quiet
def fprop(desc: ConvDesc, x: Array, w: Array, y: Array) -> None:
    """Writes y.  x (N, IH, IW, IC), w (OC, FH, FW, IC / groups), y (N, OH, OW, OC), one dtype."""
    if _is_depthwise(desc):
        y[...] = 0
        for fh, fw, out, inp in _taps(desc, x.itemsize):
            for k in _multiples(desc):
                y[out][..., k] += _product(x[inp], w[k, fh, fw, 0])
        return
    for xs, ws, ys in _channel_groups(desc):
        filters = w[ws].transpose(1, 2, 3, 0)
        if _few_pixels(desc):
            y[ys] = 0
            for fh, fw, out, inp in _taps(desc, x.itemsize):
                _add_product(x[xs][inp], filters[fh, fw], y[ys][out])
        else:
            _by_pixel(x[xs], filters, desc.h.fprop_classes, desc.w.fprop_classes, y[ys])


@quiet
def dgrad(desc: ConvDesc, g: Array, w: Array, dx: Array) -> None:
    """Writes dx (N, IH, IW, IC).  g (N, OH, OW, OC), w (OC, FH, FW, IC / groups), one dtype."""
    if _is_depthwise(desc):
        dx[...] = 0
        for fh, fw, out, inp in _taps(desc, g.itemsize):
            for k in _multiples(desc):
                dx[inp] += _product(g[out][..., k], w[k, fh, fw, 0])
        return
    for xs, ws, ys in _channel_groups(desc):
        filters = w[ws].transpose(1, 2, 0, 3)
        if _few_pixels(desc):
            dx[xs] = 0
            for fh, fw, out, inp in _taps(desc, g.itemsize):
                _add_product(g[ys][out], filters[fh, fw], dx[xs][inp])
        else:
            _by_pixel(g[ys], filters, desc.h.dgrad_classes, desc.w.dgrad_classes, dx[xs])


@quiet
def wgrad(desc: ConvDesc, x: Array, g: Array, dw: Array) -> None:
    """Writes dw (OC, FH, FW, IC / groups).  x (N, IH, IW, IC), g (N, OH, OW, OC), one dtype."""
    dw[...] = 0
    if _is_depthwise(desc):
        for fh, fw, out, inp in _taps(desc, x.itemsize):
            for k in _multiples(desc):
                dw[k, fh, fw, 0] += sums(_product(x[inp], g[out][..., k]), (0, 1, 2))
        return
    for xs, ws, ys in _channel_groups(desc):
        if _few_pixels(desc):
            for fh, fw, out, inp in _taps(desc, x.itemsize):
                rows = _dense(g[ys][out])
                columns = _dense(x[xs][inp])
                dw[ws][:, fh, fw] += _matmul(rows.T, columns, empty((rows.shape[1], columns.shape[1]), dw.dtype))
        else:
            _wgrad_by_pixel(desc, x[xs], g[ys], dw[ws])


def _matmul(a: Array, b: Array, out: Array) -> Array:
    return np.matmul(a, b, out=out)


def _multiply(a: Array, b: Array, out: Array) -> Array:
    return np.multiply(a, b, out=out)


def _is_depthwise(desc: ConvDesc) -> bool:
    return desc.groups == desc.ic > 1


def _multiples(desc: ConvDesc) -> list[slice]:
    """Returns the outputs of a depthwise convolution in slices that hold one output per input channel."""
    multiple = desc.oc // desc.ic
    return [slice(k, None, multiple) for k in range(multiple)]


def _few_pixels(desc: ConvDesc) -> bool:
    return desc.h.o * desc.w.o <= BY_TAP_PIXELS


def _taps(desc: ConvDesc, itemsize: int) -> Iterator[tuple[int, int, tuple, tuple]]:
    """Yields (fh, fw, index into y, index into x) of the rectangles that meet at each tap, in blocks of images.

    This is the leap of Sk-dilated (x is read in steps of the stride) with both ends trimmed; taps that meet nothing are
    left out. In a block a rectangle has at most COLUMN_BYTES, or is of one image.
    """
    channels = desc.ic if _is_depthwise(desc) else max(desc.ic, desc.oc) // desc.groups
    step = max(1, COLUMN_BYTES // (desc.h.o * desc.w.o * channels * itemsize))
    for n in range(0, desc.n, step):
        images = slice(n, n + step)
        for fh, oh, ih in desc.h.runs:
            for fw, ow, iw in desc.w.runs:
                yield fh, fw, (images, oh, ow), (images, ih, iw)


def _channel_groups(desc: ConvDesc) -> Iterator[tuple]:
    """Yields for each group the indices of its channels in x, of its filters in w, and of its channels in y."""
    icg, ocg = desc.ic // desc.groups, desc.oc // desc.groups
    for k in range(desc.groups):
        filters = slice(k * ocg, (k + 1) * ocg)
        yield (..., slice(k * icg, (k + 1) * icg)), filters, (..., filters)


def _dense(view: Array, columns: int = 1, work: Array | None = None) -> Array:
    """Returns the view as a matrix whose columns are its last `columns` axes; copies (into `work`) if it must."""
    shape = -1, prod(view.shape[view.ndim - columns:])
    if not view.flags.c_contiguous:
        buffer = (empty(view.shape, view.dtype) if work is None else work[:view.size].reshape(view.shape))
        np.copyto(buffer, view)
        view = buffer
    return view.reshape(shape)


def _product(a: Array, b: Array) -> Array:
    return _multiply(a, b, empty(a.shape, a.dtype))


def _add_product(source: Array, filters: Array, target: Array) -> None:
    """target[n, h, w, :] += source[n, h, w, :] @ filters."""
    rows = _dense(source)
    target += _matmul(rows, filters, empty((rows.shape[0], target.shape[3]), target.dtype)).reshape(target.shape)


def _by_pixel(source: Array, filters: Array, h_classes: tuple[TapClass, ...], w_classes: tuple[TapClass, ...],
              target: Array) -> None:
    """Writes each pixel of target (N, H, W, C) as the sum over its taps of source @ filters (FH, FW, channels, C).

    fprop and dgrad are this one gather, over classes of outputs or of inputs. Per pair of a row class and a column
    class, the filters are cut to the taps of the pair: ConvV2's trimmed filter, KS-deconv's split kernel (stage 1).
    """
    if not all(c.count for c in h_classes + w_classes):
        target[...] = 0
    pairs = [(h, w) for h in h_classes if h.count for w in w_classes if w.count]
    for h, w in pairs:
        kernel = np.ascontiguousarray(filters[np.ix_(h.taps, w.taps)]).reshape(-1, filters.shape[3])
        pixels = target[:, h.position_slice, w.position_slice]
        for block, columns in _column_blocks(source, h, w):
            part = pixels[block]
            if part.flags.c_contiguous:
                _matmul(columns, kernel, part.reshape(-1, target.shape[3]))
            else:
                product = empty((len(columns), target.shape[3]), target.dtype)
                part[...] = _matmul(columns, kernel, product).reshape(part.shape)


def _wgrad_by_pixel(desc: ConvDesc, x: Array, g: Array, dw: Array) -> None:
    """Adds to dw (OC, FH, FW, IC), block by block, the products of the outputs with the inputs that they read."""
    for h in desc.h.fprop_classes:
        for w in desc.w.fprop_classes:
            if not h.count or not w.count:
                continue
            pixels = g[:, h.position_slice, w.position_slice]
            part = dw[:, h.tap:h.tap + h.count, w.tap:w.tap + w.count]
            for block, columns in _column_blocks(x, h, w):
                rows = _dense(pixels[block])
                product = empty((rows.shape[1], columns.shape[1]), dw.dtype)
                part += _matmul(rows.T, columns, product).reshape(part.shape)


def _column_blocks(source: Array, h: TapClass, w: TapClass) -> Iterator[tuple[tuple[slice, slice], Array]]:
    """Yields (index of images and rows, columns): what each pixel of the class reads, a matrix row per pixel.

    A block has at most COLUMN_BYTES, or is one row of one image; all blocks use the same buffer.
    """
    windows = _windows(source, h, w)
    images, rows = windows.shape[:2]
    row_bytes = prod(windows.shape[2:]) * source.itemsize
    row_step = min(rows, max(1, COLUMN_BYTES // row_bytes))
    image_step = min(images, max(1, COLUMN_BYTES // (row_bytes * rows)))
    work = empty((image_step * row_step * prod(windows.shape[2:]),), source.dtype)
    for n in range(0, images, image_step):
        for r in range(0, rows, row_step):
            block = slice(n, n + image_step), slice(r, r + row_step)
            yield block, _dense(windows[block], 3, work)


def _windows(source: Array, h: TapClass, w: TapClass) -> Array:
    """Returns the view (N, rows, columns, taps of a row, taps of a column, C) of what the pixels of a class read."""
    origin = source[:, h.starts[0]:, w.starts[0]:]
    sn, sh, sw, sc = source.strides
    return as_strided(origin, (len(source), len(h.positions), len(w.positions), h.count, w.count, source.shape[3]),
                      (sn, h.start_step * sh, w.start_step * sw, h.step * sh, w.step * sw, sc), writeable=False)
