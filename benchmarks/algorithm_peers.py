"""The peers of benchmarks.algorithms: PyTorch's convolution, torch.fft on whole maps, scipy's fftconvolve."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from alpha.ops.conv_desc import ConvDesc
from benchmarks import cpu_timing

Call = Callable[[], Any]
MOST_SPECTRUM = 1 << 30     # bytes of the transformed filters of whole maps


def peers(pass_name: str, desc: ConvDesc, arrays: dict[str, np.ndarray]) -> dict[str, Call]:
    """Returns the calls of the peers that are installed and can compute a pass; torch's give NCHW."""
    try:
        torch = cpu_timing.strict_torch()
    except ImportError:
        return {}
    x, w, g = (torch.from_numpy(np.ascontiguousarray(np.moveaxis(arrays[key], 3, 1))) for key in "xwg")
    x, w, g = (a.to(memory_format=torch.channels_last) for a in (x, w, g))
    geometry = dict(stride=1, padding=(desc.h.p, desc.w.p), groups=desc.groups)
    grad = torch.nn.grad
    calls = {"fprop": partial(torch.nn.functional.conv2d, x, w, None, **geometry),
             "dgrad": partial(grad.conv2d_input, x.shape, w, g, **geometry),
             "wgrad": partial(grad.conv2d_weight, x, w.shape, g, **geometry)}
    found: dict[str, Call] = {"torch": calls[pass_name]}
    size = [axis.i + axis.f - 1 for axis in (desc.h, desc.w)]
    spectrum = 8 * desc.ic * desc.oc * size[0] * (size[1] // 2 + 1)
    if pass_name == "fprop" and desc.groups == 1 and spectrum <= MOST_SPECTRUM:
        found["torch.fft"] = partial(_whole_maps, torch, x.contiguous(), w.contiguous(), desc)
    if pass_name == "fprop" and desc.groups == desc.ic == desc.oc:
        found["scipy"] = partial(_fftconvolve, arrays["x"], arrays["w"], desc)
    return found


def _whole_maps(torch: Any, x: Any, w: Any, desc: ConvDesc) -> Any:
    size = [axis.i + 2 * axis.p for axis in (desc.h, desc.w)]
    padded = torch.nn.functional.pad(x, (desc.w.p, desc.w.p, desc.h.p, desc.h.p))
    product = torch.einsum("nchw,ochw->nohw", torch.fft.rfft2(padded, size), torch.fft.rfft2(w, size).conj())
    return torch.fft.irfft2(product, size)[:, :, :desc.h.o, :desc.w.o]


def _fftconvolve(x: np.ndarray, w: np.ndarray, desc: ConvDesc) -> np.ndarray:
    from scipy.signal import fftconvolve
    padded = np.pad(x, ((0, 0), (desc.h.p,) * 2, (desc.w.p,) * 2, (0, 0)))
    filters = w[:, ::-1, ::-1, 0].transpose(1, 2, 0)[None]
    return fftconvolve(padded, filters, mode="valid", axes=(1, 2))
