"""Matplotlib figures of coalitions for papers, at column or page width; the files are made by `paper_figures.figure_bytes`.

A coalition has a colour and a marker, a negative edge is dashed, a series has its own line and marker: all read in grey.
"""

from __future__ import annotations

from collections.abc import Sequence

import networkx as nx
import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from analysis.coalition_style import NEGATIVE_COLOR, POSITIVE_COLOR, Look, block_bounds, block_order
from analysis.compare import Comparison
from analysis.figure_data import A_COLOR, B_COLOR, NEUTRAL_COLOR, off_diagonal, symmetric_limit, tick_positions
from analysis.head_graph import kv_groups_matter, layout
from analysis.paper_figures import COLORMAP, COLUMN_WIDTH, PAGE_WIDTH, color_bar, one_axes

WIDTHS = {"column": COLUMN_WIDTH, "page": PAGE_WIDTH}  # inches
_DASHES = (0, (4, 2))


def graph_figure(graph: nx.Graph, looks: Sequence[Look], width: float = COLUMN_WIDTH) -> Figure:
    """The coalition graph: a node a head, edge width by |G|, negative edges dashed.

    Parameters
    ----------
    graph : of `head_graph`.
    looks : one a node, in its order (`coalition_style.looks`).
    width : inches, `COLUMN_WIDTH` or `PAGE_WIDTH`.
    """
    height = min(width, 4.5)
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    positions = layout(graph)
    widest = max((strength for *_, strength in graph.edges(data="strength")), default=0.0) or 1.0
    scale = height / COLUMN_WIDTH
    thickest = scale * (2.2 if len(graph) <= 16 else 1.2)  # points
    for chosen, color, dashes in ((1, POSITIVE_COLOR, "-"), (-1, NEGATIVE_COLOR, _DASHES)):
        edges = [(one, other, abs(weight)) for one, other, weight in graph.edges(data="weight") if chosen * weight > 0]
        lines = [(positions[one], positions[other]) for one, other, _ in edges]
        widths = [0.1 + thickest * strength / widest for *_, strength in edges]
        axes.add_collection(LineCollection(lines, linewidths=widths, colors=color, linestyles=dashes, zorder=1))
    size = scale**2 * (190 if len(graph) <= 16 else 80)  # square points
    with_kv = kv_groups_matter(graph) and len(graph) <= 16  # more than 16 markers have no room for a second line
    for (node, data), one in zip(graph.nodes(data=True), looks, strict=True):
        face = "white" if one.hollow else one.color
        room = 1.6 if one.marker in "^v" else 1.0  # for the name inside a triangle
        axes.scatter(*positions[node], s=room * size, marker=one.marker, color=face, edgecolors="black", linewidths=0.6, zorder=2)
        name = f"H{data['head']}\nkv{data['kv_group']}" if with_kv else f"H{data['head']}"
        axes.annotate(
            name,
            positions[node],
            fontsize=scale * (5 if len(graph) <= 16 else 4.5),
            color=one.text,
            ha="center",
            va="center",
            zorder=3,
        )
    axes.set_aspect("equal")
    axes.margins(0.12)
    axes.set_axis_off()
    handles = [
        Line2D([], [], color=POSITIVE_COLOR, linewidth=0.1 + thickest, label=f"G > 0 (this wide: |G| = {widest:.2g})"),
        Line2D([], [], color=NEGATIVE_COLOR, linewidth=scale, linestyle=_DASHES, label="G < 0"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, fontsize=7, frameon=False)
    return figure


def reordered_heatmap_figure(
    G: np.ndarray, labels: np.ndarray, looks: Sequence[Look], groups: Sequence[int] | None = None, width: float = COLUMN_WIDTH
) -> Figure:
    """G with the heads sorted by coalition, the coalitions' blocks outlined, their markers and kv groups along the rows.

    Parameters
    ----------
    G : [heads, heads].
    labels : coalition of each head, int [heads].
    groups : kv group of each head, written beside it; None where groups say nothing.
    """
    figure = Figure(figsize=(width, 0.88 * min(width, 5.0)), layout="constrained")
    axes = figure.subplots()
    order, limit = block_order(labels), symmetric_limit(G)
    image = axes.imshow(off_diagonal(G)[np.ix_(order, order)], cmap=COLORMAP, vmin=-limit, vmax=limit, interpolation="nearest")
    for start, end in block_bounds(labels):
        axes.add_patch(Rectangle((start, start), end - start, end - start, fill=False, edgecolor="black", linewidth=1))
    small = min(6.0, 43 * width / len(order))  # points: what a row of cells has room for
    beside = axes.get_yaxis_transform()
    for row, head in enumerate(order):
        one = looks[head]
        face = "white" if one.hollow else one.color
        mark = {"marker": one.marker, "markerfacecolor": face, "markeredgecolor": "black", "markeredgewidth": 0.4}
        axes.plot(-0.03, row, transform=beside, clip_on=False, markersize=0.7 * small, linestyle="none", **mark)
        if groups is not None:
            axes.text(-0.08, row, str(groups[head]), transform=beside, fontsize=small, ha="center", va="center")
    if groups is not None:
        axes.text(-0.08, 1.01, "kv", transform=axes.transAxes, fontsize=6, ha="center", va="bottom")
    ticks = tick_positions(len(order))
    heads = [f"H{order[tick]}" for tick in ticks]
    axes.set_xticks(ticks, heads, rotation=90, fontsize=6)
    axes.set_yticks(ticks, heads, fontsize=6)
    axes.tick_params(length=0)
    axes.tick_params(axis="y", pad=(0.06 if groups is None else 0.12) * 48 * width)
    axes.spines[:].set_visible(False)
    color_bar(figure, image, [axes], limit, "G")
    return figure


def comparison_figure(
    comparison: Comparison, before: str = "before", after: str = "after", width: float = COLUMN_WIDTH
) -> Figure:
    """Mean coupling inside and between coalitions by layer, before and after (dashed), with the interval of the change.

    A layer that is selective by itself after Holm has a star. `before` and `after` are the names of the two checkpoints.
    """
    figure, axes = one_axes(width, 2.2)
    figure.delaxes(axes)
    panels = figure.subplots(2, 1, sharex=True)
    layers = [entry.layer for entry in comparison.tested]
    for axes, which in zip(panels, ("inside", "between"), strict=True):
        changes = [getattr(entry, which) for entry in comparison.tested]
        first, second = (np.array([getattr(change, side) for change in changes]) for side in ("before", "after"))
        interval = np.array([[change.change - change.low, change.high - change.change] for change in changes]).reshape(-1, 2).T
        style = {"markersize": 2.5, "linewidth": 1}
        axes.plot(layers, first, "o-", color=A_COLOR, label=before.replace("$", r"\$"), **style)
        bars = interval if np.isfinite(interval).all() else None
        name = after.replace("$", r"\$")
        axes.errorbar(layers, second, yerr=bars, fmt="s--", color=B_COLOR, elinewidth=0.6, label=name, **style)
        axes.set_ylabel(f"{which}\nmean ${comparison.strength}$", fontsize=7)
        axes.axhline(0, color=NEUTRAL_COLOR, linewidth=0.5)
        axes.tick_params(labelsize=6)
        axes.spines[["top", "right"]].set_visible(False)
    starred = [(entry.layer, entry.inside.after) for entry in comparison.tested if entry.verdict == "selective"]
    if starred:
        panels[0].plot(*np.transpose(starred), "*", color="black", markersize=5, label="selective", linestyle="none")
    panels[1].set_xlabel("layer", fontsize=7)
    panels[1].xaxis.get_major_locator().set_params(integer=True)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, fontsize=6, frameon=False)
    return figure
