"""Plotly figures of coalitions for the screen: pure functions; the page's theme supplies fonts, background and grid."""

from __future__ import annotations

from collections.abc import Sequence

import networkx as nx
import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from analysis.coalition_style import NEGATIVE_COLOR, POSITIVE_COLOR, Look, block_bounds, block_order, looks
from analysis.coalitions import LayerCoalitions
from analysis.compare import Comparison
from analysis.figure_data import A_COLOR, B_COLOR, NEUTRAL_COLOR, head_names, off_diagonal, tick_positions
from analysis.figures import _calm, _color_axis, _escaped
from analysis.head_graph import kv_groups_matter, layout
from analysis.heads import head_name

_WIDTHS = 6  # edges are drawn in so many widths, a trace each, which keeps the page light
_CHOSEN = "#D55E00"


def reordered_heatmap(G: np.ndarray, entry: LayerCoalitions, limit: float, groups: Sequence[int] | None = None) -> go.Figure:
    """G of a layer with the heads sorted by coalition and each coalition's block outlined; square cells.

    Parameters
    ----------
    G : [heads, heads].
    limit : the colour scale is [-limit, limit], white at 0.
    groups : kv group of each head, written beside the rows; None where groups say nothing.
    """
    order, heads = block_order(entry.labels), len(G)
    names = np.array(head_names(entry.layer, heads))[order]
    figure = go.Figure(
        go.Heatmap(
            z=off_diagonal(G)[np.ix_(order, order)].astype(np.float32),
            coloraxis="coloraxis",
            customdata=np.stack(np.meshgrid(names, names, indexing="ij"), axis=-1),
            hovertemplate="%{customdata[0]} and %{customdata[1]}: %{z:.3g}<extra></extra>",
            hoverongaps=False,
        )
    )
    for start, end in block_bounds(entry.labels):
        box = {"x0": start, "x1": end, "y0": start, "y1": end, "line": {"color": NEUTRAL_COLOR, "width": 2}}
        figure.add_shape(type="rect", **box)
    cell = heads / 22  # the strip's columns, in cells, so that they keep their width on screen
    shown = [looks(entry)[head] for head in order]
    texts = [f"{name}: coalition {entry.labels[head]}" for name, head in zip(names, order, strict=True)]
    figure.add_scatter(
        x=np.full(heads, -0.5 - 0.6 * cell),
        y=np.arange(heads),
        mode="markers",
        marker=_markers(shown, 9 if heads <= 16 else 7),
        text=texts,
        hovertemplate="%{text}<extra></extra>",
    )
    left = -0.5 - 1.3 * cell
    if groups is not None:
        left -= 1.5 * cell
        numbers = [str(groups[head]) for head in order]
        place = {"x": np.full(heads, -0.5 - 1.9 * cell), "y": np.arange(heads)}
        figure.add_scatter(
            **place, text=numbers, mode="text", textfont={"size": 10}, hovertemplate="kv group %{text}<extra></extra>"
        )
        figure.add_annotation(x=-0.5 - 1.9 * cell, y=-0.5, text="kv", showarrow=False, yshift=10, font={"size": 10})
    ticks = tick_positions(heads)
    axis = {"tickvals": ticks, "ticktext": names[ticks], "showgrid": False, "zeroline": False, "ticks": "", "fixedrange": True}
    figure.update_xaxes(range=[left, heads - 0.5], constrain="domain", tickangle=-90, **axis)
    figure.update_yaxes(range=[heads - 0.5, -0.5], scaleanchor="x", constrain="domain", **axis)
    figure.update_layout(plot_bgcolor="rgba(0,0,0,0)", coloraxis=_color_axis(limit))
    return _calm(figure, height=400, top=20)


