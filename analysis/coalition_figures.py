"""Plotly figures of coalitions for the screen: pure functions; the page's theme supplies fonts, background and grid.

Each figure is made in one call from plain traces and a layout: Plotly's add_ and update_ calls would take most of the time.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import networkx as nx
import numpy as np
import plotly.graph_objects as go

from analysis.coalition_style import NEGATIVE_COLOR, POSITIVE_COLOR, Look, block_bounds, block_order, looks
from analysis.coalitions import LayerCoalitions
from analysis.compare import Comparison
from analysis.figure_data import A_COLOR, B_COLOR, NEUTRAL_COLOR, head_names, off_diagonal, tick_positions
from analysis.figures import calm, color_axis, escaped
from analysis.head_graph import kv_groups_matter, layout

_WIDTHS = 6  # edges are drawn in so many widths, a trace each, which keeps the page light
_CHOSEN = "#D55E00"
_NO_BACKGROUND = "rgba(0,0,0,0)"


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
    heat = {
        "type": "heatmap",
        "z": off_diagonal(G)[np.ix_(order, order)].astype(np.float32),
        "coloraxis": "coloraxis",
        "customdata": np.stack(np.meshgrid(names, names, indexing="ij"), axis=-1),
        "hovertemplate": "%{customdata[0]} and %{customdata[1]}: %{z:.3g}<extra></extra>",
        "hoverongaps": False,
    }
    column = heads / 22  # of the strip beside the rows, in cells, so that it keeps its width on screen
    markers = {
        "type": "scatter",
        "x": np.full(heads, -0.5 - 0.6 * column),
        "y": np.arange(heads),
        "mode": "markers",
        "marker": _markers([looks(entry)[head] for head in order], 9 if heads <= 16 else 7),
        "text": [f"{name}: coalition {entry.labels[head]}" for name, head in zip(names, order, strict=True)],
        "hovertemplate": "%{text}<extra></extra>",
    }
    traces, left, title = [heat, markers], -0.5 - 1.3 * column, []
    if groups is not None:
        left, middle = -0.5 - 2.8 * column, -0.5 - 1.9 * column
        text = {"text": [str(groups[head]) for head in order], "mode": "text", "textfont": {"size": 10}}
        hover = {"hovertemplate": "kv group %{text}<extra></extra>"}
        traces.append({"type": "scatter", "x": np.full(heads, middle), "y": np.arange(heads), **text, **hover})
        title = [{"x": middle, "y": -0.5, "text": "kv", "showarrow": False, "yshift": 10, "font": {"size": 10}}]
    ticks = tick_positions(heads)
    axis = {"tickvals": ticks, "ticktext": names[ticks], "constrain": "domain", **_BARE}
    shape = {
        "xaxis": {"range": [left, heads - 0.5], "tickangle": -90, **axis},
        "yaxis": {"range": [heads - 0.5, -0.5], "scaleanchor": "x", **axis},
        "coloraxis": color_axis(limit),
        "plot_bgcolor": _NO_BACKGROUND,
        "shapes": _blocks(entry, NEUTRAL_COLOR),
        "annotations": title,
    }
    return calm(go.Figure(traces, shape), height=400, top=20)


_BARE = {"showgrid": False, "zeroline": False, "ticks": "", "fixedrange": True}


def _blocks(entry: LayerCoalitions, color: str) -> list[dict]:
    bounds = block_bounds(entry.labels)
    line = {"color": color, "width": 2}
    return [{"type": "rect", "x0": start, "x1": end, "y0": start, "y1": end, "line": line} for start, end in bounds]


def coalition_graph(graph: nx.Graph, looks: Sequence[Look]) -> go.Figure:
    """The coalition graph: a node a head, edge width by |G|, purple where G > 0, green and dashed where G < 0.

    Parameters
    ----------
    graph : of `head_graph` at the threshold to show; without an edge only the heads are drawn.
    looks : one a node, in its order (`coalition_style.looks`).
    """
    positions = layout(graph)
    kv = "<br>kv{}" if kv_groups_matter(graph) and len(graph) <= 16 else ""
    x, y = np.transpose([positions[node] for node in graph])
    heads = {
        "type": "scatter",
        "x": x,
        "y": y,
        "mode": "markers+text",
        "text": [f"H{data['head']}" + kv.format(data["kv_group"]) for _, data in graph.nodes(data=True)],
        "textfont": {"color": [one.text for one in looks], "size": 11 if len(graph) <= 16 else 10},
        "marker": _markers(looks, 36 if len(graph) <= 16 else 26),
        "customdata": [_about(node, data) for node, data in graph.nodes(data=True)],
        "hovertemplate": "%{customdata}<extra></extra>",
    }
    margin, hidden = 0.25, {"visible": False, "fixedrange": True}
    shape = {
        "xaxis": {"range": [x.min() - margin, x.max() + margin], **hidden},
        "yaxis": {"range": [y.min() - margin, y.max() + margin], "scaleanchor": "x", **hidden},
        "plot_bgcolor": _NO_BACKGROUND,
    }
    return calm(go.Figure([*_edges(graph, positions), heads], shape), height=400)


def _edges(graph: nx.Graph, positions: dict[str, tuple[float, float]]) -> list[dict]:
    """A trace for each width and sign, and one of invisible points in the middle of the edges to hover over."""
    edges = list(graph.edges(data="weight"))
    if not edges:
        return []
    ends = np.array([[positions[one], positions[other]] for one, other, _ in edges])  # [edges, 2 ends, x and y]
    weight = np.array([value for *_, value in edges])
    level = np.ceil(_WIDTHS * np.abs(weight) / (np.abs(weight).max() or 1)).clip(1).astype(int)
    thickest = 7.0 if len(graph) <= 16 else 3.5  # pixels
    lines = np.concatenate([ends, np.full((len(edges), 1, 2), np.nan)], axis=1)  # a gap after each edge
    traces = []
    for width in np.unique(level):
        for color, dash, chosen in ((POSITIVE_COLOR, "solid", weight >= 0), (NEGATIVE_COLOR, "dash", weight < 0)):
            points = lines[chosen & (level == width)].reshape(-1, 2)
            line = {"color": color, "dash": dash, "width": 0.4 if width == 1 else thickest * width / _WIDTHS}
            trace = {"type": "scatter", "x": points[:, 0], "y": points[:, 1], "mode": "lines", "line": line, "hoverinfo": "skip"}
            traces += [trace] if len(points) else []
    middle = ends.mean(axis=1)
    hover = {
        "type": "scatter",
        "x": middle[:, 0],
        "y": middle[:, 1],
        "mode": "markers",
        "marker": {"size": 8, "opacity": 0},
        "text": [f"{one} and {other}: G = {value:.3g}" for one, other, value in edges],
        "hovertemplate": "%{text}<extra></extra>",
    }
    return [*traces, hover]


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
        "color": [_NO_BACKGROUND if one.hollow else one.color for one in looks],
        "size": size,
        "line": {"color": [one.color if one.hollow else "#333333" for one in looks], "width": 1},
        "opacity": 1,
    }


def eigenvalue_chart(entry: LayerCoalitions) -> go.Figure:
    """Eigenvalues of the normalized Laplacian of a layer's coupled heads, with the gap at the chosen number of coalitions."""
    rank = np.arange(1, len(entry.eigenvalues) + 1)
    points = {
        "type": "scatter",
        "x": rank,
        "y": entry.eigenvalues,
        "mode": "markers",
        "marker": {"size": 8, "color": [A_COLOR if one <= entry.cut else NEUTRAL_COLOR for one in rank]},
        "hovertemplate": "eigenvalue %{x}: %{y:.3g}<extra></extra>",
    }
    shape = {
        "xaxis": {"title": "rank", "showgrid": False, "fixedrange": True, "tickformat": "d"},
        "yaxis": {"title": "eigenvalue of the Laplacian", "rangemode": "tozero", "nticks": 6, "fixedrange": True},
    }
    if 0 < entry.cut < len(rank):
        low, high = entry.eigenvalues[entry.cut - 1 : entry.cut + 1]
        middle, line = entry.cut + 0.5, {"color": _CHOSEN, "width": 6}
        p = "" if np.isnan(entry.gap_p) else f", p = {entry.gap_p:.2g}"
        text = {"text": f"gap after {entry.cut}: {high - low:.3g}{p}", "showarrow": False, "xanchor": "left", "xshift": 10}
        shape["shapes"] = [{"type": "line", "x0": middle, "x1": middle, "y0": low, "y1": high, "line": line, "layer": "below"}]
        shape["annotations"] = [{"x": middle, "y": (low + high) / 2, **text}]
    return calm(go.Figure([points], shape), height=320)


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
    names = np.array(head_names(entry.layer, len(order)))[order]
    together = {
        "type": "heatmap",
        "z": entry.stability.coassignment[np.ix_(order, order)].astype(np.float32),
        "x": names,
        "y": names,
        "zmin": 0,
        "zmax": 1,
        "colorscale": "Greys",
        "colorbar": {"thickness": 10, "outlinewidth": 0, "tickformat": ".0%", "x": 0.43},
        "hovertemplate": "%{y} and %{x}: together in %{z:.0%} of the resamples<extra></extra>",
    }
    confidence = {
        "type": "bar",
        "x": entry.stability.confidence[order],
        "y": names,
        "orientation": "h",
        "marker": {"color": [looks(entry)[head].color for head in order]},
        "hovertemplate": "%{y} stays in its coalition in %{x:.0%} of the resamples<extra></extra>",
        "xaxis": "x2",
        "yaxis": "y2",
    }
    axis = {"tickvals": names[tick_positions(len(names))], **_BARE}
    shape = {
        "xaxis": {"domain": [0, 0.42], "tickangle": -90, "constrain": "domain", **axis},
        "yaxis": {"autorange": "reversed", "scaleanchor": "x", "constrain": "domain", **axis},
        "xaxis2": {
            "domain": [0.65, 0.97],  # the last label is wider than the axis
            "range": [0, 1],
            "tickvals": [0, 0.5, 1],
            "tickformat": ".0%",
            "anchor": "y2",
            "fixedrange": True,
        },
        "yaxis2": {"autorange": "reversed", "anchor": "x2", **axis},
        "shapes": _blocks(entry, _CHOSEN),
        "annotations": [_heading("together", 0.21), _heading("confidence", 0.81)],
    }
    return calm(go.Figure([together, confidence], shape), height=380, top=34)


