"""The second, independent oracle of convolution: everything padded, everything materialised, nothing skipped.

It shares no line with alpha: no ConvDesc, no tap range. Zeros are padded and inserted in memory and then multiplied,
which is what the product avoids. Layouts are alpha's: x NHWC, w OHWI. Geometry arguments are pairs (height, width).
Integers are computed in int64 and floats in float64, so small integers give exact results in either.
"""

import numpy as np


def _wide(a):
    a = np.asarray(a)
    return a.astype(np.int64 if a.dtype.kind in "iub" else np.float64)


def _columns(x, f, stride, dilation):
    """Returns (N, OH, OW, FH, FW, C): for each output the whole window of x, which is padded already."""
    rows = [np.arange(0, size - d * (taps - 1), s)[:, None] + d * np.arange(taps)
            for size, taps, s, d in zip(x.shape[1:3], f, stride, dilation)]
    return x[:, rows[0][:, None, :, None], rows[1][None, :, None, :]]


def _pad(x, padding):
    (ph, pw) = padding
    return np.pad(x, ((0, 0), (ph, ph), (pw, pw), (0, 0)))


def _grouped_columns(x, f, stride, dilation, groups):
    """Returns (groups, N * OH * OW, FH * FW * C / groups) and (N, OH, OW)."""
    cols = _columns(x, f, stride, dilation)
    nhw = cols.shape[:3]
    cols = cols.reshape(*cols.shape[:5], groups, -1)
    return np.moveaxis(cols, 5, 0).reshape(groups, int(np.prod(nhw)), -1), nhw


def conv_fprop_padded(x, w, stride, padding, dilation, groups):
    """Returns y (N, OH, OW, OC) of x (N, IH, IW, IC) and w (OC, FH, FW, IC / groups)."""
    x, w = _wide(x), _wide(w)
    cols, nhw = _grouped_columns(_pad(x, padding), w.shape[1:3], stride, dilation, groups)
    y = cols @ w.reshape(groups, w.shape[0] // groups, -1).transpose(0, 2, 1)
    return np.moveaxis(y, 0, 1).reshape(*nhw, w.shape[0])


def conv_dgrad_padded(g, w, hw, stride, padding, dilation, groups):
    """Returns dx (N, *hw, IC): g with stride - 1 zeros inserted, convolved with the filter turned by 180 degrees."""
    g, w = _wide(g), _wide(w)
    (n, oh, ow, oc), (_, fh, fw, icg) = g.shape, w.shape
    size = [i + 2 * p for i, p in zip(hw, padding)]
    margin = [d * (f - 1) for d, f in zip(dilation, (fh, fw))]
    spread = np.zeros((n, size[0] + margin[0], size[1] + margin[1], oc), g.dtype)
    spread[:, margin[0]:, margin[1]:][:, :oh * stride[0]:stride[0], :ow * stride[1]:stride[1]] = g
    cols, _ = _grouped_columns(spread, (fh, fw), (1, 1), dilation, groups)
    turned = w[:, ::-1, ::-1].reshape(groups, oc // groups, fh, fw, icg).transpose(0, 2, 3, 1, 4)
    dx = np.moveaxis(cols @ turned.reshape(groups, -1, icg), 0, 1).reshape(n, *size, groups * icg)
    return dx[:, padding[0]:padding[0] + hw[0], padding[1]:padding[1] + hw[1]]


def conv_wgrad_padded(x, g, f, stride, padding, dilation, groups):
    """Returns dw (OC, *f, IC / groups)."""
    x, g = _wide(x), _wide(g)
    oc = g.shape[3]
    cols, _ = _grouped_columns(_pad(x, padding), f, stride, dilation, groups)
    rows = np.moveaxis(g.reshape(-1, groups, oc // groups), 1, 0)
    return (rows.transpose(0, 2, 1) @ cols).reshape(oc, *f, -1)
