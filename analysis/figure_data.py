"""What the screen's and the paper's figures share: colours, panels and curves, one symmetric scale, and the tiling of layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.heads import head_name

A_COLOR = "#2f7fc1"
B_COLOR = "#d9731a"
NEUTRAL_COLOR = "#8a8a94"
ACCENT = "#7a6ac0"  # the pages' own, in a tone seen on white and on dark
# ColorBrewer's PRGn, reversed and white at 0: colour-blind safe, and neither A's blue nor B's orange.
DIVERGING = (
    "#00441b",
    "#1b7837",
    "#5aae61",
    "#a6dba0",
    "#d9f0d3",
    "#ffffff",
    "#e7d4e8",
    "#c2a5cf",
    "#9970ab",
    "#762a83",
    "#40004b",
)
_SMALLEST_LIMIT = 0.01  # a matrix of gauge noise looks white, not structured
_TICKS_AT_MOST = 12


@dataclass(frozen=True)
class Panel:
    """One matrix of a layer.

    Attributes
    ----------
    title : shown above it.
    matrix : [heads, heads].
    names : head names along both axes.
    n_kv_heads : outlines the kv groups.
    color : of the title.
    """

    title: str
    matrix: np.ndarray
    names: Sequence[str]
    n_kv_heads: int
    color: str


@dataclass(frozen=True)
class Curve:
    """One checkpoint's values over layers or ranks; `x` and `y` are [n], `band` is lowest and highest value, two of [n]."""

    name: str
    x: np.ndarray
    y: np.ndarray
    color: str
    band: tuple[np.ndarray, np.ndarray] | None = None


def head_names(layer: int, n_heads: int) -> list[str]:
    """L3H0, L3H1, ... of one layer."""
    return [head_name(layer, head) for head in range(n_heads)]


def off_diagonal(matrices: np.ndarray) -> np.ndarray:
    """A copy, [..., heads, heads], with NaN on the diagonal, which is 1 by definition and would drown everything else."""
    copy = np.array(matrices, dtype=np.float64)
    heads = np.arange(copy.shape[-1])
    copy[..., heads, heads] = np.nan
    return copy


def symmetric_limit(*matrices: np.ndarray) -> float:
    """The one limit r of a colour scale [-r, r] for several matrices: their largest |off-diagonal|, rounded up to two digits.

    At least 0.01, so that noise does not fill the scale; 0.01 too when there is no pair of heads.
    """
    values = np.concatenate([np.abs(off_diagonal(matrix)).ravel() for matrix in matrices])
    largest = max(float(np.nanmax(values, initial=0.0)), _SMALLEST_LIMIT)
    unit = 10.0 ** (math.floor(math.log10(largest)) - 1)
    return round(math.ceil(round(largest / unit, 6)) * unit, 12)


def tick_positions(n_heads: int) -> list[int]:
    """Which heads get a label on an axis: all of a few, every 4th, 8th, ... of many."""
    step = 1
    while n_heads / step > _TICKS_AT_MOST:
        step = 4 if step == 1 else step * 2
    return list(range(0, n_heads, step))


def kv_group_bounds(n_heads: int, n_kv_heads: int) -> list[tuple[float, float]]:
    """First and last edge of each kv group in cell units; none where groups say nothing (one head each, or one group)."""
    size = n_heads // n_kv_heads
    if size == 1 or n_kv_heads == 1:
        return []
    return [(group * size - 0.5, (group + 1) * size - 0.5) for group in range(n_kv_heads)]


@dataclass(frozen=True)
class Tiling:
    """All layers' matrices laid out in one raster, first layer at the top left.

    Attributes
    ----------
    raster : float32 [rows * pitch - gap + gap above, columns * pitch - gap]; NaN between tiles and on the diagonals.
    corners : (row, column) in the raster of each tile's first cell, [layers, 2].
    n_heads : cells along a tile's edge.
    """

    raster: np.ndarray
    corners: np.ndarray
    n_heads: int


def tile(matrices: np.ndarray) -> Tiling:
    """Lay out [layers, heads, heads] in a grid about twice as wide as high, with room for a label above each tile.

    Values are rounded to four digits after the point, far below what a colour shows; a raster of 32 layers x 32 heads
    is then about 0.2 MB as float32.
    """
    layers, heads = matrices.shape[:2]
    columns = min(layers, math.ceil(math.sqrt(2 * layers)))
    gap = max(1, round(0.22 * heads))
    pitch = heads + gap
    corners = np.array([(gap + layer // columns * pitch, layer % columns * pitch) for layer in range(layers)])
    raster = np.full((math.ceil(layers / columns) * pitch, columns * pitch - gap), np.nan, dtype=np.float32)
    for matrix, (row, column) in zip(off_diagonal(matrices), corners, strict=True):
        raster[row : row + heads, column : column + heads] = np.round(matrix, 4)
    return Tiling(raster, corners, heads)