def _heading(text: str, x: float, xanchor: str = "center") -> dict:
    place = {"x": x, "y": 1, "xref": "paper", "yref": "paper", "xanchor": xanchor, "yanchor": "bottom", "yshift": 4}
    return {"text": escaped(text), "showarrow": False, **place}


def flow(columns: Sequence[tuple[str, LayerCoalitions]]) -> go.Figure:
    """How membership changes from column to column: across layers, or between two checkpoints of one layer.

    A band is the heads that go from one coalition to another. Between checkpoints it is the same head; across layers a head is
    followed by its index, which is only a convention of the model's code.

    Parameters
    ----------
    columns : (title, coalitions) from left to right, all with the same number of heads.
    """
    last = max(len(columns) - 1, 1)
    colors, about, across, down = [], [], [], []
    for position, (title, entry) in enumerate(columns):
        sizes = np.bincount(entry.labels) / len(entry.labels)
        down += (np.cumsum(sizes) - sizes / 2).clip(0.001, 0.999).tolist()  # in the order of the labels
        across += [min(max(position / last, 0.001), 0.999)] * entry.k
        colors += [looks(entry)[heads[0]].color for heads in entry.members]
        about += [f"{escaped(title)}, coalition {label}: {_list(heads)}" for label, heads in enumerate(entry.members)]
    links = _links([entry for _, entry in columns])
    sankey = {
        "type": "sankey",
        "arrangement": "snap",
        "node": {
            "color": colors,
            "customdata": about,
            "hovertemplate": "%{customdata}<extra></extra>",
            "label": [""] * len(colors),
            "x": across,
            "y": down,
            "pad": 8,
            "thickness": 14,
            "line": {"width": 0},
        },
        "link": {
            "source": [source for source, *_ in links],
            "target": [target for _, target, _ in links],
            "value": [len(moved) for *_, moved in links],
            "color": [_faded(colors[source]) for source, *_ in links],
            "customdata": [_list(moved) for *_, moved in links],
            "hovertemplate": "%{customdata}<extra></extra>",
        },
    }
    anchors = ["left", *["center"] * (len(columns) - 2), "right"]
    titles = [_heading(title, place / last, anchors[place]) for place, (title, _) in enumerate(columns)]
    return calm(go.Figure([sankey], {"annotations": titles}), height=360, top=34)