def coalition_graph(graph: nx.Graph, looks: Sequence[Look]) -> go.Figure:
    """The coalition graph: a node a head, edge width by |G|, purple where G > 0, green and dashed where G < 0.

    Parameters
    ----------
    graph : of `head_graph` at the threshold to show; without an edge only the heads are drawn.
    looks : one a node, in its order (`coalition_style.looks`).
    """
    positions = layout(graph)
    figure = go.Figure()
    _add_edges(figure, graph, positions)
    kv = "<br>kv{}" if kv_groups_matter(graph) and len(graph) <= 16 else ""
    texts = [f"H{data['head']}" + kv.format(data["kv_group"]) for _, data in graph.nodes(data=True)]
    x, y = np.transpose([positions[node] for node in graph])
    figure.add_scatter(
        x=x,
        y=y,
        mode="markers+text",
        text=texts,
        textfont={"color": [one.text for one in looks], "size": 11 if len(graph) <= 16 else 10},
        marker=_markers(looks, 36 if len(graph) <= 16 else 26),
        customdata=[_about(node, data) for node, data in graph.nodes(data=True)],
        hovertemplate="%{customdata}<extra></extra>",
    )
    figure.update_layout(plot_bgcolor="rgba(0,0,0,0)")
    margin = 0.25
    figure.update_xaxes(visible=False, fixedrange=True, range=[x.min() - margin, x.max() + margin])
    figure.update_yaxes(visible=False, fixedrange=True, range=[y.min() - margin, y.max() + margin], scaleanchor="x")
    return _calm(figure, height=400)


def _add_edges(figure: go.Figure, graph: nx.Graph, positions: dict[str, tuple[float, float]]) -> None:
    edges = list(graph.edges(data="weight"))
    if not edges:
        return
    ends = np.array([[positions[one], positions[other]] for one, other, _ in edges])  # [edges, 2 ends, x and y]
    weight = np.array([value for *_, value in edges])
    level = np.ceil(_WIDTHS * np.abs(weight) / (np.abs(weight).max() or 1)).clip(1).astype(int)
    thickest = 7.0 if len(graph) <= 16 else 3.5  # pixels
    lines = np.concatenate([ends, np.full((len(edges), 1, 2), np.nan)], axis=1)  # a gap after each edge
    for width in range(1, _WIDTHS + 1):
        for color, dash, chosen in ((POSITIVE_COLOR, "solid", weight >= 0), (NEGATIVE_COLOR, "dash", weight < 0)):
            points = lines[chosen & (level == width)].reshape(-1, 2)
            line = {"color": color, "dash": dash, "width": 0.4 if width == 1 else thickest * width / _WIDTHS}
            figure.add_scatter(x=points[:, 0], y=points[:, 1], mode="lines", line=line, hoverinfo="skip")
    middle = ends.mean(axis=1)
    figure.add_scatter(
        x=middle[:, 0],
        y=middle[:, 1],
        mode="markers",
        marker={"size": 8, "opacity": 0},
        text=[f"{one} and {other}: G = {value:.3g}" for one, other, value in edges],
        hovertemplate="%{text}<extra></extra>",
    )


def _about(node: str, data: dict) -> str:
    lines = [f"{node}: coalition {data['coalition']}, kv group {data['kv_group']}"]
    if data["isolated"]:
        lines.append("coupled to no other head")
    if "confidence" in data:
        lines.append(f"stays in its coalition in {data['confidence']:.0%} of the resamples")
    return "<br>".join(lines)


def _markers(looks: Sequence[Look], size: int) -> dict:
    return {
        "symbol": [one.symbol for one in looks],
        "color": ["rgba(0,0,0,0)" if one.hollow else one.color for one in looks],
        "size": size,
        "line": {"color": [one.color if one.hollow else "#333333" for one in looks], "width": 1},
        "opacity": 1,
    }


def eigenvalue_chart(entry: LayerCoalitions) -> go.Figure:
    """Eigenvalues of the normalized Laplacian of a layer's coupled heads, with the gap at the chosen number of coalitions."""
    rank = np.arange(1, len(entry.eigenvalues) + 1)
    figure = go.Figure()
    if entry.cut and entry.cut < len(rank):
        low, high = entry.eigenvalues[entry.cut - 1 : entry.cut + 1]
        middle = entry.cut + 0.5
        figure.add_shape(type="line", x0=middle, x1=middle, y0=low, y1=high, line={"color": _CHOSEN, "width": 6}, layer="below")
        p = "" if np.isnan(entry.gap_p) else f", p = {entry.gap_p:.2g}"
        text = f"gap after {entry.cut}: {high - low:.3g}{p}"
        figure.add_annotation(x=middle, y=(low + high) / 2, text=text, showarrow=False, xanchor="left", xshift=10)
    figure.add_scatter(
        x=rank,
        y=entry.eigenvalues,
        mode="markers",
        marker={"size": 8, "color": [A_COLOR if one <= entry.cut else NEUTRAL_COLOR for one in rank]},
        hovertemplate="eigenvalue %{x}: %{y:.3g}<extra></extra>",
    )
    figure.update_xaxes(title="rank", showgrid=False, fixedrange=True, tickformat="d")
    figure.update_yaxes(title="eigenvalue of the Laplacian", rangemode="tozero", nticks=6, fixedrange=True)
    return _calm(figure, height=320)


