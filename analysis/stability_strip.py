"""The stability strip: how surely each head of a layer belongs to its coalition, in one line under the heatmap."""

from __future__ import annotations

import plotly.graph_objects as go

from analysis.coalition_style import block_order, looks
from analysis.coalitions import LayerCoalitions
from analysis.figures import calm
from analysis.heads import head_name


def stability_strip(entry: LayerCoalitions) -> go.Figure:
    """A bar a head, as high as its confidence in [0, 1], in the colour of its coalition and the order of the heatmap.

    Raises
    ------
    ValueError
        When no bootstrap has judged the layer.
    """
    if entry.stability is None:
        raise ValueError(f"layer {entry.layer} has no stability to show: its coalitions were not resampled.")
    order = block_order(entry.labels)
    shown = [looks(entry)[head] for head in order]
    figure = go.Figure(
        go.Bar(
            x=[f"H{head}" for head in order],
            y=entry.stability.confidence[order],
            marker={"color": [one.color for one in shown], "line": {"color": "#333333", "width": 1}},
            customdata=[[head_name(entry.layer, int(head)), int(entry.labels[head])] for head in order],
            hovertemplate="%{customdata[0]} stays in coalition %{customdata[1]} in %{y:.0%} of the resamples<extra></extra>",
        )
    )
    figure.update_xaxes(type="category", tickangle=0, showgrid=False, fixedrange=True)
    figure.update_yaxes(range=[0, 1], tickvals=[0, 0.5, 1], tickformat=".0%", fixedrange=True)
    figure.update_layout(bargap=0.15)
    return calm(figure, height=110)
