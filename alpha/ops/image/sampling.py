"""Maps read at other places: grid_sample, and the grids of affine transformations.

A place is (x, y) in [-1, 1], x along the width: (-1, -1) is the upper left of a map, (1, 1) the lower right.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np

from alpha.core.errors import DTypeError, ShapeError, message
from alpha.core.inputs.arguments import checked
from alpha.core.inputs.kinds import Choice, Ints
from alpha.core.table import public
from alpha.core.tensor import Tensor, tensor
from alpha.ops.elementwise import abs as absolute
from alpha.ops.elementwise import ge, gt, le, where
from alpha.ops.elementwise.rounding import floor, round
from alpha.ops.image import check_maps
from alpha.ops.matmul import matmul
from alpha.ops.reduce import widened
from alpha.ops.shape import permute, reshape, take

SampleMode = Annotated[str, Choice("bilinear", "nearest")]
SampleBorder = Annotated[str, Choice("zeros", "border", "reflection")]
MapShape = Annotated[Sequence[int], Ints("four ints of at least 1", "pass {name}=(n, height, width, channels)", 1,
                                         single=False, length=4)]


def _pixel(at: Tensor, n: int, align_corners: bool) -> Tensor:
    """Returns coordinates in [-1, 1] as numbers of pixels of an axis of length n."""
    return (at + 1.0) * ((n - 1) / 2) if align_corners else ((at + 1.0) * n - 1.0) * 0.5


def _reflected(at: Tensor, n: int, align_corners: bool) -> Tensor:
    """Returns pixels with those outside mirrored: at the outermost pixels' centres, or else at their far edges."""
    low, span = (0.0, float(n - 1)) if align_corners else (-0.5, float(n))
    if not span:
        return at * 0.0
    far = absolute(at - low)
    flips = floor(far / span)
    inside = far - flips.detach() * span
    odd = gt(flips - floor(flips / 2.0) * 2.0, 0.5)
    return where(odd, span - inside, inside) + low


def _held(at: Tensor, n: int) -> Tensor:
    """Returns pixels moved into [0, n - 1]; one that was moved, or lies on an end, has no gradient."""
    return where((at > 0.0) & (at < float(n - 1)), at, at.detach().clip(0.0, float(n - 1)))


def _coordinate(at: Tensor, n: int, border: str, align_corners: bool) -> Tensor:
    pixel = _pixel(at, n, align_corners)
    if border == "reflection":
        pixel = _reflected(pixel, n, align_corners)
    return pixel if border == "zeros" else _held(pixel, n)


class _Corner:
    """The pixels that places read: `index` counts the rows of all maps, `inside` says where there is such a pixel."""

    def __init__(self, x: Tensor, row: Tensor, column: Tensor) -> None:
        n, h, w, c = x.shape
        self.inside = ge(row, 0.0) & le(row, float(h - 1)) & ge(column, 0.0) & le(column, float(w - 1))
        map_of = tensor(np.arange(n).reshape(n, 1, 1) * (h * w), "int64", x.device)
        number = where(self.inside, row * float(w) + column, 0.0)
        self.pixels = take(reshape(x, (n * h * w, c)), number.astype("int64") + map_of)

    def weighted(self, weight: Tensor | None) -> Tensor:
        """Returns the pixels times their weights: 0 where there is no pixel."""
        if weight is None:
            return where(self.inside.unsqueeze(-1), self.pixels, 0.0)
        return self.pixels * where(self.inside, weight, 0.0).unsqueeze(-1)


@public(functional=True)
@checked
def grid_sample(x: Tensor, grid: Tensor, mode: SampleMode = "bilinear", padding_mode: SampleBorder = "zeros",
                align_corners: bool = False) -> Tensor:
    """y[n, i, j] = the map x[n] at the place grid[n, i, j].

    Args:
        x: shape (N, H, W, C), NHWC; float.
        grid: shape (N, OH, OW, 2): (x, y), x along the width, from -1 to 1; dtype of x.
        mode: "bilinear": four pixels by their nearness; "nearest": one, and of two that are equally near the even one.
        padding_mode: pixels outside of the map: "zeros"; "border": the nearest one; "reflection": mirrored.
        align_corners: whether -1 and 1 mean the centres of the outermost pixels; else their far edges.
    Returns:
        y of shape (N, OH, OW, C). With "nearest" the grid has no gradient.
    Raises:
        ShapeError: the shapes do not fit, or a map is empty.  DTypeError: x and grid have different dtypes.
    A place that is NaN reads 0 with "zeros", the first pixel with NaN for "bilinear" otherwise.
    Source: Jaderberg et al., arXiv 1506.02025; the values are those of PyTorch's grid_sample.
    """
    n, h, w, _ = check_maps("grid_sample", x)
    if grid.ndim != 4 or grid.shape[0] != n or grid.shape[3] != 2:
        raise ShapeError(message("grid_sample", f"grid has shape {grid.shape}, ({n}, OH, OW, 2) is needed",
                                 "pass a place (x, y) for each pixel of y", x=x.shape))
    if not h * w:
        raise ShapeError(message("grid_sample", f"a map of shape {x.shape} is empty", "pass maps with elements"))
    if grid.dtype != x.dtype:
        raise DTypeError(message("grid_sample", f"grid has dtype {grid.dtype}, x has {x.dtype}",
                                 "convert it: grid.astype(x.dtype)"))
    places = widened(grid)
    column = _coordinate(places[..., 0], w, padding_mode, align_corners)
    row = _coordinate(places[..., 1], h, padding_mode, align_corners)
    if mode == "nearest":
        return _Corner(x, round(row.detach()), round(column.detach())).weighted(None)
    wide = widened(x)
    top, left = floor(row.detach()), floor(column.detach())
    down, right = row - top, column - left
    y = _Corner(wide, top, left).weighted((1.0 - down) * (1.0 - right))
    for rows, columns, weight in ((top, left + 1.0, (1.0 - down) * right), (top + 1.0, left, down * (1.0 - right)),
                                  (top + 1.0, left + 1.0, down * right)):
        y = y + _Corner(wide, rows, columns).weighted(weight)
    return y.astype(x.dtype)


def _line(n: int, align_corners: bool) -> np.ndarray:
    line = np.linspace(-1, 1, n) if n > 1 else np.zeros(1)
    return line if align_corners else line * ((n - 1) / n)


@public(functional=True)
@checked
def affine_grid(theta: Tensor, size: MapShape, align_corners: bool = False) -> Tensor:
    """grid[n, i, j] = theta[n] @ (x_j, y_i, 1): the places that a map is read at to be turned, moved or scaled.

    Args:
        theta: shape (N, 2, 3); float.
        size: of the maps that grid_sample is to return, (N, H, W, C); PyTorch's is (N, C, H, W).
        align_corners: see grid_sample; pass the same to both.
    Returns:
        grid of shape (N, H, W, 2).
    Raises:
        ShapeError: theta has another shape than (N, 2, 3), N being that of size.
    """
    n, h, w, _ = size
    if theta.shape != (n, 2, 3):
        raise ShapeError(message("affine_grid", f"theta has shape {theta.shape}, ({n}, 2, 3) is needed",
                                 "pass a matrix of two rows and three columns for each map", size=tuple(size)))
    xs, ys = np.meshgrid(_line(w, align_corners), _line(h, align_corners))
    base = tensor(np.stack([xs, ys, np.ones_like(xs)], -1).reshape(1, h * w, 3), theta.dtype, theta.device)
    return reshape(matmul(base.expand((n, h * w, 3)), permute(theta, (0, 2, 1))), (n, h, w, 2))
