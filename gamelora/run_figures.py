"""One metric of several runs in one chart."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from analysis.coalition_style import OKABE_ITO
from analysis.figures import calm, escaped

_DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
_FEW_STEPS = 5  # fewer than these would be ticked at fractions of a step
_MARKED_BELOW = 60  # points of a curve that are few enough to be marked each


def look_of(position: int) -> tuple[str, str]:
    """Colour and dash of the run at that place: 35 different looks."""
    return OKABE_ITO[position % len(OKABE_ITO)], _DASHES[position // len(OKABE_ITO) % len(_DASHES)]


def overlay_figure(curves: Mapping[str, pd.Series], title: str, raw: Mapping[str, pd.Series] | None = None) -> go.Figure:
    """Curves over optimizer steps, one a run.

    Parameters
    ----------
    curves : values by step.
    title : of the value axis: the metric with its unit.
    raw : what the curves were before smoothing, drawn faintly below them.
    """
    figure, traces = go.Figure(), []
    for position, (name, curve) in enumerate(curves.items()):
        color, dash = look_of(position)
        line = {"color": color, "dash": dash, "width": 2}
        if raw:
            faint = {"mode": "lines", "line": line | {"dash": "solid", "width": 1}, "opacity": 0.3}
            traces.append(_trace(name, raw[name]) | faint | {"showlegend": False, "hoverinfo": "skip", "hovertemplate": None})
        mode = "lines+markers" if len(curve) < _MARKED_BELOW else "lines"
        traces.append(_trace(name, curve) | {"mode": mode, "line": line, "marker": {"color": color, "size": 6}})
    figure.add_traces([go.Scatter(trace) for trace in traces])
    figure.update_xaxes(title="optimizer step", showgrid=False, tickformat="d")
    steps = [step for curve in curves.values() for step in (curve.index.min(), curve.index.max())]
    if steps and max(steps) - min(steps) < _FEW_STEPS:
        figure.update_xaxes(dtick=1, range=[max(0, min(steps) - 1), max(steps) + 1])
    figure.update_yaxes(title=title, nticks=6)
    calm(figure, height=380, legend=True)
    if len(curves) > len(OKABE_ITO):  # a legend above the chart would take its place
        figure.update_layout(legend={"orientation": "v", "x": 1.01, "y": 1, "yanchor": "top"}, margin={"t": 10})
    return figure.update_layout(dragmode="zoom", hoverlabel={"namelength": 40})


def _trace(name: str, curve: pd.Series) -> dict:
    """32 bits a number: far finer than a pixel, and half of what is sent."""
    return {
        "type": "scatter",
        "x": curve.index.to_numpy(dtype=np.int32),
        "y": curve.to_numpy(dtype=np.float32),
        "name": escaped(name),
        "hovertemplate": "step %{x}: %{y:.4g}",
    }