def coassignment(entry: LayerCoalitions) -> go.Figure:
    """How often two heads share a coalition over the resamples, in the order of the heatmap, and each head's confidence.

    Raises
    ------
    ValueError
        When no bootstrap has judged the layer.
    """
    if entry.stability is None:
        raise ValueError(f"layer {entry.layer} has no stability to show: its coalitions were not resampled.")
    order = block_order(entry.labels)
    names = [head_name(entry.layer, int(head)) for head in order]
    figure = make_subplots(1, 2, column_widths=[0.55, 0.45], horizontal_spacing=0.26, subplot_titles=["together", "confidence"])
    trace = go.Heatmap(
        z=entry.stability.coassignment[np.ix_(order, order)].astype(np.float32),
        x=names,
        y=names,
        zmin=0,
        zmax=1,
        colorscale="Greys",
        colorbar={"thickness": 10, "outlinewidth": 0, "tickformat": ".0%", "x": 0.43},
        hovertemplate="%{y} and %{x}: together in %{z:.0%} of the resamples<extra></extra>",
    )
    figure.add_trace(trace, row=1, col=1)
    for start, end in block_bounds(entry.labels):
        box = {"x0": start, "x1": end, "y0": start, "y1": end, "line": {"color": _CHOSEN, "width": 1.5}}
        figure.add_shape(type="rect", row=1, col=1, **box)
    shown = [looks(entry)[head] for head in order]
    figure.add_bar(
        x=entry.stability.confidence[order],
        y=names,
        orientation="h",
        marker={"color": [one.color for one in shown]},
        hovertemplate="%{y} stays in its coalition in %{x:.0%} of the resamples<extra></extra>",
        row=1,
        col=2,
    )
    ticks = [names[tick] for tick in tick_positions(len(names))]
    axis = {"tickvals": ticks, "showgrid": False, "ticks": "", "fixedrange": True}
    figure.update_xaxes(row=1, col=1, tickangle=-90, constrain="domain", **axis)
    figure.update_yaxes(row=1, col=1, autorange="reversed", scaleanchor="x", constrain="domain", **axis)
    figure.update_yaxes(row=1, col=2, autorange="reversed", **axis)
    figure.update_xaxes(row=1, col=2, range=[0, 1], tickformat=".0%", fixedrange=True)
    return _calm(figure, height=380, top=34)


