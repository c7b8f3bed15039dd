"""Plotly figures for the screen: pure functions from arrays; the page's theme supplies fonts, background and grid."""

from __future__ import annotations

import html
from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from analysis.figure_data import DIVERGING, NEUTRAL_COLOR, Curve, Panel, kv_group_bounds, off_diagonal, tick_positions, tile

_COLORSCALE = [[position / (len(DIVERGING) - 1), color] for position, color in enumerate(DIVERGING)]
_BLANK = "rgba(138,138,148,0.22)"  # the diagonal, which is 1 by definition
_OUTLINE = "#80808c"


def gamma_by_layer(
    curves: Sequence[Curve], selected: int | None = None, normalized: bool = False, height: int = 230
) -> go.Figure:
    """Interaction strength by layer, one curve a checkpoint; the selected layer is marked.

    Parameters
    ----------
    curves : `x` true layer indices, `y` Gamma, `band` its range over the heads' value bases, drawn behind the curves.
    selected : layer to mark with a line.
    normalized : `y` is Gamma / sqrt(H (H - 1)); changes the axis title only.
    """
    figure = go.Figure()
    for curve in curves:
        if curve.band is not None:
            _add_band(figure, curve)
    for curve in curves:
        moved = curve.band is not None
        figure.add_scatter(
            x=curve.x,
            y=curve.y,
            name=escaped(curve.name),
            mode="lines+markers",
            line={"color": curve.color, "width": 2},
            marker={"size": 8, "color": curve.color},
            selected={"marker": {"opacity": 1}},
            unselected={"marker": {"opacity": 1}},
            customdata=np.column_stack(curve.band).tolist() if moved else None,
            hovertemplate="layer %{x}: Gamma %{y:.3g}"
            + (", %{customdata[0]:.3g} to %{customdata[1]:.3g} over value bases" if moved else ""),
        )
    if selected is not None:
        figure.add_vline(x=selected, line={"color": NEUTRAL_COLOR, "width": 1, "dash": "dot"}, layer="below")
    title = "Γ / √(H(H − 1))" if normalized else "Γ(G)"
    figure.update_yaxes(title=title, rangemode="tozero", nticks=5, fixedrange=True)
    span = np.concatenate([curve.x for curve in curves])
    figure.update_xaxes(
        title="layer", range=[span.min() - 0.5, span.max() + 0.5], fixedrange=True, tickformat="d", showgrid=False
    )
    return calm(figure, height=height, legend=len(curves) > 1)


def _add_band(figure: go.Figure, curve: Curve) -> None:
    """The range that a curve's values move in, as a surface of its colour without a legend entry."""
    low, high = curve.band
    figure.add_scatter(
        x=np.concatenate([curve.x, curve.x[::-1]]),
        y=np.concatenate([high, low[::-1]]),
        fill="toself",
        mode="lines",
        line={"width": 0, "color": curve.color},
        opacity=0.5,
        hoverinfo="skip",
        showlegend=False,
    )


def layer_heatmaps(panels: Sequence[Panel], limit: float) -> go.Figure:
    """Matrices of one layer side by side on one diverging scale [-limit, limit], white at 0; square cells.

    The diagonal is left blank; kv groups are outlined.
    """
    figure = make_subplots(1, len(panels), subplot_titles=[panel.title for panel in panels], horizontal_spacing=0.07)
    boxes = []
    for column, panel in enumerate(panels, start=1):
        heads = len(panel.names)
        trace = go.Heatmap(
            z=off_diagonal(panel.matrix).astype(np.float32),
            x=list(panel.names),
            y=list(panel.names),
            coloraxis="coloraxis",
            hovertemplate="%{y} and %{x}: %{z:.3g}<extra></extra>",
            hoverongaps=False,
        )
        figure.add_trace(trace, row=1, col=column)
        labels = [panel.names[position] for position in tick_positions(heads)]
        axis = {
            "tickvals": labels,
            "ticklabelstandoff": 4,
            "showgrid": False,
            "zeroline": False,
            "ticks": "",
            "constrain": "domain",
            "fixedrange": True,
        }
        figure.update_xaxes(row=1, col=column, tickangle=-90, range=[-0.5, heads - 0.5], **axis)
        anchor = "x" if column == 1 else f"x{column}"
        axes = {"xref": anchor, "yref": anchor.replace("x", "y"), "line": {"color": _OUTLINE, "width": 2}}
        boxes.append(_square(-0.5, -0.5, heads, **axes | {"line": {"color": _BLANK, "width": 1}}))
        boxes += [_square(start, start, end - start, **axes) for start, end in kv_group_bounds(heads, panel.n_kv_heads)]
        figure.update_yaxes(row=1, col=column, range=[heads - 0.5, -0.5], scaleanchor=anchor, constraintoward="top", **axis)
    for title, panel in zip(figure.layout.annotations, panels, strict=True):
        title.update(font={"color": panel.color, "size": 14}, yshift=6, text=escaped(panel.title))
    figure.update_layout(plot_bgcolor=_BLANK, shapes=boxes, coloraxis=color_axis(limit))
    height, width = (400, 430) if len(panels) == 1 else (340, 30 + 360 * len(panels))
    return calm(figure, height=height, top=44).update_layout(width=width)


