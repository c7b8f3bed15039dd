"""Matplotlib figures for papers: the same content as on screen at a journal's column width.

No browser and no network; fonts are embedded, nothing dates the file, so the same input gives the same bytes.
"""

from __future__ import annotations

import io
from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from analysis.figure_data import DIVERGING, NEUTRAL_COLOR, Curve, Panel, kv_group_bounds, off_diagonal, tick_positions, tile

COLUMN_WIDTH, PAGE_WIDTH = 3.25, 6.75  # inches
FORMATS = {"svg": "image/svg+xml", "pdf": "application/pdf", "png": "image/png"}
# Set once for the process: a context around savefig would not be safe with two browser sessions drawing at a time.
matplotlib.rcParams.update({"pdf.fonttype": 42, "ps.fonttype": 42, "svg.fonttype": "path", "svg.hashsalt": "gamelora"})
_NO_DATES = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {"Software": None}}
_DIAGONAL = "#e3e3e8"
COLORMAP = LinearSegmentedColormap.from_list("head interaction", DIVERGING).with_extremes(bad=_DIAGONAL)


def gamma_figure(curves: Sequence[Curve], normalized: bool = False) -> Figure:
    """Interaction strength by layer; B is dashed, so that the figure also reads in grey."""
    figure, axes = one_axes(COLUMN_WIDTH, 2.0)
    _draw_curves(axes, curves)
    axes.set(xlabel="layer", ylabel=r"$\Gamma\,/\,\sqrt{H(H-1)}$" if normalized else r"$\Gamma(G)$")
    axes.set_ylim(bottom=0)
    return figure


def spectrum_figure(curves: Sequence[Curve]) -> Figure:
    """Eigenvalues of G by falling size."""
    figure, axes = one_axes(COLUMN_WIDTH, 2.0)
    axes.axhline(1, color=NEUTRAL_COLOR, linewidth=0.6, linestyle=":")
    _draw_curves(axes, curves)
    axes.set(xlabel="rank", ylabel="eigenvalue of $G$")
    return figure


def heatmap_figure(panels: Sequence[Panel], limit: float, label: str = "G") -> Figure:
    """Matrices of one layer on one scale; column width for one, page width for two or three."""
    width = COLUMN_WIDTH if len(panels) == 1 else PAGE_WIDTH
    figure = Figure(figsize=(width, width * 0.86 / len(panels) if len(panels) > 1 else 2.75), layout="constrained")
    many = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, panel in zip(many, panels, strict=True):
        image = axes.imshow(off_diagonal(panel.matrix), cmap=COLORMAP, vmin=-limit, vmax=limit, interpolation="nearest")
        for start, end in kv_group_bounds(len(panel.names), panel.n_kv_heads):
            axes.add_patch(Rectangle((start, start), end - start, end - start, fill=False, edgecolor="0.3", linewidth=0.8))
        ticks = tick_positions(len(panel.names))
        axes.set_xticks(ticks, [panel.names[tick] for tick in ticks], rotation=90, fontsize=6)
        axes.set_yticks(ticks, [panel.names[tick] for tick in ticks], fontsize=6)
        axes.set_title(literal(panel.title), fontsize=8, color=panel.color)
        axes.tick_params(length=0)
        axes.spines[:].set(color="0.8", linewidth=0.4)
    color_bar(figure, image, many.tolist(), limit, label)
    return figure


def all_layers_figure(matrices: np.ndarray, layers: np.ndarray, limit: float, label: str = "G") -> Figure:
    """Every layer's matrix on one scale, page width."""
    tiling = tile(matrices)
    height, width = tiling.raster.shape
    figure = Figure(figsize=(PAGE_WIDTH, max(1.5, 6.2 * height / width)), layout="constrained")
    axes = figure.subplots()
    transparent = COLORMAP.with_extremes(bad=(0, 0, 0, 0))
    image = axes.imshow(tiling.raster, cmap=transparent, vmin=-limit, vmax=limit, interpolation="nearest")
    for layer, (row, column) in zip(layers, tiling.corners, strict=True):
        axes.text(column - 0.5, row - 0.7, f"L{layer}", fontsize=6, va="bottom")
        place = {"xy": (column - 0.5, row - 0.5), "width": tiling.n_heads, "height": tiling.n_heads}
        axes.add_patch(Rectangle(**place, facecolor=_DIAGONAL, edgecolor="0.8", linewidth=0.8, zorder=-1, clip_on=False))
    axes.set_axis_off()
    color_bar(figure, image, [axes], limit, label)
    return figure


def figure_bytes(figure: Figure, file_format: str) -> bytes:
    """The file of a figure, `svg`, `pdf` or `png` (300 dpi); the same figure gives the same bytes.

    Raises
    ------
    ValueError
        For another format.
    """
    if file_format not in FORMATS:
        raise ValueError(f"the figure format {file_format!r} is not one of {', '.join(FORMATS)}.")
    buffer = io.BytesIO()
    figure.savefig(buffer, format=file_format, dpi=300, metadata=_NO_DATES[file_format])
    return buffer.getvalue()


def one_axes(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure of that size in inches with one calm pair of axes."""
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=7)
    axes.xaxis.label.set_size(8)
    axes.yaxis.label.set_size(8)
    return figure, axes


def _draw_curves(axes: Axes, curves: Sequence[Curve]) -> None:
    for curve, style, marker in zip(curves, ("-", "--"), ("o", "s"), strict=False):
        if curve.band is not None:
            axes.fill_between(curve.x, *curve.band, color=curve.color, alpha=0.25, linewidth=0)
        axes.plot(
            curve.x, curve.y, style, color=curve.color, label=literal(curve.name), marker=marker, markersize=2.5, linewidth=1
        )
    axes.xaxis.get_major_locator().set_params(integer=True)
    if len(curves) > 1:
        axes.legend(fontsize=6, frameon=False)


def color_bar(figure: Figure, image, axes: list[Axes], limit: float, label: str) -> None:
    """The bar of a symmetric scale: its two ends and 0."""
    bar = figure.colorbar(image, ax=axes, fraction=0.046, pad=0.02, ticks=[-limit, 0, limit])
    bar.ax.set_yticklabels([f"{-limit:.3g}", "0", f"{limit:.3g}"], fontsize=6)
    bar.set_label(literal(label), fontsize=7)
    bar.outline.set_visible(False)


def literal(text: str) -> str:
    """Text that Matplotlib shows as it is: a name may hold a dollar sign."""
    return text.replace("$", r"\$")