def _links(entries: Sequence[LayerCoalitions]) -> list[tuple[int, int, list[int]]]:
    """(node from, node to, heads) of every band; nodes are the coalitions, counted through all columns."""
    links, start = [], 0
    for entry, following in itertools.pairwise(entries):
        for label, heads in enumerate(entry.members):
            for other in np.unique(following.labels[heads]):
                moved = [head for head in heads if following.labels[head] == other]
                links.append((start + label, start + entry.k + int(other), moved))
        start += entry.k
    return links


def _list(heads: Sequence[int]) -> str:
    return ", ".join(f"H{head}" for head in heads)


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
    axis = {"nticks": 5, "fixedrange": True}
    shape = {
        "xaxis": {"title": "layer", "showgrid": False, "fixedrange": True, "tickformat": "d", "anchor": "y2"},
        "yaxis": {"title": f"inside, mean {comparison.strength}", "domain": [0.54, 1], **axis},
        "yaxis2": {"title": f"between, mean {comparison.strength}", "domain": [0, 0.46], **axis},
    }
    if selected is not None:
        line = {"color": NEUTRAL_COLOR, "width": 1, "dash": "dot"}
        place = {"x0": selected, "x1": selected, "y0": 0, "y1": 1, "yref": "paper"}
        shape["shapes"] = [{"type": "line", "line": line, "layer": "below", **place}]
    traces = [
        _means(comparison, which, side) | {"name": escaped(name), "yaxis": axis_name, "showlegend": which == "inside"}
        for which, axis_name in (("inside", "y"), ("between", "y2"))
        for side, name in (("before", before), ("after", after))
    ]
    return calm(go.Figure(traces, shape), height=380, legend=True)


def _means(comparison: Comparison, which: str, side: str) -> dict:
    entries = comparison.tested
    changes = [getattr(entry, which) for entry in entries]
    color = A_COLOR if side == "before" else B_COLOR
    trace = {
        "type": "scatter",
        "x": [entry.layer for entry in entries],
        "y": [getattr(change, side) for change in changes],
        "legendgroup": side,
        "mode": "lines+markers",
        "line": {"color": color, "width": 2},
        "marker": {"size": 7},
        "customdata": [[entry.verdict, entry.p_holm] for entry in entries],
        "hovertemplate": "layer %{x}: %{y:.3g}<br>%{customdata[0]}, Holm p = %{customdata[1]:.2g}",
    }
    if side == "after":
        high, low = [one.high - one.change for one in changes], [one.change - one.low for one in changes]
        trace["error_y"] = {"type": "data", "symmetric": False, "array": high, "arrayminus": low, "thickness": 1, "width": 2}
        if which == "inside":
            starred = [entry.verdict == "selective" for entry in entries]
            symbols = ["star" if star else "circle" for star in starred]
            trace["marker"] = {"size": [13 if star else 7 for star in starred], "symbol": symbols}
    return trace