def all_layers(
    matrices: np.ndarray, layers: np.ndarray, gamma: np.ndarray, limit: float, selected: int | None = None
) -> go.Figure:
    """Every layer's matrix in one raster on one scale; a click on a tile gives its layer in `customdata`.

    Parameters
    ----------
    matrices : [layers, heads, heads].
    layers, gamma : true index and interaction strength of each, [layers].
    """
    tiling = tile(matrices)
    rows, columns = tiling.corners.T
    middle = (tiling.n_heads - 1) / 2
    figure = go.Figure(go.Heatmap(z=tiling.raster, coloraxis="coloraxis", hoverinfo="skip"))
    names = [f"L{layer}" for layer in layers]
    figure.add_scatter(
        x=columns - 0.5,
        y=rows - 0.5,
        text=names,
        mode="text",
        textposition="top right",
        textfont={"size": 11 if len(layers) <= 40 else 9},
        hoverinfo="skip",
    )
    figure.add_scatter(
        x=columns + middle,
        y=rows + middle,
        customdata=[[int(layer), float(value)] for layer, value in zip(layers, gamma, strict=True)],  # lists come back as lists
        mode="markers",
        marker={"size": 50, "opacity": 0, "symbol": "square"},
        selected={"marker": {"opacity": 0}},
        unselected={"marker": {"opacity": 0}},
        hovertemplate="layer %{customdata[0]}: Gamma %{customdata[1]:.3g}<extra></extra>",
    )
    frames = []
    for layer, (row, column) in zip(layers, tiling.corners - 0.5, strict=True):
        line = {"color": _OUTLINE, "width": 5} if layer == selected else {"color": _BLANK, "width": 2}
        frames.append(_square(column, row, tiling.n_heads, layer="below", fillcolor=_BLANK, line=line))
    height, width = tiling.raster.shape
    figure.update_xaxes(visible=False, constrain="domain", fixedrange=True, range=[-1, width])
    figure.update_yaxes(visible=False, scaleanchor="x", constrain="domain", constraintoward="top", fixedrange=True)
    figure.update_yaxes(range=[height - 0.5, -0.5])
    figure.update_layout(shapes=frames, coloraxis=color_axis(limit))
    return calm(figure, height=40 + round(880 * height / width)).update_layout(width=980)


def spectrum(curves: Sequence[Curve]) -> go.Figure:
    """Eigenvalues of G by falling size; 1 everywhere is no coupling.

    Parameters
    ----------
    curves : `x` rank from 1, `y` eigenvalue.
    """
    figure = go.Figure()
    for curve in curves:
        figure.add_scatter(
            x=curve.x,
            y=curve.y,
            name=escaped(curve.name),
            mode="lines+markers",
            line={"color": curve.color, "width": 2},
            marker={"size": 7},
            hovertemplate="eigenvalue %{x}: %{y:.3g}",
        )
    figure.add_hline(y=1, line={"color": NEUTRAL_COLOR, "width": 1, "dash": "dot"}, layer="below")
    figure.update_xaxes(title="rank", showgrid=False, fixedrange=True, tickformat="d")
    figure.update_yaxes(title="eigenvalue of G", rangemode="tozero", nticks=6, fixedrange=True)
    return calm(figure, height=320, legend=len(curves) > 1)


def escaped(text: str) -> str:
    """Plotly reads HTML tags in names; a model's name may hold any sign."""
    return html.escape(text, quote=False)


def _square(x: float, y: float, size: float, **style) -> dict:
    """A shape; many are set at once, because Plotly checks all of them again at each that is added."""
    return {"type": "rect", "x0": x, "x1": x + size, "y0": y, "y1": y + size, **style}


def color_axis(limit: float) -> dict:
    """The diverging colour axis that all panels of a figure share: symmetric, white at 0, the range printed."""
    ticks = [-limit, -limit / 2, 0, limit / 2, limit]
    bar = {
        "thickness": 10,
        "outlinewidth": 0,
        "tickvals": ticks,
        "ticktext": [f"{tick:.3g}" for tick in ticks],
        "len": 1,
        "xpad": 6,
    }
    return {"colorscale": _COLORSCALE, "cmin": -limit, "cmax": limit, "colorbar": bar}


def calm(figure: go.Figure, height: int, legend: bool = False, top: int = 10) -> go.Figure:
    """The look of every chart on screen: no ground of its own, thin grid, little margin; returns the figure."""
    figure.update_layout(
        height=height,
        margin={"l": 10, "r": 10, "t": 34 if legend else top, "b": 10, "pad": 0},
        showlegend=legend,
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        hovermode="closest",
        dragmode=False,
    )
    return figure