def flow(columns: Sequence[tuple[str, LayerCoalitions]]) -> go.Figure:
    """How membership changes from column to column: across layers, or between two checkpoints of one layer.

    A band is the heads that go from one coalition to another. Across layers a head is followed by its index, which means
    something inside a residual stream only for kv groups; between checkpoints it is the same head.

    Parameters
    ----------
    columns : (title, coalitions) from left to right, all with the same number of heads.
    """
    nodes, links = [], []
    start = 0
    for position, (title, entry) in enumerate(columns):
        for coalition, heads in enumerate(entry.members):
            one = looks(entry)[heads[0]]
            about = f"{title}, coalition {coalition}: " + ", ".join(f"H{head}" for head in heads)
            nodes.append((one.color, about, position / max(len(columns) - 1, 1)))
        if position + 1 < len(columns):
            following = columns[position + 1][1]
            for coalition, heads in enumerate(entry.members):
                for other in np.unique(following.labels[heads]):
                    moved = [head for head in heads if following.labels[head] == other]
                    links.append((start + coalition, start + entry.k + int(other), moved))
        start += entry.k
    figure = go.Figure(
        go.Sankey(
            arrangement="snap",
            node={
                "color": [color for color, *_ in nodes],
                "customdata": [about for _, about, _ in nodes],
                "hovertemplate": "%{customdata}<extra></extra>",
                "label": [""] * len(nodes),
                "x": [min(max(place, 0.001), 0.999) for *_, place in nodes],
                "y": _heights([entry for _, entry in columns]),
                "pad": 8,
                "thickness": 14,
                "line": {"width": 0},
            },
            link={
                "source": [source for source, *_ in links],
                "target": [target for _, target, _ in links],
                "value": [len(moved) for *_, moved in links],
                "color": [_faded(nodes[source][0]) for source, *_ in links],
                "customdata": [", ".join(f"H{head}" for head in moved) for *_, moved in links],
                "hovertemplate": "%{customdata}<extra></extra>",
            },
        )
    )
    for position, (title, _) in enumerate(columns):
        place = position / max(len(columns) - 1, 1)
        anchor = "left" if position == 0 else "right" if position + 1 == len(columns) else "center"
        figure.add_annotation(
            x=place, y=1, xref="paper", yref="paper", text=_escaped(title), showarrow=False, xanchor=anchor, yshift=14
        )
    return _calm(figure, height=360, top=34)


def _heights(entries: Sequence[LayerCoalitions]) -> list[float]:
    """Where each coalition's node stands, 0 the top: in the order of the labels, which Plotly would shuffle."""
    heights = []
    for entry in entries:
        sizes = np.bincount(entry.labels) / len(entry.labels)
        heights += (np.cumsum(sizes) - sizes / 2).clip(0.001, 0.999).tolist()
    return heights


def _faded(color: str) -> str:
    red, green, blue = (int(color[start : start + 2], 16) for start in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.35)"


def comparison_chart(comparison: Comparison, before: str = "A", after: str = "B", selected: int | None = None) -> go.Figure:
    """Mean coupling inside and between coalitions by layer, before (blue) and after (orange), the interval of the change on B.

    A layer that is selective by itself after Holm has a star. A click on a point gives its layer in `x`.

    Parameters
    ----------
    before, after : names of the two checkpoints.
    selected : layer to mark with a line.
    """
    figure = make_subplots(2, 1, shared_xaxes=True, vertical_spacing=0.08)
    layers = [entry.layer for entry in comparison.tested]
    for row, which in enumerate(("inside", "between"), start=1):
        changes = [getattr(entry, which) for entry in comparison.tested]
        stars = ["star" if entry.verdict == "selective" and row == 1 else "circle" for entry in comparison.tested]
        for name, side, color in ((before, "before", A_COLOR), (after, "after", B_COLOR)):
            interval = {
                "type": "data",
                "symmetric": False,
                "array": [change.high - change.change for change in changes],
                "arrayminus": [change.change - change.low for change in changes],
                "thickness": 1,
                "width": 2,
            }
            figure.add_scatter(
                x=layers,
                y=[getattr(change, side) for change in changes],
                name=_escaped(name),
                legendgroup=side,
                showlegend=row == 1,
                mode="lines+markers",
                line={"color": color, "width": 2},
                marker={"size": [13 if star == "star" else 7 for star in stars], "symbol": stars}
                if side == "after"
                else {"size": 7},
                error_y=interval if side == "after" else None,
                customdata=[[entry.verdict, entry.p_holm] for entry in comparison.tested],
                hovertemplate="layer %{x}: %{y:.3g}<br>%{customdata[0]}, Holm p = %{customdata[1]:.2g}",
                row=row,
                col=1,
            )
        figure.update_yaxes(title=f"{which} coalitions", nticks=5, fixedrange=True, row=row, col=1)
        if selected is not None:
            figure.add_vline(x=selected, line={"color": NEUTRAL_COLOR, "width": 1, "dash": "dot"}, layer="below", row=row, col=1)
    figure.update_xaxes(showgrid=False, fixedrange=True, tickformat="d")
    figure.update_xaxes(title="layer", row=2, col=1)
    return _calm(figure, height=380, legend=True)
